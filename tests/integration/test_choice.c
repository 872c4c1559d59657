/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime does with selection: estimates without running, channels that the configuration asks for. */
#include <hocket.h>
#include "../../src/base/meter.h"
#include "../../src/base/param.h"
#include "../../src/collectives/algorithm.h"
#include "../../src/core/backend.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/outlines.h"
#include "../../src/decide/overrides.h"
#include "../../src/decide/select.h"
#include "../../src/kernels/steps.h"
#include "../../src/run/plans.h"
#include "../../src/run/run.h"
#include "../../src/run/selection.h"
#include "../../src/transport/link.h"
#include "../support/golden.h"
#include "../support/randprog.h"
#include "../support/ranks.h"
#include "../support/suite.h"

#define WANT(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, ncclGetLastError(NULL));             \
      faults++;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static float estimate(ncclComm_t c, float *data, size_t count, int calls) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int faults = RANK_CHECK(ncclGroupStart());
  for (int i = 0; i < calls; i++) faults += RANK_CHECK(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, c, NULL));
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  return faults ? -1 : info.estimatedTime;
}

static int estimates(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0;
  enum { COUNT = 1 << 18 };
  float *data = malloc(COUNT * sizeof *data);
  for (int i = 0; i < COUNT; i++) data[i] = (float)rank;
  float small = estimate(c, data, 2, 1), large = estimate(c, data, COUNT, 1), twice = estimate(c, data, COUNT, 2);
  WANT(small > 0 && large > 10 * small);
  WANT(twice > 1.9f * large && twice < 2.1f * large);
  for (int i = 0; i < COUNT; i++) WANT(data[i] == (float)rank); /* nothing ran */
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int peer = (rank + 1) % n, from = (rank + n - 1) % n;
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclSend(data, COUNT, ncclFloat32, peer, c, NULL));
  faults += RANK_CHECK(ncclRecv(data, COUNT, ncclFloat32, from, c, NULL));
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  WANT(info.estimatedTime > small);
  /* An empty group, and no place for the result. */
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  WANT(info.estimatedTime == 0);
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupSimulateEnd(NULL));
  /* It still works for real. */
  faults += RANK_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, c, NULL));
  WANT(data[COUNT - 1] == (float)(n * (n - 1) / 2));
  free(data);
  return faults;
}

TEST(simulates_groups) { ck_assert_int_eq(ranks_as_threads(4, estimates, NULL), 0); }

static int refusals(ncclComm_t c, int rank, int n, void *arg) {
  (void)rank, (void)n, (void)arg;
  int faults = 0;
  float x = 1;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "no group is open"));
  info.magic = 7;
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidArgument &&
       strstr(ncclGetLastError(NULL), "NCCL_SIM_INFO_INITIALIZER"));
  info = (ncclSimInfo_t)NCCL_SIM_INFO_INITIALIZER;
  faults += RANK_CHECK(ncclGroupStart());
  WANT(ncclAllReduce(&x, &x, 1, (ncclDataType_t)99, ncclSum, c, NULL) == ncclInvalidArgument);
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidArgument);
  WANT(info.estimatedTime == NCCL_UNDEF_FLOAT);
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupStart());
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "inside another"));
  WANT(ncclGroupEnd() == ncclInvalidUsage);
  WANT(x == 1);
  return faults;
}

TEST(refuses) { ck_assert_int_eq(ranks_as_threads(2, refusals, NULL), 0); }

/* The same sizes again and again: the plans are found again. */
static int alternates(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0;
  static const size_t counts[] = {1, 3000, 1 << 17, 17};
  float *data = calloc(1 << 17, sizeof *data);
  for (int round = 0; round < 50 && !faults; round++) {
    size_t count = counts[round % 4];
    for (size_t i = 0; i < count; i++) data[i] = (float)(rank + round);
    faults += RANK_CHECK(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, c, NULL));
    float want = (float)(n * (n - 1) / 2 + n * round);
    WANT(data[0] == want && data[count - 1] == want);
  }
  free(data);
  return faults;
}

TEST(alternating_sizes) { ck_assert_int_eq(ranks_as_threads(3, alternates, NULL), 0); }

TEST_LOOP(several_channels, 4) {
  setenv("NCCL_MIN_NCHANNELS", _i % 2 ? "4" : "2", 1);
  if (_i > 1) setenv("NCCL_ALGO", _i == 2 ? "ring" : "tree,direct", 1);
  ck_assert_int_eq(ranks_as_threads(4, alternates, NULL), 0);
}

