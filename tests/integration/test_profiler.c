/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What profiler plugins of every version get to see of a collective, and of a send and a receive in a group. */
#include <libgen.h>
#include <nccl.h>
#include "../../src/base/param.h"
#include "../../src/base/status.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static const char *const versions[] = {"two", "three", "four", "five", "six", "seven"};

/* Runs the calls on one rank with the example profiler (tests/plugins/profiler.h); gives what it wrote. */
static const char *trace_of(const char *version, const char *mode) {
  char self[3800] = "", path[4096], name[64];
  float in[16] = {1}, out[16];
  ncclComm_t c;
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../plugins/libnccl-profiler-%s.so", dirname(self), version);
  scratch_make();
  setenv("NCCL_PROFILER_PLUGIN", path, 1);
  setenv("HOCKET_TEST_TRACE", scratch_path("trace"), 1);
  setenv("HOCKET_TEST_PROFILER", mode, 1);
  hk_param_reload();
  ck_assert_int_eq(ncclCommInitAll(&c, 1, (int[]){0}), ncclSuccess);
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.userProfilerTag = 77;
  ck_assert_int_eq(ncclAllReduceConfig(in, out, 16, ncclFloat32, ncclSum, c, NULL, &config), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclSend(in, 8, ncclBfloat16, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclRecv(out, 8, ncclBfloat16, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  snprintf(name, sizeof name, "trace.%d", (int)getpid());
  const char *text = scratch_read(name);
  scratch_remove();
  return text;
}

#define COLL "coll AllReduce sequence 0 count 16 type ncclFloat32 channels 1 algorithm direct protocol SIMPLE"
#define HALVES "count 8 type ncclBfloat16 peer 0"
#define SINCE_FIVE(tag)                                                                                                \
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
  "start 8 parent 7 rank 0 p2papi Send count 8 type ncclBfloat16\n"                                                    \
  "stop 8\n"                                                                                                           \
  "start 9 parent 7 rank 0 p2papi Recv count 8 type ncclBfloat16\n"                                                    \
  "stop 9\n"                                                                                                           \
  "state 7 24\n"                                                                                                       \
  "start 10 parent 0 rank 0 group\n"                                                                                   \
  "start 11 parent 8 rank 0 p2p Send " HALVES "\n"                                                                     \
  "start 12 parent 9 rank 0 p2p Recv " HALVES "\n"                                                                     \
  "stop 11\n"                                                                                                          \
  "stop 12\n"                                                                                                          \
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
                                       "start 6 parent 4 rank 0 p2p Recv " HALVES "\n"
                                       "stop 5\n"
                                       "stop 6\n"
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
                                       "start 6 parent 4 rank 0 p2p Recv " HALVES "\n"
                                       "stop 5\n"
                                       "stop 6\n"
                                       "stop 4\n"
                                       "finalize\n",
                                       SINCE_FIVE(""),
                                       SINCE_FIVE(""),
                                       SINCE_FIVE(" tag 77")};

/* Without phases: their number depends on the clock. */
START_TEST(events) { ck_assert_str_eq(trace_of(versions[_i], _i < 5 ? "" : "32767"), expected[_i]); }
END_TEST

/* Phases alone are asked for: their kernel comes too, and stays open until they are over. */
START_TEST(phases) {
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
END_TEST

/* A plugin that refuses, fails, or wants one kind of event only: the calls work. */
START_TEST(less) {
  ck_assert_str_eq(trace_of(versions[_i], "refuse"), "");
  ck_assert_str_eq(trace_of(versions[_i], "fail"), "finalize\n");
  const char *coll = "start 1 parent 0 rank 0 " COLL, *text = trace_of(versions[_i], "2");
  ck_assert_int_eq(strncmp(text, coll, strlen(coll)), 0);
  ck_assert_str_eq(text + strlen(coll), _i < 5 ? "\nstop 1\nfinalize\n" : " tag 77\nstop 1\nfinalize\n");
}
END_TEST

int main(void) {
  TCase *t = tcase_create("profiler");
  tcase_add_loop_test(t, events, 0, HK_ARRAY_LENGTH(versions));
  tcase_add_test(t, phases);
  tcase_add_loop_test(t, less, 0, HK_ARRAY_LENGTH(versions));
  return suite_run_one("profiler", t);
}
