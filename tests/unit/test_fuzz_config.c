/* SPDX-License-Identifier: Apache-2.0 */
/* Random configuration structs: callers compiled against any header, or handing over rubbish.  Every one is taken or
 * refused with a text; nothing beyond the size that it gives is read; a refusal leaves nothing behind. */
#include <check.h>
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "../../src/runtime/comm.h"
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
  size_t room = c->size < 16 ? 16 : c->size > sizeof bytes ? sizeof bytes : c->size;
  ncclConfig_t *copy = malloc(room);
  ck_assert_ptr_nonnull(copy);
  memcpy(copy, bytes, room);
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

START_TEST(reading) {
  setenv("NCCL_DEBUG", "NONE", 1);
  fuzz_begin();
  do {
    ncclConfig_t *c = any_config();
    check_reading(c);
    free(c);
  } while (fuzz_goes_on());
}
END_TEST

/* Each field is read from the first version on that has it. */
START_TEST(first_versions) {
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
END_TEST

START_TEST(creating) {
  setenv("NCCL_DEBUG", "NONE", 1);
  fuzz_begin();
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
END_TEST

int main(void) {
  TCase *t = tcase_create("fuzz_config");
  tcase_add_test(t, first_versions);
  tcase_add_test(t, reading);
  tcase_add_test(t, creating);
  return suite_run_one("fuzz_config", t);
}
