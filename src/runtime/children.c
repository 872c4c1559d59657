/* SPDX-License-Identifier: Apache-2.0 */
/* Children of a communicator: their members, and how a member that fails or has another list ends the making. */
#include "children.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../boot/bootstrap.h"
#include "../boot/host.h" /* hk_hash */
#include "story.h"

/* ---- lists of excluded ranks ----
 * The members of a shrink compute each other's new ranks from the list that each was given.  With lists that differ
 * they would wait for each other in vain, so each rank announces its list to the parent's ranks, and the end of its
 * shrink. */
enum {
  HASH_DIGITS = 16,
  WORDS_AT = HASH_DIGITS + 1, /* before them: a hash of the whole list, and a space */
  TOKEN = HASH_DIGITS + 10,   /* a hash, a colon, eight digits, a space */
  DIFFERENT = '!',            /* begins a notice that lists differ: a verdict */
  FAILED = '#'                /* begins a notice that a rank has failed in making a child */
};
_Static_assert(HK_EVENT_TEXT == sizeof((hk_children_watch *)0)->verdict, "a notice holds a verdict");
static const uint64_t DIFFER_NS = 3000000000u; /* for the news that a rank is in another shrink now */

typedef struct hk_notice {
  struct hk_notice *next;
  int rank;
  char text[HK_EVENT_TEXT];    /* the list of its shrink; empty: it is in none */
  char verdict[HK_EVENT_TEXT]; /* its newest one: it may be in another shrink by the time that it is looked at */
} hk_notice;

/* How often members tried to meet with a list: the same on all of them, since a list is a set of members. */
typedef struct hk_attempts {
  struct hk_attempts *next;
  char hash[HASH_DIGITS];
  uint32_t n;
} hk_attempts;

/* A rank's failure in making a child.  The text: '#', the child's key, a space, two letters (see note_failure), the
 * words. */
typedef struct hk_child_failure {
  struct hk_child_failure *next;
  int rank;
  char text[HK_EVENT_TEXT];
} hk_child_failure;

/* Keeps the newest failures. A member may still be making an earlier child, but not one of long ago. Under the lock. */
static void keep_failure(ncclComm_t parent, const hk_event *e) {
  enum { KEPT = 64 };
  hk_child_failure *f = malloc(sizeof *f); /* without memory the failure shows as a timeout */
  if (!f) return;
  f->rank = e->rank;
  snprintf(f->text, sizeof f->text, "%s", e->text);
  f->next = parent->order.failures;
  parent->order.failures = f;
  for (int i = 1; i < KEPT && f; i++) f = f->next;
  if (!f || !f->next) return;
  free(f->next); /* the list grows by one at a time: it is the last */
  f->next = NULL;
}

void hk_children_heard(ncclComm_t parent, const hk_event *e) {
  pthread_mutex_lock(&parent->health.lock);
  if (e->text[0] == FAILED) {
    keep_failure(parent, e);
    pthread_mutex_unlock(&parent->health.lock);
    return;
  }
  hk_notice *n = parent->order.notices;
  while (n && n->rank != e->rank) n = n->next;
  if (!n && (n = calloc(1, sizeof *n))) { /* without memory a difference shows as a timeout */
    n->rank = e->rank;
    n->next = parent->order.notices;
    parent->order.notices = n;
  }
  if (n && e->text[0] == DIFFERENT) {
    snprintf(n->verdict, sizeof n->verdict, "%s", e->text);
    n->text[0] = 0;
  } else if (n) {
    snprintf(n->text, sizeof n->text, "%s", e->text);
  }
  pthread_mutex_unlock(&parent->health.lock);
}

void hk_children_free(ncclComm_t parent) {
  while (parent->order.notices) {
    hk_notice *n = parent->order.notices;
    parent->order.notices = n->next;
    free(n);
  }
  while (parent->order.attempts) {
    hk_attempts *a = parent->order.attempts;
    parent->order.attempts = a->next;
    free(a);
  }
  while (parent->order.failures) {
    hk_child_failure *f = parent->order.failures;
    parent->order.failures = f->next;
    free(f);
  }
}

