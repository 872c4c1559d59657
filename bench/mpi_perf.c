/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of our perf binaries with MPI, timed the same way, for comparisons: floats, out of place.
 *
 *   mpirun -np N mpi_perf [-w] OPERATION BATCHES SECONDS BYTES ...
 *
 * A line for each batch and size: bytes, and microseconds an operation averaged over the ranks.  A batch has as many
 * operations as take about SECONDS.  With -w the input is written before each of them, and a barrier follows; neither
 * is timed.  Sizes are counted as in the table of the perf binaries: where a buffer is cut into one block a rank, BYTES
 * is the whole of it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1024 };

typedef struct run {
  float *in, *out;
  int whole, block; /* elements: the vector, and one block a rank, rounded down to 16 bytes */
  int rank, nranks;
  int rewrite;                            /* -w */
  int counts[MOST_RANKS], at[MOST_RANKS]; /* of blocks whose lengths differ */
} run;

static void all_reduce(const run *r) { MPI_Allreduce(r->in, r->out, r->whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void all_gather(const run *r) {
  MPI_Allgather(r->in, r->block, MPI_FLOAT, r->out, r->block, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatter(const run *r) {
  MPI_Reduce_scatter_block(r->in, r->out, r->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
/* MPI's broadcast is in place: the nearest to ours. */
static void broadcast(const run *r) { MPI_Bcast(r->out, r->whole, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void alltoall(const run *r) {
  MPI_Alltoall(r->in, r->block, MPI_FLOAT, r->out, r->block, MPI_FLOAT, MPI_COMM_WORLD);
}
static void sendrecv(const run *r) {
  int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
  MPI_Sendrecv(r->in, r->whole, MPI_FLOAT, next, 0, r->out, r->whole, MPI_FLOAT, before, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

/* As ramp in src/perf/operations.c: blocks that grow evenly. */
static int ramp(const run *r, int block) {
  long n = r->nranks, parts = n * (n + 1) / 2, before = (long)block * (block + 1) / 2;
  return (int)(r->whole / parts * before + r->whole % parts * before / parts);
}
static void ramps(run *r, int first) {
  for (int p = 0, next = 0; p < r->nranks; next += r->counts[p++]) {
    int block = (first + p) % r->nranks;
    r->counts[p] = ramp(r, block + 1) - ramp(r, block);
    r->at[p] = next;
  }
}
static void all_gatherv(const run *r) {
  MPI_Allgatherv(r->in, r->counts[r->rank], MPI_FLOAT, r->out, r->counts, r->at, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatterv(const run *r) {
  MPI_Reduce_scatter(r->in, r->out, r->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void alltoallv(const run *r) {
  MPI_Alltoallv(r->in, r->counts, r->at, MPI_FLOAT, r->out, r->counts, r->at, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct {
  const char *name;
  void (*call)(const run *r);
} operations[] = {{"all_reduce", all_reduce},
                  {"all_gather", all_gather},
                  {"reduce_scatter", reduce_scatter},
                  {"broadcast", broadcast},
                  {"alltoall", alltoall},
                  {"sendrecv", sendrecv},
                  {"all_gatherv", all_gatherv},
                  {"reduce_scatterv", reduce_scatterv},
                  {"alltoallv", alltoallv}};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

static double batch(const run *r, void (*call)(const run *), long iterations) {
  double seconds, sum;
  call(r);
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime(), apart = 0;
  for (long i = 0; i < iterations; i++) {
    if (r->rewrite) {
      const double from = MPI_Wtime();
      memset(call == broadcast ? r->out : r->in, 0, (size_t)r->whole * 4);
      MPI_Barrier(MPI_COMM_WORLD);
      apart += MPI_Wtime() - from;
    }
    call(r);
  }
  seconds = (MPI_Wtime() - begin - apart) / (double)iterations;
  MPI_Allreduce(&seconds, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum / r->nranks;
}

/* Grows the number until a batch takes a tenth of the time, then extrapolates.  All ranks see the same averages. */
static long iterations_for(const run *r, void (*call)(const run *), double seconds) {
  long n = 1;
  for (;;) {
    double one = batch(r, call, n);
    double wanted = seconds / one;
    if (one * (double)n > seconds / 10 || n >= 1 << 20) return wanted < 2 ? 2 : wanted > 1e6 ? 1000000 : (long)wanted;
    n *= 4;
  }
}

static void *floats(long bytes) {
  float *p = aligned_alloc(4096, ((size_t)bytes + 4095) / 4096 * 4096);
  for (long i = 0; p && i < bytes / 4; i++) p[i] = (float)(i % 7);
  return p;
}

static void measure(run *r, void (*call)(const run *), int batches, double seconds, long bytes) {
  r->whole = (int)(bytes / 4);
  r->block = r->whole / r->nranks & ~3;
  ramps(r, call == alltoallv ? r->rank : 0);
  r->in = floats(bytes), r->out = floats(bytes);
  if (!r->in || !r->out) MPI_Abort(MPI_COMM_WORLD, 3);
  long n = iterations_for(r, call, seconds);
  for (int b = 0; b < batches; b++) {
    double us = batch(r, call, n) * 1e6;
    if (r->rank == 0) printf("%ld %.4f\n", bytes, us), fflush(stdout);
  }
  free(r->in), free(r->out);
}

int main(int argc, char **argv) {
  run r;
  void (*call)(const run *) = NULL;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &r.nranks);
  r.rewrite = argc > 1 && !strcmp(argv[1], "-w");
  argv += r.rewrite, argc -= r.rewrite;
  for (int i = 0; i < OPERATIONS && argc > 4; i++)
    if (!strcmp(argv[1], operations[i].name)) call = operations[i].call;
  if (!call) {
    if (r.rank == 0) fprintf(stderr, "usage: mpi_perf [-w] OPERATION BATCHES SECONDS BYTES ...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (int a = 4; a < argc; a++) measure(&r, call, atoi(argv[2]), atof(argv[3]), atol(argv[a]));
  MPI_Finalize();
  return 0;
}
