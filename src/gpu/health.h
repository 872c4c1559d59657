/* SPDX-License-Identifier: Apache-2.0 */
/* Completion of launches: polling, draining, the watchdog, and failures that kernels report. */
#ifndef HK_GPU_HEALTH_H
#define HK_GPU_HEALTH_H
#include "../core/comm.h"

/* What the watchdog saw at its last look. */
typedef struct hk_gpu_health {
  uint64_t launches, seen_ns, reported_ns;
} hk_gpu_health;

/* Before a call that is not captured: waits until the GPU is no more than the limit of hk_gpu_ahead behind. */
hk_status hk_gpu_keep_near(ncclComm_t c);
/* Waits until all launches have ended, with or without an error.  The work of a failed communicator may be queued
 * behind other work that never ends: the wait is given up after some seconds. */
void hk_gpu_drain(ncclComm_t c);
/* Reports launches that do not end, as hk_watch does for waits on the host. Returns an error if a kernel has failed, or
 * if the watchdog must end the communicator.  From any thread. */
hk_status hk_gpu_watch(ncclComm_t c);
/* Returns an error that a kernel has reported; with `ask` also one that the driver knows, which costs a driver call. */
hk_status hk_gpu_poll_health(ncclComm_t c, bool ask);
#endif
