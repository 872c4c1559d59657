/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Times of earlier runs. On machines that others use, the relative speed of two algorithms changes with the hour (on
 * virtual machines by 10 to 25%), and a longer run does not help. So the best of one run is partly luck. A file keeps
 * the times of several runs. A run measures all algorithms of a collective and size at the same time, so combining the
 * runs (polish.c) compares them fairly: a run that is slower as a whole has no effect, and one with single disturbed
 * times has little. If the file lacks an algorithm, its times of that size are not used.
 */
#include <errno.h>
#include <math.h>
#include <sched.h> /* sched_getaffinity */
#include <stdlib.h>
#include <string.h>
#include "../../collectives/algorithm.h"
#include "../tools.h"
#include "tune.h"

static int times_order(const void *a, const void *b) {
  const hk_tune_time *x = a, *y = b;
  if (x->tcp != y->tcp) return x->tcp ? 1 : -1;
  if (x->nranks != y->nranks) return x->nranks < y->nranks ? -1 : 1;
  if (x->coll != y->coll) return x->coll < y->coll ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return (x->algorithm > y->algorithm) - (x->algorithm < y->algorithm);
}

static void times_sort(hk_tune_times *times) {
  if (times->n) qsort(times->at, (size_t)times->n, sizeof *times->at, times_order);
}

static hk_tune_time *times_find(const hk_tune_times *times, const hk_tune_time *key) {
  return times->n ? bsearch(key, times->at, (size_t)times->n, sizeof *key, times_order) : NULL;
}

static hk_tune_time times_key_of(const hk_tune_table *t, const hk_tune_cell *c) {
  return (hk_tune_time){
      .tcp = t->setup.tcp, .nranks = t->setup.nranks, .coll = c->coll, .bytes = c->bytes, .algorithm = c->algorithm};
}

static hk_status times_add(hk_tune_times *times, const hk_tune_time *one) {
  if (times->n == times->room) {
    int room = times->room ? 2 * times->room : 1024;
    hk_tune_time *more = realloc(times->at, (size_t)room * sizeof *more);
    if (!more) return HK_FAIL_ERRNO("no memory for %d times", room);
    times->at = more;
    times->room = room;
  }
  times->at[times->n++] = *one;
  return HK_OK;
}

void hk_tune_times_clear(hk_tune_times *times) {
  free(times->at);
  *times = (hk_tune_times){.n = 0};
}

/* ---- the file: a line `cores N`, then lines `shm 8 AllReduce 65536 ring 12.5 13.1 12.2`, one number for each run
 * ---- */

static bool times_read_name(hk_tune_time *out, const char *via, const char *coll, const char *algorithm) {
  out->tcp = !strcmp(via, "tcp");
  out->coll = out->algorithm = -1;
  for (int c = 0; c < HK_COLL_COUNT; c++)
    if (!strcmp(coll, hk_coll_name((hk_coll)c))) out->coll = c;
  for (int i = 0; hk_algorithms[i]; i++)
    if (!strcmp(algorithm, hk_algorithms[i]->name)) out->algorithm = i;
  return (out->tcp || !strcmp(via, "shm")) && out->coll >= 0 && out->algorithm >= 0;
}

static bool times_read_time(const char *line, hk_tune_time *out) {
  char via[8], coll[24], algorithm[24], *end;
  int used = 0;
  *out = (hk_tune_time){.runs = 0};
  int n = sscanf(line, "%7s %d %23s %zu %23s%n", via, &out->nranks, coll, &out->bytes, algorithm, &used);
  if (n != 5 || !times_read_name(out, via, coll, algorithm)) return false;
  for (const char *p = line + used; out->runs < HK_TUNE_RUNS && p[strspn(p, " \t\r")]; p = end) {
    double us = strtod(p, &end);
    if (end == p || !isfinite(us) || us <= 0) return false;
    out->us[out->runs++] = us;
    line = end;
  }
  return out->runs && !line[strspn(line, " \t\r")] && out->nranks >= 2 && out->nranks <= HK_TUNE_RANKS && out->bytes;
}

static hk_status times_read_line(hk_tune_times *times, const char *path, int number, char *line) {
  hk_tune_time one;
  int end = 0;
  line[strcspn(line, "#\n")] = 0;
  if (!line[strspn(line, " \t\r")]) return HK_OK;
  if (sscanf(line, "cores %d %n", &times->cores, &end) == 1 && !line[end] && times->cores > 0) return HK_OK;
  if (times_read_time(line, &one)) return times_add(times, &one);
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "%s:%d: \"%.60s\" is no line of times (shm or tcp, ranks, collective, bytes, algorithm, microseconds of "
      "each run), or of another version's: give a new file",
      path, number, line);
}

/* The file must have been measured with this machine's number of cores, and have each time once. */
static hk_status times_check(const hk_tune_times *times, const char *path, int cores) {
  if (times->n && times->cores != cores)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "the times in %s are of %d cores, and this process may use %d: give each machine its own file", path,
                   times->cores, cores);
  for (int i = 1; i < times->n; i++) {
    const hk_tune_time *t = &times->at[i];
    if (!times_order(t - 1, t))
      return HK_FAIL(HK_ERR_ARGUMENT, "%s has two times of %s by %s of %zu bytes on %d ranks: give a new file", path,
                     hk_coll_name((hk_coll)t->coll), hk_algorithms[t->algorithm]->name, t->bytes, t->nranks);
  }
  return HK_OK;
}

