/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/param.h"
#include "../base/status.h"
#include "wire.h"

/* What names a job, the most exact name first; the first row whose first variable is set counts.  Only variables that a
 * launcher sets alike on all ranks: inside an allocation, processes of an mpirun are in several steps of Slurm, and MASTER_ADDR
 * may be a loopback address on one host. */
static const struct {
  const char *variable, *second;
  const char *not_with; /* the second does not count where this is set */
} names[] = {
    {"PMIX_NAMESPACE", NULL, NULL},
    {"OMPI_MCA_ess_base_jobid", NULL, NULL},
    {"TORCHELASTIC_RUN_ID", "MASTER_PORT", NULL},
    {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_RANK"},
    {"FLUX_JOB_ID", NULL, NULL},
    {"PBS_JOBID", NULL, NULL},
    {"LSB_JOBID", NULL, NULL},
    {"COBALT_JOBID", NULL, NULL},
};

static const char *set_value(const char *variable) {
  const char *text = variable ? getenv(variable) : NULL;
  return text && *text ? text : NULL;
}

/* The job's name in words; gives the part of it that is compared. */
void hk_boot_job_here(hk_boot_job *out) {
  static const uint8_t public_key[HK_SECRET_BYTES] = "Hocket job token";
  const char *given = hk_param_str(HK_P_JOB), *value = NULL;
  size_t i = 0;
  if (given && *given) {
    snprintf(out->text, sizeof out->text, "HOCKET_JOB=%.300s", given);
  } else {
    while (i < HK_ARRAY_LENGTH(names) && !(value = set_value(names[i].variable))) i++;
    const char *second =
        value && !set_value(names[i].not_with) && set_value(names[i].second) ? set_value(names[i].second) : NULL;
    snprintf(out->text, sizeof out->text, "%s%s%.150s%s%s%s%.100s of user id %u",
             value ? names[i].variable : "a job without a name", value ? "=" : "", value ? value : "",
             second ? " " : "", second ? names[i].second : "", second ? "=" : "", second ? second : "",
             (unsigned)getuid());
  }
  out->token = hk_derive64(public_key, "job", out->text, strlen(out->text));
  if (!out->token) out->token = 1; /* 0 stands for none */
}