static bool excludes(const hk_init *how, int rank) {
  for (int i = 0; i < how->nexclude; i++)
    if (how->exclude[i] == rank) return true;
  return false;
}

/* A hash of the whole list, then the list in words, as far as there is room. */
static void list_words(const hk_init *how, char *text, size_t bytes) {
  uint64_t hash = 0;
  size_t used = WORDS_AT;
  text[used] = 0;
  for (int r = 0; r < how->parent->nranks; r++) {
    if (!excludes(how, r)) continue;
    hash = hk_hash(hash, &r, sizeof r);
    const char *comma = used > WORDS_AT ? ", " : "";
    if (bytes - used > 40)
      used += (size_t)snprintf(text + used, bytes - used, "%s%d", comma, r);
    else if (text[used - 1] != '.')
      used += (size_t)snprintf(text + used, bytes - used, "%s...", comma);
  }
  char digits[WORDS_AT + 1];
  snprintf(digits, sizeof digits, "%016llx ", (unsigned long long)hash);
  memcpy(text, digits, WORDS_AT);
}

/* The attempts with the list that `hash` is of, made if there are none; NULL without memory.  Under the lock. */
static hk_attempts *attempts_of(ncclComm_t parent, const char *hash) {
  hk_attempts *a = parent->order.attempts;
  while (a && memcmp(a->hash, hash, HASH_DIGITS) != 0) a = a->next;
  if (a || !(a = calloc(1, sizeof *a))) return a;
  memcpy(a->hash, hash, HASH_DIGITS);
  a->next = parent->order.attempts;
  parent->order.attempts = a;
  return a;
}

static void announce(ncclComm_t parent, hk_event *e) {
  e->kind = HK_EVENT_SHRINK;
  e->rank = parent->rank;
  e->code = (int32_t)++parent->order.announced;
  hk_children_heard(parent, e);
  hk_bootstrap_announce(parent->bootstrap, e);
}

static void begin_shrink(hk_children_watch *w) {
  hk_event e = {0};
  ncclComm_t parent = w->how->parent;
  list_words(w->how, e.text, sizeof e.text);
  memcpy(w->hash, e.text, HASH_DIGITS);
  pthread_mutex_lock(&parent->health.lock);
  hk_attempts *a = attempts_of(parent, w->hash);
  w->attempt = a ? ++a->n : 1;
  pthread_mutex_unlock(&parent->health.lock);
  snprintf(w->key, sizeof w->key, "x%.16s:%08x", w->hash, w->attempt);
  announce(parent, &e);
}

/* The notice of a member that stays, by our list, and whose list is not `than`: of the lowest such rank.  Under the
 * lock. */
static const hk_notice *lowest_notice(const hk_init *how, const char *than) {
  const hk_notice *low = NULL;
  for (const hk_notice *n = how->parent->order.notices; n; n = n->next) {
    if (!n->text[0] || excludes(how, n->rank)) continue;
    if (than && strcmp(n->text, than) == 0) continue;
    if (!low || n->rank < low->rank) low = n;
  }
  return low;
}

/* How many ranks give this list, members by ours or not: all ranks count the same.  Under the lock. */
static int ranks_with(ncclComm_t parent, const char *list) {
  int ranks = 0;
  for (const hk_notice *n = parent->order.notices; n; n = n->next) ranks += strcmp(n->text, list) == 0;
  return ranks;
}

/* The verdict: for each list that it is about its hash and the number of the attempt, then the words.  All members
 * count the attempts alike, so that the next ones have equal numbers.  Under the lock. */
