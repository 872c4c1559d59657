/* SPDX-License-Identifier: Apache-2.0 */
/* Puts that network cards carry out, over the fake libibverbs.so.1: what failed queue pairs, ports and registrations do
 * to them. Ranks are threads that have no other way to each other's memory.
 * Under TSan it takes a minute, and test_rma runs the same connections there.
 * check: fast timeout=300 notsan */
#include "../support/fake_rdma.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { PUTS = 12, PIECE = 70000, WINDOW = PUTS * PIECE, LARGE = 5 << 20 };

static fake_verbs_state *verbs;
#define IS(condition) faults += RANK_IS(condition)

static void set(int *what, int value) {
  pthread_mutex_lock(&verbs->lock);
  *what = value;
  pthread_mutex_unlock(&verbs->lock);
}

/* `register_it`: puts come from registered memory, else the library copies them. */
typedef struct plan {
  int cards, register_it;
  size_t bytes; /* of a put */
  void (*before)(int put);
  int carried; /* cards wrote to the window */
} plan;

static void run(const plan *p, rank_body body) {
  rdma_plenty = true;
  verbs = rdma_begin(p->cards);
  rdma_param("NCCL_NET", "IB");
  rdma_param("NCCL_SHM_DISABLE", "1");
  rdma_param("NCCL_P2P_DISABLE", "1");
  ck_assert_int_eq(ranks_as_threads(2, body, (void *)(uintptr_t)p), 0);
  rdma_end(verbs);
}

static int wait_one(ncclComm_t c, int peer) {
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = peer};
  return RANK_CHECK(ncclWaitSignal(1, &d, c, NULL));
}

static unsigned char byte_of(int put, size_t i) { return (unsigned char)(put * 31 + (int)(i * 7 + (i >> 8)) + 1); }

/* Rank 0 puts to rank 1, which takes what has come, overwrites it, and answers: what would come twice is seen, and so
 * is a signal too many or too few. */
static int put_and_take(ncclComm_t c, int rank, int n, void *arg) {
  const plan *p = arg;
  size_t bytes = PUTS * p->bytes;
  unsigned char *window = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), *data = malloc(p->bytes);
  ncclWindow_t win;
  void *handle = NULL;
  memset(window, 0xEE, bytes); /* before anything can come */
  int faults = RANK_CHECK(ncclCommWindowRegister(c, window, bytes, &win, NCCL_WIN_COLL_SYMMETRIC));
  (void)n;
  if (rank == 0 && p->register_it) faults += RANK_CHECK(ncclCommRegister(c, data, p->bytes, &handle));
  if (rank == 1) {
    pthread_mutex_lock(&verbs->lock);
    verbs->watched = (char *)window;
    verbs->watched_bytes = bytes;
    pthread_mutex_unlock(&verbs->lock);
  }
  for (int k = 0; k < PUTS; k++) {
    unsigned char *at = window + (size_t)k * p->bytes;
    size_t wrong = 0;
    if (rank == 0) {
      for (size_t i = 0; i < p->bytes; i++) data[i] = byte_of(k, i);
      if (p->before) p->before(k);
      faults += RANK_CHECK(ncclPutSignal(data, p->bytes, ncclUint8, 1, win, (size_t)k * p->bytes, 0, 0, 0, c, NULL)) +
                wait_one(c, 1);
    } else {
      faults += wait_one(c, 0);
      for (size_t i = 0; i < p->bytes; i++) wrong += at[i] != byte_of(k, i);
      IS(wrong == 0);
      memset(at, 0xEE, p->bytes);
      faults += RANK_CHECK(ncclSignal(0, 0, 0, 0, c, NULL));
    }
  }
  size_t changed = 0;
  for (size_t i = 0; i < bytes && rank == 1; i++) changed += window[i] != 0xEE;
  IS(changed == 0);
  IS(rank == 0 || (verbs->landed > 0) == p->carried);
  float x = 0;
  faults += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL));
  if (handle) faults += RANK_CHECK(ncclCommDeregister(c, handle));
  faults += RANK_CHECK(ncclCommWindowDeregister(c, win));
  free(window);
  free(data);
  return faults;
}

