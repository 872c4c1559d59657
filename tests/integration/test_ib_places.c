/* SPDX-License-Identifier: Apache-2.0 */
/* check: timeout=300 */
/* Messages that the sender's card writes straight into memory that the receiver has registered, over the fake
 * libibverbs.so.1: what lands and what does not, faults amid it, and that nothing lands after an operation is over. */
#include <sched.h>
#include "../support/ib.h"
#include "../support/ranks.h"

enum { SLOT = 131072, PIECE = 70000, PLACES = 8, MEMORY = PLACES * PIECE };

static void watch(void *memory, size_t bytes) {
  verbs->watched = memory;
  verbs->watched_bytes = bytes;
  verbs->landed = 0;
}

/* ---- one message at a time, both ranks in this thread: nothing is left to chance ---- */

typedef struct way {
  net_world *w;
  hk_link *send, *recv;
  unsigned char *memory; /* [MEMORY] of the receiver, registered */
} way;

static void progress(const way *t) {
  for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&t->w->ranks[i], NULL), HK_OK);
}

static way open_way(int devices) {
  static unsigned char memory[MEMORY];
  ib_begin(devices);
  net_world *w = ib_world(8, SLOT);
  way t = {w, net_link(&w->ranks[0], 1, HK_LINK_SEND, 3), net_link(&w->ranks[1], 0, HK_LINK_RECV, 3), memory};
  while (atomic_load(&t.send->state) != HK_LINK_READY || atomic_load(&t.recv->state) != HK_LINK_READY) progress(&t);
  ck_assert(!hk_link_places(t.recv, SLOT)); /* nothing is registered yet */
  hk_transport_net.zero_copy->memory(w->ranks[1].state, t.memory, MEMORY, true);
  watch(t.memory, MEMORY);
  return t;
}

static unsigned char *place(const way *t, unsigned i) { return t->memory + i % PLACES * PIECE; }

static void send_one(const way *t, unsigned i) {
  static unsigned char data[PIECE];
  fill(data, PIECE, i);
  ck_assert(net_try_send(t->send, data, PIECE, 7, false));
}
/* Receives message i at its place; was it written there? */
static bool take_one(const way *t, unsigned i) {
  uint32_t bytes, signature;
  bool direct;
  while (!net_try_recv(t->recv, place(t, i), PIECE, false, &bytes, &signature, &direct)) progress(t);
  ck_assert_uint_eq(bytes, PIECE);
  ck_assert(filled(place(t, i), PIECE, i));
  return direct;
}
static void offer(const way *t, unsigned i) { hk_link_post_target(t->recv, i, place(t, i), PIECE); }
/* Message i, its place known before it is sent. */
static bool pass(const way *t, unsigned i) {
  offer(t, i);
  progress(t);
  send_one(t, i);
  return take_one(t, i);
}

TEST_LOOP(lands_where_it_belongs, 4) {
  if (_i) rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3"), rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  if (_i == 2) rdma_param("NCCL_IB_USE_INLINE", "0");
  if (_i == 3) rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1"), rdma_plenty = true;
  way t = open_way(_i == 3 ? 2 : 1);
  ck_assert(hk_link_places(t.recv, PIECE) && hk_link_places(t.recv, 16384) && !hk_link_places(t.recv, 16383));
  for (unsigned i = 0; i < 40; i++) ck_assert(pass(&t, i)); /* beyond the table */
  for (unsigned i = 40; i < 48; i++) offer(&t, i);
  progress(&t);
  for (unsigned i = 40; i < 48; i++) send_one(&t, i);
  for (unsigned i = 40; i < 48; i++) ck_assert(take_one(&t, i));
  static const unsigned parts[] = {1, 3, 3, 6}; /* one for each queue pair */
  ck_assert_uint_eq(verbs->landed, parts[_i] * 48);
}

