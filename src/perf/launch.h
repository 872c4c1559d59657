/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is, of how many, and the way to the others. */
#ifndef PERF_LAUNCH_H
#define PERF_LAUNCH_H
#include "oob.h"
#include "perf.h"

typedef struct perf_launch {
  const char *kind; /* "none", "procs", or the launcher's name */
  int nprocs, proc;
  int local_procs; /* processes on this host, as the launcher says; 0: it does not say */
  perf_oob oob;
} perf_launch;

/* With --procs it forks, before anything has touched the library, and returns in the children only: the parent stays
 * behind to watch them.  Otherwise reads a launcher's environment and meets the other processes. */
void perf_launch_begin(perf_launch *l, const perf_options *o);

/* meet.c: connects l->oob for launchers that give a rank and a size but no channel. */
void perf_meet(perf_launch *l);
#endif
