/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU kernels that are built into the library, or those of a file (gpu_image.h). */
#include "gpu_image.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "../base/fork.h"
#include "../base/param.h"

#ifdef HK_GPU_FATBIN /* the file's name: the Makefile defines it if nvcc has made one */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".hidden hk_gpu_fatbin\n.globl hk_gpu_fatbin\nhk_gpu_fatbin:\n"
        ".incbin \"" HK_GPU_FATBIN "\"\n"
        ".hidden hk_gpu_fatbin_end\n.globl hk_gpu_fatbin_end\nhk_gpu_fatbin_end:\n.byte 0\n"
        ".popsection\n");
extern const char hk_gpu_fatbin[], hk_gpu_fatbin_end[];
#endif

/* The file that replaces the built-in kernels is read once: modules may refer to it as long as they live. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static char *file_image;
static size_t file_bytes;

static const char *gpu_image_named_file(void) { return hk_param_str(HK_P_CUDA_IMAGE); }

static hk_status gpu_image_read_file(const char *name) {
  hk_status rc = HK_OK;
  char *image = NULL;
  FILE *f = fopen(name, "rb");
  if (!f) return HK_FAIL_ERRNO("HOCKET_CUDA_IMAGE=%s", name);
  long bytes = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
  if (bytes <= 0 || fseek(f, 0, SEEK_SET) != 0)
    HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "HOCKET_CUDA_IMAGE=%s is empty, or no file", name), out);
  image = malloc((size_t)bytes + 1);
  if (!image) HK_GIVE_UP(HK_FAIL_ERRNO("HOCKET_CUDA_IMAGE=%s: no memory for %ld bytes", name, bytes), out);
  const size_t got = fread(image, 1, (size_t)bytes, f);
  if (ferror(f)) HK_GIVE_UP(HK_FAIL_ERRNO("HOCKET_CUDA_IMAGE=%s cannot be read", name), out);
  if (got != (size_t)bytes)
    HK_GIVE_UP(
        HK_FAIL(HK_ERR_SYSTEM, "HOCKET_CUDA_IMAGE=%s ends after %zu of its %ld bytes: copy it anew", name, got, bytes),
        out);
  image[bytes] = 0; /* PTX is a string */
  file_image = image;
  file_bytes = (size_t)bytes;
  image = NULL;
out:
  free(image);
  fclose(f);
  return rc;
}

bool hk_gpu_image_here(void) {
#ifdef HK_GPU_FATBIN
  return true;
#else
  return gpu_image_named_file() != NULL;
#endif
}

bool hk_gpu_archs_fit(const char *archs, int sm) {
  char *end;
  for (long each; (each = strtol(archs, &end, 10)) > 0; archs = end)
    if (each / 10 == sm / 10 && each <= sm) return true;
  return false;
}

bool hk_gpu_image_fits(int sm) {
#ifdef HK_GPU_ARCHS
  return gpu_image_named_file() || hk_gpu_archs_fit(HK_GPU_ARCHS, sm);
#else
  (void)sm;
  return true; /* the file is the user's choice */
#endif
}

const char *hk_gpu_image_nvcc(void) {
#ifdef HK_GPU_NVCC
  return gpu_image_named_file() || !*HK_GPU_NVCC ? NULL : HK_GPU_NVCC;
#else
  return NULL;
#endif
}

/* Machine code runs on drivers of the same major version; PTX needs one that is as new as nvcc. */
void hk_gpu_image_advice(const char *nvcc, int driver, char *text, size_t bytes) {
  const int major = driver / 1000, minor = driver % 1000 / 10;
  if (!nvcc)
    snprintf(text, bytes, "HOCKET_CUDA_IMAGE must name kernels for this GPU, made by the nvcc of CUDA %d.%d or older",
             major, minor);
  else if (atoi(nvcc) > major)
    snprintf(
        text, bytes,
        "nvcc %s has made them, so they need a driver for CUDA %d.0 or newer, and this one is for %d.%d: update it, "
        "or build with a toolkit that it knows (make NVCC=/usr/local/cuda-%d.%d/bin/nvcc)",
        nvcc, atoi(nvcc), major, minor, major, minor);
  else
    snprintf(text, bytes,
             "nvcc %s has made them, and the driver is for CUDA %d.%d: make NVCC=yes GPU_ARCHS=... builds "
             "them for this GPU",
             nvcc, major, minor);
}

hk_status hk_gpu_image(const void **image, size_t *bytes) {
  hk_status rc = HK_OK;
  const char *name = gpu_image_named_file();
  if (name) {
    pthread_mutex_lock(&lock);
    if (!file_image) rc = gpu_image_read_file(name);
    *image = file_image;
    *bytes = file_bytes;
    pthread_mutex_unlock(&lock);
    return rc;
  }
#ifdef HK_GPU_FATBIN
  *image = hk_gpu_fatbin;
  *bytes = (size_t)(hk_gpu_fatbin_end - hk_gpu_fatbin);
  return rc;
#else
  *image = NULL;
  *bytes = 0;
  return HK_FAIL(HK_ERR_CUDA,
                 "this library has no GPU kernels inside: build it with make NVCC=yes (or a path), or name a "
                 "file of kernels in HOCKET_CUDA_IMAGE");
#endif
}