/* Too late, of another size, in other memory, too far ahead: it goes to the FIFO. */
TEST(goes_to_the_fifo) {
  way t = open_way(1);
  static unsigned char other[PIECE];
  send_one(&t, 0);
  ck_assert_int_eq(net_progress(&t.w->ranks[0], NULL), HK_OK);
  offer(&t, 0);
  ck_assert(!take_one(&t, 0));
  hk_link_post_target(t.recv, 1, place(&t, 1), PIECE - 1);
  hk_link_post_target(t.recv, 2, other, PIECE);
  offer(&t, 3 + HK_IB_PLACES);
  progress(&t);
  for (unsigned i = 1; i < 4; i++) {
    send_one(&t, i);
    ck_assert(!take_one(&t, i));
  }
  ck_assert_uint_eq(verbs->landed, 0);
  ck_assert(pass(&t, 4));
}

TEST_LOOP(switches_off, 2) {
  rdma_param("HOCKET_IB_DIRECT", _i ? "70001" : "-1");
  way t = open_way(1);
  ck_assert(!hk_link_places(t.recv, PIECE));
  ck_assert_int_eq(hk_link_places(t.recv, PIECE + 1), _i);
}

/* The device is given memory once, whatever comes and goes; it is counted, and given back. */
TEST(registers_once) {
  way t = open_way(1);
  uint64_t registered = verbs->registered, locked = verbs->locked;
  ck_assert(pass(&t, 0));
  ck_assert_uint_eq(verbs->registered, registered + 1);
  ck_assert_uint_eq(verbs->locked, locked + MEMORY);
  for (unsigned i = 1; i < 20; i++) ck_assert(pass(&t, i));
  ck_assert_uint_eq(verbs->registered, registered + 1);
  hk_transport_net.zero_copy->memory(t.w->ranks[1].state, t.memory, MEMORY, false);
  ck_assert_uint_eq(verbs->locked, locked);
  ck_assert(!hk_link_places(t.recv, PIECE));
  ck_assert(!pass(&t, 20));
  /* it is not taken back before the end */
  hk_transport_net.zero_copy->memory(t.w->ranks[1].state, t.memory, MEMORY, true);
  ck_assert(pass(&t, 21));
}

TEST(does_without_what_the_device_refuses) {
  way t = open_way(1);
  verbs->lockable = verbs->locked + MEMORY - 1;
  for (unsigned i = 0; i < 10; i++) ck_assert(!pass(&t, i));
}

/* Memory that a card may only read: messages are sent from there, and do not land there. */
TEST_LOOP(writes_nothing_to_fixed_memory, 2) {
  way t = open_way(2);
  static unsigned char data[PIECE];
  hk_ref ref;
  verbs->fixed = _i ? (const char *)data : (const char *)t.memory;
  verbs->fixed_bytes = _i ? sizeof data : MEMORY;
  if (!_i) {
    for (unsigned i = 0; i < 10; i++) ck_assert(!pass(&t, i));
    ck_assert_uint_eq(verbs->landed, 0);
  }
  hk_transport_net.zero_copy->memory(t.w->ranks[0].state, data, PIECE, true);
  fill(data, PIECE, 10);
  ck_assert(hk_link_can_send(t.send, PIECE) && hk_link_refer(t.send, data, PIECE, &ref));
  t.send->slots[(uint32_t)t.send->done & t.send->mask].ref = ref;
  hk_link_publish(t.send, PIECE, 7, HK_SLOT_REF);
  uint64_t registered = verbs->registered;
  ck_assert(!take_one(&t, 10));
  ck_assert_uint_eq(verbs->registered, registered + 1);
}

/* An operation has failed and its memory is the user's again, but a message for it is still to come. */
TEST(nothing_lands_behind) {
  way t = open_way(1);
  hk_transport_state *receiver = t.w->ranks[1].state;
  ck_assert(pass(&t, 0));
  int nqps = verbs->nqps;
  offer(&t, 1);
  hk_transport_net.proxied->withdraw(receiver); /* no rank knows of it, and none will */
  ck_assert_int_eq(verbs->nqps, nqps);
  progress(&t);
  send_one(&t, 1);
  ck_assert(!take_one(&t, 1));
  offer(&t, 2);
  progress(&t);
  hk_transport_net.proxied->withdraw(receiver);
  ck_assert_int_eq(verbs->nqps, nqps - 1);
  ck_assert_int_eq(atomic_load(&t.recv->state), HK_LINK_FAILED);
  memset(t.memory, 0x55, MEMORY);
  uint64_t landed = verbs->landed;
  send_one(&t, 2);
  bool moved;
  for (int i = 0; i < 100; i++) (void)net_progress(&t.w->ranks[i % 2], &moved); /* it fails, or waits for news */
  ck_assert_uint_eq(verbs->landed, landed);
  for (size_t i = 0; i < MEMORY; i++)
    if (t.memory[i] != 0x55) ck_abort_msg("byte %zu has been written", i);
}

