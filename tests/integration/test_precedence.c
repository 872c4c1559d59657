/* SPDX-License-Identifier: Apache-2.0 */
/* check: waits */
/* One fault, one story: the rule, and what all ranks report of disagreements, deaths and failures of one of them. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include "../../src/core/comm.h"
#include "../../src/failure/failure.h"
#include "../../src/failure/mismatch.h"
#include "../../src/failure/precedence.h"
#include "../../src/transport/shm/shm.h"
#include "../support/process.h"
#include "../support/ranks.h"
#include "../support/status_page.h"
#include "../support/suite.h"

/* ---- the rule ---- */

static hk_event event(hk_event_kind kind, int rank, int from) {
  return (hk_event){.kind = kind, .rank = rank, .from = from, .code = HK_ERR_REMOTE};
}
static hk_event ended(int rank, int from) { return (hk_event){.kind = HK_EVENT_DEAD, .rank = rank, .from = from}; }

TEST(rule) {
  /* From the strongest to the weakest. */
  const hk_event e[] = {event(HK_EVENT_ERROR, 1, 1),
                        event(HK_EVENT_ABORT, 2, 2),
                        event(HK_EVENT_DEAD, 0, 3),
                        event(HK_EVENT_DEAD, 0, 4),
                        event(HK_EVENT_DEAD, 5, 1),
                        event(HK_EVENT_LINK, 0, 3),
                        event(HK_EVENT_LINK, 0, 4),
                        event(HK_EVENT_LINK, 1, 2),
                        event(HK_EVENT_VERDICT, 3, 1),
                        event(HK_EVENT_VERDICT, 1, 2),
                        event(HK_EVENT_SUSPECT, 2, 4),
                        event(HK_EVENT_SUSPECT, 3, 0),
                        ended(0, 1),
                        ended(4, 0),
                        event(HK_EVENT_REVOKE, 0, 0)};
  enum { N = HK_ARRAY_LENGTH(e) };
  for (int i = 0; i < N; i++)
    for (int k = 0; k < N; k++) ck_assert_int_eq(hk_failure_precedes(&e[i], &e[k]), i < k);
  /* Whatever is heard, in whatever order, the strongest wins. */
  for (unsigned seen = 1; seen < 1u << N; seen++) {
    hk_event set[N];
    int n = 0, first = -1;
    for (int i = 0; i < N; i++) {
      if (!(seen >> i & 1)) continue;
      if (first < 0) first = i;
      set[n++] = e[i];
    }
    for (unsigned turn = 0; turn < (unsigned)n; turn++) {
      hk_event tmp = set[0];
      memmove(set, set + 1, (size_t)(n - 1) * sizeof *set);
      set[n - 1] = tmp;
      const hk_event *best = &set[0];
      for (int i = 1; i < n; i++)
        if (hk_failure_precedes(&set[i], best)) best = &set[i];
      ck_assert(best->kind == e[first].kind && best->rank == e[first].rank && best->from == e[first].from);
    }
  }
}

TEST(codes) {
  hk_event own = {.kind = HK_EVENT_ERROR, .rank = 3, .from = 3, .code = HK_ERR_SYSTEM, .text = "no memory"};
  hk_event verdict = {.kind = HK_EVENT_VERDICT, .rank = 1, .code = HK_ERR_USAGE, .text = "they disagree"};
  hk_event dead = {.kind = HK_EVENT_DEAD, .rank = 2, .text = "reset"};
  char text[HK_EVENT_TEXT];
  ck_assert_int_eq(hk_failure_code(&own, 3), HK_ERR_SYSTEM);
  ck_assert_int_eq(hk_failure_code(&own, 0), HK_ERR_REMOTE);
  hk_failure_text(&own, 3, text, sizeof text);
  ck_assert_str_eq(text, "no memory");
  hk_failure_text(&own, 0, text, sizeof text);
  ck_assert_str_eq(text, "rank 3 failed: no memory");
  for (int r = 0; r < 3; r++) {
    ck_assert_int_eq(hk_failure_code(&verdict, r), HK_ERR_USAGE);
    ck_assert_int_eq(hk_failure_code(&dead, r), HK_ERR_REMOTE);
  }
  hk_failure_text(&dead, 0, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "rank 2 is gone"));
}