static void pronounce(hk_children_watch *w, const hk_notice *low, const hk_notice *other) {
  const hk_init *how = w->how;
  size_t bytes = sizeof w->verdict,
         used = (size_t)snprintf(w->verdict, bytes, "%c%.16s:%08x ", DIFFERENT, w->hash, w->attempt);
  for (const hk_notice *n = how->parent->order.notices; n && used < 8 * TOKEN; n = n->next) {
    char hash[HASH_DIGITS + 1] = "";
    if (!n->text[0] || excludes(how, n->rank)) continue;
    memcpy(hash, n->text, HASH_DIGITS);
    if (strstr(w->verdict, hash)) continue;
    hk_attempts *a = attempts_of(how->parent, hash);
    if (a) used += (size_t)snprintf(w->verdict + used, bytes - used, "%s:%08x ", hash, ++a->n);
  }
  bool low_is_odd = ranks_with(how->parent, low->text) < ranks_with(how->parent, other->text);
  const hk_notice *odd = low_is_odd ? low : other, *norm = low_is_odd ? other : low;
  snprintf(w->verdict + used, bytes - used, "|rank %d excludes %.600s, but rank %d excludes %.600s", odd->rank,
           odd->text + WORDS_AT, norm->rank, norm->text + WORDS_AT);
}

/* Is another member's verdict about our attempt?  Then it is ours.  Under the lock. */
static bool takes_verdict(hk_children_watch *w, const char *verdict) {
  const char *mine = strstr(verdict, w->hash), *words = strchr(verdict, '|');
  if (!mine || !words || mine > words || strtoul(mine + HASH_DIGITS + 1, NULL, 16) < w->attempt) return false;
  for (const char *at = verdict + 1; at + TOKEN <= words; at += TOKEN) {
    hk_attempts *a = attempts_of(w->how->parent, at);
    uint32_t n = (uint32_t)strtoul(at + HASH_DIGITS + 1, NULL, 16);
    if (a && a->n < n) a->n = n;
  }
  snprintf(w->verdict, sizeof w->verdict, "%s", verdict);
  return true;
}

/* Sets the verdict if there is one: at once if another member has given it, else when lists have differed for so
 * long, in nanoseconds, that no news is under way that would show that they do not. */
static void judge(hk_children_watch *w, uint64_t long_ns) {
  ncclComm_t parent = w->how->parent;
  if (w->verdict[0] || !w->attempt) return;
  pthread_mutex_lock(&parent->health.lock);
  for (const hk_notice *n = parent->order.notices; n && !w->verdict[0]; n = n->next)
    if (n->verdict[0] && !excludes(w->how, n->rank)) (void)takes_verdict(w, n->verdict);
  const hk_notice *low = lowest_notice(w->how, NULL), *other = low ? lowest_notice(w->how, low->text) : NULL;
  if (!other) w->differ_ns = 0;
  if (other && !w->differ_ns) w->differ_ns = hk_now_ns();
  if (other && !w->verdict[0] && hk_now_ns() - w->differ_ns >= long_ns) pronounce(w, low, other);
  pthread_mutex_unlock(&parent->health.lock);
}

static hk_status compare_lists(hk_children_watch *w, uint64_t long_ns) {
  judge(w, long_ns);
  if (!w->verdict[0]) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "ncclCommShrink: %s: give the same list on all ranks that stay",
                 strchr(w->verdict, '|') + 1);
}

bool hk_children_parent_failed(ncclComm_t parent) {
  if (atomic_load(&parent->health.revoked)) return false; /* children are made of it all the same */
  return hk_comm_failing(parent);
}

/* Then that is the story. */
static bool parent_is_over(const hk_children_watch *w) {
  return atomic_load(&w->how->parent->health.closing) == HK_CLOSING_ABORT || hk_children_parent_failed(w->how->parent);
}

/* ---- failures ----
 * A rank that fails in making a child may have no link with those that wait for it, or none in which they wait.  It
 * reports the failure over the parent's overlay, which leaves the parent as it is.  A rank that fails because of
 * another one reports what it knows, so that those that wait for it end, too.  Members collect these notices for a
 * short time and take the strongest. */
enum { OWN = 'o', CAUSED = 'c', BEFORE = 'b', AFTER = 'a' };
static const uint64_t GRACE_NS = 200000000u;

static bool is_member(const hk_children_watch *w, int rank) {
  if (w->how->exclude) return !excludes(w->how, rank);
  for (int i = 0; i < w->c->nranks; i++)
    if (w->members && w->members[i] == rank) return true;
  return false;
}

/* The letters of the notice if it is about this child and ends it here, else NULL.  A split that a rank leaves before
 * its members are known is over for all ranks. */
