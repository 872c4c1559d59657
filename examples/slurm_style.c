/* SPDX-License-Identifier: Apache-2.0 */
/* One rank a process, started by Slurm's srun, which sets SLURM_PROCID and SLURM_NTASKS.
 *
 *   make examples
 *   srun -N 2 --ntasks-per-node 4 build/gcc/examples/slurm_style
 *
 * Rank 0 runs on the first node of the job's list, so its address is known to all without any exchange; the job's
 * number gives a port that other jobs on the node do not use. */
#include <string.h>
#include "example.h"

enum { COUNT = 4096 };

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

/* "node[07-09,12],other" begins with node07. */
static void first_node(const char *list, char *host, size_t room) {
  size_t prefix = strcspn(list, ",[");
  const char *digits = list[prefix] == '[' ? list + prefix + 1 : "";
  snprintf(host, room, "%.*s%.*s", (int)prefix, list, (int)strspn(digits, "0123456789"), digits);
}

int main(void) {
  int rank = number("SLURM_PROCID", 0), nranks = number("SLURM_NTASKS", 1);
  const char *nodes = getenv("SLURM_JOB_NODELIST");
  if (!getenv("NCCL_COMM_ID")) {
    char host[256], address[300];
    first_node(nodes ? nodes : "127.0.0.1", host, sizeof host);
    snprintf(address, sizeof address, "%s:%d", host, 20000 + number("SLURM_JOB_ID", 0) % 10000);
    setenv("NCCL_COMM_ID", address, 1); /* before the first call of the library, which reads its environment once */
  }

  ncclUniqueId id;
  ncclComm_t comm;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, nranks, id, rank));

  /* The whole vector is reduced, and each rank keeps its own block of the result. */
  size_t total = (size_t)nranks * COUNT;
  float *in = malloc(total * sizeof *in), *mine = malloc(COUNT * sizeof *mine);
  for (size_t i = 0; i < total; i++) in[i] = (float)(i / COUNT);
  OK(ncclReduceScatter(in, mine, COUNT, ncclFloat32, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) expect("an element", rank, (double)mine[i], (double)rank * nranks);
  printf("rank %d of %d: its block of the sum holds %g\n", rank, nranks, (double)mine[0]);

  free(in);
  free(mine);
  OK(ncclCommDestroy(comm));
  return 0;
}
