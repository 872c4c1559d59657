/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a topology: takes nodes and links in any order, then gives them a canonical order, checks them and makes the
 * hash. */
#include "topo.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/hash.h"

const char *hk_node_kind_name(hk_node_kind k) {
  static const char *const names[] = {"CPU", "PCI", "GPU", "NVS", "NIC", "NET"};
  _Static_assert(HK_ARRAY_LENGTH(names) == HK_NODE_KINDS, "a name for each kind of node");
  return (unsigned)k < HK_NODE_KINDS ? names[k] : "unknown node";
}

static void topo_name_id(uint8_t kind, uint64_t id, char *text) {
  const char *name = hk_node_kind_name((hk_node_kind)kind);
  char bus[24];
  hk_bus_id_format(id, bus);
  if (kind == HK_NODE_PCI || kind == HK_NODE_GPU || kind == HK_NODE_NIC)
    snprintf(text, HK_NODE_LABEL, "%s %s", name, bus);
  else
    snprintf(text, HK_NODE_LABEL, "%s %llu", name, (unsigned long long)id);
}

void hk_node_label(const hk_node *n, char *text) {
  if (n->kind == HK_NODE_GPU && n->gpu.dev >= 0)
    snprintf(text, HK_NODE_LABEL, "GPU %d", n->gpu.dev);
  else if (n->kind == HK_NODE_NVS)
    snprintf(text, HK_NODE_LABEL, "NVS");
  else
    topo_name_id(n->kind, n->id, text);
}

hk_status hk_topo_new(hk_topo **out, const char *name) {
  hk_topo *t = calloc(1, sizeof *t);
  *out = t;
  if (!t) return HK_FAIL_ERRNO("no memory for a topology");
  snprintf(t->name, sizeof t->name, "%s", name ? name : "");
  return HK_OK;
}

void hk_topo_free(hk_topo *t) {
  if (!t) return;
  free(t->nodes);
  free(t->edges);
  free(t->remarks);
  free(t);
}

/* A finished topology has its kinds counted. */
static bool topo_finished(const hk_topo *t) { return t->first_of[HK_NODE_KINDS] > 0; }

hk_status hk_topo_add(hk_topo *t, hk_node_kind kind, uint64_t id, uint32_t *out) {
  if ((unsigned)kind >= HK_NODE_KINDS) return HK_FAIL(HK_ERR_ARGUMENT, "%d is not a kind of node", (int)kind);
  if (topo_finished(t)) return HK_FAIL(HK_ERR_USAGE, "topology %s is finished: no node can be added", t->name);
  if (t->nnodes >= HK_TOPO_NODES)
    return HK_FAIL(HK_ERR_ARGUMENT, "topology %s has more than %d nodes; describe one host, not a cluster", t->name,
                   HK_TOPO_NODES);
  if (!HK_RESERVE_NEXT(t->nodes, t->nnodes)) return HK_FAIL_ERRNO("no memory for %u nodes", t->nnodes + 1);
  hk_node *n = &t->nodes[t->nnodes];
  memset(n, 0, sizeof *n);
  n->kind = (uint8_t)kind;
  n->numa = -1;
  n->id = id;
  *out = t->nnodes++;
  return HK_OK;
}

hk_status hk_topo_link(hk_topo *t, uint32_t a, uint32_t b, hk_edge_kind kind, unsigned count, float gbps, float us) {
  if (topo_finished(t)) return HK_FAIL(HK_ERR_USAGE, "topology %s is finished: no link can be added", t->name);
  if (a >= t->nnodes || b >= t->nnodes || a == b)
    return HK_FAIL(HK_ERR_ARGUMENT, "topology %s: a link from node %u to node %u of %u", t->name, a, b, t->nnodes);
  if (t->nedges >= 2 * HK_TOPO_LINKS)
    return HK_FAIL(HK_ERR_ARGUMENT, "topology %s has more than %d links", t->name, HK_TOPO_LINKS);
  if (!HK_RESERVE_NEXT(t->edges, t->nedges)) return HK_FAIL_ERRNO("no memory for %u links", t->nedges / 2 + 1);
  hk_edge e = {.from = a, .to = b, .kind = (uint8_t)kind, .gbps = gbps, .us = us};
  e.count = (uint16_t)(count < UINT16_MAX ? count : UINT16_MAX);
  t->edges[t->nedges++] = e;
  e.from = b;
  e.to = a;
  t->edges[t->nedges++] = e;
  return HK_OK;
}

