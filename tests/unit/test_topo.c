/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Topologies: canonical order, checks, bus ids, clusters and placements. */
#include "../support/suite.h"
#include "../support/topo_machines.h"

TEST(bus_ids) {
  static const struct {
    const char *text, *back;
    uint64_t id;
  } good[] = {{"0000:1b:00.0", "0000:1b:00.0", 0x1b000},
              {"1b:00.0", "0000:1b:00.0", 0x1b000},
              {"ffff:FF:01.0", "ffff:ff:01.0", 0xffffff010},
              {"10000:e1:00.1", "10000:e1:00.1", 0x10000e1001},
              {"fffffff:ff:ff.0", "fffffff:ff:ff.0", 0xfffffffffff0}};
  static const char *const bad[] = {"",         "0000",         "0000:1b",       "0000:1b:00",    "0000:1b:00.",
                                    "x",        "0000:1b:00.g", "0000:1b:00.00", " 0000:1b:00.0", "123456789:1b:00.0",
                                    "1ff:00.0", "0000-1b-00.0", "0000:1b:000.0"};
  uint64_t id;
  char text[24];
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(good); i++) {
    ck_assert(hk_bus_id_parse(good[i].text, &id));
    ck_assert_uint_eq(id, good[i].id);
    hk_bus_id_format(id, text);
    ck_assert_str_eq(text, good[i].back);
  }
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(bad); i++) ck_assert_msg(!hk_bus_id_parse(bad[i], &id), "%s", bad[i]);
  ck_assert(!hk_bus_id_parse(NULL, &id));
  hk_bus_id_format(UINT64_MAX, text); /* fits */
}

/* The same machine, its parts added in another order. */
static hk_topo *pair_of_gpus(bool turned) {
  hk_topo *t = m_new(turned ? "turned" : "straight");
  uint32_t cpu, a, b, nvs;
  if (turned) {
    nvs = m_add(t, HK_NODE_NVS, 0, -1);
    b = m_gpu(t, 1, m_bus(2), 0);
    a = m_gpu(t, 0, m_bus(1), 0);
    cpu = m_add(t, HK_NODE_CPU, 0, 0);
    m_link(t, nvs, b, HK_EDGE_NVLINK, 5, 100);
    m_link(t, a, nvs, HK_EDGE_NVLINK, 1, 20);
    m_link(t, b, cpu, HK_EDGE_PCI, 1, 12);
    m_link(t, nvs, a, HK_EDGE_NVLINK, 4, 80);
    m_link(t, a, cpu, HK_EDGE_PCI, 1, 12);
    snprintf(t->nodes[a].name, sizeof t->nodes[a].name, "a name is not part of the hash");
    t->nodes[cpu].cpu.cores = 3; /* nor is what this process may use */
  } else {
    cpu = m_add(t, HK_NODE_CPU, 0, 0);
    a = m_gpu(t, 0, m_bus(1), 0);
    b = m_gpu(t, 1, m_bus(2), 0);
    nvs = m_add(t, HK_NODE_NVS, 0, -1);
    m_link(t, cpu, a, HK_EDGE_PCI, 1, 12);
    m_link(t, cpu, b, HK_EDGE_PCI, 1, 12);
    m_link(t, a, nvs, HK_EDGE_NVLINK, 4, 80);
    m_link(t, a, nvs, HK_EDGE_NVLINK, 1, 20);
    m_link(t, b, nvs, HK_EDGE_NVLINK, 5, 100);
  }
  return m_finish(t);
}

TEST(canonical_order) {
  hk_topo *s = pair_of_gpus(false), *t = pair_of_gpus(true);
  ck_assert_uint_eq(s->hash, t->hash);
  ck_assert_uint_eq(s->nedges, 8); /* the two links between GPU 0 and the switch are one */
  for (uint32_t i = 0; i < s->nedges; i++) {
    const hk_edge *x = &s->edges[i], *y = &t->edges[i];
    ck_assert_uint_eq(x->from, y->from);
    ck_assert_uint_eq(x->to, y->to);
    ck_assert_uint_eq(x->count, y->count);
    ck_assert(x->gbps == y->gbps);
    ck_assert_uint_eq(s->edges[x->back].from, x->to);
    ck_assert_uint_eq(s->edges[x->back].back, i);
    ck_assert(i >= s->nodes[x->from].first_edge && i < s->nodes[x->from].first_edge + s->nodes[x->from].nedges);
  }
  uint32_t a = hk_topo_find(s, HK_NODE_GPU, m_bus(1)), nvs = hk_topo_find(s, HK_NODE_NVS, 0);
  ck_assert_uint_eq(a, 1);
  ck_assert_uint_eq(nvs, 3);
  ck_assert_uint_eq(hk_topo_find(s, HK_NODE_GPU, m_bus(3)), UINT32_MAX);
  ck_assert_uint_eq(hk_topo_find(s, HK_NODE_NET, 0), UINT32_MAX);
  ck_assert_uint_eq(hk_topo_count(s, HK_NODE_GPU), 2);
  ck_assert_uint_eq(hk_topo_count(s, HK_NODE_PCI), 0);
  hk_topo_free(s);
  hk_topo_free(t);
}

static void expect_refused(hk_topo *t, const char *text) {
  ck_assert_int_eq(hk_topo_finish(t), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), text), "%s", hk_last_error());
  hk_topo_free(t);
}

