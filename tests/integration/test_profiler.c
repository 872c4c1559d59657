/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What profiler plugins of every version get to see of operations, groups and net plugins. */
#include <libgen.h>
#include <sys/mman.h>
#include "../../src/base/param.h"
#include "../../src/base/status.h"
#include "../../src/base/wait.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/run/profiler.h"
#include "../support/ranks.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static const char *const versions[] = {"two", "three", "four", "five", "six", "seven"};

/* New communicators have the example profiler of this version (tests/plugins/profiler.h). */
static void set_profiler(const char *version, const char *mode) {
  char self[3800] = "", path[4096];
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../plugins/libnccl-profiler-%s.so", dirname(self), version);
  scratch_make();
  setenv("NCCL_PROFILER_PLUGIN", path, 1);
  setenv("HOCKET_TEST_TRACE", scratch_path("trace"), 1);
  setenv("HOCKET_TEST_PROFILER", mode, 1);
  hk_param_reload();
}

static ncclComm_t open_traced(const char *version, const char *mode) {
  ncclComm_t c;
  set_profiler(version, mode);
  ck_assert_int_eq(ncclCommInitAll(&c, 1, (int[]){0}), ncclSuccess);
  return c;
}

/* Gives what the profiler wrote. */
static const char *close_traced(ncclComm_t c) {
  char name[64];
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  snprintf(name, sizeof name, "trace.%d", (int)getpid());
  const char *text = scratch_read(name);
  scratch_remove();
  return text;
}

