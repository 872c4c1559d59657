/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Groups (src/comm/group.h): which calls run, when and in which order, and what is held meanwhile. The communicators
 * have nothing but their state, and a backend that writes down what it is given. */
#include <pthread.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/boot/activity.h"
#include "../../src/boot/process.h"
#include "../../src/comm/group.h"
#include "../../src/core/backend.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/overrides.h"
#include "../../src/run/selection.h"
#include "../support/scratch.h"
#include "../support/suite.h"

enum { COMMS = 3, MOST = 300 };
static struct ncclComm comms[COMMS]; /* each test has a process of its own */
static hk_overrides overrides;
static hk_event causes[COMMS];
static hk_machine machine;
static hk_selection selection = {.machine = &machine, .overrides = &overrides, .filter = &overrides.filter};
static int streams[COMMS], held[COMMS]; /* their addresses are streams; calls that hold them */

/* ---- the backend ---- */

static size_t ran[MOST]; /* the calls' counts, in order */
static int nran, groups, inside[COMMS], calling[COMMS];
static hk_status gives;

static hk_status note(const hk_call *calls, size_t n) {
  for (size_t i = 0; i < n; i++) ran[nran++] = calls[i].count;
  for (int k = 0; k < COMMS; k++) {
    inside[k] = atomic_load(&comms[k].health.inside);
    calling[k] = atomic_load(&comms[k].health.calling);
  }
  return gives;
}
static hk_call last;
static hk_status run_one(const hk_call *call) {
  last = *call;
  groups += 100;
  return note(call, 1);
}
static hk_status run_group(const hk_call *calls, size_t n) {
  groups++;
  return note(calls, n);
}
static void hold(const hk_call *call, int by) { held[(int *)(void *)call->stream - streams] += by; }
static hk_status check(const hk_call *call, const char *who) { return (void)call, (void)who, HK_OK; }
static const hk_backend backend = {.check = check, .run_one = run_one, .run_group = run_group, .hold = hold};

static void setup(void) {
  scratch_make();
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  machine.copy_us_per_b = 0.5;
  for (int k = 0; k < COMMS; k++) {
    comms[k] = (struct ncclComm){
        .rank = k, .nranks = 8, .settings = hk_settings_now(), .backend = &backend, .selection = &selection};
    comms[k].health.cause = &causes[k];
    comms[k].magic = HK_COMM_LIVE;
    comms[k].forks = hk_forks;
    pthread_mutex_init(&comms[k].health.lock, NULL);
  }
}

/* The n-th call; a letter is its communicator, on its stream if it is a capital. */
static hk_call call_of(char letter, size_t n) {
  const bool streamed = letter < 'a';
  const int k = letter - (streamed ? 'A' : 'a');
  return (hk_call){.comm = &comms[k],
                   .count = n,
                   .coll = HK_SENDRECV,
                   .p2p = HK_P2P_SEND,
                   .dtype = HK_I8,
                   .root = k,
                   .stream = streamed ? (cudaStream_t)(void *)&streams[k] : NULL};
}
static void submit(const char *letters) {
  for (size_t n = 0; letters[n]; n++) {
    const hk_call call = call_of(letters[n], n + 1);
    ck_assert_int_eq(hk_group_submit(&call), HK_OK);
  }
}
static void check_queued(int a, int b, int c) {
  const int want[COMMS] = {a, b, c};
  for (int k = 0; k < COMMS; k++) ck_assert_int_eq(atomic_load(&comms[k].health.queued), want[k]);
}
/* All is as it was before. */
static void check_idle(void) {
  check_queued(0, 0, 0);
  for (int k = 0; k < COMMS; k++)
    ck_assert(held[k] == 0 && !atomic_load(&comms[k].health.inside) && !atomic_load(&comms[k].health.calling) &&
              !atomic_load(&comms[k].health.failure));
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE); /* no group is open */
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "ncclGroupEnd: no group is open"));
}

/* ---- calls ---- */

