/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of child communicators: turns, members, and the checks that end waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../failure/failure.h"
#include "../failure/watch.h"
#include "children_internal.h"

bool hk_children_excludes(const hk_init *how, int rank) {
  for (int i = 0; i < how->nexclude; i++)
    if (how->exclude[i] == rank) return true;
  return false;
}

void hk_children_announce(ncclComm_t parent, hk_event *e) {
  e->kind = HK_EVENT_SHRINK;
  e->rank = parent->rank;
  pthread_mutex_lock(&parent->order.announcing);
  e->code = (int32_t)++parent->order.announced;
  hk_children_heard(parent, e);
  hk_bootstrap_announce(parent->bootstrap, e);
  pthread_mutex_unlock(&parent->order.announcing);
}

void hk_children_heard(ncclComm_t parent, const hk_event *e) {
  pthread_mutex_lock(&parent->health.lock);
  if (e->text[0] == HK_CHILDREN_FAILED)
    hk_children_keep_failure(parent, e);
  else
    hk_children_keep_list(parent, e);
  pthread_mutex_unlock(&parent->health.lock);
}

void hk_children_free(ncclComm_t parent) {
  hk_children_free_lists(parent);
  hk_children_free_failures(parent);
}

bool hk_children_parent_failed(ncclComm_t parent) {
  if (atomic_load(&parent->health.revoked)) return false; /* a revoked communicator can still be a parent */
  return hk_comm_failing(parent);
}

/* ---- waits ---- */

static hk_status children_parent_ended(const hk_init *how) {
  if (!how->parent || atomic_load(&how->parent->health.closing) != HK_CLOSING_ABORT) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE, "ncclCommAbort of the parent communicator ended the init of its child");
}

static hk_status children_watch(void *arg, uint64_t waited_ns) {
  hk_children_watch *w = arg;
  hk_status rc = hk_watch(w->c, waited_ns);
  if (rc == HK_OK) rc = children_parent_ended(w->how);
  if (rc == HK_OK && w->how->grows && !w->c->bootstrap && hk_children_parent_failed(w->how->parent))
    rc = HK_FAIL(HK_ERR_REMOTE, "the parent communicator failed: all of its ranks are to be ranks of the new one");
  if (rc == HK_OK && w->how->exclude) rc = hk_children_compare_lists(w);
  if (rc == HK_OK) rc = hk_children_check_failures(w);
  return rc == HK_OK && w->how->exclude ? hk_children_check_attempt(w) : rc;
}

/* Sets the child's name in notices. */
static void children_name_child(hk_children_watch *w) {
  if (w->how->shrink) hk_children_name_call(w->call, HK_CALL_SHRINK, w->how->shrink);
  if (w->how->exclude)
    hk_children_begin_shrink(w);
  else if (w->how->no_list)
    snprintf(w->key, sizeof w->key, "%s", w->call);
  else
    snprintf(w->key, sizeof w->key, "s%llu", (unsigned long long)w->how->split);
}

void hk_children_watch_begin(hk_children_watch *w, ncclComm_t c, const hk_init *how) {
  *w = (hk_children_watch){.c = c, .how = how};
  if (!how->parent) return;
  c->wait.check = children_watch;
  c->wait.arg = w;
  children_name_child(w);
}

hk_status hk_children_watch_end(hk_children_watch *w, hk_status rc) {
  if (!w->c || !w->how->parent) return rc;
  w->c->wait.check = hk_watch;
  w->c->wait.arg = w->c;
  if (!w->how->exclude && !w->exchanging) hk_bootstrap_skip(w->how->parent->bootstrap);
  if (w->how->exclude) rc = hk_children_end_shrink(w, rc);
  if (rc != HK_OK) rc = hk_children_settle_failure(w, rc);
  free(w->members);
  w->members = NULL;
  return rc;
}

/* ---- turns ---- */

void hk_children_enter(hk_init *how) {
  if (!how->parent) return;
  atomic_fetch_add(&how->parent->health.inside, 1);
  how->turn = ++how->parent->order.children;
  if (how->exclude || how->no_list)
    how->shrink = ++how->parent->order.shrinks;
  else
    how->split = ++how->parent->order.splits;
}

void hk_children_leave(ncclComm_t parent) {
  if (!parent) return;
  /* release: as hk_children_turn says */
  atomic_fetch_add_explicit(&parent->order.children_over, 1, memory_order_release);
  atomic_fetch_sub(&parent->health.inside, 1);
}

hk_status hk_children_turn(const hk_init *how) {
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  /* acquire: the earlier child's exchange over the parent's overlay has ended before this one begins */
  while (atomic_load_explicit(&how->parent->order.children_over, memory_order_acquire) + 1 < how->turn) {
    HK_OR_RETURN(children_parent_ended(how));
    HK_OR_RETURN(hk_wait_nap(&w, -1, 200 * 1000));
  }
  return HK_OK;
}

void hk_children_refuse(const hk_init *how) {
  hk_children_watch w = {.how = how};
  hk_event over = {0};
  char cause[HK_ERROR_TEXT], text[1400];
  if (!how->parent) {
    if (how->nranks > 1) hk_comm_report_abort(hk_settings_now(), how); /* 0: this rank's number is not known */
    return;
  }
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  snprintf(text, sizeof text, "rank %d failed: %.1300s", how->parent->rank, cause);
  if (hk_children_turn(how) == HK_OK) {
    how->parent->order.unlisted += how->no_list;
    children_name_child(&w);
    hk_children_note_own(&w, text);
    if (how->exclude)
      hk_children_announce(how->parent, &over);
    else if (!how->no_list)
      hk_bootstrap_skip(how->parent->bootstrap);
  }
  hk_error_adopt(cause);
  hk_children_leave(how->parent);
}

