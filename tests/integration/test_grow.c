/* SPDX-License-Identifier: Apache-2.0 */
/* ncclCommGrow: new processes join the ranks of a communicator, also after a rank was killed and the communicator
 * shrunk.
 * check: notsan noasan */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "../support/ranks.h"
#include "../support/suite.h"

enum { OLD = 3, KILLED = 1, ALL = 4 };

typedef struct scene {
  int (*body)(struct scene *s, int process);
  bool over_tcp;
  ncclUniqueId id, grow_id;
  _Atomic(int) id_made, grow_id_made, ready, summed;
} scene;

static void wait_for(_Atomic(int) *flag, int value) {
  while (atomic_load(flag) < value) usleep(100);
}

static int join_old(scene *s, int process, int nranks, ncclComm_t *c) {
  if (process == 0) {
    if (RANK_CHECK(ncclGetUniqueId(&s->id))) return 1;
    atomic_store(&s->id_made, 1);
  }
  wait_for(&s->id_made, 1);
  return RANK_CHECK(ncclCommInitRank(c, nranks, s->id, process));
}

/* Each rank gives its number plus 1; more elements than one slot has. */
static int sum_is_right(ncclComm_t c) {
  enum { COUNT = 300000 };
  int rank, n, faults = RANK_CHECK(ncclCommUserRank(c, &rank)) + RANK_CHECK(ncclCommCount(c, &n));
  float *b = malloc(COUNT * sizeof *b);
  for (int i = 0; i < COUNT; i++) b[i] = (float)(rank + 1 + i % 7);
  faults += RANK_CHECK(ncclAllReduce(b, b, COUNT, ncclFloat, ncclSum, c, NULL));
  for (int i = 0; i < COUNT && !faults; i++)
    if (b[i] != (float)(n * (n + 1) / 2 + n * (i % 7))) faults = 1;
  if (faults) fprintf(stderr, "rank %d of %d: the sum is wrong\n", rank, n);
  free(b);
  return faults;
}

static int grow(scene *s, ncclComm_t parent, int nranks, int rank, ncclComm_t *out) {
  int faults = 0, mine = -1;
  if (parent) faults += RANK_CHECK(ncclCommUserRank(parent, &mine));
  if (mine == 0) {
    faults += RANK_CHECK(ncclCommGetUniqueId(parent, &s->grow_id));
    atomic_store(&s->grow_id_made, 1);
  }
  wait_for(&s->grow_id_made, 1);
  return faults + RANK_CHECK(ncclCommGrow(parent, nranks, parent ? NULL : &s->grow_id, rank, out, NULL));
}

static void die(void) { kill(getpid(), SIGKILL); }

/* Three ranks; one is killed; the others shrink, and a new process takes its place. */
static int replace_a_dead_rank(scene *s, int process) {
  ncclComm_t c = NULL, fewer = NULL, grown = NULL;
  int faults = 0, dead = KILLED;
  if (process < OLD) {
    faults += join_old(s, process, OLD, &c) + sum_is_right(c);
    atomic_fetch_add(&s->summed, 1);
    wait_for(&s->summed, OLD); /* the sum of another rank may still need what the killed one has */
    if (process == KILLED) die();
    float x = 1;
    while (ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL) == ncclSuccess) {}
    faults += RANK_CHECK(ncclCommShrink(c, &dead, 1, &fewer, NULL, NCCL_SHRINK_ABORT)) + sum_is_right(fewer);
  }
  faults += grow(s, fewer, OLD, fewer ? -1 : OLD - 1, &grown);
  faults += sum_is_right(grown);
  if (fewer) faults += sum_is_right(fewer) + RANK_CHECK(ncclCommDestroy(fewer)); /* the parent still works */
  faults += RANK_CHECK(ncclCommDestroy(grown));
  if (c) faults += RANK_CHECK(ncclCommAbort(c));
  return faults;
}

