/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Paths are found class by class, the best class first. For each class only the links that it allows are used, the
 * fastest first. A breadth-first walk from each end then gives the paths with the fewest hops and, because neighbours
 * are visited in rising order, the lowest indices. A path that a walk found is final.
 */
#include "paths.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "../base/array.h"
#include "topo.h"

enum { NO_EDGE = 0xffffffffu, HOPS_MOST = 255 };

/* Limit of visited edges: a rack of 576 GPUs needs 50 million, and a broken file must not take minutes. */
static const uint64_t looks_most = 2000000000;

/* The rate of a copy inside one device if its memory's speed is unknown. */
static const float gpu_copy_gbps = 1000, cpu_copy_gbps = 50;

static const char *const class_names[] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                          "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};

const char *hk_path_class_name(hk_path_class c) {
  return (unsigned)c < HK_ARRAY_LENGTH(class_names) ? class_names[c] : "unknown class";
}

bool hk_path_class_parse(const char *text, hk_path_class *out) {
  static const hk_path_class old_levels[] = {HK_PATH_LOC, HK_PATH_PIX, HK_PATH_PXB,
                                             HK_PATH_PHB, HK_PATH_SYS, HK_PATH_SYS};
  if (!text || !*text) return false;
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(class_names); i++)
    if (!strcasecmp(text, class_names[i])) {
      *out = (hk_path_class)i;
      return true;
    }
  if (text[0] < '0' || text[0] > '5' || text[1]) return false;
  *out = old_levels[text[0] - '0'];
  return true;
}

typedef struct finder {
  hk_paths *p;
  const hk_topo *t;
  uint8_t *edge_class; /* the best class that a path over this edge can have */
  float *speeds;       /* the different bandwidths of links, in falling order */
  uint32_t nspeeds;    /* how many */
  /* queue: nodes in the order in which a walk found them; via: the edge by which it found each */
  uint32_t *queue, *via;
  uint32_t nhops, hopcap; /* of p->hops */
  uint64_t looks;         /* visited edges of all walks */
} finder;

static bool paths_is_end(const hk_node *n) {
  return n->kind == HK_NODE_GPU || n->kind == HK_NODE_NET || n->kind == HK_NODE_CPU;
}

static uint8_t paths_kind_of(const finder *f, uint32_t end) { return f->t->nodes[f->p->ends[end]].kind; }

static hk_path *paths_path_at(const finder *f, uint32_t from, uint32_t to) {
  return &f->p->at[(size_t)from * f->p->n + to];
}

static hk_path_class paths_class_of_edge(const hk_topo *t, const hk_edge *e) {
  uint8_t a = t->nodes[e->from].kind, b = t->nodes[e->to].kind;
  switch (e->kind) {
    case HK_EDGE_NVLINK: return HK_PATH_NVL;
    case HK_EDGE_C2C: return HK_PATH_C2C;
    case HK_EDGE_SYS: return HK_PATH_SYS;
    case HK_EDGE_PORT: return HK_PATH_PIX;
    default: break;
  }
  if (a == HK_NODE_CPU || b == HK_NODE_CPU) return HK_PATH_PHB;
  return a == HK_NODE_PCI && b == HK_NODE_PCI ? HK_PATH_PXB : HK_PATH_PIX;
}

/* --- Keeping a path and its mirror image --- */

static hk_status paths_add_hops(finder *f, const uint32_t *hops, uint32_t n, uint32_t *first) {
  if (!HK_RESERVE(f->p->hops, f->hopcap, f->nhops + n))
    return HK_FAIL_ERRNO("no memory for the hops of %u paths", f->p->n * f->p->n);
  *first = f->nhops;
  memcpy(f->p->hops + f->nhops, hops, n * sizeof *hops);
  f->nhops += n;
  return HK_OK;
}

