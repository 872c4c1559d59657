/* SPDX-License-Identifier: Apache-2.0 */
/* One process from start to end. */
#include <dlfcn.h>
#include <hocket.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>
#include "launch.h"
#include "report.h"
#include "worker.h"

double perf_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

long long perf_now_ms(void) { return (long long)(perf_now() * 1e3); }

static void main_host_name(char *name, size_t capacity) {
  if (gethostname(name, capacity)) snprintf(name, capacity, "?");
  name[capacity - 1] = 0;
  name[strcspn(name, ".")] = 0;
}

void perf_fail(int code, const char *format, ...) {
  char host[64], text[2048];
  main_host_name(host, sizeof host);
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  perf_report_abandon();
  fflush(stdout);
  fprintf(stderr, "# %s pid %d: %s\n", host, (int)getpid(), text);
  fflush(stderr);
  /* Not exit(): other threads may be inside the library. */
  _exit(code);
}

void perf_check_nccl(ncclResult_t r, const char *call) {
  if (r == ncclSuccess) return;
  const char *detail = ncclGetLastError(NULL);
  perf_fail(PERF_NCCL, "Test NCCL failure in %s: '%s / %s'", call, ncclGetErrorString(r), detail ? detail : "");
}

/* ------------------------------------------------------------ places and groups -- */

/* Data that processes exchange at the start. */
typedef struct introduction {
  perf_place place;
  uint64_t host_hash;
  int color;
  ncclUniqueId id;
} introduction;

/* NCCL_TESTS_SPLIT divides the processes into groups that run the same operation at the same time: "AND 1", "MOD 2",
 * "OR 0x7", "DIV 4" and the signs & % | /, applied to the process number. */
static int main_color_of(int proc) {
  const char *mask = getenv("NCCL_TESTS_SPLIT_MASK"), *text = getenv("NCCL_TESTS_SPLIT");
  if (mask) return proc & (int)strtoul(mask, NULL, 16);
  if (!text) return 0;
  static const struct {
    const char *name;
    char sign;
  } rules[] = {{"AND", '&'}, {"OR", '|'}, {"MOD", '%'}, {"DIV", '/'}, {"&", '&'}, {"|", '|'}, {"%", '%'}, {"/", '/'}};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    size_t n = strlen(rules[i].name);
    if (strncasecmp(text, rules[i].name, n)) continue;
    const char *number = text + n + strspn(text + n, " ");
    int base = !strncasecmp(number, "0b", 2) ? 2 : 0;
    char *end;
    long v = strtol(number + base, &end, base);
    if (end == number + base || *end || (v == 0 && strchr("%/", rules[i].sign))) break;
    switch (rules[i].sign) {
      case '&': return proc & (int)v;
      case '|': return proc | (int)v;
      case '%': return proc % (int)v;
      default: return proc / (int)v;
    }
  }
  perf_fail(PERF_USAGE, "NCCL_TESTS_SPLIT=%s: not AND, OR, MOD or DIV and a number", text);
}

