/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU kernels as the library carries them. */
#ifndef HK_KERNELS_GPU_IMAGE_H
#define HK_KERNELS_GPU_IMAGE_H
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

bool hk_gpu_image_here(void); /* built in, or named */
/* What the device's `load` takes: kernels for every supported GPU.  HOCKET_CUDA_IMAGE names a file to read instead, which
 * stays in memory.  HK_ERR_CUDA where the library was built without nvcc. */
hk_status hk_gpu_image(const void **image, size_t *bytes);
#endif
