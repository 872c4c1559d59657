/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts, and the algorithms that follow them: proved for 1 to 64 ranks on several hosts, dealt out host after host,
 * one by one and at random, with ring orders turned inside the hosts; on uneven hosts where that is supported.
 * check: notsan */
#include "../../src/program/layout.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

/* ---- layouts ---- */

TEST(describes_hosts) {
  static const uint64_t host[] = {9, 4, 9, 4, 4, 7};
  hk_layout *l;
  ck_assert_int_eq(hk_layout_new(&l, 6, host, NULL, NULL, 1), HK_OK);
  static const int hosts[] = {0, 1, 0, 1, 1, 2}, locals[] = {0, 0, 1, 1, 2, 0}, order[] = {0, 2, 1, 3, 4, 5};
  ck_assert_int_eq(l->nhosts, 3);
  ck_assert_int_eq(l->most, 3);
  ck_assert_int_eq(l->least, 1);
  ck_assert_int_eq(l->period, 6);
  for (int r = 0; r < 6; r++) {
    ck_assert_int_eq(hk_layout_host_of(l, r), hosts[r]);
    ck_assert_int_eq(hk_layout_local_of(l, r), locals[r]);
    ck_assert_int_eq(hk_layout_rank(l, hosts[r], locals[r]), r);
    ck_assert_int_eq(hk_layout_at(l, 0, r), order[r]);
    ck_assert_int_eq(hk_layout_place(l, 0, order[r]), r);
  }
  hk_layout_free(l);
  static const int local[] = {5, 0, 3, 2, 1, 0};
  ck_assert_int_eq(hk_layout_new(&l, 6, host, local, NULL, 1), HK_OK);
  ck_assert_int_eq(hk_layout_rank(l, 0, 0), 2);
  ck_assert_int_eq(hk_layout_rank(l, 1, 1), 4);
  hk_layout_free(l);
}

TEST(finds_periods) {
  static const uint64_t host[] = {1, 1, 2, 2};
  static const int32_t orders[][4] = {{0, 1, 2, 3}, {1, 2, 3, 0}, {1, 0, 3, 2}, {0, 3, 2, 1}, {0, 1, 3, 2}};
  static const int periods[] = {1, 1, 2, 2, 4};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(periods); k++) {
    hk_layout *l;
    ck_assert_int_eq(hk_layout_new(&l, 4, host, NULL, orders[k], 1), HK_OK);
    ck_assert_int_eq(l->period, periods[k]);
    hk_layout_free(l);
  }
}

TEST(refuses_wrong_orders) {
  static const uint64_t host[] = {1, 1, 1};
  static const int32_t twice[] = {0, 1, 1}, beyond[] = {0, 1, 3}, right[] = {2, 0, 1};
  hk_layout *l;
  ck_assert_int_eq(hk_layout_new(&l, 3, host, NULL, NULL, 5), HK_OK);
  ck_assert_int_eq(l->nchannels, 1); /* there is one order */
  hk_layout_free(l);
  ck_assert_int_eq(hk_layout_new(&l, 3, host, NULL, twice, 1), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "rank 1 at place 2"));
  ck_assert_int_eq(hk_layout_new(&l, 3, host, NULL, beyond, 1), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_layout_new(&l, 0, host, NULL, NULL, 1), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_layout_new(&l, 3, host, NULL, right, 1), HK_OK);
  ck_assert_int_eq(hk_layout_at(l, 7, 0), 2); /* any channel number */
  hk_layout_free(l);
}

/* ---- proofs ---- */

typedef enum deal { BLOCKED, CYCLIC, SHUFFLED, TURNED, DEALS } deal;

static unsigned next_random(unsigned *seed) { return *seed = *seed * 1103515245u + 12345u, *seed >> 16; }

/* sizes[h] ranks on each host. */
static hk_layout *make_layout(const int *sizes, int hosts, deal how) {
  uint64_t host[64];
  int32_t order[2 * 64];
  int n = 0, left[64];
  unsigned seed = (unsigned)(hosts * 31 + sizes[0]);
  for (int h = 0; h < hosts; h++) n += left[h] = sizes[h];
  for (int r = 0, h = 0; r < n; r++) {
    if (how == SHUFFLED) h = (int)(next_random(&seed) % (unsigned)hosts);
    while (!left[h % hosts]) h++;
    host[r] = (uint64_t)(100 - h % hosts);
    left[h % hosts]--;
    if (how == CYCLIC) h++;
  }
  hk_layout *plain, *l;
  ck_assert_int_eq(hk_layout_new(&plain, n, host, NULL, NULL, 1), HK_OK);
  if (how != TURNED) return plain;
  for (int at = 0; at < n; at++) { /* hosts in turn, each host's ranks backwards; then the whole turned by one */
    int r = plain->order[at], h = plain->host[r], size = hk_layout_size(plain, h, n);
    order[at] = hk_layout_rank(plain, h, size - 1 - plain->local[r]);
  }
  for (int at = 0; at < n; at++) order[n + at] = order[(at + 1) % n];
  ck_assert_int_eq(hk_layout_new(&l, n, host, NULL, order, 2), HK_OK);
  hk_layout_free(plain);
  return l;
}

