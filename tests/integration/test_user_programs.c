/* SPDX-License-Identifier: Apache-2.0 */
/* HOCKET_PROGRAMS: programs from files run as built-in ones do, and ranks must have the same. */
#include <hocket.h>
#include "../../src/base/param.h"
#include "../../src/core/comm.h"
#include "../../src/decide/programs.h"
#include "../../src/formats/json_tree.h"
#include "../../src/program/program.h"
#include "../../src/run/plans.h"
#include "../support/msccl_files.h"
#include "../support/mscclpp_files.h"
#include "../support/outlines.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 4, MOST = 300000 };
static char folder[] = "/tmp/hocket-programs-XXXXXX", plans[] = "/tmp/hocket-plans-XXXXXX"; /* of MSCCL, of MSCCL++ */

static void put_in(const char *in, const char *name, char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", in, name);
  FILE *f = fopen(path, "w");
  if (!f) abort();
  fputs(text, f);
  fclose(f);
  free(text);
}

static void put(const char *name, char *text) { put_in(folder, name, text); }

static void take_away(void) {
  static const char *const names[] = {"a-ring.xml",     "b-pairs.xml", "c-gather.xml",
                                      "d-alltoall.xml", "e-other.xml", "f-wrong.xml"};
  char path[128];
  for (size_t i = 0; i < HK_ARRAY_LENGTH(names); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  rmdir(folder);
  for (char name[] = "a.json"; name[0] < 'g'; name[0]++) {
    snprintf(path, sizeof path, "%s/%s", plans, name);
    unlink(path);
  }
  rmdir(plans);
}

static void use(const char *programs, const char *algorithms) {
  setenv("HOCKET_PROGRAMS", programs, 1);
  setenv("NCCL_ALGO", algorithms, 1);
  hk_param_reload();
}
static void use_folder(const char *algorithms) { use(folder, algorithms); }

static void begin(void) {
  if (!mkdtemp(folder) || !mkdtemp(plans)) abort();
  put("a-ring.xml", msccl_ring(RANKS, 3, ""));
  put("b-pairs.xml", msccl_pairs(RANKS));
  put("c-gather.xml", msccl_direct(RANKS, 3, "allgather"));
  put("d-alltoall.xml", msccl_direct(RANKS, 2, "alltoall"));
  put("e-other.xml", msccl_ring(RANKS + 1, 1, ""));
  put("f-wrong.xml", strdup("<algo/>"));
  put_in(plans, "a.json", mscclpp_packets(RANKS, 2));
  put_in(plans, "b.json", mscclpp_puts(RANKS, 3, 2));
  put_in(plans, "c.json", mscclpp_reads(RANKS, 1, 0));
  put_in(plans, "d.json", mscclpp_reads(RANKS, 2, 1));
  put_in(plans, "e.json", mscclpp_direct(RANKS, 2, 0, 2));
  put_in(plans, "f.json", mscclpp_direct(RANKS, 1, 1, 0));
}

/* True if all plans for the collective are of this algorithm. */
static int ran(ncclComm_t c, hk_coll coll, const char *algorithm) {
  int others = 0, made = 0;
  for (const hk_plan *p = c->plans->all; p; p = p->next) {
    if (p->program->coll != coll) continue;
    made++;
    others += strcmp(p->program->algorithm, algorithm) != 0;
  }
  return made && !others;
}

typedef struct row {
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t count;
  int in_place;
} row;

static int sums(ncclComm_t c, int rank, int nranks, void *arg) {
  const char *algorithm = arg;
  static const row rows[] = {{ncclFloat32, ncclSum, 1, 0},      {ncclFloat32, ncclAvg, 1000, 1},
                             {ncclInt64, ncclMax, 77, 0},       {ncclFloat16, ncclSum, 4097, 1},
                             {ncclFloat64, ncclSum, 100000, 0}, {ncclInt32, ncclSum, MOST, 1},
                             {ncclFloat32, ncclSum, MOST, 0}};
  int bad = 0;
  char *in = malloc(MOST * 8), *out = malloc(MOST * 8);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    const row *r = &rows[i];
    double got = 0, want = 0;
    test_block mine = {.type = r->type, .op = r->op, .rank = rank, .nranks = nranks, .count = r->count}, sum = mine;
    sum.rank = TEST_REDUCED;
    test_fill(&mine, r->in_place ? out : in);
    bad += RANK_CHECK(ncclAllReduce(r->in_place ? out : in, out, r->count, r->type, r->op, c, NULL));
    bad += RANK_IS(test_wrong(&sum, out, &got, &want) == r->count);
  }
  bad += RANK_IS(ran(c, HK_ALLREDUCE, algorithm));
  free(in);
  free(out);
  return bad;
}