TEST(alone) {
  submit("ab");
  ck_assert(nran == 2 && groups == 200);
  gives = HK_ERR_CUDA;
  const hk_call call = call_of('a', 3);
  ck_assert_int_eq(hk_group_submit(&call), HK_ERR_CUDA);
  check_idle();
}

/* Calls by their communicators, how many holds each has meanwhile, and how often each is entered. */
static const struct {
  const char *calls;
  int queued[COMMS], inside[COMMS], held[COMMS];
  bool one; /* communicator, which then is marked by a flag */
} rows[] = {
    {"", {0}, {0}, {0}, false},
    {"a", {1}, {0}, {0}, true},
    {"aaa", {1}, {0}, {0}, true},
    {"AaA", {1}, {0}, {2}, true},
    {"ab", {1, 1}, {1, 1}, {0}, false},
    {"aaba", {2, 1}, {2, 1}, {0}, false},
    {"abcabc", {2, 2, 2}, {2, 2, 2}, {0}, false},
    {"aABbcC", {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, false},
};

TEST_LOOP(together, HK_ARRAY_LENGTH(rows)) {
  const int n = (int)strlen(rows[_i].calls);
  for (int again = 0; again < 3; again++) {
    nran = groups = 0;
    ck_assert_int_eq(hk_group_start(), HK_OK);
    ck_assert_int_eq(hk_group_start(), HK_OK);
    submit(rows[_i].calls);
    ck_assert_int_eq(hk_group_end(), HK_OK); /* the inner one */
    ck_assert_int_eq(nran, 0);
    check_queued(rows[_i].queued[0], rows[_i].queued[1], rows[_i].queued[2]);
    for (int k = 0; k < COMMS; k++) ck_assert_int_eq(held[k], rows[_i].held[k]);
    gives = again == 1 ? HK_ERR_REMOTE : HK_OK;
    ck_assert_int_eq(hk_group_end(), n ? gives : HK_OK);
    ck_assert(nran == n && groups == (n > 0));
    for (int i = 0; i < n; i++) ck_assert_uint_eq(ran[i], (size_t)i + 1);
    for (int k = 0; k < COMMS; k++) ck_assert_int_eq(inside[k], rows[_i].inside[k]);
    if (n) ck_assert_int_eq(calling[0], rows[_i].one);
    check_idle();
  }
}

/* More calls than there is room for at first. */
TEST(many) {
  static const int counts[] = {63, 64, 65, 128, 129, MOST, 3};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
    nran = 0;
    ck_assert_int_eq(hk_group_start(), HK_OK);
    for (int n = 0; n < counts[i]; n++) {
      const hk_call call = call_of('A', (size_t)n);
      ck_assert_int_eq(hk_group_submit(&call), HK_OK);
    }
    ck_assert_int_eq(held[0], counts[i]);
    ck_assert_int_eq(hk_group_end(), HK_OK);
    ck_assert_int_eq(nran, counts[i]);
    for (int n = 0; n < counts[i]; n++) ck_assert_uint_eq(ran[n], (size_t)n);
    check_idle();
  }
}

/* Tables of blocks stay until the group is over. */
TEST(blocks) {
  hk_blocks *shared = calloc(1, sizeof *shared);
  atomic_init(&shared->refs, 1);
  hk_call call = call_of('a', 1);
  call.blocks = shared;
  ck_assert_int_eq(hk_group_start(), HK_OK);
  ck_assert(hk_group_submit(&call) == HK_OK && hk_group_submit(&call) == HK_OK);
  ck_assert_int_eq(atomic_load(&shared->refs), 3);
  ck_assert_int_eq(hk_group_end(), HK_OK);
  ck_assert_int_eq(atomic_load(&shared->refs), 1);
  hk_call_hold(&call, -1);
}

/* ---- errors ---- */

