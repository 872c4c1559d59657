/* SPDX-License-Identifier: Apache-2.0 */
/* Asking a rank what it does: running, waiting, stopped, killed, gone away; ranks as threads and as processes. */
#include "../support/boot_ranks.h"

enum { PATIENT_NS = 1000000000 };
/* What another process or thread is about to do is done by then. */
static uint64_t soon(void) { return hk_now_ns() + 15000000000u; }

/* What each rank reports: its number in every field, so that answers cannot be mixed up. */
static void report(void *arg, hk_activity *out) {
  const rank_state *r = arg;
  out->sequence = 100 + (uint64_t)r->rank;
  out->count = 1000000000000u + (uint64_t)r->rank;
  out->signature = 0x80000000u + (uint32_t)r->rank;
  out->root = r->rank;
  out->dtype = 7;
  out->phase = HK_PHASE_OPERATION;
  out->phase_ms = 5000 + (uint64_t)r->rank;
}

static bool is_report_of(const hk_activity *a, int rank) {
  return a->sequence == 100 + (uint64_t)rank && a->count == 1000000000000u + (uint64_t)rank &&
         a->signature == 0x80000000u + (uint32_t)rank && a->root == rank && a->dtype == 7 &&
         a->phase == HK_PHASE_OPERATION && a->phase_ms == 5000 + (uint64_t)rank;
}

static hk_status join_reporting(rank_state *r) {
  r->status = hk_service_new(&r->service, "test");
  if (r->status != HK_OK) return r->status;
  hk_bootstrap_options o = options_of(r);
  o.report = report;
  return r->status = hk_bootstrap_join(&r->b, r->ids, r->nids, &o);
}

static hk_presence ask(rank_state *r, int rank, hk_activity *a) { return hk_bootstrap_ask(r->b, rank, PATIENT_NS, a); }

enum { RANKS = 5, ASKER = 0, WAITS = 1, STOPS = 2, LEAVES = 3, LEAVES_ALL = 4 };

static struct board {
  ncclUniqueId ids[2];
  _Atomic(int) ids_made, joined, left, asked;
  char text[RANKS][256];
} * shared;

static int make_ids(void *arg) {
  (void)arg;
  for (int i = 0; i < 2; i++)
    if (hk_bootstrap_new_id(&shared->ids[i]) != HK_OK) return 1;
  atomic_store(&shared->ids_made, 1);
  for (;;) pause();
}

/* Rank LEAVES is in a second communicator alone, so that its process still listens after it has left the first. */
static int one_rank(void *arg) {
  rank_state r = {.rank = *(int *)arg, .nranks = RANKS, .nids = 1, .ids = &shared->ids[0]};
  rank_state other = {.rank = 0, .nranks = 1, .nids = 1, .ids = &shared->ids[1]};
  if (join_reporting(&r) != HK_OK || (r.rank == LEAVES && join_rank(&other) != HK_OK)) goto out;
  atomic_fetch_add(&shared->joined, 1);
  if (r.rank == WAITS) (void)hk_bootstrap_barrier(r.b); /* until the others have left */
  if (r.rank == LEAVES || r.rank == LEAVES_ALL) {
    leave_rank(&r);
    atomic_fetch_add(&shared->left, 1);
  }
  await_count(&shared->asked, 1);
out:
  if (r.status != HK_OK) snprintf(shared->text[r.rank], sizeof shared->text[0], "%s", hk_last_error());
  leave_rank(&r);
  leave_rank(&other);
  return r.status != HK_OK;
}

static void start_ranks(pid_t pids[RANKS]) {
  start_process(make_ids, NULL);
  ck_assert(await_count(&shared->ids_made, 1));
  for (int i = 1; i < RANKS; i++) pids[i] = start_process(one_rank, &i);
}

/* Asks until the answer is `wanted`: what led to it happens in another process, at its own pace. */
static hk_presence ask_for(rank_state *r, int rank, hk_presence wanted, hk_activity *a) {
  hk_presence p = wanted;
  for (uint64_t until = soon(); hk_now_ns() < until; usleep(20000))
    if ((p = ask(r, rank, a)) == wanted) break;
  return p;
}

TEST(processes_answer) {
  pid_t pids[RANKS];
  hk_activity a;
  rank_state r = {.rank = ASKER, .nranks = RANKS, .nids = 1, .ids = &shared->ids[0]};
  start_ranks(pids);
  ck_assert_msg(join_reporting(&r) == HK_OK, "%s", hk_last_error());
  ck_assert(await_count(&shared->joined, RANKS - 1));

  /* One that waits inside the bootstrap says for whom. */
  for (uint64_t until = soon(); a.waits_for = -1, ask(&r, WAITS, &a), a.waits_for < 0 && hk_now_ns() < until;)
    usleep(10000);
  ck_assert_int_eq(ask(&r, WAITS, &a), HK_PRESENCE_ANSWERS);
  ck_assert(is_report_of(&a, WAITS));
  ck_assert_int_ge(a.waits_for, 0);

  ck_assert_int_eq(ask_for(&r, STOPS, HK_PRESENCE_ANSWERS, &a), HK_PRESENCE_ANSWERS);
  ck_assert(is_report_of(&a, STOPS));
  kill(pids[STOPS], SIGSTOP);
  ck_assert_int_eq(ask_for(&r, STOPS, HK_PRESENCE_STOPPED, &a), HK_PRESENCE_STOPPED); /* signals take a moment */
  kill(pids[STOPS], SIGCONT);
  ck_assert_int_eq(ask_for(&r, STOPS, HK_PRESENCE_ANSWERS, &a), HK_PRESENCE_ANSWERS);

  ck_assert(await_count(&shared->left, 2));
  ck_assert_int_eq(ask_for(&r, LEAVES, HK_PRESENCE_LEFT, &a), HK_PRESENCE_LEFT);
  ck_assert_int_eq(ask_for(&r, LEAVES_ALL, HK_PRESENCE_LEFT, &a), HK_PRESENCE_LEFT);

  kill(pids[STOPS], SIGKILL);
  end_process(pids[STOPS]);
  ck_assert_int_eq(ask_for(&r, STOPS, HK_PRESENCE_GONE, &a), HK_PRESENCE_GONE);

  const char *before = hk_last_error();
  ck_assert_str_eq(before, ""); /* to ask is no error, whatever the answer */
  atomic_store(&shared->asked, 1);
  leave_rank(&r);
  for (int i = 1; i < RANKS; i++)
    if (i != STOPS) ck_assert_msg(end_process(pids[i]) == 0, "rank %d: %s", i, shared->text[i]);
}

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("ask", .setup = setup, .timeout = 120); }
