/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of a connection: whether it is repaired by a new epoch of queue pairs or ends with an error, and what the
 * error says. */
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/meter.h"
#include "../../../base/param.h"
#include "ib_device.h"
#include "ib_state.h"
#include "ib_verbs.h"

#define MS 1000000u
enum { BACK_OFF_MS = 50, BACK_OFF_MOST_MS = 500, STEADY_MS = 3000, SECOND_MS = 1000 };
/* A link that comes back may flap. */
enum { BACK_MS = 2000 };
/* A longer gap between two steps counts for only so much: the process or its machine was stopped. */
enum { STEP_COUNTS_MS = 500 };

static uint64_t ib_repair_gap_ns(uint64_t now, uint64_t last) {
  const uint64_t since = hk_ago_ns(now, last), most = (uint64_t)STEP_COUNTS_MS * MS;
  return since < most ? since : most;
}

/* ---- slow or gone ---- New queue pairs need the peer's answers. A peer that is late or stopped gives none, for any
 * length of time. That is no error, and the time does not count, as long as its host's kernel answers. */

static unsigned ib_repair_limit_s(const hk_ib_conn *c) { return (unsigned)(c->ctx->timeout_ns / MS / SECOND_MS); }

static bool ib_repair_awaits_peer(const hk_ib_conn *c) {
  return c->phase == HK_IB_PAIRING || c->phase == HK_IB_READYING;
}

void hk_ib_begin_repairs(hk_ib_conn *c, uint64_t now) {
  c->repair.broken_ns = now;
  c->repair.spent_ns = 0;
}

void hk_ib_count_repairs(hk_ib_conn *c, uint64_t now) {
  if (c->repair.broken_ns && !ib_repair_awaits_peer(c))
    c->repair.spent_ns += ib_repair_gap_ns(now, c->repair.stepped_ns);
  c->repair.stepped_ns = now;
}

bool hk_ib_host_is_silent(hk_ib_conn *c, uint64_t now) {
  unsigned quiet_s;
  if (!ib_repair_awaits_peer(c) || c->control.eof || now < c->control.silent_ns) return false;
  c->control.silent_ns = now + (uint64_t)SECOND_MS * MS;
  return hk_silence_broken(&c->control.silence, c->control.fd, ib_repair_limit_s(c), now, &quiet_s);
}

/* ---- the end ---- */

static const char *ib_repair_advice_for(int status) {
  switch (status) {
    case HK_IBV_WC_RETRY_EXC_ERR:
      return "nothing was answered: check cable and switch, that the GIDs reach each other (hocket doctor, "
             "NCCL_IB_GID_INDEX), that the fabric loses no packets (PFC or ECN), and the other rank's output; "
             "HOCKET_PEER_TIMEOUT waits longer";
    case HK_IBV_WC_RNR_RETRY_EXC_ERR: return "the other rank posts no receives: look at its output";
    case HK_IBV_WC_LOC_PROT_ERR:
    case HK_IBV_WC_LOC_ACCESS_ERR:
    case HK_IBV_WC_LOC_LEN_ERR: return "this is a fault of this library or of the driver: please report it";
    case HK_IBV_WC_REM_ACCESS_ERR:
    case HK_IBV_WC_REM_INV_REQ_ERR:
      return "the other rank's memory is not registered as it said: do all ranks run the same version of this library?";
    case HK_IBV_WC_LOC_QP_OP_ERR:
    case HK_IBV_WC_WR_FLUSH_ERR:
    case HK_IBV_WC_FATAL_ERR: return "check the port's state (ibv_devinfo) and the kernel's log on this host";
    default: return "check the kernel's log on both hosts";
  }
}

static bool ib_repair_may_repair(const hk_settings *set, int status) {
  switch (status) {
    case HK_IBV_WC_LOC_LEN_ERR:
    case HK_IBV_WC_LOC_PROT_ERR:
    case HK_IBV_WC_LOC_ACCESS_ERR:
    case HK_IBV_WC_REM_ACCESS_ERR: return false;
    default: return set->IB_REPLAY != 0;
  }
}

