/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan long=asan */
/* Invented machines, most of them absurd: whatever hk_topo_finish takes has paths and channels that hold, the same ones
 * when its parts come in another order, and found in a bounded number of steps. Those of some machines, always the same
 * ones, are in tests/golden/invented.txt. */
#include "../support/fuzz.h"
#include "../support/golden.h"
#include "../support/suite.h"
#include "../support/topo_checks.h"
#include "../support/topo_machines.h"

#define GOLDEN "tests/golden/invented.txt"
enum { NODES = 40, LINKS = 120 };

typedef struct machine {
  int nnodes, nlinks;
  struct {
    hk_node_kind kind;
    uint64_t id;
    float memory;
    bool mcast;
  } node[NODES];
  struct {
    int a, b;
    hk_edge_kind kind;
    float gbps;
  } link[LINKS];
} machine;

static void add_link(machine *m, int a, int b) {
  static const float speeds[] = {0.1f, 3, 12, 12.5f, 25, 48, 370, 1e30f, 1e-20f};
  hk_edge_kind kind = (hk_edge_kind)rnd(5);
  if (m->nlinks == LINKS || a == b) return;
  float gbps = rnd(8) ? speeds[rnd(HK_ARRAY_LENGTH(speeds))] : (float)(rnd(100000) + 1) / 777;
  m->link[m->nlinks].a = a;
  m->link[m->nlinks].b = b;
  m->link[m->nlinks].kind = kind;
  m->link[m->nlinks++].gbps = gbps;
}

/* A tree of any parts, then links of any kind between any of them; sometimes as machines are built, mostly not. */
static void invent(machine *m) {
  memset(m, 0, sizeof *m);
  m->nnodes = 1 + (int)rnd(rnd(4) ? 16 : NODES);
  for (int i = 0; i < m->nnodes; i++) {
    m->node[i].kind = i ? (hk_node_kind)rnd(HK_NODE_KINDS) : HK_NODE_CPU;
    m->node[i].id = (uint64_t)i * 3 % 64;
    m->node[i].memory = rnd(2) ? (float)rnd(500) : 0;
    m->node[i].mcast = rnd(4) != 0;
    if (i) add_link(m, i, (int)rnd((uint32_t)i));
  }
  for (int more = (int)rnd(60); more-- > 0;) {
    int a = (int)rnd((uint32_t)m->nnodes);
    add_link(m, a, (int)rnd((uint32_t)m->nnodes));
  }
}

static void shuffle(int *order, int n) {
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n; i > 1; i--) {
    int k = (int)rnd((uint32_t)i), kept = order[i - 1];
    order[i - 1] = order[k];
    order[k] = kept;
  }
}

static hk_topo *build(const machine *m, bool shuffled) {
  int nodes[NODES], links[LINKS];
  uint32_t at[NODES];
  shuffle(nodes, m->nnodes);
  shuffle(links, m->nlinks);
  hk_topo *t = m_new("fuzz");
  for (int i = 0; i < m->nnodes; i++) {
    int k = shuffled ? nodes[i] : i;
    at[k] = m_add(t, m->node[k].kind, m->node[k].id, 0);
    hk_node *n = &t->nodes[at[k]];
    if (n->kind == HK_NODE_GPU)
      n->gpu = (hk_gpu_info){.dev = k, .memory_gbps = m->node[k].memory, .mcast = m->node[k].mcast};
    if (n->kind == HK_NODE_CPU) n->cpu.memory_gbps = m->node[k].memory;
    if (n->kind == HK_NODE_NET) n->net.rail = k % 4;
  }
  for (int i = 0; i < m->nlinks; i++) {
    int k = shuffled ? links[i] : i;
    bool turn = shuffled && rnd(2);
    m_link(t, at[turn ? m->link[k].b : m->link[k].a], at[turn ? m->link[k].a : m->link[k].b], m->link[k].kind, 1,
           m->link[k].gbps);
  }
  return m_finish(t);
}

static int choose_placements(const hk_topo *t, uint32_t *nodes) {
  int n = 1 + (int)rnd(rnd(4) ? 8 : 40);
  for (int i = 0; i < n; i++) do
      nodes[i] = rnd(t->nnodes);
    while (t->nodes[nodes[i]].kind != HK_NODE_GPU && t->nodes[nodes[i]].kind != HK_NODE_CPU);
  return n;
}

