/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: two processes add up one number each.
 *
 *   cc -Iinclude examples/first.c -Lbuild/gcc/lib -lnccl -Wl,-rpath,$PWD/build/gcc/lib -o first && ./first
 *
 * This needs `make lib`; `make examples` builds all of them.  After `make install`:
 *
 *   export PKG_CONFIG_PATH=/opt/hocket/lib/pkgconfig
 *   cc examples/first.c -o first $(pkg-config --cflags --libs nccl) -Wl,-rpath,/opt/hocket/lib && ./first */
#include <nccl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  ncclUniqueId id; /* all ranks of a communicator must have the same one */
  ncclGetUniqueId(&id);
  int rank = fork() == 0; /* two processes: rank 0, and its child, rank 1 */
  float mine = rank + 1, sum = 0;
  ncclComm_t comm;
  if (ncclCommInitRank(&comm, 2, id, rank) != ncclSuccess ||
      ncclAllReduce(&mine, &sum, 1, ncclFloat, ncclSum, comm, NULL) != ncclSuccess) {
    fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(NULL));
    return 1;
  }
  printf("rank %d gave %g and got the sum %g\n", rank, mine, sum);
  ncclCommDestroy(comm);
  if (rank == 0) wait(NULL);
  return 0;
}