TEST(refusals) {
  uint32_t node;
  expect_refused(m_new("empty"), "empty is empty");
  hk_topo *t = m_new("twins");
  m_gpu(t, 0, m_bus(1), 0);
  m_gpu(t, 1, m_bus(1), 0);
  expect_refused(t, "GPU 0000:01:00.0 twice");
  t = m_new("islands");
  m_add(t, HK_NODE_CPU, 0, 0);
  m_add(t, HK_NODE_CPU, 1, 1);
  expect_refused(t, "no links lead from CPU 0 to CPU 1");
  static const float bad[] = {0, -1, 1.0f / 0.0f, 0.0f / 0.0f};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(bad); i++) {
    t = m_new("slow");
    m_link(t, m_add(t, HK_NODE_CPU, 0, 0), m_gpu(t, 0, m_bus(1), 0), HK_EDGE_PCI, 1, bad[i]);
    expect_refused(t, "GPU 0000:01:00.0 has a bandwidth of");
  }
  t = m_new("self");
  m_add(t, HK_NODE_CPU, 0, 0);
  ck_assert_int_eq(hk_topo_link(t, 0, 0, HK_EDGE_SYS, 1, 1, 0), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_topo_link(t, 0, 7, HK_EDGE_SYS, 1, 1, 0), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_topo_add(t, HK_NODE_KINDS, 0, &node), HK_ERR_ARGUMENT);
  m_finish(t);
  ck_assert_int_eq(hk_topo_add(t, HK_NODE_CPU, 1, &node), HK_ERR_USAGE);
  ck_assert_int_eq(hk_topo_link(t, 0, 0, HK_EDGE_SYS, 1, 1, 0), HK_ERR_USAGE);
  ck_assert_int_eq(hk_topo_finish(t), HK_ERR_USAGE);
  ck_assert_int_eq(hk_topo_remark(t, "a link at %d GT/s", 8), HK_OK);
  ck_assert_int_eq(hk_topo_remark(t, "no switch seen"), HK_OK);
  ck_assert_str_eq(t->remarks, "a link at 8 GT/s\nno switch seen\n");
  hk_topo_free(t);
  t = m_new("large");
  for (int i = 0; i < HK_TOPO_NODES; i++) m_add(t, HK_NODE_CPU, (uint64_t)i, 0);
  ck_assert_int_eq(hk_topo_add(t, HK_NODE_CPU, 1, &node), HK_ERR_ARGUMENT);
  hk_topo_free(t);
}

TEST(labels) {
  hk_topo *t = m_dgx_h100(8);
  char text[HK_NODE_LABEL];
  static const char *const want[] = {"CPU 0", "PCI 0000:10:00.0", "GPU 0", "NVS", "NIC 0000:12:00.0", "NET 0"};
  for (int k = 0; k < HK_NODE_KINDS; k++) {
    hk_node_label(&t->nodes[t->first_of[k]], text);
    ck_assert_str_eq(text, want[k]);
  }
  hk_topo_free(t);
}

TEST(placements) {
  hk_cluster *c;
  hk_placement *s;
  int n;
  ck_assert_int_eq(hk_cluster_of(&c, m_dgx_h100(8), 3), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(c, 5, &s, &n), HK_OK);
  ck_assert_int_eq(n, 24);
  for (int i = 0; i < n; i++) {
    ck_assert_int_eq(s[i].host, i / 8);
    ck_assert_int_eq(hk_cluster_host(c, s[i].host)->nodes[s[i].node].gpu.dev, i % 8);
  }
  free(s);
  hk_cluster_free(c);

  ck_assert_int_eq(hk_cluster_of(&c, m_cpu_host(2, 0), 2), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(c, 5, &s, &n), HK_OK);
  static const uint32_t want[] = {0, 0, 0, 1, 1};
  ck_assert_int_eq(n, 10);
  for (int i = 0; i < n; i++) ck_assert_uint_eq(s[i].node, want[i % 5]);
  free(s);
  ck_assert_int_eq(hk_cluster_placements(c, 0, &s, &n), HK_OK);
  ck_assert_int_eq(n, 128);
  for (int i = 0; i < n; i++) ck_assert_uint_eq(s[i].node, (unsigned)i / 32 % 2);
  free(s);
  hk_cluster_free(c);

  /* A topology is given up to the cluster also where there is none. */
  ck_assert_int_eq(hk_cluster_of(&c, m_cpu_host(1, 0), 0), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(c);
}

TEST(placements_of_two_kinds) {
  hk_cluster *c;
  hk_placement *s;
  int n;
  hk_topo *gpus = m_new("turned numbers");
  uint32_t cpu = m_add(gpus, HK_NODE_CPU, 0, 0);
  for (int i = 0; i < 4; i++) m_link(gpus, cpu, m_gpu(gpus, 3 - i, m_bus(1 + i), 0), HK_EDGE_PCI, 1, 12);
  ck_assert_int_eq(hk_cluster_of(&c, m_finish(gpus), 3), HK_OK);
  hk_topo **kinds = realloc(c->kinds, 2 * sizeof *kinds);
  uint16_t *kind_of = calloc(3, sizeof *kind_of);
  ck_assert(kinds && kind_of);
  c->kinds = kinds;
  c->kinds[1] = m_cpu_host(1, 0);
  c->nkinds = 2;
  c->kind_of = kind_of;
  kind_of[1] = 1;
  ck_assert_int_eq(hk_cluster_placements(c, 2, &s, &n), HK_OK);
  static const hk_placement want[] = {{0, 4}, {0, 3}, {0, 2}, {0, 1}, {1, 0}, {1, 0}, {2, 4}, {2, 3}, {2, 2}, {2, 1}};
  ck_assert_int_eq(n, 10);
  for (int i = 0; i < n; i++) {
    ck_assert_int_eq(s[i].host, want[i].host);
    ck_assert_uint_eq(s[i].node, want[i].node);
  }
  free(s);
  hk_cluster_free(c);
}

int main(void) { return suite_main("topo"); }