hk_status hk_children_exchange(hk_children_watch *w, void *rows, size_t row_bytes) {
  hk_bootstrap *all = w->how->parent->bootstrap;
  w->exchanging = true;
  hk_bootstrap_also(all, hk_children_check_failures, w);
  hk_status rc = hk_bootstrap_allgather(all, rows, row_bytes);
  hk_bootstrap_also(all, NULL, NULL);
  return rc;
}

/* ---- members ---- */

typedef struct split_row {
  int color, key;
} split_row;

/* The exchange between all ranks of a parent whose overlay runs no more collectives: makes a new overlay for it. */
static hk_status children_exchange_anew(ncclComm_t parent, const hk_init *how, const hk_bootstrap_options *o,
                                        split_row *rows) {
  hk_status rc = HK_OK;
  hk_bootstrap *all = NULL;
  hk_bootstrap_options own = {.rank = parent->rank,
                              .nranks = parent->nranks,
                              .name = o->name,
                              .settings = o->settings,
                              .wait = o->wait,
                              .service = o->service};
  int *members = malloc((size_t)parent->nranks * sizeof *members);
  if (!members) return HK_FAIL_ERRNO("no memory to split %d ranks", parent->nranks);
  for (int r = 0; r < parent->nranks; r++) members[r] = r;
  HK_TRY(hk_bootstrap_join_child(&all, parent->bootstrap, members, how->split << 32 | 0xffffffffu, &own), out);
  HK_TRY(hk_bootstrap_allgather(all, rows, sizeof *rows), out);
out:
  hk_bootstrap_leave(all);
  free(members);
  return rc;
}

static hk_status children_exchange(hk_children_watch *w, const hk_bootstrap_options *o, split_row *rows) {
  const hk_init *how = w->how;
  ncclComm_t parent = how->parent;
  hk_status rc = HK_ERR_USAGE;
  rows[parent->rank] = (split_row){how->color, how->key};
  if (!atomic_load(&parent->health.revoked)) rc = hk_children_exchange(w, rows, sizeof *rows);
  if (rc == HK_OK || !atomic_load(&parent->health.revoked)) return rc;
  w->anew = true;
  return children_exchange_anew(parent, how, o, rows);
}

/* The members of this rank's color, by (key, parent's rank); sets the new rank and size. */
static hk_status children_split_members(ncclComm_t c, const hk_init *how, const hk_bootstrap_options *o, int **out) {
  hk_status rc = HK_OK;
  ncclComm_t parent = how->parent;
  int n = parent->nranks, count = 0;
  split_row *rows = calloc((size_t)n, sizeof *rows);
  int *members = malloc((size_t)n * sizeof *members);
  if (!rows || !members) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to split %d ranks", n), out);
  HK_TRY(children_exchange(c->wait.arg, o, rows), out);
  for (int r = 0; r < n; r++) {
    if (rows[r].color != how->color || how->color < 0) continue;
    int at = count++;
    while (at > 0 && rows[members[at - 1]].key > rows[r].key) {
      members[at] = members[at - 1];
      at--;
    }
    members[at] = r;
  }
  for (int i = 0; i < count; i++)
    if (members[i] == parent->rank) c->rank = i;
  c->nranks = count;
  *out = members;
  members = NULL;
out:
  free(rows);
  free(members);
  return rc;
}

static hk_status children_shrink_members(ncclComm_t c, const hk_init *how, int **out) {
  ncclComm_t parent = how->parent;
  int count = 0;
  int *members = malloc((size_t)parent->nranks * sizeof *members);
  if (!members) return HK_FAIL_ERRNO("no memory to shrink %d ranks", parent->nranks);
  for (int r = 0; r < parent->nranks; r++) {
    if (r == parent->rank) c->rank = count;
    if (!hk_children_excludes(how, r)) members[count++] = r;
  }
  c->nranks = count;
  *out = members;
  return HK_OK;
}

hk_status hk_children_join(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o) {
  hk_status rc = HK_OK;
  hk_children_watch *w = c->wait.arg;
  int *members = NULL;
  uint64_t child;
  char what[64];
  snprintf(what, sizeof what, "%s, child number %llu", how->exclude ? "ncclCommShrink" : "ncclCommSplit",
           (unsigned long long)how->turn);
  hk_bootstrap_begin(how->parent->bootstrap, how->exclude ? HK_PHASE_SHRINK : HK_PHASE_SPLIT, what);
  HK_TRY(how->exclude ? children_shrink_members(c, how, &members) : children_split_members(c, how, o, &members), out);
  if (c->nranks == 0) goto out; /* NCCL_SPLIT_NOCOLOR: takes part but gets no communicator */
  w->members = members;
  o->rank = c->rank;
  o->nranks = c->nranks;
  /* The exchange may succeed although the parent failed just before it, because its messages arrived first. That
   * failure counts. */
  o->of_living = !how->exclude && !w->anew;
  do {
    child = how->exclude ? (uint64_t)w->attempt << 32 | 0x80000000u : how->split << 32 | (unsigned)how->color;
    rc = hk_bootstrap_join_child(&c->bootstrap, how->parent->bootstrap, members, child, o);
  } while (rc != HK_OK && how->exclude && hk_children_catch_up(w));
out:
  hk_bootstrap_begin(how->parent->bootstrap, HK_PHASE_IDLE, NULL);
  if (w->members != members) free(members);
  return rc;
}
