/* SPDX-License-Identifier: Apache-2.0 */
/* Random configuration structs: callers compiled against any header, or handing over rubbish.  Every one is taken or
 * refused with a text; nothing beyond the size that it gives is read; a refusal leaves nothing behind. */
#include <nccl.h>
#include <stddef.h>
#include "../../src/base/param.h"
#include "../../src/core/comm.h"
#include "../support/fuzz.h"
#include "../support/suite.h"

static const size_t int_fields[] = {
    offsetof(ncclConfig_t, blocking),
    offsetof(ncclConfig_t, cgaClusterSize),
    offsetof(ncclConfig_t, minCTAs),
    offsetof(ncclConfig_t, maxCTAs),
    offsetof(ncclConfig_t, splitShare),
    offsetof(ncclConfig_t, trafficClass),
    offsetof(ncclConfig_t, collnetEnable),
    offsetof(ncclConfig_t, CTAPolicy),
    offsetof(ncclConfig_t, shrinkShare),
    offsetof(ncclConfig_t, nvlsCTAs),
    offsetof(ncclConfig_t, nChannelsPerNetPeer),
    offsetof(ncclConfig_t, nvlinkCentricSched),
    offsetof(ncclConfig_t, graphUsageMode),
    offsetof(ncclConfig_t, numRmaCtx),
    offsetof(ncclConfig_t, maxP2pPeers),
    offsetof(ncclConfig_t, graphStreamOrdering),
    offsetof(ncclConfig_t, launchOrderImplicit),
    offsetof(ncclConfig_t, numRmaSig),
    offsetof(ncclConfig_t, rmaEagerInit),
    offsetof(ncclConfig_t, hostCftMode),
    offsetof(ncclConfig_t, nvlsHostMode),
};
enum { INT_FIELDS = sizeof int_fields / sizeof int_fields[0] };

static int any_int(void) {
  static const int likely[] = {0, 1, 2, -1, INT_MIN, INT_MIN + 1, INT_MAX, 8, 32, 100};
  return rnd(8) ? likely[rnd(sizeof likely / sizeof likely[0])] : (int)rnd64();
}
static size_t any_size(void) {
  static const size_t real[] = {24, 40, 48, 72, 80, 88, 96, 112, 120};
  switch (rnd(6)) {
    case 0: return rnd(200);
    case 1: return (size_t)rnd64() >> rnd(64);
    default: return real[rnd(sizeof real / sizeof real[0])];
  }
}
static unsigned any_version(void) {
  static const unsigned real[] = {21403, 21700, 21805, 22600, 22703, 22809, 22907, 23000, 23007, 23102, 23203, 0, ~0u};
  return rnd(8) ? real[rnd(sizeof real / sizeof real[0])] : (unsigned)rnd64();
}

/* In memory of its own, exactly as long as it claims to be, so that ASan sees a byte too many read. */
static ncclConfig_t *any_config(void) {
  static const char *const names[] = {NULL, "", "Socket", "no such network",
                                      "a name that is longer than any place for it: "
                                      "0123456789012345678901234567890123456789012345678901234567890123456789"};
  unsigned char bytes[256];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (unsigned char)rnd(256); /* what a newer header has beyond ours */
  ncclConfig_t *c = (ncclConfig_t *)(void *)bytes;
  *c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c->size = any_size();
  c->version = any_version();
  if (!rnd(16)) c->magic = (unsigned)rnd64();
  for (uint32_t n = rnd(4); n; n--) memcpy(bytes + int_fields[rnd(INT_FIELDS)], (int[]){any_int()}, sizeof(int));
  c->netName = rnd(2) ? NULL : names[rnd(sizeof names / sizeof names[0])];
  c->commName = names[rnd(sizeof names / sizeof names[0])];
  size_t capacity = c->size < 16 ? 16 : c->size > sizeof bytes ? sizeof bytes : c->size;
  ncclConfig_t *copy = malloc(capacity);
  ck_assert_ptr_nonnull(copy);
  memcpy(copy, bytes, capacity);
  return copy;
}

static int in_range(int v, int low, int high) { return v == NCCL_CONFIG_UNDEF_INT || (v >= low && v <= high); }