static int moves(ncclComm_t c, int rank, int nranks, void *arg) {
  static const size_t counts[] = {1, 333, 65536};
  int bad = 0;
  const char *const *algorithms = arg;
  char *in = malloc(65536 * 4 * RANKS), *out = malloc(65536 * 4 * RANKS);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
    const size_t n = counts[i];
    double got, want;
    test_block block = {.type = ncclFloat32, .op = ncclSum, .rank = rank, .nranks = nranks, .count = n};
    char *own = i == 1 ? out + (size_t)rank * n * 4 : in; /* once in place */
    test_fill(&block, own);
    bad += RANK_CHECK(ncclAllGather(own, out, n, ncclFloat32, c, NULL));
    for (block.rank = 0; block.rank < nranks; block.rank++)
      bad += RANK_IS(test_wrong(&block, out + (size_t)block.rank * n * 4, &got, &want) == n);
    bad += RANK_IS(ran(c, HK_ALLGATHER, algorithms[0]));
    test_block all = {.type = ncclFloat32, .op = ncclSum, .rank = rank, .nranks = nranks, .count = n * (size_t)nranks};
    test_fill(&all, in);
    bad += RANK_CHECK(ncclAlltoAll(in, out, n, ncclFloat32, c, NULL));
    for (int r = 0; r < nranks; r++) {
      block.rank = r, block.first = (uint64_t)rank * n;
      bad += RANK_IS(test_wrong(&block, out + (size_t)r * n * 4, &got, &want) == n);
    }
    block.first = 0;
    bad += RANK_IS(ran(c, HK_ALLTOALL, algorithms[1]));
  }
  free(in);
  free(out);
  return bad;
}

static const char *const transports[] = {"direct", "shm", "net"};

TEST_LOOP(run, 3) {
  ranks_reach_by(transports[_i]);
  use_folder("made_up");
  ck_assert_int_eq(ranks_as_threads(RANKS, sums, "made_up"), 0);
  use_folder("made_up-2");
  ck_assert_int_eq(ranks_as_threads(RANKS, sums, "made_up-2"), 0);
  use_folder("made_up-3,made_up-4");
  ck_assert_int_eq(ranks_as_threads(RANKS, moves, (const char *[]){"made_up-3", "made_up-4"}), 0);
}

TEST_LOOP(run_plans, 3) {
  static const char *const reductions[] = {"written", "written-2", "written-3", "written-4"};
  if (!hk_json_tree_available()) {
    puts("  jansson is not installed, so that no JSON is read");
    return;
  }
  ranks_reach_by(transports[_i]);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(reductions); i++) {
    use(plans, reductions[i]);
    ck_assert_int_eq(ranks_as_threads(RANKS, sums, (void *)(uintptr_t)reductions[i]), 0);
  }
  use(plans, "written-5,written-6");
  ck_assert_int_eq(ranks_as_threads(RANKS, moves, (const char *[]){"written-5", "written-6"}), 0);
}

static int places(ncclComm_t c, int rank, int nranks, void *arg) {
  float in[1024], out[1024];
  int bad = 0;
  (void)arg;
  for (int place = 0; place < 2; place++) {
    float *from = place ? out : in;
    for (int i = 0; i < 1024; i++) from[i] = (float)(rank + i);
    bad += RANK_CHECK(ncclAllReduce(from, out, 1024, ncclFloat32, ncclSum, c, NULL));
    for (int i = 0; i < 1024; i++) bad += RANK_IS(out[i] == (float)(nranks * i + nranks * (nranks - 1) / 2));
    bad += RANK_IS(ran(c, HK_ALLREDUCE, "made_up") == !place); /* the other one is for calls in place */
  }
  bad += RANK_IS(ncclAllReduce(rank == 1 ? out : in, out, 1024, ncclFloat32, ncclSum, c, NULL) == ncclInvalidUsage);
  if (rank == 0) puts(ncclGetLastError(c));
  return bad;
}

