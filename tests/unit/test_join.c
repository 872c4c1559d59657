/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Channels of hosts become channels of all ranks, from the facts that ranks tell: also where hosts differ. */
#include "../../src/sim/cluster.h"
#include "../../src/topo/join.h"
#include "../../src/topo/paths.h"
#include "../../src/topo/synth.h"
#include "../support/suite.h"
#include "../support/topo_machines.h"

/* The facts of one host's ranks, one after another.  `net`: other hosts take part. */
static void add_host(hk_join_fact *facts, uint64_t host, hk_topo *t, int per_host, bool net, int *n) {
  hk_cluster *cluster;
  hk_placement *placements;
  hk_paths *p;
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_channels *c[HK_PATTERNS];
  ck_assert_int_eq(hk_cluster_of(&cluster, t, 1), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(cluster, per_host, &placements, n), HK_OK);
  for (int i = 0; i < *n; i++) nodes[i] = placements[i].node;
  ck_assert_int_eq(hk_paths_new(&p, t, NULL), HK_OK);
  for (int k = 0; k < HK_PATTERNS; k++) {
    hk_search what = {.pattern = (hk_pattern)k, .nodes = nodes, .nranks = *n, .network = net};
    ck_assert_msg(hk_search_channels(&c[k], p, &what) == HK_OK, "%s", hk_last_error());
  }
  for (int i = 0; i < *n; i++) hk_join_fill(&facts[i], host, t, (const hk_channels *const *)c, i);
  for (int k = 0; k < HK_PATTERNS; k++) hk_channels_free(c[k]);
  hk_paths_free(p);
  free(placements);
  hk_cluster_free(cluster);
}

static int rail_at(const hk_join_fact *facts, int pattern, int rank, int channel) {
  return facts[rank].part[pattern].rail[channel];
}

/* Every order has each rank once and hosts in one piece; trees hang together under one root. */
static void check_joined(const hk_joined *j) {
  int n = j->nranks;
  for (int c = 0; c < j->nchannels; c++) {
    const int32_t *order = j->order + c * n;
    bool *seen = calloc((size_t)n, sizeof *seen);
    int host = -1, roots = 0;
    for (int i = 0; i < n; i++) {
      ck_assert_uint_lt(order[i], n);
      ck_assert(!seen[order[i]]);
      seen[order[i]] = true;
      if (j->host[order[i]] != host) ck_assert_int_eq(j->host[order[i]], ++host);
    }
    ck_assert_int_eq(host + 1, j->nhosts);
    free(seen);
    if (!j->up) continue;
    int *children = calloc((size_t)n, sizeof *children);
    for (int r = 0; r < n; r++) {
      int up = j->up[c * n + r], at = r, steps = 0;
      roots += up < 0;
      if (up >= 0) ck_assert_int_le(++children[up], 3); /* its chain, and two hosts */
      for (; j->up[c * n + at] >= 0; at = j->up[c * n + at]) ck_assert_int_lt(steps++, n);
    }
    ck_assert_int_eq(roots, 1);
    free(children);
  }
}

static hk_joined *kept[80];
static int nkept;

/* It goes when the test ends. */
static hk_joined *join(hk_pattern pattern, const hk_join_fact *facts, int n) {
  ck_assert_int_lt(nkept, HK_ARRAY_LENGTH(kept));
  ck_assert_msg(hk_join(&kept[nkept], pattern, facts, n) == HK_OK, "%s", hk_last_error());
  hk_joined *j = kept[nkept++];
  ck_assert_int_eq(j->nranks, n);
  check_joined(j);
  return j;
}
static void forget(void) {
  while (nkept > 0) hk_joined_free(kept[--nkept]);
}

TEST(one_host) {
  hk_join_fact facts[8];
  int n;
  add_host(facts, 7, m_dgx_h100(8), 0, false, &n);
  hk_joined *j = join(HK_PATTERN_RING, facts, n);
  ck_assert_int_eq(j->nhosts, 1);
  ck_assert_int_eq(j->nchannels, 8);
  ck_assert_float_eq_tol(j->intra_gbps, 46.35f, 0.01f);
  ck_assert_int_eq(j->split_host, -1);
  j = join(HK_PATTERN_STAR, facts, n);
  ck_assert_int_eq(j->nchannels, 8);
  for (int c = 0; c < 8; c++) ck_assert_int_eq(j->order[c * 8], c);
}