/* The first error counts, nothing runs, and the next group is as if it had not been. */
TEST(wrong_calls) {
  ck_assert_int_eq(hk_group_remember(HK_ERR_CUDA), HK_ERR_CUDA); /* outside of a group */
  ck_assert_int_eq(hk_group_start(), HK_OK);
  submit("Aab");
  ck_assert_int_eq(hk_group_remember(HK_OK), HK_OK);
  ck_assert_int_eq(hk_group_remember(HK_ERR_ARGUMENT), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_group_remember(HK_ERR_USAGE), HK_ERR_USAGE);
  submit("b");
  ck_assert_int_eq(hk_group_end(), HK_ERR_ARGUMENT);
  ck_assert_int_eq(nran, 0);
  check_idle();
  ck_assert_int_eq(hk_group_start(), HK_OK);
  submit("ab");
  ck_assert_int_eq(hk_group_end(), HK_OK);
  ck_assert_int_eq(nran, 2);
  check_idle();
}

/* Communicators that were freed meanwhile. */
TEST(gone) {
  for (int how = 0; how < 4; how++) {
    const char *calls = how < 2 ? "aa" : "ba";
    nran = 0;
    ck_assert_int_eq(hk_group_start(), HK_OK);
    submit(calls);
    if (how % 2)
      atomic_store(&comms[0].health.closing, HK_CLOSING_DESTROY);
    else
      atomic_store(&comms[0].magic, HK_COMM_FREED);
    ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(hk_last_error(), "(rank 0 of 8) was destroyed or aborted by another thread"));
    ck_assert_int_eq(nran, 0);
    atomic_store(&comms[0].magic, HK_COMM_LIVE);
    atomic_store(&comms[0].health.closing, HK_CLOSING_NO);
    check_idle();
  }
}

/* A communicator cannot be destroyed while its calls wait, here or in another thread. */
TEST(refused) {
  ck_assert_int_eq(hk_group_refuse(&comms[0], "someCall"), HK_OK);
  ck_assert_int_eq(hk_group_start(), HK_OK);
  submit("aba");
  ck_assert_int_eq(hk_group_refuse(&comms[2], "someCall"), HK_OK);
  ck_assert_int_eq(hk_group_refuse(&comms[0], "someCall"), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(
      strstr(hk_last_error(), "someCall: 2 operations and 0 inits of this communicator (rank 0 of 8)"));
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
  check_idle();
  atomic_store(&comms[1].health.queued, 1);
  ck_assert_int_eq(hk_group_start(), HK_OK);
  ck_assert_int_eq(hk_group_refuse(&comms[1], "someCall"), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(
      strstr(hk_last_error(), "someCall: another thread has calls of this communicator (rank 1 of 8)"));
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
  atomic_store(&comms[1].health.queued, 0);
  ck_assert_int_eq(nran, 0);
  check_idle();
}

TEST(dropped) {
  ck_assert(!hk_group_drop(&comms[0], "someCall")); /* it has no calls */
  ck_assert_int_eq(hk_group_start(), HK_OK);
  submit("AABAb");
  ck_assert(!hk_group_drop(&comms[2], "someCall"));
  check_queued(2, 2, 0);
  ck_assert(!hk_group_drop(&comms[0], "someCall"));
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "someCall: 3 calls of this communicator (rank 0 of 8) waited"));
  check_queued(0, 2, 0);
  ck_assert(held[0] == 0 && held[1] == 1);
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
  ck_assert_int_eq(nran, 0);
  check_idle();
}

static char acts[32];
static hk_status add_act(int k, char letter);
static void *abandons(void *arg) {
  if (arg) hk_group_start();
  hk_group_start();
  submit("AAb");
  if (arg) ck_assert_int_eq(add_act(2, 'p'), HK_OK);
  if (arg) return NULL;
  hk_group_end();
  return NULL;
}
/* A thread that ends with an open group drops its calls, and says so. */
TEST_LOOP(abandoned, 2) {
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, abandons, _i ? &thread : NULL), 0);
  pthread_join(thread, NULL);
  ck_assert_int_eq(nran, _i ? 0 : 3);
  ck_assert_str_eq(acts, "");
  check_idle();
  const char *log = scratch_read("log");
  ck_assert_int_eq(strstr(log, "its 3 operations and 0 inits are dropped") != NULL, _i);
  ck_assert_int_eq(strstr(log, "a thread ended") != NULL, _i);
}

