/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/suites/extend.sh runs in its copy of the tree: the verifier over the added programs, and three ranks that
 * use the added algorithm, transport and collective. */
#include <check.h>
#include <nccl.h>
#include <string.h>
#include "../support/prove_algorithms.h"
#include "../support/ranks.h"
#include "../support/suite.h"

ncclResult_t ncclMirrorGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                              ncclComm_t comm, cudaStream_t stream);

enum { RANKS = 3, COUNT = 100000 };

TEST(proved) {
  const char *const added[] = {"backring", "mirror"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(added); i++) {
    const hk_algorithm *a = hk_algorithm_by_name(added[i]);
    ck_assert_ptr_nonnull(a);
    for (int n = 2; n <= 12; n++)
      prove_roots(a, n, 1, (prove_range){.first_slots = 2, .last_slots = 3, .out_of_place = true});
  }
}

static int sum_and_gather(ncclComm_t comm, int rank, int nranks, void *arg) {
  float *in = malloc(COUNT * sizeof *in), *out = malloc((size_t)nranks * COUNT * sizeof *out);
  int faults = 0;
  (void)arg;
  for (int i = 0; i < COUNT; i++) in[i] = (float)(1000 * rank + i % 997);
  faults += RANK_CHECK(ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) faults += out[i] != (float)(1000 * nranks * (nranks - 1) / 2 + nranks * (i % 997));
  for (int place = 0; place < 2; place++) { /* out of place, then in place */
    float *from = place ? out + (size_t)(nranks - 1 - rank) * COUNT : in;
    memset(out, 0, (size_t)nranks * COUNT * sizeof *out);
    if (place) memcpy(from, in, COUNT * sizeof *in);
    faults += RANK_CHECK(ncclMirrorGather(from, out, COUNT, ncclFloat, comm, NULL));
    for (int b = 0; b < nranks; b++)
      for (int i = 0; i < COUNT; i++)
        faults += out[(size_t)b * COUNT + (size_t)i] != (float)(1000 * (nranks - 1 - b) + i % 997);
  }
  free(in);
  free(out);
  return faults;
}

TEST(three_ranks) { ck_assert_int_eq(ranks_as_threads(RANKS, sum_and_gather, NULL), 0); }

int main(void) { return suite_main("extended"); }
