/* SPDX-License-Identifier: Apache-2.0 */
/* The example environment plugin; the file that includes this one defines VERSION, 1 or 2.  It gives the variables of
 * the environment whose names begin with EXAMPLE_ in place of NCCL_.  HOCKET_TEST_ENV=refuse: init fails. */
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

static ncclResult_t begin(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  const char *mode = getenv("HOCKET_TEST_ENV");
  if (major != 2 || minor < 32 || patch > 99 || !suffix) return ncclInvalidArgument;
  return mode && !strcmp(mode, "refuse") ? ncclInternalError : ncclSuccess;
}
#if VERSION >= 2
static ncclResult_t begin_v(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, logger log) {
  log(3, 1, __FILE__, __LINE__, "example environment: version %d.%d.%d", major, minor, patch);
  return begin(major, minor, patch, suffix);
}
#else
#define begin_v begin
#endif

static ncclResult_t end(void) {
  fprintf(stderr, "example environment: finalize\n");
  return ncclSuccess;
}

static const char *get(const char *name) {
  char own[200];
  snprintf(own, sizeof own, "EXAMPLE_%s", name + strlen("NCCL_"));
  return getenv(own);
}

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
struct environment {
  const char *name;
  void *calls[3];
};
__attribute__((visibility("default"))) extern const struct environment JOIN(ncclEnvPlugin_v, VERSION);
const struct environment JOIN(ncclEnvPlugin_v, VERSION) = {"Example", {(void *)begin_v, (void *)end, (void *)get}};