static void check_reading(const ncclConfig_t *given) {
  ncclConfig_t full;
  hk_status rc = hk_config_read(given, &full);
  ck_assert_msg(rc == HK_OK || rc == HK_ERR_ARGUMENT, "seed %llu: %d", (unsigned long long)fuzz_seed, (int)rc);
  if (rc != HK_OK) {
    ck_assert_msg(strstr(hk_last_error(), "ncclConfig_t") != NULL, "\"%s\" does not say what is wrong",
                  hk_last_error());
    return;
  }
  ck_assert_uint_eq(given->magic, 0xcafebeef);
  ck_assert_uint_eq(full.size, sizeof full);
  ck_assert(in_range(full.blocking, 0, 1) && in_range(full.cgaClusterSize, 0, 8) && in_range(full.minCTAs, 1, INT_MAX));
  ck_assert(in_range(full.maxCTAs, 1, INT_MAX) && in_range(full.splitShare, 0, 1) && in_range(full.CTAPolicy, 0, 3));
  ck_assert(in_range(full.shrinkShare, 0, 1) && in_range(full.collnetEnable, 0, 1));
  /* Pointers are NULL or a caller's, whole; what an older header did not have is undefined. */
  ck_assert(!full.netName || given->size >= 40);
  ck_assert(!full.commName || given->size >= 56);
  if (full.netName) ck_assert_ptr_eq(full.netName, given->netName);
  if (full.commName) ck_assert_ptr_eq(full.commName, given->commName);
  if (given->size < 80 || given->version < 22800) ck_assert_int_eq(full.nvlinkCentricSched, NCCL_CONFIG_UNDEF_INT);
  if (given->size < 88 || given->version < 22900) ck_assert_int_eq(full.numRmaCtx, NCCL_CONFIG_UNDEF_INT);
  if (given->size < 120 || given->version < 23100) ck_assert_int_eq(full.nvlsHostMode, NCCL_CONFIG_UNDEF_INT);
  if (given->version < 23005) ck_assert_int_eq(full.graphStreamOrdering, NCCL_CONFIG_UNDEF_INT);
  ck_assert(in_range(full.graphUsageMode, 0, 2) && in_range(full.hostCftMode, 1, 3));
  if (given->version < 21700) ck_assert(!full.netName && full.minCTAs == NCCL_CONFIG_UNDEF_INT);
}

TEST(reading) {
  setenv("NCCL_DEBUG", "NONE", 1);
  fuzz_begin(500000);
  do {
    ncclConfig_t *c = any_config();
    check_reading(c);
    free(c);
  } while (fuzz_goes_on());
}

/* Each field is read from the first version on that has it. */
TEST(first_versions) {
  static const struct {
    unsigned version;
    size_t at;
  } first[] = {{21400, offsetof(ncclConfig_t, cgaClusterSize)},      {21700, offsetof(ncclConfig_t, minCTAs)},
               {22800, offsetof(ncclConfig_t, nvlinkCentricSched)},  {22900, offsetof(ncclConfig_t, numRmaCtx)},
               {23005, offsetof(ncclConfig_t, graphStreamOrdering)}, {23100, offsetof(ncclConfig_t, nvlsHostMode)}};
  for (size_t i = 0; i < sizeof first / sizeof *first; i++)
    for (unsigned before = 0; before < 2; before++) {
      ncclConfig_t given = NCCL_CONFIG_INITIALIZER, full;
      int value = 1;
      given.version = first[i].version - before;
      memcpy((char *)&given + first[i].at, &value, sizeof value);
      ck_assert_int_eq(hk_config_read(&given, &full), HK_OK);
      memcpy(&value, (char *)&full + first[i].at, sizeof value);
      ck_assert_msg(value == (before ? NCCL_CONFIG_UNDEF_INT : 1), "version %u: %d", given.version, value);
    }
}

/* ---- what a communicator has then ---- */