static hk_status paths_keep(finder *f, uint32_t from, uint32_t to, hk_path_class cls, const uint32_t *hops,
                            uint32_t n) {
  uint32_t back[HOPS_MOST];
  hk_path path = {.cls = (uint8_t)cls, .nhops = (uint8_t)n};
  for (uint32_t i = 0; i < n; i++) {
    const hk_edge *e = &f->t->edges[hops[i]];
    if (!i || e->gbps < path.gbps) path.gbps = e->gbps;
    path.us += e->us;
    back[n - 1 - i] = e->back;
  }
  HK_OR_RETURN(paths_add_hops(f, hops, n, &path.first));
  *paths_path_at(f, from, to) = path;
  HK_OR_RETURN(paths_add_hops(f, back, n, &path.first));
  *paths_path_at(f, to, from) = path;
  return HK_OK;
}

/* Concatenates two paths; false if the result is too long or uses an edge twice. */
static bool paths_join(const finder *f, const hk_path *a, const hk_path *b, uint32_t *hops, uint32_t *n) {
  if (a->nhops + b->nhops > HOPS_MOST) return false;
  *n = 0;
  for (uint32_t i = 0; i < a->nhops; i++) hops[(*n)++] = f->p->hops[a->first + i];
  for (uint32_t i = 0; i < b->nhops; i++) {
    uint32_t hop = f->p->hops[b->first + i];
    for (uint32_t k = 0; k < a->nhops; k++)
      if (hops[k] == hop) return false;
    hops[(*n)++] = hop;
  }
  return true;
}

/* --- The walks --- */

static bool paths_may_pass(const finder *f, uint32_t node, hk_path_class bound) {
  switch (f->t->nodes[node].kind) {
    case HK_NODE_GPU:
    case HK_NODE_NET: return false;
    case HK_NODE_CPU: return bound >= HK_PATH_PHB;
    default: return true;
  }
}

/* Reaches nodes by paths of a class up to `bound`, over links of at least `gbps`. */
static void paths_walk(finder *f, uint32_t source, hk_path_class bound, float gbps) {
  const hk_topo *t = f->t;
  uint32_t n = 1;
  memset(f->via, 0xff, t->nnodes * sizeof *f->via);
  f->queue[0] = source;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = f->queue[i];
    if (i && !paths_may_pass(f, at, bound)) continue;
    f->looks += t->nodes[at].nedges;
    for (uint32_t e = t->nodes[at].first_edge, end = e + t->nodes[at].nedges; e < end; e++) {
      uint32_t to = t->edges[e].to;
      if (f->edge_class[e] > bound || t->edges[e].gbps < gbps || to == source || f->via[to] != NO_EDGE) continue;
      f->via[to] = e;
      f->queue[n++] = to;
    }
  }
}

static bool paths_leaves_by_c2c(const finder *f, uint32_t gpu, uint32_t net, uint32_t edge) {
  return paths_kind_of(f, gpu) == HK_NODE_GPU && paths_kind_of(f, net) == HK_NODE_NET &&
         f->t->edges[edge].kind == HK_EDGE_C2C;
}

static hk_status paths_keep_walked(finder *f, uint32_t from, uint32_t to, hk_path_class cls) {
  uint32_t hops[HOPS_MOST], n = 0, source = f->p->ends[from];
  for (uint32_t at = f->p->ends[to]; at != source; at = f->t->edges[f->via[at]].from) n++;
  if (n > HOPS_MOST) return HK_OK;
  for (uint32_t at = f->p->ends[to], i = n; at != source; at = f->t->edges[hops[i]].from) hops[--i] = f->via[at];
  if (cls == HK_PATH_PHB &&
      (paths_leaves_by_c2c(f, from, to, hops[0]) || paths_leaves_by_c2c(f, to, from, hops[n - 1])))
    cls = HK_PATH_P2C;
  return paths_keep(f, from, to, cls, hops, n);
}

/* Finds all paths of exactly this class, after those of better classes. */
static hk_status paths_find_class(finder *f, hk_path_class cls) {
  for (uint32_t from = 0; from < f->p->n; from++) {
    uint32_t missing = 0;
    if (f->looks > looks_most)
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "topology %s has too many links of too many speeds (%u of %u) for its paths to be found",
                     f->t->name, f->t->nedges, f->nspeeds);
    for (uint32_t to = from + 1; to < f->p->n; to++) missing += paths_path_at(f, from, to)->cls == HK_PATH_DIS;
    for (uint32_t s = 0; s < f->nspeeds && missing; s++) {
      paths_walk(f, f->p->ends[from], cls, f->speeds[s]);
      for (uint32_t to = from + 1; to < f->p->n; to++) {
        if (paths_path_at(f, from, to)->cls != HK_PATH_DIS || f->via[f->p->ends[to]] == NO_EDGE) continue;
        HK_OR_RETURN(paths_keep_walked(f, from, to, cls));
        missing--;
      }
    }
  }
  return HK_OK;
}