static hk_path_rules any_rules(void) {
  hk_path_rules rules = {.no_pxn = rnd(4) == 0};
  rules.no_nvb = rnd(4) == 0;
  rules.no_p2p = rnd(8) == 0;
  rules.p2p_level = rnd(2) ? (hk_path_class)rnd(HK_PATH_DIS) : HK_PATH_LOC;
  return rules;
}

static hk_search any_search(const hk_topo *t, uint32_t nodes[HK_SEARCH_RANKS]) {
  hk_search what = {.pattern = (hk_pattern)rnd(3), .nodes = nodes};
  what.network = rnd(2);
  what.cross_nic = (hk_cross_nic)rnd(3);
  what.nranks = choose_placements(t, nodes);
  what.min_channels = rnd(3) ? 0 : (int)rnd(80);
  what.max_channels = rnd(3) ? 0 : (int)rnd(80);
  return what;
}

/* Two sockets with switches, some GPUs with NVLinks and some NICs: what a search has to weigh. */
static void likely(machine *m) {
  static const float nvlinks[] = {20, 40, 40, 25}, nics[] = {12, 12, 25, 6};
  memset(m, 0, sizeof *m);
  int sockets = 1 + (int)rnd(2), switches = (int)rnd(4), gpus = 2 + (int)rnd(6), nets = (int)rnd(4);
  for (int i = 0; i < sockets + switches + gpus + 2 * nets + 1; i++) m->node[i].id = (uint64_t)i;
  for (int i = 0; i < sockets; i++) m->node[m->nnodes++].kind = HK_NODE_CPU;
  for (int i = 0; i < switches; i++) m->node[m->nnodes++].kind = HK_NODE_PCI;
  int parents = switches ? switches : sockets, first = switches ? sockets : 0, gpu = m->nnodes;
#define LINK(x, y, edge, speed)                                                                                        \
  do {                                                                                                                 \
    m->link[m->nlinks].a = x;                                                                                          \
    m->link[m->nlinks].b = y;                                                                                          \
    m->link[m->nlinks].kind = edge;                                                                                    \
    m->link[m->nlinks++].gbps = speed;                                                                                 \
  } while (0)
  if (sockets == 2) LINK(0, 1, HK_EDGE_SYS, (float)(10 + rnd(3) * 10));
  for (int i = 0; i < switches; i++) LINK(i * sockets / switches, sockets + i, HK_EDGE_PCI, rnd(2) ? 24 : 12);
  for (int i = 0; i < gpus; i++) {
    m->node[m->nnodes].kind = HK_NODE_GPU;
    m->node[m->nnodes].mcast = true;
    LINK(first + i * parents / gpus, m->nnodes++, HK_EDGE_PCI, rnd(4) ? 24 : 12);
  }
  for (int i = 0; i < nets; i++, m->nnodes += 2) {
    float gbps = nics[rnd(4)];
    m->node[m->nnodes].kind = HK_NODE_NIC;
    m->node[m->nnodes + 1].kind = HK_NODE_NET;
    LINK(first + (int)rnd((uint32_t)parents), m->nnodes, HK_EDGE_PCI, 24);
    LINK(m->nnodes, m->nnodes + 1, HK_EDGE_PORT, gbps);
  }
  uint32_t how = rnd(3);
  if (how == 0) m->node[m->nnodes++].kind = HK_NODE_NVS;
  for (int i = 0; how == 0 && i < gpus; i++) LINK(gpu + i, m->nnodes - 1, HK_EDGE_NVLINK, 100);
  for (int i = 0; how == 1 && i < gpus; i++)
    for (int k = 0; k < i; k++)
      if (rnd(3)) LINK(gpu + i, gpu + k, HK_EDGE_NVLINK, nvlinks[rnd(4)]);
#undef LINK
}

