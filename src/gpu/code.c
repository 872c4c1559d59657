/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of GPUs and of kernels for them. Loading of the kernels, once a device for all communicators of the
 * process. */
#include "code.h"
#include <stdio.h>
#include <stdlib.h>
#include "../base/array.h"
#include "../base/fork.h"
#include "../base/log.h"
#include "../core/backend.h"
#include "../kernels/cuda/work.h"
#include "../kernels/gpu_image.h"
#include "../topo/detect.h"
#include "gpu.h"

int hk_gpu_count(void) {
  int devices;
  if (!hk_cuda_here(&devices)) return 0;
  if (!hk_gpu_image_here()) {
    HK_INFO_ONCE(HK_SUB_INIT,
                 "%d GPUs are here, but this library has no kernels (make NVCC=yes): communicators "
                 "work on host memory",
                 devices);
    return 0;
  }
  return devices;
}

bool hk_gpu_choose(int *device) { return (*device = hk_gpu_count() > 0 ? hk_cuda_current() : -1) >= 0; }

/* Global, because communicators have no other object in common. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(table_lock);
static hk_gpu_code *codes;

static hk_status code_block_threads(hk_device *d, void *function, unsigned *out) {
  hk_status rc = d->ops->kernel->block_threads(d, function, out);
  if (*out > HK_GPU_THREADS) *out = HK_GPU_THREADS;
  *out &= ~31u; /* whole warps */
  return rc;
}
/* A kernel's first launch may wait for all work on the device, under the context's lock: the driver loads the code and
 * may allocate local memory for it. So each kernel runs once with no work, before any rank's kernel waits for
 * another's. */
static hk_status code_prime(const hk_gpu_code *k) {
  static const union {
    hk_gpu_batch batch;
    hk_gpu_small_batch small;
    hk_gpu_transfers transfers;
  } nothing;
  void *const functions[] = {k->batch, k->small, k->transfers};
  hk_status rc = HK_OK;
  hk_device *d = k->device;
  hk_queue q;
  HK_OR_RETURN(d->ops->stream->create(d, &q));
  for (size_t i = 0; i < HK_ARRAY_LENGTH(functions); i++) {
    const hk_kernel_launch l = {.function = functions[i], .blocks = 1, .threads = 32, .param = &nothing};
    HK_TRY(d->ops->kernel->launch(d, &l, q), out);
  }
  rc = d->ops->wait(d, q);
out:
  (void)d->ops->stream->free(d, q); /* the first failure is reported */
  return rc;
}

static hk_status code_load(hk_gpu_code *k) {
  const void *image;
  size_t bytes;
  hk_device *d = k->device;
  HK_OR_RETURN(hk_gpu_image(&image, &bytes));
  if (!hk_gpu_image_fits(d->limits.sm))
    HK_WARN("the library has no kernels for sm_%d: the driver compiles them from PTX, which takes some 20 s the first "
            "time (it keeps the result under CUDA_CACHE_PATH); make NVCC=yes GPU_ARCHS=%d builds them in",
            d->limits.sm, d->limits.sm);
  if (d->ops->kernel->load(d, image, &k->module) != HK_OK) {
    char what[400], advice[320];
    snprintf(what, sizeof what, "%s", hk_last_error());
    hk_gpu_image_advice(hk_gpu_image_nvcc(), d->limits.driver, advice, sizeof advice);
    return HK_FAIL(HK_ERR_CUDA, "%s. %s", what, advice);
  }
  HK_OR_RETURN(d->ops->kernel->function(d, k->module, HK_GPU_RUN_BATCH, &k->batch));
  HK_OR_RETURN(d->ops->kernel->function(d, k->module, HK_GPU_RUN_SMALL, &k->small));
  HK_OR_RETURN(d->ops->kernel->function(d, k->module, HK_GPU_RUN_TRANSFERS, &k->transfers));
  HK_OR_RETURN(code_block_threads(d, k->batch, &k->threads));
  HK_OR_RETURN(code_block_threads(d, k->small, &k->small_threads));
  HK_OR_RETURN(d->ops->kernel->resident(d, k->batch, k->threads, 0, &k->resident));
  return code_prime(k);
}

static void code_drop_code(hk_gpu_code *k) {
  if (k->module) (void)k->device->ops->kernel->unload(k->device, k->module);
  if (k->device) {
    (void)k->device->ops->order->free(k->device, &k->order);
    (void)k->device->ops->order->free(k->device, &k->captured);
    k->device->ops->close(k->device);
  }
  pthread_mutex_destroy(&k->lock);
  free(k);
}

hk_status hk_gpu_code_get(int ordinal, hk_gpu_code **out) {
  hk_status rc = HK_OK;
  pthread_mutex_lock(&table_lock);
  hk_gpu_code *k = codes;
  while (k && k->ordinal != ordinal) k = k->next;
  if (!k) {
    k = calloc(1, sizeof *k);
    if (!k) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the kernels of device %d", ordinal), out);
    k->ordinal = ordinal;
    pthread_mutex_init(&k->lock, NULL);
    HK_TRY(hk_cuda_open(ordinal, &k->device), undo);
    HK_TRY(code_load(k), undo);
    k->next = codes;
    codes = k;
  }
  k->refs++;
  *out = k;
out:
  pthread_mutex_unlock(&table_lock);
  return rc;
undo:
  code_drop_code(k);
  goto out;
}

void hk_gpu_code_put(hk_gpu_code *k) {
  if (!k) return;
  pthread_mutex_lock(&table_lock);
  if (--k->refs == 0) {
    HK_LIST_REMOVE(codes, k, next);
    code_drop_code(k);
  }
  pthread_mutex_unlock(&table_lock);
}

/* ---- diagnosis ---- */

void hk_gpu_inspect(ncclComm_t c, hk_backend_device *out) {
  const hk_device_limits *l = &hk_gpu_of(c)->device->limits;
  hk_nvml_gpu seen;
  snprintf(out->name, sizeof out->name, "%s", l->name);
  out->count = hk_gpu_count();
  out->cuda = l->driver;
  if (!hk_nvml_look(l->bus_id, &seen)) return;
  snprintf(out->driver, sizeof out->driver, "%s", seen.driver);
  out->links = seen.links;
  out->links_up = seen.links_up;
  out->ecc_known = seen.ecc_known;
  out->corrected = seen.corrected;
  out->uncorrected = seen.uncorrected;
}

hk_status hk_gpu_copy(ncclComm_t c, void *to, const void *from, size_t bytes) {
  return hk_device_copy(hk_gpu_of(c)->device, to, from, bytes, NULL);
}
