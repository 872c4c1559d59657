/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Invented machines, most of them absurd: whatever hk_topo_finish takes has paths and channels that hold, the same ones
 * when its parts come in another order, and found in a bounded number of steps. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "../support/fuzz.h"
#include "../support/suite.h"
#include "../support/topo_checks.h"
#include "../support/topo_machines.h"

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

static void add_link(machine *m, int a, int b, hk_edge_kind kind) {
  static const float speeds[] = {0.1f, 3, 12, 12.5f, 25, 48, 370, 1e30f, 1e-20f};
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
    if (i) add_link(m, i, (int)rnd((uint32_t)i), (hk_edge_kind)rnd(5));
  }
  for (int more = (int)rnd(60); more-- > 0;)
    add_link(m, (int)rnd((uint32_t)m->nnodes), (int)rnd((uint32_t)m->nnodes), (hk_edge_kind)rnd(5));
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

static int choose_seats(const hk_topo *t, uint32_t *nodes) {
  int n = 1 + (int)rnd(rnd(4) ? 8 : 40);
  for (int i = 0; i < n; i++) do
      nodes[i] = rnd(t->nnodes);
    while (t->nodes[nodes[i]].kind != HK_NODE_GPU && t->nodes[nodes[i]].kind != HK_NODE_CPU);
  return n;
}

START_TEST(invented) {
  machine m;
  uint32_t nodes[HK_SEARCH_RANKS];
  int rounds = 0;
  fuzz_begin();
  for (; fuzz_goes_on(); rounds++) {
    invent(&m);
    hk_topo *t = build(&m, false), *other = build(&m, true);
    ck_assert_msg(t->hash == other->hash, "seed %llu, round %d", (unsigned long long)fuzz_seed, rounds);
    hk_path_rules rules = {.no_pxn = rnd(4) == 0, .no_nvb = rnd(4) == 0, .no_p2p = rnd(8) == 0};
    rules.p2p_level = rnd(2) ? (hk_path_class)rnd(HK_PATH_DIS) : HK_PATH_LOC;
    hk_paths *p, *q;
    ck_assert_int_eq(hk_paths_new(&p, t, &rules), HK_OK);
    ck_assert_int_eq(hk_paths_new(&q, other, &rules), HK_OK);
    check_paths(p);
    for (int k = 0; k < 4; k++) {
      hk_search what = {
          .pattern = (hk_pattern)rnd(3), .nodes = nodes, .network = rnd(2), .cross_nic = (hk_cross_nic)rnd(3)};
      hk_channels *c, *d;
      what.nranks = choose_seats(t, nodes);
      what.min_channels = rnd(3) ? 0 : (int)rnd(80);
      what.max_channels = rnd(3) ? 0 : (int)rnd(80);
      ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_OK);
      ck_assert_int_eq(hk_search_channels(&d, q, &what), HK_OK);
      check_channels(c, p, &what);
      ck_assert_msg(c->hash == d->hash, "seed %llu, round %d", (unsigned long long)fuzz_seed, rounds);
      hk_channels_free(c);
      hk_channels_free(d);
    }
    hk_paths_free(p);
    hk_paths_free(q);
    hk_topo_free(t);
    hk_topo_free(other);
  }
  printf("%d machines from seed %llu\n", rounds, (unsigned long long)fuzz_seed);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("fuzz_search");
  tcase_set_timeout(t, 0);
  tcase_add_test(t, invented);
  return suite_run_one("fuzz_search", t);
}
