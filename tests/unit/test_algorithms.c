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

/* ---- some programs to read ---- */

static void expect(const char *name, hk_build what, const char *want) {
  hk_program *p;
  char *text = NULL;
  size_t size;
  ck_assert_int_eq(hk_algorithm_build(hk_algorithm_by_name(name), &what, &p), HK_OK);
  FILE *f = open_memstream(&text, &size);
  hk_program_dump(p, f);
  fclose(f);
  ck_assert_str_eq(text, want);
  free(text);
  hk_program_free(p);
}

TEST(golden) {
  expect("oneshot", (hk_build){.coll = HK_ALLREDUCE, .rank = 1, .nranks = 3},
         "AllReduce oneshot, rank 1 of 3, message split into 1, scratch 0, lanes 1, links 3, instructions 2\n"
         "lane 0\n"
         "  links: 0=mcast(1) 1=mcast-recv(0) 2=mcast-recv(2)\n"
         "     0: mcast(1)[b0] <- in[b0], copy\n"
         "     1: out[b0] <- mcast-recv(0)[b0] + in[b0] + mcast-recv(2)[b0], final\n");
  expect("twoshot", (hk_build){.coll = HK_ALLREDUCE, .rank = 0, .nranks = 3},
         "AllReduce twoshot, rank 0 of 3, message split into 3, scratch 0, lanes 3, links 7, instructions 5\n"
         "lane 0\n"
         "  links: 0=send(1) 1=send(2)\n"
         "     0: repeat the next 1, 2 times\n"
         "     1:   send(link 0+j)[b1+1j] <- in[b1+1j]\n"
         "lane 1\n"
         "  links: 2=mcast(0@0) 3=recv(1@0) 4=recv(2@0)\n"
         "     2: mcast(0@0)[b0], out[b0] <- in[b0] + recv(1@0)[b0] + recv(2@0)[b0], final\n"
         "lane 2\n"
         "  links: 5=mcast-recv(2@0) 6=mcast-recv(1@0)\n"
         "     3: repeat the next 1, 2 times\n"
         "     4:   out[b2-1j] <- mcast-recv(link 5+j)[b2-1j]\n");
  expect("direct", (hk_build){.coll = HK_ALLREDUCE, .rank = 0, .nranks = 3},
         "AllReduce direct, rank 0 of 3, message split into 3, scratch 0, lanes 3, links 8, instructions 5\n"
         "lane 0\n"
         "  links: 0=send(1) 1=send(2)\n"
         "     0: repeat the next 1, 2 times\n"
         "     1:   send(link 0+j)[b1+1j] <- in[b1+1j]\n"
         "lane 1\n"
         "  links: 2=send(1) 3=send(2) 4=recv(1@0) 5=recv(2@0)\n"
         "     2: out[b0], send(1)[b0], send(2)[b0] <- in[b0] + recv(1@0)[b0] + recv(2@0)[b0], final\n"
         "lane 2\n"
         "  links: 6=recv(2@1) 7=recv(1@1)\n"
         "     3: repeat the next 1, 2 times\n"
         "     4:   out[b2-1j] <- recv(link 6+j)[b2-1j]\n");
  expect("ring", (hk_build){.coll = HK_ALLREDUCE, .rank = 1, .nranks = 4},
         "AllReduce ring, rank 1 of 4, message split into 4, scratch 0, lanes 1, links 2, instructions 7\n"
         "lane 0\n"
         "  links: 0=send(2) 1=recv(0)\n"
         "     0: send(2)[b1] <- in[b1]\n"
         "     1: repeat the next 1, 2 times\n"
         "     2:   send(2)[b0-1j] <- recv(0)[b0-1j] + in[b0-1j]\n"
         "     3: out[b2], send(2)[b2] <- recv(0)[b2] + in[b2], final\n"
         "     4: repeat the next 1, 2 times\n"
         "     5:   out[b1-1j], send(2)[b1-1j] <- recv(0)[b1-1j]\n"
         "     6: out[b3] <- recv(0)[b3]\n");
  expect("tree", (hk_build){.coll = HK_ALLREDUCE, .rank = 0, .nranks = 5},
         "AllReduce tree, rank 0 of 5, message split into 2, scratch 0, lanes 2, links 4, instructions 2\n"
         "lane 0\n"
         "  links: 0=recv(4) 1=send(4@2)\n"
         "     0: out[b0], send(4@2)[b0] <- recv(4)[b0] + in[b0], final\n"
         "lane 1\n"
         "  links: 2=recv(1) 3=send(1@3)\n"
         "     1: out[b1], send(1@3)[b1] <- recv(1)[b1] + in[b1], final\n");
  expect("tree", (hk_build){.coll = HK_ALLREDUCE, .rank = 4, .nranks = 5},
         "AllReduce tree, rank 4 of 5, message split into 2, scratch 0, lanes 4, links 6, instructions 4\n"
         "lane 0\n"
         "  links: 0=recv(2) 1=send(0)\n"
         "     0: send(0)[b0] <- recv(2)[b0] + in[b0]\n"
         "lane 1\n"
         "  links: 2=recv(0@2) 3=send(2@2)\n"
         "     1: out[b0], send(2@2)[b0] <- recv(0@2)[b0]\n"
         "lane 2\n"
         "  links: 4=send(3@1)\n"
         "     2: send(3@1)[b1] <- in[b1]\n"
         "lane 3\n"
         "  links: 5=recv(3)\n"
         "     3: out[b1] <- recv(3)[b1]\n");
  expect("doubling", (hk_build){.coll = HK_ALLREDUCE, .rank = 1, .nranks = 3},
         "AllReduce doubling, rank 1 of 3, message split into 1, scratch 1, lanes 1, links 4, instructions 2\n"
         "lane 0\n"
         "  links: 0=recv(0) 1=send(2) 2=recv(2) 3=send(0)\n"
         "     0: scratch[b0], send(2)[b0] <- recv(0)[b0] + in[b0], copy\n"
         "     1: out[b0], send(0)[b0] <- scratch[b0] + recv(2)[b0], final\n");
  expect("pat", (hk_build){.coll = HK_REDUCE_SCATTER, .rank = 0, .nranks = 5},
         "ReduceScatter pat, rank 0 of 5, messages in 5 out 1, scratch 2, lanes 1, links 6, instructions 8\n"
         "lane 0\n"
         "  links: 0=send(4) 1=recv(1) 2=send(3) 3=recv(2) 4=send(1) 5=recv(4)\n"
         "     0: send(4)[b4] <- in[b4]\n"
         "     1: send(4)[b2] <- in[b2]\n"
         "     2: scratch[b0] <- recv(1)[b0] + in[b0]\n"
         "     3: scratch[b1] <- recv(1)[b3] + in[b3]\n"
         "     4: send(3)[b3] <- scratch[b1]\n"
         "     5: scratch[b0] <- recv(2)[b0] + scratch[b0]\n"
         "     6: send(1)[b1] <- in[b1]\n"
         "     7: out[b0] <- recv(4)[b0] + scratch[b0], final\n");
  expect("binomial", (hk_build){.coll = HK_GATHER, .rank = 1, .nranks = 6, .root = 3},
         "Gather binomial, rank 1 of 6, root 3, messages in 1 out 6, scratch 0, lanes 1, links 2, instructions 2\n"
         "lane 0\n"
         "  links: 0=send(3) 1=recv(2)\n"
         "     0: send(3)[b1] <- in[b0]\n"
         "     1: send(3)[b2] <- recv(2)[b2]\n");
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
      const hk_loaded loaded = {.programs = p, .nranks = n};
      const hk_algorithm file = {.name = a->name, .colls = a->colls, .loaded = &loaded};
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
