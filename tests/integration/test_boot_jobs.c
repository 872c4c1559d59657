/* SPDX-License-Identifier: Apache-2.0 */
/* Who belongs to a job: two jobs with one NCCL_COMM_ID, and the names of jobs.
 * check: notsan */
#include "../../src/base/addr.h"
#include "../../src/boot/job.h"
#include "../support/boot_ranks.h"

static struct board {
  _Atomic(int) joining, held; /* held: rank 0 of a job does not join yet, though its root is there */
  int status[3];
  char text[3][2048];
} * shared;

/* What a process is to do: as which rank, where its result goes, of which job. */
typedef struct part {
  int rank, nranks, place;
  const char *job;
} part;

static int join_as(void *arg) {
  const part *p = arg;
  ncclUniqueId id;
  rank_state r = {.rank = p->rank, .nranks = p->nranks, .nids = 1, .ids = &id};
  set_param("HOCKET_JOB", p->job);
  r.status = hk_bootstrap_env_id(hk_settings_now(), &id, p->rank);
  atomic_fetch_add(&shared->joining, 1);
  while (p->rank == 0 && atomic_load(&shared->held)) usleep(1000);
  if (r.status == HK_OK) join_rank(&r);
  if (r.status == HK_OK) r.status = hk_bootstrap_barrier(r.b);
  shared->status[p->place] = r.status;
  if (r.status != HK_OK) snprintf(shared->text[p->place], sizeof shared->text[0], "%s", hk_last_error());
  leave_rank(&r);
  return 0;
}

static pid_t start(int rank, int nranks, int place, const char *job) {
  part p = {.rank = rank, .nranks = nranks, .place = place, .job = job};
  return start_process(join_as, &p);
}

/* ---- two jobs with one NCCL_COMM_ID ---- */

static unsigned free_port(void) {
  hk_addr a = {.v4 = {.sin_family = AF_INET}};
  int fd;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &a, 1, &fd), HK_OK);
  close(fd);
  return hk_addr_port(&a);
}

/* Rank 0 of job "first" waits; rank 1 of job "second" comes to its port, with as many ranks or more, after rank 0 has
 * joined or before. */
TEST_LOOP(jobs_are_kept_apart, 4) {
  char text[64];
  pid_t pids[3];
  snprintf(text, sizeof text, "127.0.0.1:%u", free_port());
  set_param("NCCL_COMM_ID", text);
  atomic_store(&shared->held, _i / 2);
  pids[0] = start(0, 2, 0, "first");
  ck_assert(await_count(&shared->joining, 1));
  pids[2] = start(1, 2 + _i % 2, 2, "second");
  ck_assert_int_eq(end_process(pids[2]), 0);
  atomic_store(&shared->held, 0);
  ck_assert_int_eq(shared->status[2], HK_ERR_USAGE);
  ck_assert_msg(strstr(shared->text[2], "the root there is of HOCKET_JOB=first, and this rank") != NULL, "%s",
                shared->text[2]);
  ck_assert_msg(strstr(shared->text[2], "of HOCKET_JOB=second; give each job a port of its own") != NULL, "%s",
                shared->text[2]);
  pids[1] = start(1, 2, 1, "first"); /* the job that was there first has come to no harm */
  for (int i = 0; i < 2; i++) ck_assert_int_eq(end_process(pids[i]), 0);
  for (int i = 0; i < 2; i++) ck_assert_msg(shared->status[i] == HK_OK, "rank %d: %s", i, shared->text[i]);
}

static void clear_environment(void) {
  static const char *const all[] = {"HOCKET_JOB",          "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                    "TORCHELASTIC_RUN_ID", "MASTER_PORT",    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",       "PMI_RANK",       "FLUX_JOB_ID",
                                    "PBS_JOBID",           "LSB_JOBID",      "COBALT_JOBID"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) unsetenv(all[i]);
  hk_param_reload();
}

static uint64_t expect_job(const char *words) {
  hk_boot_job job;
  char text[HK_JOB_TEXT];
  hk_boot_job_here(hk_settings_now(), &job);
  snprintf(text, sizeof text, words, (unsigned)getuid());
  ck_assert_str_eq(job.text, text);
  ck_assert_uint_ne(job.token, 0);
  return job.token;
}

