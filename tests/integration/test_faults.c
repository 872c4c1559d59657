/* SPDX-License-Identifier: Apache-2.0 */
/* Dead peers, and nothing left over by a thousand communicators. */
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include "../support/process.h"
#include "../support/ranks.h"
#include "../support/suite.h"

typedef struct killing {
  int victim;
  int done[2]; /* a pipe: each survivor reports to the victim that its first operation is over */
} killing;

/* The victim dies between two operations; every survivor, which polls outside of any operation, gets an error that
 * names it within two seconds. */
static int survive(ncclComm_t c, int rank, int n, void *arg) {
  const killing *k = arg;
  float b[1000] = {0};
  int faults = RANK_CHECK(ncclAllReduce(b, b, 1000, ncclFloat32, ncclSum, c, NULL));
  if (rank == k->victim) {
    char word;
    for (int r = 1; r < n; r++) faults += read(k->done[0], &word, 1) != 1;
    fflush(NULL);
    kill(getpid(), SIGKILL);
  }
  faults += write(k->done[1], "", 1) != 1;
  double begin = seconds();
  ncclResult_t rc = ncclSuccess;
  char name[32];
  snprintf(name, sizeof name, "rank %d", k->victim);
  while (rc == ncclSuccess && seconds() - begin < 10) faults += RANK_CHECK(ncclCommGetAsyncError(c, &rc));
  double took = seconds() - begin;
  if (rc != ncclRemoteError || !strstr(ncclGetLastError(c), name) || took > 2) {
    fprintf(stderr, "rank %d: after %.1f s result %d, text: %s\n", rank, took, rc, ncclGetLastError(c));
    faults++;
  }
  faults += RANK_CHECK(ncclCommAbort(c));
  fflush(NULL);
  _exit(faults); /* the harness would destroy the communicator again */
}

static void kill_one(int n, killing k) {
  ncclUniqueId id;
  pid_t pids[16];
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(pipe(k.done), 0);
  for (int r = 0; r < n; r++) {
    pids[r] = fork();
    if (pids[r] == 0) {
      ncclComm_t c;
      if (ranks_share_id(ends, r, n, &id) || RANK_CHECK(ncclCommInitRank(&c, n, id, r))) _exit(1);
      survive(c, r, n, &k);
    }
  }
  for (int r = 0; r < n; r++) {
    int status;
    waitpid(pids[r], &status, 0);
    if (r == k.victim)
      ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status 0x%x", r, status);
  }
  for (int i = 0; i < 2; i++) close(k.done[i]), close(ends[i]);
}

TEST_LOOP(kill_while_idle, 2) { kill_one(5, (killing){.victim = 4 * _i}); }

/* A rank destroys its communicator while another waits for it in a group, with a call of another communicator. The
 * other one learns that it has left, and the other communicator goes on. */
static int wait_in_a_group(ncclComm_t c, int rank, int n, void *arg) {
  ncclComm_t child;
  float b = 1, sum = 0, none = 0;
  int faults = RANK_CHECK(ncclCommSplit(c, 0, rank, &child, NULL));
  (void)arg;
  if (rank == 0) {
    faults += RANK_CHECK(ncclCommDestroy(child)) +
              RANK_CHECK(ncclAllReduce(&b, &sum, 1, ncclFloat32, ncclSum, c, NULL));
  } else {
    faults += RANK_CHECK(ncclGroupStart());
    faults += RANK_CHECK(ncclAllReduce(&b, &none, 1, ncclFloat32, ncclSum, child, NULL));
    faults += RANK_CHECK(ncclAllReduce(&b, &sum, 1, ncclFloat32, ncclSum, c, NULL));
    faults += ncclGroupEnd() != ncclRemoteError;
    faults += !strstr(ncclGetLastError(child), "rank 0 has left the communicator");
    faults += RANK_CHECK(ncclCommAbort(child));
  }
  faults += sum != (float)n;
  return faults + RANK_CHECK(ncclAllReduce(&b, &sum, 1, ncclFloat32, ncclMax, c, NULL)) + (sum != 1);
}

