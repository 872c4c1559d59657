/* SPDX-License-Identifier: Apache-2.0 */
/* What NVIDIA's nccl.h uses of CUDA's <cuda_runtime.h>, on machines without it. */
#pragma once
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
