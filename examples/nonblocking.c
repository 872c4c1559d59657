/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator that never blocks its caller: calls may return ncclInProgress, and ncclCommGetAsyncError says when
 * what was started is complete.  A program can give up on peers that do not come, instead of waiting for ever.
 *
 *   make examples
 *   build/gcc/examples/nonblocking */
#include <time.h>
#include "example.h"

enum { RANKS = 3, COUNT = 100 };

/* Started, or done already: both are fine for a nonblocking communicator. */
#define STARTED(call)                                                                                                  \
  do {                                                                                                                 \
    ncclResult_t started_ = (call);                                                                                    \
    if (started_ != ncclInProgress) OK(started_);                                                                      \
  } while (0)

/* Polls until nothing of `comm` is in progress.  A real program would do something useful between two looks. */
static void wait_for(ncclComm_t comm, int rank) {
  struct timespec pause = {.tv_nsec = 1000000};
  for (int looks = 0; looks < 30000; looks++) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm, &state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) {
      fprintf(stderr, "rank %d: %s: %s\n", rank, ncclGetErrorString(state), ncclGetLastError(comm));
      exit(1);
    }
    nanosleep(&pause, NULL);
  }
  fprintf(stderr, "rank %d: gave up after 30 s\n", rank);
  OK(ncclCommAbort(comm)); /* allowed at any time, and frees the communicator */
  exit(1);
}

int main(void) {
  ncclComm_t comm[RANKS];
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) STARTED(ncclCommInitRankConfig(&comm[r], RANKS, id, r, &config));
  STARTED(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) wait_for(comm[r], r);
  printf("%d ranks are connected\n", RANKS);

  int data[RANKS][COUNT];
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) data[r][i] = r == 1 ? 1000 + i : 0;
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) STARTED(ncclBroadcast(data[r], data[r], COUNT, ncclInt32, 1, comm[r], NULL));
  STARTED(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) wait_for(comm[r], r);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) expect("an element", r, data[r][i], 1000 + i);
  printf("rank 1 has broadcast %d integers\n", COUNT);

  /* Finalize flushes what is under way; destroy then only frees. */
  for (int r = 0; r < RANKS; r++) STARTED(ncclCommFinalize(comm[r]));
  for (int r = 0; r < RANKS; r++) wait_for(comm[r], r);
  for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(comm[r]));
  return 0;
}
