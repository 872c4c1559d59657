/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sends and receives on host memory. Each runs as an execution of a one-instruction program (collectives/transfer.h)
 * over the link to its peer. Those over one link take turns, in the order of their calls.
 */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../kernels/exec.h"

struct hk_call;

/* The execution of transfers over one link; one transfer runs at a time. */
typedef struct hk_transfer_run {
  hk_plan plan;
  struct hk_link *link; /* the plan's only one */
  hk_launch launch;
  hk_exec exec;
  _Alignas(16) char memory[]; /* hk_exec_bytes */
} hk_transfer_run;

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

/* ---- transfer_links.c ---- */
/* The link of a send or receive, at its first use: opens it, and makes what runs transfers over it. */
hk_status hk_transfer_first(const struct hk_call *call, hk_link_kind kind, struct hk_wired_link **out);
void hk_transfer_differs(const hk_transfer *t); /* raises the verdict: the peer's message has another size */

/* transfer_launch.c: sets the launch for a call of `bytes`. False: the chunk is not known yet. */
bool hk_transfer_launch(hk_transfer_run *r, const struct hk_call *call, size_t bytes);