hk_status hk_tune_times_read(hk_tune_times *times, const char *path) {
  hk_status rc = HK_OK;
  char line[1024];
  cpu_set_t mine;
  int cores = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
  *times = (hk_tune_times){.n = 0};
  FILE *f = fopen(path, "re");
  if (!f && errno == ENOENT) {
    times->cores = cores;
    return HK_OK;
  }
  if (!f) return HK_FAIL(HK_ERR_ARGUMENT, "the times in %s cannot be read: %s", path, strerror(errno));
  for (int number = 1; fgets(line, sizeof line, f); number++) HK_TRY(times_read_line(times, path, number, line), out);
  if (ferror(f)) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "the times in %s cannot be read: %s", path, strerror(errno));
    goto out;
  }
  times_sort(times);
  HK_TRY(times_check(times, path, cores), out);
  times->cores = cores;
out:
  fclose(f);
  if (rc != HK_OK) hk_tune_times_clear(times);
  return rc;
}

hk_status hk_tune_times_write(const hk_tune_times *times, FILE *f) {
  fprintf(f, "# Times of hocket tune: via, ranks, collective, bytes, algorithm, microseconds of each run\ncores %d\n",
          times->cores);
  for (int i = 0; i < times->n; i++) {
    const hk_tune_time *t = &times->at[i];
    fprintf(f, "%s %d %s %zu %s", t->tcp ? "tcp" : "shm", t->nranks, hk_coll_name((hk_coll)t->coll), t->bytes,
            hk_algorithms[t->algorithm]->name);
    for (int run = 0; run < t->runs; run++) fprintf(f, " %.6g", t->us[run]);
    fputc('\n', f);
  }
  return ferror(f) ? HK_FAIL_ERRNO("the times cannot be written") : HK_OK;
}

/* ---- between a file and a table ---- */

static void times_weigh(hk_tune_table *t, const hk_tune_group *g) {
  double ln[(HK_TUNE_RUNS + 1) * HK_ALGORITHM_LIMIT], out[HK_ALGORITHM_LIMIT];
  hk_tune_cell *at = &t->at[g->first];
  int runs = at->past->runs;
  for (int c = 0; c < g->n; c++) {
    for (int run = 0; run < runs; run++) ln[run * g->n + c] = log(at[c].past->us[run]);
    ln[runs * g->n + c] = log(at[c].now);
  }
  hk_tune_polish(ln, runs + 1, g->n, out);
  for (int c = 0; c < g->n; c++) at[c].us = exp(out[c]);
}

void hk_tune_weigh(hk_tune_table *t) {
  hk_tune_group g = {.n = 0};
  while (hk_tune_next(t, &hk_constants_default, NULL, &g))
    if (t->at[g.first].past) times_weigh(t, &g);
}

/* Uses earlier times for all cells of a group or for none, because they are compared run by run. */
static void times_find_past(const hk_tune_times *times, hk_tune_table *t, const hk_tune_group *g) {
  bool whole = true;
  for (int c = g->first; c < g->first + g->n; c++) {
    hk_tune_time key = times_key_of(t, &t->at[c]);
    t->at[c].past = times_find(times, &key);
    whole = whole && t->at[c].past && t->at[c].past->runs == t->at[g->first].past->runs;
  }
  for (int c = g->first; c < g->first + g->n && !whole; c++) t->at[c].past = NULL;
}

void hk_tune_times_use(const hk_tune_times *times, hk_tune_table *t) {
  hk_tune_group g = {.n = 0};
  for (int i = 0; i < t->n; i++) t->at[i].now = t->at[i].us;
  while (hk_tune_next(t, &hk_constants_default, NULL, &g)) times_find_past(times, t, &g);
  hk_tune_weigh(t);
}

/* Adds this run's time after the earlier runs; the oldest one is removed if there is no room. */
static void times_append(hk_tune_time *out, const hk_tune_cell *c) {
  if (c->past) {
    out->runs = c->past->runs;
    memcpy(out->us, c->past->us, sizeof out->us);
  }
  if (out->runs == HK_TUNE_RUNS) memmove(out->us, out->us + 1, (size_t)--out->runs * sizeof *out->us);
  out->us[out->runs++] = c->past ? c->now : c->us;
}

hk_status hk_tune_times_take(hk_tune_times *times, const hk_tune_table *tables, int n) {
  hk_status rc = HK_OK;
  hk_tune_times fresh = {.n = 0};
  for (int i = 0; i < n; i++)
    for (const hk_tune_cell *c = tables[i].at; c < tables[i].at + tables[i].n; c++) {
      hk_tune_time one = times_key_of(&tables[i], c), *past = times_find(times, &one);
      times_append(&one, c);
      if (past)
        *past = one;
      else
        HK_TRY(times_add(&fresh, &one), out);
    }
  for (int i = 0; i < fresh.n; i++) HK_TRY(times_add(times, &fresh.at[i]), out);
  times_sort(times);
out:
  hk_tune_times_clear(&fresh);
  return rc;
}
