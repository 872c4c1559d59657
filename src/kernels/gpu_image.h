/* SPDX-License-Identifier: Apache-2.0 */
/* Access to the GPU kernels in the library. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

bool hk_gpu_image_here(void); /* true if kernels are built in, or a file is named */
/* The image for the device's `load`: kernels for every supported GPU. HOCKET_CUDA_IMAGE names a file that is used in
 * their place and stays in memory. HK_ERR_CUDA if the library was built without nvcc. */
hk_status hk_gpu_image(const void **image, size_t *bytes);
/* True if it has machine code for that GPU generation (90: sm_90).  Else the driver must compile PTX, which takes about
 * 20 s. */
bool hk_gpu_image_fits(int sm);
/* The same for a list of generations such as "75 80". */
bool hk_gpu_archs_fit(const char *archs, int sm);
/* The nvcc version of the built-in kernels, such as "13.0"; NULL: unknown, or other kernels are used. */
const char *hk_gpu_image_nvcc(void);
/* `text` gets advice for a driver of CUDA version `driver` (12080: 12.8) that refuses kernels of that nvcc. `nvcc`
 * NULL: unknown. */
void hk_gpu_image_advice(const char *nvcc, int driver, char *text, size_t bytes);
