/* SPDX-License-Identifier: Apache-2.0 */
/* The job that this process belongs to, so that two jobs with the same NCCL_COMM_ID do not mix. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hk_settings; /* base/param.h */

enum { HK_JOB_TEXT = 448 };
typedef struct hk_boot_job {
  bool named;             /* by a variable; else all processes of the user have this name */
  uint64_t token;         /* equal in processes of one job; never 0 */
  char text[HK_JOB_TEXT]; /* "SLURM_JOB_ID=17 SLURM_STEP_ID=0 of user id 1000" */
} hk_boot_job;
void hk_boot_job_here(const struct hk_settings *settings, hk_boot_job *out);

/* ---- for operators ---- */
enum { HK_JOB_NAMES = 1024 };
/* All names that the environment has for this process's job and its meeting place, one a line, "SLURM_JOB_ID=17
 * SLURM_STEP_ID=0"; names that do not fit are left out. */
void hk_boot_job_names(const struct hk_settings *settings, char *text, size_t bytes);
/* True if `wanted` is one of these names: "17", "17.0", "SLURM_JOB_ID=17"; "node1:29500" of MASTER_ADDR. */
bool hk_boot_job_is(const char *names, const char *wanted);