/* Fails a connection over which nothing arrives; the kernel may know the cause. */
static hk_status ib_repair_fail_unreachable(hk_ib_conn *c, const char *cause, const char *advice) {
  char text[280 + HK_IB_KERNEL_TEXT], kernel[HK_IB_KERNEL_TEXT];
  snprintf(text, sizeof text, "%s%s", cause, hk_ib_kernel_reason(c, kernel));
  return hk_ib_fail(c, text, advice);
}

/* A failure soon after the last one counts as the same. A connection that has carried nothing since may take as long as
 * all retries to fail again. */
void hk_ib_note_failure(hk_ib_conn *c, uint64_t now) {
  uint64_t steady = (uint64_t)STEADY_MS * MS;
  if (!c->repair.came) steady += hk_ib_gives_up_ns(c->timeout, (unsigned)c->ctx->env->settings->IB_RETRY_CNT);
  if (c->repair.broken_ns && (c->phase != HK_IB_UP || now - c->repair.up_ns <= steady)) return;
  hk_ib_begin_repairs(c, now);
  c->repair.attempts = 0;
  for (int i = 0; i < c->ports.npairs; i++) c->ports.pairs[i].out = c->ports.pairs[i].out && !c->ports.pairs[i].worked;
}

hk_status hk_ib_repair(hk_ib_conn *c, const char *advice) {
  uint64_t now = hk_now_ns();
  hk_ib_note_failure(c, now);
  if (c->repair.spent_ns > c->ctx->timeout_ns) {
    char cause[280];
    snprintf(cause, sizeof cause, "%s, for %llu s and %u new queue pairs", c->repair.cause,
             (unsigned long long)(c->repair.spent_ns / 1000 / MS), c->repair.attempts);
    return ib_repair_fail_unreachable(c, cause, advice);
  }
  HK_INFO(HK_SUB_NET, "rank %d to rank %d (%s, channel %d): %s; new queue pairs will send again", c->ctx->env->rank,
          c->peer, c->ports.route, c->channel, c->repair.cause);
  if (c->ctx->env->meter) hk_meter_event(&c->ctx->env->meter->repairs);
  if (c->dials) {
    uint64_t wait = (uint64_t)BACK_OFF_MS * c->repair.attempts;
    c->repair.retry_ns = now + (wait < BACK_OFF_MOST_MS ? wait : BACK_OFF_MOST_MS) * MS;
    c->phase = HK_IB_BACKING_OFF;
    return HK_OK;
  }
  c->phase = HK_IB_PAIRING;
  hk_ib_msg m = {.kind = HK_IB_BROKEN};
  snprintf(m.broken.text, sizeof m.broken.text, "%.150s", c->repair.cause);
  for (uint32_t i = 0; i < c->npaths; i++) m.broken.bad |= (uint32_t)c->paths[i].bad << i;
  return hk_ib_send_message(c, &m);
}

hk_status hk_ib_broken(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc, const char *doing) {
  if (c->phase != HK_IB_UP && c->phase != HK_IB_READYING) return HK_OK; /* the rest of the queue, flushed */
  if (c->control.bye || (c->repair.ending && wc->status == HK_IBV_WC_WR_FLUSH_ERR)) return HK_OK;
  hk_ib_path *w = c->qps[qp].path;
  const hk_ib_port *port = hk_ib_my_port(c, w);
  const char *state = hk_ib_port_state(c->ctx, w->device, port->number);
  w->bad = true;
  c->remote.denied = c->remote.n && wc->status == HK_IBV_WC_REM_ACCESS_ERR;
  snprintf(c->repair.cause, sizeof c->repair.cause, "%s failed with %s, vendor error %#x, while port %d of %s is %s",
           doing, hk_ibv_status_words(wc->status), wc->vendor_err, port->number, w->device->name, state);
  const char *advice = strcmp(state, "DOWN") == 0
                           ? "its link is down: check cable and switch, and the interface (ip link)"
                           : ib_repair_advice_for(wc->status);
  if (!ib_repair_may_repair(c->ctx->env->settings, wc->status))
    return (wc->status == HK_IBV_WC_RETRY_EXC_ERR ? ib_repair_fail_unreachable : hk_ib_fail)(c, c->repair.cause,
                                                                                             advice);
  return hk_ib_repair(c, advice);
}