TEST(wrong_settings_end_the_init) {
  setenv("NCCL_ALGO", "rnig", 1);
  ncclComm_t c = NULL;
  ncclUniqueId id;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRank(&c, 1, id, 0), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "\"rnig\" is no algorithm"));
  ck_assert_ptr_null(c);
}

/* ---- what a call is chosen by ---- */

/* The price that the model gives for so many bytes. */
static double model_us(ncclComm_t c, hk_coll coll, size_t bytes) {
  hk_decision d;
  return hk_select(c->selection->machine, &c->selection->overrides->filter, coll, bytes, &d) == HK_OK ? d.us : -1;
}

static double price_us(ncclComm_t c, const hk_call *call) {
  double us;
  return hk_selection_price(c, call, &us) == HK_OK ? us : -2;
}

/* Bytes are those of the larger buffer; of an uneven collective, of as many blocks as long as the longest, rounded up
 * to a power of two, and if only pairs know their lengths, of blocks of a megabyte. */
static int prices(ncclComm_t c, int rank, int n, void *arg) {
  static const struct {
    hk_coll coll;
    bool parts; /* a block for each rank */
  } colls[] = {{HK_ALLREDUCE, false}, {HK_BROADCAST, false},     {HK_REDUCE, false}, {HK_ALLGATHER, true},
               {HK_ALLTOALL, true},   {HK_REDUCE_SCATTER, true}, {HK_GATHER, true},  {HK_SCATTER, true}};
  int faults = 0;
  (void)rank, (void)arg;
  for (size_t i = 0; i < sizeof colls / sizeof *colls; i++)
    for (size_t count = 1; count <= 1 << 20; count *= 32) {
      const hk_call call = {.comm = c, .count = count, .coll = (uint8_t)colls[i].coll, .dtype = HK_F32};
      WANT(price_us(c, &call) == model_us(c, colls[i].coll, 4 * count * (colls[i].parts ? (size_t)n : 1)));
    }
  for (size_t longest = 1; longest < 5000; longest += 1 + longest / 3) {
    hk_blocks blocks = {.longest = 4 * longest};
    size_t power = 1;
    while (power < longest) power *= 2;
    hk_call call = {.comm = c, .count = 77, .coll = HK_ALLGATHERV, .dtype = HK_F32, .blocks = &blocks};
    WANT(price_us(c, &call) == model_us(c, HK_ALLGATHERV, 4 * power * (size_t)n));
    call.coll = HK_ALLTOALLV;
    WANT(price_us(c, &call) == model_us(c, HK_ALLTOALLV, ((size_t)1 << 20) * (size_t)n));
  }
  return faults;
}

TEST(prices_by_bytes) { ck_assert_int_eq(ranks_as_threads(3, prices, NULL), 0); }

static const hk_plan *plan_for(ncclComm_t c, size_t count, const hk_call_options *options) {
  hk_call call = {.comm = c, .count = count, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_SUM};
  const hk_plan *plan = NULL;
  const hk_launch *launch;
  if (options) call.options = *options;
  call.asks = options != NULL;
  return hk_choose(c, &call, &plan, &launch) == HK_OK ? plan : NULL;
}

/* The smaller of the most channels that the communicator and the call want; the call's least comes before the
 * communicator's, and is never more than the most. */
static int wishes(ncclComm_t c, int rank, int n, void *arg) {
  static const struct {
    int least, most; /* of the communicator; 0: no filter */
    uint8_t call_least, call_most;
    unsigned channels;
  } rows[] = {{4, 0, 0, 0, 4}, {4, 0, 3, 0, 3}, {2, 0, 5, 0, 5}, {4, 0, 0, 2, 2}, {8, 3, 0, 5, 3}, {8, 5, 0, 3, 3},
              {8, 3, 0, 0, 3}, {8, 3, 7, 0, 3}, {3, 0, 3, 3, 3}, {4, 4, 0, 0, 4}, {2, 8, 6, 7, 6}};
  hk_filter *filter = &c->selection->overrides->filter;
  int faults = 0;
  (void)rank, (void)n, (void)arg;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const hk_call_options options = {.min_ctas = rows[i].call_least, .max_ctas = rows[i].call_most};
    filter->min_channels = rows[i].least;
    filter->max_channels = rows[i].most;
    hk_selection_only(c, HK_ALLREDUCE, UINT32_MAX); /* forget what was chosen */
    const hk_plan *plan = plan_for(c, 1 << 16, &options);
    WANT(plan && plan->channels == rows[i].channels);
    if (plan && plan->channels != rows[i].channels) fprintf(stderr, "row %zu: %u\n", i, plan->channels);
  }
  return faults;
}