static void prove_layout(const hk_algorithm *a, const hk_layout *l, int channel) {
  hk_machine m = prove_machine(l->nranks);
  m.team.nhosts = l->nhosts;
  m.team.ranks_per_host = l->most;
  m.team.least_per_host = l->least;
  m.team.multicast = l->nhosts == 1;
  m.team.in_network = m.team.in_switch = l->nhosts > 1;
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    if (!hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
    int roots = hk_coll_has_root((hk_coll)c) ? l->nranks : 1;
    for (int root = 0; root < roots; root += 1 + roots / 3) {
      hk_program *p[64];
      hk_build what = {.coll = (hk_coll)c, .nranks = l->nranks, .root = root, .layout = l, .channel = channel};
      for (what.rank = 0; what.rank < l->nranks; what.rank++)
        ck_assert_int_eq(hk_algorithm_build(a, &what, &p[what.rank]), HK_OK);
      for (unsigned slots = 2; slots <= 4; slots += 2) {
        for (int in_place = 0; in_place < 2; in_place++) {
          hk_verify_options o = {.slots = slots, .waves = 3, .in_place = in_place, .orders = true, .host = l->host};
          if (a->fixed_order >> c & 1u) o.least = HK_ORDER_FIXED;
          hk_verify_report report;
          hk_status rc = hk_verify((const hk_program *const *)p, l->nranks, &o, &report);
          ck_assert_msg(rc == HK_OK,
                        "%s %s, %d ranks on %d hosts (most %d, least %d), channel %d, root %d, %u slots: %s", a->name,
                        hk_coll_name((hk_coll)c), l->nranks, l->nhosts, l->most, l->least, channel, root, slots,
                        report.message);
        }
      }
      for (int r = 0; r < l->nranks; r++) hk_program_free(p[r]);
    }
  }
}

/* Dealt out otherwise, but the same layout: on one host, and where each host has one rank. */
static bool is_blocked(const hk_layout *l, const hk_layout *blocked) {
  for (int r = 0; r < l->nranks; r++)
    if (hk_layout_host_of(l, r) != hk_layout_host_of(blocked, r)) return false;
  return true;
}

static void prove_sizes(const hk_algorithm *a, const int *sizes, int hosts) {
  hk_layout *blocked = make_layout(sizes, hosts, BLOCKED);
  for (int how = 0; how < DEALS; how++) {
    hk_layout *l = make_layout(sizes, hosts, (deal)how);
    if ((how == CYCLIC || how == SHUFFLED) && is_blocked(l, blocked)) {
      hk_layout_free(l);
      continue;
    }
    for (int channel = 0; channel < l->nchannels; channel++) prove_layout(a, l, channel);
    hk_layout_free(l);
  }
  hk_layout_free(blocked);
}

/* Do programs depend on the layout at all? */
static bool follows(const hk_algorithm *a) {
  static const char *const names[] = {"ring", "chain", "tree", "hier", "hiertree", "rail", "collnet"};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(names); i++)
    if (!strcmp(a->name, names[i])) return true;
  return false;
}

TEST_LOOP(even_hosts, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  if (!follows(a)) return;
  for (int hosts = 1; hosts <= 16; hosts++) {
    for (int per = 1; hosts * per <= (PROVE_SANITIZED ? 16 : 64); per += hosts * per < 24 ? 1 : 3) {
      int sizes[64];
      for (int h = 0; h < hosts; h++) sizes[h] = per;
      prove_sizes(a, sizes, hosts);
    }
  }
}

TEST_LOOP(uneven_hosts, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  static const int shapes[][6] = {{2, 1}, {1, 2},       {3, 5, 2},       {4, 4, 1},
                                  {8, 7}, {1, 1, 1, 5}, {2, 3, 4, 5, 6}, {9, 2, 9, 2}};
  if (!follows(a)) return;
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(shapes); k++) {
    int hosts = 0;
    while (hosts < 6 && shapes[k][hosts]) hosts++;
    prove_sizes(a, shapes[k], hosts);
  }
}

