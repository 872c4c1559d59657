/* SPDX-License-Identifier: Apache-2.0 */
/* The current activity of a rank. A rank that waits for it asks with hk_bootstrap_ask (bootstrap.h). */
#ifndef HK_BOOT_ACTIVITY_H
#define HK_BOOT_ACTIVITY_H
#include <stddef.h>
#include <stdint.h>

typedef enum hk_presence {
  HK_PRESENCE_ANSWERS, /* its process runs; the activity is valid */
  /* its host accepts the connection, its process does not answer: stopped, or without CPU time */
  HK_PRESENCE_STOPPED,
  HK_PRESENCE_LEFT,        /* it has left (destroyed) this communicator */
  HK_PRESENCE_GONE,        /* its process has ended */
  HK_PRESENCE_UNREACHABLE, /* its host does not answer */
  HK_PRESENCE_UNKNOWN      /* not asked: this rank does not know its address yet */
} hk_presence;

typedef enum hk_phase {
  HK_PHASE_IDLE, /* outside of any call */
  HK_PHASE_INIT,
  HK_PHASE_SPLIT,
  HK_PHASE_SHRINK,
  HK_PHASE_OPERATION,
  HK_PHASE_FINALIZE,
  HK_PHASE_DESTROY,
  HK_PHASE_GROW,
  HK_PHASE_COUNT
} hk_phase;

enum { HK_ACTIVITY_PAST = 15 };
typedef struct hk_activity {
  uint64_t sequence; /* operations of the communicator begun so far; 0: none, and count to p2p mean nothing */
  uint64_t count;    /* of the newest operation */
  uint32_t signature;
  int32_t root;
  uint8_t coll, dtype, redop, p2p; /* hk_coll, hk_dtype, hk_redop, hk_p2p */
  uint8_t phase;                   /* hk_phase: the call that the rank is in */
  uint64_t phase_ms;               /* time in that phase, milliseconds */
  int32_t waits_for;               /* the rank that this rank waits for; -1: none, or not known */
  uint64_t moves; /* bytes of the newest send or receive in which it waited, complete or not; 0: none */
  uint32_t past[HK_ACTIVITY_PAST]; /* signatures of the operations before the newest, newest first; 0: not known */
} hk_activity;

/* Writes what a rank does, to follow the words "rank 3 " in a message: "is in AllReduce(1000 x float, sum), operation
 * 12, for 14 s, and waits for rank 7 itself". `a` counts only with HK_PRESENCE_ANSWERS. */
void hk_activity_describe(const hk_activity *a, hk_presence p, char *text, size_t bytes);
#endif
