/* SPDX-License-Identifier: Apache-2.0 */
/* One rank a process, started by mpirun, srun or torchrun, with no MPI linked. hocketCommFromEnvironment finds rank and
 * number of ranks in the launcher's variables, and the other ranks.
 *
 *   make examples
 *   mpirun -np 4 --oversubscribe build/gcc/examples/launched    # Open MPI, on fewer than four cores, too
 *   mpirun -np 4 -genv NCCL_DEBUG WARN build/gcc/examples/launched    # MPICH
 *   mpirun -np 4 --host a:2,b:2 -x MASTER_ADDR=a -x MASTER_PORT=29400 build/gcc/examples/launched    # rank 0 on host a
 *   srun -N 2 --ntasks-per-node 4 build/gcc/examples/launched
 *   torchrun --no-python --nproc-per-node 4 build/gcc/examples/launched
 *   export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400    # without a launcher
 *   for r in 0 1; do RANK=$r build/gcc/examples/launched & done; wait
 *
 * NCCL has no such call: there one rank makes a unique id and gives it to the others (mpi/bcast.c, many_ranks.c), or
 * all have NCCL_COMM_ID. */
#include <hocket.h>
#include "example.h"

enum { COUNT = 1 << 16 };

int main(void) {
  ncclComm_t comm;
  int rank, nranks;
  OK(hocketCommFromEnvironment(&comm, NULL, -1, -1, NULL)); /* returns when all ranks have called it */
  OK(ncclCommUserRank(comm, &rank));
  OK(ncclCommCount(comm, &nranks));

  double *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
  for (int i = 0; i < COUNT; i++) in[i] = rank + i;
  OK(ncclAllReduce(in, out, COUNT, ncclFloat64, ncclMax, comm, NULL));
  for (int i = 0; i < COUNT; i++) expect("the maximum", rank, out[i], nranks - 1 + i);
  printf("rank %d of %d: the maximum over all ranks is right\n", rank, nranks);

  free(in);
  free(out);
  OK(ncclCommDestroy(comm));
  return 0;
}