/* Eight NICs here, four there: four channels, each on one rail on both sides. */
TEST(mixed_hosts) {
  hk_join_fact facts[24];
  int n, at = 0;
  add_host(facts, 30, m_dgx_h100(8), 0, true, &n);
  at += n;
  add_host(facts + at, 20, m_dgx1v(4), 0, true, &n);
  at += n;
  add_host(facts + at, 10, m_dgx_h100(8), 0, true, &n);
  at += n;
  hk_joined *j = join(HK_PATTERN_RING, facts, at);
  ck_assert_int_eq(j->nhosts, 3);
  ck_assert_int_eq(j->nchannels, 4);
  ck_assert_float_eq_tol(j->inter_gbps, 12, 0.01f);
  ck_assert_float_eq_tol(j->intra_gbps, 21, 0.01f);
  for (int c = 0; c < 4; c++)
    for (int h = 0; h < 3; h++) {
      int first = j->order[c * 24 + h * 8]; /* the first GPU stands next to the rail's NIC */
      ck_assert_int_eq(j->host[first], h);
      int dev = first % 8, rail = rail_at(facts, HK_PATTERN_RING, 8, c);
      ck_assert_int_eq(h == 1 ? dev / 2 : dev, rail);
    }
  j = join(HK_PATTERN_TREE, facts, at);
  ck_assert_int_eq(j->nchannels, 4);
  j = join(HK_PATTERN_STAR, facts, at); /* the one in the middle has no switch */
  ck_assert_int_eq(j->nchannels, 0);
}

/* All channels leave by one rail: each host still uses each of its own channels once. */
TEST(one_rail) {
  hk_join_fact facts[16];
  int n;
  add_host(facts, 7, m_dgx_h100(8), 0, true, &n);
  add_host(facts + n, 8, m_dgx_h100(8), 0, true, &n);
  for (int r = 0; r < 2 * n; r++)
    for (int c = 0; c < 8; c++) facts[r].part[HK_PATTERN_RING].rail[c] = 0;
  hk_joined *j = join(HK_PATTERN_RING, facts, 2 * n);
  ck_assert_int_eq(j->nchannels, 8);
  for (int a = 0; a < 8; a++)
    for (int b = 0; b < a; b++)
      for (int h = 0; h < 2; h++)
        ck_assert_mem_ne(j->order + (2 * a + h) * n, j->order + (2 * b + h) * n, (size_t)n * sizeof *j->order);
}

/* The second host numbers its rails the other way round, and two of its channels have none: a channel keeps its rail if
 * both hosts have it, and what is left is used once, in order. */
TEST(turned_rails) {
  static const int rails[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, -1, 4, 3, -1, 1, 0}};
  static const int use[8] = {7, 6, 2, 4, 3, 5, 1, 0}; /* rails 2 and 5 are not there */
  hk_join_fact facts[16];
  int n;
  add_host(facts, 7, m_dgx_h100(8), 0, true, &n);
  add_host(facts + n, 8, m_dgx_h100(8), 0, true, &n);
  for (int r = 0; r < 2 * n; r++)
    for (int c = 0; c < 8; c++) facts[r].part[HK_PATTERN_RING].rail[c] = (int8_t)rails[r / n][c];
  hk_joined *j = join(HK_PATTERN_RING, facts, 2 * n);
  ck_assert_int_eq(j->nchannels, 8);
  for (int c = 0; c < 8; c++)
    for (int r = 0; r < 2 * n; r++) {
      int channel = r < n ? c : use[c], place = facts[r].part[HK_PATTERN_RING].place[channel];
      ck_assert_int_eq(j->order[c * 2 * n + r / n * n + place], r);
    }
}