static hk_call_report voice(int rank, uint32_t signature) {
  hk_call_report v = {.rank = rank, .signature = signature};
  snprintf(v.call, sizeof v.call, "Call%u()", signature);
  return v;
}

TEST(odd_one_out) {
  int right;
  char text[HK_EVENT_TEXT];
  hk_call_report most[] = {voice(0, 7), voice(1, 7), voice(2, 5), voice(3, 7)};
  ck_assert_int_eq(hk_mismatch_outlier(most, 4, &right), 2);
  ck_assert_int_eq(most[right].signature, 7);
  hk_mismatch_text(most, 4, 2, right, 12, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "operation 12: rank 2 called Call5(), but ranks 0, 1 and 3 called Call7(): make"));
  hk_call_report first[] = {voice(0, 5), voice(1, 7), voice(2, 7)};
  ck_assert_int_eq(hk_mismatch_outlier(first, 3, &right), 0);
  ck_assert_int_eq(first[right].signature, 7);
  hk_call_report two[] = {voice(0, 5), voice(1, 7)};
  ck_assert_int_eq(hk_mismatch_outlier(two, 2, &right), 1);
  ck_assert_int_eq(right, 0);
  hk_call_report even[] = {voice(3, 7), voice(2, 7), voice(1, 5), voice(0, 5)}; /* in any order */
  ck_assert_int_eq(even[hk_mismatch_outlier(even, 4, &right)].rank, 2);
  ck_assert_int_eq(even[right].rank, 0);
  hk_call_report three[] = {voice(0, 1), voice(1, 2), voice(2, 3)};
  ck_assert_int_eq(hk_mismatch_outlier(three, 3, &right), 1);
  hk_mismatch_text(three, 3, 1, right, 1, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "others called something else again"));
  hk_call_report alike[] = {voice(0, 1), voice(1, 1)};
  ck_assert_int_eq(hk_mismatch_outlier(alike, 2, &right), -1);
}

TEST(claims) {
  static hk_call_checks c;
  ck_assert(hk_claim(&c, 1, 7) && hk_claim(&c, 1, 7));
  ck_assert(!hk_claim(&c, 1, 8));
  ck_assert(hk_claim(&c, 1 + HK_CALL_CHECKS, 9) && hk_claim(&c, 1, 8)); /* too late to report */
  ck_assert(!hk_claim(&c, 1 + HK_CALL_CHECKS, 8));
  uint64_t late = ((uint64_t)1 << 32) + 3; /* numbers wrap in the words */
  ck_assert(hk_claim(&c, late - HK_CALL_CHECKS, 1) && hk_claim(&c, late, 2) && !hk_claim(&c, late, 3));
}

TEST(board_history) {
  static hk_status_page b;
  hk_status_page_op op;
  for (uint64_t k = 1; k <= 40; k++) status_page_publish(&b, &(hk_status_page_op){.sequence = k, .count = 2 * k});
  ck_assert(hk_status_page_read(&b, &op) && op.sequence == 40);
  for (uint64_t k = 40; k > 41 - HK_STATUS_PAGE_ENTRIES; k--)
    ck_assert(hk_status_page_read_at(&b, k, &op) && op.count == 2 * k);
  ck_assert(!hk_status_page_read_at(&b, 41 - HK_STATUS_PAGE_ENTRIES, &op) && !hk_status_page_read_at(&b, 41, &op));
}

/* ---- what all ranks report ---- */

enum { RANKS = 4 };
typedef struct outcome {
  int code;
  double took;
  char text[2048];
} outcome;

typedef struct scene {
  int n;
  ncclResult_t (*body)(ncclComm_t c, int rank, int n);
  bool tcp;
  bool alone; /* a rank does something to its process */
} scene;

