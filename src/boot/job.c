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
