/* SPDX-License-Identifier: Apache-2.0 */
/* Events about a rank. Each reaches all ranks of the communicator over the overlay (bootstrap.h). */
#ifndef HK_BOOT_EVENT_H
#define HK_BOOT_EVENT_H
#include <stdint.h>

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
#endif