TEST(channels_by_wish) {
  setenv("NCCL_ALGO", "ring", 1);
  ck_assert_int_eq(ranks_as_threads(3, wishes, NULL), 0);
}

static uint32_t bit_of(const char *algorithm) {
  for (int i = 0; hk_algorithms[i]; i++)
    if (!strcmp(hk_algorithms[i]->name, algorithm)) return 1u << i;
  return 0;
}

/* A call's own algorithms are for that call; equal calls have the same plan. */
static int own(ncclComm_t c, int rank, int n, void *arg) {
  const hk_call_options ring = {.only = {bit_of("ring")}}, tree = {.only = {bit_of("tree")}},
                        none = {.only = {bit_of("nvls")}};
  int faults = 0;
  (void)rank, (void)n, (void)arg;
  for (int round = 0; round < 3; round++) {
    const hk_plan *usual = plan_for(c, 100, NULL), *by_ring = plan_for(c, 100, &ring),
                  *by_tree = plan_for(c, 100, &tree);
    WANT(usual && by_ring && by_tree);
    if (faults) return faults;
    WANT(!strcmp(by_ring->program->algorithm, "ring") && !strcmp(by_tree->program->algorithm, "tree"));
    WANT(plan_for(c, 100, &tree) == by_tree && plan_for(c, 100, &ring) == by_ring && plan_for(c, 100, NULL) == usual);
    WANT(plan_for(c, 101, &ring) == by_ring);
  }
  hk_call call = {.comm = c, .count = 100, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_SUM, .options = ring};
  WANT(hk_selection_check(c, &call, "someCall") == HK_OK);
  call.options = none;
  WANT(hk_selection_check(c, &call, "someCall") == HK_ERR_ARGUMENT);
  WANT(strstr(hk_last_error(), "someCall: none of the algorithms and protocols that algSelection names"));
  return faults;
}

TEST(own_algorithms) { ck_assert_int_eq(ranks_as_threads(3, own, NULL), 0); }

/* Equal calls have equal signatures, others do not, and none has 0. */
TEST(signatures) {
  const hk_call base = {.count = 5, .coll = HK_BROADCAST, .dtype = HK_F32, .redop = HK_SUM, .root = 2};
  hk_call others[40];
  size_t count = 0;
  others[count++] = base;
  for (size_t i = 0; i < 4; i++) others[count] = base, others[count++].count = i;
  for (int i = 0; i < 2; i++) others[count] = base, others[count++].root = i;
  for (uint8_t i = 0; i < 3; i++) others[count] = base, others[count++].coll = (uint8_t)(HK_ALLGATHER + i);
  for (uint8_t i = 0; i < 3; i++) others[count] = base, others[count++].dtype = i;
  for (uint8_t i = 1; i < 4; i++) others[count] = base, others[count++].redop = i;
  for (uint8_t i = 1; i < 4; i++) others[count] = base, others[count++].options.only[i - 1] = 1;
  others[count] = base, others[count++].options.min_ctas = 1;
  others[count] = base, others[count++].options.policy = 1;
  for (size_t i = 0; i < count; i++) {
    const hk_call again = others[i];
    ck_assert_uint_ne(hk_call_signature(&others[i]), 0);
    ck_assert_uint_eq(hk_call_signature(&again), hk_call_signature(&others[i]));
    for (size_t k = 0; k < i; k++)
      ck_assert_msg(hk_call_signature(&others[i]) != hk_call_signature(&others[k]), "%zu and %zu", i, k);
  }
}

/* ---- the launch of a call, and that what is kept of earlier calls makes no difference ---- */