hk_status hk_topo_remark(hk_topo *t, const char *format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  size_t had = t->remarks ? strlen(t->remarks) : 0, more = strlen(line);
  char *text = realloc(t->remarks, had + more + 2);
  if (!text) return HK_FAIL_ERRNO("no memory for a remark");
  memcpy(text + had, line, more);
  memcpy(text + had + more, "\n", 2);
  t->remarks = text;
  return HK_OK;
}

/* --- The canonical order --- */

typedef struct place {
  uint64_t id;
  uint32_t old;
  uint8_t kind;
} place;

static int topo_by_kind_and_id(const void *a, const void *b) {
  const place *x = a, *y = b;
  if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

static hk_status topo_sort_nodes(hk_topo *t) {
  hk_status rc = HK_OK;
  place *order = calloc(t->nnodes, sizeof *order);
  uint32_t *now = calloc(t->nnodes, sizeof *now);
  hk_node *sorted = calloc(t->nnodes, sizeof *sorted);
  if (!order || !now || !sorted) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to sort %u nodes", t->nnodes), out);
  for (uint32_t i = 0; i < t->nnodes; i++) order[i] = (place){.id = t->nodes[i].id, .old = i, .kind = t->nodes[i].kind};
  qsort(order, t->nnodes, sizeof *order, topo_by_kind_and_id);
  for (uint32_t i = 0; i < t->nnodes; i++) {
    if (i && !topo_by_kind_and_id(&order[i - 1], &order[i])) {
      char label[HK_NODE_LABEL];
      topo_name_id(order[i].kind, order[i].id, label);
      rc = HK_FAIL(HK_ERR_ARGUMENT, "topology %s has %s twice; each needs an id of its own", t->name, label);
      goto out;
    }
    now[order[i].old] = i;
    sorted[i] = t->nodes[order[i].old];
  }
  memcpy(t->nodes, sorted, t->nnodes * sizeof *sorted);
  for (uint32_t i = 0; i < t->nedges; i++) {
    t->edges[i].from = now[t->edges[i].from];
    t->edges[i].to = now[t->edges[i].to];
  }
out:
  free(order);
  free(now);
  free(sorted);
  return rc;
}

/* Parallel edges also get a fixed order, because the rounding of the sum of their bandwidths depends on it. */
static int topo_by_ends(const void *a, const void *b) {
  const hk_edge *x = a, *y = b;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
  return (x->gbps > y->gbps) - (x->gbps < y->gbps);
}

static bool topo_same_ends(const hk_edge *a, const hk_edge *b) {
  return a->from == b->from && a->to == b->to && a->kind == b->kind;
}

static uint32_t topo_edge_index(const hk_topo *t, uint32_t from, uint32_t to, uint8_t kind) {
  for (uint32_t e = t->nodes[from].first_edge, end = e + t->nodes[from].nedges; e < end; e++)
    if (t->edges[e].to == to && t->edges[e].kind == kind) return e;
  return UINT32_MAX;
}

static void topo_sort_edges(hk_topo *t) {
  uint32_t n = 0;
  if (t->nedges) qsort(t->edges, t->nedges, sizeof *t->edges, topo_by_ends);
  for (uint32_t i = 0; i < t->nedges; i++) {
    const hk_edge e = t->edges[i];
    if (!n || !topo_same_ends(&t->edges[n - 1], &e)) {
      t->edges[n++] = e;
      continue;
    }
    hk_edge *into = &t->edges[n - 1];
    into->gbps += e.gbps;
    into->count = (uint16_t)(into->count + e.count < UINT16_MAX ? into->count + e.count : UINT16_MAX);
    if (e.us < into->us) into->us = e.us;
  }
  t->nedges = n;
  for (uint32_t i = 0, e = 0; i < t->nnodes; i++) {
    t->nodes[i].first_edge = e;
    while (e < n && t->edges[e].from == i) e++;
    t->nodes[i].nedges = e - t->nodes[i].first_edge;
  }
  for (uint32_t i = 0; i < n; i++)
    t->edges[i].back = topo_edge_index(t, t->edges[i].to, t->edges[i].from, t->edges[i].kind);
}

/* --- Checks --- */

static hk_status topo_check_edges(const hk_topo *t) {
  for (uint32_t i = 0; i < t->nedges; i++) {
    const hk_edge *e = &t->edges[i];
    char a[HK_NODE_LABEL], b[HK_NODE_LABEL];
    topo_name_id(t->nodes[e->from].kind, t->nodes[e->from].id, a);
    topo_name_id(t->nodes[e->to].kind, t->nodes[e->to].id, b);
    if (!(e->gbps > 0) || !isfinite(e->gbps))
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "topology %s: the link from %s to %s has a bandwidth of %g GB/s; it must be above 0", t->name, a,
                     b, (double)e->gbps);
    if (!(e->us >= 0) || !isfinite(e->us))
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "topology %s: the link from %s to %s has a latency of %g us; it must not be below 0", t->name, a,
                     b, (double)e->us);
    if (e->kind > HK_EDGE_PORT)
      return HK_FAIL(HK_ERR_ARGUMENT, "topology %s: the link from %s to %s is of unknown kind %d", t->name, a, b,
                     e->kind);
  }
  return HK_OK;
}

