/* SPDX-License-Identifier: Apache-2.0 */
/* The outlines of algorithms' programs (outlines.h). */
#include "outlines.h"
#include <stdlib.h>
#include <string.h>
#include "../program/layout.h"
#include "select.h"

/* The most links and blocks moved of all programs that are summarized: up to half a second. */
enum { WORK_MOST = 1 << 22 };

struct hk_outlines {
  int nranks;
  const hk_layout *layout;
  hk_wires wires; /* n 0: not known */
  struct {
    bool known, barred;
    hk_outline outline;
  } at[HK_ALGORITHM_LIMIT][HK_COLL_COUNT];
};

hk_status hk_outlines_new(hk_outlines **out, int nranks, const hk_layout *layout) {
  hk_outlines *o = *out = calloc(1, sizeof *o);
  if (!o) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the summaries of %d ranks", nranks);
  o->nranks = nranks;
  o->layout = layout;
  return HK_OK;
}

hk_status hk_outlines_wire(hk_outlines *o, const hk_topo *t, const uint32_t *nodes, int n, const hk_path_rules *rules) {
  o->wires.nodes = malloc((size_t)n * sizeof *nodes);
  if (!o->wires.nodes) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the links of %d ranks", n);
  memcpy(o->wires.nodes, nodes, (size_t)n * sizeof *nodes);
  HK_OR_RETURN(hk_paths_new(&o->wires.paths, t, rules));
  o->wires.n = n;
  return HK_OK;
}

void hk_outlines_free(hk_outlines *o) {
  if (!o) return;
  hk_paths_free(o->wires.paths);
  free(o->wires.nodes);
  free(o);
}

/* *orders: the ring orders on which the programs differ. */
static hk_status outlines_orders(const hk_algorithm *a, const hk_build *what, int *orders) {
  hk_status rc = HK_OK;
  hk_program *p[2] = {NULL, NULL};
  hk_build one = *what;
  *orders = 1;
  if (!what->layout || what->layout->nchannels < 2) return HK_OK;
  for (int k = 0; k < 2; k++) {
    one.channel = k;
    HK_TRY(hk_algorithm_build(a, &one, &p[k]), out);
  }
  if (p[0]->bytes != p[1]->bytes || memcmp(p[0], p[1], p[0]->bytes) != 0) *orders = what->layout->nchannels;
out:
  for (int k = 0; k < 2; k++) hk_program_free(p[k]);
  return rc;
}

static hk_status outlines_make(hk_outlines *o, const hk_algorithm *a, hk_coll coll, hk_outline *out, bool *barred) {
  const hk_build what = {.coll = coll, .nranks = o->nranks, .layout = o->layout};
  hk_status rc = hk_algorithm_summarize(&out->summary, a, &what, WORK_MOST, barred);
  if (rc != HK_OK || *barred) return rc;
  HK_TRY(outlines_orders(a, &what, &out->orders), out);
  rc = hk_traffic_of(&out->traffic, &out->summary, out->orders, hk_coll_has_root(coll) ? what.root : -1, o->layout,
                     &o->wires);
out:
  free(out->summary.maps);
  out->summary.maps = NULL;
  out->summary.nmaps = 0;
  return rc;
}

hk_status hk_outlines_get(hk_outlines *o, const hk_algorithm *a, hk_coll coll, const hk_outline **out) {
  int i = 0;
  coll = hk_coll_plain(coll);
  while (hk_algorithms[i] != a) i++;
  bool *barred = &o->at[i][coll].barred;
  hk_outline *x = &o->at[i][coll].outline;
  if (!o->at[i][coll].known) HK_OR_RETURN(outlines_make(o, a, coll, x, barred));
  o->at[i][coll].known = true;
  *out = *barred ? NULL : x;
  return HK_OK;
}
