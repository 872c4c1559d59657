/* SPDX-License-Identifier: Apache-2.0 */
/* The rule that picks one event as the cause of a fault (precedence.h). */
#include "precedence.h"
#include <stdio.h>

static hk_failure_class precedence_class(const hk_event *e) {
  switch ((hk_event_kind)e->kind) {
    case HK_EVENT_DEAD: return e->code == HK_OK ? HK_FAILURE_ENDED : HK_FAILURE_DEAD;
    case HK_EVENT_LINK: return HK_FAILURE_LINK;
    case HK_EVENT_VERDICT: return HK_FAILURE_VERDICT;
    case HK_EVENT_SUSPECT: return HK_FAILURE_SUSPICION;
    case HK_EVENT_REVOKE: return HK_FAILURE_REVOKED;
    default: return HK_FAILURE_OWN;
  }
}

bool hk_failure_precedes(const hk_event *a, const hk_event *b) {
  hk_failure_class x = precedence_class(a), y = precedence_class(b);
  if (x != y) return x < y;
  if (x == HK_FAILURE_VERDICT && a->from != b->from) return a->from < b->from;
  if (a->rank != b->rank) return a->rank < b->rank;
  return a->from < b->from;
}

uint64_t hk_failure_collect_ns(const hk_event *e) {
  static const uint64_t ms[HK_FAILURE_CLASSES] = {100, 200, 200, 250, 1000, 200, 200};
  return ms[precedence_class(e)] * 1000000u;
}

hk_status hk_failure_code(const hk_event *e, int me) {
  bool own = e->kind == HK_EVENT_ERROR && e->rank == me;
  return (own || e->kind == HK_EVENT_VERDICT) && e->code ? (hk_status)e->code : HK_ERR_REMOTE;
}

void hk_failure_text(const hk_event *e, int me, char *text, size_t bytes) {
  const char *sep = e->text[0] ? ": " : "";
  switch ((hk_event_kind)e->kind) {
    case HK_EVENT_DEAD:
      snprintf(text, bytes, "rank %d is gone: its process ended or its host cannot be reached%s%s%s", e->rank,
               e->text[0] ? " (" : "", e->text, e->text[0] ? ")" : "");
      return;
    case HK_EVENT_ABORT: snprintf(text, bytes, "rank %d aborted the communicator%s%s", e->rank, sep, e->text); return;
    case HK_EVENT_REVOKE: snprintf(text, bytes, "rank %d revoked the communicator%s%s", e->rank, sep, e->text); return;
    case HK_EVENT_ERROR:
      if (e->rank == me)
        snprintf(text, bytes, "%s", e->text);
      else
        snprintf(text, bytes, "rank %d failed%s%s", e->rank, sep, e->text);
      return;
    default: snprintf(text, bytes, "%s", e->text);
  }
}