/* --- Paths through devices --- */

/* The hops from a to b through the GPU with the widest path: NVLink from a, then one of at most class `most`.  False:
 * there is none. */
static bool paths_join_by_gpu(const finder *f, uint32_t a, uint32_t b, hk_path_class most, uint32_t *hops,
                              uint32_t *n) {
  uint32_t best = UINT32_MAX;
  float widest = 0;
  for (uint32_t m = 0; m < f->p->n; m++) {
    const hk_path *x = paths_path_at(f, a, m), *y = paths_path_at(f, m, b);
    if (m == b || paths_kind_of(f, m) != HK_NODE_GPU || x->cls != HK_PATH_NVL || y->cls > most) continue;
    float gbps = x->gbps < y->gbps ? x->gbps : y->gbps;
    if (gbps <= widest) continue;
    widest = gbps;
    best = m;
  }
  return best != UINT32_MAX && paths_join(f, paths_path_at(f, a, best), paths_path_at(f, best, b), hops, n);
}

static hk_status paths_through_gpus(finder *f) {
  for (uint32_t a = 0; a < f->p->n; a++)
    for (uint32_t b = a + 1; b < f->p->n; b++) {
      uint32_t hops[HOPS_MOST], n;
      if (paths_kind_of(f, a) != HK_NODE_GPU || paths_kind_of(f, b) != HK_NODE_GPU) continue;
      if (paths_path_at(f, a, b)->cls != HK_PATH_DIS || !paths_join_by_gpu(f, a, b, HK_PATH_NVL, hops, &n)) continue;
      HK_OR_RETURN(paths_keep(f, a, b, HK_PATH_NVB, hops, n));
    }
  return HK_OK;
}

static uint32_t paths_nearest_cpu(const finder *f, uint32_t end) {
  uint32_t best = UINT32_MAX;
  for (uint32_t i = 0; i < f->p->n; i++) {
    const hk_path *path = paths_path_at(f, end, i);
    if (paths_kind_of(f, i) != HK_NODE_CPU || path->cls >= HK_PATH_NET) continue;
    if (best == UINT32_MAX || hk_path_nearer(path, paths_path_at(f, end, best))) best = i;
  }
  return best;
}

/* AMD's processors forward peer traffic at full speed; some others do so at a fraction of it. */
static hk_path_class paths_default_p2p_level(const hk_topo *t) {
  const hk_node *cpu = &t->nodes[t->first_of[HK_NODE_CPU]];
  if (!hk_topo_count(t, HK_NODE_CPU)) return HK_PATH_SYS;
  return strstr(cpu->cpu.vendor, "AMD") ? HK_PATH_SYS : HK_PATH_PXB;
}

/* GPU to GPU paths that peer access must not use go through the memory of a CPU. */
static hk_status paths_through_host(finder *f, hk_path_class level) {
  for (uint32_t a = 0; a < f->p->n; a++)
    for (uint32_t b = a + 1; b < f->p->n; b++) {
      const hk_path *old = paths_path_at(f, a, b);
      uint32_t hops[HOPS_MOST], n, cpu;
      if (paths_kind_of(f, a) != HK_NODE_GPU || paths_kind_of(f, b) != HK_NODE_GPU) continue;
      if (old->cls <= level || old->cls == HK_PATH_DIS || (cpu = paths_nearest_cpu(f, a)) == UINT32_MAX) continue;
      const hk_path *x = paths_path_at(f, a, cpu), *y = paths_path_at(f, cpu, b);
      if (y->cls == HK_PATH_DIS || !paths_join(f, x, y, hops, &n)) continue;
      hk_path_class cls = x->cls > y->cls ? x->cls : y->cls;
      HK_OR_RETURN(paths_keep(f, a, b, cls > HK_PATH_PHB ? cls : HK_PATH_PHB, hops, n));
      paths_path_at(f, a, b)->host = paths_path_at(f, b, a)->host = true;
    }
  return HK_OK;
}

