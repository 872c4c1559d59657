/* SPDX-License-Identifier: Apache-2.0 */
/* Describes another rank's activity for messages. */
#include "activity.h"
#include <stdio.h>
#include "../program/operation.h" /* a call in words */

static void activity_describe_phase(const hk_activity *a, char *text, size_t bytes) {
  static const char *const calls[HK_PHASE_COUNT] = {[HK_PHASE_INIT] = "the init of the communicator",
                                                    [HK_PHASE_SPLIT] = "ncclCommSplit",
                                                    [HK_PHASE_SHRINK] = "ncclCommShrink",
                                                    [HK_PHASE_FINALIZE] = "ncclCommFinalize",
                                                    [HK_PHASE_DESTROY] = "ncclCommDestroy or ncclCommAbort",
                                                    [HK_PHASE_GROW] = "ncclCommGrow"};
  const char *call = a->phase < HK_PHASE_COUNT ? calls[a->phase] : NULL;
  hk_operation o = {
      .count = a->count, .root = a->root, .coll = a->coll, .p2p = a->p2p, .dtype = a->dtype, .redop = a->redop};
  char what[160], newest[224] = "no operation";
  hk_operation_describe(&o, what, sizeof what);
  if (a->sequence) snprintf(newest, sizeof newest, "%s, operation %llu", what, (unsigned long long)a->sequence);
  if (a->phase == HK_PHASE_OPERATION)
    snprintf(text, bytes, "is in %s", newest);
  else if (call)
    snprintf(text, bytes, "is in %s%s%s", call, a->sequence ? ", after " : "", a->sequence ? newest : "");
  else if (a->sequence)
    snprintf(text, bytes, "runs outside of this communicator's calls; the newest was %s", newest);
  else
    snprintf(text, bytes, "runs outside of this communicator's calls, and has begun no operation of it yet");
}

static void activity_describe_running(const hk_activity *a, char *text, size_t bytes) {
  char phase[320], since[48] = "", next[48] = "";
  activity_describe_phase(a, phase, sizeof phase);
  if (a->phase_ms >= 10000)
    snprintf(since, sizeof since, ", for %llu s", (unsigned long long)(a->phase_ms / 1000));
  else if (a->phase_ms)
    snprintf(since, sizeof since, ", for %.1f s", (double)a->phase_ms * 1e-3);
  if (a->waits_for >= 0) snprintf(next, sizeof next, ", and waits for rank %d itself", a->waits_for);
  snprintf(text, bytes, "%s%s%s", phase, since, next);
}

void hk_activity_describe(const hk_activity *a, hk_presence p, char *text, size_t bytes) {
  switch (p) {
    case HK_PRESENCE_ANSWERS: activity_describe_running(a, text, bytes); return;
    case HK_PRESENCE_STOPPED:
      snprintf(
          text, bytes,
          "does not answer, though its host accepts connections: its process is stopped (by a signal or a debugger), "
          "gets no CPU time, or has no descriptors left");
      return;
    case HK_PRESENCE_LEFT: snprintf(text, bytes, "has left the communicator (ncclCommDestroy)"); return;
    case HK_PRESENCE_GONE: snprintf(text, bytes, "is gone: its process has ended; see its output"); return;
    case HK_PRESENCE_UNREACHABLE:
      snprintf(text, bytes, "cannot be reached: its host does not answer (down, or the network to it is cut)");
      return;
    case HK_PRESENCE_UNKNOWN:
    default: snprintf(text, bytes, "cannot be asked: its address is not known here yet"); return;
  }
}