/* A variable of at least `least` is stronger than the field, and a field that is set than the default. */
static const struct option {
  hk_param_id variable; /* HK_P_COUNT: there is none */
  int least;
  size_t field, at; /* in ncclConfig_t, in hk_comm_options */
  int other;        /* without both */
  enum { AS_IS, IS_SET, IS_ZERO, IS_TWO } how;
} options[] = {
#define OPTION(variable, least, field, at, other, how)                                                                 \
  { variable, least, offsetof(ncclConfig_t, field), offsetof(hk_comm_options, at), other, how }
    OPTION(HK_P_COMM_BLOCKING, 0, blocking, blocking, 1, IS_SET),
    OPTION(HK_P_CGA_CLUSTER_SIZE, 0, cgaClusterSize, cluster, 0, AS_IS),
    OPTION(HK_P_CTA_POLICY, 0, CTAPolicy, policy, 0, AS_IS),
    OPTION(HK_P_COUNT, 0, nvlsHostMode, nvls_mode, ncclNvlsHostModeEnable, AS_IS),
    OPTION(HK_P_NVLS_NCHANNELS, 1, nvlsCTAs, nvls_ctas, 0, AS_IS),
    OPTION(HK_P_NCHANNELS_PER_NET_PEER, 1, nChannelsPerNetPeer, net_channels, 0, AS_IS),
    OPTION(HK_P_NVLINK_CENTRIC, 0, nvlinkCentricSched, nvlink_first, 0, IS_SET),
    OPTION(HK_P_LAUNCH_ORDER_IMPLICIT, 0, launchOrderImplicit, in_launch_order, 0, IS_SET),
    OPTION(HK_P_GRAPH_STREAM_ORDERING, 0, graphStreamOrdering, loose_captures, 1, IS_ZERO),
    OPTION(HK_P_COUNT, 0, graphUsageMode, no_captures, 2, IS_ZERO),
    OPTION(HK_P_COUNT, 0, graphUsageMode, mixes_graphs, 2, IS_TWO),
    OPTION(HK_P_COLLNET_ENABLE, 0, collnetEnable, collnet, 0, IS_SET),
    OPTION(HK_P_MIN_CTAS, 1, minCTAs, min_ctas, 0, AS_IS),
    OPTION(HK_P_MAX_CTAS, 1, maxCTAs, max_ctas, 0, AS_IS),
    OPTION(HK_P_COUNT, 0, trafficClass, traffic_class, -1, AS_IS),
    OPTION(HK_P_NUM_RMA_CTX, 0, numRmaCtx, rma_contexts, 1, AS_IS),
    OPTION(HK_P_COUNT, 0, numRmaSig, rma_signals, 1, AS_IS),
    OPTION(HK_P_RMA_EAGER_INIT, 0, rmaEagerInit, rma_eager, 0, IS_SET),
    OPTION(HK_P_SPLIT_SHARE, 0, splitShare, split_share, 0, IS_SET),
    OPTION(HK_P_SHRINK_SHARE, 0, shrinkShare, shrink_share, 0, IS_SET),
    OPTION(HK_P_MAX_P2P_PEERS, 1, maxP2pPeers, p2p_peers, 0, AS_IS),
#undef OPTION
};
enum { OPTIONS = sizeof options / sizeof *options };

/* Checks all options; of the variables one is set, or none (HK_P_COUNT). */
static void check_options(const ncclConfig_t *given, hk_param_id variable, int value) {
  hk_comm_options got;
  memset(&got, 0, sizeof got);
  ck_assert_msg(hk_options_read(hk_settings_now(), given, &got) == HK_OK, "%s", hk_last_error());
  for (size_t i = 0; i < OPTIONS; i++) {
    const struct option *o = &options[i];
    int want = o->other, has = 0;
    if (given) memcpy(&want, (const char *)given + o->field, sizeof want);
    if (want == NCCL_CONFIG_UNDEF_INT) want = o->other;
    if (o->variable < HK_P_COUNT && o->variable == variable && value >= o->least) want = value;
    memcpy(&has, (const char *)&got + o->at, o->how == AS_IS ? sizeof has : sizeof(bool));
    want = o->how == AS_IS ? want : o->how == IS_SET ? want != 0 : o->how == IS_ZERO ? want == 0 : want == 2;
    if (variable == HK_P_GRAPH_MIXING && value >= 0 && o->how == IS_TWO) want = value;
    ck_assert_msg(has == want, "option %zu is %d, not %d", i, has, want);
  }
  ck_assert_int_eq(got.batch_invariant, -1); /* no parent's */
  ck_assert_str_eq(got.name, given && given->commName ? given->commName : "");
  ck_assert_str_eq(got.net_name, given && given->netName ? given->netName : "");
}

static void set_variable(hk_param_id id, int value) {
  hk_param_info info;
  char text[16];
  hk_param_describe(id, &info);
  snprintf(text, sizeof text, "%d", value);
  setenv(info.name, text, 1);
  hk_param_reload();
}
static void unset_variable(hk_param_id id) {
  hk_param_info info;
  hk_param_describe(id, &info);
  unsetenv(info.name);
  hk_param_reload();
}

