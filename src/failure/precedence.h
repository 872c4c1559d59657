/* SPDX-License-Identifier: Apache-2.0 */
/**
 * All ranks report one cause of a fault. A fault reaches the ranks as several events, in an order that
 * differs between ranks: the death of a process, connections that it breaks, what other ranks conclude from them. So
 * no rank settles on the first event. It collects events for a short time and then takes the strongest one, by the
 * rule below, which is the same on every rank that has the same events.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"
#include "../boot/activity.h"

/* From the strongest to the weakest: */
typedef enum hk_failure_class {
  HK_FAILURE_OWN,       /* a rank reports its own failure, or its user ended the communicator */
  HK_FAILURE_DEAD,      /* a process or host is gone */
  HK_FAILURE_LINK,      /* a connection between two processes that run is gone */
  HK_FAILURE_VERDICT,   /* the ranks' calls do not match */
  HK_FAILURE_SUSPICION, /* a rank has trouble with another one and does not know the cause */
  HK_FAILURE_ENDED,     /* the process of a rank that had sent one of these events is gone */
  HK_FAILURE_REVOKED,   /* a rank revoked the communicator, perhaps for one of these reasons */
  HK_FAILURE_CLASSES
} hk_failure_class;

/* True if `a` takes precedence over `b`: first by class, then by the lower rank that the event is about (verdicts: the
 * lower reporting rank), then by the lower reporting rank. */
bool hk_failure_precedes(const hk_event *a, const hk_event *b);
/* How long a rank that has event `e` waits for a stronger one. Events arrive within milliseconds, with one exception:
 * after a broken connection, the death that caused it may be detected later. */
uint64_t hk_failure_collect_ns(const hk_event *e);
/* The code that rank `me` reports. */
hk_status hk_failure_code(const hk_event *e, int me);
void hk_failure_text(const hk_event *e, int me, char *text, size_t bytes);
