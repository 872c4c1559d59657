/* SPDX-License-Identifier: Apache-2.0 */
/* What runs a call, and how its data travels between ranks on CPUs: parts of the decision. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../program/operation.h"

typedef enum hk_payload_mode {
  HK_PAYLOAD_COPIES,     /* through slots: short blocks, in which a copy takes less time than a wait for the reader */
  HK_PAYLOAD_REFERENCES, /* where the reader can read the sender's memory, a slot refers to it; else through slots */
  HK_PAYLOAD_PLACES      /* multicasts are written to their readers' outputs (transport/places.h) */
} hk_payload_mode;

/* Steps and the kernel of small messages need a small program, and links in memory; if a plan has none, lanes or the
 * other kernel run the call. */
typedef enum hk_executor {
  HK_EXECUTOR_LANES,  /* CPU: the lanes by turns, with a cursor each (kernels/exec.h) */
  HK_EXECUTOR_STEPS,  /* CPU: the instructions that the plan keeps ready (kernels/steps.h) */
  HK_EXECUTOR_KERNEL, /* GPU: the kernel that runs all programs */
  HK_EXECUTOR_SMALL   /* GPU: the kernel of small messages (kernels/gpu_small.h) */
} hk_executor;

/* A call. */
typedef struct hk_request {
  hk_coll coll;
  size_t bytes; /* the larger of a rank's buffers */
  size_t unit;  /* bytes of an element */
  bool uneven;  /* each block has a length of its own */
} hk_request;

typedef struct hk_payload {
  hk_payload_mode mode;
  uint8_t by_cma;  /* HK_CMA_*: what may be read from private memory */
  bool reads;      /* waves move references alone: they may be longer than slots */
  bool uncached;   /* the message exceeds the caches, so stores go past them */
  const char *why; /* a sentence, without its full stop */
} hk_payload;

struct hk_decision; /* select.h */
struct hk_machine;  /* machine.h */

/* True if this many ranks on CPUs may write to places. Measured: two ranks lose (docs/results/cpu.md); the cause is not
 * known. */
bool hk_payload_may_place(const struct hk_machine *m);
/* True if copy engines run the collective, without a program, if all outputs are at one place of a symmetric window. */
bool hk_decide_engines(const struct hk_machine *m, hk_coll coll);
/* What hk_decide_execution is for a collective, for a send or receive: sets d->payload, and d->executor for slots of
 * d->chunk bytes. */
void hk_decide_transfer(const struct hk_machine *m, size_t bytes, struct hk_decision *d);
