/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: what it keeps, and when it writes files (src/failure/flight.h). */
#include <dirent.h>
#include <hocket.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "../../src/base/text_file.h"
#include "../../src/base/wait.h"
#include "../../src/boot/bootstrap.h"
#include "../../src/core/comm.h"
#include "../../src/failure/failure.h"
#include "../../src/formats/json_tree.h"
#include "../../src/transport/status_page.h"
#include "../support/ranks.h"
#include "../support/scratch.h"
#include "../support/suite.h"

enum { RANKS = 3, KEPT = 6 };

static void nap(uint64_t ns) {
  const hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  (void)hk_wait_nap(&w, -1, ns);
}

/* ---- files ---- */

typedef struct record {
  hk_json_tree tree;
  hk_json_node root, ops;
  char *text;
} record;

/* Opens a file; false: it is not there, or is no record. */
static bool record_open(record *r, const char *path) {
  size_t bytes;
  *r = (record){.text = NULL};
  if (hk_text_read(path, 1 << 20, &r->text, &bytes) != HK_OK) return false;
  if (hk_json_tree_parse(&r->tree, path, r->text) != HK_OK) return false;
  r->root = hk_json_root(&r->tree);
  return hk_json_get(&r->root, "operations", HK_JSON_LIST, true, &r->ops);
}
static void record_close(record *r) {
  hk_json_tree_free(&r->tree);
  free(r->text);
}
static long long whole(const hk_json_node *n, const char *key) {
  long long v = -1;
  hk_json_get_whole(n, key, false, INT64_MIN, INT64_MAX, &v);
  return v;
}
static bool is_text(const hk_json_node *n, const char *key, const char *text) {
  const char *t = hk_json_get_text(n, key, false);
  return t && !strcmp(t, text);
}
/* The k-th operation, from the end if k < 0. */
static hk_json_node op_at(const record *r, int k) {
  hk_json_node n = {.tree = NULL};
  (void)hk_json_at(&r->ops, (size_t)(k < 0 ? (int)hk_json_size(&r->ops) + k : k), HK_JSON_OBJECT, &n);
  return n;
}

/* The rank's file of its own name in the scratch folder. */
static const char *own_path(char *path, size_t bytes, uint64_t id, int rank, int n) {
  snprintf(path, bytes, "%s/hocket-flight-%llx-%d-of-%d.json", scratch_folder, (unsigned long long)id, rank, n);
  return path;
}
/* Waits for it. */
static bool own_comes(record *r, ncclComm_t c) {
  char path[256];
  own_path(path, sizeof path, hk_bootstrap_comm_id(c->bootstrap), c->rank, c->nranks);
  for (int i = 0; i < 200 && access(path, R_OK); i++) nap(20000000);
  return record_open(r, path);
}

/* ---- what is kept ---- */

