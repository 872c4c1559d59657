/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The search: what it finds on machines whose best channels are known, and what holds on every machine. */
#include <time.h>
#include "../../src/topo/synth.h"
#include "../support/suite.h"
#include "../support/topo_checks.h"
#include "../support/topo_machines.h"

typedef struct found {
  hk_cluster *cluster;
  const hk_topo *t;
  hk_paths *p;
  hk_channels *c;
  hk_search what;
  uint32_t nodes[HK_SEARCH_RANKS];
} found;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void search_again(found *f) {
  double begin = now_ms();
  ck_assert_msg(hk_search_channels(&f->c, f->p, &f->what) == HK_OK, "%s", hk_last_error());
  static const char *const patterns[] = {"rings", "trees", "stars"};
  printf("%-12s %3d ranks%s: %2d %s of %.1f GB/s (%s), NETs %.1f (%s); %u steps, %.2f ms\n", f->t->name, f->what.nranks,
         f->what.network ? ", net" : "", f->c->nchannels, patterns[f->what.pattern], (double)f->c->intra_gbps,
         hk_path_class_name((hk_path_class)f->c->intra_cls), (double)f->c->inter_gbps,
         hk_path_class_name((hk_path_class)f->c->inter_cls), f->c->steps, now_ms() - begin);
  check_channels(f->c, f->p, &f->what);
}

static found last;
static void forget(void) {
  hk_channels_free(last.c);
  hk_paths_free(last.p);
  hk_cluster_free(last.cluster);
  last = (found){0};
}

/* It goes with the next search, or when the test ends. */
static found *search(hk_topo *t, int per_host, hk_search what) {
  hk_placement *placements;
  forget();
  found *f = &last;
  *f = (found){.t = t, .what = what};
  ck_assert_int_eq(hk_cluster_of(&f->cluster, t, 1), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(f->cluster, per_host, &placements, &f->what.nranks), HK_OK);
  for (int i = 0; i < f->what.nranks; i++) f->nodes[i] = placements[i].node;
  free(placements);
  f->what.nodes = f->nodes;
  ck_assert_int_eq(hk_paths_new(&f->p, t, NULL), HK_OK);
  search_again(f);
  return f;
}

static void expect(const found *f, int nchannels, float gbps) {
  ck_assert_msg(f->c->nchannels == nchannels && f->c->intra_gbps > gbps - 0.1f && f->c->intra_gbps < gbps + 0.1f,
                "%s: %d channels of %.2f GB/s, not %d of %.2f", f->t->name, f->c->nchannels, (double)f->c->intra_gbps,
                nchannels, (double)gbps);
}

/* How many channels each NET serves: equal up to one. */
static void expect_balance(const found *f) {
  int least = 1000, most = 0;
  for (uint32_t n = f->t->first_of[HK_NODE_NET]; n < f->t->first_of[HK_NODE_NET + 1]; n++) {
    int in = 0;
    for (int i = 0; i < f->c->nchannels; i++) in += f->c->at[i].net_in == n;
    least = in < least ? in : least;
    most = in > most ? in : most;
  }
  ck_assert_msg(most - least <= 1, "%s: from %d to %d channels on a NET", f->t->name, least, most);
}

static const hk_search ring = {.pattern = HK_PATTERN_RING}, ring_net = {.pattern = HK_PATTERN_RING, .network = true};
static const hk_search tree = {.pattern = HK_PATTERN_TREE}, tree_net = {.pattern = HK_PATTERN_TREE, .network = true};
static const hk_search star = {.pattern = HK_PATTERN_STAR}, star_net = {.pattern = HK_PATTERN_STAR, .network = true};