/* What was sent before new queue pairs were made is void: it is sent again. */
TEST(is_sent_again) {
  way t = open_way(2);
  ck_assert(pass(&t, 0));
  offer(&t, 1);
  progress(&t);
  verbs->broken = 1;
  send_one(&t, 1);
  ck_assert_int_eq(net_progress(&t.w->ranks[0], NULL), HK_OK);
  ck_assert_int_eq(verbs->broken, 0);
  (void)take_one(&t, 1); /* there, or by the FIFO */
  for (unsigned i = 2; i < 20; i++) ck_assert(pass(&t, i));
}

/* ---- streams of messages both ways, between threads ---- */

enum { MESSAGES = 64, MOST = 70000 };

typedef struct pair {
  net_world *w;
  stream t[2];
} pair;

static pair open_pair(int devices, uint32_t nslots) {
  static unsigned char memory[2][MESSAGES * (MOST + 1)];
  ib_begin(devices);
  pair p = {.w = ib_world(nslots, SLOT)};
  for (int i = 0; i < 2; i++) {
    hk_transport_net.zero_copy->memory(p.w->ranks[i].state, memory[i], sizeof memory[i], true);
    p.t[i] = (stream){.rank = &p.w->ranks[i],
                      .peer = 1 - i,
                      .channel = 3,
                      .count = MESSAGES,
                      .most = MOST,
                      .both = true,
                      .places = memory[i]};
  }
  watch(memory[1], sizeof memory[1]);
  return p;
}

static const struct {
  const char *qps, *split, *uses_inline;
  uint32_t nslots;
  int skip, broken, devices;
} streams[] = {
    {"1", "0", "1", 8, 0, 0, 1},  {"4", "1", "0", 64, 0, 0, 1}, {"1", "0", "1", 8, 40, 3, 1},
    {"2", "0", "1", 4, 60, 4, 1}, {"3", "1", "1", 8, 60, 5, 2},
};

TEST_LOOP(carries_streams, HK_ARRAY_LENGTH(streams)) {
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", streams[_i].qps);
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", streams[_i].split);
  rdma_param("NCCL_IB_USE_INLINE", streams[_i].uses_inline);
  pair p = open_pair(streams[_i].devices, streams[_i].nslots);
  verbs->skip = streams[_i].skip;
  verbs->broken = streams[_i].broken;
  run_streams(p.w, p.t, 2);
  ck_assert_int_eq(verbs->broken, 0); /* whether many land is a matter of who is first */
}

/* Another device: the memory has another key there. */
TEST(follows_to_another_port) {
  pair p = open_pair(2, 8);
  p.t[0].before = ib_pull_cable;
  run_streams(p.w, p.t, 2);
}

TEST_LOOP(notices_lost_and_doubled_messages, 2) {
  pair p = open_pair(1, 8);
  verbs->skip = 50;
  *(_i ? &verbs->lost : &verbs->doubled) = 1;
  try_streams(p.w, p.t, 2);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(p.t[i].rc, HK_ERR_REMOTE);
  ck_assert(strstr(p.t[0].error, "one was lost or came twice") || strstr(p.t[1].error, "one was lost or came twice"));
}

/* ---- operations ---- */

enum { COUNT = 30011, RANKS = 3, BUFFER = (RANKS + 1) * COUNT };

typedef struct setting {
  int skip, broken;
  bool in_place;
} setting;

