/* SPDX-License-Identifier: Apache-2.0 */
/* Rails that are not connected, over the fake libibverbs.so.1: ranks of pretended hosts, each of which may open one
 * card only, send to ranks of other rails through a rank of their host or of the peer's (PXN).
 * check: timeout=300 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "../../src/core/comm.h"
#include "../support/fake_rdma.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { MOST_RANKS = 6, CARDS = 4 };
#define IS(condition) faults += RANK_IS(condition)

/* Rank r is on this host, and may open this card; even cards are on rail 0, the others on rail 1. */
typedef struct place {
  int host, card;
} place;
static const place shuffled[] = {{0, 0}, {1, 3}, {0, 1}, {1, 2}}, /* a card for each */
    crossed[] = {{0, 0}, {0, 0}, {0, 1}, {1, 3}, {1, 2}, {1, 3}}, /* some share one */
    lopsided[] = {{0, 0}, {0, 1}, {1, 3}};                        /* only one host has both rails */

static fake_verbs_state *verbs;
static const place *places;
static int nranks;
static _Thread_local int self = -1;

/* In place of libc's: the host's name is part of its id. */
int gethostname(char *name, size_t bytes) {
  snprintf(name, bytes, "host%d", self < 0 ? -1 : places[self].host);
  return 0;
}
static int is_closed(int device) { return self >= 0 && places[self].card != device ? EPERM : 0; }

static void begin(const place *where, int n) {
  places = where;
  nranks = n;
  rdma_plenty = true;
  verbs = rdma_begin(CARDS);
  verbs->closed = is_closed;
  for (int i = 0; i < CARDS; i++) verbs->device[i].rail = i % 2;
  rdma_param("NCCL_IB_HCA", "=fake0:1:0,fake1:1:1,fake2:1:0,fake3:1:1");
  rdma_param("NCCL_CROSS_NIC", "0");
  rdma_param("NCCL_NET", "IB");
}
static void end(void) {
  ck_assert_uint_eq(verbs->crossed, 0); /* isolated rails are never tried */
  rdma_end(verbs);
}

typedef struct rank_of {
  pthread_t thread;
  ncclUniqueId id;
  int rank, faults;
  rank_body body;
  void *arg;
} rank_of;

/* The body destroys the communicator if it sets *arg of its own to NULL; see `destroyed`. */
static _Thread_local bool destroyed;

static void *run_rank(void *p) {
  rank_of *t = p;
  ncclComm_t c = NULL;
  self = t->rank;
  destroyed = false;
  t->faults = RANK_CHECK(ncclCommInitRank(&c, nranks, t->id, t->rank));
  if (t->faults) return NULL;
  t->faults = t->body(c, t->rank, nranks, t->arg);
  if (!destroyed) t->faults += rank_left_work(c) + RANK_CHECK(ncclCommDestroy(c));
  return NULL;
}

/* Ranks [first, last) as threads of this process. */
static int run_ranks(const ncclUniqueId *id, int first, int last, rank_body body, void *arg) {
  rank_of t[MOST_RANKS];
  int faults = 0;
  for (int r = first; r < last; r++) {
    t[r] = (rank_of){.id = *id, .rank = r, .body = body, .arg = arg};
    ck_assert_int_eq(pthread_create(&t[r].thread, NULL, run_rank, &t[r]), 0);
  }
  for (int r = first; r < last; r++) {
    pthread_join(t[r].thread, NULL);
    faults += t[r].faults;
  }
  return faults;
}
/* The first rank is a process of its own, and the others, whose cards the fake joins, are another one. */
static int run_split(rank_body body, void *arg) {
  int ends[2], faults = 0;
  pid_t pids[2];
#ifdef __SANITIZE_THREAD__
  printf("SKIP: ranks as processes: ThreadSanitizer allows no threads after a fork\n");
  return (void)body, (void)arg, (void)ends, (void)pids, faults;
#endif
  ck_assert_int_eq(pipe(ends), 0);
  fflush(NULL);
  for (int p = 0; p < 2; p++) {
    if ((pids[p] = fork())) continue;
    ncclUniqueId id;
    if (ranks_share_id(ends, p, 2, &id)) _exit(1);
    faults = run_ranks(&id, p, p ? nranks : 1, body, arg);
    fflush(NULL);
    _exit(faults || verbs->crossed || verbs->nqps || verbs->nmrs);
  }
  for (int p = 0; p < 2; p++) {
    int status;
    waitpid(pids[p], &status, 0);
    faults += !WIFEXITED(status) || WEXITSTATUS(status);
  }
  close(ends[0]);
  close(ends[1]);
  return faults;
}
static int run(rank_body body, void *arg) {
  ncclUniqueId id;
  return RANK_CHECK(ncclGetUniqueId(&id)) + run_ranks(&id, 0, nranks, body, arg);
}

