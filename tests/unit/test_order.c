/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which algorithms make sums, found by the verifier.  What is marked `fixed_order` must be proved to be
 * in the fixed order, for every number of ranks, root, layout and ring order; what is in it without the mark is found,
 * too.
 * check: notsan timeout=120 */
#include "../../src/decide/rules.h"
#include "../support/outlines.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

/* Ranks on hosts, and other ring orders than that of ranks. */
typedef enum shape { ONE_HOST, BLOCKS, DEALT, UNEVEN, SHAPES } shape;
enum { RING_ORDERS = 3 };

static hk_layout *make_layout(shape s, int n) {
  hk_layout *l;
  uint64_t host[64];
  int32_t order[RING_ORDERS][64];
  if (s == ONE_HOST) return NULL;
  for (int r = 0; r < n; r++) host[r] = s == BLOCKS ? r * 2 / n : s == DEALT ? r % 3 : r != 1 && r != 2;
  ck_assert_int_eq(hk_layout_new(&l, n, host, NULL, NULL, 1), HK_OK);
  /* A host's ranks stay neighbours; each order begins elsewhere, one runs backwards. */
  for (int c = 0; c < RING_ORDERS; c++)
    for (int i = 0; i < n; i++) order[c][i] = l->ranks[c == 1 ? n - 1 - i : (i + c * l->first[1]) % n];
  hk_layout_free(l);
  int32_t packed[RING_ORDERS * 64];
  for (int c = 0; c < RING_ORDERS; c++) memcpy(packed + c * n, order[c], (size_t)n * sizeof *packed);
  ck_assert_int_eq(hk_layout_new(&l, n, host, NULL, packed, RING_ORDERS), HK_OK);
  return l;
}

static hk_machine machine_of(const hk_layout *l, int n) {
  hk_machine m = prove_machine(n);
  m.team.in_switch = !l;
  if (!l) return m;
  m.team.nhosts = l->nhosts;
  m.team.ranks_per_host = l->most;
  m.team.least_per_host = l->least;
  m.team.multicast = l->nhosts == 1;
  return m;
}

static hk_order order_of(const hk_algorithm *a, hk_build what, hk_order least, hk_verify_report *report) {
  hk_program **p = calloc((size_t)what.nranks, sizeof *p);
  hk_verify_options o = {.slots = 2, .waves = 2, .in_place = what.nranks % 2, .orders = true, .least = least};
  for (int r = 0; r < what.nranks; r++) {
    what.rank = r;
    ck_assert_int_eq(hk_algorithm_build(a, &what, &p[r]), HK_OK);
  }
  hk_status rc = hk_verify((const hk_program *const *)p, what.nranks, &o, report);
  prove_free(p, what.nranks);
  ck_assert_msg(least > HK_ORDER_VARIES || rc == HK_OK, "%s", report->message);
  return report->order;
}

/* The least that is known of an algorithm over roots and ring orders; HK_ORDER_FIXED + 1 where it does not do it. */
static hk_order least_order(const hk_algorithm *a, hk_coll coll, int n, shape s) {
  hk_layout *l = make_layout(s, n);
  hk_machine m = machine_of(l, n);
  hk_order least = HK_ORDER_FIXED + 1;
  if (hk_algorithm_supports(a, &m.team, coll)) {
    int roots = hk_coll_has_root(coll) ? n : 1;
    for (int root = 0; root < roots; root += root && n > 16 ? n / 4 : 1)
      for (int c = 0; c < (l ? RING_ORDERS : 1); c++) {
        hk_verify_report report;
        hk_build what = {.coll = coll, .nranks = n, .root = root, .layout = l, .channel = c};
        hk_order one = order_of(a, what, HK_ORDER_VARIES, &report);
        if (one < least) least = one;
      }
  }
  hk_layout_free(l);
  return least;
}

static const hk_coll reducing[] = {HK_ALLREDUCE, HK_REDUCE, HK_REDUCE_SCATTER};

TEST_LOOP(marked_is_proved, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  for (size_t k = 0; k < HK_ARRAY_LENGTH(reducing); k++) {
    if (!(a->fixed_order >> reducing[k] & 1u)) continue;
    for (int n = 1; n <= (PROVE_SANITIZED ? 20 : 64); n++)
      for (shape s = ONE_HOST; s < SHAPES; s++) {
        if (s != ONE_HOST && n < 4) continue;
        hk_order o = least_order(a, reducing[k], n, s);
        ck_assert_msg(o >= HK_ORDER_FIXED, "%s %s is marked as in the fixed order; over %d ranks of shape %d it is: %s",
                      a->name, hk_coll_name(reducing[k]), n, (int)s, hk_order_name(o));
      }
  }
  ck_assert_uint_eq(a->fixed_order & ~(1u << HK_ALLREDUCE | 1u << HK_REDUCE | 1u << HK_REDUCE_SCATTER), 0);
  for (int c = 0; c < HK_COLL_COUNT; c++) ck_assert(!(a->fixed_order >> c & 1u) || hk_algorithm_has(a, (hk_coll)c));
}

