/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_CODE_H
#define HK_GPU_CODE_H
#include <pthread.h>
#include "../device/device.h"

/* The kernels on a device; the communicators of the process share them. */
typedef struct hk_gpu_code {
  int ordinal, refs;
  hk_device *device;
  void *module, *batch, *small, *transfers;
  unsigned threads, small_threads,
      resident;         /* threads of a block, for each kernel; resident: blocks that the device runs at once */
  pthread_mutex_t lock; /* protects `order` and `captured`: the order of the communicators with launchOrderImplicit */
  hk_queue_order order, captured;
  struct hk_gpu_code *next;
} hk_gpu_code;

/* The device for a communicator that this thread creates; -1: host memory. */
int hk_gpu_choose(void);
int hk_gpu_count(void); /* devices that communicators can use */

hk_status hk_gpu_code_get(int ordinal, hk_gpu_code **out);
void hk_gpu_code_put(hk_gpu_code *code);
#endif
