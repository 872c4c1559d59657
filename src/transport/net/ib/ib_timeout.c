/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the cards: how long a queue pair waits for an answer, and when a card gives up. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include "../../../base/param.h"
#include "ib_state.h"

/* A card may wait up to four times its timeout before it sends again. */
uint64_t hk_ib_gives_up_ns(unsigned timeout, unsigned retries) {
  return ((uint64_t)4096 << timeout) * 4 * (retries + 1);
}

/* 14 means 67 ms: much longer than the round trip within a building under load, and a lost packet costs no more than
 * that. Long paths get eight round trips. */
unsigned hk_ib_timeout_for(uint32_t round_trip_us, unsigned retries, uint64_t bound_ns) {
  unsigned n = 14;
  while ((uint64_t)4096 << n < 8000 * (uint64_t)round_trip_us && hk_ib_gives_up_ns(n + 1, retries) <= bound_ns) n++;
  return n;
}

/* The kernel measures the round trip of the control connection's segments, whatever the peer does. */
void hk_ib_measure(hk_ib_conn *c) {
  struct tcp_info info;
  socklen_t n = sizeof info;
  int64_t asked = c->ctx->env->settings->IB_TIMEOUT;
  memset(&info, 0, sizeof info);
  if (getsockopt(c->control.fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0) c->round_trip_us = info.tcpi_rtt;
  unsigned retries = (unsigned)c->ctx->env->settings->IB_RETRY_CNT;
  c->timeout = asked >= 0 ? (unsigned)asked : hk_ib_timeout_for(c->round_trip_us, retries, c->ctx->timeout_ns);
  if (asked >= 0 || !c->repair.broken_ns) return;
  /* After repeated failures: a connection that is only slow (soft-RoCE on busy CPUs) gets twice the time for each
   * attempt or, if no pair has worked yet, for each round of all pairs. Otherwise it would only make new queue
   * pairs. */
  uint64_t past = hk_ago_ns(hk_now_ns(), c->repair.broken_ns);
  uint32_t tries = c->ports.pairs[c->paths[0].pair].worked ? 1 : (uint32_t)c->ports.npairs;
  for (uint32_t i = tries; i < c->repair.attempts; i += tries)
    if (past + hk_ib_gives_up_ns(c->timeout + 1, retries) <= c->ctx->timeout_ns) c->timeout++;
}
