/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What launchers' variables say about a rank, and the id that ranks get by an address or a file. */
#include <fcntl.h>
#include <hocket.h>
#include "../../src/boot/bootstrap.h"
#include "../../src/boot/meet.h"
#include "../support/process.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static const char *const variables[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_JOB_NODELIST",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PMIX_NAMESPACE",
                                        "PMI_JOBID"};

static void setup(void) {
  scratch_make();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(variables); i++) unsetenv(variables[i]);
  set_param("HOCKET_JOB_DIR", scratch_folder);
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "1");
  set_param("HOCKET_WATCHDOG", "1");
}

/* Sets "A=1 B=2". */
static void environment(const char *text) {
  char copy[300], *rest = copy;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *one; (one = strsep(&rest, " "));) {
    char *value = strchr(one, '=');
    *value = 0;
    setenv(one, value + 1, 1);
  }
}

static const struct {
  const char *given, *wanted, *launcher; /* NULL: an error, whose text has `error` */
  int rank, nranks, local;
  const char *error;
} places[] = {
    {"A=", NULL, "none", 0, 1, 1, ""},
    {"RANK=1", NULL, "none", 0, 1, 1, ""},
    {"SLURM_NTASKS=4", NULL, "none", 0, 1, 1, ""},
    {"RANK=1 WORLD_SIZE=3", NULL, "torchrun", 1, 3, 0, ""},
    {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALNRANKS=2 RANK=1 WORLD_SIZE=3", NULL, "pmi", 2, 4, 2, ""},
    {"PMI_RANK=2 PMI_SIZE=4 RANK=1 WORLD_SIZE=3", "torchrun", "torchrun", 1, 3, 0, ""},
    {"SLURM_PROCID=5 SLURM_NTASKS=6", NULL, "slurm", 5, 6, 0, ""},
    {"RANK=3 WORLD_SIZE=3", NULL, NULL, 0, 0, 0, "RANK=3 is not below WORLD_SIZE=3"},
    {"RANK=x WORLD_SIZE=3", NULL, NULL, 0, 0, 0, "RANK=x is not a rank or count"},
    {"RANK=1", "torchrun", NULL, 0, 0, 0, "RANK or WORLD_SIZE is not set"},
    {"RANK=1 WORLD_SIZE=3", "lsf", NULL, 0, 0, 0, "unknown name 'lsf'"},
};

TEST_LOOP(place, HK_ARRAY_LENGTH(places)) {
  hk_launched p;
  environment(places[_i].given);
  hk_status rc = hk_launched_find(&p, places[_i].wanted);
  if (!places[_i].launcher) {
    ck_assert_int_eq(rc, HK_ERR_USAGE);
    ck_assert_msg(strstr(hk_last_error(), places[_i].error), "%s", hk_last_error());
    return;
  }
  ck_assert_int_eq(rc, HK_OK);
  ck_assert_str_eq(p.launcher, places[_i].launcher);
  ck_assert(p.rank == places[_i].rank && p.nranks == places[_i].nranks && p.local == places[_i].local);
}

static const struct {
  const char *given, *address, *launcher, *error;
  int rank, local;
} lost[] = {
    {"A=", "nowhere", "none", "address='nowhere' is no address", 0, 0},
    {"A=", "host:", "none", "is no address", 0, 0},
    {"A=", "host:70000", "none", "is no address", 0, 0},
    {"A=", NULL, "none", "nothing says where rank 0 is", 0, 0},
    {"A=", NULL, "torchrun", "nothing says where rank 0 is", 0, 0},
    {"A=", NULL, "pmi", "nothing says where rank 0 is", 0, 1},
    {"MASTER_ADDR=localhost MASTER_PORT=x", NULL, "torchrun", "MASTER_PORT=x is not a port", 0, 0},
    {"MASTER_ADDR=no.such.host.invalid MASTER_PORT=1", NULL, "torchrun", "did not find the address of 'no.such", 1, 0},
    {"PMIX_NAMESPACE=a", NULL, "ompi", "did not find the file", 1, 2},
};

TEST_LOOP(no_meeting, HK_ARRAY_LENGTH(lost)) {
  ncclUniqueId id;
  hk_launched p = {.launcher = lost[_i].launcher, .rank = lost[_i].rank, .nranks = 2, .local = lost[_i].local};
  environment(lost[_i].given);
  ck_assert_int_ne(hk_meet(hk_settings_now(), &id, &p, lost[_i].address), HK_OK);
  ck_assert_msg(strstr(hk_last_error(), lost[_i].error), "%s", hk_last_error());
}

static int files(char path[512]) {
  DIR *d = opendir(scratch_folder);
  int n = 0;
  for (const struct dirent *e; (e = readdir(d));)
    if (!strncmp(e->d_name, ".hocket-", 8)) snprintf(path, 512, "%s/%s", scratch_folder, e->d_name), n++;
  closedir(d);
  return n;
}

/* Rank 0's file is for its user alone. Another rank reads the id in it, and not a file of an earlier run. */
TEST(file) {
  ncclUniqueId id, other;
  char path[512], old[600];
  struct stat st;
  hk_launched first = {.launcher = "ompi", .nranks = 2, .local = 2},
              second = {.launcher = "ompi", .rank = 1, .nranks = 2};
  environment("PMIX_NAMESPACE=a");
  ck_assert_int_eq(hk_meet(hk_settings_now(), &id, &first, NULL), HK_OK);
  ck_assert_int_eq(files(path), 1);
  ck_assert(!stat(path, &st) && (st.st_mode & 0777) == 0600 && st.st_size == sizeof id);
  ck_assert_int_eq(hk_meet(hk_settings_now(), &other, &second, NULL), HK_OK);
  ck_assert_mem_eq(&id, &other, sizeof id);
  ck_assert_int_eq(unlink(path), 0);
  /* The damaged file of another process's root, which nobody serves. */
  snprintf(old, sizeof old, "%.*s000000", (int)strlen(path) - 6, path);
  int fd = open(old, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  memset(&id, 1, sizeof id);
  ck_assert_int_eq(write(fd, &id, sizeof id), sizeof id);
  close(fd);
  ck_assert_int_eq(hk_meet(hk_settings_now(), &other, &second, NULL), HK_ERR_REMOTE);
  ck_assert_int_eq(hk_meet(hk_settings_now(), &id, &first, NULL), HK_OK); /* removes the old one */
  ck_assert_int_eq(files(path), 1);
}

/* The API: alone, and with arguments that do not fit. */
TEST(api) {
  ncclComm_t c;
  int rank = -1, nranks = -1, local = -1;
  const char *launcher = NULL;
  ck_assert_int_eq(hocketRankFromEnvironment(&rank, &nranks, &local, &launcher), ncclSuccess);
  ck_assert(rank == 0 && nranks == 1 && local == 1 && !strcmp(launcher, "none"));
  ck_assert_int_eq(hocketRankFromEnvironment(NULL, NULL, NULL, NULL), ncclSuccess);
  ck_assert_int_eq(hocketCommFromEnvironment(NULL, NULL, -1, -1, NULL), ncclInvalidArgument);
  ck_assert_int_eq(hocketCommFromEnvironment(&c, NULL, -1, 1, NULL), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "rank 1 of 1 ranks: give both"));
  ck_assert_int_eq(hocketCommFromEnvironment(&c, NULL, -1, -1, NULL), ncclSuccess);
  ck_assert(ncclCommCount(c, &nranks) == ncclSuccess && nranks == 1);
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  environment("RANK=5 WORLD_SIZE=2");
  ck_assert_int_eq(hocketRankFromEnvironment(&rank, NULL, NULL, NULL), ncclInvalidUsage);
  ck_assert_int_eq(hocketCommFromEnvironment(&c, NULL, -1, -1, NULL), ncclInvalidUsage);
}

int main(void) { return suite_main("meet", .setup = setup, .teardown = scratch_remove); }
