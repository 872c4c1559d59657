/* SPDX-License-Identifier: Apache-2.0 */
/* The outlines of algorithms' programs (outlines.h). */
#include "outlines.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "../program/builder.h"
#include "../program/layout.h"
#include "../topo/paths.h"
#include "../topo/search.h"
#include "../topo/topo.h"
#include "select.h"

/* The most links and blocks moved of all programs that are summarized: up to half a second. */
enum { WORK_MOST = 1 << 22 };
/* The most ranks whose chains are looked at on each ring order. */
enum { RANKS_OF_ORDERS = 1 << 14 };
/* The most bytes of a host's programs that are built for its load: up to a few milliseconds. */
enum { LOAD_MOST = 1 << 20 };

struct hk_outlines {
  int nranks;
  uint32_t slots;
  const hk_layout *layout;
  hk_wires wires; /* n 0: not known */
  struct {
    const hk_algorithm *algorithm; /* NULL: free, as all that follow */
    hk_outline *of[HK_COLL_COUNT]; /* NULL: not yet made */
    hk_load load[HK_COLL_COUNT];   /* no blocks: not yet made */
  } at[HK_ALGORITHM_LIMIT];
};

hk_status hk_outlines_new(hk_outlines **out, int nranks, const hk_layout *layout, uint32_t slots) {
  hk_outlines *o = *out = calloc(1, sizeof *o);
  if (!o) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the summaries of %d ranks", nranks);
  o->nranks = nranks;
  o->layout = layout;
  o->slots = slots;
  return HK_OK;
}

/* The network ports that are equally near to each GPU. */
static void outlines_find_ports(hk_wires *w) {
  const hk_topo *t = w->paths->topo;
  w->nports = hk_topo_count(t, HK_NODE_NET);
  for (int i = 0; i < w->n; i++) {
    uint32_t nets[HK_PORTS_MOST];
    hk_ports *ports = &w->ports[i];
    ports->n = hk_paths_near_nets(w->paths, w->nodes[i], nets, HK_PORTS_MOST);
    for (uint32_t k = 0; k < ports->n; k++) ports->at[k] = nets[k] - t->first_of[HK_NODE_NET];
    if (ports->n == 0) {
      w->nports = 0;
      return;
    }
    const hk_path *p = hk_path_between(w->paths, w->nodes[i], nets[0]);
    const double own = (double)t->edges[w->paths->hops[p->first]].gbps, one = (double)p->gbps;
    ports->share = own > 0 ? 1 / fmin(own, one * ports->n) : 0;
    if (one > 0 && (i == 0 || one < w->slowest)) w->slowest = one;
  }
  for (int i = 0; i < w->n; i++) w->ports[i].share *= w->slowest;
}

hk_status hk_outlines_wire(hk_outlines *o, const hk_topo *t, const uint32_t *nodes, int n, bool rails,
                           const hk_channels *rings, const hk_path_rules *rules) {
  o->wires.rails = rails;
  o->wires.rings = rings;
  o->wires.nodes = malloc((size_t)n * sizeof *nodes);
  o->wires.ports = calloc((size_t)n, sizeof *o->wires.ports);
  if (!o->wires.nodes || !o->wires.ports) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the links of %d ranks", n);
  memcpy(o->wires.nodes, nodes, (size_t)n * sizeof *nodes);
  HK_OR_RETURN(hk_paths_new(&o->wires.paths, t, rules));
  o->wires.n = n;
  outlines_find_ports(&o->wires);
  return HK_OK;
}

void hk_outlines_forget(hk_outlines *o, const hk_algorithm *a) {
  int i = 0, last = HK_ALGORITHM_LIMIT;
  while (i < HK_ALGORITHM_LIMIT && o->at[i].algorithm != a) i++;
  if (i == HK_ALGORITHM_LIMIT) return;
  for (int c = 0; c < HK_COLL_COUNT; c++) free(o->at[i].of[c]);
  while (!o->at[--last].algorithm) {}
  o->at[i] = o->at[last];
  memset(&o->at[last], 0, sizeof o->at[last]);
}

void hk_outlines_free(hk_outlines *o) {
  if (!o) return;
  for (int i = 0; i < HK_ALGORITHM_LIMIT; i++)
    for (int c = 0; c < HK_COLL_COUNT; c++) free(o->at[i].of[c]);
  hk_paths_free(o->wires.paths);
  free(o->wires.nodes);
  free(o->wires.ports);
  free(o);
}

/* *orders: the ring orders, if the programs of the rank differ on some of them; else 1. */
static hk_status outlines_orders(const hk_algorithm *a, const hk_build *what, int *orders) {
  hk_status rc = HK_OK;
  hk_program *first = NULL, *p = NULL;
  hk_build one = *what;
  *orders = 1;
  if (!what->layout || what->layout->nchannels < 2) return HK_OK;
  HK_TRY(hk_algorithm_build(a, &one, &first), out);
  for (one.channel = 1; one.channel < what->layout->nchannels && *orders == 1; one.channel++) {
    HK_TRY(hk_algorithm_build(a, &one, &p), out);
    if (p->bytes != first->bytes || memcmp(p, first, p->bytes) != 0) *orders = what->layout->nchannels;
    hk_program_free(p);
    p = NULL;
  }
out:
  hk_program_free(p);
  hk_program_free(first);
  return rc;
}

