/* SPDX-License-Identifier: Apache-2.0 */
/* Barrier, reduction and gather over all threads of all processes (team.h). */
#include "team.h"
#include <stdlib.h>
#include <string.h>
#include "perf.h"

void perf_team_init(perf_team *t, int threads, perf_launch *launch) {
  *t = (perf_team){.launch = launch, .threads = threads};
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->turned, NULL);
}

static double team_combine(double a, double b, int how) {
  switch (how) {
    case TEAM_RANK0: return a;
    case TEAM_MIN: return b < a ? b : a;
    case TEAM_MAX: return b > a ? b : a;
    default: return a + b;
  }
}

/* Called by the last thread that arrives, for the whole process. */
static double team_over_processes(perf_team *t, int how) {
  int n = t->launch->nprocs;
  double *all = malloc(sizeof *all * (size_t)n);
  if (!all) perf_fail(PERF_INTERNAL, "out of memory");
  perf_allgather(t->launch, &t->sum, sizeof t->sum, all);
  double r = all[0];
  for (int p = 1; p < n; p++) r = team_combine(r, all[p], how);
  free(all);
  return how == TEAM_AVERAGE ? r / (n * t->threads) : r;
}

double perf_team_reduce(perf_team *t, int thread, double value, int how) {
  pthread_mutex_lock(&t->lock);
  if (t->arrived == 0 || (how == TEAM_RANK0 && thread == 0))
    t->sum = value;
  else
    t->sum = team_combine(t->sum, value, how);
  unsigned turn = t->turn;
  if (++t->arrived == t->threads) {
    t->result = team_over_processes(t, how);
    t->arrived = 0, t->turn++;
    pthread_cond_broadcast(&t->turned);
  } else {
    while (t->turn == turn) pthread_cond_wait(&t->turned, &t->lock);
  }
  /* The next reduction cannot overwrite the result before this thread takes part in it. */
  double result = t->result;
  pthread_mutex_unlock(&t->lock);
  return result;
}

void perf_team_gather(perf_team *t, int thread, const double *mine, int n, double *all) {
  size_t bytes = sizeof *mine * (size_t)n, total = bytes * (size_t)t->launch->nprocs;
  pthread_mutex_lock(&t->lock);
  if (!t->most && (!(t->most = calloc(1, bytes)) || !(t->gathered = malloc(total))))
    perf_fail(PERF_INTERNAL, "out of memory");
  for (int i = 0; i < n; i++)
    if (mine[i] > t->most[i]) t->most[i] = mine[i];
  pthread_mutex_unlock(&t->lock);
  perf_team_barrier(t, thread);
  pthread_mutex_lock(&t->lock);
  if (t->most) { /* the first thread after the barrier */
    perf_allgather(t->launch, t->most, bytes, t->gathered);
    free(t->most);
    t->most = NULL;
  }
  memcpy(all, t->gathered, total);
  pthread_mutex_unlock(&t->lock);
  perf_team_barrier(t, thread);
  pthread_mutex_lock(&t->lock);
  free(t->gathered);
  t->gathered = NULL;
  pthread_mutex_unlock(&t->lock);
  perf_team_barrier(t, thread); /* no thread starts the next one while the last thread still frees this one */
}

void perf_team_barrier(perf_team *t, int thread) { perf_team_reduce(t, thread, 0, TEAM_SUM); }
