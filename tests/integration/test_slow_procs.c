/* SPDX-License-Identifier: Apache-2.0 */
/* A process that is stopped for several times HOCKET_PEER_TIMEOUT is no error over TCP: not while data is sent to it,
 * not while a connection to it is made, not inside the bootstrap.
 * check: notsan noasan */
#include "../support/boot_ranks.h"
#include "../support/ranks.h"

enum { LIMIT_S = 2, STOPPED_S = 6, COUNT = 3000000, ROW = 16 << 20 };

/* Two ranks, of which the second is stopped between `ready` and its call. */
typedef struct scene {
  const char *what;
  bool connected, bootstrap; /* a first call has made the connections; what is called is the bootstrap's allgather */
  int ends[2];
  pid_t pids[2];
  struct {
    _Atomic(int) ready, go;
    ncclUniqueId id;
  } * shared;
} scene;

static int call_allreduce(scene *s, int rank) {
  ncclComm_t c;
  float one = 1, *b = calloc(COUNT, sizeof *b);
  if (ranks_share_id(s->ends, rank, 2, &s->shared->id) || RANK_CHECK(ncclCommInitRank(&c, 2, s->shared->id, rank)))
    return 1;
  int faults = s->connected ? RANK_CHECK(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, c, NULL)) : 0;
  b[COUNT - 1] = (float)(rank + 1);
  atomic_fetch_add(&s->shared->ready, 1);
  faults += !await_count(&s->shared->go, 1);
  faults += RANK_CHECK(ncclAllReduce(b, b, COUNT, ncclFloat32, ncclSum, c, NULL));
  if (b[COUNT - 1] != 3) fprintf(stderr, "%s: rank %d has %g\n", s->what, rank, b[COUNT - 1]), faults++;
  faults += RANK_CHECK(ncclCommDestroy(c));
  free(b);
  return faults;
}

static int call_allgather(scene *s, int rank) {
  if (rank == 0 && hk_bootstrap_new_id(&s->shared->id) != HK_OK) return 1;
  if (rank == 0 ? write(s->ends[1], "", 1) != 1 : read(s->ends[0], &(char){0}, 1) != 1) return 1;
  rank_state *r = new_ranks(2, &s->shared->id, 1, NULL, NULL) + rank;
  if (join_rank(r) != HK_OK) return 1;
  char *table = calloc(2, ROW);
  memset(table + (size_t)rank * ROW, rank + 1, ROW);
  atomic_fetch_add(&s->shared->ready, 1);
  int faults = !await_count(&s->shared->go, 1);
  hk_status rc = hk_bootstrap_allgather(r->b, table, ROW);
  if (rc != HK_OK) fprintf(stderr, "%s: rank %d: %s\n", s->what, rank, hk_last_error()), faults++;
  faults += table[0] != 1 || table[2 * (size_t)ROW - 1] != 2;
  leave_rank(r);
  return faults;
}

static void begin(scene *s) {
  s->shared = shared_memory(sizeof *s->shared);
  ck_assert_int_eq(pipe(s->ends), 0);
  for (int r = 0; r < 2; r++) {
    s->pids[r] = fork();
    ck_assert_int_ge(s->pids[r], 0);
    if (s->pids[r]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int faults = s->bootstrap ? call_allgather(s, r) : call_allreduce(s, r);
    fflush(NULL);
    _exit(faults);
  }
}

TEST(stopped_processes_are_no_error) {
  scene scenes[] = {{.what = "a stopped receiver", .connected = true},
                    {.what = "a connection to a stopped process"},
                    {.what = "a stopped member of the bootstrap", .bootstrap = true}};
  char limit[16];
  snprintf(limit, sizeof limit, "%d", LIMIT_S);
  setenv("HOCKET_PEER_TIMEOUT", limit, 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++) begin(&scenes[i]);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++) {
    ck_assert_msg(await_count(&scenes[i].shared->ready, 2), "%s: no start", scenes[i].what);
    ck_assert_int_eq(kill(scenes[i].pids[1], SIGSTOP), 0);
    atomic_store(&scenes[i].shared->go, 1);
  }
  sleep(STOPPED_S);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++) kill(scenes[i].pids[1], SIGCONT);
  int faults = 0;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++)
    for (int r = 0; r < 2; r++) {
      int status = end_process(scenes[i].pids[r]);
      if (status) fprintf(stderr, "%s: rank %d ends with status %#x\n", scenes[i].what, r, status), faults++;
    }
  for (size_t i = 0; i < HK_ARRAY_LENGTH(scenes); i++) close(scenes[i].ends[0]), close(scenes[i].ends[1]);
  ck_assert_int_eq(faults, 0);
}

int main(void) { return suite_main("slow processes", .timeout = 100); }
