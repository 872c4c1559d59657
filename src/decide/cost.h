/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cost model: alpha (a message) + beta (a byte on a link) + gamma (a byte reduced), as in Thakur, Rabenseifner and
 * Gropp 2005, on two levels of links (inside a host, between hosts), with additions:
 *
 *   - A rank copies data into links' slots and out of them, which takes its core's time.
 *   - If k = ranks / cores > 1 ranks share a core, a message arrives only after its sender had the core: each round of
 *     messages costs k switches between ranks, and work of all ranks takes k times as long.
 *   - Data that a host's ranks send to other hosts shares the host's network ports.
 *   - If links move bytes by themselves (GPUs) there are two bounds: cost_gpu.c.
 *
 * The number of messages and bytes is not written here: it is that of the programs (outlines.h).
 */
#pragma once
#include "machine.h"
#include "outlines.h"

struct hk_algorithm; /* collectives/algorithm.h */

/* The price in microseconds of an operation by the protocol and channels of the machine (hk_machine_as), if links move
 * bytes by themselves. `block`: bytes of a block. */
double hk_price_gpu(const hk_machine *m, const hk_outline *o, double block);
/* The price is not lower if ranks of one host have this load. */
double hk_price_gpu_least(const hk_machine *m, const hk_load *l, double block);
/* True if the kernel of small messages runs it. `block`: bytes of a block. */
bool hk_gpu_is_small(const hk_machine *m, const hk_outline *o, size_t block);
/* Bytes of a block that one wave moves through slots. `block`: bytes of a block on one channel. */
size_t hk_chunk(const hk_machine *m, const hk_outline *o, size_t block);
/* The same, in waves of at most `most` bytes. */
size_t hk_chunk_within(const hk_machine *m, const hk_outline *o, size_t block, size_t most);
static inline size_t hk_channel_block(const hk_machine *m, size_t block) {
  return (block + (size_t)m->channels - 1) / (size_t)m->channels;
}
/* True if the programs' slots are in the memory of a switch. There are fewer of them. */
bool hk_is_switched(const hk_machine *m, const hk_outline *o);
/* Ranks that a byte passes in a pipeline of waves; 1 if pipelining gains nothing. */
double hk_depth(const hk_outline *o);
/* A byte that a host's ranks send together to other hosts. */
double hk_between_us_per_b(const hk_machine *m, const hk_outline *o);

/* The price in microseconds for `bytes`, the size of the larger of a rank's buffers, as nccl-tests counts; INFINITY if
 * its programs are too large to be chosen, or links carry quantised values and theirs may not. The machine has
 * outlines. */
hk_status hk_algorithm_price(const hk_machine *m, const struct hk_algorithm *a, hk_coll coll, size_t bytes, double *us);
/* *us: a price that is not higher, from the programs of one host at most; *work: the links and blocks moved that
 * hk_algorithm_price looks at, at most. 0: not known, as on CPUs. */
hk_status hk_algorithm_least(const hk_machine *m, const struct hk_algorithm *a, hk_coll coll, size_t bytes, double *us,
                             uint64_t *work);
