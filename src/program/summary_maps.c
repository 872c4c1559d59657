/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the messages of all ranks into maps (summary.h). */
#include <stdlib.h>
#include <string.h>
#include "summary_run.h"

static int summary_maps_by_message(const void *a, const void *b) {
  const hk_summary_message *x = a, *y = b;
  if (x->by != y->by) return x->by < y->by ? -1 : 1;
  return (x->from > y->from) - (x->from < y->from);
}

/* Sorts messages that are after equal chains. Most are in order. */
static void summary_maps_order(hk_summary_message *m, size_t n) {
  for (size_t k = 1; k < n; k++)
    if (summary_maps_by_message(&m[k - 1], &m[k]) > 0) {
      qsort(m, n, sizeof *m, summary_maps_by_message);
      return;
    }
}

/* True if each of the n ranks sends equally many of these messages, which are sorted by sender. */
static bool summary_maps_all_send(const hk_summary_message *s, size_t count, size_t n) {
  for (size_t k = 0; k < count; k++)
    if (count % n || s[k].from != k / (count / n)) return false;
  return true;
}

static void summary_maps_add(hk_summary *out, const hk_summary_message *m, hk_map_kind kind, size_t times) {
  out->maps[out->nmaps++] = (hk_map){.after = hk_summary_chain_of(m->after),
                                     .kind = kind,
                                     .by = m->by,
                                     .from = kind == HK_MAP_PAIR ? m->from : 0,
                                     .times = (uint32_t)times};
}

/* Makes maps of this kind from the n messages, which are after equal chains. Those that are in none come first; returns
 * their number. `counts` [2 nranks], zeros: for messages by hk_map.by; `capacity` [n]. */
static size_t summary_maps_take(hk_summary *out, const hk_summary_run *x, hk_summary_message *m, size_t n,
                                hk_map_kind kind, uint32_t *counts, hk_summary_message *capacity) {
  const uint32_t ranks = (uint32_t)x->nranks, senders = (uint32_t)x->period;
  size_t kept = 0, likely = 0;
  for (size_t k = 0; k < n; k++) {
    m[k].by = kind == HK_MAP_SHIFT ? (m[k].to + ranks - m[k].from) % ranks : m[k].to ^ m[k].from;
    counts[m[k].by]++;
  }
  for (size_t k = 0; k < n; k++) /* a map has a message of each sender */
    if (counts[m[k].by] < senders)
      m[kept++] = m[k];
    else
      capacity[likely++] = m[k];
  for (size_t k = 0; k < kept; k++) counts[m[k].by] = 0;
  for (size_t k = 0; k < likely; k++) counts[capacity[k].by] = 0;
  summary_maps_order(capacity, likely);
  for (size_t k = 0, count; k < likely; k += count) {
    for (count = 1; k + count < likely && capacity[k + count].by == capacity[k].by;) count++;
    if (summary_maps_all_send(&capacity[k], count, senders)) {
      summary_maps_add(out, &capacity[k], kind, count / senders);
    } else {
      memcpy(&m[kept], &capacity[k], count * sizeof *m);
      kept += count;
    }
  }
  return kept;
}

/* Makes maps of the n messages, which are after equal chains. */
static void summary_maps_equal(hk_summary *out, const hk_summary_run *x, hk_summary_message *m, size_t n,
                               uint32_t *counts, hk_summary_message *capacity) {
  for (hk_map_kind kind = x->kind; kind < HK_MAP_PAIR && n >= (size_t)x->period; kind++)
    n = summary_maps_take(out, x, m, n, kind, counts, capacity);
  for (size_t k = 0; k < n; k++) m[k].by = m[k].to;
  summary_maps_order(m, n);
  for (size_t k = 0, count; k < n; k += count) {
    for (count = 1; k + count < n && m[k + count].to == m[k].to && m[k + count].from == m[k].from;) count++;
    summary_maps_add(out, &m[k], HK_MAP_PAIR, count);
  }
}

static unsigned summary_maps_digit(const hk_summary_message *m, unsigned d) {
  return (d < 4 ? m->from >> 8 * d : d < 8 ? m->to >> 8 * (d - 4) : (uint32_t)(m->after >> 8 * (d - 8))) & 255;
}

/* Sorts the messages by chain, receiver and sender, with as much room for others. There are millions with few chains:
 * qsort takes ten times as long. Returns where they are. */
static hk_summary_message *summary_maps_sort(hk_summary_message *m, hk_summary_message *capacity, size_t n) {
  for (unsigned d = 0; n && d < 4 + 4 + sizeof(hk_chain_key); d++) {
    size_t at[257] = {0};
    for (size_t k = 0; k < n; k++) at[summary_maps_digit(&m[k], d) + 1]++;
    if (at[summary_maps_digit(&m[0], d) + 1] == n) continue; /* all are equal */
    for (unsigned k = 1; k < 257; k++) at[k] += at[k - 1];
    for (size_t k = 0; k < n; k++) capacity[at[summary_maps_digit(&m[k], d)]++] = m[k];
    hk_summary_message *swap = m;
    m = capacity;
    capacity = swap;
  }
  return m;
}

hk_status hk_summary_maps(hk_summary *out, hk_summary_run *x) {
  hk_status rc = HK_OK;
  const size_t all = x->nmessages;
  hk_summary_message *capacity = malloc((all + 1) * sizeof *capacity), *m;
  uint32_t *counts = calloc(2 * (size_t)x->nranks, sizeof *counts);
  out->maps = malloc((all + 1) * sizeof *out->maps);
  if (!capacity || !counts || !out->maps) HK_GIVE_UP(hk_summary_memory(x->nranks), out);
  m = summary_maps_sort(x->messages, capacity, all);
  if (m == capacity) {
    capacity = x->messages;
    x->messages = m;
  }
  for (size_t k = 0, n; k < all; k += n) {
    for (n = 1; k + n < all && m[k + n].after == m[k].after;) n++;
    summary_maps_equal(out, x, &m[k], n, counts, capacity);
  }
out:
  free(counts);
  free(capacity);
  return rc;
}
