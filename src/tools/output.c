/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands write (tools.h). */
#include <errno.h>
#include <string.h>
#include "tools.h"

int hk_tool_output(const char *path, hk_status (*write)(FILE *to, const void *what), const void *what) {
  FILE *to = !path || !strcmp(path, "-") ? stdout : fopen(path, "w");
  if (!to) return hk_tool_wrong("%s cannot be written: %s", path, strerror(errno));
  const hk_status rc = write(to, what);
  bool failed = ferror(to) != 0;
  if (to != stdout) failed = fclose(to) || failed;
  if (rc != HK_OK) return hk_tool_failed(rc);
  return failed ? hk_tool_wrong("%s cannot be written: %s", path ? path : "the output", strerror(errno)) : HK_EXIT_OK;
}