static outcome *out;        /* [RANKS], in memory of all processes, as is: */
static _Atomic(int) *ready; /* ranks that have a communicator */

/* A rank that an error has not reached in its call learns of it later. */
static ncclResult_t later(ncclComm_t c, ncclResult_t rc) {
  double end = seconds() + 20;
  while (rc == ncclSuccess && seconds() < end) {
    if (ncclCommGetAsyncError(c, &rc) != ncclSuccess) return ncclInternalError;
    usleep(1000);
  }
  return rc;
}

static int play_rank(const scene *s, const ncclUniqueId *id, int rank) {
  ncclComm_t c;
  if (RANK_CHECK(ncclCommInitRank(&c, s->n, *id, rank))) return 1;
  for (atomic_fetch_add(ready, 1); atomic_load(ready) < s->n;) usleep(1000); /* what follows is no failure of an init */
  double begin = seconds();
  out[rank].code = (int)later(c, s->body(c, rank, s->n));
  out[rank].took = seconds() - begin;
  snprintf(out[rank].text, sizeof out[rank].text, "%s", ncclGetLastError(c));
  return RANK_CHECK(ncclCommAbort(c));
}

#ifdef __SANITIZE_THREAD__ /* no threads after a fork */
typedef struct actor {
  pthread_t thread;
  const scene *s;
  const ncclUniqueId *id;
  int rank, faults;
} actor;

static void *act(void *arg) {
  actor *a = arg;
  a->faults = play_rank(a->s, a->id, a->rank);
  return NULL;
}

