/* SPDX-License-Identifier: Apache-2.0 */
/* One rank a process, started by mpirun, with no MPI linked: Open MPI and MPICH give each process its rank and the
 * number of processes in its environment.
 *
 *   make examples
 *   mpirun -np 4 --oversubscribe build/gcc/examples/mpi_style    # Open MPI, on fewer than four cores, too
 *   mpirun -np 4 -genv NCCL_DEBUG WARN build/gcc/examples/mpi_style    # MPICH
 *   mpirun -np 4 --host a:2,b:2 -x NCCL_COMM_ID=a:29400 build/gcc/examples/mpi_style    # several hosts, rank 0 on a
 *
 * Before they can communicate, all ranks need the unique id that rank 0 makes.  A program that links MPI sends it with
 * MPI_Bcast (mpi/bcast.c).  Here a file does it, or NCCL_COMM_ID, which makes the id from an address and thus equal
 * everywhere. */
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "example.h"

enum { COUNT = 1 << 16 };

static int from_environment(const char *open_mpi, const char *mpich, int otherwise) {
  const char *text = getenv(open_mpi) ? getenv(open_mpi) : getenv(mpich);
  return text ? atoi(text) : otherwise;
}

/* The processes of one mpirun on one host are children of one process: its number makes the name unique. */
static void id_path(char *path, size_t room) {
  const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
  snprintf(path, room, "%s/hocket-example-%d", folder, (int)getppid());
}

static void publish(const ncclUniqueId *id, const char *path) {
  char temporary[600];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE *f = fopen(temporary, "w");
  if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) || rename(temporary, path)) {
    perror(path);
    exit(1);
  }
}

static void fetch(ncclUniqueId *id, const char *path) {
  struct timespec pause = {.tv_nsec = 10000000};
  for (int tries = 0; tries < 3000; tries++) {
    FILE *f = fopen(path, "r");
    if (f && fread(id, sizeof *id, 1, f) == 1) {
      fclose(f);
      return;
    }
    if (f) fclose(f);
    nanosleep(&pause, NULL);
  }
  fprintf(stderr, "no id in %s after 30 s; on several hosts set NCCL_COMM_ID\n", path);
  exit(1);
}

int main(void) {
  int rank = from_environment("OMPI_COMM_WORLD_RANK", "PMI_RANK", 0);
  int nranks = from_environment("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", 1);
  int by_file = !getenv("NCCL_COMM_ID");
  char path[512];
  id_path(path, sizeof path);

  ncclUniqueId id;
  if (rank == 0 || !by_file) OK(ncclGetUniqueId(&id));
  if (by_file && rank == 0) publish(&id, path);
  if (by_file && rank != 0) fetch(&id, path);

  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, nranks, id, rank)); /* returns when all ranks have called it */
  if (by_file && rank == 0) remove(path);

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
