/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA examples need in addition to ../example.h: CUDA_OK(call), and buffers that are filled and looked at
 * from the host. */
#ifndef CUDA_EXAMPLE_H
#define CUDA_EXAMPLE_H
#include <cuda_runtime.h>
#include "../example.h"

#define CUDA_OK(call)                                                                                                  \
  do {                                                                                                                 \
    cudaError_t code_ = (call);                                                                                        \
    if (code_ != cudaSuccess) {                                                                                        \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code_));                                                   \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* Sets `count` floats on the current device to `value`, in the stream's order. */
static inline void fill(float *device, size_t count, float value, cudaStream_t stream) {
  float *host = malloc(count * sizeof *host);
  for (size_t i = 0; i < count; i++) host[i] = value;
  CUDA_OK(cudaMemcpyAsync(device, host, count * sizeof *host, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaStreamSynchronize(stream)); /* the copy may read the host's memory until then */
  free(host);
}

/* Ends the program unless all of the device's `count` floats are `want`. */
static inline void expect_all(const char *what, int rank, const float *device, size_t count, float want,
                              cudaStream_t stream) {
  float *host = malloc(count * sizeof *host);
  CUDA_OK(cudaMemcpyAsync(host, device, count * sizeof *host, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < count; i++) expect(what, rank, (double)host[i], (double)want);
  free(host);
}
#endif
