/* SPDX-License-Identifier: Apache-2.0 */
/* One process, all GPUs, a stream each: the form in which most people meet NCCL.
 *
 *   cc -Iinclude -I/usr/local/cuda/include examples/cuda/one_process.c -o one_process \
 *      -Lbuild/gcc/lib -lnccl -Wl,-rpath,$PWD/build/gcc/lib -L/usr/local/cuda/lib64 -lcudart
 *   ./one_process */
#include "cuda_example.h"

enum { MOST = 16, COUNT = 1 << 16 };

int main(void) {
  int n = 0;
  CUDA_OK(cudaGetDeviceCount(&n));
  if (n > MOST) n = MOST;
  if (n == 0) {
    fprintf(stderr, "this machine has no GPU\n");
    return 1;
  }
  ncclComm_t comm[MOST];
  cudaStream_t stream[MOST];
  float *in[MOST], *out[MOST];
  for (int d = 0; d < n; d++) {
    CUDA_OK(cudaSetDevice(d));
    CUDA_OK(cudaStreamCreateWithFlags(&stream[d], cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc((void **)&in[d], COUNT * sizeof(float)));
    CUDA_OK(cudaMalloc((void **)&out[d], COUNT * sizeof(float)));
    fill(in[d], COUNT, (float)(d + 1), stream[d]);
  }
  OK(ncclCommInitAll(comm, n, NULL)); /* rank d on device d */

  /* One thread speaks for all ranks, so it says all before anything waits: a group. */
  OK(ncclGroupStart());
  for (int d = 0; d < n; d++) OK(ncclAllReduce(in[d], out[d], COUNT, ncclFloat32, ncclSum, comm[d], stream[d]));
  OK(ncclGroupEnd());
  for (int d = 0; d < n; d++) {
    CUDA_OK(cudaSetDevice(d));
    expect_all("a sum", d, out[d], COUNT, (float)(n * (n + 1) / 2), stream[d]);
  }

  /* A neighbour exchange, in the same streams. */
  OK(ncclGroupStart());
  for (int d = 0; d < n; d++) {
    OK(ncclSend(in[d], COUNT, ncclFloat32, (d + 1) % n, comm[d], stream[d]));
    OK(ncclRecv(out[d], COUNT, ncclFloat32, (d + n - 1) % n, comm[d], stream[d]));
  }
  OK(ncclGroupEnd());
  for (int d = 0; d < n; d++) {
    CUDA_OK(cudaSetDevice(d));
    expect_all("a neighbour's value", d, out[d], COUNT, (float)((d + n - 1) % n + 1), stream[d]);
    CUDA_OK(cudaFree(in[d]));
    CUDA_OK(cudaFree(out[d]));
    CUDA_OK(cudaStreamDestroy(stream[d]));
    OK(ncclCommDestroy(comm[d]));
  }
  printf("%d GPUs added up and exchanged %d floats\n", n, COUNT);
  return 0;
}