static hk_status topo_check_connected(const hk_topo *t) {
  uint32_t *queue = malloc(t->nnodes * sizeof *queue), n = 1;
  bool *seen = calloc(t->nnodes, sizeof *seen);
  hk_status rc = HK_OK;
  if (!queue || !seen) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to check %u nodes", t->nnodes), out);
  queue[0] = 0;
  seen[0] = true;
  for (uint32_t i = 0; i < n; i++) {
    const hk_node *at = &t->nodes[queue[i]];
    const hk_edge *e = hk_topo_edges(t, at);
    for (uint32_t k = 0; k < at->nedges; k++)
      if (!seen[e[k].to]) seen[queue[n++] = e[k].to] = true;
  }
  for (uint32_t i = 0; i < t->nnodes && rc == HK_OK; i++) {
    char a[HK_NODE_LABEL], b[HK_NODE_LABEL];
    if (seen[i]) continue;
    topo_name_id(t->nodes[i].kind, t->nodes[i].id, a);
    topo_name_id(t->nodes[0].kind, t->nodes[0].id, b);
    rc = HK_FAIL(HK_ERR_ARGUMENT,
                 "topology %s: no links lead from %s to %s; link it to its parent, and CPUs to each other", t->name, b,
                 a);
  }
out:
  free(queue);
  free(seen);
  return rc;
}

/* --- The hash of all that decisions depend on: not of names, PCI ids, GUIDs, or the cores this process may use --- */

static void topo_mix(uint64_t *h, uint64_t value) { *h = hk_hash_mix(*h, value); }
static void topo_mix_float(uint64_t *h, float value) { *h = hk_hash_mix_float(*h, value); }

static void topo_mix_text(uint64_t *h, const char *text, size_t most) {
  size_t n = strnlen(text, most);
  topo_mix(h, n);
  for (size_t i = 0; i < n; i++) topo_mix(h, (unsigned char)text[i]);
}

static void topo_mix_node(uint64_t *h, const hk_node *n) {
  topo_mix(h, n->kind);
  topo_mix(h, n->id);
  topo_mix(h, (uint64_t)(int64_t)n->numa);
  switch (n->kind) {
    case HK_NODE_CPU:
      topo_mix_text(h, n->cpu.arch, sizeof n->cpu.arch);
      topo_mix_text(h, n->cpu.vendor, sizeof n->cpu.vendor);
      topo_mix(h, (uint64_t)(int64_t)n->cpu.family);
      topo_mix(h, (uint64_t)(int64_t)n->cpu.model);
      topo_mix_float(h, n->cpu.memory_gbps);
      break;
    case HK_NODE_GPU:
      topo_mix(h, (uint64_t)(int64_t)n->gpu.dev);
      topo_mix(h, (uint64_t)(int64_t)n->gpu.sm);
      topo_mix_float(h, n->gpu.memory_gbps);
      topo_mix(h, n->gpu.gdr * 2u + n->gpu.mcast);
      break;
    case HK_NODE_NET:
      topo_mix(h, (uint64_t)(int64_t)n->net.dev);
      topo_mix(h, (uint64_t)(int64_t)n->net.port);
      topo_mix(h, (uint64_t)(int64_t)n->net.rail);
      topo_mix_float(h, n->net.mbps);
      topo_mix_float(h, n->net.latency_us);
      topo_mix(h, n->net.gdr * 2u + n->net.ethernet);
      break;
    default: break;
  }
}

static uint64_t topo_hash_of(const hk_topo *t) {
  uint64_t h = hk_hash_mix(t->nnodes, t->nedges);
  for (uint32_t i = 0; i < t->nnodes; i++) topo_mix_node(&h, &t->nodes[i]);
  for (uint32_t i = 0; i < t->nedges; i++) {
    const hk_edge *e = &t->edges[i];
    topo_mix(&h, (uint64_t)e->from << 32 | e->to);
    topo_mix(&h, (uint64_t)e->kind << 32 | e->count);
    topo_mix_float(&h, e->gbps);
    topo_mix_float(&h, e->us);
  }
  return h ? h : 1;
}