TEST(to_itself) {
  const hk_call own = call_of('b', 1);
  hk_call other = own;
  other.root = 2;
  ck_assert_int_eq(hk_group_check_self(&other, "someCall"), HK_OK);
  ck_assert_int_eq(hk_group_check_self(&own, "someCall"), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "someCall: rank 1 to itself outside of a group"));
  hk_group_start();
  ck_assert_int_eq(hk_group_check_self(&own, "someCall"), HK_OK);
  hk_group_end();
}

/* ---- prices ---- */

TEST(simulated) {
  double us = -1;
  ck_assert_int_eq(hk_group_simulate_end(&us), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "ncclGroupSimulateEnd: no group is open"));
  hk_group_start();
  ck_assert_int_eq(hk_group_simulate_end(&us), HK_OK);
  ck_assert_double_eq(us, 0);
  hk_group_start();
  submit("aaA"); /* 1, 2 and 3 bytes to itself */
  ck_assert_int_eq(hk_group_simulate_end(&us), HK_OK);
  ck_assert_double_eq(us, 3);
  ck_assert_int_eq(nran, 0);
  check_idle();
  us = -1;
  hk_group_start();
  hk_group_start();
  submit("a");
  ck_assert_int_eq(hk_group_simulate_end(&us), HK_ERR_USAGE); /* inside of another */
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
  ck_assert_double_eq(us, -1);
  ck_assert_int_eq(nran, 0);
  check_idle();
}

/* ---- acts ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The argument is a letter; an 'x' fails. */
static hk_status act(ncclComm_t c, void *arg) {
  const char letter = *(const char *)arg;
  ck_assert_int_eq(atomic_load(&c->health.inside), 1);
  pthread_mutex_lock(&lock);
  acts[strlen(acts)] = letter;
  pthread_mutex_unlock(&lock);
  return letter == 'x' ? HK_FAIL(HK_ERR_ARGUMENT, "an act of rank %d fails", c->rank) : HK_OK;
}
static hk_status add_act(int k, char letter) {
  char *arg = calloc(2, 1);
  arg[0] = letter;
  return hk_group_submit_task(&comms[k], act, arg);
}

TEST(acts_alone) {
  ck_assert_int_eq(add_act(0, 'p'), HK_OK);
  ck_assert_str_eq(acts, "p");
  ck_assert_int_eq(add_act(1, 'x'), HK_ERR_ARGUMENT);
  check_idle();
}

/* Those of a communicator in their order, before the calls; after one that fails none of its communicator runs. */
TEST(acts_together) {
  hk_group_start();
  ck_assert(add_act(0, 'p') == HK_OK && add_act(0, 'q') == HK_OK && add_act(1, 'r') == HK_OK);
  submit("a");
  ck_assert_str_eq(acts, "");
  check_queued(3, 1, 0);
  ck_assert_int_eq(hk_group_end(), HK_OK);
  ck_assert(strlen(acts) == 3 && strchr(acts, 'p') < strchr(acts, 'q') && strchr(acts, 'r'));
  ck_assert_int_eq(nran, 1);
  check_idle();

  memset(acts, 0, sizeof acts);
  hk_group_start();
  ck_assert(add_act(1, 'p') == HK_OK && add_act(0, 'x') == HK_OK && add_act(0, 'q') == HK_OK &&
            add_act(1, 'r') == HK_OK);
  submit("c");
  ck_assert_int_eq(hk_group_end(), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "an act of rank 0 fails"));
  ck_assert(strlen(acts) == 3 && !strchr(acts, 'q') && strchr(acts, 'p') < strchr(acts, 'r'));
  ck_assert_int_eq(nran, 1); /* the call does not run */
  check_idle();

  memset(acts, 0, sizeof acts);
  hk_group_start();
  ck_assert_int_eq(add_act(2, 'p'), HK_OK);
  hk_group_remember(HK_ERR_USAGE);
  ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
  ck_assert_str_eq(acts, "");
  check_idle();
}

