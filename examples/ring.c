/* SPDX-License-Identifier: Apache-2.0 */
/* Send and receive: processes in a ring pass their blocks on until everyone has seen all, an allgather by hand.
 *
 *   make examples
 *   build/gcc/examples/ring        # four processes
 *   build/gcc/examples/ring 1
 *
 * The processes are forked here, before anything touches the library; rank 0 makes the unique id and gives it to the
 * others through a pipe. */
#include <sys/wait.h>
#include <unistd.h>
#include "example.h"

enum { COUNT = 1000 };

static void run(int rank, int nranks, ncclUniqueId id) {
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, nranks, id, rank));

  int next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks;
  int *held = malloc(COUNT * sizeof *held), *coming = malloc(COUNT * sizeof *coming);
  long sum = 0;
  for (int i = 0; i < COUNT; i++) held[i] = rank;
  for (int step = 0; step < nranks; step++) {
    sum += held[0];
    /* A send waits for its receive, and all ranks send at once: one group lets both directions make progress. */
    OK(ncclGroupStart());
    OK(ncclSend(held, COUNT, ncclInt32, next, comm, NULL));
    OK(ncclRecv(coming, COUNT, ncclInt32, before, comm, NULL));
    OK(ncclGroupEnd());
    int *swap = held;
    held = coming;
    coming = swap;
  }
  /* After as many steps as there are ranks, the own block is back. */
  for (int i = 0; i < COUNT; i++) expect("the own block", rank, held[i], rank);
  expect("the sum of all blocks", rank, (double)sum, nranks * (nranks - 1) / 2.0);
  printf("rank %d of %d saw every block, and its own came back\n", rank, nranks);

  free(held);
  free(coming);
  OK(ncclCommDestroy(comm));
}

int main(int argc, char **argv) {
  int nranks = argc > 1 ? atoi(argv[1]) : 4, channel[2], rank = 0;
  if (nranks < 1 || pipe(channel)) return 1;
  fflush(stdout);
  for (int r = 1; r < nranks && rank == 0; r++)
    if (fork() == 0) rank = r;

  ncclUniqueId id;
  if (rank == 0) {
    OK(ncclGetUniqueId(&id));
    /* Short enough to pass through the pipe in one piece, once for each of the others. */
    for (int r = 1; r < nranks; r++)
      if (write(channel[1], &id, sizeof id) != sizeof id) return 1;
  } else if (read(channel[0], &id, sizeof id) != sizeof id) {
    return 1;
  }
  run(rank, nranks, id);

  /* Rank 0 answers for its children. */
  int bad = 0, status;
  while (rank == 0 && wait(&status) > 0) bad |= status != 0;
  return bad;
}
