/* SPDX-License-Identifier: Apache-2.0 */
#include "children.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "host.h" /* hk_hash */

/* ---- lists of excluded ranks ----
 * The members of a shrink compute each other's new ranks from the list that each was given.  With lists that differ they would
 * wait for each other in vain, so each rank announces its list to the parent's ranks, and the end of its shrink. */
enum {
  HASH_DIGITS = 16,
  WORDS_AT = HASH_DIGITS + 1, /* before them: a hash of the whole list, and a space */
  TOKEN = HASH_DIGITS + 10,   /* a hash, a colon, eight digits, a space */
  DIFFERENT = '!'             /* begins a notice that lists differ: a verdict */
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

void hk_children_heard(ncclComm_t parent, const hk_event *e) {
  pthread_mutex_lock(&parent->health.lock);
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
  announce(parent, &e);
}

/* The notice of a member that stays, by our list, and whose list is not `than`: of the lowest such rank.  Under the lock. */
static const hk_notice *lowest_notice(const hk_init *how, const char *than) {
  const hk_notice *low = NULL;
  for (const hk_notice *n = how->parent->order.notices; n; n = n->next) {
    if (!n->text[0] || excludes(how, n->rank)) continue;
    if (than && strcmp(n->text, than) == 0) continue;
    if (!low || n->rank < low->rank) low = n;
  }
  return low;
}

/* The verdict: for each list that it is about its hash and the number of the attempt, then the words.  All members count the
 * attempts alike, so that the next ones have equal numbers.  Under the lock. */
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
  snprintf(w->verdict + used, bytes - used, "|rank %d excludes %.600s, rank %d excludes %.600s", low->rank,
           low->text + WORDS_AT, other->rank, other->text + WORDS_AT);
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

/* Sets the verdict where there is one: at once where another member has given it; else when lists have differed for so long, in
 * nanoseconds, that no news is under way that would show that they do not. */
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
  return rc;
}

void hk_children_watch_begin(hk_children_watch *w, ncclComm_t c, const hk_init *how) {
  *w = (hk_children_watch){.c = c, .how = how};
  if (!how->parent) return;
  c->wait.check = watch;
  c->wait.arg = w;
}

hk_status hk_children_watch_end(hk_children_watch *w, hk_status rc) {
  if (!w->c || !w->how->parent) return rc;
  w->c->wait.check = hk_watch;
  w->c->wait.arg = w->c;
  if (!w->how->exclude) return rc;
  /* Where lists differ another member may have failed first, and this one because of that. */
  if (rc != HK_OK && (w->verdict[0] || compare_lists(w, 0) != HK_OK)) rc = HK_ERR_USAGE;
  hk_event e = {0};
  memcpy(e.text, w->verdict, sizeof e.text);
  announce(w->how->parent, &e);
  return rc;
}

hk_status hk_children_turn(const hk_init *how) {
  hk_status rc = HK_OK;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  /* acquire: the earlier child's exchange over the parent's overlay is behind us */
  while (atomic_load_explicit(&how->parent->order.children_over, memory_order_acquire) + 1 < how->turn) {
    HK_TRY(parent_ended(how), out);
    HK_TRY(hk_wait_nap(&w, -1, 200 * 1000), out);
  }
out:
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

static hk_status exchange(const hk_init *how, const hk_bootstrap_options *o, split_row *rows) {
  ncclComm_t parent = how->parent;
  hk_status rc = HK_ERR_USAGE;
  rows[parent->rank] = (split_row){how->color, how->key};
  if (!atomic_load(&parent->health.revoked)) {
    rc = hk_bootstrap_allgather(parent->bootstrap, rows, sizeof *rows);
  }
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
  HK_TRY(exchange(how, o, rows), out);
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
  int *members = NULL;
  uint64_t child;
  char what[64];
  snprintf(what, sizeof what, "%s, child number %llu", how->exclude ? "ncclCommShrink" : "ncclCommSplit",
           (unsigned long long)how->turn);
  hk_bootstrap_begin(how->parent->bootstrap, how->exclude ? HK_PHASE_SHRINK : HK_PHASE_SPLIT, what);
  HK_TRY(how->exclude ? shrink_members(c, how, &members) : split_members(c, how, o, &members), out);
  if (c->nranks == 0) goto out; /* NCCL_SPLIT_NOCOLOR: took part, gets nothing */
  o->rank = c->rank;
  o->nranks = c->nranks;
  if (how->exclude) {
    hk_children_watch *w = c->wait.arg;
    begin_shrink(w);
    child = (uint64_t)w->attempt << 32 | 0x80000000u;
  } else {
    child = how->split << 32 | (unsigned)how->color;
  }
  HK_TRY(hk_bootstrap_join_child(&c->bootstrap, how->parent->bootstrap, members, child, o), out);
out:
  hk_bootstrap_begin(how->parent->bootstrap, HK_PHASE_IDLE, NULL);
  free(members);
  return rc;
}
