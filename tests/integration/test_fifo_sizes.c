/* SPDX-License-Identifier: Apache-2.0 */
/* FIFOs of any size that the parameters accept carry large messages, over shared memory and TCP. */
#include "../../src/base/param.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { COUNT = 400001 };

static const struct {
  const char *slots, *slot_bytes;
} sizes[] = {{"3", "4096"}, {"5", "4097"}, {"6", "99999"}, {"7", "131073"}, {"63", "8191"}, {"2", "4103"}};

static int sums_up(ncclComm_t c, int rank, int n, void *arg) {
  double *b = malloc(COUNT * sizeof *b);
  (void)arg;
  for (int i = 0; i < COUNT; i++) b[i] = i % 1000 + rank;
  int faults = RANK_CHECK(ncclAllReduce(b, b, COUNT, ncclFloat64, ncclSum, c, NULL));
  for (int i = 0; i < COUNT && !faults; i++)
    if (b[i] != n * (i % 1000) + n * (n - 1) / 2) {
      fprintf(stderr, "rank %d: element %d is %g\n", rank, i, b[i]);
      faults++;
    }
  free(b);
  return faults;
}

TEST_LOOP(odd_sizes, 2 * (int)(sizeof sizes / sizeof *sizes)) {
  int net = _i % 2;
  setenv("HOCKET_SLOTS", sizes[_i / 2].slots, 1);
  setenv("HOCKET_SLOT_BYTES", sizes[_i / 2].slot_bytes, 1);
  setenv("NCCL_SHM_DISABLE", net ? "1" : "0", 1);
  setenv("NCCL_P2P_DISABLE", net ? "1" : "0", 1);
  hk_param_reload();
  ck_assert_int_eq(ranks_as_threads(3, sums_up, NULL), 0);
}

int main(void) { return suite_main("FIFO sizes", .timeout = 60); }
