/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm is proved by the verifier, for 1 to 64 ranks and for 100, 128 and 255, every root, 2 to 8 slots; for
 * more ranks see test_algorithms_large.c.  Then the sizes of programs, and some programs to read.
 *
 * From 17 ranks on with 2 slots and with 8, which proves what is between.  One slot more lets a sender go on sooner:
 * it ends no wait that fewer slots did not end, so what does not deadlock with 2 does not with more; and what orders
 * two accesses with 8 slots orders them with fewer, where the same credit is waited for and later ones too.  Up to 16
 * ranks each number is run.
 * check: timeout=300 notsan noasan */
#include "../../src/collectives/pattern.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

TEST_LOOP(few_ranks, prove_count()) {
  for (int n = 1; n <= 16; n++)
    prove_roots(hk_algorithms[_i], n, 1, (prove_range){.first_slots = 2, .last_slots = 8, .out_of_place = true});
}

TEST_LOOP(up_to_64_ranks, prove_count()) {
  if (PROVE_SANITIZED) return;
  for (int n = 17; n <= 64; n++) {
    prove_roots(hk_algorithms[_i], n, 1, (prove_range){2, 2, 3, true});
    prove_roots(hk_algorithms[_i], n, 1, (prove_range){8, 8, 2, true});
  }
}

/* Two slots with three waves are the hardest: with more slots a program can only wait less. */
TEST_LOOP(up_to_255_ranks, prove_count()) {
  static const int counts[] = {100, 128, 255};
  for (unsigned k = 0; k < (PROVE_SANITIZED ? 1 : HK_ARRAY_LENGTH(counts)); k++) {
    prove_roots(hk_algorithms[_i], counts[k], 1, (prove_range){2, 2, 3, true});
    if (prove_full()) prove_roots(hk_algorithms[_i], counts[k], 1, (prove_range){3, 8, 0, true});
  }
}

/* The trees of pattern.h: everybody has one parent, who has it as a child; nobody has children twice. */
TEST(two_trees) {
  for (int n = 2; n <= 130; n++) {
    for (int root = 0; root < n; root += 3) {
      for (int tree = 0; tree < 2; tree++) {
        for (int r = 0; r < n; r++) {
          if (r == root) continue;
          hk_tree_place place = hk_two_tree_place(tree, r, root, n), other = hk_two_tree_place(!tree, r, root, n);
          ck_assert(!place.ndown || !other.ndown);
          int up = place.up, depth = 1;
          if (up == root) ck_assert_int_eq(hk_two_tree_top(tree, root, n), r);
          for (int at = r; up != root; depth++) {
            hk_tree_place above = hk_two_tree_place(tree, up, root, n);
            ck_assert((above.ndown > 0 && above.down[0] == at) || (above.ndown > 1 && above.down[1] == at));
            at = up;
            up = above.up;
          }
          ck_assert_int_le(depth, hk_log2_ceil((unsigned)n) + 1);
        }
      }
    }
  }
}

/* ---- sizes ---- */

static size_t instructions(const char *name, hk_coll coll, int nranks, int rank) {
  hk_program *p;
  hk_build what = {.coll = coll, .rank = rank, .nranks = nranks};
  ck_assert_int_eq(hk_algorithm_build(hk_algorithm_by_name(name), &what, &p), HK_OK);
  size_t n = p->ninstrs;
  hk_program_free(p);
  return n;
}

TEST(programs_stay_small) {
  static const struct {
    const char *name;
    hk_coll coll;
  } constant[] = {{"ring", HK_ALLREDUCE},    {"ring", HK_ALLGATHER},     {"ring", HK_REDUCE_SCATTER},
                  {"chain", HK_BROADCAST},   {"chain", HK_REDUCE},       {"tree", HK_ALLREDUCE},
                  {"tree", HK_BROADCAST},    {"tree", HK_REDUCE},        {"pairwise", HK_ALLTOALL},
                  {"direct", HK_GATHER},     {"direct", HK_SCATTER},     {"oneshot", HK_ALLGATHER},
                  {"oneshot", HK_BROADCAST}, {"binomial", HK_BROADCAST}, {"binomial", HK_REDUCE}};
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(constant); k++)
    ck_assert_uint_eq(instructions(constant[k].name, constant[k].coll, 8, 0),
                      instructions(constant[k].name, constant[k].coll, 1000, 0));
  ck_assert_uint_eq(instructions("ring", HK_ALLREDUCE, 1000, 999), 7);
  ck_assert_uint_le(instructions("pat", HK_ALLGATHER, 1000, 1), 7 * 10);
  ck_assert_uint_le(instructions("pat", HK_REDUCE_SCATTER, 1000, 1), 9 * 10);
  ck_assert_uint_le(instructions("halving", HK_ALLREDUCE, 1000, 1), 32 * 10);
  ck_assert_uint_le(instructions("doubling", HK_ALLREDUCE, 1000, 1), 10);
}

/* Programs of one root, as a file has them, are right for all roots. */
TEST_LOOP(turned, prove_count()) {
  static const int counts[] = {2, 3, 5, 8};
  const hk_algorithm *a = hk_algorithms[_i];
  for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
    const int n = counts[k];
    const hk_machine m = prove_machine(n);
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      if (!hk_coll_has_root((hk_coll)c) || !hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
      hk_program **p = prove_build(a, (hk_coll)c, n, n / 2);
      const hk_loaded loaded = {.programs = p, .nranks = n, .coll = (hk_coll)c};
      const hk_algorithm file = {.name = a->name, .loaded = &loaded};
      for (int root = 0; root < n; root++) {
        hk_program **turned = prove_build(&file, (hk_coll)c, n, root);
        for (int r = 0; r < n; r++) ck_assert(turned[r]->rank == r && turned[r]->root == root);
        prove_free(turned, n);
        prove(&file, (hk_coll)c, n, root, (prove_range){2, 2, 0, true});
      }
      prove_free(p, n);
    }
  }
}

int main(void) { return suite_main("algorithms", .timeout = 3600); }
