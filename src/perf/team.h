/* SPDX-License-Identifier: Apache-2.0 */
/* Barrier and reduction over all threads of all processes. */
#pragma once
#include <pthread.h>
#include "launch.h"

typedef struct perf_team {
  perf_launch *launch;
  int threads;
  pthread_mutex_t lock;
  pthread_cond_t turned;
  int arrived;
  unsigned turn;
  double sum, result;
  double *most, *gathered; /* of perf_team_gather */
} perf_team;

/* The numbers of nccl-tests' -a, and the sum. */
enum { TEAM_RANK0, TEAM_AVERAGE, TEAM_MIN, TEAM_MAX, TEAM_SUM };

void perf_team_init(perf_team *t, int threads, perf_launch *launch);
/* Called by every thread; gives each the same result. */
double perf_team_reduce(perf_team *t, int thread, double value, int how);
/* Collects n doubles from every process, the largest over its threads, into `all` of every thread. */
void perf_team_gather(perf_team *t, int thread, const double *mine, int n, double *all);
void perf_team_barrier(perf_team *t, int thread);