static const char *ends_child(const hk_children_watch *w, const hk_child_failure *f) {
  size_t key = strlen(w->key);
  const char *letters = f->text + 1 + key + 1;
  if (!key || strncmp(f->text + 1, w->key, key) != 0 || f->text[1 + key] != ' ') return NULL;
  return (letters[1] == BEFORE && !w->how->exclude) || is_member(w, f->rank) ? letters : NULL;
}

/* The strongest notice: a rank's failure of its own, then the lowest rank's.  The words into `words`; false: there is
 * none. */
static bool find_failure(const hk_children_watch *w, bool *own, char words[HK_EVENT_TEXT]) {
  ncclComm_t parent = w->how->parent;
  int rank = -1;
  *own = false;
  pthread_mutex_lock(&parent->health.lock);
  for (const hk_child_failure *f = parent->order.failures; f; f = f->next) {
    const char *letters = ends_child(w, f);
    bool o = letters && letters[0] == OWN;
    if (!letters || (rank >= 0 && (o != *own ? *own : f->rank > rank))) continue;
    rank = f->rank;
    *own = o;
    snprintf(words, HK_EVENT_TEXT, "%s", letters + 2);
  }
  pthread_mutex_unlock(&parent->health.lock);
  return rank >= 0;
}

static void note_failure(const hk_children_watch *w, char whose, const char *words) {
  hk_event e = {0};
  snprintf(e.text, sizeof e.text, "%c%s %c%c%.1400s", FAILED, w->key, whose, w->members ? AFTER : BEFORE, words);
  announce(w->how->parent, &e);
}

/* In waits: has another member failed? */
static hk_status check_failures(void *arg) {
  hk_children_watch *w = arg;
  char words[HK_EVENT_TEXT];
  bool own;
  int failure = atomic_load(&w->c->health.failure); /* waits in the parent's collectives do not look at it */
  if (failure) return HK_FAIL((hk_status)failure, "another call ended the making of the new communicator");
  if (w->c->bootstrap || !find_failure(w, &own, words))
    return HK_OK; /* a child that all have joined has its own events */
  if (!w->heard_ns) w->heard_ns = hk_now_ns();
  if (!own && hk_now_ns() - w->heard_ns < GRACE_NS) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE, "%s", words);
}

/* A member that has its result may abort the parent while others still collect: that is no cause of theirs. */
static bool aborted_since(const hk_children_watch *w) {
  ncclComm_t parent = w->how->parent;
  char words[HK_EVENT_TEXT];
  bool own;
  if (atomic_load(&parent->health.closing) == HK_CLOSING_ABORT || !find_failure(w, &own, words)) return false;
  (void)hk_comm_settle(parent, NULL);
  pthread_mutex_lock(&parent->health.lock);
  bool aborted = parent->health.settle_ns && parent->health.story.kind == HK_EVENT_ABORT;
  pthread_mutex_unlock(&parent->health.lock);
  return aborted;
}

/* What an event of the child said that ended its making here, or the thread's error. */
static void cause_of(ncclComm_t c, char *text, size_t bytes) {
  pthread_mutex_lock(&c->health.lock);
  if (c->health.settle_ns)
    hk_story_text(&c->health.story, c->rank, text, bytes);
  else
    snprintf(text, bytes, "%s", hk_last_error());
  pthread_mutex_unlock(&c->health.lock);
}