/* The user promises that ranks agree about the place, and breaks it in the last call. */
TEST(by_place) {
  ranks_reach_by("shm");
  setenv("HOCKET_PROGRAMS_BY_PLACE", "1", 1);
  use_folder("made_up,made_up-2");
  ck_assert_int_eq(ranks_as_threads(RANKS, places, NULL), 0);
  unsetenv("HOCKET_PROGRAMS_BY_PLACE");
}

/* Loaded by a call: all ranks have the same program or none. */
static int loads(ncclComm_t c, int rank, int nranks, void *arg) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  char ring[128], pairs[128], wrong[128];
  float in[64], out[64];
  int bad = 0;
  (void)arg;
  snprintf(ring, sizeof ring, "%s/a-ring.xml", folder);
  snprintf(pairs, sizeof pairs, "%s/b-pairs.xml", folder);
  snprintf(wrong, sizeof wrong, "%s/f-wrong.xml", folder);
  char other[128];
  snprintf(other, sizeof other, "%s/e-other.xml", folder);
  bad += RANK_IS(hocketCommLoadProgram(c, NULL) == ncclInvalidArgument);
  bad += RANK_IS(hocketCommLoadProgram(c, other) == ncclInvalidArgument);
  bad += RANK_IS(strstr(ncclGetLastError(c), "a program of 5 ranks, and this communicator has 4") != NULL);
  bad += RANK_IS(hocketCommLoadProgram(c, rank == 2 ? "/no/file" : pairs) ==
                 (rank == 2 ? ncclInvalidArgument : ncclInvalidUsage));
  bad += RANK_IS(hocketCommLoadProgram(c, rank == 1 ? pairs : ring) == ncclInvalidUsage);
  bad += RANK_IS(hocketCommLoadProgram(c, rank == 1 ? wrong : ring) ==
                 (rank == 1 ? ncclInvalidArgument : ncclInvalidUsage));
  config.algSelection = "made_up";
  config.forceAlgSelection = 1;
  for (int i = 0; i < 64; i++) in[i] = (float)(rank + i);
  bad += RANK_IS(ncclAllReduceConfig(in, out, 64, ncclFloat32, ncclSum, c, NULL, &config) == ncclInvalidArgument);
  bad += RANK_CHECK(hocketCommLoadProgram(c, rank < 2 ? NULL : pairs)); /* rank 2 gives it to those without */
  bad += RANK_CHECK(ncclAllReduceConfig(in, out, 64, ncclFloat32, ncclSum, c, NULL, &config));
  for (int i = 0; i < 64; i++) bad += RANK_IS(out[i] == (float)(nranks * i + nranks * (nranks - 1) / 2));
  bad += RANK_IS(ran(c, HK_ALLREDUCE, "made_up"));
  return bad;
}

TEST(load) {
  unsetenv("HOCKET_PROGRAMS");
  unsetenv("NCCL_ALGO");
  hk_param_reload();
  ranks_reach_by("shm");
  ck_assert_int_eq(ranks_as_threads(RANKS, loads, NULL), 0);
}

/* As on the ranks of a host that do not prove: the same programs, in the way that the prover found, and no proof. */
TEST(proved_elsewhere) {
  uint8_t ways[16] = {0};
  for (int i = 0; i < 2; i++) {
    hk_program_folder f;
    hk_user_programs *proved, *made;
    memset(ways, 0, sizeof ways);
    ck_assert_int_eq(hk_program_folder_list(&f, i ? plans : folder), HK_OK);
    ck_assert_int_eq(f.n, 6);
    ck_assert_int_eq(hk_user_programs_load(&proved, &f, 8, ways, false), HK_OK);
    ck_assert_int_eq(hk_user_programs_load(&made, &f, 8, ways, true), HK_OK);
    ck_assert_int_eq(made->n, proved->n);
    ck_assert_uint_eq(made->hash, proved->hash);
    hk_user_programs_free(made);
    hk_user_programs_free(proved);
    hk_program_folder_free(&f);
  }
  static const char wrong[] = "AllReduce wrong, rank 0 of 1, message split into 1, scratch 0, lanes 0, links 0, "
                              "instructions 0\n";
  hk_user_programs *p;
  uint8_t way = 0;
  ck_assert_int_eq(hk_user_programs_new(&p), HK_OK);
  ck_assert_int_eq(hk_user_programs_add(p, "wrong", wrong, 8, &way), HK_ERR_ARGUMENT);
  way = 1;
  ck_assert_int_eq(hk_user_programs_add(p, "wrong", wrong, 8, &way), HK_OK);
  hk_user_programs_free(p);
}

