/* SPDX-License-Identifier: Apache-2.0 */
/* One process, one thread, many ranks: the shortest way to a collective.
 *
 *   make examples
 *   build/gcc/examples/many_ranks        # four ranks
 *   build/gcc/examples/many_ranks 9
 *
 * A thread that drives several ranks must start their parts of a collective inside one group: the call of the first
 * rank alone could only wait for the others for ever. */
#include "example.h"

enum { COUNT = 1000 };

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 4;
  if (n < 1) return 1;
  ncclComm_t *comm = calloc((size_t)n, sizeof *comm);
  float **data = calloc((size_t)n, sizeof *data);

  /* NULL: on a GPU machine, the first n devices; on a CPU, there is nothing to choose. */
  OK(ncclCommInitAll(comm, n, NULL));

  for (int r = 0; r < n; r++) {
    data[r] = malloc(COUNT * sizeof(float));
    for (int i = 0; i < COUNT; i++) data[r][i] = (float)(r + 1);
  }

  OK(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    /* In place: the same buffer is input and output.  The stream NULL means that the group's end waits. */
    OK(ncclAllReduce(data[r], data[r], COUNT, ncclFloat32, ncclSum, comm[r], NULL));
  }
  OK(ncclGroupEnd());

  for (int r = 0; r < n; r++)
    for (int i = 0; i < COUNT; i++) expect("the sum", r, (double)data[r][i], n * (n + 1) / 2.0);
  printf("%d ranks of one process added up %d floats each: every rank has %g\n", n, COUNT, (double)data[0][0]);

  for (int r = 0; r < n; r++) {
    OK(ncclCommDestroy(comm[r]));
    free(data[r]);
  }
  free(comm);
  free(data);
  return 0;
}