/* ---- every kind of traffic ---- */

static unsigned char byte_of(int from, int to, size_t i) {
  return (unsigned char)(from * 61 + to * 17 + (int)(i * 7 + (i >> 9)));
}

/* All send to all, several messages in one group. */
static int exchange(ncclComm_t c, int rank, int n, size_t bytes, int times) {
  size_t all = bytes * (size_t)times;
  unsigned char *out = calloc((size_t)n, all), *in = calloc((size_t)n, all);
  int faults = 0;
  for (int p = 0; p < n; p++)
    for (size_t i = 0; i < all; i++) out[(size_t)p * all + i] = byte_of(rank, p, i);
  faults += RANK_CHECK(ncclGroupStart());
  for (int p = 0; p < n; p++)
    for (int k = 0; k < times && p != rank; k++) {
      size_t at = (size_t)p * all + (size_t)k * bytes;
      faults += RANK_CHECK(ncclSend(out + at, bytes, ncclUint8, p, c, NULL));
      faults += RANK_CHECK(ncclRecv(in + at, bytes, ncclUint8, p, c, NULL));
    }
  faults += RANK_CHECK(ncclGroupEnd());
  size_t wrong = 0;
  for (int p = 0; p < n; p++)
    for (size_t i = 0; i < all && p != rank; i++) wrong += in[(size_t)p * all + i] != byte_of(p, rank, i);
  IS(wrong == 0);
  free(out);
  free(in);
  return faults;
}

static int alltoall(ncclComm_t c, int rank, int n, size_t bytes) {
  unsigned char *out = calloc((size_t)n, bytes), *in = calloc((size_t)n, bytes);
  size_t wrong = 0;
  for (int p = 0; p < n; p++)
    for (size_t i = 0; i < bytes; i++) out[(size_t)p * bytes + i] = byte_of(rank, p, i);
  int faults = RANK_CHECK(ncclAlltoAll(out, in, bytes, ncclUint8, c, NULL));
  for (int p = 0; p < n; p++)
    for (size_t i = 0; i < bytes; i++) wrong += in[(size_t)p * bytes + i] != byte_of(p, rank, i);
  IS(wrong == 0);
  free(out);
  free(in);
  return faults;
}

static int allreduce(ncclComm_t c, int rank, int n, size_t count) {
  int32_t *x = calloc(count, sizeof *x);
  size_t wrong = 0;
  for (size_t i = 0; i < count; i++) x[i] = (int32_t)(i % 1000) + rank;
  int faults = RANK_CHECK(ncclAllReduce(x, x, count, ncclInt32, ncclSum, c, NULL));
  for (size_t i = 0; i < count; i++) wrong += x[i] != (int32_t)(i % 1000) * n + n * (n - 1) / 2;
  IS(wrong == 0);
  free(x);
  return faults;
}

static int traffic(ncclComm_t c, int rank, int n, void *arg) {
  int faults = 0;
  (void)arg;
  for (int turn = 0; turn < 2; turn++) {
    faults += exchange(c, rank, n, 5, 20) + exchange(c, rank, n, 3000, 3) + exchange(c, rank, n, 400000, 2);
    faults += alltoall(c, rank, n, 7) + alltoall(c, rank, n, 70001);
    faults += allreduce(c, rank, n, 1) + allreduce(c, rank, n, 200001);
  }
  return faults;
}