/* Where a host's ranks stand together, a ring crosses between hosts once a host. */
TEST(rings_enter_hosts_once) {
  static const int sizes[] = {4, 4, 4};
  hk_layout *l = make_layout(sizes, 3, CYCLIC);
  int crossings = 0;
  for (int r = 0; r < 12; r++) {
    hk_program *p;
    hk_build what = {.coll = HK_ALLREDUCE, .rank = r, .nranks = 12, .layout = l};
    ck_assert_int_eq(hk_algorithm_build(hk_algorithm_by_name("ring"), &what, &p), HK_OK);
    for (unsigned i = 0; i < p->nlinks; i++)
      if (hk_program_links(p)[i].kind == HK_LINK_SEND)
        crossings += hk_layout_host_of(l, r) != hk_layout_host_of(l, hk_program_links(p)[i].peer);
    hk_program_free(p);
  }
  ck_assert_int_eq(crossings, 3);
  hk_layout_free(l);
}

/* What hierarchical algorithms say over the network: equal local ranks only. */
TEST(rails_only) {
  static const char *const names[] = {"hier", "hiertree", "nvlstree", "rail"};
  static const int sizes[] = {4, 4, 4, 4};
  hk_layout *l = make_layout(sizes, 4, BLOCKED);
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(names); k++) {
    const hk_algorithm *a = hk_algorithm_by_name(names[k]);
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      for (int r = 0; hk_algorithm_has(a, (hk_coll)c) && r < 16; r++) {
        hk_program *p;
        hk_build what = {.coll = (hk_coll)c, .rank = r, .nranks = 16, .layout = l};
        ck_assert_int_eq(hk_algorithm_build(a, &what, &p), HK_OK);
        for (unsigned i = 0; i < p->nlinks; i++) {
          int peer = hk_program_links(p)[i].peer;
          ck_assert(peer / 4 == r / 4 || peer % 4 == r % 4);
          ck_assert_int_lt(hk_program_links(p)[i].channel, 8);
        }
        hk_program_free(p);
      }
    }
  }
  hk_layout_free(l);
}

/* Programs for a switch of four ranks, on two hosts of two: its sums and its multicasts end at the host. */
TEST_LOOP(switch_of_one_host, 2) {
  static const hk_coll colls[] = {HK_REDUCE_SCATTER, HK_ALLGATHER};
  static const char *const reasons[] = {"which adds those of all 2 ranks", "which a multicast does not reach"};
  static const int32_t host[] = {0, 0, 1, 1};
  hk_program **p = prove_build(hk_algorithm_by_name("nvls"), colls[_i], 4, 0);
  const hk_verify_options o = {.slots = 2, .waves = 1, .host = host};
  hk_verify_report report;
  ck_assert_int_ne(hk_verify((const hk_program *const *)p, 4, &o, &report), HK_OK);
  ck_assert_msg(strstr(report.message, reasons[_i]) != NULL, "%s", report.message);
  prove_free(p, 4);
}

/* Copies of a program's lanes use channels from k * span on, so ranks must have equal spans: those of hosts with one
 * rank, and those that send nothing to other hosts, too. */
TEST(spans_are_equal) {
  for (int hosts = 2; hosts < 6; hosts++)
    for (int per = 2; per < 5; per++) {
      int sizes[6];
      for (int h = 0; h < hosts; h++) sizes[h] = h ? per : 1;
      const int n = 1 + per * (hosts - 1);
      hk_layout *l = make_layout(sizes, hosts, BLOCKED);
      const hk_team team = {.nranks = n,
                            .nhosts = hosts,
                            .ranks_per_host = per,
                            .least_per_host = 1,
                            .in_network = true,
                            .overlap = true};
      for (int i = 0; hk_algorithms[i]; i++)
        for (int c = 0; c < HK_COLL_COUNT; c++) {
          unsigned span = 0;
          for (int r = 0; r < n && hk_algorithm_supports(hk_algorithms[i], &team, (hk_coll)c); r++) {
            hk_program *p;
            const hk_build what = {.coll = (hk_coll)c, .rank = r, .nranks = n, .layout = l};
            ck_assert_int_eq(hk_algorithm_build(hk_algorithms[i], &what, &p), HK_OK);
            if (r == 0) span = p->traits.span;
            ck_assert_msg(p->traits.span == span, "%s %s: rank %d of %d uses %u channels, rank 0 %u",
                          hk_algorithms[i]->name, hk_coll_name((hk_coll)c), r, n, p->traits.span, span);
            hk_program_free(p);
          }
        }
      hk_layout_free(l);
    }
}

int main(void) { return suite_main("layouts", .timeout = 600); }
