/* SPDX-License-Identifier: Apache-2.0 */
/* Nonsense as the value of each parameter that is text: a communicator's making reports it at WARN, or refuses it, and
 * names the variable or shows the value.  A parameter whose every value has a meaning, or that this machine does not
 * use, is a row of `exempt` with the reason.
 * check: notsan timeout=300 */
#include <nccl.h>
#include <pthread.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "../../src/transport/net/ib/ib_port.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static const struct {
  hk_param_id id;
  const char *reason;
} exempt[] = {
    {HK_P_HOSTID, "any text is a name"},
    {HK_P_JOB, "any text is a name"},
    {HK_P_JOB_DIR, "any text is the name of a folder"},
    {HK_P_DEBUG_FILE, "any text is a file's name; the log itself is read there: test_log"},
    {HK_P_TOPO_DUMP_FILE, "any text is a file's name; one that cannot be written: cannot_be_written"},
    {HK_P_GRAPH_DUMP_FILE, "any text is a file's name; one that cannot be written: cannot_be_written"},
    {HK_P_ENV_PLUGIN, "read once in a process, before the other parameters: the suite plugins"},
    {HK_P_CUDA_IMAGE, "read on GPUs only: test_gpu_life"},
    {HK_P_IB_HCA, "needs RDMA devices: rdma"},
    {HK_P_IB_ADDR_FAMILY, "needs RDMA devices: rdma"},
    {HK_P_IB_ADDR_RANGE, "needs RDMA devices: rdma"},
    {HK_P_NET_MERGE_LEVEL, "needs RDMA devices: rdma"},
    {HK_P_NET_FORCE_MERGE, "any text is a list of names, of devices that other hosts may have"},
    {HK_P_IB_ROOT, "for tests"},
    {HK_P_IBVERBS_LIB, "needs RDMA devices: test_ib"},
    {HK_P_NETDEVS_POLICY, "needs RDMA devices: test_ib_port"},
    {HK_P_OOB_NET_IFNAME, "any text is a list of names, of RDMA devices, too: test_iface"},
};
static const char *exempted(hk_param_id id) {
  for (size_t i = 0; i < sizeof exempt / sizeof *exempt; i++)
    if (exempt[i].id == id) return exempt[i].reason;
  return NULL;
}

/* Two ranks on host memory, and a call. */
typedef struct rank {
  int rank;
  ncclUniqueId id;
  ncclResult_t code;
} rank;
static void *run_rank(void *arg) {
  rank *r = arg;
  ncclComm_t c = NULL;
  float x = 1;
  r->code = ncclCommInitRank(&c, 2, r->id, r->rank);
  if (r->code == ncclSuccess) r->code = ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL);
  if (c) (void)ncclCommDestroy(c);
  return NULL;
}
static ncclResult_t run_two(void) {
  ncclUniqueId id;
  ncclResult_t code = ncclGetUniqueId(&id);
  if (code != ncclSuccess) return code;
  rank r[2];
  pthread_t thread[2];
  for (int i = 0; i < 2; i++) {
    r[i] = (rank){.rank = i, .id = id};
    ck_assert_int_eq(pthread_create(&thread[i], NULL, run_rank, &r[i]), 0);
  }
  for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
  return r[0].code != ncclSuccess ? r[0].code : r[1].code;
}

static void environment(const char *name, const char *value) {
  scratch_make();
  setenv("HOME", scratch_folder, 1);
  setenv("HOCKET_BOOTSTRAP_TIMEOUT", "20", 1);
  if (strcmp(name, "HOCKET_DEVICE") != 0) setenv("HOCKET_DEVICE", "host", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  setenv(name, value, 1);
  hk_param_reload();
  hk_log_reset();
}

/* Each in a process of its own (Check's). */
TEST_LOOP(nonsense, HK_P_COUNT) {
  hk_param_info info;
  hk_param_describe((hk_param_id)_i, &info);
  if (!info.is_string || exempted((hk_param_id)_i)) return;
  environment(info.name, "toaster/7,:");
  /* The log may have been read already: what is wrong with its own variables is reported by the line that follows. */
  HK_WARN("a line");
  ncclResult_t code = run_two();
  const char *log = scratch_read("log");
  ck_assert_msg(strstr(log, info.name) || strstr(log, "toaster"),
                "%s=toaster/7,: gives %d, and nothing is said of it: \"%s\"", info.name, code, log);
  scratch_remove();
}

static void expect(const char *name, const char *value, const char *text) {
  ck_assert_msg(strstr(hk_last_error(), text) != NULL, "%s=%s: \"%s\"", name, value, hk_last_error());
  ck_assert_ptr_nonnull(strstr(hk_last_error(), name));
}

TEST_LOOP(rdma, 6) {
  static const char *const wrong[][2] = {
      {"NCCL_IB_ADDR_FAMILY", "INET"},       {"NCCL_IB_ADDR_RANGE", "toaster"},
      {"NCCL_IB_ADDR_RANGE", "10.0.0.0/x"},  {"NCCL_IB_ADDR_RANGE", "10.0.0.0/8x"},
      {"NCCL_IB_ADDR_RANGE", "10.0.0.0/33"}, {"NCCL_IB_ADDR_RANGE", "10.0.0.0/"},
  };
  const char *name = wrong[_i][0], *value = wrong[_i][1];
  hk_ib_gid_filter w;
  environment(name, value);
  ck_assert_int_eq(hk_ib_gid_filter_of(hk_settings_now(), &w), HK_ERR_USAGE);
  expect(name, value, value);
  scratch_remove();
}

TEST_LOOP(cannot_be_written, 2) {
  const char *name = _i ? "NCCL_GRAPH_DUMP_FILE" : "NCCL_TOPO_DUMP_FILE";
  environment(name, "/no/such/folder/file.xml");
  (void)run_two();
  ck_assert_msg(strstr(scratch_read("log"), "/no/such/folder/file.xml") != NULL, "%s: \"%s\"", name,
                scratch_read("log"));
  scratch_remove();
}

/* Rank 1 comes to the root half a second after rank 0. */
TEST(ranks_come_one_after_another) {
  environment("NCCL_UID_STAGGER_THRESHOLD", "1");
  setenv("NCCL_UID_STAGGER_RATE", "2", 1);
  hk_param_reload();
  const uint64_t begin = hk_now_ns();
  ck_assert_int_eq(run_two(), ncclSuccess);
  ck_assert_uint_ge(hk_ago_ns(hk_now_ns(), begin), 500000000u);
  scratch_remove();
}

/* A row that is no text, or is there twice, has no meaning. */
TEST(exemptions) {
  for (size_t i = 0; i < sizeof exempt / sizeof *exempt; i++) {
    hk_param_info info;
    hk_param_describe(exempt[i].id, &info);
    ck_assert_msg(info.is_string, "%s", info.name);
    ck_assert_ptr_eq(exempted(exempt[i].id), exempt[i].reason);
  }
}

int main(void) { return suite_main("param_values", .timeout = 60); }
