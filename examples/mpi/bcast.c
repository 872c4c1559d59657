/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI: MPI gives the ranks and carries the unique id, Hocket does the collectives.
 *
 *   make lib
 *   mpicc -Iinclude examples/mpi/bcast.c -Lbuild/gcc/lib -lnccl -Wl,-rpath,$PWD/build/gcc/lib -o mpi_bcast
 *   mpirun -np 2 ./mpi_bcast
 *
 * Several hosts need nothing more: the id has the address of rank 0. */
#include <mpi.h>
#include "../example.h"

enum { COUNT = 1 << 16 };

int main(int argc, char **argv) {
  int rank, nranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);

  ncclUniqueId id; /* rank 0 makes it, and everyone gets a copy */
  if (rank == 0) OK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, nranks, id, rank));

  float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
  for (int i = 0; i < COUNT; i++) in[i] = (float)(rank + 1);
  OK(ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) expect("the sum", rank, (double)out[i], nranks * (nranks + 1) / 2.0);
  printf("rank %d of %d: the sum over all ranks is right\n", rank, nranks);

  free(in);
  free(out);
  OK(ncclCommDestroy(comm));
  MPI_Finalize();
  return 0;
}