/* Ranks that have nothing but their machine; the links of their plans are never used. */
static hk_link no_link;
static unsigned channels_of_host(const struct ncclComm *c, const hk_program *p, unsigned span) {
  return (void)c, (void)p, HK_CHANNELS / span;
}
static hk_status bind(ncclComm_t c, hk_plan *plan, unsigned span, const hk_call *call) {
  (void)c, (void)span, (void)call;
  for (size_t i = 0; i < (size_t)plan->channels * plan->program->nlinks; i++) plan->links[i] = &no_link;
  plan->steps = hk_steps_make(plan);
  return HK_OK;
}
static size_t slot_bytes(const struct ncclComm *c, const hk_program *p, size_t bytes) {
  return (void)c, (void)p, bytes;
}
static const hk_backend backend = {.most_channels = channels_of_host, .bind = bind, .slot_bytes = slot_bytes};

static const struct {
  const char *name;
  hk_host_facts hosts;
  double reads;
} machines[] = {
#define HOSTS(n, h, each, cores, mcast)                                                                                \
  {                                                                                                                    \
    .team = {.nranks = n, .nhosts = h, .ranks_per_host = each, .least_per_host = each, .multicast = mcast},            \
    .cores_per_host = cores, .memory = true, .slot_bytes = 1 << 16                                                     \
  }
    {"2 ranks", HOSTS(2, 1, 2, 8, true), 0},
    {"2 ranks that read memory", HOSTS(2, 1, 2, 8, true), 1.3},
    {"4 ranks on few cores", HOSTS(4, 1, 4, 2, true), 0},
    {"4 ranks that read memory", HOSTS(4, 1, 4, 4, true), 1.3},
    {"3 hosts", HOSTS(3, 3, 1, 1, false), 0},
    {"2 hosts of 4", HOSTS(8, 2, 4, 4, false), 0},
#undef HOSTS
};

static void open_machine(struct ncclComm *c, size_t k, int rank) {
  const hk_host_facts *f = &machines[k].hosts;
  const hk_team *h = &f->team;
  uint64_t hosts[8];
  *c = (struct ncclComm){.settings = hk_settings_now(), .rank = rank, .nranks = h->nranks, .backend = &backend};
  c->order.meter = hk_meter_new();
  ck_assert_ptr_nonnull(c->order.meter);
  ck_assert_int_eq(hk_plans_new(c), HK_OK);
  ck_assert_int_eq(hk_selection_new(c), HK_OK);
  ck_assert_int_eq(hk_overrides_read(c->selection->overrides, hk_settings_now(), 0, 0), HK_OK);
  *c->selection->machine = hk_machine_of_hosts(f, hk_selection_constants(c));
  c->selection->machine->reads = machines[k].reads;
  for (int r = 0; r < h->nranks; r++) hosts[r] = (uint64_t)(r / h->ranks_per_host);
  if (h->nhosts > 1) ck_assert_int_eq(hk_selection_layout(c, hosts, NULL, 1), HK_OK);
  ck_assert_int_eq(hk_outlines_new(&c->selection->machine->outlines, h->nranks, c->selection->layout, 8), HK_OK);
}
static void close_machine(struct ncclComm *c) {
  hk_meter_free(c->order.meter);
  hk_plans_free(c);
  hk_selection_free(c);
  free(c->plans);
  free(c->selection);
}

/* The launch in words. */
static void describe(char *text, size_t bytes, const hk_plan *p, const hk_launch *l) {
  snprintf(text, bytes, " %s*%u:%zu/%zu%s%s%s", p->program->algorithm, p->channels, l->chunk, l->block_bytes,
           l->brief ? " brief" : "", l->move_flags ? " stream" : "", l->protocol ? " protocol" : "");
}

#define LAUNCHES_FILE "tests/golden/launches.txt"
TEST_LOOP(launches, HK_ARRAY_LENGTH(machines)) {
  static const size_t counts[] = {1, 100, 5000, 100000, (2 << 20) - 1, 2 << 20, (8 << 20) - 1, 8 << 20, 50 << 20};
  golden g = golden_open(LAUNCHES_FILE, machines[_i].name);
  for (int coll = 0; coll < HK_SENDRECV; coll++) {
    struct ncclComm c;
    char name[100], text[2000] = "";
    if (hk_coll_uneven((hk_coll)coll)) continue;
    open_machine(&c, (size_t)_i, 1);
    snprintf(name, sizeof name, "%s: %s", machines[_i].name, hk_coll_name((hk_coll)coll));
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
      const hk_call call = {.comm = &c, .count = counts[k], .coll = (uint8_t)coll, .dtype = HK_I8, .root = 1};
      const hk_plan *plan;
      const hk_launch *launch;
      ck_assert_int_eq(hk_choose(&c, &call, &plan, &launch), HK_OK);
      ck_assert(launch->unit == 1 && launch->signature == hk_call_signature(&call) && !launch->table);
      describe(text + strlen(text), sizeof text - strlen(text), plan, launch);
    }
    golden_words(&g, name, text);
    close_machine(&c);
  }
  golden_close(&g);
}

