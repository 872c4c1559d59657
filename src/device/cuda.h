/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of the CUDA device share. */
#pragma once
#include <stdatomic.h>
#include "../base/cuda_abi.h"
#include "device.h"

typedef struct hk_cuda {
  hk_device base;
  CUdevice device;
  CUcontext context; /* the primary one, retained */
  /* The driver has refused a call because another context was current: from then on the current context is queried
   * first. */
  _Atomic(bool) wary;
  size_t granule; /* granularity of VMM allocations; 0: VMM is not used */
} hk_cuda;

/* The driver's functions; all NULL until hk_cuda_here() has returned true or a device is open. */
extern hk_cuda_calls hk_cu;

/* Reports an error with the driver's text for `code`. `format` names the attempted action. */
hk_status hk_cuda_fail(CUresult code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));
#define HK_CUDA_TRY(call, label, ...)                                                                                  \
  do {                                                                                                                 \
    CUresult hk_code = (call);                                                                                         \
    if (__builtin_expect(hk_code != CUDA_SUCCESS, 0)) {                                                                \
      rc = hk_cuda_fail(hk_code, __FILE__, __LINE__, __VA_ARGS__);                                                     \
      goto label;                                                                                                      \
    }                                                                                                                  \
  } while (0)
#define HK_CUDA_OR_RETURN(call, ...)                                                                                   \
  do {                                                                                                                 \
    const CUresult hk_code = (call);                                                                                   \
    if (__builtin_expect(hk_code != CUDA_SUCCESS, 0)) return hk_cuda_fail(hk_code, __FILE__, __LINE__, __VA_ARGS__);   \
  } while (0)

/* Makes the device's context current until the end of the block, or returns the error. RELAXED: works even while a
 * thread of the process captures a graph in the global mode. */
#define HK_CUDA_ENTER(base)                                                                                            \
  __attribute__((cleanup(hk_cuda_leave), unused)) bool hk_entered = false;                                             \
  HK_OR_RETURN(hk_cuda_enter((base), &hk_entered))
#define HK_CUDA_ENTER_RELAXED(base)                                                                                    \
  HK_CUDA_ENTER(base);                                                                                                 \
  __attribute__((cleanup(hk_cuda_set_capture_mode), unused)) int hk_mode = CU_STREAM_CAPTURE_MODE_RELAXED;             \
  hk_cuda_set_capture_mode(&hk_mode)
hk_status hk_cuda_enter(hk_device *d, bool *entered);
bool hk_cuda_is_current(const hk_device *d);
void hk_cuda_leave(const bool *entered);
void hk_cuda_set_capture_mode(int *mode);          /* sets the thread's mode; *mode becomes the previous mode */
int hk_cuda_attribute(CUdevice device, int which); /* 0 if the driver does not know it */

/* cuda_memory.c */
extern const hk_device_memory_ops hk_cuda_memory;
extern const hk_device_share_ops hk_cuda_share;
extern const hk_device_card_ops hk_cuda_card;
hk_status hk_cuda_release(hk_device *d, hk_memory *m);
hk_status hk_cuda_finish(hk_device *base);
size_t hk_cuda_granule(hk_cuda *d);
CUmemAllocationProp hk_cuda_host_properties(const hk_cuda *d); /* host memory on the device's NUMA node */
/* Maps physical memory at new addresses. */
hk_status hk_cuda_map(hk_cuda *d, CUmemGenericAllocationHandle handle, size_t bytes, bool for_peers, CUdeviceptr *out);
/* HK_MEMORY_VMM for any size; the device's context must be current. */
hk_status hk_cuda_alloc_mapped(hk_cuda *d, size_t bytes, size_t zeroed, hk_memory *out);

/* cuda_access.c */
/* Marks the device as used: it gets access to the mapped memory of the peers that it can reach. */
hk_status hk_cuda_access_begin(const hk_cuda *d);
void hk_cuda_access_end(const hk_cuda *d);
/* Maps physical memory at reserved addresses: for this device, or for all used devices that reach its memory. */
hk_status hk_cuda_map_at(const hk_cuda *d, CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes,
                         bool for_peers);
/* Maps host memory at reserved addresses, for the host and all used devices. */
CUresult hk_cuda_map_host_at(const hk_cuda *d, CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes);
CUresult hk_cuda_unmap(CUdeviceptr at, size_t bytes);

/* cuda_multicast.c */
extern const hk_device_multicast_ops hk_cuda_multicast;
CUresult hk_cuda_multicast_park(const hk_cuda *d, hk_memory *all);
CUresult hk_cuda_multicast_leave(const hk_cuda *d, hk_memory *all); /* releases `all` */

/* cuda_space.c */
extern const hk_device_space_ops hk_cuda_space;

/* cuda_stream.c */
extern const hk_device_stream_ops hk_cuda_stream;
extern const hk_device_order_ops hk_cuda_order;
extern const hk_device_time_ops hk_cuda_time;
extern const hk_device_graph_ops hk_cuda_graph;
extern const hk_device_word_ops hk_cuda_word;
extern const hk_device_kernel_ops hk_cuda_kernel;
hk_status hk_cuda_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q);
hk_status hk_cuda_wait(hk_device *d, hk_queue q);
hk_status hk_cuda_queue_new(hk_device *d, hk_queue *out);
