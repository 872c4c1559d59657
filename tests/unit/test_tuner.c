/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Tuner plugins of every version: what they prefer is chosen; one that fails or is silent changes nothing. */
#include <libgen.h>
#include "../../src/base/param.h"
#include "../../src/decide/machine.h"
#include "../../src/run/tuner.h"
#include "../support/outlines.h"
#include "../support/suite.h"

static const char *const versions[] = {"two", "three", "four", "five", "six"};
enum { VERSIONS = HK_ARRAY_LENGTH(versions) };

/* The example of this version (tests/plugins/tuner.h): it prefers a tree to 4 KiB and a ring (or chain) above. */
static hk_tuner *load(const char *version, const char *mode) {
  char self[3800] = "", path[4096];
  hk_tuner *t;
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../plugins/libnccl-tuner-%s.so", dirname(self), version);
  setenv("NCCL_TUNER_PLUGIN", path, 1);
  setenv("HOCKET_TEST_TUNER", mode, 1);
  hk_param_reload();
  ck_assert_int_eq(hk_tuner_load(hk_settings_now(), &t), HK_OK);
  ck_assert_ptr_nonnull(t);
  return t;
}

static hk_machine machine(int ranks) {
  hk_host_facts f = {.team.nranks = ranks,
                     .team.nhosts = 1,
                     .team.ranks_per_host = ranks,
                     .team.least_per_host = ranks,
                     .cores_per_host = ranks,
                     .memory = true,
                     .slot_bytes = 131072};
  return with_outlines(hk_machine_of_hosts(&f, NULL));
}

/* The decision with a plugin; *own: the one without. */
static hk_decision decide(hk_tuner *t, int ranks, const char *algorithms, hk_coll coll, size_t bytes,
                          hk_decision *own) {
  hk_machine m = machine(ranks);
  hk_filter w = {.max_channels = 0};
  ck_assert_int_eq(hk_filter_parse(&w, algorithms, NULL), HK_OK);
  ck_assert_int_eq(hk_select(&m, &w, coll, bytes, own), HK_OK);
  hk_decision d;
  ck_assert_int_eq(hk_tuner_select(t, &m, &w, coll, bytes, &d), HK_OK);
  return d;
}

static void expect(hk_tuner *t, const char *algorithms, hk_coll coll, size_t bytes, const char *name) {
  hk_decision own, d = decide(t, 4, algorithms, coll, bytes, &own);
  ck_assert_msg(!strcmp(d.algorithm->name, name), "%zu bytes: %s, not %s", bytes, d.algorithm->name, name);
  ck_assert(d.algorithm == own.algorithm ? !d.note : d.note && strstr(d.note, "tuner plugin"));
}

static void expect_own(hk_tuner *t, int ranks, hk_coll coll, size_t bytes) {
  hk_decision own, d = decide(t, ranks, NULL, coll, bytes, &own);
  ck_assert(d.algorithm == own.algorithm && d.protocol == own.protocol && d.channels == own.channels && !d.note);
}

TEST_LOOP(preferred, VERSIONS) {
  hk_tuner *t = load(versions[_i], "");
  hk_machine m = machine(4);
  expect_own(t, 4, HK_ALLREDUCE, 64); /* not asked before it has begun */
  ck_assert(hk_tuner_begin(t, &m, 1));
  expect(t, NULL, HK_ALLREDUCE, 64, "tree");
  expect(t, NULL, HK_ALLREDUCE, 1 << 20, "ring");
  expect(t, NULL, HK_ALLGATHER, 1 << 20, "ring");
  expect(t, NULL, HK_REDUCE_SCATTER, 1 << 20, "ring");
  expect(t, NULL, HK_BROADCAST, 1 << 20, "chain");
  expect(t, NULL, HK_REDUCE, 1 << 20, "chain");
  expect_own(t, 4, HK_ALLTOALL, 1 << 20); /* plugins know none */
  expect_own(t, 1, HK_ALLREDUCE, 64);
  hk_decision own, d = decide(t, 4, "^ring", HK_ALLREDUCE, 1 << 20, &own);
  ck_assert_str_ne(d.algorithm->name, "ring");
  hk_tuner_free(t);
}

static void expect_unmoved(const char *version, const char *mode) {
  hk_tuner *t = load(version, mode);
  hk_machine m = machine(4);
  ck_assert(hk_tuner_begin(t, &m, 1) == !!strcmp(mode, "refuse"));
  for (size_t bytes = 64; bytes <= 1 << 20; bytes *= 4) expect_own(t, 4, HK_ALLREDUCE, bytes);
  hk_tuner_free(t);
}

TEST_LOOP(no_preference, VERSIONS) {
  expect_unmoved(versions[_i], "silent");
  expect_unmoved(versions[_i], "fail");
  expect_unmoved(versions[_i], "refuse");
}

TEST_LOOP(channels, VERSIONS) {
  hk_tuner *t = load(versions[_i], "channels");
  hk_machine m = machine(4);
  hk_decision own;
  ck_assert(hk_tuner_begin(t, &m, 1));
  ck_assert_int_eq(decide(t, 4, NULL, HK_ALLREDUCE, 1 << 20, &own).channels, 2);
  hk_tuner_free(t);
}

static size_t tuner_chunk(const hk_tuner *t, hk_coll coll, const hk_decision *d, size_t chunk) {
  return hk_tuner_chunk(t, coll, 1 << 20, d, 1, chunk);
}

/* A plugin of version 6 may want smaller chunks (the example: of 4097 bytes), of what it knows. */
TEST_LOOP(chunks, VERSIONS) {
  static const hk_decision ring = {.protocol = HK_PROTO_SIMPLE}, tree = {.protocol = HK_PROTO_LL128};
  hk_decision known[] = {ring, tree}, unknown = ring;
  known[0].algorithm = hk_algorithm_by_name("ring");
  known[1].algorithm = hk_algorithm_by_name("tree");
  unknown.algorithm = hk_algorithm_by_name("direct");
  hk_tuner *t = load(versions[_i], "chunk");
  hk_machine m = machine(4);
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &known[0], 65536), 65536); /* it has not begun */
  ck_assert(hk_tuner_begin(t, &m, 1));
  const size_t wanted = strcmp(versions[_i], "six") ? 65536 : 4096;
  for (int i = 0; i < 2; i++) ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &known[i], 65536), wanted);
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &known[0], 4095), 4095); /* no larger than slots take */
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLTOALL, &known[0], 65536), 65536);
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &unknown, 65536), 65536);
  setenv("HOCKET_TEST_TUNER", "tiny chunk", 1);
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &known[0], 65536), wanted == 4096 ? 64 : 65536);
  setenv("HOCKET_TEST_TUNER", "no chunk", 1);
  ck_assert_uint_eq(tuner_chunk(t, HK_ALLREDUCE, &known[0], 65536), 65536);
  hk_tuner_free(t);
}

/* A plugin may raise prices, too: of the model's own choice as well. */
TEST(dear) {
  hk_tuner *t = load("three", "dear");
  hk_machine m = machine(4);
  ck_assert(hk_tuner_begin(t, &m, 1));
  for (size_t bytes = 64; bytes <= 1 << 20; bytes *= 2)
    expect(t, "ring,tree", HK_ALLREDUCE, bytes, bytes > 4096 ? "ring" : "tree");
  hk_tuner_free(t);
}

int main(void) { return suite_main("tuner"); }