/* On each ring order a root has another place on its host, so the chains of messages cross between hosts at other
 * ranks, and on some orders more often. All channels must end, so the order with the longest chain counts. */
static hk_status outlines_longest(int *order, const hk_outlines *o, const hk_outline *of, int root) {
  hk_chain longest = of->first, one;
  hk_status rc = HK_OK;
  int32_t *host = malloc((size_t)o->nranks * sizeof *host);
  if (!host) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the hosts of %d ranks", o->nranks);
  for (int k = 1; k < of->orders; k++) {
    for (int r = 0; r < o->nranks; r++)
      host[r] = hk_layout_host_of(o->layout, hk_layout_moved(o->layout, 0, k, root, r));
    HK_TRY(hk_summary_first_on(&one, &of->summary, host), out);
    if (!hk_chain_is_longer(&one, &longest)) continue;
    longest = one;
    *order = k;
  }
out:
  free(host);
  return rc;
}

static hk_status outlines_summarize(const hk_outlines *o, const hk_algorithm *a, hk_build what, hk_outline *out) {
  hk_summary *s = &out->summary;
  /* The links of host 0 are those that traffic looks at. On another ring order, another host's ranks may be there. */
  HK_OR_RETURN(hk_algorithm_summarize(s, a, &what, o->slots, out->orders == 1, WORK_MOST, &out->barred));
  out->first = s->first;
  out->held = s->held;
  if (!s->events || what.nranks > RANKS_OF_ORDERS) return HK_OK;
  HK_OR_RETURN(outlines_longest(&what.channel, o, out, what.root));
  if (!what.channel) return HK_OK;
  hk_summary_clear(s);
  return hk_algorithm_summarize(s, a, &what, o->slots, false, WORK_MOST, &out->barred);
}

static hk_status outlines_make(hk_outlines *o, const hk_algorithm *a, hk_coll coll, hk_outline *out) {
  const hk_build what = {.coll = coll, .nranks = o->nranks, .layout = o->layout};
  hk_status rc = outlines_orders(a, &what, &out->orders);
  if (rc == HK_OK && out->orders == 1 && o->layout) { /* a rank at the end of its host may leave it on some orders */
    hk_build end = what;
    end.rank = hk_layout_rank(o->layout, 0, hk_layout_size(o->layout, 0, o->nranks) - 1);
    rc = outlines_orders(a, &end, &out->orders);
  }
  if (rc == HK_ERR_USAGE) out->barred = true; /* the format cannot hold the program (builder.h) */
  if (rc != HK_OK) return out->barred ? HK_OK : rc;
  HK_TRY(outlines_summarize(o, a, what, out), out);
  if (out->barred) goto out;
  rc = hk_traffic_of(&out->traffic, &out->summary, out->orders, hk_coll_has_root(coll) ? what.root : -1, o->layout,
                     &o->wires);
out:
  hk_summary_shrink(&out->summary);
  return rc;
}

/* *at: the place of the algorithm. */
static hk_status outlines_find(hk_outlines *o, const hk_algorithm *a, int *at) {
  *at = 0;
  if (!o) return HK_FAIL(HK_ERR_INTERNAL, "the machine has no programs' outlines");
  while (o->at[*at].algorithm && o->at[*at].algorithm != a) ++*at;
  o->at[*at].algorithm = a;
  return HK_OK;
}

hk_status hk_outlines_load(hk_outlines *o, const hk_algorithm *a, hk_coll coll, const hk_load **out) {
  const int n = hk_layout_size(o->layout, 0, o->nranks);
  hk_build what = {.coll = hk_coll_plain(coll), .nranks = o->nranks, .layout = o->layout};
  int i;
  HK_OR_RETURN(outlines_find(o, a, &i));
  hk_load *x = &o->at[i].load[what.coll];
  *out = x;
  if (x->blocks) return HK_OK;
  for (int local = 0; local < n && (size_t)local * x->program <= LOAD_MOST; local++) {
    hk_program *p;
    what.rank = hk_layout_rank(o->layout, 0, local);
    const hk_status rc = hk_algorithm_build(a, &what, &p);
    if (rc != HK_OK) return rc == HK_ERR_USAGE ? HK_OK : rc; /* builder.h */
    hk_load_add(x, p, o->layout ? o->layout->host : NULL);
    hk_program_free(p);
  }
  return HK_OK;
}

hk_status hk_outlines_get(hk_outlines *o, const hk_algorithm *a, hk_coll coll, const hk_outline **out) {
  int i;
  HK_OR_RETURN(outlines_find(o, a, &i));
  coll = hk_coll_plain(coll);
  hk_outline *x = o->at[i].of[coll];
  if (!x) {
    x = calloc(1, sizeof *x);
    if (!x) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the summary of %s", a->name);
    hk_status rc = outlines_make(o, a, coll, x);
    if (rc != HK_OK) {
      free(x);
      return rc;
    }
    o->at[i].of[coll] = x;
  }
  *out = x->barred ? NULL : x;
  return HK_OK;
}
