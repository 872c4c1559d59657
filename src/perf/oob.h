/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange between the processes of a run, separate from what is measured: a star of sockets around process 0. */
#ifndef PERF_OOB_H
#define PERF_OOB_H
#include <stddef.h>

typedef struct perf_oob {
  int nprocs, proc;
  int *fds; /* process 0: one socket a process, [0] unused; others: fds[0] goes to process 0 */
} perf_oob;

/* Collects `bytes` from every process into `all`, in order, on every process. Also used as the barrier. Ends the
 * process if another one has ended. */
void perf_oob_allgather(perf_oob *o, const void *mine, size_t bytes, void *all);
#endif
