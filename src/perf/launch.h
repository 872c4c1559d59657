/* SPDX-License-Identifier: Apache-2.0 */
/* The number of this process, the number of processes, and the connection to the others. */
#ifndef PERF_LAUNCH_H
#define PERF_LAUNCH_H
#include "oob.h"
#include "perf.h"

typedef struct perf_launch {
  const char *kind; /* "none", "procs", or the launcher's name */
  int nprocs, proc;
  int local_procs; /* processes on this host, as the launcher reports it; 0: unknown */
  perf_oob oob;
} perf_launch;

/* With --procs it forks before the library is used, and returns only in the children; the parent watches them.
 * Otherwise it reads a launcher's environment and connects to the other processes. */
void perf_launch_begin(perf_launch *l, const perf_options *o);

/* meet.c: connects l->oob if the launcher gives a rank and a size but no connection. */
void perf_meet(perf_launch *l);
#endif
