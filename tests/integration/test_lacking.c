/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* A rank whose process lacks something: each call of the system that rank 0 makes on its way through a communicator's
 * life fails once, in a run of its own. Then either all goes on, because there is another way, or rank 0 has an error
 * with the system's reason, and rank 1 ends, too. Nothing is left behind. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "../support/leftovers.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 2, COUNT = 50000, MOST = 100 };
typedef enum lack { NOTHING, MEMFD, MMAP, SOCKET, EPOLL, EPOLL_ADD, EVENTFD, TRUNCATE, LACKS } lack;
static const char *const names[LACKS] = {"nothing",       "memfd_create", "mmap",    "socket",
                                         "epoll_create1", "epoll_ctl",    "eventfd", "ftruncate"};

static struct {
  lack what;
  int at; /* the call that fails */
  int error;
} scene;
static _Thread_local bool counts; /* rank 0's thread */
static int calls;

static bool fails(lack what, int error) {
  if (!counts || what != scene.what || calls++ != scene.at) return false;
  scene.error = errno = error;
  return true;
}
int memfd_create(const char *name, unsigned flags) {
  return fails(MEMFD, EMFILE) ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}
void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
  return fails(MMAP, ENOMEM) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}
int socket(int family, int type, int protocol) {
  return fails(SOCKET, EMFILE) ? -1 : (int)syscall(SYS_socket, family, type, protocol);
}
int epoll_create1(int flags) { return fails(EPOLL, EMFILE) ? -1 : (int)syscall(SYS_epoll_create1, flags); }
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event) {
  return op == EPOLL_CTL_ADD && fails(EPOLL_ADD, ENOSPC) ? -1 : (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}
/* Service threads are late once a call has failed: what a rank knows must not wait for them. */
int epoll_wait(int epoll, struct epoll_event *events, int most, int patience_ms) {
  if (scene.error) usleep(50000);
  return (int)syscall(SYS_epoll_pwait, epoll, events, most, patience_ms, NULL, 0);
}
/* Rank 0 is late where its bootstrap begins: the other rank's connections come early. */
pid_t getpid(void) {
  if (counts) usleep(20000);
  return (pid_t)syscall(SYS_getpid);
}
int eventfd(unsigned value, int flags) {
  return fails(EVENTFD, EMFILE) ? -1 : (int)syscall(SYS_eventfd2, value, flags);
}
int ftruncate(int fd, off_t bytes) { return fails(TRUNCATE, EFBIG) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes); }

/* ---- a communicator's life ---- */

typedef struct result {
  ncclResult_t code;
  char text[400];
  bool wrong;
} result;

static ncclResult_t use(ncclComm_t c, int me, bool *wrong) {
  static float data[RANKS][COUNT];
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  ncclWindow_t win = NULL;
  void *memory = NULL;
  ncclComm_t child = NULL;
  ncclConfig_t config = fresh;
  ncclResult_t rc = ncclSuccess;
  for (int i = 0; i < COUNT; i++) data[me][i] = 1;
  rc = ncclAllReduce(data[me], data[me], COUNT, ncclFloat32, ncclSum, c, NULL);
  *wrong = rc == ncclSuccess && (data[me][0] != RANKS || data[me][COUNT - 1] != RANKS);
  if (rc == ncclSuccess)
    rc = me ? ncclSend(data[me], COUNT, ncclFloat32, 0, c, NULL) : ncclRecv(data[me], COUNT, ncclFloat32, 1, c, NULL);
  if (rc == ncclSuccess) rc = ncclMemAlloc(&memory, 8192);
  if (rc == ncclSuccess) rc = ncclCommWindowRegister(c, memory, 8192, &win, 0);
  if (rc == ncclSuccess) rc = ncclCommSplit(c, 0, 0, &child, &config);
  if (rc == ncclSuccess) rc = ncclAllReduce(data[me], data[me], 2, ncclFloat32, ncclMax, child, NULL);
  if (child) (void)(rc == ncclSuccess ? ncclCommDestroy : ncclCommAbort)(child);
  if (win) (void)ncclCommWindowDeregister(c, win);
  if (memory && rc == ncclSuccess)
    rc = ncclMemFree(memory);
  else if (memory)
    (void)ncclMemFree(memory);
  return rc;
}

static result live(const ncclUniqueId *id, int rank) {
  result r = {.code = ncclSuccess};
  ncclComm_t c = NULL;
  counts = rank == 0;
  r.code = ncclCommInitRank(&c, RANKS, *id, rank);
  if (r.code == ncclSuccess) r.code = use(c, rank, &r.wrong);
  snprintf(r.text, sizeof r.text, "%s", ncclGetLastError(NULL));
  if (c) (void)(r.code == ncclSuccess ? ncclCommDestroy : ncclCommAbort)(c);
  counts = false;
  return r;
}

/* Rank 1, as a thread or in a process of its own: it gets ids, and sends results. */
static int to_other[2], from_other[2];
static void *other(void *arg) {
  ncclUniqueId id;
  (void)arg;
  while (read(to_other[0], &id, sizeof id) == sizeof id) {
    const result r = live(&id, 1);
    if (write(from_other[1], &r, sizeof r) != sizeof r) abort();
  }
  return NULL;
}