hk_status hk_ib_lost(hk_ib_conn *c, const char *what, bool repairable) {
  if ((c->phase != HK_IB_UP && c->phase != HK_IB_READYING) || c->control.bye) return HK_OK;
  const char *advice = "see the kernel's log on this host (dmesg)";
  snprintf(c->repair.cause, sizeof c->repair.cause, "%.190s", what);
  return repairable && c->ctx->env->settings->IB_REPLAY ? hk_ib_repair(c, advice)
                                                        : hk_ib_fail(c, c->repair.cause, advice);
}

/* Requests may neither complete nor fail although their retries must be used up: some drivers lose their timers when a
 * link goes down and up. A process that was stopped finds the completions at its next poll, so that time counts
 * little. */
hk_status hk_ib_check_progress(hk_ib_conn *c, uint64_t now) {
  uint64_t mark = 0;
  bool open = false;
  for (uint32_t i = 0; i < c->nqps; i++) {
    mark += c->qps[i].done;
    open = open || c->qps[i].first != c->qps[i].last;
  }
  mark += c->gpu.flush.reads;
  open = open || c->gpu.flush.asked;
  const uint64_t gap = ib_repair_gap_ns(now, c->repair.looked_ns);
  c->repair.looked_ns = now;
  if (!open || mark != c->repair.mark) {
    c->repair.mark = mark;
    c->repair.stalled_ns = 0;
    return HK_OK;
  }
  c->repair.stalled_ns += gap;
  uint64_t limit = hk_ib_gives_up_ns(c->timeout, (unsigned)c->ctx->env->settings->IB_RETRY_CNT);
  if (limit < 1000 * (uint64_t)MS) limit = 1000 * (uint64_t)MS;
  if (c->repair.stalled_ns < limit) return HK_OK;
  c->repair.stalled_ns = 0;
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].first != c->qps[i].last) c->qps[i].path->bad = true;
  for (uint32_t i = 0; i < c->npaths; i++) c->paths[i].bad = c->paths[i].bad || c->gpu.flush.readers[i].reading;
  snprintf(c->repair.cause, sizeof c->repair.cause,
           "requests have neither completed nor failed for %.1f s (slots: %llu sent, %llu taken, %llu read; %llu came)",
           (double)limit / 1e9, (unsigned long long)c->tx.posted, (unsigned long long)c->tx.given,
           (unsigned long long)c->tx.credit, (unsigned long long)(c->recv ? c->recv->next : 0));
  return hk_ib_repair(c, ib_repair_advice_for(HK_IBV_WC_RETRY_EXC_ERR));
}

/* ---- ports that come back ---- */

void hk_ib_port_came_back(hk_ib_ctx *x, const hk_ib_device *d, int port, uint64_t now) {
  for (uint32_t i = 0; i < x->capacity; i++) {
    hk_ib_conn *c = x->conns[i];
    for (int p = 0; c && p < c->ports.nmine; p++)
      if (c->epoch > 1 && c->ports.mine[p].number == port && strcmp(c->ports.mine[p].device, d->name) == 0)
        c->repair.back_ns = now + (uint64_t)BACK_MS * MS;
  }
}

/* Only the dialling rank knows which pairs were left out; the other one asks it to choose again. */
hk_status hk_ib_go_back(hk_ib_conn *c, uint64_t now) {
  bool left = !c->dials;
  if (!c->repair.back_ns || now < c->repair.back_ns || c->phase != HK_IB_UP || c->control.bye || c->control.eof ||
      c->remote.n)
    return HK_OK;
  c->repair.back_ns = 0;
  for (int i = 0; i < c->ports.npairs; i++) {
    left = left || (c->ports.pairs[i].out && c->ports.pairs[i].worked);
    c->ports.pairs[i].out = c->ports.pairs[i].out && !c->ports.pairs[i].worked;
  }
  if (!left) return HK_OK;
  snprintf(c->repair.cause, sizeof c->repair.cause, "a port of rank %d is up again", c->ctx->env->rank);
  return hk_ib_repair(c, "look at that port's link");
}
