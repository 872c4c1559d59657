/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A world of ranks for tests of transports: threads and processes with hand-made transport environments.  What init's
 * exchange would give (peers, facts) stands in memory that all of them share.
 */
#ifndef HK_TESTS_TEST_SHM_WORLD_H
#define HK_TESTS_TEST_SHM_WORLD_H
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "../../src/base/facts.h"
#include "../../src/base/param.h"
#include "../../src/base/service.h"
#include "../../src/program/program.h"
#include "../../src/transport/peer.h"
#include "../../src/transport/shm/shm.h"
#include "suite.h"

/* Check's assertions belong to the main thread of the test's process: elsewhere a failure ends the process. */
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: pid %d: not true: %s\n", __FILE__, __LINE__, (int)getpid(), #condition);                 \
      _exit(99);                                                                                                       \
    }                                                                                                                  \
  } while (0)

enum { WORLD_MAX = 256 };

struct world;
typedef struct world_rank {
  struct world *world;
  hk_transport_env env;
  hk_wait_env wait;
  _Atomic(int) failure;
  hk_service *service;
  const hk_transport *transport;
  hk_transport_state *state;
  uint64_t join_ns;
} world_rank;

typedef struct world {
  int nranks, nprocs; /* nprocs == 0: threads of the caller's process */
  const hk_transport *transport;
  void (*body)(world_rank *r);
  void *arg; /* for the body; shared only if it is in shared memory */
  size_t slot_bytes;
  uint32_t nslots;
  int cores;                     /* that each rank says it may run on */
  void (*tamper)(world_rank *r); /* before attach */
  uint64_t comm_id;
  uint8_t secret[16];
  pthread_barrier_t barrier;
  hk_peer peers[WORLD_MAX];
  char facts[WORLD_MAX][HK_FACT_BYTES];
  _Atomic int notes[WORLD_MAX]; /* for bodies */
} world;

static inline world *world_new(const hk_transport *t, int nranks, int nprocs, void (*body)(world_rank *)) {
  static uint64_t count;
  world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUST(w != MAP_FAILED && nranks <= WORLD_MAX);
  w->nranks = nranks;
  w->nprocs = nprocs;
  w->transport = t;
  w->body = body;
  w->slot_bytes = 16384;
  w->nslots = 4;
  w->comm_id = (uint64_t)getpid() << 32 | ++count;
  memset(w->secret, (int)(count & 255), sizeof w->secret);
  for (int r = 0; r < nranks; r++)
    w->peers[r] = (hk_peer){.host = 1, .process = 1 + (nprocs ? (uint64_t)(r % nprocs) : 0), .device = -1};
  pthread_barrierattr_t a;
  pthread_barrierattr_init(&a);
  pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  MUST(pthread_barrier_init(&w->barrier, &a, (unsigned)nranks) == 0);
  return w;
}

static inline void world_barrier(world_rank *r) { pthread_barrier_wait(&r->world->barrier); }

/* Everything up to and including join. */
static inline void world_enter(world_rank *r, world *w, int rank) {
  *r = (world_rank){.world = w, .transport = w->transport};
  MUST(hk_service_new(&r->service, "test") == HK_OK);
  r->wait = (hk_wait_env){.failure = &r->failure, .spins = 100, .deadline_ns = hk_now_ns() + 60000000000ull};
  r->env = (hk_transport_env){.rank = rank,
                              .nranks = w->nranks,
                              .comm_id = w->comm_id,
                              .secret = w->secret,
                              .peers = w->peers,
                              .wait = &r->wait,
                              .service = r->service,
                              .slot_bytes = w->slot_bytes,
                              .nslots = w->nslots};
  w->peers[rank].pid = getpid();
  w->peers[rank].cores = w->cores;
  if (w->tamper) w->tamper(r);
  r->env.settings = hk_settings_now();
  MUST(r->transport->attach(&r->env, &r->state, w->facts[rank]) == HK_OK);
  world_barrier(r);
  uint64_t begin = hk_now_ns();
  if (r->transport->join) MUST(r->transport->join(r->state, &(hk_facts){w->facts, HK_FACT_BYTES}) == HK_OK);
  r->join_ns = hk_now_ns() - begin;
  world_barrier(r); /* as at init: no rank goes on, or away, before all have joined */
}

static inline void world_leave(world_rank *r) {
  r->transport->detach(r->state);
  hk_service_free(r->service);
}

typedef struct world_thread {
  world *world;
  int rank;
  pthread_t thread;
} world_thread;

static inline void *world_thread_main(void *arg) {
  world_thread *t = arg;
  world_rank *r = calloc(1, sizeof *r);
  world_enter(r, t->world, t->rank);
  t->world->body(r);
  world_leave(r);
  free(r);
  return NULL;
}

/* The ranks of one process, as threads. */
static inline void world_run_process(world *w, int process) {
  world_thread *t = calloc((size_t)w->nranks, sizeof *t);
  for (int r = 0; r < w->nranks; r++) {
    t[r] = (world_thread){.world = w, .rank = r};
    if (w->nprocs && r % w->nprocs != process) continue;
    MUST(pthread_create(&t[r].thread, NULL, world_thread_main, &t[r]) == 0);
  }
  for (int r = 0; r < w->nranks; r++)
    if (t[r].thread) pthread_join(t[r].thread, NULL);
  free(t);
}

/* Runs the body on every rank and frees the world; gives the number of processes that failed. */
static inline int world_run(world *w) {
  int failed = 0;
  if (!w->nprocs) world_run_process(w, 0);
  pid_t pids[WORLD_MAX];
  for (int p = 0; p < w->nprocs; p++) {
    fflush(NULL);
    pids[p] = fork();
    MUST(pids[p] >= 0);
    if (pids[p] == 0) {
      world_run_process(w, p);
      exit(0); /* with the leak check of sanitizer builds */
    }
  }
  for (int p = 0; p < w->nprocs; p++) {
    int status;
    waitpid(pids[p], &status, 0);
    failed += status != 0;
  }
  pthread_barrier_destroy(&w->barrier);
  munmap(w, sizeof *w);
  return failed;
}

/* ---- what bodies need of links ---- */
static inline void world_open(world_rank *r, int peer, hk_link_kind kind, int channel, hk_link *l) {
  hk_link_key key = {.peer = peer, .kind = (uint8_t)kind, .channel = (uint8_t)channel};
  MUST(r->transport->open(r->state, &key, l) == HK_OK);
}
static inline void world_close(world_rank *r, hk_link *l) {
  if (r->transport->close) r->transport->close(l);
}
static inline void await_send(world_rank *r, hk_link *l) {
  hk_waiter w;
  hk_wait_begin(&w, &r->wait);
  while (!hk_link_can_send(l, SIZE_MAX)) MUST(hk_wait_pause(&w) == HK_OK);
}
static inline void await_recv(world_rank *r, hk_link *l) {
  hk_waiter w;
  hk_wait_begin(&w, &r->wait);
  while (!hk_link_can_recv(l)) MUST(hk_wait_pause(&w) == HK_OK);
}
static inline void await_drained(world_rank *r, hk_link *l) {
  hk_waiter w;
  hk_wait_begin(&w, &r->wait);
  while (!hk_link_drained(l)) MUST(hk_wait_pause(&w) == HK_OK);
}
#endif
