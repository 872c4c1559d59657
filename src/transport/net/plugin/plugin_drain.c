/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a plugin's connection. Receives are posted ahead, so that some are always under way. A plugin may end more
 * than the connection if that is closed with requests under way: aws-ofi-nccl, since 1.16, aborts the endpoint, which
 * the process's other communicators use, too. So the sender sends as many empty messages as receives are posted, and
 * both close when all is complete. The two ranks agree on that by bytes on their TCP connection:
 *
 *   ENDING  the sender's: it closes, and sends no more; 16 bytes follow, the number of messages sent on each lane. A
 *           plugin may call a message sent before a receive is posted for it.
 *   POSTED  the receiver's, when it closes, or ENDING has come and it has posted receives for all these messages: from
 *           here on it posts none; 16 bytes follow, the number of receives posted on each lane
 *
 * A rank that is closed alone, or whose peer does something else, waits for a moment only. */
#include <string.h>
#include "../../../base/tcp.h"
#include "plugin.h"

enum { PATIENCE_MS = 2000, SENTINEL_BYTES = 1, NAP_NS = 100000 };
#define MS UINT64_C(1000000)

/* Reports the number of posted requests on each lane. If the socket takes nothing, the peer has not read beats for a
 * long time. */
static void plugin_drain_report(hk_plugin_end *e, char what) {
  char text[1 + sizeof e->drain.counts];
  text[0] = what;
  for (int i = 0; i < HK_PLUGIN_LANES; i++)
    memcpy(text + 1 + (size_t)i * sizeof e->lane[i].posted, &e->lane[i].posted, sizeof e->lane[i].posted);
  (void)hk_tcp_send(e->fd, text, sizeof text);
}

static void plugin_drain_report_posted(hk_plugin_end *e) {
  if (e->drain.reported || e->fd < 0) return;
  e->drain.reported = true;
  plugin_drain_report(e, HK_PLUGIN_POSTED);
}

/* Receiver: true if a receive is posted for each message that the peer has sent. */
static bool plugin_drain_all_posted(const hk_plugin_end *e) {
  for (int i = 0; i < HK_PLUGIN_LANES; i++)
    if (e->lane[i].posted < e->drain.counts[i]) return false;
  return true;
}

/* Sender: sends empty messages for the receives that are still posted at the peer. */
static hk_status plugin_drain_send_sentinels(hk_plugin_end *e) {
  for (int i = 0; i < HK_PLUGIN_LANES; i++) {
    hk_plugin_lane *l = &e->lane[i];
    bool begun = true, moved;
    while (begun && l->posted < e->drain.counts[i])
      HK_OR_RETURN(hk_plugin_post(e, l, l->memory, SENTINEL_BYTES, &begun, &moved));
  }
  return HK_OK;
}

hk_status hk_plugin_drain_step(hk_plugin_end *e) {
  hk_status rc = HK_OK;
  bool moved;
  if (e->step != HK_PLUGIN_READY) return HK_OK;
  e->drain.gone = e->drain.gone || hk_plugin_peer_gone(e);
  if (!e->sends && e->drain.ending && plugin_drain_all_posted(e)) plugin_drain_report_posted(e);
  if (e->sends && e->drain.asked) rc = plugin_drain_send_sentinels(e);
  for (int i = 0; i < HK_PLUGIN_LANES && rc == HK_OK && (e->sends ? e->drain.asked : e->drain.reported); i++)
    rc = hk_plugin_test(e, &e->lane[i], &moved);
  return rc;
}

static bool plugin_drain_is_done(const hk_plugin_end *e) {
  bool agreed = e->sends ? e->drain.asked : e->drain.reported, all = true;
  for (int i = 0; i < HK_PLUGIN_LANES; i++) {
    const hk_plugin_lane *l = &e->lane[i];
    if (l->broken) return true;
    all = all && l->done == l->posted && (!e->sends || l->posted >= e->drain.counts[i]);
  }
  return e->drain.gone || (agreed && all);
}

void hk_plugin_drain(hk_plugin_end *e) {
  hk_plugin_ctx *x = e->ctx;
  uint64_t now = hk_now_ns();
  hk_wait_env env = {.failure = x->env->wait ? x->env->wait->failure : NULL, .spins = 50};
  hk_waiter w;
  if (e->step != HK_PLUGIN_READY || e->fd < 0) return;
  if (e->sends)
    plugin_drain_report(e, HK_PLUGIN_ENDING);
  else
    plugin_drain_report_posted(e);
  /* The ends of a communicator are closed one after the other and share this time. */
  if (now > x->drain_ns + 5 * PATIENCE_MS * MS) x->drain_ns = now + PATIENCE_MS * MS;
  hk_wait_begin(&w, &env);
  while (!plugin_drain_is_done(e) && hk_now_ns() < x->drain_ns && hk_wait_nap(&w, -1, NAP_NS) == HK_OK)
    for (int i = 0; i < x->nends; i++) /* the peer may wait for another end of this rank */
      if (hk_plugin_drain_step(x->ends[i]) != HK_OK) x->ends[i]->drain.gone = true;
}
