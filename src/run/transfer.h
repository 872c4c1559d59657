/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sends and receives on host memory. Each runs as an execution of a one-instruction program (collectives/transfer.h)
 * over the link to its peer. Those over one link take turns, in the order of their calls.
 */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;

/* A send or receive under way. */
typedef struct hk_transfer {
  const struct hk_call *call;
  struct hk_wired_link *wired;
  uint64_t turn; /* in the link's queue */
  bool begun;
  unsigned steps;       /* that have not ended it */
  uint64_t flight;      /* its entry's number in the flight recorder */
  void *event, *kernel; /* a profiler's; the caller owns them */
} hk_transfer;

/* Takes the next turn of the call's link, which it opens at first use. The call stays the caller's until the end. */
hk_status hk_transfer_open(const struct hk_call *call, hk_transfer *t);
/* Runs the transfer until it must wait. *moved is set if anything moved; *over if the transfer is complete.
 * HK_ERR_USAGE: the peer's message has another size; the verdict has been raised. HK_ERR_REMOTE: the link failed. */
hk_status hk_transfer_step(hk_transfer *t, bool *moved, bool *over);
/* Frees what ran the transfers of all links; none is under way. */
void hk_transfers_free(ncclComm_t c);