TEST(what_is_set) {
  setenv("NCCL_DEBUG", "NONE", 1);
  check_options(NULL, HK_P_COUNT, 0);
  for (size_t i = 0; i < OPTIONS; i++)
    for (int v = -1; v <= 3; v++) { /* -1: not set */
      ncclConfig_t given = NCCL_CONFIG_INITIALIZER, full;
      given.commName = v == 1 ? "a name" : NULL;
      given.netName = v == 2 ? "a network" : NULL;
      if (v >= 0) memcpy((char *)&given + options[i].field, &v, sizeof v);
      if (hk_config_read(&given, &full) != HK_OK) continue; /* not a value of this field */
      check_options(&given, HK_P_COUNT, 0);
      const hk_param_id variables[] = {options[i].variable, HK_P_GRAPH_MIXING};
      for (int k = 0; k < 2; k++)
        for (int value = -1; value <= 1 && variables[k] < HK_P_COUNT; value++) {
          hk_param_info info;
          hk_param_describe(variables[k], &info);
          if (value < info.min) continue;
          set_variable(variables[k], value);
          check_options(&given, variables[k], value);
          unset_variable(variables[k]);
        }
    }
}

/* Both ends of each field's values, and what is beyond them. */
TEST(limits) {
  setenv("NCCL_DEBUG", "NONE", 1);
  static const struct {
    size_t field;
    int low, high;
  } of[] = {
#define LIMITS(field, low, high) {offsetof(ncclConfig_t, field), low, high}
      LIMITS(blocking, 0, 1),
      LIMITS(cgaClusterSize, 0, 8),
      LIMITS(minCTAs, 1, INT_MAX),
      LIMITS(maxCTAs, 1, INT_MAX),
      LIMITS(splitShare, 0, 1),
      LIMITS(collnetEnable, 0, 1),
      LIMITS(CTAPolicy, 0, 3),
      LIMITS(shrinkShare, 0, 1),
      LIMITS(nvlsCTAs, 1, INT_MAX),
      LIMITS(graphUsageMode, 0, 2),
      LIMITS(nChannelsPerNetPeer, 1, 64),
      LIMITS(nvlinkCentricSched, 0, 1),
      LIMITS(numRmaCtx, 0, INT_MAX),
      LIMITS(maxP2pPeers, 1, INT_MAX),
      LIMITS(graphStreamOrdering, 0, 1),
      LIMITS(launchOrderImplicit, 0, 1),
      LIMITS(numRmaSig, 0, INT_MAX),
      LIMITS(rmaEagerInit, 0, 1),
      LIMITS(hostCftMode, 1, 3),
      LIMITS(nvlsHostMode, 0, 3),
#undef LIMITS
  };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    const int above = of[i].high == INT_MAX ? INT_MAX : of[i].high + 1;
    const int values[] = {of[i].low - 1, of[i].low, of[i].high, above};
    for (int k = 0; k < 4; k++) {
      ncclConfig_t given = NCCL_CONFIG_INITIALIZER, full;
      memcpy((char *)&given + of[i].field, &values[k], sizeof(int));
      const bool good = values[k] >= of[i].low && values[k] <= of[i].high;
      ck_assert_msg((hk_config_read(&given, &full) == HK_OK) == good, "limits %zu: %d", i, values[k]);
    }
  }
  for (int least = 4; least <= 5; least++) {
    ncclConfig_t given = NCCL_CONFIG_INITIALIZER, full;
    given.minCTAs = least;
    given.maxCTAs = 4;
    ck_assert_int_eq(hk_config_read(&given, &full), least == 4 ? HK_OK : HK_ERR_ARGUMENT);
  }
  ncclConfig_t given = NCCL_CONFIG_INITIALIZER, full;
  given.nvlsHostMode = INT_MAX;
  ck_assert_int_eq(hk_config_read(&given, &full), HK_OK);
  const struct {
    size_t size;
    bool good;
  } sizes[] = {{16, false}, {24, true}, {25, false}, {65536, true}, {65544, false}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    given.size = sizes[i].size;
    ck_assert_int_eq(hk_config_read(&given, &full) == HK_OK, sizes[i].good);
  }
}

TEST(creating) {
  setenv("NCCL_DEBUG", "NONE", 1);
  fuzz_begin(3000);
  do {
    ncclConfig_t *c = any_config(), full;
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    hk_status expected = hk_config_read(c, &full);
    ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, c);
    while (result == ncclInProgress && comm)
      if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) break;
    /* A network that is not there is told too, whatever its result. */
    if (expected == HK_OK && !full.netName)
      ck_assert_msg(result == ncclSuccess, "seed %llu: %d %s", (unsigned long long)fuzz_seed, (int)result,
                    ncclGetLastError(NULL));
    if (expected != HK_OK) ck_assert_int_eq(result, expected);
    if (comm) ck_assert_int_eq(ncclCommAbort(comm), ncclSuccess);
    free(c);
  } while (fuzz_goes_on());
}

int main(void) { return suite_main("fuzz_config"); }