/* To a NET through the GPU that has the widest path there without a host bridge. */
static hk_status paths_through_relays(finder *f) {
  for (uint32_t a = 0; a < f->p->n; a++)
    for (uint32_t net = 0; net < f->p->n; net++) {
      uint32_t hops[HOPS_MOST], n;
      if (paths_kind_of(f, a) != HK_NODE_GPU || paths_kind_of(f, net) != HK_NODE_NET) continue;
      if (paths_path_at(f, a, net)->cls <= HK_PATH_PXN || !paths_join_by_gpu(f, a, net, HK_PATH_P2C, hops, &n))
        continue;
      HK_OR_RETURN(paths_keep(f, a, net, HK_PATH_PXN, hops, n));
    }
  return HK_OK;
}

/* --- All together --- */

static int paths_falling(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

static hk_status paths_prepare(finder *f) {
  const hk_topo *t = f->t;
  hk_paths *p = f->p;
  for (uint32_t i = 0; i < t->nnodes; i++) p->n += paths_is_end(&t->nodes[i]);
  p->ends = malloc(p->n * sizeof *p->ends);
  p->index = malloc(t->nnodes * sizeof *p->index);
  p->at = calloc((size_t)p->n * p->n, sizeof *p->at);
  f->edge_class = malloc(t->nedges);
  f->speeds = malloc(t->nedges * sizeof *f->speeds);
  f->queue = malloc(t->nnodes * sizeof *f->queue);
  f->via = malloc(t->nnodes * sizeof *f->via);
  if (!p->ends || !p->index || !p->at || !f->edge_class || !f->speeds || !f->queue || !f->via)
    return HK_FAIL_ERRNO("no memory for the paths between %u ends", p->n);
  for (uint32_t i = 0, n = 0; i < t->nnodes; i++) {
    p->index[i] = paths_is_end(&t->nodes[i]) ? n : UINT32_MAX;
    if (paths_is_end(&t->nodes[i])) p->ends[n++] = i;
  }
  for (uint32_t i = 0; i < t->nedges; i++) {
    f->edge_class[i] = (uint8_t)paths_class_of_edge(t, &t->edges[i]);
    f->speeds[i] = t->edges[i].gbps;
  }
  qsort(f->speeds, t->nedges, sizeof *f->speeds, paths_falling);
  for (uint32_t i = 0; i < t->nedges; i++)
    if (!f->nspeeds || f->speeds[f->nspeeds - 1] != f->speeds[i]) f->speeds[f->nspeeds++] = f->speeds[i];
  return HK_OK;
}

static void paths_stay_at_home(finder *f) {
  for (size_t i = 0; i < (size_t)f->p->n * f->p->n; i++) f->p->at[i].cls = HK_PATH_DIS;
  for (uint32_t i = 0; i < f->p->n; i++) {
    const hk_node *n = &f->t->nodes[f->p->ends[i]];
    hk_path *path = paths_path_at(f, i, i);
    path->cls = HK_PATH_LOC;
    if (n->kind == HK_NODE_GPU) path->gbps = n->gpu.memory_gbps > 0 ? n->gpu.memory_gbps / 2 : gpu_copy_gbps;
    if (n->kind == HK_NODE_CPU) path->gbps = n->cpu.memory_gbps > 0 ? n->cpu.memory_gbps / 2 : cpu_copy_gbps;
    if (n->kind == HK_NODE_NET) path->gbps = n->net.mbps / 8000;
  }
}

hk_status hk_paths_new(hk_paths **out, const hk_topo *t, const hk_path_rules *rules) {
  static const hk_path_class classes[] = {HK_PATH_C2C, HK_PATH_PIX, HK_PATH_PXB, HK_PATH_PHB, HK_PATH_SYS};
  const hk_path_rules defaults = {0};
  hk_status rc = HK_OK;
  finder f = {.t = t, .p = calloc(1, sizeof(hk_paths))};
  if (!rules) rules = &defaults;
  if (!f.p) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for paths"), out);
  f.p->topo = t;
  HK_TRY(paths_prepare(&f), out);
  paths_stay_at_home(&f);
  HK_TRY(paths_find_class(&f, HK_PATH_NVL), out);
  if (!rules->no_nvb) HK_TRY(paths_through_gpus(&f), out);
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(classes); i++) HK_TRY(paths_find_class(&f, classes[i]), out);
  hk_path_class level = rules->p2p_level ? rules->p2p_level : paths_default_p2p_level(t);
  HK_TRY(paths_through_host(&f, rules->no_p2p ? HK_PATH_LOC : level), out);
  if (!rules->no_pxn) HK_TRY(paths_through_relays(&f), out);
out:
  free(f.edge_class);
  free(f.speeds);
  free(f.queue);
  free(f.via);
  if (rc != HK_OK) {
    hk_paths_free(f.p);
    f.p = NULL;
  }
  *out = f.p;
  return rc;
}