TEST(nvswitch) {
  found *f = search(m_dgx_h100(8), 0, ring);
  expect(f, 8, 46.35f); /* all of 18 links: 370.8 GB/s */
  f = search(m_dgx_h100(8), 0, ring_net);
  expect(f, 8, 46.35f);
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_PXN);
  ck_assert_uint_le(f->c->steps, 240); /* 30 a ring: it takes nothing back, and ends with the last one */
  for (int i = 0; i < 8; i++) {        /* enters and leaves by a rail of its own, next to its first rank */
    ck_assert_int_eq(f->t->nodes[f->c->at[i].net_in].net.rail, i);
    ck_assert_int_eq(f->t->nodes[f->nodes[f->c->at[i].order[0]]].gpu.dev, i);
  }
  expect_balance(f);
  f = search(m_dgx_h100(8), 0, tree_net);
  expect(f, 8, 26.49f); /* seven of eight send up and down: 8 * 370.8 / 14 */
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_PIX);
  expect_balance(f);
  f = search(m_dgx_h100(8), 0, star);
  expect(f, 8, 41.2f); /* eight shares and what each owner takes and gives */
  f = search(m_dgx_h100(8), 0, star_net);
  expect(f, 8, 41.2f);
  expect_balance(f);
  f = search(m_dgx_h100(4), 0, ring_net);
  expect_balance(f);
  ck_assert_float_ge((float)f->c->nchannels * f->c->inter_gbps, 4 * 48 - 1);
  f = search(m_dgx_h100(0), 0, ring_net); /* no NIC to enter by: the search still gives rings inside the host */
  expect(f, 16, 26.49f);
}

/* Six rings, one each way round three circles: every NVLink of the hybrid cube mesh is used both ways. */
TEST(cube_mesh) {
  found *f = search(m_dgx1v(4), 0, ring);
  expect(f, 6, 21);
  ck_assert_int_eq(f->c->intra_cls, HK_PATH_NVL);
  double used = 0, all = 0;
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < 8; k++) {
      const hk_path *hop =
          hk_path_between(f->p, f->nodes[f->c->at[i].order[k]], f->nodes[f->c->at[i].order[(k + 1) % 8]]);
      ck_assert_int_eq(hop->nhops, 1);
      used += 21;
    }
  for (uint32_t i = 0; i < f->t->nedges; i++)
    if (f->t->edges[i].kind == HK_EDGE_NVLINK) all += (double)f->t->edges[i].gbps;
  ck_assert_double_eq_tol(used, all, 0.1);
  f = search(m_dgx1v(4), 0, ring_net);
  ck_assert_int_eq(f->c->nchannels, 4);
  ck_assert_float_eq_tol(f->c->inter_gbps, 12, 0.1f);
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_PIX);
  expect_balance(f);
  f = search(m_dgx1v(4), 0, tree_net);
  ck_assert_int_eq(f->c->nchannels, 4);
  ck_assert_float_ge(f->c->intra_gbps, 12);
  ck_assert_uint_lt(f->c->steps, 300);
  f = search(m_dgx1v(0), 0, star);
  ck_assert_int_eq(f->c->nchannels, 0); /* no switch */
}

TEST(pci_boxes) {
  float pci = hk_pci_gbps(16, 16);
  found *f = search(m_pcie_box(1, 2, 8, 0, "GenuineIntel"), 0, ring);
  expect(f, 1, pci);
  f = search(m_pcie_box(2, 4, 8, 4, "GenuineIntel"), 0, ring);
  expect(f, 1, 20); /* the sockets' link, crossed once each way */
  f = search(m_pcie_box(2, 4, 8, 4, "GenuineIntel"), 0, ring_net);
  ck_assert_float_ge((float)f->c->nchannels * f->c->intra_gbps, 19.9f);
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_PIX); /* the last rank is on the first one's switch */
  f = search(m_pcie_box(2, 4, 8, 4, "GenuineIntel"), 0,
             (hk_search){.pattern = HK_PATTERN_RING, .network = true, .cross_nic = HK_CROSS_NIC_YES});
  expect(f, 2,
         pci / 2); /* from one socket to the other, one ring each way: the sockets' link is crossed once by each */
  ck_assert_uint_ne(f->c->at[0].net_in, f->c->at[0].net_out);
  f = search(m_pcie_box(2, 4, 8, 4, "GenuineIntel"), 0,
             (hk_search){.pattern = HK_PATTERN_RING, .network = true, .cross_nic = HK_CROSS_NIC_BETTER});
  expect(f, 2, pci / 2); /* more than by one NIC */
  f = search(m_pcie_box(2, 0, 4, 0, "AuthenticAMD"), 0, tree);
  ck_assert_float_ge((float)f->c->nchannels * f->c->intra_gbps, pci / 2 - 0.1f);
}

