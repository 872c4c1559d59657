/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams. Each has a thread that runs batches of calls in order; threads that wait for the stream run them,
 * too. */
#pragma once
#include <hocket.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;

/* True for stream arguments that mean "complete before return" on host memory: NULL and CUDA's two default handles. */
static inline bool hk_stream_is_null(cudaStream_t s) { return (uintptr_t)s <= 2; }
/* Copies the calls. HK_ERR_ARGUMENT if `stream` is not a stream of this library. */
hk_status hk_stream_enqueue(cudaStream_t stream, const struct hk_call *calls, size_t n);
/* HK_OK, or an error if `stream` is no stream of this library, or belongs to a process that forked this one. */
hk_status hk_stream_check(cudaStream_t stream, const char *who);
/* A call that waits in a group keeps its stream (`by` 1) until the group has ended (`by` -1). */
void hk_stream_hold(cudaStream_t stream, int by);
/* hocketStreamDestroy. HK_ERR_USAGE if an open group has calls for the stream. */
hk_status hk_stream_destroy(hocketStream_t stream);
/* A communicator's batches have turns, in the order of the calls to it. Waits until those before `turn` are over. */
hk_status hk_turn_wait(ncclComm_t c, uint64_t turn);
