/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does, and what happens to ranks. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* ---- event.c ----
 * Events about a rank. Each reaches all ranks of the communicator over the overlay (bootstrap.h). */
typedef enum hk_event_kind {
  /* The rank's process ended or its host became silent, without a goodbye. `code`: HK_OK if the rank had sent an event
   * of a failure before, so that its end is no cause. */
  HK_EVENT_DEAD,
  HK_EVENT_ABORT,   /* the rank called abort; `code`: what it had failed with before, or HK_OK */
  HK_EVENT_ERROR,   /* the rank failed; code and text say how */
  HK_EVENT_VERDICT, /* the ranks' calls do not match; code and text say how; `rank`: the one that differs */
  HK_EVENT_SUSPECT, /* there is trouble with the rank, whose cause may not be known yet */
  HK_EVENT_REVOKE,  /* the rank revoked the communicator; the text says by which call */
  /* a notice about a child: the rank begins or ends a shrink, or fails to create a child; or the rank has refused
   * another collective call. `code` is the number of the rank's notice; children.c reads the text. The bootstrap's
   * collectives go on. */
  HK_EVENT_SHRINK,
  HK_EVENT_LINK, /* the control connection between `rank` and the higher `from` is lost; both processes run */
  HK_EVENT_KINDS
} hk_event_kind;
enum { HK_EVENT_TEXT = 1536 };
typedef struct hk_event {
  int32_t kind; /* hk_event_kind */
  int32_t rank; /* the rank that it is about */
  int32_t from; /* the rank that reports it; hk_bootstrap_announce fills it in */
  int32_t code; /* hk_status, if the kind has one */
  char text[HK_EVENT_TEXT];
} hk_event;

/* ---- activity.c ----
 * The current activity of a rank. A rank that waits for it asks with hk_bootstrap_ask (bootstrap.h). */
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

enum { HK_ACTIVITY_PAST = 15, HK_ACTIVITY_CALLS = 16, HK_ACTIVITY_WAITS = 30 };
/* What the rank has called. */
enum { HK_ACTIVITY_FINALIZED = 1, HK_ACTIVITY_DESTROYED = 2, HK_ACTIVITY_ABORTED = 4 };
typedef struct hk_activity {
  uint64_t sequence; /* operations of the communicator begun so far; 0: none, and count to p2p mean nothing */
  uint64_t count;    /* of the newest operation */
  uint32_t signature;
  int32_t root;
  uint8_t coll, dtype, redop, p2p; /* hk_coll, hk_dtype, hk_redop, hk_p2p */
  uint8_t phase;                   /* hk_phase: the call that the rank is in */
  uint8_t failure;                 /* hk_status: what ended the communicator on this rank; 0: it has not ended */
  uint8_t ended;                   /* HK_ACTIVITY_ bits */
  int32_t device;                  /* CUDA's number of the rank's GPU; -1: it has none */
  uint64_t phase_ms;               /* time in that phase, milliseconds */
  int32_t waits_for;               /* the rank that this rank waits for; -1: none, or not known */
  uint64_t moves; /* bytes of the newest send or receive in which it waited, complete or not; 0: none */
  uint32_t past[HK_ACTIVITY_PAST];   /* signatures of the operations before the newest, newest first; 0: not known */
  uint64_t calls[HK_ACTIVITY_CALLS]; /* for each hk_coll: the operations begun so far */
  /* Collectives that all ranks end nearly together, and in which this rank waited long for others: how many, how long
   * in all; and the last ones, in any order: the lower half of the collective's number, then microseconds; 0: none. */
  uint64_t long_waits, long_wait_ns, recent_waits[HK_ACTIVITY_WAITS];
} hk_activity;

/* Writes what a rank does, to follow the words "rank 3 " in a message: "is in AllReduce(1000 x float, sum), operation
 * 12, for 14 s, and waits for rank 7 itself". `a` counts only with HK_PRESENCE_ANSWERS. */
void hk_activity_describe(const hk_activity *a, hk_presence p, char *text, size_t bytes);
