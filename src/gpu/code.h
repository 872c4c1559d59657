/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels on a device, and a communicator's share of its blocks. */
#pragma once
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "../device/device.h"

struct hk_backend_device; /* core/backend.h */

/* ---- code.c ---- */
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

bool hk_gpu_choose(int *device); /* as in hk_process_ops */
int hk_gpu_count(void);          /* devices that communicators can use */

/* As in hk_diagnosis_ops. */
void hk_gpu_inspect(ncclComm_t c, struct hk_backend_device *out);
hk_status hk_gpu_copy(ncclComm_t c, void *to, const void *from, size_t bytes);

hk_status hk_gpu_code_get(int ordinal, hk_gpu_code **out);
void hk_gpu_code_put(hk_gpu_code *code);

/* ---- share.c ---- */
/* Facts about the ranks' GPUs from which a rank computes its share; equal on all ranks. */
typedef struct hk_gpu_share_facts {
  uint64_t resident; /* blocks that the smallest of the GPUs runs at once; registers and shared memory limit them */
  uint64_t ranks;    /* the largest number of the communicator's ranks on one GPU */
  uint64_t limit;    /* limit by the user's maxCTAs or by the network; 0: none */
  uint64_t sm;       /* compute capability of the oldest GPU */
} hk_gpu_share_facts;
/* The most blocks of one rank's launch. */
unsigned hk_gpu_share(const hk_gpu_share_facts *capacity);
/* How many communicators like this one may run their kernels at the same time, in any order.  At least four if the GPU
 * has a block for each of their ranks. */
unsigned hk_gpu_overlap(const hk_gpu_share_facts *capacity);
/* Warns, once a process, if the device has too few hardware queues for the streams of `ranks` ranks of this process. */
void hk_gpu_check_queues(int ranks, int device);
