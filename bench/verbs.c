/* SPDX-License-Identifier: Apache-2.0 */
/* What a small message costs over verbs, step by step, without the library's link in between: two threads, each with a
 * device of its own and one queue pair between them.  To be run where ib_write_lat runs:
 *   tests/roce/guest.sh build/gcc/bench/verbs rxe0 rxe1 [GID INDEX]
 * Times are of batches of BATCH messages: the best batch and the middle one, since a batch in which the machine took a
 * CPU away says nothing about verbs. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../src/base/wait.h"
#include "../src/transport/net/ib/ib_verbs.h"
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h> /* shared receive queues, which the library does not use */
#define SHARED_QUEUES 1
enum { SIDES = 4 }; /* two, and two with shared receive queues */
#else
enum { SIDES = 2 };
#endif

enum { BATCH = 20, BATCHES = 100, WARM = 200, BYTES = 40, DEPTH = 128, WORD = 2048 };
enum { IMMEDIATE = 1, SIGNAL_ALL = 2, YIELD = 4, CLOCK = 8, TWO_WRITES = 16, SHARED = 32 };

typedef struct side {
  const hk_ibv *api;
  hk_ibv_context *context;
  hk_ibv_pd *pd;
  hk_ibv_cq *cq;
  hk_ibv_qp *qp;
  void *shared; /* struct ibv_srq: receives are posted there; NULL: to the queue pair */
  hk_ibv_mr *mr;
  hk_ibv_gid gid;
  int gid_index;
  char *memory;
  struct side *other;
  unsigned posted, done, got, owed; /* sends, their completions, messages, receives to post again */
  bool first;
} side;

typedef struct test {
  const char *name;
  bool both; /* ways at once */
  unsigned how;
} test;

static test current;
static double times[BATCHES];
static pthread_barrier_t gate;

static void must(bool good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

/* A shared receive queue and how to post to it; both give false where there are none. */
static void *new_shared(side *s) {
#ifdef SHARED_QUEUES
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
  void *library = dlopen("libibverbs.so.1", RTLD_NOW); /* loaded already */
  struct ibv_srq *(*create)(struct ibv_pd *, struct ibv_srq_init_attr *) = NULL;
  if (library) *(void **)&create = dlsym(library, "ibv_create_srq");
  return create ? create((struct ibv_pd *)(void *)s->pd, &attr) : NULL;
#else
  return (void)s, NULL;
#endif
}
static bool post_shared(side *s) {
#ifdef SHARED_QUEUES
  struct ibv_recv_wr wr = {0}, *bad;
  return ibv_post_srq_recv(s->shared, &wr, &bad) == 0;
#else
  return (void)s, false;
#endif
}

static void open_side(side *s, const char *name, int gid_index, bool shared) {
  int n;
  hk_ibv_device **list = s->api->get_device_list(&n);
  for (int i = 0; i < n && !s->context; i++)
    if (strcmp(list[i]->name, name) == 0) s->context = s->api->open_device(list[i]);
  must(s->context != NULL, name);
  s->gid_index = gid_index;
  must((s->pd = s->api->alloc_pd(s->context)) != NULL, "protection domain");
  must((s->cq = s->api->create_cq(s->context, 4 * DEPTH, NULL, NULL, 0)) != NULL, "completion queue");
  must(s->api->query_gid(s->context, 1, gid_index, &s->gid) == 0, "GID");
  must(posix_memalign((void **)&s->memory, 4096, 4096) == 0, "memory");
  memset(s->memory, 0, 4096);
  s->mr = s->api->reg_mr(s->pd, s->memory, 4096, HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE);
  must(s->mr != NULL, "memory region");
  s->shared = shared ? new_shared(s) : NULL;
  must(s->shared || !shared, "shared receive queue");
  hk_ibv_qp_init_attr attr = {.send_cq = s->cq,
                              .recv_cq = s->cq,
                              .srq = s->shared,
                              .cap = {DEPTH, shared ? 0 : DEPTH, 1, 1, 64},
                              .qp_type = HK_IBV_QPT_RC};
  must((s->qp = s->api->create_qp(s->pd, &attr)) != NULL, "queue pair");
}

static void post_receives(side *s, unsigned n) {
  for (; n > 0; n--) {
    hk_ibv_recv_wr wr = {0}, *bad;
    must(s->shared ? post_shared(s) : s->qp->context->ops.post_recv(s->qp, &wr, &bad) == 0, "posting a receive");
  }
}

static void join_side(side *s) {
  hk_ibv_qp_attr to = {.qp_state = HK_IBV_QPS_INIT, .port_num = 1, .qp_access_flags = HK_IBV_ACCESS_REMOTE_WRITE};
  must(s->api->modify_qp(s->qp, &to,
                         HK_IBV_QP_STATE | HK_IBV_QP_PKEY_INDEX | HK_IBV_QP_PORT | HK_IBV_QP_ACCESS_FLAGS) == 0,
       "INIT");
  to = (hk_ibv_qp_attr){
      .qp_state = HK_IBV_QPS_RTR,
      .path_mtu = 5,
      .dest_qp_num = s->other->qp->qp_num,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = 1,
                  .grh = {.dgid = s->other->gid, .sgid_index = (uint8_t)s->gid_index, .hop_limit = 64}}};
  must(s->api->modify_qp(s->qp, &to,
                         HK_IBV_QP_STATE | HK_IBV_QP_AV | HK_IBV_QP_PATH_MTU | HK_IBV_QP_DEST_QPN | HK_IBV_QP_RQ_PSN |
                             HK_IBV_QP_MAX_DEST_RD_ATOMIC | HK_IBV_QP_MIN_RNR_TIMER) == 0,
       "RTR");
  to = (hk_ibv_qp_attr){.qp_state = HK_IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 1};
  must(s->api->modify_qp(s->qp, &to,
                         HK_IBV_QP_STATE | HK_IBV_QP_TIMEOUT | HK_IBV_QP_RETRY_CNT | HK_IBV_QP_RNR_RETRY |
                             HK_IBV_QP_SQ_PSN | HK_IBV_QP_MAX_QP_RD_ATOMIC) == 0,
       "RTS");
  post_receives(s, DEPTH);
}

