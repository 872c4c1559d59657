/* SPDX-License-Identifier: Apache-2.0 */
/* A process a rank, as a training job has them: the device by the local rank, an allreduce captured in a CUDA graph,
 * and the graph replayed with other data.
 *
 *   cc -Iinclude -I/usr/local/cuda/include examples/cuda/graph_ranks.c -o graph_ranks \
 *      -Lbuild/gcc/lib -lnccl -Wl,-rpath,$PWD/build/gcc/lib -L/usr/local/cuda/lib64 -lcudart
 *   export WORLD_SIZE=2 NCCL_COMM_ID=127.0.0.1:29400
 *   for r in 0 1; do RANK=$r LOCAL_RANK=$r ./graph_ranks & done; wait */
#include "cuda_example.h"

enum { COUNT = 1 << 16, STEPS = 10 };

static int number(const char *name) {
  const char *text = getenv(name);
  if (text) return atoi(text);
  fprintf(stderr, "%s is not set: start this as the comment at its top says\n", name);
  exit(1);
}

int main(void) {
  int rank = number("RANK"), nranks = number("WORLD_SIZE"), devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  if (devices == 0) {
    fprintf(stderr, "rank %d: this machine has no GPU\n", rank);
    return 1;
  }
  CUDA_OK(cudaSetDevice(number("LOCAL_RANK") % devices)); /* more ranks than GPUs share them */

  ncclUniqueId id;
  ncclComm_t comm;
  OK(ncclGetUniqueId(&id)); /* from NCCL_COMM_ID: the same on every rank */
  OK(ncclCommInitRank(&comm, nranks, id, rank));

  cudaStream_t stream;
  float *gradient;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaMalloc((void **)&gradient, COUNT * sizeof *gradient));

  cudaGraph_t graph;
  cudaGraphExec_t step;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(ncclAllReduce(gradient, gradient, COUNT, ncclFloat32, ncclAvg, comm, stream)); /* recorded, not run */
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&step, graph, 0));

  for (int i = 0; i < STEPS; i++) {
    fill(gradient, COUNT, (float)(2 * rank + i), stream);
    CUDA_OK(cudaGraphLaunch(step, stream));
    expect_all("an average", rank, gradient, COUNT, (float)(nranks - 1 + i), stream);
  }
  printf("rank %d of %d: %d replays averaged %d floats each\n", rank, nranks, STEPS, COUNT);

  CUDA_OK(cudaGraphExecDestroy(step));
  CUDA_OK(cudaGraphDestroy(graph));
  OK(ncclCommDestroy(comm));
  CUDA_OK(cudaFree(gradient));
  CUDA_OK(cudaStreamDestroy(stream));
  return 0;
}
