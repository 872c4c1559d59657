/* SPDX-License-Identifier: Apache-2.0 */
/* Access to the GPU kernels in the library. */
#ifndef HK_KERNELS_GPU_IMAGE_H
#define HK_KERNELS_GPU_IMAGE_H
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

bool hk_gpu_image_here(void); /* built in, or named */
/* The image for the device's `load`: kernels for every supported GPU. HOCKET_CUDA_IMAGE names a file that is used in
 * their place and stays in memory. HK_ERR_CUDA if the library was built without nvcc. */
hk_status hk_gpu_image(const void **image, size_t *bytes);
/* Has it code for a GPU of that generation (90: sm_90)?  Else the driver must compile PTX, which takes some 20 s. */
bool hk_gpu_image_fits(int sm);
/* The same for a list of generations, as "75 80". */
bool hk_gpu_archs_fit(const char *archs, int sm);
/* The version of nvcc that has made the built-in kernels, as "13.0"; NULL: they are not those, or it is not known. */
const char *hk_gpu_image_nvcc(void);
/* What to do if a driver for CUDA `driver` (12080: 12.8) does not take kernels of that nvcc; NULL: unknown. */
void hk_gpu_image_advice(const char *nvcc, int driver, char *text, size_t bytes);
#endif