static uint64_t main_host_hash(const char *host) {
  char boot[64] = "";
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (f && !fgets(boot, sizeof boot, f)) boot[0] = 0;
  if (f) fclose(f);
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *p = host; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3u;
  for (const char *p = boot; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3u;
  return h;
}

/* Exchanges data with all processes: this process's position in its group, its number on this host, and the group's
 * id. */
static introduction *main_introduce(perf_job *job, perf_launch *l, int *local_rank, int *local_count) {
  introduction *all = calloc((size_t)l->nprocs, sizeof *all), mine = {.color = main_color_of(l->proc)};
  if (!all) perf_fail(PERF_INTERNAL, "out of memory");
  main_host_name(mine.place.host, sizeof mine.place.host);
  mine.host_hash = main_host_hash(mine.place.host);
  mine.place.pid = (int)getpid(), mine.place.group = mine.color;
  perf_allgather(l, &mine, sizeof mine, all);
  int first = -1;
  *local_rank = *local_count = job->nprocs = job->proc = 0;
  for (int p = 0; p < l->nprocs; p++) {
    bool here = all[p].host_hash == mine.host_hash, same = all[p].color == mine.color;
    *local_rank += here && p < l->proc, *local_count += here;
    job->proc += same && p < l->proc, job->nprocs += same;
    if (same && first < 0) first = p;
  }
  job->oob_procs = l->nprocs;
  /* The first process of each group makes the id. */
  if (first == l->proc) NCCL(ncclGetUniqueId(&mine.id));
  const char *device = getenv("NCCL_TESTS_DEVICE");
  int ranks = job->o->threads * job->o->gpus;
  mine.place.device = device ? atoi(device) : *local_rank * ranks;
  job->mem->describe(mine.place.device, mine.place.text, sizeof mine.place.text);
  perf_allgather(l, &mine, sizeof mine, all);
  job->id = all[first].id;
  job->nranks = job->nprocs * ranks;
  return all;
}

static void main_report_places(const perf_job *job, const introduction *all, int nprocs) {
  int ranks = job->o->threads * job->o->gpus;
  for (int p = 0; p < nprocs; p++)
    for (int i = 0; i < ranks; i++) {
      perf_place place = all[p].place;
      place.rank = p * ranks + i;
      place.device = job->mem->direct ? 0 : (place.device + i) % job->mem->device_count();
      perf_report_place(&place);
    }
}

/* Two buffers for each rank must fit into free memory, with a tenth left over. */
static void main_limit_sizes(perf_job *job, perf_launch *l, int device, int local_count) {
  const perf_options *o = job->o;
  size_t ranks = (size_t)local_count * (size_t)o->threads * (size_t)o->gpus, devices = 1;
  if (!job->mem->direct) devices = (size_t)job->mem->device_count();
  size_t sharers = (ranks + devices - 1) / devices;
  double each = (double)job->mem->capacity(device) * 0.9 / 2 / (double)sharers;
  double *all = malloc(sizeof *all * (size_t)l->nprocs);
  if (!all) perf_fail(PERF_INTERNAL, "out of memory");
  perf_allgather(l, &each, sizeof each, all);
  for (int p = 0; p < l->nprocs; p++)
    if (all[p] < each) each = all[p];
  free(all);
  job->max_bytes = o->max_bytes;
  if ((double)o->max_bytes <= each) return;
  job->max_bytes = (size_t)each;
  if (l->proc == 0) printf("#\n# Reducing maxBytes to %zu due to memory limitation\n", job->max_bytes);
}

/* ------------------------------------------------------------ threads -- */

static void *main_thread_main(void *p) {
  perf_worker *w = p;
  if (w->job->o->parallel_init) perf_worker_connect(w);
  perf_worker_run(w);
  return NULL;
}

/* -T: ends the process if an operation waits for too long. */
static void *main_watchdog_main(void *p) {
  perf_worker *workers = p;
  const perf_options *o = workers[0].job->o;
  for (;;) {
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    for (int t = 0; t < o->threads; t++) {
      long long since = atomic_load_explicit(&workers[t].waiting_since, memory_order_relaxed);
      if (since && perf_now_ms() - since > o->timeout * 1000ll)
        perf_fail(PERF_TIMEOUT, "Test timeout (%ds): an operation of ranks %d to %d takes longer", o->timeout,
                  workers[t].ranks[0].rank, workers[t].ranks[workers[t].nranks - 1].rank);
    }
  }
  return NULL;
}

static perf_worker *main_make_workers(perf_job *job, bool reports, int device) {
  const perf_options *o = job->o;
  int total = o->threads * o->gpus;
  perf_worker *w = calloc((size_t)o->threads, sizeof *w);
  perf_rank *ranks = calloc((size_t)total, sizeof *ranks);
  if (!w || !ranks) perf_fail(PERF_INTERNAL, "out of memory");
  for (int i = 0; i < total; i++) ranks[i] = (perf_rank){.rank = job->proc * total + i, .device = device + i};
  for (int t = 0; t < o->threads; t++) {
    w[t].job = job, w[t].thread = t, w[t].main = reports && t == 0;
    w[t].ranks = ranks + t * o->gpus, w[t].nranks = o->gpus;
  }
  return w;
}

static void main_run_workers(perf_worker *w) {
  const perf_options *o = w->job->o;
  pthread_t watchdog;
  if (o->timeout && pthread_create(&watchdog, NULL, main_watchdog_main, w))
    perf_fail(PERF_INTERNAL, "cannot start a thread");
  for (int t = 1; t < o->threads; t++)
    if (pthread_create(&w[t].handle, NULL, main_thread_main, &w[t]))
      perf_fail(PERF_INTERNAL, "cannot start thread %d", t);
  main_thread_main(&w[0]);
  for (int t = 1; t < o->threads; t++) pthread_join(w[t].handle, NULL);
  if (o->timeout) pthread_cancel(watchdog), pthread_join(watchdog, NULL); /* it sleeps, which can be cancelled */
}

/* One thread makes all communicators, unless each worker makes its own. */
static void main_connect_all(perf_worker *w) {
  const perf_job *job = w->job;
  double before = (double)job->mem->used(w->ranks[0].device);
  if (!job->o->parallel_init) {
    perf_worker all = *w; /* one worker with the ranks of all, which lie in one array */
    all.nranks = job->o->threads * job->o->gpus;
    perf_worker_connect(&all);
    w->init_seconds = all.init_seconds;
  }
  w->init_bytes = (double)job->mem->used(w->ranks[0].device) - before;
}

static double main_over_all(perf_job *job, double value, int how) {
  job->team.threads = 1; /* the workers have ended */
  return perf_team_reduce(&job->team, 0, value, how);
}

static int main_finish(perf_job *job, perf_worker *w, bool reports) {
  const perf_options *o = job->o;
  long measured = 0, errors = 0;
  double bandwidth = 0, seconds = 0;
  for (int t = 0; t < o->threads; t++)
    if (w[t].init_seconds > seconds) seconds = w[t].init_seconds;
  seconds = main_over_all(job, seconds, TEAM_MAX);
  for (int t = 0; t < o->threads; t++) errors += w[t].errors, bandwidth += w[t].bandwidth, measured += w[t].measured;
  errors = (long)main_over_all(job, (double)errors, TEAM_SUM);
  double init = main_over_all(job, w->init_bytes, TEAM_MAX), buffers = main_over_all(job, w->buffer_bytes, TEAM_MAX);
  double run = main_over_all(job, w->run_bytes, TEAM_MAX);
  for (int t = 0; t < o->threads; t++) perf_worker_free(&w[t]);
  const char *text = getenv("NCCL_TESTS_MIN_BW");
  double wanted = text ? atof(text) : -1;
  bandwidth = measured ? bandwidth / (double)measured : 0;
  if (reports) {
    perf_report_footer(errors, bandwidth, wanted, o->program);
    if (o->memory) perf_report_memory(job->mem->usage_title, init, buffers, run);
    if (o->memory) perf_report_init(seconds);
    perf_report_close(""); /* every error ends the process at once */
  }
  return errors || (wanted != -1 && bandwidth < wanted * 0.9) ? PERF_WRONG : PERF_OK;
}

static void main_check_support(const perf_job *job) {
  const perf_options *o = job->o;
  if (o->graph && job->mem->direct)
    perf_fail(PERF_UNSUPPORTED, "-G captures CUDA graphs, which host memory does not have");
  if (o->graph && o->blocking) perf_fail(PERF_UNSUPPORTED, "-z waits within the graph that -G captures");
  if (o->graph && o->stream_null > 0) perf_fail(PERF_UNSUPPORTED, "stream NULL (-y 1) cannot be captured (-G)");
  if (o->agg > 1 && o->coll->steps)
    perf_fail(PERF_UNSUPPORTED, "-m %d: the steps of %s depend on each other and cannot share a group", o->agg,
              o->coll->name);
  if (o->coll->has_root && o->root >= job->nranks)
    perf_fail(PERF_USAGE, "--root %d, but there are %d ranks", o->root, job->nranks);
}

/* The run path leads to Hocket's library from where the program is, and the linker finds that place in /proc. */
#pragma weak hocketVersion
static void main_warn_of_library(int version) {
  Dl_info where = {0};
  const int built = HOCKET_MAJOR * 10000 + HOCKET_MINOR * 100 + HOCKET_PATCH,
            loaded = hocketVersion ? hocketVersion() : 0;
  char is[80];
  if (loaded == built) return;
  if (loaded)
    snprintf(is, sizeof is, "another version of Hocket (%d, not %d)", loaded, built);
  else
    snprintf(is, sizeof is, "not Hocket (its ncclGetVersion gives %d)", version);
  (void)dladdr((void *)ncclGetVersion, &where);
  fprintf(
      stderr,
      "# WARN: the library %s is %s: to measure Hocket, set LD_LIBRARY_PATH to the folder of its libnccl.so.2%s\n",
      where.dli_fname ? where.dli_fname : "libnccl.so.2", is,
      access("/proc/self/exe", F_OK) ? " (without /proc the linker cannot search the folders near this program)" : "");
}

int main(int argc, char **argv) {
  setlinebuf(stdout);
  perf_options o;
  perf_launch launch;
  perf_options_parse(&o, argc, argv);
  perf_launch_begin(&launch, &o); /* first, because it forks */
  bool reports = launch.proc == 0;
  int version = 0, local_rank, local_count;
  NCCL(ncclGetVersion(&version));
  if (reports) main_warn_of_library(version);
  if (reports) perf_report_open(&o, version);
  perf_job job = {.o = &o, .mem = perf_mem_select()};
  introduction *all = main_introduce(&job, &launch, &local_rank, &local_count);
  main_check_support(&job);
  if (reports) {
    perf_report_header(&o, version);
    main_report_places(&job, all, launch.nprocs);
  }
  int device = all[launch.proc].place.device;
  main_limit_sizes(&job, &launch, device, local_count);
  job.steps = perf_count_steps(&job);
  perf_team_init(&job.team, o.threads, &launch);
  perf_worker *w = main_make_workers(&job, reports, device);
  main_connect_all(w);
  if (reports) perf_report_table();
  main_run_workers(w);
  int code = main_finish(&job, w, reports);
  free(w->ranks), free(w), free(all);
  perf_launch_end(&launch);
  return code;
}
