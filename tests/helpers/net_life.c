/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of several processes over a net plugin: made, used and ended in every order, by threads, with groups of
 * many sends and receives, aborted, and with a rank that is killed. It sees the public API only.
 *
 *   net_life SCENARIO RANKS     SCENARIO: orders threads groups abort kill
 *
 * Each rank is a process with a host id of its own, so that ranks share no memory. */
#include <hocket.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, IDS = 64, LARGE = 3 << 20, LIMIT_S = 60, THREADS = 3 };

static struct board {
  pthread_barrier_t all;
  ncclUniqueId ids[IDS];
} * board;
static int rank, n;

#define MUST(call)                                                                                                     \
  do {                                                                                                                 \
    ncclResult_t rc_ = (call);                                                                                         \
    if (rc_ != ncclSuccess) fails(#call, rc_);                                                                         \
  } while (0)
#define HOLDS(condition) ((condition) ? (void)0 : fails("wrong: " #condition, 0))

static void fails(const char *what, int code) {
  fprintf(stderr, "rank %d: %s: %d %s\n", rank, what, code, code ? ncclGetLastError(NULL) : "");
  _exit(1);
}

static ncclComm_t join(int id) {
  ncclComm_t c = NULL;
  MUST(ncclCommInitRank(&c, n, board->ids[id], rank));
  return c;
}

/* The sum of all ranks' numbers, every element looked at. */
static ncclResult_t sum(ncclComm_t c, size_t count) {
  float *in = calloc(count, sizeof *in), *out = malloc(count * sizeof *out);
  if (!in || !out) abort();
  for (size_t i = 0; i < count; i++) in[i] = (float)(rank + 1) * (float)(i % 1000);
  ncclResult_t rc = ncclAllReduce(in, out, count, ncclFloat, ncclSum, c, NULL);
  for (size_t i = 0; rc == ncclSuccess && i < count; i++) HOLDS(out[i] == (float)(n * (n + 1) / 2) * (float)(i % 1000));
  free(in);
  free(out);
  return rc;
}

/* A group of `each` sends to every rank and as many receives from it; the first ones are small, the last ones large. */
static ncclResult_t exchange(ncclComm_t c, int each) {
  static const size_t sizes[] = {1, 8, 4080, 4081, 100000, 1 << 20};
  size_t capacity = (size_t)n * (size_t)each << 20;
  unsigned char *out = malloc(capacity), *in = malloc(capacity);
  if (!out || !in) abort();
  memset(in, 0, capacity);
  MUST(ncclGroupStart());
  for (int peer = 0; peer < n; peer++)
    for (int k = 0; k < each; k++) {
      size_t at = (size_t)(peer * each + k) << 20, bytes = sizes[k % 6];
      memset(out + at, rank * 16 + k + peer, bytes);
      MUST(ncclSend(out + at, bytes, ncclUint8, peer, c, NULL));
      MUST(ncclRecv(in + at, bytes, ncclUint8, peer, c, NULL));
    }
  ncclResult_t rc = ncclGroupEnd();
  for (int i = 0; rc == ncclSuccess && i < n * each; i++) {
    const unsigned char *at = in + ((size_t)i << 20), want = (unsigned char)(i / each * 16 + i % each + rank);
    for (size_t b = 0; b < sizes[i % each % 6]; b++) HOLDS(at[b] == want);
  }
  free(out);
  free(in);
  return rc;
}

/* ---- scenarios ---- */

/* Three communicators, one of them split from another, are made and destroyed in each of the six orders; those that are
 * left go on. */
static void orders(void) {
  static const int order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int o = 0; o < 6; o++) {
    ncclComm_t c[3] = {NULL};
    for (int i = 0; i < 3; i++) {
      int k = order[(o + 3) % 6][i];
      if (k == 2 && c[0])
        MUST(ncclCommSplit(c[0], 0, rank, &c[2], NULL));
      else
        c[k] = join(o * 3 + k);
      MUST(sum(c[k], 10));
    }
    for (int i = 0; i < 3; i++) {
      for (int k = i; k < 3; k++) {
        MUST(sum(c[order[o][k]], k == 2 ? LARGE / 4 : 1000));
        MUST(exchange(c[order[o][k]], 2));
      }
      /* Odd orders: ranks destroy it one after another. */
      for (int r = 0; r < (o & 1 ? n : 1); r++) {
        if (!(o & 1) || r == rank) MUST(ncclCommDestroy(c[order[o][i]]));
        if (o & 1) pthread_barrier_wait(&board->all);
      }
    }
  }
}

