/* SPDX-License-Identifier: Apache-2.0 */
/* What NVIDIA's nccl_device headers use of CUDA's <cuda.h>, on machines without it. */
#pragma once
typedef enum { CU_MEM_LOCATION_TYPE_OF_TESTS } CUmemLocationType;
