/* SPDX-License-Identifier: Apache-2.0 */
/* How the data of a call travels between ranks on CPUs: a part of the decision. */
#pragma once
#include "../program/limits.h"
#include "machine.h"

typedef enum hk_payload_mode {
  HK_PAYLOAD_COPIES,     /* through slots: short blocks, in which a copy takes less time than a wait for the reader */
  HK_PAYLOAD_REFERENCES, /* where the reader can read the sender's memory, a slot refers to it; else through slots */
  HK_PAYLOAD_PLACES      /* multicasts are written to their readers' outputs (transport/places.h) */
} hk_payload_mode;

typedef struct hk_payload {
  hk_payload_mode mode;
  bool uncached;   /* the message exceeds the caches, so stores go past them */
  const char *why; /* a sentence, without its full stop */
} hk_payload;

struct hk_outline; /* outlines.h */

/* True if this many ranks on CPUs may write to places. Measured: two ranks lose (docs/results/cpu.md); the cause is not
 * known. */
static inline bool hk_payload_may_place(const hk_machine *m) {
  return !m->team.overlap && m->team.nranks > 2 && m->team.nranks <= HK_PLACES_READERS + 1;
}
/* True if waves move references alone: they may be longer than slots. */
bool hk_payload_reads(const hk_machine *m, const struct hk_outline *o);
/* `o` may be NULL. `bytes`: the larger of a rank's buffers. `uneven`: each block has a length of its own. Equal on all
 * ranks. */
hk_payload hk_payload_of(const hk_machine *m, const struct hk_outline *o, size_t bytes, bool uneven);