static void *works(void *arg) {
  for (int round = 0; round < 3; round++) {
    ncclComm_t c = join((int)(intptr_t)arg * 3 + round);
    for (int i = 0; i < 20; i++) MUST(sum(c, i % 4 ? 100 : LARGE / 4));
    MUST(exchange(c, 4));
    MUST(ncclCommDestroy(c));
  }
  return NULL;
}
static void threads(void) {
  pthread_t t[THREADS];
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&t[i], NULL, works, (void *)(intptr_t)i)) abort();
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
}

static void groups(void) {
  ncclComm_t c = join(0);
  for (int each = 1; each <= 12; each += 5)
    for (int i = 0; i < 3; i++) MUST(exchange(c, each));
  MUST(ncclCommDestroy(c));
}

/* The last rank aborts while the others are in a call; then all of them make a communicator that works. A second one,
 * which existed all the time, goes on. */
static void aborts(void) {
  for (int round = 0; round < 3; round++) {
    ncclComm_t c = join(round * 3), other = join(round * 3 + 1);
    MUST(sum(c, round == 1 ? 10 : LARGE / 4));
    MUST(sum(other, 1000));
    if (rank < n - 1) {
      ncclResult_t rc = ncclSuccess;
      for (int i = 0; rc == ncclSuccess && i < 10; i++) rc = sum(c, round == 2 ? 10 : LARGE);
      HOLDS(rc == ncclRemoteError);
    }
    MUST(ncclCommAbort(c));
    MUST(sum(other, 1000));
    MUST(exchange(other, 3));
    c = join(round * 3 + 2);
    MUST(sum(c, LARGE / 4));
    MUST(ncclCommDestroy(other));
    MUST(ncclCommDestroy(c));
  }
}

/* The last rank is killed while data is on its way; the others learn of it, and go on without it. */
static void kills(void) {
  ncclComm_t c = join(0);
  ncclResult_t rc = ncclSuccess;
  MUST(sum(c, 1000));
  if (rank == n - 1) {
    ncclGroupStart();
    kill(getpid(), SIGKILL);
  }
  for (int i = 0; rc == ncclSuccess && i < 10; i++) rc = sum(c, LARGE);
  HOLDS(rc == ncclRemoteError);
  char name[32];
  snprintf(name, sizeof name, "rank %d", n - 1);
  if (!strstr(ncclGetLastError(c), name)) fails("the error does not name the rank", rc);
  MUST(ncclCommAbort(c));
  n--;
  if (n == 1) return;
  c = join(1);
  MUST(sum(c, LARGE));
  MUST(ncclCommDestroy(c));
}

static const struct {
  const char *name;
  void (*run)(void);
  int dies;
} scenarios[] = {
    {"orders", orders, 0}, {"threads", threads, 0}, {"groups", groups, 0}, {"abort", aborts, 0}, {"kill", kills, 1}};

int main(int argc, char **argv) {
  pthread_barrierattr_t shared;
  int faults = 0, which = 0;
  pid_t ranks[MOST];
  if (argc != 3 || (n = atoi(argv[2])) < 2 || n > MOST) return 2;
  while (which < 5 && strcmp(scenarios[which].name, argv[1]) != 0) which++;
  if (which == 5) return 2;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return 2;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->all, &shared, (unsigned)n);
  for (rank = 0; rank < n; rank++) {
    if ((ranks[rank] = fork()) != 0) continue;
    char host[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S * 3);
    snprintf(host, sizeof host, "host%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    if (rank == 0) /* the root of an id lives in the process that made it */
      for (int i = 0; i < IDS; i++) MUST(ncclGetUniqueId(&board->ids[i]));
    pthread_barrier_wait(&board->all);
    scenarios[which].run();
    fflush(NULL);
    _exit(0);
  }
  for (rank = 0; rank < n; rank++) {
    int status = 0;
    waitpid(ranks[rank], &status, 0);
    bool killed = scenarios[which].dies && rank == n - 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (status && !killed) faults++, fprintf(stderr, "rank %d ends with status %#x\n", rank, status);
  }
  if (!faults) printf("%s with %d ranks: right\n", argv[1], n);
  return faults > 0;
}