/* Nonblocking, inside a group, by two ranks more. */
static int grow_in_a_group(scene *s, int process) {
  ncclComm_t c = NULL, grown = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclInProgress;
  int faults = process < 2 ? join_old(s, process, 2, &c) : 0;
  if (process == 0) {
    faults += RANK_CHECK(ncclCommGetUniqueId(c, &s->grow_id));
    atomic_store(&s->grow_id_made, 1);
  }
  wait_for(&s->grow_id_made, 1);
  config.blocking = 0;
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclCommGrow(c, ALL, c ? NULL : &s->grow_id, c ? -1 : process, &grown, &config));
  ncclResult_t ended = ncclGroupEnd();
  if (ended != ncclInProgress && ended != ncclSuccess) faults += RANK_CHECK(ended);
  while (state == ncclInProgress) {
    faults += RANK_CHECK(ncclCommGetAsyncError(grown, &state));
    usleep(100);
  }
  faults += RANK_CHECK(state) + sum_is_right(grown) + RANK_CHECK(ncclCommDestroy(grown));
  if (c) faults += RANK_CHECK(ncclCommDestroy(c));
  return faults;
}

static int refused(ncclResult_t expected, ncclResult_t got, const char *words) {
  const char *text = ncclGetLastError(NULL);
  if (got == expected && strstr(text, words)) return 0;
  fprintf(stderr, "%d and not %d, or without \"%s\": %s\n", (int)got, (int)expected, words, text);
  return 1;
}

static int wrong_calls(scene *s, int process) {
  ncclComm_t c, grown = NULL;
  ncclUniqueId id;
  int faults = join_old(s, process, 2, &c);
  if (faults) return faults;
  faults += refused(ncclInvalidArgument, ncclCommGrow(c, 2, NULL, -1, &grown, NULL), "more than its 2 ranks");
  faults += refused(ncclInvalidArgument, ncclCommGrow(c, 3, NULL, 0, &grown, NULL), "give rank -1");
  faults += refused(ncclInvalidArgument, ncclCommGrow(c, 3, NULL, -1, NULL, NULL), "newcomm");
  faults += refused(ncclInvalidArgument, ncclCommGrow(NULL, 3, NULL, 2, &grown, NULL), "needs the id");
  faults += refused(ncclInvalidArgument, ncclCommGetUniqueId(c, NULL), "uniqueId is NULL");
  /* All ranks learn what they disagree about. */
  faults += refused(ncclInvalidUsage, ncclCommGrow(c, 3, NULL, -1, &grown, NULL), "no rank has an id");
  faults += refused(ncclInvalidUsage, ncclCommGrow(c, 3 + process, NULL, -1, &grown, NULL), "rank 1 gave 4");
  faults += RANK_CHECK(ncclCommGetUniqueId(c, &id));
  faults += refused(ncclInvalidUsage, ncclCommGetUniqueId(c, &id), "one a growth");
  faults += refused(ncclInvalidUsage, ncclCommGrow(c, 3, NULL, -1, &grown, NULL), "ids that differ");
  if (grown) faults++;
  faults += sum_is_right(c) + RANK_CHECK(ncclCommDestroy(c));
  return faults;
}

static void run(scene *given, int processes) {
  scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t pids[ALL];
  *s = *given;
  for (int p = 0; p < processes; p++) {
    pids[p] = fork();
    ck_assert_int_ge(pids[p], 0);
    if (pids[p] > 0) continue;
    if (s->over_tcp) setenv("NCCL_SHM_DISABLE", "1", 1);
    _exit(s->body(s, p) != 0);
  }
  for (int p = 0; p < processes; p++) {
    int status;
    ck_assert_int_eq(waitpid(pids[p], &status, 0), pids[p]);
    if (s->body == replace_a_dead_rank && p == KILLED)
      ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d ended with 0x%x", p, status);
  }
  munmap(s, sizeof *s);
}

TEST_LOOP(replaces_a_dead_rank, 2) { run(&(scene){.body = replace_a_dead_rank, .over_tcp = _i}, ALL); }

TEST_LOOP(in_a_group, 2) { run(&(scene){.body = grow_in_a_group, .over_tcp = _i}, ALL); }

TEST(wrong_calls_are_refused) { run(&(scene){.body = wrong_calls}, 2); }

int main(void) { return suite_main("grow"); }
