/* SPDX-License-Identifier: Apache-2.0 */
/* An allreduce in a kernel of one's own: one process, all GPUs, NVIDIA's device API (docs/device-api.md).
 *
 *   nvcc -std=c++17 -arch=sm_90 -I$NCCL/include allreduce.cu -o allreduce -L/opt/hocket/lib -lnccl
 *
 * $NCCL has NVIDIA's nccl.h and nccl_device.h, for example of the wheel nvidia-nccl-cu13; the library is Hocket's. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { BLOCKS = 8, THREADS = 256 };

#define CUDA(call)                                                                                                     \
  do {                                                                                                                 \
    cudaError_t code = (call);                                                                                         \
    if (code != cudaSuccess) {                                                                                         \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code));                                             \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define NCCL(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != ncclSuccess) {                                                                                       \
      printf("%s:%d: %s\n", __FILE__, __LINE__, ncclGetLastError(NULL));                                               \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* Every rank adds up its share of the elements from all ranks' memory, and stores the sums to all ranks. */
__global__ void allreduce(const __grid_constant__ ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, size_t count) {
  ncclCoopCta cta;
  ncclLsaBarrierSession<ncclCoopCta> barrier(cta, comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(cta, cuda::memory_order_acquire); /* the inputs of all ranks are there */
  const ncclTeam team = ncclTeamLsa(comm);
  const size_t threads = (size_t)team.nRanks * gridDim.x * blockDim.x;
  size_t i = ((size_t)team.rank * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += threads) {
    float sum = 0;
    for (int r = 0; r < team.nRanks; r++) sum += *(float *)ncclGetLsaPointer(in, i * sizeof(float), r);
    for (int r = 0; r < team.nRanks; r++) *(float *)ncclGetLsaPointer(out, i * sizeof(float), r) = sum;
  }
  barrier.sync(cta, cuda::memory_order_release); /* all outputs are complete */
}

int main(void) {
  const size_t count = 1 << 20, bytes = count * sizeof(float);
  int n = 0;
  CUDA(cudaGetDeviceCount(&n));
  std::vector<ncclComm_t> comms(n);
  std::vector<ncclWindow_t> in(n), out(n);
  std::vector<ncclDevComm> devices(n);
  std::vector<void *> inputs(n), outputs(n);
  std::vector<float> host(count);
  NCCL(ncclCommInitAll(comms.data(), n, NULL));

  NCCL(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(r));
    NCCL(ncclMemAlloc(&inputs[r], bytes));
    NCCL(ncclMemAlloc(&outputs[r], bytes));
    NCCL(ncclCommWindowRegister(comms[r], inputs[r], bytes, &in[r], NCCL_WIN_COLL_SYMMETRIC));
    NCCL(ncclCommWindowRegister(comms[r], outputs[r], bytes, &out[r], NCCL_WIN_COLL_SYMMETRIC));
  }
  NCCL(ncclGroupEnd());

  NCCL(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.lsaBarrierCount = BLOCKS;
    NCCL(ncclDevCommCreate(comms[r], &needs, &devices[r]));
  }
  NCCL(ncclGroupEnd());

  for (int r = 0; r < n; r++) {
    for (size_t i = 0; i < count; i++) host[i] = (float)(r + 1);
    CUDA(cudaSetDevice(r));
    CUDA(cudaMemcpy(inputs[r], host.data(), bytes, cudaMemcpyHostToDevice));
  }
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(r));
    allreduce<<<BLOCKS, THREADS>>>(devices[r], in[r], out[r], count);
    CUDA(cudaGetLastError());
  }
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(r));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(host.data(), outputs[r], bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++)
      if (host[i] != (float)(n * (n + 1) / 2)) {
        printf("GPU %d: element %zu is %g\n", r, i, host[i]);
        return 1;
      }
  }
  printf("%d GPUs added up %zu elements in a kernel\n", n, count);
  for (int r = 0; r < n; r++) {
    NCCL(ncclDevCommDestroy(comms[r], &devices[r]));
    NCCL(ncclCommWindowDeregister(comms[r], in[r]));
    NCCL(ncclCommWindowDeregister(comms[r], out[r]));
    NCCL(ncclMemFree(inputs[r]));
    NCCL(ncclMemFree(outputs[r]));
    NCCL(ncclCommDestroy(comms[r]));
  }
  return 0;
}