hk_status hk_topo_finish(hk_topo *t) {
  if (topo_finished(t)) return HK_FAIL(HK_ERR_USAGE, "topology %s is finished already", t->name);
  if (!t->nnodes) return HK_FAIL(HK_ERR_ARGUMENT, "topology %s is empty; it needs a CPU or a GPU", t->name);
  HK_OR_RETURN(topo_sort_nodes(t));
  topo_sort_edges(t);
  HK_OR_RETURN(topo_check_edges(t));
  HK_OR_RETURN(topo_check_connected(t));
  for (uint32_t k = 0, i = 0; k <= HK_NODE_KINDS; k++) {
    while (i < t->nnodes && t->nodes[i].kind < k) i++;
    t->first_of[k] = i;
  }
  t->hash = topo_hash_of(t);
  return HK_OK;
}

uint32_t hk_topo_find(const hk_topo *t, hk_node_kind kind, uint64_t id) {
  const bool sorted = topo_finished(t);
  const uint32_t first = sorted ? t->first_of[kind] : 0, end = sorted ? t->first_of[kind + 1] : t->nnodes;
  for (uint32_t i = first; i < end; i++)
    if (t->nodes[i].kind == kind && t->nodes[i].id == id) return i;
  return UINT32_MAX;
}

/* --- Bus ids and link speeds --- */

/* Up to `most` hexadecimal digits. */
static bool topo_hex(const char **text, int most, uint64_t *out) {
  int n = 0;
  for (*out = 0; n < most; n++, (*text)++) {
    char c = **text;
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) break;
    *out = *out << 4 | (uint64_t)digit;
  }
  return n > 0;
}

bool hk_bus_id_parse(const char *text, uint64_t *out) {
  uint64_t domain, bus, device, function;
  if (!text || !topo_hex(&text, 8, &domain) || *text++ != ':' || !topo_hex(&text, 2, &bus)) return false;
  if (*text == '.') { /* "1b:00.0" */
    device = bus;
    bus = domain;
    domain = 0;
    if (bus > 0xff) return false;
  } else if (*text++ != ':' || !topo_hex(&text, 2, &device)) {
    return false;
  }
  if (*text++ != '.' || !topo_hex(&text, 1, &function) || *text) return false;
  *out = domain << 20 | bus << 12 | device << 4 | function;
  return true;
}

void hk_bus_id_format(uint64_t id, char *text) {
  snprintf(text, 24, "%04llx:%02llx:%02llx.%llx", (unsigned long long)(id >> 20 & 0xffffffff),
           (unsigned long long)(id >> 12 & 0xff), (unsigned long long)(id >> 4 & 0xff), (unsigned long long)(id & 0xf));
}

/* 8b/10b below 8 GT/s, 128b/130b up to 32, flits of 242 in 256 bytes above. Headers, acknowledgements and credits leave
 * large copies 0.82 of that: 12.9, 25.8 and 51.7 GB/s on 16 lanes of the third to fifth generation. */
float hk_pci_gbps(float gts, int width) {
  if (!(gts > 0) || width <= 0) return 0;
  float coded = gts < 8 ? 0.8f : gts > 32 ? 242.0f / 256 : 128.0f / 130;
  return gts * (float)width / 8 * coded * 0.82f;
}

/* Raw rates are 20 (Pascal), 25 (Volta to Hopper) and 50 GB/s (Blackwell), of xGMI 32 (MI50, MI100), 50 (MI200), 64
 * (MI300) and 76.8 (MI350); these are the rates that collectives reach. */
float hk_nvlink_gbps(int sm) {
  if (sm >= 1000) return 0; /* AMD's graphics cards */
  if (sm >= 950) return 57.6f;
  if (sm >= 940) return 48;
  if (sm >= 910) return 36;
  if (sm >= 900) return 24;
  if (sm >= 120) return 0; /* workstation Blackwell has none */
  if (sm >= 100) return 40.1f;
  if (sm >= 90) return 20.6f;
  if (sm >= 86) return 12.0f; /* narrower links */
  if (sm >= 80) return 20.0f;
  if (sm >= 70) return 21.0f;
  if (sm >= 60) return 18.0f;
  return 0;
}
