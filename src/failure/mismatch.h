/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Mismatched calls. The rank that detects a mismatch asks the others which call they made, and names the ranks whose
 * call differs from that of most ranks. Its verdict shows both calls and ends the operation on all ranks
 * (precedence.h).
 */
#pragma once
#include <nccl.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;
struct hk_exec; /* kernels/exec.h */

/* The call that a rank made as the operation under examination. */
typedef struct hk_call_report {
  int rank;
  uint32_t signature;
  char call[160];
} hk_call_report;

/* Finds the outlier rank among n reports. Returns the index of the lowest rank whose call differs from the majority's;
 * *right: the index of a report of the majority. Without a majority, or with two ranks only, *right is the report of
 * the lowest rank, and the result is the lowest rank that differs from it. -1 if all agree. */
int hk_mismatch_outlier(const hk_call_report *v, int n, int *right);
/* Writes the text of the verdict; `outlier` and `right` are from hk_mismatch_outlier. */
void hk_mismatch_text(const hk_call_report *v, int n, int outlier, int right, uint64_t operation, char *text,
                      size_t bytes);

/* What follows raises the verdict if calls do not match. Functions with a status then return HK_ERR_USAGE. */

/* This rank is in `call` and has found that rank `peer` is in another call. Raises the verdict, unless another rank was
 * first. */
hk_status hk_mismatch_found(ncclComm_t c, const struct hk_call *call, int peer);
/* The same after a message that does not fit the execution `x`: wrong signature or size. x->bad_peer is its sender. */
void hk_mismatch_slot(ncclComm_t c, const struct hk_call *call, const struct hk_exec *x);
/* The same for calls on a GPU, where the message from `peer` does not say to which call it belongs. From any thread. */
hk_status hk_mismatch_message(ncclComm_t c, int peer);
/* Compares the last calls on GPUs of all ranks with this rank's. From any thread. */
hk_status hk_mismatch_look_back(ncclComm_t c);
/* This rank receives `bytes` in `call`, but has got a piece of `piece` bytes from a message of another size. Raises the
 * verdict. */
void hk_mismatch_transfer(ncclComm_t c, const struct hk_call *call, size_t bytes, uint32_t piece);
/* Asks some ranks whether they are in this rank's call, and waits a moment for ranks that have not begun theirs. */
hk_status hk_mismatch_compare(ncclComm_t c, const struct hk_call *call);
hk_status hk_mismatch_look(ncclComm_t c); /* by the status pages of this host */