static void poll_once(side *s) {
  hk_ibv_wc wc[16];
  int n = s->cq->context->ops.poll_cq(s->cq, 16, wc);
  for (int i = 0; i < n; i++) {
    must(wc[i].status == HK_IBV_WC_SUCCESS, "completion");
    if (wc[i].opcode & HK_IBV_WC_RECV) {
      s->got++;
      if (++s->owed == 8) {
        post_receives(s, 8);
        s->owed = 0;
      }
    } else {
      s->done = (unsigned)wc[i].wr_id;
    }
  }
}

static void pause_between(unsigned how) {
  if (how & YIELD) sched_yield();
  if (how & CLOCK) (void)hk_now_ns();
}

static void send_one(side *s, unsigned number) {
  volatile uint64_t *word = (volatile uint64_t *)(void *)s->memory;
  word[BYTES / 8 - 1] = number;
  while (s->posted - s->done >= DEPTH / 2) poll_once(s);
  hk_ibv_sge sge = {(uint64_t)(uintptr_t)s->memory, BYTES, s->mr->lkey};
  hk_ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = HK_IBV_SEND_INLINE}, *bad;
  wr.opcode = current.how & IMMEDIATE ? HK_IBV_WR_RDMA_WRITE_WITH_IMM : HK_IBV_WR_RDMA_WRITE;
  wr.wr_id = ++s->posted;
  if (current.how & SIGNAL_ALL || s->posted % (DEPTH / 4) == 0) wr.send_flags |= HK_IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)s->other->memory + WORD;
  wr.wr.rdma.rkey = s->other->mr->rkey;
  hk_ibv_send_wr before = wr;
  if (current.how & TWO_WRITES) {
    before.opcode = HK_IBV_WR_RDMA_WRITE;
    before.send_flags = HK_IBV_SEND_INLINE;
    before.wr.rdma.remote_addr += 256;
    before.next = &wr;
  }
  must(s->qp->context->ops.post_send(s->qp, current.how & TWO_WRITES ? &before : &wr, &bad) == 0, "post_send");
}

static void receive_one(side *s, unsigned number) {
  volatile uint64_t *word = (volatile uint64_t *)(void *)(s->memory + WORD);
  /* The other side may be one message ahead where both send. */
  while (current.how & IMMEDIATE ? s->got < number : word[BYTES / 8 - 1] < number) {
    if (current.how & (IMMEDIATE | SIGNAL_ALL)) poll_once(s);
    pause_between(current.how);
  }
}