/* After a failure: reports it to the members, and gives the one that all of them report. */
static hk_status settle_failure(hk_children_watch *w, hk_status rc) {
  char words[HK_EVENT_TEXT], text[1400];
  bool own, aborted = atomic_load(&w->c->health.closing) == HK_CLOSING_ABORT;
  hk_wait_env env = {.spins = 0};
  hk_waiter nap;
  if (!w->key[0] || w->c->bootstrap || w->verdict[0] || (parent_is_over(w) && !aborted_since(w))) return rc;
  if (aborted || rc != HK_ERR_REMOTE) {
    snprintf(text, sizeof text, "rank %d %s%.1300s", w->how->parent->rank,
             aborted ? "aborted the new communicator" : "failed: ", aborted ? "" : hk_last_error());
    note_failure(w, OWN, text);
    return rc;
  }
  cause_of(w->c, text, sizeof text);
  if (!find_failure(w, &own, words)) note_failure(w, CAUSED, text);
  if (!w->heard_ns) w->heard_ns = hk_now_ns();
  hk_wait_begin(&nap, &env);
  while (find_failure(w, &own, words) && !own && hk_now_ns() - w->heard_ns < GRACE_NS && !parent_is_over(w))
    (void)hk_wait_nap(&nap, -1, 1000 * 1000);
  if (!find_failure(w, &own, words) || (parent_is_over(w) && !aborted_since(w))) return rc;
  w->settled = true;
  return HK_FAIL(HK_ERR_REMOTE, "%s", words);
}

/* ---- waits ---- */

static hk_status parent_ended(const hk_init *how) {
  if (!how->parent || atomic_load(&how->parent->health.closing) != HK_CLOSING_ABORT) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE, "ncclCommAbort of the parent communicator ended the init of its child");
}

static hk_status watch(void *arg, uint64_t waited_ns) {
  hk_children_watch *w = arg;
  hk_status rc = hk_watch(w->c, waited_ns);
  if (rc == HK_OK) rc = parent_ended(w->how);
  if (rc == HK_OK && w->how->exclude) rc = compare_lists(w, DIFFER_NS);
  return rc == HK_OK ? check_failures(w) : rc;
}

/* Gives the child the name that its notices have. */
static void name_child(hk_children_watch *w) {
  if (w->how->exclude)
    begin_shrink(w);
  else
    snprintf(w->key, sizeof w->key, "s%llu", (unsigned long long)w->how->split);
}

void hk_children_watch_begin(hk_children_watch *w, ncclComm_t c, const hk_init *how) {
  *w = (hk_children_watch){.c = c, .how = how};
  if (!how->parent) return;
  c->wait.check = watch;
  c->wait.arg = w;
  name_child(w);
}

static hk_status end_shrink(hk_children_watch *w, hk_status rc) {
  /* Where lists differ another member may have failed first, and this one because of that. */
  if (rc != HK_OK && (w->verdict[0] || compare_lists(w, 0) != HK_OK)) rc = HK_ERR_USAGE;
  hk_event e = {0};
  memcpy(e.text, w->verdict, sizeof e.text);
  announce(w->how->parent, &e);
  return rc;
}

hk_status hk_children_watch_end(hk_children_watch *w, hk_status rc) {
  if (!w->c || !w->how->parent) return rc;
  w->c->wait.check = hk_watch;
  w->c->wait.arg = w->c;
  if (!w->how->exclude && !w->exchanging) hk_bootstrap_skip(w->how->parent->bootstrap);
  if (w->how->exclude) rc = end_shrink(w, rc);
  if (rc != HK_OK) rc = settle_failure(w, rc);
  free(w->members);
  w->members = NULL;
  return rc;
}

/* ---- turns ---- */

void hk_children_enter(hk_init *how) {
  if (!how->parent) return;
  atomic_fetch_add(&how->parent->health.inside, 1);
  how->turn = ++how->parent->order.children;
  if (!how->exclude) how->split = ++how->parent->order.splits;
}

void hk_children_leave(ncclComm_t parent) {
  if (!parent) return;
  /* release: as hk_children_turn says */
  atomic_fetch_add_explicit(&parent->order.children_over, 1, memory_order_release);
  atomic_fetch_sub(&parent->health.inside, 1);
}

hk_status hk_children_turn(const hk_init *how) {
  hk_status rc = HK_OK;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  /* acquire: the earlier child's exchange over the parent's overlay has ended before this one begins */
  while (atomic_load_explicit(&how->parent->order.children_over, memory_order_acquire) + 1 < how->turn) {
    HK_TRY(parent_ended(how), out);
    HK_TRY(hk_wait_nap(&w, -1, 200 * 1000), out);
  }
out:
  return rc;
}

