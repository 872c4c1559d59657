/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The status page: memory in which a rank publishes its current operation, for the peers that wait for it. A transport
 * whose ranks share memory may offer each rank's status page to the others (hk_transport.status_page), and call checks
 * for all of them.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "../program/limits.h" /* HK_CACHE_LINE */

/* One operation of a rank, as posted for its peers. */
typedef struct hk_status_page_op {
  uint64_t sequence; /* counts the communicator's operations from 1; 0: none yet */
  uint64_t count;
  uint32_t signature;
  int32_t root; /* or peer; -1: neither */
  uint8_t coll, dtype, op, reserved;
  uint32_t extra; /* defined by the writer */
} hk_status_page_op;
_Static_assert(sizeof(hk_status_page_op) == 32, "packed into four words");

/* The latest operations of a rank. Entries are used in turn, so that a rank that waits can still read a peer's earlier
 * operation: a peer that only sends may be some operations ahead. */
enum { HK_STATUS_PAGE_ENTRIES = 16, HK_STATUS_PAGE_WAITS = 30 };
typedef struct hk_status_page {
  _Alignas(HK_CACHE_LINE) struct {
    _Atomic uint64_t sequence;
    _Atomic uint64_t words[3];
  } entry[HK_STATUS_PAGE_ENTRIES];
  /* Each field below is meaningful alone; 0: nothing. */
  _Alignas(HK_CACHE_LINE) _Atomic uint64_t over; /* the newest operation that is complete */
  _Atomic uint64_t transfer;                     /* the send or receive under way, encoded by the writer */
  _Atomic uint64_t phase;                        /* the rank's activity other than operations, encoded by the writer */
  _Atomic uint64_t waits;                        /* 1 + the rank that it waits for */
  _Atomic uint64_t since_ns;                     /* how long it has waited */
  /* Collectives in which the rank waited long for others (hk_watch_waited): how many, how long in all; and the last
   * ones, in turn: the lower half of the collective's number, then microseconds. Written by the rank's calls alone. */
  _Alignas(HK_CACHE_LINE) _Atomic uint64_t long_waits;
  _Atomic uint64_t long_wait_ns;
  _Atomic uint64_t recent_waits[HK_STATUS_PAGE_WAITS];
} hk_status_page;
_Static_assert(sizeof(hk_status_page) == (HK_STATUS_PAGE_ENTRIES / 2 + 5) * HK_CACHE_LINE, "two entries a cache line");

/* Posts an operation, as the four words of a hk_status_page_op: each call of the application does this, and to pack
 * bytes into memory and read them back as words would cost more than the rest. Sequences must rise by one. */
static inline void hk_status_page_put(hk_status_page *b, uint64_t sequence, uint64_t w1, uint64_t w2, uint64_t w3) {
  uint64_t k = sequence % HK_STATUS_PAGE_ENTRIES;
  /* release, for all three: a reader that sees one of these words also sees the number of the entry posted before, and
   * so knows that the entry it reads is being replaced */
  atomic_store_explicit(&b->entry[k].words[0], w1, memory_order_release);
  atomic_store_explicit(&b->entry[k].words[1], w2, memory_order_release);
  atomic_store_explicit(&b->entry[k].words[2], w3, memory_order_release);
  /* release: a reader that sees the number sees the words */
  atomic_store_explicit(&b->entry[k].sequence, sequence, memory_order_release);
}
/* Reads the newest operation. Returns false if there is none, or if the rank posts faster than it can be read. From any
 * thread or process. */
bool hk_status_page_read(const hk_status_page *b, hk_status_page_op *out);
/* Reads the operation with that number. Returns false if it has not begun, or is too long ago. */
bool hk_status_page_read_at(const hk_status_page *b, uint64_t sequence, hk_status_page_op *out);

/* Call checks compare the calls of ranks that only send: they receive no message with a signature. There is a word for
 * each of the last operations. The first such rank of the host writes its call's signature there, and the others
 * compare theirs. */
enum { HK_CALL_CHECKS = 64 }; /* a sender is never more operations ahead than a link has slots */
typedef struct hk_call_checks {
  _Alignas(HK_CACHE_LINE) _Atomic uint64_t word[HK_CALL_CHECKS];
} hk_call_checks;
/* Claims an operation. Returns false if another rank has claimed it with another signature. */
bool hk_claim(hk_call_checks *c, uint64_t sequence, uint32_t signature);