static void print_paths(FILE *out, const hk_paths *p) {
  for (uint32_t i = 0; i < p->n * p->n; i++) {
    const hk_path *at = &p->at[i];
    fprintf(out, "%u-%u %s%s %.6g %.6g:", p->ends[i / p->n], p->ends[i % p->n],
            hk_path_class_name((hk_path_class)at->cls), at->host ? " host" : "", (double)at->gbps, (double)at->us);
    for (uint32_t k = 0; k < at->nhops; k++) fprintf(out, " %u", p->hops[at->first + k]);
    fputc('\n', out);
  }
  for (uint32_t i = 0; i < p->n; i++) {
    uint32_t nets[HK_NETS_MOST], n = hk_paths_nets(p, p->ends[i], nets, HK_NETS_MOST);
    fprintf(out, "nets of %u:", p->ends[i]);
    for (uint32_t k = 0; k < n; k++) fprintf(out, " %u", nets[k]);
    fputc('\n', out);
  }
}

static void print_channels(FILE *out, const hk_channels *c, const hk_search *what) {
  fprintf(out, "pattern %d, network %d, %d, %d-%d channels:", what->pattern, what->network, what->cross_nic,
          what->min_channels, what->max_channels);
  fprintf(out, " %d %d %d %.6g %.6g %.6g %u %016llx\n", c->nchannels, c->intra_cls, c->inter_cls, (double)c->intra_gbps,
          (double)c->inter_gbps, (double)c->us, c->steps, (unsigned long long)c->hash);
  for (int i = 0; i < c->nchannels; i++) {
    fprintf(out, " %d ", (int)c->at[i].net_in);
    for (int k = 0; k < c->nranks; k++) fprintf(out, " %u", c->at[i].order[k]);
    fprintf(out, "  %d\n", (int)c->at[i].net_out);
  }
}

TEST(as_before) {
  golden g = golden_open(GOLDEN, "");
  machine m;
  uint32_t nodes[HK_SEARCH_RANKS];
  fuzz_begin_at(1);
  for (int i = 0; i < 300; i++) {
    char name[20], group[20], *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    i % 3 ? likely(&m) : invent(&m);
    hk_topo *t = build(&m, false);
    hk_path_rules rules = any_rules();
    hk_paths *p;
    ck_assert_int_eq(hk_paths_new(&p, t, &rules), HK_OK);
    print_paths(out, p);
    for (int k = 0; k < 4; k++) {
      hk_search what = any_search(t, nodes);
      hk_channels *c;
      if (i % 3) /* a rank for each GPU, but for some */
        for (what.nranks = 0, m.nlinks = 0; m.nlinks < m.nnodes; m.nlinks++)
          if (t->nodes[m.nlinks].kind == HK_NODE_GPU && rnd(8)) nodes[what.nranks++] = (uint32_t)m.nlinks;
      if (!what.nranks) continue;
      ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_OK);
      print_channels(out, c, &what);
      hk_channels_free(c);
    }
    fclose(out);
    snprintf(group, sizeof group, "from %d", i / 12 * 12);
    snprintf(name, sizeof name, "%d", i);
    golden_text(&g, group, name, text, size);
    hk_paths_free(p);
    hk_topo_free(t);
  }
  golden_close(&g);
}

TEST(invented) {
  machine m;
  uint32_t nodes[HK_SEARCH_RANKS];
  fuzz_begin(25);
  do {
    invent(&m);
    hk_topo *t = build(&m, false), *other = build(&m, true);
    ck_assert_msg(t->hash == other->hash, "seed %llu, round %u", (unsigned long long)fuzz_seed, fuzz_case);
    hk_path_rules rules = any_rules();
    hk_paths *p, *q;
    ck_assert_int_eq(hk_paths_new(&p, t, &rules), HK_OK);
    ck_assert_int_eq(hk_paths_new(&q, other, &rules), HK_OK);
    check_paths(p);
    for (int k = 0; k < 4; k++) {
      hk_search what = any_search(t, nodes);
      hk_channels *c, *d;
      ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_OK);
      ck_assert_int_eq(hk_search_channels(&d, q, &what), HK_OK);
      check_channels(c, p, &what);
      ck_assert_msg(c->hash == d->hash && c->steps == d->steps, "seed %llu, round %u", (unsigned long long)fuzz_seed,
                    fuzz_case);
      hk_channels_free(c);
      hk_channels_free(d);
    }
    hk_paths_free(p);
    hk_paths_free(q);
    hk_topo_free(t);
    hk_topo_free(other);
  } while (fuzz_goes_on());
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("fuzz_search", .timeout = 0);
}
