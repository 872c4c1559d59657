/* SPDX-License-Identifier: Apache-2.0 */
/* Runs checked calls on host memory to their end, on the calling thread. */
#pragma once
#include <nccl.h>
#include <stddef.h>
#include "../base/status.h"

struct hk_call;

/* Runs one call: the fast path. */
hk_status hk_run_one(const struct hk_call *call);
/* Runs the calls of a group, given in the order in which they were made, of any communicators. The collectives of one
 * communicator run in this order. Its sends and receives, and the other communicators, run at the same time. */
hk_status hk_run_group(const struct hk_call *calls, size_t n);
/* If a host has as many ranks as cores, or more, and no launcher has bound the ranks: moves the calling thread to this
 * rank's core in a round-robin distribution. The thread is not pinned there. The kernel rarely moves threads that yield
 * to each other: if three of four ranks woke up on one of two cores after the init, they would stay there. */
void hk_run_spread(ncclComm_t c);