static hk_call random_call(struct ncclComm *c, uint64_t *seed, hk_blocks *blocks) {
  static const size_t counts[] = {1, 3, 1000, 1001, 70000, 3 << 20};
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_BROADCAST, HK_REDUCE, HK_ALLGATHER, HK_ALLTOALLV, HK_ALLGATHERV};
  static const uint8_t types[] = {HK_I8, HK_F32}, operators[] = {HK_SUM, HK_AVG, HK_PREMULSUM};
  hk_call call = {.comm = c, .count = counts[random_below(seed, 6)], .coll = colls[random_below(seed, 6)]};
  call.dtype = types[random_below(seed, 2)];
  if (hk_coll_reduces((hk_coll)call.coll)) call.redop = operators[random_below(seed, 3)];
  if (call.redop == HK_PREMULSUM) call.scalar = 1 + random_below(seed, 2);
  if (hk_coll_has_root((hk_coll)call.coll)) call.root = (int)random_below(seed, 2);
  if (!random_below(seed, 4)) call.options.max_ctas = 1;
  if (!random_below(seed, 8)) call.options.policy = 1 + NCCL_CTA_POLICY_EFFICIENCY;
  call.asks = call.options.max_ctas || call.options.policy;
  if (hk_coll_uneven((hk_coll)call.coll)) {
    call.blocks = blocks;
    call.root = (int)random_below(seed, 1000); /* a hash of the counts */
    blocks->longest = call.count * hk_dtype_size((hk_dtype)call.dtype);
  }
  return call;
}

TEST_LOOP(what_is_kept, HK_ARRAY_LENGTH(machines)) {
  struct ncclComm kept, fresh;
  uint64_t seed = (uint64_t)_i + 1;
  hk_blocks *blocks = calloc(1, sizeof *blocks + 8 * sizeof(hk_extent));
  open_machine(&kept, (size_t)_i, 0);
  open_machine(&fresh, (size_t)_i, 0);
  for (int n = 0; n < 2000; n++) {
    hk_call call = random_call(&kept, &seed, blocks);
    const hk_plan *plan[2];
    const hk_launch *launch[2];
    for (int again = random_below(&seed, 2) ? 2 : 1; again; again--)
      ck_assert_int_eq(hk_choose(&kept, &call, &plan[0], &launch[0]), HK_OK);
    call.comm = &fresh;
    memset(fresh.plans->last, 0, sizeof fresh.plans->last);
    memset(fresh.plans->kept, 0, sizeof fresh.plans->kept);
    ck_assert_int_eq(hk_choose(&fresh, &call, &plan[1], &launch[1]), HK_OK);
    ck_assert_str_eq(plan[0]->program->algorithm, plan[1]->program->algorithm);
    ck_assert(plan[0]->channels == plan[1]->channels && plan[0]->program->root == plan[1]->program->root);
    ck_assert_int_eq(plan[0]->program->coll, call.coll);
    const hk_launch *a = launch[0], *b = launch[1];
    ck_assert(a->total == b->total && a->block_bytes == b->block_bytes && a->chunk == b->chunk && a->unit == b->unit);
    ck_assert(a->signature == b->signature && a->signature == hk_call_signature(&call) && a->brief == b->brief);
    ck_assert(a->table == b->table && a->table == (call.blocks ? call.blocks->table : NULL));
    ck_assert(a->move_flags == b->move_flags);
    ck_assert_mem_eq(&a->reducer, &b->reducer, sizeof a->reducer);
    if (call.blocks) ck_assert_uint_eq(a->block_bytes, blocks->longest);
    if (call.redop == HK_PREMULSUM) ck_assert_uint_eq(a->reducer.scalar.bits, call.scalar);
  }
  close_machine(&kept);
  close_machine(&fresh);
  free(blocks);
}

int main(void) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  golden_clear(LAUNCHES_FILE);
  return suite_main("choice", .timeout = 60);
}
