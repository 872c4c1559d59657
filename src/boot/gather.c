/* SPDX-License-Identifier: Apache-2.0 */
/* All links of the overlay, and the collectives over them: allgathers (Bruck) and barriers (dissemination). */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

hk_status hk_overlay_open_all(hk_bootstrap *b, bool doubling) {
  hk_message *m = NULL;
  hk_wait_env env = hk_report_begin(b, hk_report_bounded(b));
  for (int k = 0; k < b->rounds; k++) {
    HK_OR_RETURN(hk_overlay_connect(b, k, &env));
    if (!doubling || k + 1 == b->rounds) continue;
    hk_overlay_link *next = hk_link_to(b, true, k), *previous = hk_link_to(b, false, k);
    HK_OR_RETURN(
        hk_overlay_send(previous, HK_FRAME_CONTACT, 0, hk_contact_of(b, next->rank), HK_CONTACT_BYTES, NULL, 0));
    HK_OR_RETURN(hk_overlay_await(next, HK_FRAME_CONTACT, 0, &env, &m));
    memcpy(hk_contact_of(b, hk_link_to(b, true, k + 1)->rank), m->data, HK_CONTACT_BYTES);
    free(m);
  }
  return HK_OK;
}

/* Before round k a rank has the rows of itself and the 2^k - 1 ranks after it. It sends the rows that the rank 2^k
 * before it still lacks to that rank, and receives the same number from the rank 2^k after it. */
hk_status hk_overlay_gather(hk_bootstrap *b, uint8_t *table, size_t bytes, const hk_wait_env *env) {
  size_t n = (size_t)b->nranks, me = (size_t)b->rank;
  uint64_t seq = ++b->gathers;
  for (int k = 0; k < b->rounds; k++) {
    size_t have = (size_t)1 << k, count = have < n - have ? have : n - have;
    size_t first = count < n - me ? count : n - me; /* rows before the numbering wraps */
    hk_overlay_link *next = hk_link_to(b, true, k), *previous = hk_link_to(b, false, k);
    hk_message *m;
    HK_OR_RETURN(hk_overlay_send(previous, HK_FRAME_GATHER, seq, table + me * bytes, first * bytes, table,
                                 (count - first) * bytes));
    HK_OR_RETURN(hk_overlay_await(next, HK_FRAME_GATHER, seq, env, &m));
    size_t from = (size_t)next->rank, got = m->frame.bytes;
    first = count < n - from ? count : n - from;
    if (got == count * bytes) {
      memcpy(table + from * bytes, m->data, first * bytes);
      memcpy(table, m->data + first * bytes, (count - first) * bytes);
    }
    free(m);
    if (got != count * bytes)
      return HK_FAIL(HK_ERR_REMOTE,
                     "rank %d gathers %zu bytes a rank and rank %d gathers %zu: all ranks must load the same library",
                     next->rank, got / count, b->rank, bytes);
  }
  return HK_OK;
}

/* Dissemination: after round k a rank knows that the 2^(k+1) - 1 ranks before it have entered. */
hk_status hk_overlay_barrier(hk_bootstrap *b, const hk_wait_env *env) {
  uint64_t seq = ++b->barriers;
  for (int k = 0; k < b->rounds; k++) {
    hk_message *m;
    HK_OR_RETURN(hk_overlay_send(hk_link_to(b, true, k), HK_FRAME_BARRIER, seq, NULL, 0, NULL, 0));
    HK_OR_RETURN(hk_overlay_await(hk_link_to(b, false, k), HK_FRAME_BARRIER, seq, env, &m));
    free(m);
  }
  return HK_OK;
}

hk_status hk_bootstrap_allgather(hk_bootstrap *b, void *table, size_t bytes) {
  hk_wait_env env = hk_report_begin(b, hk_report_bounded(b));
  return bytes ? hk_overlay_gather(b, table, bytes, &env) : hk_overlay_barrier(b, &env);
}

void hk_bootstrap_skip(hk_bootstrap *b) { b->gathers++; }

void hk_bootstrap_also(hk_bootstrap *b, hk_status (*check)(void *arg), void *arg) {
  b->call.also = check;
  b->call.also_arg = arg;
}

hk_status hk_bootstrap_barrier(hk_bootstrap *b) { return hk_bootstrap_allgather(b, NULL, 0); }