/* A link between any two of eight: seven rings that share none. */
TEST(full_mesh) {
  found *f = search(m_xgmi(8), 0, ring);
  expect(f, 7, 48);
  f = search(m_xgmi(8), 0, ring_net);
  expect(f, 7, 48);
  expect_balance(f);
  f = search(m_xgmi(8), 0, tree);
  expect(f, 4, 48);
}

TEST(ranks_on_cpus) {
  found *f = search(m_cpu_host(2, 2), 8, ring);
  expect(f, 1, 50.0f / 3);
  for (int i = 0; i < 8; i++) ck_assert_int_eq(f->c->at[0].order[i], i);
  f = search(m_cpu_host(2, 2), 8, ring_net);
  ck_assert_int_eq(f->c->nchannels, 2);
  expect_balance(f);
  f = search(m_cpu_host(8, 8), 128, tree_net);
  f = search(m_cpu_host(1, 0), 128, ring_net);
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_NET);
  ck_assert(f->c->inter_gbps == 0);
  for (int net = 0; net < 2; net++) { /* alone */
    f = search(m_cpu_host(1, 1), 1, net ? ring_net : ring);
    ck_assert_int_eq(f->c->nchannels, 1);
    ck_assert_int_eq(f->c->intra_cls, HK_PATH_LOC);
  }
}

TEST(rack) {
  found *f = search(m_nvl(18), 0, ring);
  expect(f, 15, 48.12f);
  f = search(m_nvl(18), 0, ring_net);
  ck_assert_float_ge((float)f->c->nchannels * f->c->intra_gbps, 700);
  ck_assert_int_eq(f->c->inter_cls, HK_PATH_P2C);
  f = search(m_nvl(18), 0, star_net);
  ck_assert_int_eq(f->c->nchannels, HK_CHANNEL_LIMIT);
}

TEST(several_ranks_on_one_gpu) {
  hk_topo *t = m_dgx_h100(8);
  found *f = &last;
  *f = (found){.t = t, .what = ring_net};
  f->what.nranks = 32;
  for (int i = 0; i < 32; i++) f->nodes[i] = t->first_of[HK_NODE_GPU] + (uint32_t)i % 8;
  f->what.nodes = f->nodes;
  ck_assert_int_eq(hk_cluster_of(&f->cluster, t, 1), HK_OK);
  ck_assert_int_eq(hk_paths_new(&f->p, t, NULL), HK_OK);
  search_again(f);
  for (int c = 0; c < f->c->nchannels; c++)
    for (int i = 0; i < 32; i++) ck_assert_uint_eq(f->c->at[c].order[i] % 8, f->c->at[c].order[i / 4 * 4] % 8);
  f->what.pattern = HK_PATTERN_STAR; /* one rank a GPU only */
  hk_channels_free(f->c);
  search_again(f);
  ck_assert_int_eq(f->c->nchannels, 0);
}

TEST(wishes) {
  static const int wish[][3] = {{0, 1, 1}, {0, 4, 4}, {16, 0, 16}, {12, 12, 12}, {64, 5, 5}, {1000, 1000, 64}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(wish); i++) {
    hk_search what = ring;
    what.min_channels = wish[i][0];
    what.max_channels = wish[i][1];
    found *f = search(m_dgx_h100(8), 0, what);
    ck_assert_int_eq(f->c->nchannels, wish[i][2]);
    ck_assert_float_ge((float)f->c->nchannels * f->c->intra_gbps, 370);
  }
}

TEST(refusals) {
  hk_topo *t = m_dgx_h100(0);
  hk_paths *p;
  hk_channels *c;
  uint32_t nodes[HK_SEARCH_RANKS + 1] = {0};
  ck_assert_int_eq(hk_paths_new(&p, t, NULL), HK_OK);
  hk_search what = {.nodes = nodes};
  ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_ERR_ARGUMENT);
  what.nranks = HK_SEARCH_RANKS + 1;
  ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_ERR_ARGUMENT);
  what.nranks = 1;
  nodes[0] = t->first_of[HK_NODE_NVS];
  ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_ERR_ARGUMENT);
  nodes[0] = t->nnodes;
  ck_assert_int_eq(hk_search_channels(&c, p, &what), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(c);
  hk_paths_free(p);
  hk_topo_free(t);
}

int main(void) { return suite_main("search", .timeout = 60, .teardown = forget); }
