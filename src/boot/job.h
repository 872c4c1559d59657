/* SPDX-License-Identifier: Apache-2.0 */
/* The job that this process belongs to, so that two jobs with the same NCCL_COMM_ID do not mix. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct hk_settings; /* base/param.h */

enum { HK_JOB_TEXT = 448 };
typedef struct hk_boot_job {
  bool named;             /* by a variable; else all processes of the user have this name */
  uint64_t token;         /* equal in processes of one job; never 0 */
  char text[HK_JOB_TEXT]; /* "SLURM_JOB_ID=17 SLURM_STEP_ID=0 of user id 1000" */
} hk_boot_job;
void hk_boot_job_here(const struct hk_settings *settings, hk_boot_job *out);