void hk_paths_free(hk_paths *p) {
  if (!p) return;
  free(p->ends);
  free(p->index);
  free(p->at);
  free(p->hops);
  free(p);
}

/* --- The NETs of a placement --- */

static bool paths_as_near(const hk_path *a, const hk_path *b) { return a->cls == b->cls && a->gbps == b->gbps; }

/* The number of GPUs with a lower number that are as near to this NET: its turn in the distribution. */
static uint32_t paths_turn_of(const hk_paths *p, uint32_t node, uint32_t net) {
  const hk_topo *t = p->topo;
  uint32_t turn = 0;
  if (t->nodes[node].kind != HK_NODE_GPU) return 0;
  for (uint32_t g = t->first_of[HK_NODE_GPU]; g < t->first_of[HK_NODE_GPU + 1]; g++)
    turn += t->nodes[g].gpu.dev < t->nodes[node].gpu.dev &&
            paths_as_near(hk_path_between(p, g, net), hk_path_between(p, node, net));
  return turn;
}

uint32_t hk_paths_nets(const hk_paths *p, uint32_t node, uint32_t *nets, uint32_t most) {
  const hk_topo *t = p->topo;
  uint32_t first = t->first_of[HK_NODE_NET], all = hk_topo_count(t, HK_NODE_NET), n = 0;
  while (n < most && n < all) {
    /* The next best group of equal NETs: those that are not better than the last one taken. */
    const hk_path *last = n ? hk_path_between(p, node, nets[n - 1]) : NULL, *best = NULL;
    uint32_t size = 0, head = 0;
    for (uint32_t i = first; i < first + all; i++) {
      const hk_path *path = hk_path_between(p, node, i);
      if (path->cls >= HK_PATH_NET || (last && !hk_path_nearer(last, path))) continue;
      if (!best || hk_path_nearer(path, best)) {
        best = path;
        size = 0;
        head = i;
      }
      size += paths_as_near(path, best);
    }
    if (!best) break;
    uint32_t skip = paths_turn_of(p, node, head) % size, seen = 0, begin = n;
    for (uint32_t round = 0; round < 2; round++)
      for (uint32_t i = first; i < first + all && n < most && n < begin + size; i++) {
        if (!paths_as_near(hk_path_between(p, node, i), best)) continue;
        if (round ? true : seen++ >= skip) nets[n++] = i;
      }
  }
  return n;
}

uint32_t hk_paths_near_nets(const hk_paths *p, uint32_t node, uint32_t *nets, uint32_t most) {
  const uint32_t n = hk_paths_nets(p, node, nets, most);
  uint32_t near = 0;
  while (near < n && paths_as_near(hk_path_between(p, node, nets[near]), hk_path_between(p, node, nets[0]))) near++;
  return near;
}

double hk_paths_busiest_us(const hk_paths *p, const double *load) {
  double us = 0;
  for (uint32_t e = 0; e < p->topo->nedges; e++) {
    const double gbps = (double)p->topo->edges[e].gbps, t = gbps > 0 ? load[e] / gbps / 1000 : 0;
    if (t > us) us = t;
  }
  return us;
}