/* At put 3 some write on either side fails, whether it has arrived or not: data or signal. */
static int at_write, arrives;
static void fail_one(int put) {
  if (put != 3) return;
  pthread_mutex_lock(&verbs->lock);
  verbs->passing = at_write;
  *(arrives ? &verbs->unanswered : &verbs->severed) = 1;
  pthread_mutex_unlock(&verbs->lock);
}

TEST_LOOP(survives_queue_pairs, 18) {
  static const size_t sizes[] = {8, 3000, PIECE};
  plan p = {.cards = 1, .register_it = _i % 2, .bytes = sizes[_i % 3], .before = fail_one, .carried = 1};
  arrives = _i / 3 % 2;
  at_write = _i / 6;
  run(&p, put_and_take);
  ck_assert_int_eq(verbs->severed + verbs->unanswered, 0);
}

static void pull_cable(int put) {
  if (put == 5) set(&verbs->device[0].down, 1);
}
TEST_LOOP(follows_to_another_port, 2) {
  plan p = {.cards = 2, .register_it = _i, .bytes = PIECE, .before = pull_cable, .carried = 1};
  run(&p, put_and_take);
}

/* Several queue pairs and ports carry a large put; its signal comes last. */
TEST_LOOP(spreads_large_puts, 3) {
  plan p = {.cards = 2, .register_it = _i > 0, .bytes = LARGE, .carried = 1};
  setenv("NCCL_NET_FORCE_MERGE", "fake0,fake1", 1);
  setenv("NCCL_IB_QPS_PER_CONNECTION", _i ? "3" : "1", 1);
  if (_i == 2) setenv("NCCL_IB_USE_INLINE", "0", 1);
  run(&p, put_and_take);
}

/* A card that takes no memory of the window, and one that takes none at all: messages carry the data. */
static void bound(int put) {
  pthread_mutex_lock(&verbs->lock);
  if (put == 0) verbs->lockable = verbs->locked + 2 * 1024 * 1024;
  if (put == PUTS - 1) verbs->lockable = 0;
  pthread_mutex_unlock(&verbs->lock);
}
TEST(does_without_the_window) {
  plan p = {.cards = 1, .bytes = LARGE, .before = bound};
  run(&p, put_and_take);
}

static void refuse_all(int put) {
  if (put == 0 || put == PUTS - 1) set(&verbs->device[0].full, put == 0);
}
TEST(does_without_the_card) {
  plan p = {.cards = 1, .bytes = PIECE, .before = refuse_all};
  setenv("NCCL_NET", "", 1);
  run(&p, put_and_take);
}

/* The link stays down: the put ends with an error that says so, and the wait on the other rank, too. */
static int cut_off(ncclComm_t c, int rank, int n, void *arg) {
  char *window = aligned_alloc(4096, 4096);
  ncclWindow_t win;
  int faults = RANK_CHECK(ncclCommWindowRegister(c, window, 4096, &win, NCCL_WIN_COLL_SYMMETRIC));
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = 0};
  ncclResult_t rc;
  (void)arg, (void)n;
  if (rank == 0) {
    faults += RANK_CHECK(ncclPutSignal(&rank, 1, ncclInt, 1, win, 0, 0, 0, 0, c, NULL));
    set(&verbs->device[0].down, 1);
    rc = ncclPutSignal(&rank, 1, ncclInt, 1, win, 0, 0, 0, 0, c, NULL);
  } else {
    faults += wait_one(c, 0);
    rc = ncclWaitSignal(1, &d, c, NULL);
  }
  IS(rc == ncclRemoteError);
  IS(strstr(ncclGetLastError(c), "lost the connection to rank") != NULL);
  IS(strstr(ncclGetLastError(c), "rank 1") != NULL);
  ncclCommWindowDeregister(c, win); /* the card may use the memory until then; it may fail */
  free(window);
  return faults;
}
TEST(ends_if_the_link_stays_down) {
  plan p = {.cards = 1};
  setenv("HOCKET_PEER_TIMEOUT", "2", 1);
  run(&p, cut_off);
}

int main(void) { return suite_main("rma_card", .timeout = 60); }