/* Of a call that no file is for, or of another number of ranks, the built-in algorithms are left. */
TEST(others) {
  hk_user_programs *p;
  hk_program_folder f;
  hk_machine m = {.team = {.nranks = RANKS + 1, .nhosts = 1, .ranks_per_host = RANKS + 1}};
  ck_assert_int_eq(hk_program_folder_list(&f, folder), HK_OK);
  ck_assert_int_eq(hk_user_programs_load(&p, &f, 8, NULL, false), HK_OK);
  hk_program_folder_free(&f);
  ck_assert_int_eq(p->n, 5); /* not the wrong one */
  ck_assert_str_eq(p->own[4].algorithm.name, "made_up-5");
  for (int i = 0; i < p->n; i++)
    ck_assert_int_eq(hk_algorithm_supports(&p->own[i].algorithm, &m.team, HK_ALLREDUCE), i == 4);
  hk_user_programs_free(p);
  ck_assert_int_eq(hk_program_folder_list(&f, "/no/such/folder"), HK_ERR_ARGUMENT);
  hk_program_folder_free(&f);
}

/* A file's sizes limit the choice; a filter that leaves only this program forces it. */
TEST(sizes) {
  hk_user_programs *p;
  hk_decision d;
  hk_filter filter = {.batch_invariant = false};
  const hk_host_facts facts = {.team.nranks = RANKS,
                               .team.nhosts = 1,
                               .team.ranks_per_host = RANKS,
                               .team.least_per_host = RANKS,
                               .cores_per_host = 64,
                               .memory = true,
                               .slot_bytes = 131072};
  const hk_machine m = with_outlines(hk_machine_of_hosts(&facts, NULL));
  hk_program_folder f;
  ck_assert_int_eq(hk_program_folder_list(&f, folder), HK_OK);
  ck_assert_int_eq(hk_user_programs_load(&p, &f, 8, NULL, false), HK_OK);
  hk_program_folder_free(&f);
  filter.algorithms = p->all;
  const hk_algorithm *pairs = &p->own[1].algorithm; /* of 64 to 65536 bytes */
  uint32_t two = 0, one = 0;
  for (int i = 0; p->all[i]; i++) {
    if (p->all[i] == pairs) one = 1u << i;
    if (!strcmp(p->all[i]->name, "ring")) two = 1u << i;
  }
  two |= one;
  static const size_t inside[] = {64, 4096, 65536}, outside[] = {16, 65537, 1 << 20};
  for (int i = 0; i < 3; i++) {
    filter.barred[HK_ALLREDUCE] = ~two;
    ck_assert_int_eq(hk_select(&m, &filter, HK_ALLREDUCE, inside[i], &d), HK_OK);
    ck_assert_ptr_eq(d.algorithm, pairs);
    ck_assert_int_eq(hk_select(&m, &filter, HK_ALLREDUCE, outside[i], &d), HK_OK);
    ck_assert_ptr_ne(d.algorithm, pairs);
    filter.barred[HK_ALLREDUCE] = ~one;
    ck_assert_int_eq(hk_select(&m, &filter, HK_ALLREDUCE, outside[i], &d), HK_OK);
    ck_assert_ptr_eq(d.algorithm, pairs);
    ck_assert_ptr_null(d.note);
  }
  hk_user_programs_free(p);
}

int main(void) {
  begin();
  const int code = suite_main("user_programs", .timeout = 120);
  take_away();
  return code;
}
