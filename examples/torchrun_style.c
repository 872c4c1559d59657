/* SPDX-License-Identifier: Apache-2.0 */
/* One rank a process, started by torchrun or by anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
 *
 *   make examples
 *   torchrun --no-python --nproc-per-node 4 build/gcc/examples/torchrun_style
 *   export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400
 *   for r in 0 1; do RANK=$r build/gcc/examples/torchrun_style & done; wait
 *
 * MASTER_ADDR is rank 0's host.  Given to the library as NCCL_COMM_ID, an address is all that the ranks need to share:
 * every ncclGetUniqueId then makes the same id from it. */
#include <string.h>
#include "example.h"

enum { PART = 1000 };

static int number(const char *name) {
  const char *text = getenv(name);
  if (text) return atoi(text);
  fprintf(stderr, "%s is not set: start this with torchrun, or as the comment at its top says\n", name);
  exit(1);
}

int main(void) {
  int rank = number("RANK"), nranks = number("WORLD_SIZE"), port = number("MASTER_PORT");
  const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE"), *host = getenv("MASTER_ADDR");
  if (store && !strcmp(store, "True")) port++; /* torchrun itself listens on the port */
  if (!getenv("NCCL_COMM_ID")) {
    char address[300];
    snprintf(address, sizeof address, "%s:%d", host ? host : "127.0.0.1", port);
    setenv("NCCL_COMM_ID", address, 1); /* before the first call of the library, which reads its environment once */
  }

  ncclUniqueId id;
  ncclComm_t comm;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, nranks, id, rank));

  /* Each rank has its part; after the allgather everyone has all parts, in rank order. */
  int *part = malloc(PART * sizeof *part), *all = malloc((size_t)nranks * PART * sizeof *all);
  for (int i = 0; i < PART; i++) part[i] = rank * PART + i;
  OK(ncclAllGather(part, all, PART, ncclInt32, comm, NULL));
  for (int i = 0; i < nranks * PART; i++) expect("an element", rank, all[i], i);
  printf("rank %d of %d: gathered %d parts of %d integers\n", rank, nranks, nranks, PART);

  free(part);
  free(all);
  OK(ncclCommDestroy(comm));
  return 0;
}