/* A run in which the call fails; false if there is no such call. */
static bool run(lack what, int at) {
  ncclUniqueId id;
  result r[RANKS];
  scene.what = NOTHING;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(write(to_other[1], &id, sizeof id), sizeof id);
  scene.what = what;
  scene.at = at;
  scene.error = calls = 0;
  r[0] = live(&id, 0);
  ck_assert_int_eq(read(from_other[0], &r[1], sizeof r[1]), sizeof r[1]);
  const bool good =
      !r[0].wrong && !r[1].wrong && (r[1].code == ncclSuccess || r[1].code == ncclRemoteError) &&
      (r[0].code == ncclSuccess || (scene.error && (r[0].code == ncclSystemError || r[0].code == ncclRemoteError) &&
                                    strstr(r[0].text, strerrorname_np(scene.error))));
  if (!good)
    fprintf(stderr, "%s, call %d: rank 0 gives %d (%s), rank 1 %d (%s)\n", names[what], at, (int)r[0].code, r[0].text,
            (int)r[1].code, r[1].text);
  if (!good) exit(EXIT_FAILURE);
  return scene.error != 0;
}

static const struct {
  bool process;
  const char *variable;
} worlds[] = {{false, "NCCL_P2P_DISABLE"}, {true, "HOCKET_CMA"}, {true, "NCCL_SHM_DISABLE"}};

/* In a process of its own: all runs in which a call of this kind fails. */
static int fail_each(lack what, bool process) {
  pthread_t thread;
  pid_t pid = 0;
  int at = 0;
  leftovers_watch_child();
  ck_assert(pipe(to_other) == 0 && pipe(from_other) == 0);
  if (process && !(pid = fork())) {
    close(to_other[1]);
    other(NULL);
    _exit(0);
  }
  if (!pid) ck_assert_int_eq(pthread_create(&thread, NULL, other, NULL), 0);
  while (run(what, at) && at < MOST) at++;
  close(to_other[1]);
  if (pid)
    waitpid(pid, NULL, 0);
  else
    pthread_join(thread, NULL);
  close(to_other[0]);
  close(from_other[0]);
  close(from_other[1]);
  return at < MOST ? at : -1;
}

TEST_LOOP(goes_on_or_says_why, sizeof worlds / sizeof *worlds) {
  pid_t pids[LACKS];
  setenv("HOCKET_DEVICE", "host", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv(worlds[_i].variable, "1", 1);
  hk_param_reload();
  for (lack what = NOTHING + 1; what < LACKS; what++)
    if (!(pids[what] = fork())) exit(fail_each(what, worlds[_i].process) < 0);
  for (lack what = NOTHING + 1; what < LACKS; what++) {
    int status;
    ck_assert_int_eq(waitpid(pids[what], &status, 0), pids[what]);
    ck_assert_msg(status == 0, "%s: status %#x", names[what], status);
  }
}

/* ---- descriptors that are open while a communicator lives ---- */

static int open_files(const char *name) {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++) {
    char path[40], to[100] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n += readlink(path, to, sizeof to - 1) > 0 && strstr(to, name);
  }
  return n;
}

/* The thread that answers other ranks closes its copies a little later. */
static bool are_closed(int memory, int sockets) {
  const hk_wait_env env = {.deadline_ns = hk_now_ns() + UINT64_C(10000000000)};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (open_files("memfd:hocket") > memory || open_files("socket:") > sockets)
    if (hk_wait_pause(&w) != HK_OK) return false;
  return true;
}

/* Each rank asks the other's process for the memory that it sends from. */
static int keep_few(ncclComm_t c, int rank, int n, void *arg) {
  enum { BYTES = 1 << 20 };
  int faults = RANK_IS(open_files("memfd:hocket-arena") == 0), before = 0, sockets = 0;
  ncclWaitSignalDesc_t signal = {.opCnt = 1, .peer = 1 - rank};
  ncclWindow_t win;
  char x = 1;
  (void)n, (void)arg;
  for (int round = 0; round < 4; round++) {
    char *memory = NULL;
    faults += RANK_CHECK(ncclMemAlloc((void **)&memory, BYTES));
    memset(memory, rank == round % 2 ? round : 99, BYTES);
    faults += RANK_CHECK(rank == round % 2 ? ncclSend(memory, BYTES, ncclInt8, 1 - rank, c, NULL)
                                           : ncclRecv(memory, BYTES, ncclInt8, 1 - rank, c, NULL));
    faults += RANK_IS(memory[0] == round && memory[BYTES - 1] == round);
    faults += RANK_CHECK(ncclCommWindowRegister(c, memory, BYTES, &win, NCCL_WIN_COLL_SYMMETRIC));
    faults += RANK_CHECK(ncclPutSignal(&x, 1, ncclInt8, 1 - rank, win, 0, 0, 0, 0, c, NULL));
    faults += RANK_CHECK(ncclWaitSignal(1, &signal, c, NULL));
    faults += RANK_CHECK(ncclCommWindowDeregister(c, win));
    faults += RANK_CHECK(ncclMemFree(memory));
    faults += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclInt8, ncclMax, c, NULL));
    if (!round) before = open_files("memfd:hocket"), sockets = open_files("socket:"); /* the table of signals, too */
    faults += RANK_IS(are_closed(before, sockets));
  }
  return faults;
}
TEST(few_descriptors) {
  setenv("HOCKET_CMA", "0", 1);
  ck_assert_int_eq(ranks_as_processes(2, keep_few, NULL), 0);
}

/* What the init measures on a core of the host changes nothing of where the thread may run. */
static cpu_set_t before;
static int keeps_its_cores(ncclComm_t c, int rank, int n, void *arg) {
  cpu_set_t now;
  (void)c, (void)rank, (void)n, (void)arg;
  return RANK_IS(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &before));
}
TEST(same_cores) {
  ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
  ck_assert_int_eq(ranks_as_processes(2, keeps_its_cores, NULL), 0);
}

int main(void) { return suite_main("lacking", .timeout = 60); }
