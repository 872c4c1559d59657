/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks, which are processes, send each other plain memory that goes and comes back at the same address with other
 * data. It sees the public API only.
 *
 *   new_memory [DEVICE DEVICE]     the RDMA device of each rank
 *
 * With HOCKET_IB_CACHE, devices that pin pages send the old ones if an entry of the cache outlives its memory. */
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20, COUNT = SIZE / 4, USES = 10, ROUNDS = 4 };

static struct board {
  pthread_barrier_t all;
  ncclUniqueId id;
} * board;
static int rank;

#define MUST(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != ncclSuccess) fails(#call);                                                                           \
  } while (0)
static void fails(const char *what) {
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncclGetLastError(NULL));
  _exit(1);
}

static uint32_t *map_at(void *at) {
  void *p = mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (p == MAP_FAILED) abort();
  return p;
}

/* Unmapped and mapped again, dropped, mapped over, in turn. */
static void renew(uint32_t *p, int round) {
  if (round % 3 == 0) munmap(p, SIZE);
  if (round % 3 == 1 && madvise(p, SIZE, MADV_DONTNEED) != 0) abort();
  if (round % 3 != 1) map_at(p);
}

static uint32_t value(int of, int time, size_t i) { return (uint32_t)(of * 7919 + time * 104729) + (uint32_t)i * 31; }

static int run(void) {
  ncclComm_t c;
  uint32_t *in = map_at(NULL), *out = map_at(NULL);
  MUST(ncclCommInitRank(&c, 2, board->id, rank));
  for (int time = 0; time < ROUNDS * USES; time++) {
    for (size_t i = 0; i < COUNT; i++) in[i] = value(rank, time, i);
    memset(out, 0xEE, SIZE);
    MUST(ncclGroupStart());
    MUST(ncclSend(in, COUNT, ncclUint32, 1 - rank, c, NULL));
    MUST(ncclRecv(out, COUNT, ncclUint32, 1 - rank, c, NULL));
    MUST(ncclGroupEnd());
    for (size_t i = 0; i < COUNT; i++)
      if (out[i] != value(1 - rank, time, i)) {
        fprintf(stderr, "rank %d: message %d is wrong from element %zu on\n", rank, time, i);
        return 1;
      }
    if (time % USES != USES - 1) continue;
    renew(in, time / USES);
    renew(out, time / USES);
  }
  MUST(ncclCommDestroy(c));
  return 0;
}

static int start(const char *device) {
  char text[32];
  snprintf(text, sizeof text, "host%d", rank);
  setenv("NCCL_HOSTID", text, 1);
  if (device) setenv("NCCL_IB_HCA", device, 1);
  if (rank == 0) MUST(ncclGetUniqueId(&board->id));
  pthread_barrier_wait(&board->all);
  return run();
}

int main(int argc, char **argv) {
  pthread_barrierattr_t shared;
  int failed = 0, status;
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return 1;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->all, &shared, 2);
  for (rank = 0; rank < 2; rank++)
    if (fork() == 0) exit(start(argc > rank + 1 ? argv[rank + 1] : NULL));
  while (wait(&status) > 0) failed |= status;
  if (!failed) puts("all messages were right");
  return failed != 0;
}
