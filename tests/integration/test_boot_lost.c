/* SPDX-License-Identifier: Apache-2.0 */
/* Control connections that something closes, or on which nothing arrives, while both processes live: no rank is
 * reported as gone.
 * check: waits notsan root */
#include "../../src/boot/internal.h"
#include "../support/boot_ranks.h"
#include "../support/silence.h"

enum { RANKS_MOST = 9, VICTIM = 3, LIMIT_S = 2, AWAY_S = 8 };

typedef struct board {
  _Atomic(int) joined, done;
  ncclUniqueId id;
  char wrong[RANKS_MOST][512];
} board;
static board *shared;

typedef struct stage {
  int rank, nranks;
} stage;

static void complain(const rank_state *r, const char *what, const char *detail) {
  if (!shared->wrong[r->rank][0]) snprintf(shared->wrong[r->rank], sizeof shared->wrong[0], "%s: %s", what, detail);
}

/* The connection of the two lowest ranks wins, whichever was heard of first. */
static const char *lowest_of(const rank_state *r) {
  return r->nranks == 9 ? "between rank 1 and rank 3" : "between rank 0 and rank 3";
}

static bool hears_of_the_lowest(rank_state *r) {
  for (int i = 0; await_count(&r->nevents, i + 1); i++)
    if (strstr(r->events[i].text, lowest_of(r))) return true;
  return false;
}

/* Each connection once. A weaker one may come after the lowest: two threads report them. */
static void check_events(rank_state *r) {
  const int n = atomic_load(&r->nevents);
  for (int i = 0; i < n; i++) {
    if (r->events[i].kind != HK_EVENT_LINK) complain(r, "an event of another kind", r->events[i].text);
    for (int k = 0; k < i; k++)
      if (!strcmp(r->events[i].text, r->events[k].text)) complain(r, "an event twice", r->events[i].text);
  }
}

static void close_all_links(hk_bootstrap *b) {
  pthread_mutex_lock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++) shutdown(b->links[i].fd, SHUT_RDWR);
  pthread_mutex_unlock(&b->lock);
}

static int run_rank(void *arg) {
  const stage *s = arg;
  rank_state r = {.rank = s->rank, .nranks = s->nranks, .ids = &shared->id, .nids = 1};
  if (join_rank(&r) != HK_OK) complain(&r, "join", hk_last_error());
  atomic_fetch_add(&shared->joined, 1);
  if (!r.b || !await_count(&shared->joined, r.nranks)) return 1;
  if (1 << r.b->rounds < r.nranks || 1 << (r.b->rounds - 1) >= r.nranks) complain(&r, "rounds", "more or fewer");
  if (r.rank == VICTIM) close_all_links(r.b);
  if (!hears_of_the_lowest(&r)) complain(&r, "did not hear of the connection", lowest_of(&r));
  if (hk_bootstrap_barrier(r.b) != HK_ERR_REMOTE || !strstr(hk_last_error(), lowest_of(&r)))
    complain(&r, "a barrier", hk_last_error());
  atomic_fetch_add(&shared->done, 1);
  await_count(&shared->done, r.nranks);
  check_events(&r);
  leave_rank(&r);
  return 0;
}

TEST_LOOP(lost_connections_are_no_deaths, 3) {
  static const int numbers[] = {4, 5, 9};
  pid_t pids[RANKS_MOST], maker = hold_id(&shared->id);
  const int n = numbers[_i];
  for (int i = 0; i < n; i++) pids[i] = start_process(run_rank, &(stage){i, n});
  for (int i = 0; i < n; i++) {
    int status = end_process(pids[i]);
    ck_assert_msg(!status && !shared->wrong[i][0], "rank %d: status %d, %s", i, status, shared->wrong[i]);
  }
  kill(maker, SIGKILL);
  end_process(maker);
}

/* Nothing that comes in reaches the sockets while the control network is away. */
static void set_away(hk_bootstrap *b, bool away) {
  pthread_mutex_lock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++)
    if (b->links[i].fd >= 0) silence(b->links[i].fd, away);
  pthread_mutex_unlock(&b->lock);
}

static int run_tolerant_rank(void *arg) {
  const stage *s = arg;
  rank_state r = {.rank = s->rank, .nranks = s->nranks, .ids = &shared->id, .nids = 1};
  if (join_rank(&r) != HK_OK) complain(&r, "join", hk_last_error());
  atomic_fetch_add(&shared->joined, 1);
  if (!r.b || !await_count(&shared->joined, r.nranks)) return 1;
  for (int i = 0; i < r.nranks; i++) hk_bootstrap_tolerate(r.b, i, 600);
  set_away(r.b, true);
  for (uint64_t until = hk_now_ns() + AWAY_S * UINT64_C(1000000000); hk_now_ns() < until;) usleep(10000);
  set_away(r.b, false);
  atomic_fetch_add(&shared->done, 1);
  await_count(&shared->done, r.nranks);
  if (hk_bootstrap_barrier(r.b) != HK_OK) complain(&r, "a barrier", hk_last_error());
  if (atomic_load(&r.nevents)) complain(&r, "an event", "of a control network that is away");
  leave_rank(&r);
  return 0;
}

/* A reboot of the management network's switch, which is longer than HOCKET_PEER_TIMEOUT, while data goes over RDMA. */
TEST(silence_of_the_control_network_is_no_death) {
  enum { RANKS = 3 };
  pid_t pids[RANKS], maker;
  char limit[8];
  if (!silence_is_allowed()) return;
  snprintf(limit, sizeof limit, "%d", LIMIT_S);
  setenv("HOCKET_PEER_TIMEOUT", limit, 1);
  hk_param_reload();
  maker = hold_id(&shared->id);
  for (int i = 0; i < RANKS; i++) pids[i] = start_process(run_tolerant_rank, &(stage){i, RANKS});
  for (int i = 0; i < RANKS; i++) {
    int status = end_process(pids[i]);
    ck_assert_msg(!status && !shared->wrong[i][0], "rank %d: status %d, %s", i, status, shared->wrong[i]);
  }
  kill(maker, SIGKILL);
  end_process(maker);
}

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("lost connections", .setup = setup, .timeout = 120); }
