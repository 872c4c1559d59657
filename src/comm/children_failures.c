/* SPDX-License-Identifier: Apache-2.0 */
/* Failures during the creation of a child.
 *
 * A failing rank may have no link to the ranks that wait for it, or they may not be waiting on that link. So it reports
 * the failure over the parent's overlay; the parent stays usable. A rank that fails because of another one also reports
 * what it knows, so that ranks that wait for it end, too. Members collect these notices for a short time and take the
 * strongest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../boot/bootstrap.h"
#include "../failure/failure.h"
#include "../failure/precedence.h"
#include "children_internal.h"

enum { OWN = 'o', CAUSED = 'c', BEFORE = 'b', AFTER = 'a' };
static const uint64_t GRACE_NS = 200000000u;

/* A rank's failure to create a child. Text: '#', the child's key, a space, two letters (see
 * children_failures_note_failure), the message. */
typedef struct hk_child_failure {
  struct hk_child_failure *next;
  int rank;
  char text[HK_EVENT_TEXT];
} hk_child_failure;

/* Keeps the newest failures. A member may still be making an earlier child, but not one of long ago. */
void hk_children_keep_failure(ncclComm_t parent, const hk_event *e) {
  enum { KEPT = 64 };
  hk_child_failure *f = malloc(sizeof *f); /* without memory the failure shows as a timeout */
  if (!f) return;
  f->rank = e->rank;
  snprintf(f->text, sizeof f->text, "%s", e->text);
  f->next = parent->order.failures;
  parent->order.failures = f;
  for (int i = 1; i < KEPT && f; i++) f = f->next;
  if (!f || !f->next) return;
  free(f->next); /* the list grew by one, so this is the last one */
  f->next = NULL;
}

void hk_children_free_failures(ncclComm_t parent) {
  while (parent->order.failures) {
    hk_child_failure *f = parent->order.failures;
    parent->order.failures = f->next;
    free(f);
  }
}

/* If true, the end of the parent is the cause. */
static bool children_failures_parent_is_over(const hk_children_watch *w) {
  return atomic_load(&w->how->parent->health.closing) == HK_CLOSING_ABORT || hk_children_parent_failed(w->how->parent);
}

static bool children_failures_is_member(const hk_children_watch *w, int rank) {
  if (w->how->exclude) return !hk_children_excludes(w->how, rank);
  for (int i = 0; i < w->c->nranks; i++)
    if (w->members && w->members[i] == rank) return true;
  return false;
}

/* Returns the two letters of the notice if it has that key, else NULL. */
static const char *children_failures_named(const hk_child_failure *f, const char *name) {
  size_t length = strlen(name);
  return length && strncmp(f->text + 1, name, length) == 0 && f->text[1 + length] == ' ' ? f->text + length + 2 : NULL;
}

/* Returns the letters of the notice if it ends the creation of this child on this rank, else NULL. If a rank leaves a
 * split before its members are known, the split is over for all ranks. */
static const char *children_failures_ends_child(const hk_children_watch *w, const hk_child_failure *f) {
  const char *letters = children_failures_named(f, w->key);
  if (!letters) letters = children_failures_named(f, w->call);
  if (!letters) return NULL;
  return (letters[1] == BEFORE && !w->how->exclude) || children_failures_is_member(w, f->rank) ? letters : NULL;
}

/* Finds the strongest notice: a rank's own failure before others, then the lowest rank's. `words`: its message. False:
 * there is none. */
static bool children_failures_find_failure(const hk_children_watch *w, bool *own, char words[HK_EVENT_TEXT]) {
  ncclComm_t parent = w->how->parent;
  int rank = -1;
  *own = false;
  pthread_mutex_lock(&parent->health.lock);
  for (const hk_child_failure *f = parent->order.failures; f; f = f->next) {
    const char *letters = children_failures_ends_child(w, f);
    bool o = letters && letters[0] == OWN;
    if (!letters || (rank >= 0 && (o != *own ? *own : f->rank > rank))) continue;
    rank = f->rank;
    *own = o;
    snprintf(words, HK_EVENT_TEXT, "%s", letters + 2);
  }
  pthread_mutex_unlock(&parent->health.lock);
  return rank >= 0;
}

void hk_children_name_call(char name[HK_CALL_NAME], hk_call_kind kind, uint64_t number) {
  snprintf(name, HK_CALL_NAME, "%c%llu", kind, (unsigned long long)number);
}

void hk_children_refuse_call(ncclComm_t c, hk_call_kind kind, uint64_t number) {
  char cause[HK_ERROR_TEXT], call[HK_CALL_NAME];
  hk_event e = {0};
  hk_children_name_call(call, kind, number);
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  snprintf(e.text, sizeof e.text, "%c%s %c%crank %d failed: %.1300s", HK_CHILDREN_FAILED, call, OWN, BEFORE, c->rank,
           cause);
  hk_children_announce(c, &e);
  hk_error_adopt(cause);
}

