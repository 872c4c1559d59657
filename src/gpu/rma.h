/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on GPUs: rma/rma.h has those on host memory. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;
struct hk_queue_state; /* device/device.h */

/* By all ranks, with the first window or at the end of init: makes the words of the signals. Later calls do nothing. */
hk_status hk_gpu_rma_begin(ncclComm_t c);
/* Enqueues a put, a signal or a wait on the call's stream, whose state is `s`. */
hk_status hk_gpu_rma_enqueue(const struct hk_call *call, const struct hk_queue_state *s);
/* Releases the streams of a failed communicator that wait for signals.  Repeat it until they have ended.  True if it
 * may have released a captured wait. */
bool hk_gpu_rma_free(ncclComm_t c);
/* The same for replays of captured graphs, whose end cannot be queried: repeats until it has released none for a
 * while. */
void hk_gpu_rma_free_replays(ncclComm_t c);
void hk_gpu_rma_end(ncclComm_t c);
/* On the proxy's thread: writes a word of this rank's signals from rank `from`. `word` is an index from the words of
 * the first signal on. False: no such word. */
bool hk_gpu_rma_come(ncclComm_t c, int from, uint32_t word);