/* The ring has room for 8 and gives the last KEPT. */
static int wraps(ncclComm_t c, int rank, int n, void *arg) {
  int bad = 0;
  float in[4] = {1}, out[4 * RANKS];
  char name[32];
  record r;
  (void)arg;
  for (int i = 0; i < 20; i++) bad += RANK_CHECK(ncclAllReduce(in, out, 4, ncclFloat32, ncclMax, c, NULL));
  bad += RANK_CHECK(ncclAllGather(out + (size_t)rank * 2, out, 2, ncclFloat32, c, NULL)); /* in place */
  bad += RANK_CHECK(rank ? ncclRecv(in, 3, ncclInt32, rank - 1, c, NULL) : ncclSuccess);
  bad += RANK_CHECK(rank < n - 1 ? ncclSend(in, 3, ncclInt32, rank + 1, c, NULL) : ncclSuccess);
  bad += RANK_CHECK(ncclBroadcast(in, in, 1, ncclInt8, 1, c, NULL));
  snprintf(name, sizeof name, "wraps%d", rank);
  char path[256];
  snprintf(path, sizeof path, "%s", scratch_path(name));
  bad += RANK_CHECK(hocketFlightDump(c, path));
  if (RANK_IS(record_open(&r, path))) return bad + 1;
  bad += RANK_IS(whole(&r.root, "rank") == rank && whole(&r.root, "ranks") == n);
  bad += RANK_IS(hk_json_size(&r.ops) == KEPT);
  const hk_json_node last = op_at(&r, -1), first = op_at(&r, 0);
  const int transfers = rank && rank < n - 1 ? 2 : 1;
  const hk_json_node gather = op_at(&r, -2 - transfers), transfer = op_at(&r, -2);
  bool in_place = false;
  bad += RANK_IS(whole(&last, "number") == 22 + transfers && whole(&last, "collective") == 22);
  bad += RANK_IS(whole(&first, "number") == 22 + transfers - KEPT + 1);
  bad += RANK_IS(is_text(&last, "call", "Broadcast(1 x int8, root 1)") && is_text(&last, "state", "over"));
  bad += RANK_IS(is_text(&first, "call", "AllReduce(4 x float, max)") && is_text(&first, "operator", "max"));
  bad += RANK_IS(hk_json_get_text(&first, "algorithm", true) != NULL);
  bad += RANK_IS(is_text(&gather, "kind", "AllGather") && whole(&gather, "count") == 2);
  bad += RANK_IS(hk_json_get_boolean(&gather, "in_place", true, &in_place) && in_place);
  bad += RANK_IS(hk_json_get_boolean(&first, "in_place", true, &in_place) && !in_place);
  bad += RANK_IS(is_text(&transfer, "kind", rank < n - 1 ? "Send" : "Recv") && is_text(&transfer, "state", "over"));
  bad += RANK_IS(whole(&transfer, "peer") == (rank < n - 1 ? rank + 1 : rank - 1));
  /* of a communicator that is a minute old at most */
  const long long age = whole(&r.root, "written_ns") - whole(&first, "begin_ns");
  bad += RANK_IS(age >= 0 && age < 60000000000 && whole(&last, "begin_ns") >= whole(&first, "begin_ns"));
  record_close(&r);
  return bad;
}
TEST(keeps_the_last_operations) {
  setenv("HOCKET_FLIGHT_RECORDS", "6", 1);
  ck_assert_int_eq(ranks_as_threads(RANKS, wraps, NULL), 0);
  unsetenv("HOCKET_FLIGHT_RECORDS");
}

static int none(ncclComm_t c, int rank, int n, void *arg) {
  int bad = 0;
  float x = 1;
  record r;
  (void)n, (void)arg;
  char path[256];
  snprintf(path, sizeof path, "%s/off-%d", scratch_folder, rank);
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  bad += RANK_CHECK(hocketFlightDump(c, path));
  if (RANK_IS(record_open(&r, path))) return bad + 1;
  bad += RANK_IS(hk_json_size(&r.ops) == 0);
  record_close(&r);
  return bad;
}
TEST(is_off_if_nobody_asks) {
  unsetenv("HOCKET_FLIGHT_DIR");
  ck_assert_int_eq(ranks_as_threads(2, none, NULL), 0);
}

/* ---- on request ---- */

static struct {
  _Atomic(ncclComm_t) comm;
  _Atomic(bool) seen;
} shared;

/* Rank 1's thread writes the file of rank 0, which waits for it in an operation. */
static int from_outside(ncclComm_t c, int rank, int n, void *arg) {
  int bad = 0;
  float x = 1;
  record r;
  (void)n, (void)arg;
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  if (rank == 0) {
    atomic_store(&shared.comm, c);
  } else {
    char path[256];
    snprintf(path, sizeof path, "%s", scratch_path("outside"));
    while (!atomic_load(&shared.comm)) nap(1000000);
    bool seen = false;
    for (int i = 0; i < 200 && !seen; i++) {
      nap(10000000);
      bad += RANK_CHECK(hocketFlightDump(atomic_load(&shared.comm), path));
      if (RANK_IS(record_open(&r, path))) return bad + 1;
      const hk_json_node last = op_at(&r, -1);
      seen = is_text(&last, "state", "begun") && is_text(&last, "call", "AllReduce(2 x double, sum)") &&
             whole(&last, "end_ns") == -1 && strstr(hk_json_get_text(&r.root, "does", true), "is in AllReduce");
      record_close(&r);
    }
    bad += RANK_IS(seen);
  }
  double y[2] = {1, 2};
  bad += RANK_CHECK(ncclAllReduce(y, y, 2, ncclFloat64, ncclSum, c, NULL));
  return bad;
}
TEST(shows_an_operation_under_way) {
  setenv("HOCKET_FLIGHT_RECORDS", "16", 1);
  ck_assert_int_eq(ranks_as_threads(2, from_outside, NULL), 0);
}