/* Ranks dealt out over hosts in turn; CPUs next to GPUs. */
TEST(interleaved_ranks) {
  hk_join_fact a[8], b[4], facts[12];
  int na, nb, n = 0;
  add_host(a, 99, m_dgx_h100(8), 0, true, &na);
  add_host(b, 11, m_cpu_host(2, 1), 4, true, &nb);
  for (int i = 0; i < 8; i++) {
    if (i < nb) facts[n++] = b[i];
    facts[n++] = a[i];
  }
  hk_joined *j = join(HK_PATTERN_RING, facts, n), *again = join(HK_PATTERN_RING, facts, n);
  ck_assert_int_eq(j->nhosts, 2);
  ck_assert_int_eq(j->host[0], 0); /* rank 0 sits on the CPU host, which counts as the first whatever its number */
  ck_assert_int_eq(j->host[1], 1);
  ck_assert_int_eq(j->nchannels, 1);
  ck_assert_uint_eq(j->hash, again->hash);
  /* Any fact that decides is in the hash. */
  uint64_t hash = j->hash;
  facts[3].topo ^= 1;
  j = join(HK_PATTERN_RING, facts, n);
  ck_assert_uint_ne(j->hash, hash);
}

/* Ranks of a host that saw different things go in their own order, and the rest is as it was. */
TEST(split_host) {
  hk_join_fact facts[16];
  int n;
  for (int bad = 0; bad < 4; bad++) {
    add_host(facts, 1, m_dgx_h100(8), 0, true, &n);
    add_host(facts + 8, 2, m_dgx_h100(8), 0, true, &n);
    hk_join_part *part = &facts[11].part[HK_PATTERN_RING];
    if (bad == 0) part->hash++;
    if (bad == 1) part->nchannels = 200;
    if (bad == 2) part->place[3] = part->place[3] ? 0 : 1;
    if (bad == 3) facts[11].size = 1;
    hk_joined *j = join(HK_PATTERN_RING, facts, 16);
    ck_assert_int_eq(j->split_host, 1);
    ck_assert_int_eq(j->split_rank[0], 8);
    ck_assert_int_eq(j->split_rank[1], bad == 2 ? 8 : 11);
    ck_assert_int_eq(j->nchannels, 8);
    for (int c = 0; c < 8; c++)
      for (int i = 8; i < 16; i++) ck_assert_int_eq(j->order[c * 16 + i], i);
  }
  memset(facts, 0xff, sizeof facts); /* nonsense is no danger */
  join(HK_PATTERN_RING, facts, 16);
  join(HK_PATTERN_TREE, facts, 16);
  memset(facts, 0, sizeof facts); /* nothing told */
  hk_joined *j = join(HK_PATTERN_RING, facts, 16);
  ck_assert_int_eq(j->nchannels, 1);
  ck_assert_int_eq(j->split_host, -1);
}

/* In the two trees no host has child hosts twice (but for one where their number is odd), for every number of hosts. */
TEST(trees_of_hosts) {
  enum { MOST = 70 };
  hk_join_fact facts[MOST], one;
  int n;
  add_host(&one, 0, m_cpu_host(1, 2), 1, true, &n);
  one.part[HK_PATTERN_TREE].nchannels = 2;
  for (int hosts = 1; hosts <= MOST; hosts++) {
    int inner[2][MOST] = {{0}}, twice = 0, deepest = 0;
    facts[hosts - 1] = one;
    facts[hosts - 1].host = (uint64_t)(1000 - hosts);
    hk_joined *j = join(HK_PATTERN_TREE, facts, hosts);
    ck_assert_int_eq(j->nchannels, 2);
    for (int c = 0; c < 2; c++)
      for (int r = 0; r < hosts; r++) {
        int depth = 0;
        if (j->up[c * hosts + r] >= 0) ck_assert_int_le(++inner[c][j->up[c * hosts + r]], 2);
        for (int at = r; j->up[c * hosts + at] >= 0; at = j->up[c * hosts + at]) depth++;
        deepest = depth > deepest ? depth : deepest;
      }
    for (int r = 0; r < hosts; r++) twice += inner[0][r] && inner[1][r];
    ck_assert_msg(twice <= hosts % 2, "%d hosts: %d have children in both trees", hosts, twice);
    int height = 0;
    while (2 << height <= hosts) height++;
    ck_assert_msg(deepest <= height, "%d hosts: %d deep", hosts, deepest);
  }
}