/* Some small number of ranks, or some layout, must show why the mark is not there. */
TEST_LOOP(unmarked_is_not_fixed, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  static const int counts[] = {3, 4, 5, 6, 8, 17};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(reducing); k++) {
    hk_order worst = HK_ORDER_FIXED + 1;
    if (a->fixed_order >> reducing[k] & 1u) continue;
    for (size_t c = 0; c < HK_ARRAY_LENGTH(counts); c++)
      for (shape s = ONE_HOST; s < SHAPES; s++) {
        if (s != ONE_HOST && counts[c] < 4) continue;
        hk_order o = least_order(a, reducing[k], counts[c], s);
        if (o < worst) worst = o;
      }
    if (worst > HK_ORDER_FIXED) continue; /* it does not do this collective */
    printf("%s %s: %s\n", a->name, hk_coll_name(reducing[k]), hk_order_name(worst));
    ck_assert_msg(worst < HK_ORDER_FIXED, "%s makes the sums of %s in the fixed order: mark it in fixed_order", a->name,
                  hk_coll_name(reducing[k]));
  }
}

/* Whatever the machine, something is left to run in the fixed order. */
TEST(each_collective_has_one) {
  for (size_t k = 0; k < HK_ARRAY_LENGTH(reducing); k++)
    for (int n = 1; n <= 64; n++)
      for (shape s = ONE_HOST; s < SHAPES; s++) {
        if (s != ONE_HOST && n < 4) continue;
        hk_layout *l = make_layout(s, n);
        hk_machine m = machine_of(l, n);
        int found = 0;
        m.team.multicast = m.team.in_switch = false;
        for (int i = 0; hk_algorithms[i]; i++)
          found += (hk_algorithms[i]->fixed_order >> reducing[k] & 1u) &&
                   hk_algorithm_supports(hk_algorithms[i], &m.team, reducing[k]);
        ck_assert_int_gt(found, 0);
        hk_layout_free(l);
      }
}

/* ---- what is chosen ---- */

static hk_machine gpus(int nhosts, bool in_switch) {
  hk_machine m = prove_machine(8 * nhosts);
  m.team.nhosts = nhosts;
  m.team.ranks_per_host = m.team.least_per_host = 8;
  m.cores_per_host = 0;
  m.team.overlap = true;
  m.team.in_switch = in_switch;
  m.team.multicast = nhosts == 1;
  m.max_channels = 16;
  m.protocols = (1u << HK_PROTO_COUNT) - 1;
  return m;
}

TEST(only_fixed_is_chosen) {
  const hk_machine machines[] = {with_outlines(prove_machine(2)), with_outlines(prove_machine(7)),
                                 with_outlines(gpus(1, true)), with_outlines(gpus(1, false)),
                                 with_outlines(gpus(4, false))};
  static const char *const lists[] = {NULL, "ring,tree", "^direct", "NVLS,pat,binomial", "allreduce:flat;hier"};
  hk_rules *rules;
  hk_alternative rows[HK_ALTERNATIVES];
  ck_assert_int_eq(
      hk_rules_parse(&rules, "rules", "*, 1K, 64K, *, *, ring, *, *\n*, 64K, *, *, *, tree, *, 4\n", hk_algorithms),
      HK_OK);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(machines); i++)
    for (size_t k = 0; k < HK_ARRAY_LENGTH(lists) * 2; k++)
      for (size_t c = 0; c < HK_ARRAY_LENGTH(reducing); c++)
        for (size_t bytes = 4; bytes <= (size_t)1 << 30; bytes *= 4) {
          hk_filter w = {.rules = k % 2 ? rules : NULL, .batch_invariant = true};
          hk_decision d;
          ck_assert_int_eq(hk_filter_parse(&w, lists[k / 2], NULL), HK_OK);
          ck_assert_int_eq(hk_select(&machines[i], &w, reducing[c], bytes, &d), HK_OK);
          if (!hk_select_invariant(d.algorithm, reducing[c]))
            ck_abort_msg("%s is chosen for %zu bytes of %s", d.algorithm->name, bytes, hk_coll_name(reducing[c]));
          if (k / 2 == 0) ck_assert(!d.overruled);
          if (k / 2 == 1) ck_assert(d.overruled && d.note);
          int n;
          ck_assert_int_eq(hk_select_all(&machines[i], &w, reducing[c], bytes, rows, &n), HK_OK);
          for (int r = 0; r < n; r++)
            if (!rows[r].why && !hk_select_invariant(rows[r].what.algorithm, reducing[c]))
              ck_abort_msg("%s is offered", rows[r].what.algorithm->name);
        }
  /* What does not reduce is free. */
  hk_filter w = {.batch_invariant = true};
  hk_decision d;
  ck_assert_int_eq(hk_filter_parse(&w, "ring", NULL), HK_OK);
  bool can;
  ck_assert_int_eq(hk_select(&machines[1], &w, HK_ALLGATHER, 1 << 20, &d), HK_OK);
  ck_assert(!strcmp(d.algorithm->name, "ring") && !d.note);
  ck_assert_int_eq(hk_select_one(&machines[1], &w, HK_ALLREDUCE, 1 << 20, d.algorithm, HK_PROTO_SIMPLE, &d, &can),
                   HK_OK);
  ck_assert(!can); /* a tuner plugin's */
  hk_rules_free(rules);
}