/* A communicator that has ended while its act waited: its act does not run, those of others do, and its ranks hear. */
TEST(acts_of_an_ended_one) {
  for (int last_one = 0; last_one < 2; last_one++) {
    const int ended = last_one ? 1 : 0;
    memset(acts, 0, sizeof acts);
    hk_group_start();
    ck_assert(add_act(0, 'p') == HK_OK && add_act(1, 'q') == HK_OK && add_act(ended, 'r') == HK_OK);
    atomic_store(&comms[ended].health.finalized, true);
    ck_assert_int_eq(hk_group_end(), HK_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(hk_last_error(), "ncclGroupEnd: ncclCommFinalize was called on"));
    ck_assert_str_eq(acts, last_one ? "p" : "q");
    check_queued(0, 0, 0);
    for (int k = 0; k < 2; k++) ck_assert_int_eq(atomic_load(&comms[k].health.failure) != 0, k == ended);
    setup();
  }
}

/* ---- what becomes of a call's arguments ---- */

/* Calls a collective, if there is a configuration with it. */
static ncclResult_t call_of_api(hk_coll coll, int root, const ncclCollConfig_t *config) {
  static char in[1024], out[1024];
  ncclComm_t c = &comms[0];
  cudaStream_t s = (cudaStream_t)(void *)&streams[0];
  last = (hk_call){.in = in, .out = out, .stream = s}; /* for the comparison */
  switch (coll) {
#define EACH(id, name, ...)                                                                                            \
  case id: return config ? name##Config(in, out, 7, __VA_ARGS__, c, s, config) : name(in, out, 7, __VA_ARGS__, c, s);
    EACH(HK_ALLREDUCE, ncclAllReduce, ncclFloat16, ncclMax)
    EACH(HK_REDUCE, ncclReduce, ncclFloat16, ncclMax, root)
    EACH(HK_BROADCAST, ncclBroadcast, ncclFloat16, root)
    EACH(HK_REDUCE_SCATTER, ncclReduceScatter, ncclFloat16, ncclMax)
    EACH(HK_ALLGATHER, ncclAllGather, ncclFloat16)
    EACH(HK_ALLTOALL, ncclAlltoAll, ncclFloat16)
    EACH(HK_GATHER, ncclGather, ncclFloat16, root)
    EACH(HK_SCATTER, ncclScatter, ncclFloat16, root)
#undef EACH
    default: return ncclInternalError;
  }
}

TEST(arguments) {
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_REDUCE,   HK_BROADCAST, HK_REDUCE_SCATTER,
                                  HK_ALLGATHER, HK_ALLTOALL, HK_GATHER,    HK_SCATTER};
  static const ncclCollConfig_t fresh = NCCL_COLLCONFIG_INITIALIZER;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(colls); i++)
    for (int config = 0; config < 2; config++) {
      ncclCollConfig_t given = fresh;
      given.userProfilerTag = 99;
      groups = 0;
      ck_assert_int_eq(call_of_api(colls[i], 3, config ? &given : NULL), ncclSuccess);
      ck_assert_int_eq(groups, 100);
      ck_assert(last.comm == &comms[0] && last.in && last.out && last.in != last.out && last.count == 7);
      ck_assert(last.coll == colls[i] && last.dtype == HK_F16 && last.stream == (cudaStream_t)(void *)&streams[0]);
      ck_assert_int_eq(last.redop, hk_coll_reduces(colls[i]) ? HK_MAX : 0);
      ck_assert_int_eq(last.root, hk_coll_has_root(colls[i]) ? 3 : 0);
      ck_assert(!last.asks && !last.holds && !last.blocks && !last.p2p && last.tag == (config ? 99 : 0));
    }
}