TEST_LOOP(carries, 3) {
  const char *const algorithms[] = {NULL, "ring", "pairwise,direct,flat,doubling"};
  if (algorithms[_i]) rdma_param("NCCL_ALGO", algorithms[_i]);
  begin(shuffled, 4);
  ck_assert_int_eq(run(traffic, NULL), 0);
}

TEST(carries_for_many) {
  begin(crossed, 6);
  ck_assert_int_eq(run(traffic, NULL), 0);
}

/* The relay is on the sender's host one way, and on the receiver's the other way. */
TEST(carries_both_ways) {
  begin(lopsided, 3);
  ck_assert_int_eq(run(traffic, NULL), 0);
}

/* The near rank and the relay are processes, and share the FIFO's file. */
TEST(carries_between_processes) {
  begin(lopsided, 3);
  ck_assert_int_eq(run_split(traffic, NULL), 0);
}

/* What INFO says about it. */
TEST(is_logged) {
  static char text[1 << 20];
  char path[600];
  snprintf(path, sizeof path, "%s/log", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  snprintf(path + strlen(path), sizeof path - strlen(path), ".%d", (int)getpid());
  setenv("NCCL_DEBUG_FILE", path, 1); /* before the first line */
  setenv("NCCL_DEBUG", "INFO", 1);
  rdma_param("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P");
  begin(shuffled, 4);
  ck_assert_int_eq(run(traffic, NULL), 0);
  FILE *f = fopen(path, "r");
  ck_assert_ptr_nonnull(f);
  text[fread(text, 1, sizeof text - 1, f)] = '\0';
  fclose(f);
  unlink(path);
  ck_assert_ptr_nonnull(
      strstr(text, "rank 0 sends to rank 1 through rank 2 (PXN), and receives through rank 3: rail 0"));
  ck_assert_ptr_nonnull(strstr(text, "rank 0 reaches rank 1 via relay; not via self"));
  ck_assert_ptr_nonnull(strstr(text, "rank 2 passes on what rank 0 sends to rank 1"));
  ck_assert_ptr_nonnull(strstr(text, "rank 0 reaches rank 3 via net; not via self"));
}

/* ---- without it ---- */

static int is_refused(void *p) {
  rank_of *t = p;
  ncclComm_t c = NULL;
  char why[1024];
  int faults = 0;
  IS(ncclCommInitRank(&c, nranks, t->id, t->rank) != ncclSuccess);
  snprintf(why, sizeof why, "%s", ncclGetLastError(NULL));
  IS(strstr(why, "cannot reach rank") && strstr(why, "rail 0") && strstr(why, "rail 1") &&
     strstr(why, "NCCL_PXN_DISABLE"));
  return faults;
}
static void *refused_rank(void *p) {
  rank_of *t = p;
  self = t->rank;
  t->faults = is_refused(t);
  return NULL;
}

TEST(is_turned_off) {
  rank_of t[4];
  ncclUniqueId id;
  begin(shuffled, 4);
  rdma_param("NCCL_PXN_DISABLE", "1");
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  for (int r = 0; r < 4; r++) {
    t[r] = (rank_of){.id = id, .rank = r};
    ck_assert_int_eq(pthread_create(&t[r].thread, NULL, refused_rank, &t[r]), 0);
  }
  for (int r = 0; r < 4; r++) {
    pthread_join(t[r].thread, NULL);
    ck_assert_int_eq(t[r].faults, 0);
  }
}

/* Without a rank that joins them, or without PXN, another network does. */
TEST_LOOP(leaves_it_to_sockets, 2) {
  static const place apart[] = {{0, 0}, {1, 3}};
  if (_i)
    begin(shuffled, 4);
  else
    begin(apart, 2);
  rdma_param("NCCL_NET", "");
  rdma_param("NCCL_PXN_DISABLE", _i ? "1" : "0");
  ck_assert_int_eq(run(traffic, NULL), 0);
}

/* ---- ends ---- */

static _Atomic(int) stage;
static void reach(int s) { atomic_store(&stage, s); }
static void await(int s) {
  while (atomic_load(&stage) < s) usleep(100);
}
static int leave(ncclComm_t c) {
  destroyed = true;
  return RANK_CHECK(ncclCommDestroy(c));
}

/* Ranks 0 and 2 of `lopsided` send each other messages through rank 1, which leaves in the middle: what it has is not
 * lost, and it stays as long as they go on. */
static int leaves_early(ncclComm_t c, int rank, int n, void *arg) {
  enum { BYTES = 30000, TURNS = 50 };
  static unsigned char data[2][BYTES];
  int faults = 0, peer = 2 - rank;
  (void)n, (void)arg;
  if (rank == 1) {
    await(1);
    return leave(c);
  }
  for (int k = 0; k < TURNS; k++) {
    unsigned char *mine = data[rank / 2];
    if (k == TURNS / 2) reach(1);
    if (rank == 0) memset(mine, k, BYTES);
    faults += rank == 0 ? RANK_CHECK(ncclSend(mine, BYTES, ncclUint8, peer, c, NULL))
                        : RANK_CHECK(ncclRecv(mine, BYTES, ncclUint8, peer, c, NULL));
    IS(mine[0] == k && mine[BYTES - 1] == k);
    faults += rank == 2 ? RANK_CHECK(ncclSend(mine, BYTES, ncclUint8, peer, c, NULL))
                        : RANK_CHECK(ncclRecv(mine, BYTES, ncclUint8, peer, c, NULL));
    if (k > TURNS / 2) usleep(1000); /* rank 1 is in ncclCommDestroy */
  }
  return faults;
}

TEST(relay_leaves_first) {
  begin(lopsided, 3);
  ck_assert_int_eq(run(leaves_early, NULL), 0);
}

/* The sender and the relay leave, in either order, before the receiver takes what was sent. */
static int receives_late(ncclComm_t c, int rank, int n, void *arg) {
  enum { MESSAGES = 6 };
  const bool back = *(const int *)arg & 1, relay_first = *(const int *)arg & 2;
  const int from = back ? 2 : 0, to = 2 - from;
  int faults = exchange(c, rank, n, 4, 1); /* a send waits until the receiver has made its end of the link */
  if (rank == from) {
    for (int k = 0; k < MESSAGES; k++) faults += RANK_CHECK(ncclSend(&k, 1, ncclInt, to, c, NULL));
    reach(1);
    if (relay_first) await(2);
    faults += leave(c);
  } else if (rank == 1) {
    await(1);
    reach(2);
    faults += leave(c);
    reach(3);
  } else {
    await(3);
    for (int k = 0, got = -1; k < MESSAGES; k++) {
      faults += RANK_CHECK(ncclRecv(&got, 1, ncclInt, from, c, NULL));
      IS(got == k);
    }
  }
  return faults;
}

TEST_LOOP(receiver_comes_late, 4) {
  int order = _i;
  begin(lopsided, 3);
  ck_assert_int_eq(run(receives_late, &order), 0);
}

/* The relay aborts while the other two need it: all report it. */
static int relay_aborts(ncclComm_t c, int rank, int n, void *arg) {
  int faults = 0, x = 0;
  (void)arg;
  faults += exchange(c, rank, n, 100, 1);
  atomic_fetch_add(&stage, 1);
  if (rank == 1) {
    await(n);
    destroyed = true;
    return faults + RANK_CHECK(ncclCommAbort(c));
  }
  for (ncclResult_t rc = ncclSuccess; rc == ncclSuccess;)
    if ((rc = rank ? ncclRecv(&x, 1, ncclInt, 0, c, NULL) : ncclSend(&x, 1, ncclInt, 2, c, NULL)) != ncclSuccess) {
      IS(rc == ncclRemoteError);
      IS(strstr(ncclGetLastError(NULL), "rank 1 aborted") != NULL);
    }
  destroyed = true;
  return faults + RANK_CHECK(ncclCommAbort(c));
}

TEST(relay_is_aborted) {
  begin(lopsided, 3);
  ck_assert_int_eq(run(relay_aborts, NULL), 0);
}

/* The relay's card takes no memory: that is the relay's failure, whichever end notices it first. */
static int has_no_memory(ncclComm_t c, int rank, int n, void *arg) {
  int x = 0, faults = 0;
  ncclResult_t rc = ncclSuccess;
  (void)arg;
  while (rank == 1 && rc == ncclSuccess) faults += RANK_CHECK(ncclCommGetAsyncError(c, &rc));
  if (rank != 1) rc = rank ? ncclRecv(&x, 1, ncclInt, 0, c, NULL) : ncclSend(&x, 1, ncclInt, 2, c, NULL);
  const char *why = ncclGetLastError(c);
  IS(rc == (rank == 1 ? ncclSystemError : ncclRemoteError));
  IS(strstr(why, "rank 1: registering") && strstr(why, "memlock"));
  atomic_fetch_add(&stage, 1);
  await(n); /* the end of the relay's connections is news, too */
  destroyed = true;
  return faults + RANK_CHECK(ncclCommAbort(c));
}

TEST(relay_reports) {
  begin(lopsided, 3);
  verbs->device[1].full = 1;
  ck_assert_int_eq(run(has_no_memory, NULL), 0);
}

/* The far rank's card gets nothing any more: the ranks at both ends of its connection give up, the relay and the far
 * one. */
static int loses_the_card(ncclComm_t c, int rank, int n, void *arg) {
  int x = 0, faults = exchange(c, rank, n, 100, 1);
  ncclResult_t rc = ncclSuccess;
  (void)arg;
  atomic_fetch_add(&stage, 1);
  await(n);
  if (rank == 1) {
    pthread_mutex_lock(&verbs->lock);
    verbs->device[3].down = 1;
    pthread_mutex_unlock(&verbs->lock);
    reach(n + 1);
    while (rc == ncclSuccess) faults += RANK_CHECK(ncclCommGetAsyncError(c, &rc));
  }
  await(n + 1);
  while (rc == ncclSuccess) rc = rank ? ncclRecv(&x, 1, ncclInt, 0, c, NULL) : ncclSend(&x, 1, ncclInt, 2, c, NULL);
  IS(rc == ncclRemoteError);
  IS(strstr(ncclGetLastError(c), "rank 1") != NULL);
  destroyed = true;
  return faults + RANK_CHECK(ncclCommAbort(c));
}

TEST(network_fails) {
  rdma_param("HOCKET_PEER_TIMEOUT", "2");
  begin(lopsided, 3);
  ck_assert_int_eq(run(loses_the_card, NULL), 0);
}

/* The process of the relay and the far rank ends, or that of the near rank, while the others need it. */
static _Atomic(int) *arrived; /* shared by the processes */
static int dies(ncclComm_t c, int rank, int n, void *arg) {
  const int process = *(const int *)arg;
  int x = 0, faults = exchange(c, rank, n, 100, 1);
  const char *why = process ? "rank 1" : "rank 0";
  for (atomic_fetch_add(arrived, 1); atomic_load(arrived) < n;) usleep(100);
  if ((rank > 0) == process) {
    if (rank == process) _exit(0);
    pause();
  }
  for (ncclResult_t rc = ncclSuccess; rc == ncclSuccess;)
    if ((rc = rank != 2 ? ncclRecv(&x, 1, ncclInt, 2 - 2 * (rank != 0), c, NULL)
                        : ncclSend(&x, 1, ncclInt, 0, c, NULL)) != ncclSuccess) {
      const char *text = ncclGetLastError(NULL);
      IS(rc == ncclRemoteError);
      IS(strstr(text, why) || (process && strstr(text, "rank 2")));
    }
  destroyed = true;
  return faults + RANK_CHECK(ncclCommAbort(c));
}

TEST_LOOP(process_dies, 2) {
  int process = _i;
  begin(lopsided, 3);
  arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne((void *)arrived, MAP_FAILED);
  ck_assert_int_eq(run_split(dies, &process), 0);
}

int main(void) { return suite_main("relay", .timeout = 100, .teardown = end); }