static int refused(ncclComm_t c, int rank, int n, void *arg) {
  char path[256], text[512];
  int bad = 0;
  (void)rank, (void)n, (void)arg;
  snprintf(path, sizeof path, "%s", scratch_path("no/such/folder"));
  bad += RANK_IS(hocketFlightDump(c, path) == ncclSystemError);
  snprintf(text, sizeof text, "%s", ncclGetLastError(NULL));
  bad += RANK_IS(strstr(text, path) != NULL && strstr(text, "No such file") != NULL);
  bad += RANK_IS(hocketFlightDump(NULL, path) == ncclInvalidArgument);
  return bad;
}
TEST(says_what_cannot_be_written) { ck_assert_int_eq(ranks_as_threads(1, refused, NULL), 0); }

/* ---- after a failure ---- */

/* The last rank ends its process while rank 0 waits for it. The others write files that name it; so does one that is in
 * no call. */
static int loses_one(ncclComm_t c, int rank, int n, void *arg) {
  float x = 1;
  int bad = 0;
  record r;
  hk_json_node failure;
  (void)arg;
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  if (rank == n - 1) {
    hk_status_page_op op;
    const hk_status_page *page = hk_wire_status_page(c, 0);
    while (page && !hk_status_page_read_at(page, 2, &op)) nap(1000000);
    bad += RANK_IS(page != NULL);
    fflush(NULL);
    _exit(bad);
  }
  if (rank == 0) bad += RANK_IS(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL) == ncclRemoteError);
  if (RANK_IS(own_comes(&r, c))) return bad + 1;
  bad += RANK_IS(hk_json_get(&r.root, "failure", HK_JSON_OBJECT, true, &failure));
  bad += RANK_IS(whole(&failure, "rank") == n - 1 && whole(&failure, "code") == ncclRemoteError);
  const hk_json_node last = op_at(&r, -1);
  bad += RANK_IS(is_text(&last, "state", rank == 0 ? "failed" : "over"));
  bad += RANK_IS(whole(&last, "collective") == (rank == 0 ? 2 : 1));
  record_close(&r);
  return bad;
}
TEST(writes_after_the_loss_of_a_rank) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, loses_one, NULL), 0);
}

/* Rank 2 calls with another count: all have files, in which that operation differs. */
static int differs(ncclComm_t c, int rank, int n, void *arg) {
  float x[8] = {1};
  int bad = 0;
  record r;
  (void)n, (void)arg;
  bad += RANK_CHECK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, c, NULL));
  bad += RANK_IS(ncclAllReduce(x, x, rank == 2 ? 7 : 8, ncclFloat32, ncclSum, c, NULL) == ncclInvalidUsage);
  if (RANK_IS(own_comes(&r, c))) return bad + 1;
  const hk_json_node last = op_at(&r, -1);
  bad += RANK_IS(is_text(&last, "call", rank == 2 ? "AllReduce(7 x float, sum)" : "AllReduce(8 x float, sum)"));
  bad += RANK_IS(whole(&last, "collective") == 2);
  record_close(&r);
  return bad;
}
TEST(writes_calls_that_differ) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, differs, NULL), 0);
}

/* A folder that is not there costs nothing but a warning: the error stays that of the operation. */
TEST(goes_on_without_a_folder) {
  setenv("HOCKET_FLIGHT_DIR", "/no/such/folder", 1);
  pid_t pid = fork();
  if (!pid) {
    ncclComm_t c;
    ncclUniqueId id;
    float x = 1;
    if (ncclGetUniqueId(&id) || ncclCommInitRank(&c, 1, id, 0)) _exit(1);
    hk_failure_raise(c, HK_EVENT_ERROR, 0, HK_ERR_SYSTEM, "the test says so");
    if (ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL) != ncclSystemError) _exit(2);
    if (!strstr(ncclGetLastError(c), "the test says so")) _exit(3);
    nap(300000000); /* the service thread tries, too */
    _exit(ncclCommAbort(c) != ncclSuccess);
  }
  int status;
  waitpid(pid, &status, 0);
  ck_assert_int_eq(status, 0);
}