/* A number that makes no sense is ignored, one that is too large is the largest, and a variable is stronger. */
static const struct {
  const char *variable;
  size_t field, at;
  int given[5], wants[5];
} wishes[] = {
#define WISH(variable, field, at) variable, offsetof(ncclCollConfig_t, field), offsetof(hk_call_options, at)
    {WISH("NCCL_MIN_NCHANNELS", minCTAs, min_ctas), {-1, 0, 1, 64, 65}, {0, 0, 1, 64, 64}},
    {WISH("NCCL_MAX_NCHANNELS", maxCTAs, max_ctas), {-1, 0, 1, 64, 65}, {0, 0, 1, 64, 64}},
    {WISH("NCCL_NVLS_NCHANNELS", nvlsCTAs, nvls_ctas), {-1, 0, 1, 64, 65}, {0, 0, 1, 64, 64}},
    {WISH("NCCL_CGA_CLUSTER_SIZE", cgaClusterSize, cluster), {-1, 0, 1, 8, 9}, {0, 1, 2, 9, 0}},
    {WISH("NCCL_CTA_POLICY", CTAPolicy, policy), {-1, 0, 1, 3, 4}, {-1, 1, 2, 4, -1}}, /* -1: an error */
};

TEST(configured) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(wishes); i++)
    for (int k = -1; k < 5; k++) /* -1: not set */
      for (int variable = 0; variable < 2; variable++) {
        ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
        uint8_t wants[sizeof(hk_call_options)] = {0};
        if (k >= 0) memcpy((char *)&config + wishes[i].field, &wishes[i].given[k], sizeof(int));
        if (variable) setenv(wishes[i].variable, "1", 1);
        hk_param_reload();
        comms[0].settings = hk_settings_now();
        const ncclResult_t rc = call_of_api(HK_ALLREDUCE, 0, &config);
        if (k >= 0 && wishes[i].wants[k] < 0) {
          ck_assert_int_eq(rc, ncclInvalidArgument);
        } else {
          if (k >= 0 && !variable) wants[wishes[i].at] = (uint8_t)wishes[i].wants[k];
          ck_assert_int_eq(rc, ncclSuccess);
          ck_assert_msg(!memcmp(&last.options, wants, sizeof wants), "wish %zu, value %d, variable %d", i, k, variable);
          ck_assert_int_eq(last.asks, wants[wishes[i].at] != 0);
        }
        unsetenv(wishes[i].variable);
      }
  hk_param_reload();
}

/* What a configuration may not be. */
TEST(wrong_configurations) {
  static const ncclCollConfig_t fresh = NCCL_COLLCONFIG_INITIALIZER;
  static const struct {
    size_t size;
    unsigned magic;
    int force;
    const char *selection;
    bool good;
  } cases[] = {{sizeof fresh, 0, 1, NULL, true},
               {sizeof fresh + 100, 0, 0, "", true},
               {offsetof(ncclCollConfig_t, minCTAs), 0, NCCL_CONFIG_UNDEF_INT, NULL, true},
               {offsetof(ncclCollConfig_t, minCTAs) - 1, 0, 1, NULL, false},
               {sizeof fresh, 1, 1, NULL, false},
               {sizeof fresh, 0, 2, NULL, false},
               {sizeof fresh, 0, -1, NULL, false},
               {sizeof fresh, 0, 0, "no such algorithm", true},
               {sizeof fresh, 0, 1, "no such algorithm", false}};
  static ncclCollConfig_t config[2]; /* one may be read beyond its size */
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    config[0] = fresh;
    config[0].size = cases[i].size;
    config[0].magic += cases[i].magic;
    config[0].forceAlgSelection = cases[i].force;
    config[0].algSelection = cases[i].selection;
    groups = 0;
    ck_assert_msg((call_of_api(HK_BROADCAST, 0, config) == ncclSuccess) == cases[i].good, "case %zu", i);
    ck_assert_int_eq(groups, cases[i].good ? 100 : 0);
    ck_assert(!last.asks);
  }
}

int main(void) { return suite_main("group", .setup = setup, .teardown = scratch_remove); }