TEST(leaving_a_group) { ck_assert_int_eq(ranks_as_threads(2, wait_in_a_group, NULL), 0); }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they do not survive such a fork */
/* What a forked child does with its copy of a communicator, and of ncclMemAlloc's memory, is nothing to the parent. */
static int use_after_fork(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  float b = 1, *m = NULL;
  int faults = RANK_CHECK(ncclMemAlloc((void **)&m, 4096)), status = 0;
  m[0] = 7;
  pid_t pid = fork();
  if (pid == 0) {
    faults = ncclAllReduce(&b, &b, 1, ncclFloat32, ncclSum, c, NULL) != ncclInvalidUsage;
    faults += !strstr(ncclGetLastError(NULL), "forked this one");
    faults += RANK_CHECK(ncclCommAbort(c)) + RANK_CHECK(ncclMemFree(m));
    _exit(faults);
  }
  if (waitpid(pid, &status, 0) != pid || status) faults++;
  faults += RANK_CHECK(ncclAllReduce(&b, &b, 1, ncclFloat32, ncclSum, c, NULL));
  if (faults || b != (float)n || m[0] != 7)
    fprintf(stderr, "rank %d: child's status 0x%x, sum %g, memory %g\n", rank, status, (double)b, (double)m[0]);
  return faults + (b != (float)n) + (m[0] != 7) + RANK_CHECK(ncclMemFree(m));
}

/* In a process of its own: a group with more inits than there can be threads ends, with an error. */
static int init_without_memory(void) {
  enum { N = 48 };
  ncclComm_t c[N];
  struct rlimit limit;
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (fscanf(f, "%ld", &pages) != 1 || getrlimit(RLIMIT_AS, &limit)) return 1;
  fclose(f);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64u << 20);
  if (setrlimit(RLIMIT_AS, &limit)) return 1;
  return ncclCommInitAll(c, N, NULL) == ncclSuccess;
}

TEST(no_memory_for_threads) {
  int status;
  pid_t pid = fork();
  if (pid == 0) _exit(init_without_memory());
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}

TEST(forked_children) { ck_assert_int_eq(ranks_as_processes(2, use_after_fork, NULL), 0); }
#endif

static long mapped_areas(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  long n = 0;
  for (int ch; (ch = fgetc(f)) != EOF;) n += ch == '\n';
  fclose(f);
  return n;
}

static long resident_kb(void) {
  long pages = 0, ignored;
  FILE *f = fopen("/proc/self/statm", "r");
  if (fscanf(f, "%ld %ld", &ignored, &pages) != 2) pages = 0;
  fclose(f);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void one_round(int n) {
  ncclComm_t c[4];
  float b[4][64];
  ncclResult_t rc = ncclCommInitAll(c, n, NULL);
  ck_assert_msg(rc == ncclSuccess, "%s", ncclGetLastError(NULL));
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < n; r++) {
    memset(b[r], 0, sizeof b[r]);
    ck_assert_int_eq(ncclAllReduce(b[r], b[r], 64, ncclFloat32, ncclSum, c[r], NULL), ncclSuccess);
  }
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  for (int r = 0; r < n; r++) ck_assert_int_eq(ncclCommDestroy(c[r]), ncclSuccess);
}

TEST(thousand_inits) {
  for (int i = 0; i < 100; i++) one_round(2); /* caches, arenas of malloc, the quarantine */
  int files = open_fds();                     /* with the last roots' ends perhaps still open: never too few */
  long areas = mapped_areas(), kb = resident_kb();
  for (int i = 0; i < 1000; i++) one_round(2);
  /* The threads of the last roots end by themselves; that they do is the condition, not how soon. */
  for (double end = seconds() + 20; open_fds() > files && seconds() < end;) usleep(1000);
  ck_assert_int_le(open_fds(), files);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  printf("SKIP: mapped areas %ld, resident %ld KiB before: sanitizers keep freed memory\n", areas, kb);
#else
  ck_assert_int_le(mapped_areas(), areas + 8);
  ck_assert_int_le(resident_kb(), kb + 2048);
#endif
}

int main(void) { return suite_main("faults", .timeout = 120); }
