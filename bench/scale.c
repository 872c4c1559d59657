/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the start of a large job costs: thousands of ranks are threads of this process, and run the real bootstrap (the
 * root, the overlay, its allgathers and barriers; all but the sockets between ranks, because ranks of a process are
 * connected through memory).
 *
 *   make build/gcc/bench/scale
 *   build/gcc/bench/scale [-n ranks] [-b bytes of a row] [-f first] [-l last] [-w seconds]
 *
 * With -f and -l it has only these ranks of the job, and NCCL_COMM_ID says where rank 0 is: several processes make one
 * job, also in several network namespaces. With -w the ranks stay for some time, so that `hocket ps` and `ncclras` can
 * be timed.
 *
 * A rank of a real job does its own part alone; here all parts share the cores, so a time here, divided by the ranks
 * and multiplied by the cores, is a rank's.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "../src/base/param.h"
#include "../src/base/service.h"
#include "../src/base/wait.h"
#include "../src/boot/bootstrap.h"
#include "../src/ops/ras.h"

enum { STACK = 128 << 10 };
/* Linux 6.16 and newer size a process's table of sleeping threads by the cores: with two each wake-up walks a list
 * of hundreds. Real ranks are processes of their own. */
enum { SCALE_PR_FUTEX_HASH = 78, SCALE_SET_SLOTS = 1, SCALE_SLOTS = 32768 };

typedef struct scale_rank {
  int rank;
  hk_bootstrap *b;
  hk_wait_env wait;
  pthread_t thread;
  bool bad;
} scale_rank;

static int nranks = 4096, first, last = -1, stay;
static size_t row = 1416; /* of the init: src/comm/exchange.c */
static ncclUniqueId id;
static hk_service *service;
static pthread_barrier_t phase;
static unsigned char *table; /* of all ranks: each would write the same bytes */

static void scale_event(void *arg, const hk_event *e) { (void)arg, (void)e; }

static void *scale_main(void *arg) {
  scale_rank *r = arg;
  hk_bootstrap_options o = {.settings = hk_settings_now(),
                            .rank = r->rank,
                            .nranks = nranks,
                            .wait = &r->wait,
                            .service = hk_service_share(service),
                            .on_event = scale_event,
                            .arg = r};
  pthread_barrier_wait(&phase);
  r->bad = hk_bootstrap_join(&r->b, &id, 1, &o) != HK_OK;
  pthread_barrier_wait(&phase);
  r->bad = r->bad || hk_bootstrap_allgather(r->b, table, row) != HK_OK;
  pthread_barrier_wait(&phase);
  r->bad = r->bad || hk_bootstrap_barrier(r->b) != HK_OK;
  pthread_barrier_wait(&phase);
  pthread_barrier_wait(&phase);
  if (r->b) hk_bootstrap_leave(r->b);
  hk_service_free(service);
  return NULL;
}

static double scale_cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static long scale_peak_mb(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_maxrss >> 10;
}

int main(int argc, char **argv) {
  static const char *const phases[] = {"join", "allgather", "barrier"};
  for (int c; (c = getopt(argc, argv, "n:b:f:l:w:")) != -1;) {
    if (c == 'n') nranks = atoi(optarg);
    if (c == 'b') row = (size_t)atoi(optarg);
    if (c == 'f') first = atoi(optarg);
    if (c == 'l') last = atoi(optarg);
    if (c == 'w') stay = atoi(optarg);
    if (c == '?') return 2;
  }
  (void)prctl(SCALE_PR_FUTEX_HASH, SCALE_SET_SLOTS, SCALE_SLOTS, 0, 0); /* an older kernel has one large table */
  if (last < 0) last = nranks - 1;
  const int here = last - first + 1;
  scale_rank *all = calloc((size_t)here, sizeof *all);
  table = calloc((size_t)nranks, row);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, STACK);
  pthread_barrier_init(&phase, NULL, (unsigned)here + 1);
  if (!all || !table || hk_service_new(&service, "scale") != HK_OK) return 1;
  if ((here < nranks ? hk_bootstrap_env_id(hk_settings_now(), &id, first) : hk_bootstrap_new_id(&id)) != HK_OK)
    return 1;
  /* As among processes of a host: 352 bytes of a row are not zero, and every fourth word of 8 bytes differs. */
  for (size_t i = 0; i < (size_t)nranks * row; i++) {
    const size_t at = i % row, rank = at / 8 % 4 ? 0 : i / row;
    table[i] = at < 352 ? (unsigned char)((rank * 7 + at) % 255 + 1) : 0;
  }
  for (int r = 0; r < here; r++) {
    all[r].rank = first + r;
    if (pthread_create(&all[r].thread, &attr, scale_main, &all[r])) return perror("pthread_create"), 1;
  }
  pthread_barrier_wait(&phase);
  for (int k = 0; k < 3; k++) {
    const uint64_t begin = hk_now_ns();
    const double cpu = scale_cpu();
    pthread_barrier_wait(&phase);
    printf("%-9s of %d ranks: %6.2f s, %6.2f s of CPU, at most %ld MiB in all\n", phases[k], here,
           (double)(hk_now_ns() - begin) / 1e9, scale_cpu() - cpu, scale_peak_mb());
  }
  fflush(stdout);
  if (stay) (void)hk_ras_hold(hk_settings_now());
  sleep((unsigned)stay);
  if (stay) hk_ras_release();
  pthread_barrier_wait(&phase);
  int bad = 0;
  for (int r = 0; r < here; r++) {
    pthread_join(all[r].thread, NULL);
    bad += all[r].bad;
  }
  if (bad) printf("%d ranks failed\n", bad);
  hk_service_free(service);
  return bad != 0;
}
