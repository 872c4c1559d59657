/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank lacks (descriptors) or got wrong (a buffer) ends the operation on both ranks, with that rank's name and
 * that cause: over TCP no rank blames the network, and if one reads the other's memory, it says whose buffer is bad.
 * check: notsan noasan */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "../../src/base/status.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { BYTES = 16 << 20, GOOD = (1 << 20) + (1 << 16) }; /* the buffer ends within a message, and sockets take less */
static const char *const rank_call[] = {"Send to", "Recv from"};

typedef struct scene {
  const char *what, *cause;
  int guilty;
  bool descriptors, connected, reads;
  ncclResult_t expected;
  int ends[2];
  pid_t pids[2];
  struct {
    ncclUniqueId id;
    _Atomic(int) ready;
    int result[2];
    char text[2][1024];
  } * shared;
} scene;

static void *map(size_t bytes, bool shared) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(p, MAP_FAILED);
  return p;
}

static int leave_no_descriptors(void) {
  struct rlimit r;
  int highest = 0;
  DIR *d = opendir("/proc/self/fd");
  for (struct dirent *e; (e = readdir(d));)
    if (atoi(e->d_name) > highest) highest = atoi(e->d_name);
  closedir(d);
  for (int fd = dup(0); fd >= 0 && fd < highest; fd = dup(0)) {}
  getrlimit(RLIMIT_NOFILE, &r);
  r.rlim_cur = r.rlim_max = (rlim_t)highest + 1;
  return setrlimit(RLIMIT_NOFILE, &r);
}

/* Rank 0 sends. In a scene that reads, rank 1 also sends what is not received, so that its group has another call
 * first. */
static ncclResult_t transfer(const scene *s, int rank, char *b, ncclComm_t c) {
  static char other[GOOD];
  if (rank == 0) return ncclSend(b, BYTES, ncclInt8, 1, c, NULL);
  if (!s->reads) return ncclRecv(b, BYTES, ncclInt8, 0, c, NULL);
  (void)ncclGroupStart();
  (void)ncclSend(other, sizeof other, ncclInt8, 0, c, NULL);
  (void)ncclRecv(b, BYTES, ncclInt8, 0, c, NULL);
  return ncclGroupEnd();
}

/* Rank 0 sends to rank 1; the guilty one has no descriptors left, or its buffer ends early. */
static int run_rank(scene *s, int rank) {
  ncclComm_t c;
  if (ranks_share_id(s->ends, rank, 2, &s->shared->id) || RANK_CHECK(ncclCommInitRank(&c, 2, s->shared->id, rank)))
    return 1;
  char *b = map(BYTES, false), one = 1;
  int faults = s->connected ? RANK_CHECK(ncclAllReduce(&one, &one, 1, ncclInt8, ncclSum, c, NULL)) : 0;
  if (rank == s->guilty) faults += s->descriptors ? leave_no_descriptors() != 0 : munmap(b + GOOD, BYTES - GOOD) != 0;
  atomic_fetch_add(&s->shared->ready, 1);
  while (atomic_load(&s->shared->ready) < 2) usleep(100);
  s->shared->result[rank] = (int)transfer(s, rank, b, c);
  snprintf(s->shared->text[rank], sizeof s->shared->text[rank], "%s", ncclGetLastError(c));
  faults += RANK_CHECK(ncclCommAbort(c));
  return faults;
}

static void begin(scene *s) {
  s->shared = map(sizeof *s->shared, true);
  ck_assert_int_eq(pipe(s->ends), 0);
  for (int r = 0; r < 2; r++) {
    s->pids[r] = fork();
    ck_assert_int_ge(s->pids[r], 0);
    if (s->pids[r]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int faults = run_rank(s, r);
    fflush(NULL);
    _exit(faults);
  }
}

static int check(scene *s) {
  int faults = 0;
  char guilty[16];
  snprintf(guilty, sizeof guilty, "rank %d", s->guilty);
  for (int r = 0; r < 2; r++) {
    int status;
    waitpid(s->pids[r], &status, 0);
    const char *text = s->shared->text[r];
    bool good = status == 0 && (r == s->guilty ? s->shared->result[r] == (int)s->expected : s->shared->result[r] > 0) &&
                strstr(text, guilty) && strstr(text, s->cause) &&
                (s->expected == ncclRemoteError || strstr(text, rank_call[s->guilty])) && /* of its own report */
                !strstr(text, "check the network") && !strstr(text, "cable");
    if (good) continue;
    fprintf(stderr, "%s: rank %d: status %#x, result %d: %s\n", s->what, r, status, s->shared->result[r], text);
    faults++;
  }
  close(s->ends[0]);
  close(s->ends[1]);
  return faults;
}

static int play(scene *scenes, size_t n) {
  int faults = 0;
  for (size_t i = 0; i < n; i++) begin(&scenes[i]);
  for (size_t i = 0; i < n; i++) faults += check(&scenes[i]);
  return faults;
}

TEST(own_faults_are_reported_as_such) {
  scene scenes[] = {
      {.what = "a bad buffer to send", .cause = "bad buffer", .connected = true, .expected = ncclInvalidArgument},
      {.what = "a bad buffer to receive",
       .cause = "bad buffer",
       .guilty = 1,
       .connected = true,
       .expected = ncclInvalidArgument},
      {.what = "no descriptor to connect", .cause = "open files", .descriptors = true, .expected = ncclSystemError},
      {.what = "no descriptor to accept",
       .cause = "open files",
       .guilty = 1,
       .descriptors = true,
       .expected = ncclSystemError}};
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(play(scenes, HK_ARRAY_LENGTH(scenes)), 0);
}

TEST(the_rank_with_the_bad_buffer_is_named) {
  scene scenes[] = {
      {.what = "memory that cannot be read", .cause = "rank 0 gave a bad buffer", .expected = ncclRemoteError},
      {.what = "memory that cannot be written",
       .cause = "rank 1 gave a bad buffer",
       .guilty = 1,
       .expected = ncclInvalidArgument}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++) scenes[i].reads = true;
  setenv("HOCKET_CMA", "1", 1);
  ck_assert_int_eq(play(scenes, HK_ARRAY_LENGTH(scenes)), 0);
}

int main(void) { return suite_main("own faults", .timeout = 60); }
