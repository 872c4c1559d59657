/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a job find each other: what a launcher's variables say about this process, and the unique id that
 * follows from them. */
#pragma once
#include <nccl.h> /* ncclUniqueId */
#include "../base/status.h"

struct hk_settings; /* base/param.h */

typedef struct hk_launched {
  const char *launcher; /* a name of launchers.def; "none": no launcher's variables are set */
  int rank, nranks;
  int local; /* ranks on this host, as the launcher says; 0: not known */
} hk_launched;

/* By the variables of the launcher `wanted`; NULL: of the first launcher whose variables are set. Without any this
 * process is the only rank. HK_ERR_USAGE names a variable that is wrong, or absent though the launcher was wanted. */
hk_status hk_launched_find(hk_launched *out, const char *wanted);

/* The id of the communicator of all ranks of the job. `address`: "host:port" of rank 0's host, the same on all ranks;
 * NULL: from the environment.
 * Ranks other than 0 may wait here until rank 0 has come, HOCKET_BOOTSTRAP_TIMEOUT at most. */
hk_status hk_meet(const struct hk_settings *settings, ncclUniqueId *id, const hk_launched *p, const char *address);