void hk_children_refuse(const hk_init *how) {
  hk_children_watch w = {.how = how};
  hk_event over = {0};
  char cause[HK_ERROR_TEXT], text[1400];
  if (!how->parent) {
    hk_comm_excuse(how);
    return;
  }
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  snprintf(text, sizeof text, "rank %d failed: %.1300s", how->parent->rank, cause);
  if (hk_children_turn(how) == HK_OK) {
    name_child(&w);
    note_failure(&w, OWN, text);
    if (how->exclude)
      announce(how->parent, &over);
    else
      hk_bootstrap_skip(how->parent->bootstrap);
  }
  hk_error_adopt(cause);
  hk_children_leave(how->parent);
}

hk_status hk_children_exchange(hk_children_watch *w, void *rows, size_t row_bytes) {
  hk_bootstrap *all = w->how->parent->bootstrap;
  w->exchanging = true;
  hk_bootstrap_also(all, check_failures, w);
  hk_status rc = hk_bootstrap_allgather(all, rows, row_bytes);
  hk_bootstrap_also(all, NULL, NULL);
  return rc;
}

/* ---- members ---- */

typedef struct split_row {
  int color, key;
} split_row;

/* An exchange between all ranks of a parent whose own overlay has ended its collectives: in an overlay made for it. */
static hk_status exchange_anew(ncclComm_t parent, const hk_init *how, const hk_bootstrap_options *o, split_row *rows) {
  hk_status rc = HK_OK;
  hk_bootstrap *all = NULL;
  hk_bootstrap_options own = {
      .rank = parent->rank, .nranks = parent->nranks, .name = o->name, .wait = o->wait, .service = o->service};
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

static hk_status exchange(hk_children_watch *w, const hk_bootstrap_options *o, split_row *rows) {
  const hk_init *how = w->how;
  ncclComm_t parent = how->parent;
  hk_status rc = HK_ERR_USAGE;
  rows[parent->rank] = (split_row){how->color, how->key};
  if (!atomic_load(&parent->health.revoked)) rc = hk_children_exchange(w, rows, sizeof *rows);
  if (rc == HK_OK || !atomic_load(&parent->health.revoked)) return rc;
  return exchange_anew(parent, how, o, rows);
}

/* The members of this rank's color, by (key, parent's rank); sets the new rank and size. */
static hk_status split_members(ncclComm_t c, const hk_init *how, const hk_bootstrap_options *o, int **out) {
  hk_status rc = HK_OK;
  ncclComm_t parent = how->parent;
  int n = parent->nranks, count = 0;
  split_row *rows = calloc((size_t)n, sizeof *rows);
  int *members = malloc((size_t)n * sizeof *members);
  if (!rows || !members) {
    rc = HK_FAIL_ERRNO("no memory to split %d ranks", n);
    goto out;
  }
  HK_TRY(exchange(c->wait.arg, o, rows), out);
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

static hk_status shrink_members(ncclComm_t c, const hk_init *how, int **out) {
  ncclComm_t parent = how->parent;
  int count = 0;
  int *members = malloc((size_t)parent->nranks * sizeof *members);
  if (!members) return HK_FAIL_ERRNO("no memory to shrink %d ranks", parent->nranks);
  for (int r = 0; r < parent->nranks; r++) {
    if (r == parent->rank) c->rank = count;
    if (!excludes(how, r)) members[count++] = r;
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
  HK_TRY(how->exclude ? shrink_members(c, how, &members) : split_members(c, how, o, &members), out);
  if (c->nranks == 0) goto out; /* NCCL_SPLIT_NOCOLOR: took part, gets nothing */
  w->members = members;
  o->rank = c->rank;
  o->nranks = c->nranks;
  if (how->exclude) {
    child = (uint64_t)w->attempt << 32 | 0x80000000u;
  } else {
    child = how->split << 32 | (unsigned)how->color;
  }
  HK_TRY(hk_bootstrap_join_child(&c->bootstrap, how->parent->bootstrap, members, child, o), out);
out:
  hk_bootstrap_begin(how->parent->bootstrap, HK_PHASE_IDLE, NULL);
  if (w->members != members) free(members);
  return rc;
}