static const setting settings[] = {{0, 0, false}, {300, 4, false}, {200, 3, true}};
static float buffers[RANKS][2][BUFFER]; /* of each rank: inputs, outputs */

static float given(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 1001) % 4096); }

static int wrong(const char *what, int rank, size_t i, float is, float should) {
  fprintf(stderr, "%s, rank %d: element %zu is %g, not %g\n", what, rank, i, (double)is, (double)should);
  return 1;
}

static int gather_all(ncclComm_t c, int rank, int n, float *in, float *out) {
  for (size_t i = 0; i < COUNT; i++) in[i] = given(rank, i);
  int faults = RANK_CHECK(ncclAllGather(in, out, COUNT, ncclFloat32, c, NULL));
  for (size_t i = 0; i < (size_t)n * COUNT; i++)
    if (out[i] != given((int)(i / COUNT), i % COUNT))
      return faults + wrong("allgather", rank, i, out[i], given((int)(i / COUNT), i % COUNT));
  return faults;
}
static int sum_all(ncclComm_t c, int rank, int n, float *in, float *out) {
  for (size_t i = 0; i < COUNT; i++) in[i] = given(rank, i);
  int faults = RANK_CHECK(ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, c, NULL));
  for (size_t i = 0; i < COUNT; i++) {
    float sum = 0;
    for (int r = 0; r < n; r++) sum += given(r, i);
    if (out[i] != sum) return faults + wrong("allreduce", rank, i, out[i], sum);
  }
  return faults;
}
static int to_all(ncclComm_t c, int rank, int n, float *in, float *out) {
  for (size_t i = 0; i < (size_t)n * COUNT; i++) in[i] = given(rank, i);
  int faults = RANK_CHECK(ncclAlltoAll(in, out, COUNT, ncclFloat32, c, NULL));
  for (size_t i = 0; i < (size_t)n * COUNT; i++) {
    float should = given((int)(i / COUNT), (size_t)rank * COUNT + i % COUNT);
    if (out[i] != should) return faults + wrong("alltoall", rank, i, out[i], should);
  }
  return faults;
}
static int cast(ncclComm_t c, int rank, float *in, float *out) {
  for (size_t i = 0; i < BUFFER; i++) in[i] = given(1, i);
  int faults = RANK_CHECK(ncclBroadcast(in, out, BUFFER, ncclFloat32, 1, c, NULL));
  for (size_t i = 0; i < BUFFER; i++)
    if (out[i] != given(1, i)) return faults + wrong("broadcast", rank, i, out[i], given(1, i));
  return faults;
}
/* Two messages a rank, into the two ends of one buffer. */
static int pass_round(ncclComm_t c, int rank, int n, float *in, float *out) {
  int next = (rank + 1) % n, prev = (rank + n - 1) % n, faults = 0;
  for (size_t i = 0; i < COUNT; i++) in[i] = given(rank, i);
  memset(out, 0, sizeof buffers[0][1]);
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclRecv(out, COUNT, ncclFloat32, prev, c, NULL));
  faults += RANK_CHECK(ncclRecv(out + COUNT, COUNT - 1, ncclFloat32, prev, c, NULL));
  faults += RANK_CHECK(ncclSend(in, COUNT, ncclFloat32, next, c, NULL));
  faults += RANK_CHECK(ncclSend(in, COUNT - 1, ncclFloat32, next, c, NULL));
  faults += RANK_CHECK(ncclGroupEnd());
  for (size_t i = 0; i < 2 * COUNT; i++) {
    float should = i == 2 * COUNT - 1 ? 0 : given(prev, i % COUNT);
    if (out[i] != should) return faults + wrong("send and receive", rank, i, out[i], should);
  }
  return faults;
}

static int operate(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  float *in = buffers[rank][0], *out = buffers[rank][1];
  int faults = 0;
  void *handle;
  faults += RANK_CHECK(ncclCommRegister(c, buffers[rank], sizeof buffers[rank], &handle));
  for (int k = 0; k < 2 && !faults; k++) {
    faults += gather_all(c, rank, n, s->in_place ? out + (size_t)rank * COUNT : in, out);
    faults += sum_all(c, rank, n, s->in_place ? out : in, out);
    faults += to_all(c, rank, n, in, out);
    faults += cast(c, rank, s->in_place ? out : in, out);
    faults += pass_round(c, rank, n, in, out);
  }
  return faults + RANK_CHECK(ncclCommDeregister(c, handle));
}

