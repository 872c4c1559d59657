/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the name of this process's job in the environment (job.h). */
#include "job.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/param.h"
#include "../base/status.h"
#include "wire.h"

/* The first row whose first variable is set names the job. */
static const struct {
  const char *variable, *second; /* "" if there is no second */
  const char *not_with;          /* if this is set, `second` is ignored */
} names[] = {
#define HK_LAUNCHER_JOB(variable, second, not_with) {variable, second, not_with},
#include "../base/launchers.def" /* the rows */
};

static const char *job_set_value(const char *variable) {
  const char *text = *variable ? getenv(variable) : NULL;
  return text && *text ? text : NULL;
}

/* Writes the job's name in words and the token that is compared. */
void hk_boot_job_here(const hk_settings *settings, hk_boot_job *out) {
  static const uint8_t public_key[] = "Hocket job token";
  _Static_assert(sizeof public_key == HK_SECRET_BYTES + 1, "and a zero");
  const char *given = settings->JOB, *value = NULL;
  size_t i = 0;
  if (given && *given) {
    snprintf(out->text, sizeof out->text, "HOCKET_JOB=%.300s", given);
  } else {
    while (i < HK_ARRAY_LENGTH(names) && !(value = job_set_value(names[i].variable))) i++;
    const char *second = value && !job_set_value(names[i].not_with) && job_set_value(names[i].second)
                             ? job_set_value(names[i].second)
                             : NULL;
    snprintf(out->text, sizeof out->text, "%s%s%.150s%s%s%s%.100s of user id %u",
             value ? names[i].variable : "a job without a name", value ? "=" : "", value ? value : "",
             second ? " " : "", second ? names[i].second : "", second ? "=" : "", second ? second : "",
             (unsigned)getuid());
  }
  out->named = value || (given && *given);
  out->token = hk_derive64(public_key, "job", out->text, strlen(out->text));
  if (!out->token) out->token = 1; /* 0 means no token */
}

/* ---- for operators ---- */

/* Adds a line if the first variable is set. */
static void job_add_name(char *text, size_t bytes, const char *variable, const char *second) {
  const size_t used = strlen(text);
  const char *value = job_set_value(variable), *also = job_set_value(second);
  if (!value) return;
  const int n = snprintf(text + used, bytes - used, "%s=%s%s%s%s%s\n", variable, value, also ? " " : "",
                         also ? second : "", also ? "=" : "", also ? also : "");
  if (n < 0 || (size_t)n >= bytes - used) text[used] = 0;
}

void hk_boot_job_names(const hk_settings *settings, char *text, size_t bytes) {
  *text = 0;
  if (settings->JOB && *settings->JOB) {
    const int n = snprintf(text, bytes, "HOCKET_JOB=%s\n", settings->JOB);
    if (n < 0 || (size_t)n >= bytes) *text = 0;
  }
  for (size_t i = 0; i < HK_ARRAY_LENGTH(names); i++) job_add_name(text, bytes, names[i].variable, names[i].second);
  job_add_name(text, bytes, "MASTER_ADDR", "MASTER_PORT");
  job_add_name(text, bytes, "NCCL_COMM_ID", "");
}

/* One line of n bytes: "A=x B=y" is x, A=x, x.y, x:y and itself. */
static bool job_line_is(const char *line, size_t n, const char *wanted) {
  const char *value = memchr(line, '=', n), *end = line + n;
  const size_t w = strlen(wanted);
  if (!value++) return false;
  const char *space = memchr(value, ' ', (size_t)(end - value)), *first_end = space ? space : end;
  const size_t first = (size_t)(first_end - value);
  if ((w == n && !memcmp(line, wanted, w)) || (w == first && !memcmp(value, wanted, w)) ||
      (w == (size_t)(first_end - line) && !memcmp(line, wanted, w)))
    return true;
  const char *second = space ? memchr(space, '=', (size_t)(end - space)) : NULL;
  if (!second++ || w != first + 1 + (size_t)(end - second)) return false;
  return !memcmp(value, wanted, first) && strchr(".:", wanted[first]) &&
         !memcmp(second, wanted + first + 1, (size_t)(end - second));
}

bool hk_boot_job_is(const char *list, const char *wanted) {
  if (!*wanted) return false;
  for (size_t n; *list; list += n + (list[n] == '\n')) {
    n = strcspn(list, "\n");
    if (job_line_is(list, n, wanted)) return true;
  }
  return false;
}
