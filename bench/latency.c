/* SPDX-License-Identifier: Apache-2.0 */
/* Small messages between two ranks on host memory through the public API, one process each, started as torchrun starts
 * them (RANK, WORLD_SIZE=2, MASTER_ADDR, MASTER_PORT):
 *   latency [BYTES]
 * Rank 0 prints times of batches: the best batch and the middle one.  On a machine that others use too only the best
 * one says something about the library.  "In turn" is what ib_write_lat and its like measure: one message is under way
 * at a time. */
#include <hocket.h>
#include <stdio.h>
#include <stdlib.h>
#include "../examples/example.h"
#include "../src/base/wait.h"

enum { BATCH = 20, BATCHES = 100, WARM = 5 };

typedef struct bench {
  ncclComm_t comm;
  hocketStream_t stream;
  int rank;
  size_t bytes;
  char *in, *out;
} bench;

static void in_turn(const bench *b) {
  if (b->rank == 0) OK(ncclSend(b->in, b->bytes, ncclInt8, 1, b->comm, NULL));
  OK(ncclRecv(b->out, b->bytes, ncclInt8, 1 - b->rank, b->comm, NULL));
  if (b->rank == 1) OK(ncclSend(b->in, b->bytes, ncclInt8, 0, b->comm, NULL));
}

static void at_once(const bench *b) {
  OK(ncclGroupStart());
  OK(ncclSend(b->in, b->bytes, ncclInt8, 1 - b->rank, b->comm, NULL));
  OK(ncclRecv(b->out, b->bytes, ncclInt8, 1 - b->rank, b->comm, NULL));
  OK(ncclGroupEnd());
}

static void all_reduce(const bench *b) { OK(ncclAllReduce(b->in, b->out, b->bytes, ncclInt8, ncclSum, b->comm, NULL)); }

static void on_stream(const bench *b) {
  OK(ncclAllReduce(b->in, b->out, b->bytes, ncclInt8, ncclSum, b->comm, hocketStreamAsCuda(b->stream)));
  OK(hocketStreamSynchronize(b->stream));
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void measure(const char *name, const bench *b, void (*what)(const bench *), double part) {
  double times[BATCHES];
  for (int k = -WARM; k < BATCHES; k++) {
    uint64_t begin = hk_now_ns();
    for (int i = 0; i < BATCH; i++) what(b);
    if (k >= 0) times[k] = (double)(hk_now_ns() - begin) / BATCH / 1e3 * part;
  }
  qsort(times, BATCHES, sizeof *times, by_size);
  if (b->rank == 0) printf("%-34s %8zu B %9.2f %9.2f us\n", name, b->bytes, times[0], times[BATCHES / 2]);
}

int main(int argc, char **argv) {
  const char *rank = getenv("RANK"), *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
  if (!rank || !host || !port) {
    fprintf(stderr, "latency: RANK, MASTER_ADDR and MASTER_PORT must be set\n");
    return 2;
  }
  char address[300];
  snprintf(address, sizeof address, "%s:%s", host, port);
  setenv("NCCL_COMM_ID", address, 1);
  bench b = {.rank = atoi(rank), .bytes = argc > 1 ? (size_t)atol(argv[1]) : 8};
  b.in = calloc(1, b.bytes + 1);
  b.out = calloc(1, b.bytes + 1);
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&b.comm, 2, id, b.rank));
  measure("send and receive in turn, one way", &b, in_turn, 0.5);
  measure("send and receive at once", &b, at_once, 1);
  measure("all_reduce", &b, all_reduce, 1);
  OK(hocketStreamCreate(&b.stream));
  measure("all_reduce on a stream, waited for", &b, on_stream, 1);
  OK(hocketStreamDestroy(b.stream));
  OK(ncclCommDestroy(b.comm));
  free(b.in);
  free(b.out);
  return 0;
}
