/* SPDX-License-Identifier: Apache-2.0 */
/* As test_algorithms.c, for 512 and 1000 ranks.
 *
 * By default in place and with two slots, the hardest case (with more slots a program can only wait less, and what is
 * right in place is right out of it but for copies to itself), and for a dozen roots, the first, the second and the
 * last among them: programs depend on rank - root only, which 64 ranks with every root have shown.  HOCKET_TEST_FULL=1
 * runs every root, 2 to 8 slots, in place and out of it.
 * check: timeout=300 noasan notsan long=unit */
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

static void large(const hk_algorithm *a, int nranks) {
  if (prove_full())
    prove_roots(a, nranks, 1, (prove_range){2, 8, 2, true});
  else
    prove_roots(a, nranks, nranks / 11, (prove_range){2, 2, 2, false});
}

TEST_LOOP(ranks_512, prove_count()) { large(hk_algorithms[_i], 512); }
TEST_LOOP(ranks_1000, prove_count()) { large(hk_algorithms[_i], 1000); }

int main(void) { return suite_main("algorithms of many ranks", .timeout = 2 * 3600); }
