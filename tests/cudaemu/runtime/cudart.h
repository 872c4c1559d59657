/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the emulated CUDA runtime share: the driver's calls, the caller's device, its last error. */
#ifndef HK_CUDAEMU_CUDART_H
#define HK_CUDAEMU_CUDART_H
/* cuda_abi.h defines the driver's CUuuid; CUDA's own headers, if they are in use, must not define it again. */
struct CUuuid_st {
  char bytes[16];
};
#define CU_UUID_HAS_BEEN_DEFINED
#include <cuda_runtime.h>
#include "../../../src/base/cuda_abi.h"

#define CUDART_DECLARE(member, symbol, params) CUresult symbol params;
HK_CUDA_CALLS(CUDART_DECLARE, CUDART_DECLARE)

/* Makes device 0 the calling thread's, if it has none yet, as the runtime does in a thread's first call. */
CUresult cudart_ready(void);
/* Keeps an error for cudaGetLastError. */
cudaError_t cudart_note(CUresult code);
/* A runtime call that is one call of the driver. */
#define CUDART_CALL(driver)                                                                                            \
  do {                                                                                                                 \
    CUresult rc = cudart_ready();                                                                                      \
    return cudart_note(rc == CUDA_SUCCESS ? (driver) : rc);                                                            \
  } while (0)
#endif
