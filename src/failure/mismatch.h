/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks that disagree about a call.  The rank that finds it asks what all ranks called, names those that differ from
 * most, and shows both calls; its verdict ends the operation everywhere (precedence.h).
 */
#ifndef HK_FAILURE_MISMATCH_H
#define HK_FAILURE_MISMATCH_H
#include "../core/comm.h"

/* What a rank called as the operation in question. */
typedef struct hk_call_report {
  int rank;
  uint32_t signature;
  char call[160];
} hk_call_report;

/* Sorts out who differs.  Gives the index of the lowest rank that differs from most ranks, and of one of those in
 * *right; if no call has most voices, or two ranks are all, *right is the voice of the lowest rank and the result
 * the lowest that differs from it.  -1 if all agree. */
int hk_mismatch_odd(const hk_call_report *v, int n, int *right);
/* The verdict in words; `odd` as above. */
void hk_mismatch_text(const hk_call_report *v, int n, int odd, int right, uint64_t operation, char *text, size_t bytes);

/* This rank, in `call`, found that rank `peer` is in another: gives the verdict, unless another rank's comes first. */
void hk_mismatch_found(ncclComm_t c, const struct hk_call *call, int peer);
/* The same, because `peer` sent a message with that signature, of `bytes` where `expected` were. */
void hk_mismatch_slot(ncclComm_t c, const struct hk_call *call, const struct hk_exec *x);
/* The same for calls on a GPU, of which `peer`'s message does not say what it belongs to. From any thread. */
void hk_mismatch_message(ncclComm_t c, int peer);
/* True if some rank's last calls on a GPU differ from this rank's, which then is as above. From any thread. */
bool hk_mismatch_look_back(ncclComm_t c);
/* This rank receives `bytes` in `call`, and a piece of `piece` bytes came that belongs to a message of another size. */
void hk_mismatch_transfer(ncclComm_t c, const struct hk_call *call, size_t bytes, uint32_t piece);
/* Asks some ranks whether they are in this rank's call, and waits for them for a moment; false if one is in another,
 * which then is as above. */
bool hk_mismatch_compare(ncclComm_t c, const struct hk_call *call);
/* Looks at the boards of this host: true if a rank is in another call than this one, which then is as above. */
bool hk_mismatch_look(ncclComm_t c);

/* The signature of a call as operation `sequence`: what its messages carry. */
static inline uint32_t hk_signature_at(uint32_t signature, uint64_t sequence) {
  return signature + (uint32_t)sequence * 0x9e3779b1u;
}
#endif