/* A call after the failure writes the file before it returns: its thread may end the process then. */
static int calls_again(ncclComm_t c, int rank, int n, void *arg) {
  char path[256];
  float x = 1;
  (void)arg;
  own_path(path, sizeof path, hk_bootstrap_comm_id(c->bootstrap), rank, n);
  hk_comm_fail(c, HK_ERR_SYSTEM, "the test says so");
  int bad = RANK_IS(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL) == ncclSystemError);
  bad += RANK_IS(access(path, R_OK) == 0);
  return bad;
}
TEST(writes_in_the_next_call) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  ck_assert_int_eq(ranks_as_threads(1, calls_again, NULL), 0);
}

/* A child that was never connected has nothing to tell. */
static int split_fails(ncclComm_t c, int rank, int n, void *arg) {
  ncclComm_t child = NULL;
  float x = 1;
  (void)n, (void)arg;
  const ncclResult_t rc = ncclCommSplit(c, rank ? -7 : 0, 0, &child, NULL);
  return RANK_IS(rc == (rank ? ncclInvalidArgument : ncclRemoteError) && !child) +
         RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL)); /* both are there until here */
}
TEST(writes_nothing_for_a_child_that_was_refused) {
  int files = 0;
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  ck_assert_int_eq(ranks_as_threads(2, split_fails, NULL), 0);
  DIR *d = opendir(scratch_folder);
  for (const struct dirent *e; (e = readdir(d));) files += !strncmp(e->d_name, "hocket-flight-", 14);
  closedir(d);
  ck_assert_int_eq(files, 0);
}

/* An abort that ends nothing writes nothing. */
static int aborts(ncclComm_t c, int rank, int n, void *arg) {
  char path[256];
  float x = 1;
  (void)arg;
  int bad = RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  own_path(path, sizeof path, hk_bootstrap_comm_id(c->bootstrap), rank, n);
  hk_comm_fail(c, HK_ERR_USAGE, "the test ends it");
  bad += RANK_IS(access(path, R_OK) != 0);
  return bad;
}
TEST(writes_nothing_for_an_idle_abort) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  ck_assert_int_eq(ranks_as_threads(1, aborts, NULL), 0);
}

/* ---- on a signal ---- */

static _Atomic(int) handled;
static void on_signal(int number) {
  (void)number;
  atomic_fetch_add(&handled, 1);
}

/* Two signals write the file twice. */
static int signalled(ncclComm_t c, int rank, int n, void *arg) {
  float x = 1;
  int bad = 0;
  record r;
  char path[256];
  (void)arg;
  own_path(path, sizeof path, hk_bootstrap_comm_id(c->bootstrap), rank, n);
  for (int i = 1; i <= 2; i++) {
    bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
    raise(SIGUSR2);
    if (RANK_IS(own_comes(&r, c))) return bad + 1;
    const hk_json_node last = op_at(&r, -1);
    bad += RANK_IS(whole(&last, "collective") == i);
    record_close(&r);
    unlink(path);
  }
  return bad;
}
TEST(writes_on_a_signal) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  setenv("HOCKET_FLIGHT_SIGNAL", "12", 1);
  ck_assert_int_eq(ranks_as_processes(2, signalled, NULL), 0);
}

static int handles_itself(ncclComm_t c, int rank, int n, void *arg) {
  char path[256];
  (void)arg;
  own_path(path, sizeof path, hk_bootstrap_comm_id(c->bootstrap), rank, n);
  raise(SIGUSR2);
  nap(100000000);
  return RANK_IS(atomic_load(&handled) == 1) + RANK_IS(access(path, R_OK) != 0);
}
TEST(keeps_the_handler_of_the_application) {
  setenv("HOCKET_FLIGHT_DIR", scratch_folder, 1);
  setenv("HOCKET_FLIGHT_SIGNAL", "12", 1);
  signal(SIGUSR2, on_signal);
  ck_assert_int_eq(ranks_as_processes(1, handles_itself, NULL), 0);
}

int main(void) { return suite_main("flight", .setup = scratch_make, .teardown = scratch_remove, .timeout = 60); }