TEST(names_of_jobs) {
  clear_environment();
  uint64_t none = expect_job("a job without a name of user id %u"), slurm;
  setenv("SLURM_JOB_ID", "17", 1);
  setenv("SLURM_STEP_ID", "3", 1);
  slurm = expect_job("SLURM_JOB_ID=17 SLURM_STEP_ID=3 of user id %u");
  ck_assert_uint_ne(slurm, none);
  setenv("SLURM_STEP_ID", "4", 1);
  ck_assert_uint_ne(slurm, expect_job("SLURM_JOB_ID=17 SLURM_STEP_ID=4 of user id %u"));
  setenv("PMI_RANK", "0", 1); /* mpirun's processes are in several steps */
  expect_job("SLURM_JOB_ID=17 of user id %u");
  setenv("PMI_RANK", "", 1); /* an empty one is as none */
  setenv("TORCHELASTIC_RUN_ID", "", 1);
  expect_job("SLURM_JOB_ID=17 SLURM_STEP_ID=4 of user id %u");
  setenv("SLURM_STEP_ID", "", 1);
  expect_job("SLURM_JOB_ID=17 of user id %u");
  setenv("PMIX_NAMESPACE", "prterun-a-1@1", 1);
  expect_job("PMIX_NAMESPACE=prterun-a-1@1 of user id %u");
  set_param("HOCKET_JOB", "mine");
  expect_job("HOCKET_JOB=mine");
  clear_environment();
  ck_assert_uint_eq(none, expect_job("a job without a name of user id %u"));
}

/* `hocket ps --job` takes every name that the environment has. */
TEST(names_for_operators) {
  char names[HK_JOB_NAMES];
  clear_environment();
  unsetenv("MASTER_ADDR");
  unsetenv("NCCL_COMM_ID");
  hk_param_reload();
  hk_boot_job_names(hk_settings_now(), names, sizeof names);
  ck_assert_str_eq(names, "");
  ck_assert(!hk_boot_job_is(names, ""));
  setenv("SLURM_JOB_ID", "17", 1);
  setenv("SLURM_STEP_ID", "3", 1);
  setenv("PMIX_NAMESPACE", "prterun-a-1@1", 1);
  setenv("MASTER_ADDR", "node1", 1);
  setenv("MASTER_PORT", "29500", 1);
  set_param("HOCKET_JOB", "mine");
  hk_boot_job_names(hk_settings_now(), names, sizeof names);
  ck_assert_str_eq(names, "HOCKET_JOB=mine\nPMIX_NAMESPACE=prterun-a-1@1\nSLURM_JOB_ID=17 SLURM_STEP_ID=3\n"
                          "MASTER_ADDR=node1 MASTER_PORT=29500\n");
  static const char *const right[] = {
      "mine",          "17",    "17.3",       "SLURM_JOB_ID=17", "SLURM_JOB_ID=17 SLURM_STEP_ID=3",
      "prterun-a-1@1", "node1", "node1:29500"};
  static const char *const wrong[] = {"", "3", "1", "17.", "17.30", "17x3", "SLURM_JOB_ID", "SLURM_STEP_ID=3", "29500"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(right); i++) ck_assert_msg(hk_boot_job_is(names, right[i]), "%s", right[i]);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(wrong); i++) ck_assert_msg(!hk_boot_job_is(names, wrong[i]), "%s", wrong[i]);
  unsetenv("MASTER_ADDR");
  clear_environment();
}

TEST(bad_comm_id) {
  ncclUniqueId id;
  static const char *const bad[] = {
      "", "nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "no.such.host.invalid:1"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(bad); i++) {
    set_param("NCCL_COMM_ID", bad[i]);
    ck_assert_int_ne(hk_bootstrap_env_id(hk_settings_now(), &id, 0), HK_OK);
  }
  set_param("NCCL_COMM_ID", "192.0.2.77:4242"); /* an address for documentation, used by no host */
  ck_assert_int_ne(hk_bootstrap_env_id(hk_settings_now(), &id, 0), HK_OK);
  ck_assert_int_eq(hk_bootstrap_env_id(hk_settings_now(), &id, 1), HK_OK);
  set_param("NCCL_COMM_ID", NULL);
  ck_assert_int_eq(hk_bootstrap_env_id(hk_settings_now(), &id, 0), HK_ERR_USAGE);
}

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("jobs", .setup = setup, .timeout = 120); }
