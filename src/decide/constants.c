/* SPDX-License-Identifier: Apache-2.0 */
/* The file of measured constants: `name = value` lines. */
#include "constants.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/text_file.h"

enum { FILE_MOST = 1 << 20 };

#define CONSTANTS_US(field, value, ...) .field = value,
#define CONSTANTS_RATE(field, name, value, ...) .field = 1.0 / value,
const hk_constants hk_constants_default = {HK_CONSTANTS(CONSTANTS_US, CONSTANTS_RATE)};

#define ROW_US(field, value, most, about) {#field, about, offsetof(hk_constants, field), 1e-6, most, false},
#define ROW_RATE(field, name, value, about) {name, about, offsetof(hk_constants, field), 1, 1e7, true},
static const struct {
  const char *name, *about;
  size_t at;
  double least, most; /* valid range, as written */
  bool rate;
} rows[] = {HK_CONSTANTS(ROW_US, ROW_RATE)};

static bool constants_of_net(size_t i) { return !strncmp(rows[i].name, "net_", 4); }

static double *constants_field(hk_constants *k, size_t i) { return (double *)(void *)((char *)k + rows[i].at); }

hk_status hk_constants_write(const hk_constants *k, FILE *to) {
  hk_constants copy = *k;
  fputs("# Measured by `hocket tune`.  Without this file Hocket uses built-in values.\n", to);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    if (constants_of_net(i) && !k->net_measured) continue;
    double v = *constants_field(&copy, i);
    fprintf(to, "%s = %.6g # %s\n", rows[i].name, rows[i].rate ? 1 / v : v, rows[i].about);
  }
  return ferror(to) ? HK_FAIL_ERRNO("the constants cannot be written") : HK_OK;
}

static hk_status constants_read_line(hk_constants *k, const char *path, int number, char *line) {
  char *name = line + strspn(line, " \t\r"), *equals = strchr(name, '='), *end;
  size_t n = strcspn(name, " \t=");
  if (!equals || name + n > equals)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: \"%.60s\" is no line `name = value`", path, number, name);
  double v = strtod(equals + 1, &end);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    if (strlen(rows[i].name) != n || strncmp(rows[i].name, name, n)) continue;
    if (end == equals + 1 || end[strspn(end, " \t\r")] || !isfinite(v) || v < rows[i].least || v > rows[i].most)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: %s must be a number from %g to %g: run `hocket tune` again", path, number,
                     rows[i].name, rows[i].least, rows[i].most);
    *constants_field(k, i) = rows[i].rate ? 1 / v : v;
    if (constants_of_net(i)) k->net_measured = 1;
    return HK_OK;
  }
  return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: there is no constant \"%.*s\": run `hocket tune` again", path, number, (int)n,
                 name);
}

hk_status hk_constants_read(hk_constants *k, const char *path) {
  char *text, *line;
  size_t bytes;
  int number = 0;
  *k = hk_constants_default;
  hk_status rc = hk_text_read(path, FILE_MOST, &text, &bytes);
  if (rc != HK_OK) return HK_FAIL(rc, "the measured constants: %s", hk_last_error());
  for (char *at = text; rc == HK_OK && (line = hk_text_line(&at, &number));)
    rc = constants_read_line(k, path, number, line);
  free(text);
  return rc;
}

bool hk_constants_path(char *path, size_t bytes) {
  const char *config = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
  int n = -1;
  if (config && *config == '/')
    n = snprintf(path, bytes, "%s/hocket/tune.conf", config);
  else if (home && *home == '/')
    n = snprintf(path, bytes, "%s/.config/hocket/tune.conf", home);
  return n > 0 && (size_t)n < bytes;
}
