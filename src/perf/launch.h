/* SPDX-License-Identifier: Apache-2.0 */
/* The number of this process, the number of processes, and the exchange between them. */
#pragma once
#include "perf.h"

typedef struct perf_launch {
  const char *kind; /* "none", "procs", or the launcher's name */
  int nprocs, proc;
  struct hk_bootstrap *others; /* NULL: there are no others */
  struct hk_service *service;
} perf_launch;

/* With --procs it forks before the library is used, and returns only in the children; the parent watches them.
 * Otherwise it reads a launcher's environment. Then it connects to the other processes. */
void perf_launch_begin(perf_launch *l, const perf_options *o);
void perf_launch_end(perf_launch *l);
/* Collects `bytes` from every process into `all`, in order, on every process, apart from what is measured. Also used as
 * the barrier. Ends the process if another one has ended. */
void perf_allgather(perf_launch *l, const void *mine, size_t bytes, void *all);