/* ---- what is refused ---- */

static void refuse(const char *name, hk_coll coll, int n, hk_order least, const char *words) {
  hk_verify_report report;
  order_of(hk_algorithm_by_name(name), (hk_build){.coll = coll, .nranks = n}, least, &report);
  ck_assert_msg(report.order < least && strstr(report.message, words), "%s: %s", name, report.message);
}

TEST(others_are_refused_in_words) {
  refuse("ring", HK_ALLREDUCE, 4, HK_ORDER_FIXED,
         "it leaves in out[b0] the ranks' sum ((0 + 1) + 2) + 3, not 0 + 1 + 2 + 3");
  refuse("ring", HK_ALLREDUCE, 4, HK_ORDER_SIDES,
         "it leaves in out[b1] the ranks' sum ((1 + 2) + 3) + 0, not ((0 + 1)");
  refuse("tree", HK_ALLREDUCE, 4, HK_ORDER_SIDES, "it leaves in out[b1] the ranks' sum");
  refuse("halving", HK_ALLREDUCE, 4, HK_ORDER_EQUAL, "not ");
  refuse("doubling", HK_ALLREDUCE, 8, HK_ORDER_FIXED, "((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), not 0 + 1 + 2 + 3");
}

/* Rank 1 of a oneshot adds its own input first: only its bits differ. */
TEST(one_wrong_rank) {
  const char *ranks[3] = {"AllReduce mine, rank 0 of 3, message split into 1, scratch 0\nlane 0\n"
                          "  links: 0=mcast(0) 1=mcast-recv(1) 2=mcast-recv(2)\n"
                          "     0: mcast(0)[b0] <- in[b0], copy\n"
                          "     1: out[b0] <- in[b0] + mcast-recv(1)[b0] + mcast-recv(2)[b0], final\n",
                          "AllReduce mine, rank 1 of 3, message split into 1, scratch 0\nlane 0\n"
                          "  links: 0=mcast(1) 1=mcast-recv(0) 2=mcast-recv(2)\n"
                          "     0: mcast(1)[b0] <- in[b0], copy\n"
                          "     1: out[b0] <- mcast-recv(0)[b0] + in[b0] + mcast-recv(2)[b0], final\n",
                          "AllReduce mine, rank 2 of 3, message split into 1, scratch 0\nlane 0\n"
                          "  links: 0=mcast(2) 1=mcast-recv(0) 2=mcast-recv(1)\n"
                          "     0: mcast(2)[b0] <- in[b0], copy\n"
                          "     1: out[b0] <- mcast-recv(0)[b0] + mcast-recv(1)[b0] + in[b0], final\n"};
  static const char *const last[] = {
      "     1: out[b0] <- mcast-recv(0)[b0] + mcast-recv(1)[b0] + in[b0], final\n", /* as it should be */
      "     1: out[b0] <- mcast-recv(1)[b0] + mcast-recv(0)[b0] + in[b0], final\n", /* a + b is b + a, but for zeros */
      "     1: out[b0] <- mcast-recv(1)[b0] + in[b0] + mcast-recv(0)[b0], final\n"};
  static const hk_order want[] = {HK_ORDER_FIXED, HK_ORDER_SIDES, HK_ORDER_VARIES};
  hk_program *p[3];
  char text[512];
  for (size_t k = 0; k < HK_ARRAY_LENGTH(want); k++) {
    snprintf(text, sizeof text, "%.*s%s", (int)(strstr(ranks[2], "     1:") - ranks[2]), ranks[2], last[k]);
    for (int r = 0; r < 3; r++)
      ck_assert_msg(hk_program_parse(r == 2 ? text : ranks[r], &p[r]) == HK_OK, "%s", hk_last_error());
    hk_verify_options o = {.slots = 2, .waves = 2, .orders = true};
    hk_verify_report report;
    ck_assert_msg(hk_verify((const hk_program *const *)p, 3, &o, &report) == HK_OK, "%s", report.message);
    ck_assert_str_eq(hk_order_name(report.order), hk_order_name(want[k]));
    for (int r = 0; r < 3; r++) hk_program_free(p[r]);
  }
}

int main(void) { return suite_main("order", .timeout = 120); }