static void *run(void *arg) {
  side *s = arg;
  unsigned number = 0;
  uint64_t begin = 0;
  s->got = 0;
  ((volatile uint64_t *)(void *)(s->memory + WORD))[BYTES / 8 - 1] = 0;
  pthread_barrier_wait(&gate);
  for (int b = -WARM / BATCH; b < BATCHES; b++) {
    if (s->first) begin = hk_now_ns();
    for (int i = 0; i < BATCH; i++) {
      number++;
      if (s->first || current.both) send_one(s, number);
      receive_one(s, number);
      if (!s->first && !current.both) send_one(s, number);
    }
    if (s->first && b >= 0) times[b] = (double)(hk_now_ns() - begin) / BATCH / 1e3;
  }
  return NULL;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void row(const char *name, const char *what) {
  qsort(times, BATCHES, sizeof *times, by_size);
  printf("%-52s %8.2f %8.2f  us %s\n", name, times[0], times[BATCHES / 2], what);
}

static void measure(const test *t, side sides[2]) {
  pthread_t threads[2];
  current = *t;
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, &sides[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  if (!t->both)
    for (int i = 0; i < BATCHES; i++) times[i] /= 2;
  row(t->name, t->both ? "an exchange" : "one way");
}

/* What a waiting loop does apart from looking. */
static void measure_steps(side *s) {
  for (int what = 0; what < 5; what++) {
    static const char *const names[] = {"clock_gettime", "sched_yield", "getppid (a system call)", "ibv_poll_cq, empty",
                                        "ibv_post_send of nothing"};
    for (int b = 0; b < BATCHES; b++) {
      uint64_t begin = hk_now_ns();
      hk_ibv_wc wc;
      hk_ibv_send_wr *bad;
      for (int i = 0; i < BATCH; i++) {
        if (what == 0) (void)hk_now_ns();
        if (what == 1) sched_yield();
        if (what == 2) (void)getppid();
        if (what == 3) (void)s->cq->context->ops.poll_cq(s->cq, 1, &wc);
        if (what == 4) (void)s->qp->context->ops.post_send(s->qp, NULL, &bad);
      }
      times[b] = (double)(hk_now_ns() - begin) / BATCH / 1e3;
    }
    row(names[what], "each");
  }
}

int main(int argc, char **argv) {
  static const test tests[] = {
      {"write, memory polled, every 32nd signaled", false, 0},
      {"write, memory polled, all signaled", false, SIGNAL_ALL},
      {"write with immediate, every 32nd signaled", false, IMMEDIATE},
      {"write with immediate, all signaled", false, IMMEDIATE | SIGNAL_ALL},
      {"write with immediate, all, shared receive queue", false, IMMEDIATE | SIGNAL_ALL | SHARED},
      {"write and write with immediate", false, IMMEDIATE | TWO_WRITES},
      {"write with immediate, all signaled, yields", false, IMMEDIATE | SIGNAL_ALL | YIELD},
      {"write with immediate, all signaled, yields, clock", false, IMMEDIATE | SIGNAL_ALL | YIELD | CLOCK},
      {"both ways: write, every 32nd signaled", true, 0},
      {"both ways: write, all signaled", true, SIGNAL_ALL},
      {"both ways: write with immediate, every 32nd", true, IMMEDIATE},
      {"both ways: write with immediate, all signaled", true, IMMEDIATE | SIGNAL_ALL},
      {"both ways: all, shared receive queue", true, IMMEDIATE | SIGNAL_ALL | SHARED},
      {"both ways: write with immediate, all, yields", true, IMMEDIATE | SIGNAL_ALL | YIELD},
      {"both ways: the same with the clock", true, IMMEDIATE | SIGNAL_ALL | YIELD | CLOCK},
  };
  char why[160];
  if (argc < 3) {
    fprintf(stderr, "usage: verbs DEVICE DEVICE [GID INDEX [WORDS OF THE TESTS' NAMES]]\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  static side sides[SIDES];
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  must(api != NULL, "libibverbs");
  for (int i = 0; i < SIDES; i++) {
    sides[i] = (side){.api = api, .other = &sides[i ^ 1], .first = i % 2 == 0};
    open_side(&sides[i], argv[1 + i % 2], argc > 3 ? atoi(argv[3]) : 1, i >= 2);
  }
  for (int i = 0; i < SIDES; i++) join_side(&sides[i]);
  pthread_barrier_init(&gate, NULL, 2);
  printf("%-52s %8s %8s\n", "", "best", "middle");
  measure_steps(&sides[0]);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    int first = tests[i].how & SHARED ? 2 : 0;
    if (first < SIDES && (argc <= 4 || strstr(tests[i].name, argv[4]))) measure(&tests[i], &sides[first]);
  }
  return 0;
}