TEST(refusals) {
  hk_join_fact fact = {0};
  hk_joined *j;
  ck_assert_int_eq(hk_join(&j, HK_PATTERN_RING, &fact, 0), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_join(&j, HK_PATTERN_RING, &fact, HK_JOIN_RANKS + 1), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_join(&j, (hk_pattern)HK_PATTERNS, &fact, 1), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(j);
}

/* Sixteen thousand ranks: little work compared with the exchange of the facts. */
TEST(many_ranks) {
  enum { HOSTS = 2048 };
  hk_join_fact *facts = calloc(HOSTS * 8, sizeof *facts);
  int n;
  add_host(facts, 0, m_dgx_h100(8), 0, true, &n);
  for (int i = 8; i < HOSTS * 8; i++) {
    facts[i] = facts[i % 8];
    facts[i].host = (uint64_t)(i / 8) * 0x9e3779b97f4a7c15u;
  }
  hk_joined *j = join(HK_PATTERN_RING, facts, HOSTS * 8);
  ck_assert_int_eq(j->nhosts, HOSTS);
  ck_assert_int_eq(j->nchannels, 8);
  free(facts);
}

/* A described cluster: two kinds of hosts, the last one with some of its GPUs only. */
TEST(described) {
  hk_cluster *c;
  hk_placement *placements;
  hk_joined *j;
  int n;
  if (hk_cluster_from_string(&c, "nodes=2 of dgx-h100 and nodes=2 of dgx-v100") != HK_OK)
    ck_abort_msg("%s", hk_last_error());
  ck_assert_int_eq(hk_cluster_placements(c, 0, &placements, &n), HK_OK);
  ck_assert_int_eq(n, 32);
  hk_search what = {.pattern = HK_PATTERN_RING};
  ck_assert_int_eq(hk_join_cluster(&j, c, placements, 29, &what, NULL), HK_OK);
  check_joined(j);
  ck_assert_int_eq(j->nhosts, 4);
  ck_assert_int_eq(j->split_host, -1);
  ck_assert_int_ge(j->nchannels, 3);
  ck_assert_int_le(j->nchannels, 4);
  hk_joined_free(j);
  ck_assert_int_eq(hk_join_cluster(&j, c, placements, 8, &what, NULL), HK_OK); /* one host: closed rings */
  ck_assert_int_eq(j->nchannels, 8);
  ck_assert(j->inter_gbps == 0);
  hk_joined_free(j);
  ck_assert_int_eq(hk_join_cluster(&j, c, placements, 0, &what, NULL), HK_ERR_ARGUMENT);
  free(placements);
  hk_cluster_free(c);
}

/* NCCL_CROSS_NIC on clusters of equal hosts, by hk_cross_nic: how many rings there are, and whether they leave a host
 * by another port than they enter.  Where a GPU has a port of its own, a ring that leaves by its last GPU's saves a
 * way over NVLink (48.8 instead of 46.4 GB/s); two GPUs with two ports on a switch save nothing; below PCIe switches
 * it doubles the rings.  On rails only who asks for it changes ports. */
static const struct {
  const char *machine;
  int nchannels[3];
  bool crosses[3];
} crossings[] = {
    {"nodes=2 of dgx-h100", {8, 8, 8}, {false, true, true}},
    {"nodes=3 of dgx-h100", {8, 8, 8}, {false, true, true}},
    {"nodes=4 of dgx-h100 fabric=rail", {8, 8, 8}, {false, true, false}},
    {"nodes=2 of dgx-a100", {8, 8, 8}, {false, false, false}},
    {"nodes=2 of 8xa100:pcie2 nic=4x200", {1, 2, 2}, {false, true, true}},
    {"nodes=4 of 8xa100:pcie2 nic=4x200 fabric=rail", {1, 2, 1}, {false, true, false}},
};

typedef struct crossing_cluster {
  hk_cluster *c;
  hk_placement *placements;
  hk_paths *paths;
  hk_channels *rings;
  hk_joined *joined;
  hk_sim_cluster world;
  int nranks, per_host;
} crossing_cluster;

static void open_crossing(crossing_cluster *x, const char *machine, hk_cross_nic wish) {
  uint32_t nodes[HK_SEARCH_RANKS];
  ck_assert_msg(hk_cluster_from_string(&x->c, machine) == HK_OK, "%s", hk_last_error());
  ck_assert_int_eq(hk_cluster_placements(x->c, 0, &x->placements, &x->nranks), HK_OK);
  x->per_host = x->nranks / x->c->nhosts;
  ck_assert_int_eq(hk_paths_new(&x->paths, x->c->kinds[0], NULL), HK_OK);
  for (int i = 0; i < x->per_host; i++) nodes[i] = x->placements[i].node;
  hk_search what = {.pattern = HK_PATTERN_RING,
                    .nodes = nodes,
                    .nranks = x->per_host,
                    .network = true,
                    .cross_nic = hk_cross_nic_on(&x->c->fabric, wish)};
  ck_assert_int_eq(hk_search_channels(&x->rings, x->paths, &what), HK_OK);
  ck_assert_int_eq(hk_join_cluster(&x->joined, x->c, x->placements, x->nranks, &what, NULL), HK_OK);
  ck_assert_int_eq(hk_sim_cluster_init(&x->world, x->c, x->placements, x->nranks, &x->paths, &x->rings, 0), HK_OK);
}

static void close_crossing(crossing_cluster *x) {
  hk_sim_cluster_free(&x->world);
  hk_joined_free(x->joined);
  hk_channels_free(x->rings);
  hk_paths_free(x->paths);
  free(x->placements);
  hk_cluster_free(x->c);
}

/* Each channel's ring leaves every host by its own port and enters the next by its own; a host's ports carry equally
 * many. */
/* Hosts of one kind with ranks on more or fewer of their GPUs: what was found for the last one is not this one's. */
TEST(unequal_hosts) {
  hk_cluster *c;
  hk_placement *all;
  int n;
  ck_assert_int_eq(hk_cluster_from_string(&c, "nodes=4 of 4xh100:nvswitch2 nic=2x400"), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(c, 0, &all, &n), HK_OK);
  ck_assert_int_eq(n, 16);
  for (int first = 1; first <= 4; first++)
    for (int second = 1; second <= 4; second++) {
      hk_placement placements[8];
      hk_search what = {.pattern = HK_PATTERN_RING, .max_channels = 4};
      hk_joined *j;
      memcpy(placements, all, (size_t)first * sizeof *placements);
      memcpy(placements + first, all + 4, (size_t)second * sizeof *placements);
      ck_assert_int_eq(hk_join_cluster(&j, c, placements, first + second, &what, NULL), HK_OK);
      ck_assert(j->nranks == first + second && j->nhosts == 2 && j->split_host < 0);
      check_joined(j);
      hk_joined_free(j);
    }
  free(all);
  hk_cluster_free(c);
}

TEST_LOOP(ports_between_hosts, 3 * HK_ARRAY_LENGTH(crossings)) {
  const int row = _i / 3;
  const hk_cross_nic wish = (hk_cross_nic)(_i % 3);
  crossing_cluster x;
  open_crossing(&x, crossings[row].machine, wish);
  const hk_topo *t = x.c->kinds[0];
  const uint32_t first = t->first_of[HK_NODE_NET], nets = hk_topo_count(t, HK_NODE_NET);
  int left[16] = {0}, entered[16] = {0}, most = 0;
  ck_assert_uint_le(nets, HK_ARRAY_LENGTH(left));
  ck_assert_int_eq(x.joined->nchannels, crossings[row].nchannels[wish]);
  for (int k = 0; k < x.joined->nchannels; k++)
    for (int h = 0; h < x.c->nhosts; h++) {
      const int32_t *order = x.joined->order + (size_t)k * (size_t)x.nranks;
      const int next = (h + 1) % x.c->nhosts, from = order[(h + 1) * x.per_host - 1], to = order[next * x.per_host];
      uint32_t out, in;
      ck_assert_int_eq(x.joined->host[from], h);
      ck_assert_int_eq(x.joined->host[to], next);
      hk_sim_cluster_nets(&x.world, from, to, k, &out, &in);
      ck_assert_uint_eq(out, x.rings->at[k].net_out);
      ck_assert_uint_eq(in, x.rings->at[k].net_in);
      ck_assert((out != in) == crossings[row].crosses[wish]);
      left[out - first]++;
      most = ++entered[in - first] > most ? entered[in - first] : most;
    }
  for (uint32_t i = 0; i < nets; i++) {
    ck_assert_int_eq(entered[i], left[i]);
    if (entered[i]) ck_assert_int_eq(entered[i], most);
  }
  close_crossing(&x);
}

int main(void) { return suite_main("join", .timeout = 60, .teardown = forget); }