static void begin_ranks(void) {
  ib_begin(1);
  rdma_param("NCCL_SHM_DISABLE", "1");
  rdma_param("NCCL_P2P_DISABLE", "1");
  rdma_param("HOCKET_SLOT_BYTES", "16384");
  rdma_param("HOCKET_IB_DIRECT", "4096");
  watch(buffers, sizeof buffers);
}

TEST_LOOP(operates, HK_ARRAY_LENGTH(settings)) {
  setting s = settings[_i];
  begin_ranks();
  verbs->skip = s.skip;
  verbs->broken = s.broken;
  ck_assert_int_eq(ranks_as_threads(RANKS, operate, &s), 0);
  ck_assert_uint_gt(verbs->landed, 0); /* what needs a credit comes after the places */
  ck_assert_int_eq(verbs->broken, 0);
}

/* Rank 0 waits for data that rank 1 sends too late: the operation has been given up, and the memory is in other use. */
typedef struct giving_up {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int step;        /* 1: rank 0 is in its operation; 2: it is back */
  uint64_t writes; /* before that */
  ncclComm_t comm;
} giving_up;

static void set_step(giving_up *g, int step) {
  pthread_mutex_lock(&g->lock);
  g->step = step;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}
static void await_step(giving_up *g, int step) {
  pthread_mutex_lock(&g->lock);
  while (g->step < step) pthread_cond_wait(&g->changed, &g->lock);
  pthread_mutex_unlock(&g->lock);
}

static uint64_t writes_now(void) {
  pthread_mutex_lock(&verbs->lock);
  uint64_t n = verbs->writes;
  pthread_mutex_unlock(&verbs->lock);
  return n;
}

static void *end_it(void *arg) {
  giving_up *g = arg;
  while (writes_now() == g->writes) sched_yield(); /* rank 0 announces its places */
  (void)ncclCommRevoke(g->comm, NCCL_REVOKE_DEFAULT);
  return NULL;
}

static int give_up(ncclComm_t c, int rank, int n, void *arg) {
  giving_up *g = arg;
  float *b = buffers[rank][0];
  int faults = 0;
  void *handle;
  (void)n;
  faults += RANK_CHECK(ncclCommRegister(c, b, sizeof buffers[rank][0], &handle));
  if (rank == 0)
    faults += RANK_CHECK(ncclRecv(b, 8, ncclFloat32, 1, c, NULL));
  else
    faults += RANK_CHECK(ncclSend(b, 8, ncclFloat32, 0, c, NULL)); /* now they are connected */
  if (rank == 0) {
    pthread_t thread;
    g->comm = c;
    g->writes = writes_now();
    if (pthread_create(&thread, NULL, end_it, g) != 0) return faults + 1;
    faults += ncclRecv(b, COUNT / 2, ncclFloat32, 1, c, NULL) == ncclSuccess;
    pthread_join(thread, NULL);
    memset(b, 0x55, COUNT * sizeof *b);
    set_step(g, 1);
    await_step(g, 2);
    for (size_t i = 0; i < COUNT * sizeof *b; i++) faults += ((unsigned char *)b)[i] != 0x55;
  } else {
    await_step(g, 1);
    memset(b, 0x11, COUNT * sizeof *b);
    (void)ncclSend(b, COUNT / 2, ncclFloat32, 0, c, NULL);
    set_step(g, 2);
  }
  return faults;
}

TEST(gives_memory_back_with_an_error) {
  giving_up g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  begin_ranks();
  rdma_param("HOCKET_IB_REPLAY", "0"); /* rank 1 sees at once that its peer is gone */
  ck_assert_int_eq(ranks_as_threads(2, give_up, &g), 0);
  ck_assert_uint_eq(verbs->landed, 0);
}

int main(void) { return ib_main("ib_places", .timeout = 120); }
