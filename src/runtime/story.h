/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One fault, one story.  A fault reaches the ranks as several events, in an order that differs from rank to rank: the death of
 * a process, connections that it breaks, what other ranks make of them.  So no rank settles on the first event.  It collects
 * for a short time, and then takes the strongest, by the rule below, which gives the same on every rank that has heard the
 * same events.
 */
#ifndef HK_RUNTIME_STORY_H
#define HK_RUNTIME_STORY_H
#include <stdbool.h>
#include <stddef.h>
#include "../boot/bootstrap.h" /* hk_event */

/* From the strongest to the weakest: */
typedef enum hk_story_class {
  HK_STORY_OWN,       /* a rank reports a failure of its own, or its user ended the communicator */
  HK_STORY_DEAD,      /* a process or host is gone */
  HK_STORY_LINK,      /* a connection between two processes that live is gone */
  HK_STORY_VERDICT,   /* the ranks' calls do not go together */
  HK_STORY_SUSPICION, /* a rank has trouble with another, and does not know why */
  HK_STORY_REVOKED,   /* a rank revoked the communicator, perhaps for one of these reasons */
  HK_STORY_CLASSES
} hk_story_class;

hk_story_class hk_story_class_of(const hk_event *e);
/* Does `a` win over `b`?  By class, then the lowest rank that it is about (of verdicts: the lowest rank that gives one), then
 * the lowest rank that reports it. */
bool hk_story_wins(const hk_event *a, const hk_event *b);
/* The event that wins over all others; NULL of none. */
const hk_event *hk_story_of(const hk_event *events, size_t n);
/* How long a rank that has heard `e` waits for a stronger event.  News takes milliseconds; only after a broken connection the
 * death that broke it may take longer to be seen. */
uint64_t hk_story_grace_ns(const hk_event *e);
/* What rank `me` reports. */
hk_status hk_story_code(const hk_event *e, int me);
void hk_story_tell(const hk_event *e, int me, char *text, size_t bytes);
#endif
