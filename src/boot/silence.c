/* SPDX-License-Identifier: Apache-2.0 */
/* Finds hosts that become silent while data is unacknowledged. On an idle link the kernel's keepalives do that
 * (hk_watch_silence). Otherwise the service thread looks once a second, by the rule of base/silence.h. */
#include <errno.h>
#include "../base/param.h"
#include "internal.h"

enum { LOOK_MS = 1000, PROBES_MOST = 127 /* that the kernel counts */ };

/* True if the host of the link's peer is gone. *pending: data is unacknowledged. */
static bool look_at(hk_overlay_link *l, unsigned limit_s, uint64_t now, bool *pending) {
  unsigned quiet_s;
  if (l->end != HK_END_OPEN || l->local || !hk_silence_pending(l->fd)) return false;
  *pending = true;
  return hk_silence_broken(&l->silence, l->fd, l->limit_s > limit_s ? l->limit_s : limit_s, now, &quiet_s);
}

static void look(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_bootstrap *b = arg;
  unsigned limit_s = (unsigned)hk_param_int(HK_P_PEER_TIMEOUT);
  hk_overlay_link *gone = NULL;
  bool pending = false;
  pthread_mutex_lock(&b->lock);
  uint64_t now = hk_now_ns();
  for (int i = 0; i < 2 * b->rounds && !gone; i++)
    if (look_at(&b->links[i], limit_s, now, &pending)) gone = &b->links[i];
  /* Under the lock, so that a frame sent from now on starts the tick again. */
  if (!pending) hk_service_tick(b->o.service, &b->look, 0, NULL, NULL);
  pthread_mutex_unlock(&b->lock);
  if (gone) hk_overlay_died(gone, ETIMEDOUT, NULL);
}

void hk_bootstrap_tolerate(hk_bootstrap *b, int rank, unsigned seconds) {
  unsigned limit_s = (unsigned)hk_param_int(HK_P_PEER_TIMEOUT), quarter_s = limit_s / 4 ? limit_s / 4 : 1;
  unsigned probes = seconds / quarter_s + 1;
  pthread_mutex_lock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++) {
    hk_overlay_link *l = &b->links[i];
    if (l->rank != rank || l->end != HK_END_OPEN || l->local) continue;
    l->limit_s = seconds;
    hk_silence_watch(l->fd, limit_s, probes < PROBES_MOST ? (int)probes : PROBES_MOST);
  }
  pthread_mutex_unlock(&b->lock);
}

void hk_silence_begin(hk_bootstrap *b) {
  if (b->o.service) hk_service_tick(b->o.service, &b->look, LOOK_MS, look, b);
}

void hk_silence_end(hk_bootstrap *b) {
  if (b->o.service) hk_service_tick(b->o.service, &b->look, 0, NULL, NULL);
}