bool hk_children_refused_call(ncclComm_t c, hk_call_kind kind, uint64_t number, char words[HK_EVENT_TEXT]) {
  int rank = -1;
  char call[HK_CALL_NAME];
  hk_children_name_call(call, kind, number);
  pthread_mutex_lock(&c->health.lock);
  for (const hk_child_failure *f = c->order.failures; f; f = f->next) {
    const char *letters = f->rank == c->rank ? NULL : children_failures_named(f, call);
    if (!letters || (rank >= 0 && f->rank > rank)) continue;
    rank = f->rank;
    snprintf(words, HK_EVENT_TEXT, "%s", letters + 2);
  }
  pthread_mutex_unlock(&c->health.lock);
  return rank >= 0;
}

static void children_failures_note_failure(const hk_children_watch *w, char whose, const char *words) {
  hk_event e = {0};
  snprintf(e.text, sizeof e.text, "%c%s %c%c%.1400s", HK_CHILDREN_FAILED, w->key, whose, w->members ? AFTER : BEFORE,
           words);
  hk_children_announce(w->how->parent, &e);
}

void hk_children_note_own(const hk_children_watch *w, const char *words) {
  children_failures_note_failure(w, OWN, words);
}

bool hk_children_has_failed(const hk_children_watch *w) {
  char words[HK_EVENT_TEXT];
  bool own;
  return children_failures_find_failure(w, &own, words);
}

hk_status hk_children_check_failures(void *watch) {
  hk_children_watch *w = watch;
  char words[HK_EVENT_TEXT];
  bool own;
  /* checked here, because waits in the parent's collectives do not check it */
  int failure = atomic_load(&w->c->health.failure);
  if (failure) return HK_FAIL((hk_status)failure, "another call ended the making of the new communicator");
  if (w->c->bootstrap || !children_failures_find_failure(w, &own, words))
    return HK_OK; /* once all have joined the child, its own events report failures */
  if (!w->heard_ns) w->heard_ns = hk_now_ns();
  if (!own && hk_now_ns() - w->heard_ns < GRACE_NS) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE, "%s", words);
}

/* A member that has its result may abort the parent while others still collect notices. That abort is not the cause of
 * the failure. */
static bool children_failures_aborted_since(const hk_children_watch *w) {
  ncclComm_t parent = w->how->parent;
  char words[HK_EVENT_TEXT], cause[HK_ERROR_TEXT];
  bool own;
  if (atomic_load(&parent->health.closing) == HK_CLOSING_ABORT || !children_failures_find_failure(w, &own, words))
    return false;
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  (void)hk_failure_resolve(parent, NULL);
  hk_error_adopt(cause); /* this rank's own error, perhaps */
  pthread_mutex_lock(&parent->health.lock);
  bool aborted = parent->health.settle_ns && parent->health.cause->kind == HK_EVENT_ABORT;
  pthread_mutex_unlock(&parent->health.lock);
  return aborted;
}

/* Gets the text of the child's event that ended its creation here, or else the thread's error. */
static void children_failures_cause_of(ncclComm_t c, char *text, size_t bytes) {
  pthread_mutex_lock(&c->health.lock);
  if (c->health.settle_ns)
    hk_failure_text(c->health.cause, c->rank, text, bytes);
  else
    snprintf(text, bytes, "%s", hk_last_error());
  pthread_mutex_unlock(&c->health.lock);
}

hk_status hk_children_settle_failure(hk_children_watch *w, hk_status rc) {
  char words[HK_EVENT_TEXT], text[1400];
  bool own, aborted = atomic_load(&w->c->health.closing) == HK_CLOSING_ABORT;
  hk_wait_env env = {.spins = 0};
  hk_waiter nap;
  if (!w->key[0] || w->c->bootstrap || w->verdict[0] ||
      (children_failures_parent_is_over(w) && !children_failures_aborted_since(w)))
    return rc;
  if (aborted || rc != HK_ERR_REMOTE) {
    snprintf(text, sizeof text, "rank %d %s%.1300s", w->how->parent->rank,
             aborted ? "aborted the new communicator" : "failed: ", aborted ? "" : hk_last_error());
    hk_children_note_own(w, text);
    return rc;
  }
  children_failures_cause_of(w->c, text, sizeof text);
  if (!children_failures_find_failure(w, &own, words)) children_failures_note_failure(w, CAUSED, text);
  if (!w->heard_ns) w->heard_ns = hk_now_ns();
  hk_wait_begin(&nap, &env);
  while (children_failures_find_failure(w, &own, words) && !own && hk_now_ns() - w->heard_ns < GRACE_NS &&
         !children_failures_parent_is_over(w))
    (void)hk_wait_nap(&nap, -1, 1000 * 1000);
  if (!children_failures_find_failure(w, &own, words) ||
      (children_failures_parent_is_over(w) && !children_failures_aborted_since(w)))
    return rc;
  w->settled = true;
  return HK_FAIL(HK_ERR_REMOTE, "%s", words);
}