static bool as_threads(const scene *s) {
  ncclUniqueId id;
  actor a[RANKS];
  if (s->alone) return false;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  for (int r = 0; r < s->n; r++) {
    a[r] = (actor){.s = s, .id = &id, .rank = r};
    ck_assert_int_eq(pthread_create(&a[r].thread, NULL, act, &a[r]), 0);
  }
  for (int r = 0; r < s->n; r++) {
    pthread_join(a[r].thread, NULL);
    ck_assert_int_eq(a[r].faults, 0);
  }
  return true;
}
#else
/* A rank whose process was killed has the code -1. */
static bool as_processes(const scene *s) {
  int ends[2];
  pid_t pids[RANKS];
  ck_assert_int_eq(pipe(ends), 0);
  for (int r = 0; r < s->n; r++) {
    ncclUniqueId id;
    if ((pids[r] = fork()) == 0) _exit(ranks_share_id(ends, r, s->n, &id) || play_rank(s, &id, r));
  }
  for (int r = 0; r < s->n; r++) {
    int status;
    waitpid(pids[r], &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      out[r].code = -1;
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status 0x%x", r, status);
  }
  for (int i = 0; i < 2; i++) close(ends[i]);
  return true;
}
#endif

/* Plays the scene; false where it cannot be played under this sanitizer. */
static bool play(scene s) {
  if (s.tcp) setenv("NCCL_SHM_DISABLE", "1", 1);
  if (s.tcp) setenv("NCCL_P2P_DISABLE", "1", 1);
  out = mmap(NULL, RANKS * sizeof *out + sizeof *ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(out != MAP_FAILED);
  ready = (_Atomic(int) *)(out + RANKS);
#ifdef __SANITIZE_THREAD__
  bool played = as_threads(&s);
#else
  bool played = as_processes(&s);
#endif
  for (int r = 0; r < s.n && played; r++)
    fprintf(stderr, "rank %d: %d after %.1f s: %s\n", r, out[r].code, out[r].took, out[r].text);
  return played;
}

/* All ranks but `except` (-1: none) have this code and this text in what they report, which is the same text. */
static void expect(int n, int except, int code, const char *text) {
  int first = except == 0;
  for (int r = 0; r < n; r++) {
    if (r == except) continue;
    ck_assert_msg(out[r].code == code && strstr(out[r].text, text), "rank %d: %d, %s; not: %d, %s", r, out[r].code,
                  out[r].text, code, text);
    ck_assert_str_eq(out[r].text, out[first].text);
  }
}

static _Thread_local char small[4096];
static char *large(void) { return calloc(1, 12 << 20); }

/* ---- disagreements ---- */

static ncclResult_t other_count(ncclComm_t c, int rank, int n) {
  (void)n;
  ncclResult_t rc = ncclAllReduce(small, small, 8, ncclInt8, ncclSum, c, NULL);
  return rc != ncclSuccess ? rc : ncclAllReduce(small, small, rank == 2 ? 16 : 17, ncclInt8, ncclSum, c, NULL);
}
static ncclResult_t other_kind(ncclComm_t c, int rank, int n) {
  (void)n;
  if (rank == 1) return ncclAllGather(small, small + 64, 16, ncclInt32, c, NULL);
  return ncclAllReduce(small, small, 16, ncclInt32, ncclMax, c, NULL);
}
static ncclResult_t other_kind_large(ncclComm_t c, int rank, int n) {
  (void)n;
  char *b = large();
  if (rank == 1) return ncclAllReduce(b, b, 1 << 20, ncclFloat32, ncclMax, c, NULL);
  return ncclAllReduce(b, b, 1 << 20, ncclFloat32, ncclSum, c, NULL);
}

/* Roots: no rank receives what another one sends. */
static ncclResult_t small_roots(ncclComm_t c, int rank, int n) {
  (void)n;
  ncclResult_t rc = ncclBroadcast(small, small, 16, ncclInt8, rank, c, NULL);
  return rc != ncclSuccess ? rc : ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
}
static ncclResult_t small_roots_alone(ncclComm_t c, int rank, int n) {
  (void)n;
  return ncclBroadcast(small, small, 16, ncclInt8, rank, c, NULL);
}
static ncclResult_t large_roots(ncclComm_t c, int rank, int n) {
  (void)n;
  return ncclBroadcast(large(), large(), 12 << 20, ncclInt8, rank, c, NULL);
}
static ncclResult_t reduce_roots(ncclComm_t c, int rank, int n) {
  (void)n;
  ncclResult_t rc = ncclReduce(small, small, 16, ncclInt8, ncclSum, 1 - rank, c, NULL);
  return rc != ncclSuccess ? rc : ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
}
static ncclResult_t one_other_root(ncclComm_t c, int rank, int n) {
  ncclResult_t rc = ncclSuccess;
  for (int i = 0; i < 5 && rc == ncclSuccess; i++)
    rc = ncclBroadcast(small, small, 16, ncclInt8, rank == n - 1 && i == 2 ? n - 1 : 0, c, NULL);
  return rc;
}
static ncclResult_t other_size(ncclComm_t c, int rank, int n) {
  (void)n;
  return rank == 0 ? ncclSend(small, 64, ncclInt8, 1, c, NULL) : ncclRecv(small, 32, ncclInt8, 0, c, NULL);
}

enum { SHARED = 1, TCP = 2, BOTH = SHARED | TCP };
static const struct {
  int n, over;
  ncclResult_t (*body)(ncclComm_t c, int rank, int n);
  const char *text;
} disagreements[] = {
    {4, BOTH, other_count,
     "operation 2: rank 2 called AllReduce(16 x int8, sum), but ranks 0, 1 and 3 called AllReduce(17 x int8, sum)"},
    {3, BOTH, other_kind,
     "operation 1: rank 1 called AllGather(16 x int32), but ranks 0 and 2 called AllReduce(16 x int32, max)"},
    {3, BOTH, other_kind_large, "rank 1 called AllReduce(1048576 x float, max), but ranks 0 and 2 called"},
    {2, SHARED, small_roots_alone,
     "operation 1: rank 1 called Broadcast(16 x int8, root 1), but rank 0 called Broadcast(16 x int8, root 0)"},
    {2, TCP, small_roots, "operation 1"},
    {2, BOTH, large_roots, "operation 1: rank 1 called Broadcast(12582912 x int8, root 1), but rank 0 called"},
    {2, BOTH, reduce_roots, "operation 1"},
    {3, BOTH, one_other_root, "operation 3"},
    {2, BOTH, other_size,
     "rank 0 sends a message of another size (a piece of 64 bytes came) than the 32 bytes that rank 1 receives in "
     "Recv from(32 x"},
};
TEST_LOOP(all_name_the_disagreement, 2 * HK_ARRAY_LENGTH(disagreements)) {
  const int row = _i / 2, tcp = _i % 2;
  if (!(disagreements[row].over & (tcp ? TCP : SHARED))) return;
  play((scene){disagreements[row].n, disagreements[row].body, tcp, false});
  expect(disagreements[row].n, -1, ncclInvalidUsage, disagreements[row].text);
}

/* ---- a rank dies, leaves, fails ---- */

static ncclResult_t dies(ncclComm_t c, int rank, int n) {
  char *b = large();
  ncclResult_t rc = ncclAllReduce(b, b, 1 << 20, ncclInt8, ncclSum, c, NULL);
  if (rc == ncclSuccess && rank == n - 2) kill(getpid(), SIGKILL);
  while (rc == ncclSuccess) rc = ncclAllReduce(b, b, 1 << 20, ncclInt8, ncclSum, c, NULL);
  return rc;
}
TEST_LOOP(death, 2) {
  if (!play((scene){4, dies, _i, true})) return;
  expect(4, 2, ncclRemoteError, "rank 2 is gone");
  for (int r = 0; r < 4; r++) ck_assert_msg(out[r].took < 10, "rank %d: after %.1f s", r, out[r].took);
}

/* Rank 2 suspects rank 0 and its process ends, while the others still wait for a stronger event. Its end is none. */
static ncclResult_t ends_after_report(ncclComm_t c, int rank, int n) {
  double end = seconds() + 20;
  if (rank == 2) hk_failure_raise(c, HK_EVENT_SUSPECT, 0, HK_ERR_REMOTE, "rank 0 does not answer rank 2");
  while (rank != 2 && !hk_comm_failing(c) && seconds() < end) usleep(1000);
  for (atomic_fetch_add(ready, 1); rank == 2 && atomic_load(ready) < 2 * n && seconds() < end;) usleep(1000);
  if (rank == 2) _exit(0);
  return ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
}
TEST_LOOP(end_after_report, 2) {
  if (!play((scene){4, ends_after_report, _i, true})) return;
  expect(4, 2, ncclRemoteError, "rank 0 does not answer rank 2");
}

static ncclResult_t leaves(ncclComm_t c, int rank, int n) {
  (void)n;
  if (rank == 1) {
    if (ncclCommDestroy(c) != ncclSuccess) _exit(1);
    _exit(0);
  }
  return ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
}
TEST_LOOP(leaving, 2) {
  setenv("HOCKET_PEER_TIMEOUT", "2", 1);
  if (!play((scene){3, leaves, _i, true})) return;
  expect(3, 1, ncclRemoteError, "rank 1 has left the communicator");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their own address space is beyond the limit */
/* No memory for a group's calls. */
static ncclResult_t no_memory(ncclComm_t c, int rank, int n) {
  (void)n;
  struct rlimit limit;
  long pages = 0;
  if (rank != 1) return ncclRecv(small, 16, ncclInt8, 1, c, NULL);
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld", &pages) != 1 || getrlimit(RLIMIT_AS, &limit)) return ncclInternalError;
  fclose(f);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (8u << 20);
  if (setrlimit(RLIMIT_AS, &limit)) return ncclInternalError;
  ncclResult_t rc = ncclGroupStart();
  for (int i = 0; i < 200000 && rc == ncclSuccess; i++) rc = ncclSend(small, 16, ncclInt8, 0, c, NULL);
  ncclResult_t end = ncclGroupEnd();
  return rc != ncclSuccess ? rc : end;
}
TEST_LOOP(memory, 2) {
  if (!play((scene){3, no_memory, _i, true})) return;
  expect(3, 1, ncclRemoteError, "rank 1 failed: no memory");
  ck_assert_int_eq(out[1].code, ncclSystemError);
}
#endif

/* A wrong argument is no failure: the communicator goes on. */
static ncclResult_t wrong_argument(ncclComm_t c, int rank, int n) {
  if (rank == 1 && (ncclBroadcast(small, small, 16, ncclInt8, n, c, NULL) != ncclInvalidArgument ||
                    ncclAllReduce(NULL, small, 16, ncclInt8, ncclSum, c, NULL) != ncclInvalidArgument))
    return ncclInternalError;
  ncclResult_t rc = ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
  for (atomic_fetch_add(ready, 1); rc == ncclSuccess && atomic_load(ready) < 2 * n;)
    usleep(1000);                                 /* before it is aborted */
  return rc == ncclSuccess ? ncclInProgress : rc; /* the scene ends */
}
TEST_LOOP(arguments, 2) {
  play((scene){2, wrong_argument, _i, false});
  for (int r = 0; r < 2; r++) ck_assert_int_eq(out[r].code, ncclInProgress);
}

/* ---- the watchdog ---- */

/* Ranks 1 to n - 1 wait, in a chain, for rank 0, which makes no call. */
static ncclResult_t chain(ncclComm_t c, int rank, int n) {
  (void)n;
  return rank == 0 ? ncclSuccess : ncclRecv(small, 16, ncclInt8, rank - 1, c, NULL);
}
TEST_LOOP(idle, 2) {
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  play((scene){4, chain, _i, false});
  for (int r = 0; r < 4; r++) {
    ck_assert_int_eq(out[r].code, ncclRemoteError);
    ck_assert_msg(
        strstr(out[r].text, "for rank 0") && strstr(out[r].text, "rank 0 runs outside of this communicator's calls"),
        "rank %d: %s", r, out[r].text);
    ck_assert_str_eq(out[r].text, out[0].text);
  }
}

static ncclResult_t stops(ncclComm_t c, int rank, int n) {
  (void)n;
  ncclResult_t rc = ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
  if (rank == 2) {
    pid_t self = getpid();
    if (fork() == 0) { /* what wakes it up again */
      sleep(4);
      kill(self, SIGCONT);
      _exit(0);
    }
    kill(self, SIGSTOP);
    return rc;
  }
  return rc != ncclSuccess ? rc : ncclAllReduce(small, small, 16, ncclInt8, ncclSum, c, NULL);
}
TEST_RANGE(stopped, 1, 2) {
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  if (!play((scene){3, stops, _i, true})) return;
  expect(3, -1, ncclRemoteError, "for rank 2; rank 2 does not answer");
}

/* ---- messages that no call received ---- */

static int count_lines(const char *path, const char *text) {
  char line[4096];
  int n = 0;
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f)) n += strstr(line, text) != NULL;
  if (f) fclose(f);
  return n;
}

/* Both roots were used before, and compared: the last call's messages meet on a connection that both ranks only send
 * on. */
static int two_roots(ncclComm_t c, int rank, int n, void *arg) {
  int faults = 0;
  (void)n;
  for (int root = 0; root < 2; root++) faults += RANK_CHECK(ncclBroadcast(small, small, 24, ncclInt8, root, c, NULL));
  return faults + RANK_CHECK(ncclBroadcast(small, small, 24, ncclInt8, *(const int *)arg ? rank : 0, c, NULL));
}

TEST_LOOP(unread_roots, 2) {
  char path[] = "/tmp/hocket-unread-XXXXXX";
  int fd = mkstemp(path), differ = _i;
  ck_assert_int_ge(fd, 0);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", path, 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(ranks_as_processes(2, two_roots, &differ), 0);
#ifndef __SANITIZE_THREAD__ /* which allows no ranks as processes */
  ck_assert_int_ge(count_lines(path, "sent in a collective operation and that none here took"), differ);
#endif
  if (!differ) ck_assert_int_eq(count_lines(path, "destroys it with"), 0);
  close(fd);
  unlink(path);
}

int main(void) { return suite_main("story", .timeout = 120); }
