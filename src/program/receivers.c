/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts receiving links by the rank that they receive from. */
#include "receivers.h"
#include <stdlib.h>

/* Counts the rank's receiving links by peer (`at` NULL), or enters them. */
static void receivers_of(const hk_program *p, int rank, int n, uint32_t *start, hk_receiver *at) {
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    if (hk_link_sends((hk_link_kind)l[k].kind)) continue;
    const int peer = l[k].peer % n;
    if (at)
      at[start[peer]++] = (hk_receiver){.rank = (uint32_t)rank, .link = k};
    else
      start[peer + 1]++;
  }
}

hk_status hk_receivers_sort(hk_receivers *out, const hk_program *const *programs, int n) {
  *out = (hk_receivers){.first = calloc((size_t)n + 2, sizeof *out->first)};
  if (!out->first) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the links of %d programs", n);
  uint32_t *start = out->first + 1; /* shifted by one while it is filled; afterwards the entries are the starts */
  for (int r = 0; r < n; r++) receivers_of(programs[r], r, n, start, NULL);
  for (int r = 1; r <= n; r++) start[r] += start[r - 1];
  out->at = malloc(((size_t)start[n] + 1) * sizeof *out->at);
  if (!out->at) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the links of %d programs", n);
  for (int r = 0; r < n; r++) receivers_of(programs[r], r, n, start, out->at);
  return HK_OK;
}

void hk_receivers_free(hk_receivers *r) {
  free(r->first);
  free(r->at);
}