/* The events of a collective, and of a send and a receive in a group. */
static const char *trace_of(const char *version, const char *mode) {
  float in[16] = {1}, out[16];
  ncclComm_t c = open_traced(version, mode);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.userProfilerTag = 77;
  ck_assert_int_eq(ncclAllReduceConfig(in, out, 16, ncclFloat32, ncclSum, c, NULL, &config), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclSend(in, 8, ncclBfloat16, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclRecv(out, 8, ncclBfloat16, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  return close_traced(c);
}

#define COLL "coll AllReduce sequence 0 count 16 type ncclFloat32 channels 1 algorithm direct protocol SIMPLE"
#define HALVES "count 8 type ncclBfloat16 peer 0"
#define SINCE_FIVE(tag, none)                                                                                          \
  "start 1 parent 0 rank 0 groupapi depth 0\n"                                                                         \
  "state 1 23\n"                                                                                                       \
  "state 1 24\n"                                                                                                       \
  "start 2 parent 1 rank 0 collapi AllReduce count 16 type ncclFloat32" tag "\n"                                       \
  "start 3 parent 0 rank 0 group\n"                                                                                    \
  "start 4 parent 2 rank 0 " COLL tag "\n"                                                                             \
  "start 5 parent 1 rank 0 launch\n"                                                                                   \
  "stop 5\n"                                                                                                           \
  "start 6 parent 4 rank 0 kernel channel 0\n"                                                                         \
  "state 6 22\n"                                                                                                       \
  "stop 6\n"                                                                                                           \
  "stop 4\n"                                                                                                           \
  "stop 3\n"                                                                                                           \
  "stop 2\n"                                                                                                           \
  "stop 1\n"                                                                                                           \
  "start 7 parent 0 rank 0 groupapi depth 1\n"                                                                         \
  "state 7 23\n"                                                                                                       \
  "start 8 parent 7 rank 0 p2papi Send count 8 type ncclBfloat16" none "\n"                                            \
  "stop 8\n"                                                                                                           \
  "start 9 parent 7 rank 0 p2papi Recv count 8 type ncclBfloat16" none "\n"                                            \
  "stop 9\n"                                                                                                           \
  "state 7 24\n"                                                                                                       \
  "start 10 parent 0 rank 0 group\n"                                                                                   \
  "start 11 parent 8 rank 0 p2p Send " HALVES "\n"                                                                     \
  "start 12 parent 11 rank 0 kernel channel 0\n"                                                                       \
  "start 13 parent 9 rank 0 p2p Recv " HALVES "\n"                                                                     \
  "start 14 parent 13 rank 0 kernel channel 0\n"                                                                       \
  "state 12 22\n"                                                                                                      \
  "stop 12\n"                                                                                                          \
  "stop 11\n"                                                                                                          \
  "state 14 22\n"                                                                                                      \
  "stop 14\n"                                                                                                          \
  "stop 13\n"                                                                                                          \
  "stop 10\n"                                                                                                          \
  "stop 7\n"                                                                                                           \
  "finalize\n"
static const char *const expected[] = {"start 1 parent 0 rank 0 group\n"
                                       "start 2 parent 1 rank 0 " COLL "\n"
                                       "stop 2\n"
                                       "stop 1\n"
                                       "start 3 parent 0 rank 0 group\n"
                                       "start 4 parent 3 rank 0 p2p Send " HALVES "\n"
                                       "start 5 parent 3 rank 0 p2p Recv " HALVES "\n"
                                       "stop 4\n"
                                       "stop 5\n"
                                       "stop 3\n"
                                       "finalize\n",
                                       "start 1 parent 0 rank 0 group\n"
                                       "start 2 parent 1 rank 0 " COLL "\n"
                                       "start 3 parent 2 rank 0 kernel channel 0\n"
                                       "stop 3\n"
                                       "stop 2\n"
                                       "stop 1\n"
                                       "start 4 parent 0 rank 0 group\n"
                                       "start 5 parent 4 rank 0 p2p Send " HALVES "\n"
                                       "start 6 parent 5 rank 0 kernel channel 0\n"
                                       "start 7 parent 4 rank 0 p2p Recv " HALVES "\n"
                                       "start 8 parent 7 rank 0 kernel channel 0\n"
                                       "stop 6\n"
                                       "stop 5\n"
                                       "stop 8\n"
                                       "stop 7\n"
                                       "stop 4\n"
                                       "finalize\n",
                                       "start 1 parent 0 rank 0 group\n"
                                       "start 2 parent 1 rank 0 " COLL "\n"
                                       "start 3 parent 2 rank 0 kernel channel 0\n"
                                       "state 3 22\n"
                                       "stop 3\n"
                                       "stop 2\n"
                                       "stop 1\n"
                                       "start 4 parent 0 rank 0 group\n"
                                       "start 5 parent 4 rank 0 p2p Send " HALVES "\n"
                                       "start 6 parent 5 rank 0 kernel channel 0\n"
                                       "start 7 parent 4 rank 0 p2p Recv " HALVES "\n"
                                       "start 8 parent 7 rank 0 kernel channel 0\n"
                                       "state 6 22\n"
                                       "stop 6\n"
                                       "stop 5\n"
                                       "state 8 22\n"
                                       "stop 8\n"
                                       "stop 7\n"
                                       "stop 4\n"
                                       "finalize\n",
                                       SINCE_FIVE("", ""),
                                       SINCE_FIVE("", ""),
                                       SINCE_FIVE(" tag 77", " tag 0")};

/* Without phases: their number depends on the clock. */
TEST_LOOP(events, HK_ARRAY_LENGTH(versions)) {
  ck_assert_str_eq(trace_of(versions[_i], _i < 5 ? "" : "32767"), expected[_i]);
}

/* Phases alone are asked for: their kernel comes too, and stays open until they are over. */
TEST(phases) {
  const char *text = trace_of("seven", "32768"),
             *begin = "start 1 parent 0 rank 0 kernel channel 0\n"
                      "start 2 parent 1 rank 0 phase 1 compute channel 0\n"
                      "state 2 31\n"
                      "stop 2\n",
             *end = "state 1 22\nstop 1\nfinalize\n";
  ck_assert_int_eq(strncmp(text, begin, strlen(begin)), 0);
  ck_assert_str_eq(text + strlen(text) - strlen(end), end);
  ck_assert_ptr_null(strstr(text, "wrong"));
}

/* Two processes, of which rank 1 comes a millisecond late each time. */
enum { LATE_CALLS = 20 };
static int comes_late(ncclComm_t c, int rank, int nranks, void *arg) {
  const hk_wait_env env = {.spins = 0};
  float x = 1;
  int bad = 0;
  hk_waiter w;
  (void)nranks;
  ((int *)arg)[rank] = (int)getpid();
  hk_wait_begin(&w, &env);
  for (int i = 0; i < LATE_CALLS; i++) {
    if (rank == 1) (void)hk_wait_nap(&w, -1, 1000000);
    bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclMax, c, NULL));
  }
  return bad;
}
static uint64_t synced_ns(int pid) {
  char name[64];
  uint64_t sum = 0;
  snprintf(name, sizeof name, "trace.%d", pid);
  for (const char *at = scratch_read(name); (at = strstr(at, " synced ")); at++) sum += strtoull(at + 8, NULL, 10);
  return sum;
}

/* The initial phase shows who was late: the others wait in it. On a busy machine the other rank may be later. */
TEST(late_ranks) {
  enum { TRIES = 30 };
  int *pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  bool right = false;
  setenv("HOCKET_SPIN", "0", 1); /* each wait reads the clock */
  set_profiler("seven", "32768");
  for (int i = 0; i < TRIES && !right; i++) {
    ck_assert_int_eq(ranks_as_processes(2, comes_late, pids), 0);
    const uint64_t first = synced_ns(pids[0]), late = synced_ns(pids[1]);
    right = first > late + LATE_CALLS * 800000u;
    if (!right) printf("rank 0 waited %g ms, rank 1 %g ms\n", 1e-6 * (double)first, 1e-6 * (double)late);
  }
  ck_assert(right);
  unsetenv("HOCKET_SPIN");
  scratch_remove();
}

/* A plugin that refuses, fails, or wants one kind of event only: the calls work. */
TEST_LOOP(less, HK_ARRAY_LENGTH(versions)) {
  ck_assert_str_eq(trace_of(versions[_i], "refuse"), "");
  ck_assert_str_eq(trace_of(versions[_i], "fail"), "finalize\n");
  ck_assert_str_eq(trace_of(versions[_i], "idle"), ""); /* what has no context is not finalized */
  const char *coll = "start 1 parent 0 rank 0 " COLL, *text = trace_of(versions[_i], "2");
  ck_assert_int_eq(strncmp(text, coll, strlen(coll)), 0);
  ck_assert_str_eq(text + strlen(coll), _i < 5 ? "\nstop 1\nfinalize\n" : " tag 77\nstop 1\nfinalize\n");
}

/* The event of a net plugin belongs to the collective that runs. It is there from v3 on, its update from v4 on. */
TEST_LOOP(net_events, HK_ARRAY_LENGTH(versions)) {
  char parts[256];
  snprintf(parts, sizeof parts,
           "start 2 parent 1 rank 0 net id 42\n%sstop 2\nstart 3 parent 1 rank 0 net id 43\n%sstop 3\n",
           _i > 1 ? "state 2 21\n" : "", _i > 1 ? "state 3 21\n" : "");
  ncclComm_t c = open_traced(versions[_i], "130"); /* collectives and net plugins */
  hk_profiler *p = c->profiler;
  hk_call call = {.comm = c, .coll = HK_ALLREDUCE, .count = 16, .dtype = ncclFloat32};
  void *event = &call;
  char want[512];
  ck_assert_int_eq(hk_profile_net_event(&event, 0, NULL, 42, NULL), ncclSuccess);
  ck_assert_ptr_null(event);
  hk_profile_collective(p, &call, "direct", 1);
  for (int how = 0; how < 2; how++) {
    event = &call;
    ck_assert_int_eq(hk_profile_net_event(&event, 0, p, 42 + how, NULL), ncclSuccess);
    ck_assert_int_eq(event != NULL, _i > 0);
    if (!how) ck_assert_int_eq(hk_profile_net_event(&event, 2, NULL, 0, NULL), ncclSuccess); /* an update */
    ck_assert_int_eq(event != NULL, _i > 0);
    ck_assert_int_eq(hk_profile_net_event(&event, how ? 3 : 1, NULL, 0, NULL), ncclSuccess);
    ck_assert_ptr_null(event);
  }
  hk_profile_run_over(p);
  snprintf(want, sizeof want, "start 1 parent 0 rank 0 " COLL "%s\n%sstop 1\nfinalize\n", _i < 5 ? "" : " tag 0",
           _i ? parts : "");
  ck_assert_str_eq(close_traced(c), want);
}

/* What a call says is in its events, and each has its parent. */
TEST(parts) {
  ncclComm_t c = open_traced("seven", "32767");
  hk_profiler *p = c->profiler;
  hk_call coll = {.comm = c, .coll = HK_BROADCAST, .count = 16, .root = 3, .stream = (void *)16, .tag = 9};
  hk_call p2p = {.comm = c, .coll = HK_SENDRECV, .p2p = HK_P2P_RECV, .count = 8, .root = 2, .stream = (void *)32};
  p2p.dtype = HK_DTYPE_COUNT;
  p2p.in = (void *)48;
  p2p.out = (void *)64;
  void *group = hk_profile_group_open(p, 2);
  p2p.tag = 5;
  hk_profile_call(p, &coll, group);
  hk_profile_over(p, coll.event);
  hk_profile_call(p, &p2p, group);
  hk_profile_over(p, p2p.event);
  hk_profile_over(p, hk_profile_enqueued(p, &coll, "ring", "LL", 300));
  hk_profile_over(p, hk_profile_transfer(p, &p2p, NULL));
  void *copies = hk_profile_copies(p, &coll);
  hk_profile_copy_sync(p, copies, false);
  hk_profile_copy_batch(p, copies, 3, 4096);
  hk_profile_over(p, copies);
  hk_profile_over(p, hk_profile_copies(p, &coll));
  hk_profile_run_over(p);
  hk_profile_over(p, group);
  ck_assert_str_eq(close_traced(c),
                   "start 1 parent 0 rank 0 groupapi depth 2\n"
                   "state 1 23\n"
                   "start 2 parent 1 rank 0 collapi Broadcast count 16 type ncclInt8 root 3 stream 0x10 tag 9\n"
                   "stop 2\n"
                   "start 3 parent 1 rank 0 p2papi Recv count 8 type unknown stream 0x20 tag 5\n"
                   "stop 3\n"
                   "start 4 parent 0 rank 0 group\n"
                   "start 5 parent 2 rank 0 coll Broadcast sequence 0 count 16 type ncclInt8 channels 0 algorithm "
                   "ring protocol LL root 3 tag 9\n"
                   "start 6 parent 1 rank 0 launch stream 0x10\n"
                   "stop 6\n"
                   "stop 5\n"
                   "start 7 parent 3 rank 0 p2p Recv count 8 type unknown peer 2 buffer 0x40\n"
                   "stop 7\n"
                   "start 8 parent 2 rank 0 copies Broadcast sequence 1 count 16 root 3 type ncclInt8 sync UC batch 1 "
                   "in 1 number 0 stream 0x10 tag 9\n"
                   "start 9 parent 8 rank 0 copysync begin ranks 1\n"
                   "stop 9\n"
                   "start 10 parent 8 rank 0 copybatch of 3, 4096 bytes\n"
                   "stop 10\n"
                   "stop 8\n"
                   "start 11 parent 2 rank 0 copies Broadcast sequence 2 count 16 root 3 type ncclInt8 sync UC batch 1 "
                   "in 1 number 1 stream 0x10 tag 9\n"
                   "stop 11\n"
                   "stop 4\n"
                   "stop 1\n"
                   "finalize\n");
}

static void await_tick(void) {
  for (uint64_t now = hk_now_ns(); hk_now_ns() == now;) continue;
}

/* Each channel's kernel, from v3 on; with v7 in two phases, of which the first ends with the first hk_profile_computed
 * of the collective. */
TEST_LOOP(channels, HK_ARRAY_LENGTH(versions)) {
  static const char *const ends[] = {"stop 1\nstop 2\n", "state 1 22\nstop 1\nstate 2 22\nstop 2\n"};
  ncclComm_t c = open_traced(versions[_i], _i < 5 ? "64" : "32768");
  hk_call call = {.comm = c, .coll = HK_ALLREDUCE, .count = 16, .dtype = ncclFloat32};
  for (int k = 0; k < 2; k++) {
    hk_profile_collective(c->profiler, &call, "direct", 2);
    for (int i = 0; i < 2; i++) {
      await_tick();
      hk_profile_computed(c->profiler);
    }
    hk_profile_collective_over(c->profiler);
    hk_profile_collective_over(c->profiler); /* there is nothing more to end */
  }
  const char *text = close_traced(c), *begin = "start 1 parent 0 rank 0 kernel channel 0\n"
                                               "start 2 parent 0 rank 0 kernel channel 1\n";
  ck_assert_ptr_null(strstr(text, "wrong"));
  if (_i == 0) {
    ck_assert_str_eq(text, "finalize\n");
    return;
  }
  ck_assert_int_eq(strncmp(text, begin, strlen(begin)), 0);
  if (_i < 5) {
    ck_assert_int_eq(strncmp(text + strlen(begin), ends[_i > 1], strlen(ends[_i > 1])), 0);
    return;
  }
  const char *all = "start 3 parent 1 rank 0 phase 1 compute channel 0\nstate 3 31\nstop 3\n"
                    "start 4 parent 1 rank 0 phase 2 final_sync channel 0\nstate 4 31\nstop 4\nstate 1 22\nstop 1\n"
                    "start 5 parent 2 rank 0 phase 1 compute channel 1\nstate 5 31\nstop 5\n"
                    "start 6 parent 2 rank 0 phase 2 final_sync channel 1\nstate 6 31\nstop 6\nstate 2 22\nstop 2\n"
                    "start 7 parent 0 rank 0 kernel channel 0\n";
  ck_assert_msg(!strncmp(text + strlen(begin), all, strlen(all)), "%s", text);
  ck_assert_ptr_nonnull(strstr(text, "start 10 parent 7 rank 0 phase 2 final_sync channel 0\n"));
}

/* Copy engines are reported from v6 on, and what a plugin refuses is reported once. */
TEST_LOOP(copies, HK_ARRAY_LENGTH(versions)) {
  char log[64];
  snprintf(log, sizeof log, "/tmp/hocket-test-log.%d", (int)getpid());
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", log, 1);
  ncclComm_t c = open_traced(versions[_i], _i < 2 ? "fail" : "");
  hk_call call = {.comm = c, .coll = HK_ALLREDUCE, .count = 16, .dtype = ncclFloat32};
  hk_profile_over(c->profiler, hk_profile_copies(c->profiler, &call));
  hk_profile_over(c->profiler, hk_profile_enqueued(c->profiler, &call, "ring", "LL", 1));
  ck_assert_int_eq(strstr(close_traced(c), "copies AllReduce") != NULL, _i >= 4);
  char text[4096];
  FILE *f = fopen(log, "r");
  text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
  if (f) fclose(f);
  unlink(log);
  ck_assert_int_eq(strstr(text, "the profiler plugin Example fails in startEvent with code 3") != NULL, _i < 2);
}

/* Each outermost group with calls has an event of its own, also after one with none. */
TEST(groups) {
  ncclComm_t c = open_traced("seven", "256");
  float x[2] = {1};
  for (int i = 0; i < 2; i++) {
    for (int depth = 0; depth < 2; depth++) ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
    for (int call = 0; call < 2; call++)
      ck_assert_int_eq(ncclAllReduce(x, x, 2, ncclFloat32, ncclSum, c, NULL), ncclSuccess);
    for (int depth = 0; depth < 2; depth++) ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
    ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
    ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  }
  ck_assert_str_eq(close_traced(c), "start 1 parent 0 rank 0 groupapi depth 2\nstate 1 23\nstate 1 24\nstop 1\n"
                                    "start 2 parent 0 rank 0 groupapi depth 2\nstate 2 23\nstate 2 24\nstop 2\n"
                                    "finalize\n");
}

int main(void) { return suite_main("profiler"); }
