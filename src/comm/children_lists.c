/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of excluded ranks.
 *
 * The members of a shrink compute the new ranks from the exclude list of their call. If the lists differed, they would
 * wait for each other forever. So each rank announces its list, and later the end of its shrink, to the parent's
 * ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "children_internal.h"

enum {
  HASH_DIGITS = 16,
  WORDS_AT = HASH_DIGITS + 1, /* the text before it is a hash of the whole list and a space */
  TOKEN = HASH_DIGITS + 10    /* a hash, a colon, eight digits, a space */
};
_Static_assert(HK_EVENT_TEXT == sizeof((hk_children_watch *)0)->verdict, "a notice holds a verdict");
static const uint64_t DIFFER_NS = 3000000000u; /* time for the notice that a rank is in another shrink now */
static const uint64_t BEHIND_NS = 200000000u;  /* time for the notice that the attempt has failed */

typedef struct hk_notice {
  struct hk_notice *next;
  int rank;
  char text[HK_EVENT_TEXT]; /* the list of the rank's shrink; empty: it is in none */
  uint32_t attempt;         /* number of its attempt with that list */
  /* its newest verdict; kept, because the rank may already be in another shrink when it is read */
  char verdict[HK_EVENT_TEXT];
} hk_notice;

/* The number of attempts with a list. Equal on all members, because a list determines the members. */
typedef struct hk_attempts {
  struct hk_attempts *next;
  char hash[HASH_DIGITS];
  uint32_t n;
} hk_attempts;

void hk_children_keep_list(ncclComm_t parent, const hk_event *e) {
  hk_notice *n = parent->order.notices;
  while (n && n->rank != e->rank) n = n->next;
  if (!n && (n = calloc(1, sizeof *n))) { /* without memory a difference shows as a timeout */
    n->rank = e->rank;
    n->next = parent->order.notices;
    parent->order.notices = n;
  }
  if (n && e->text[0] == HK_CHILDREN_DIFFERENT) {
    snprintf(n->verdict, sizeof n->verdict, "%s", e->text);
    n->text[0] = 0;
  } else if (n && strnlen(e->text, sizeof e->text) <= TOKEN) {
    n->text[0] = 0;
  } else if (n) {
    n->attempt = (uint32_t)strtoul(e->text + HASH_DIGITS + 1, NULL, 16);
    snprintf(n->text, sizeof n->text, "%.*s %s", HASH_DIGITS, e->text, e->text + TOKEN);
  }
}

void hk_children_free_lists(ncclComm_t parent) {
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

/* A hash of the whole list, then the list as text, cut to the room. */
static void children_lists_list_words(const hk_init *how, char *text, size_t bytes) {
  uint64_t hash = 0;
  size_t used = WORDS_AT;
  text[used] = 0;
  for (int r = 0; r < how->parent->nranks; r++) {
    if (!hk_children_excludes(how, r)) continue;
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

/* The attempts with the list whose hash is `hash`, created if there are none; NULL without memory. Under the lock. */
static hk_attempts *children_lists_attempts_of(ncclComm_t parent, const char *hash) {
  hk_attempts *a = parent->order.attempts;
  while (a && memcmp(a->hash, hash, HASH_DIGITS) != 0) a = a->next;
  if (a || !(a = calloc(1, sizeof *a))) return a;
  memcpy(a->hash, hash, HASH_DIGITS);
  a->next = parent->order.attempts;
  parent->order.attempts = a;
  return a;
}

/* Begins the next attempt with this list; its number is at least `least`. Calls that were refused on this rank count,
 * because the other ranks have most likely made them with this list. */
static void lists_begin_attempt(hk_children_watch *w, uint32_t least) {
  hk_event e = {0};
  char list[HK_EVENT_TEXT - TOKEN];
  ncclComm_t parent = w->how->parent;
  children_lists_list_words(w->how, list, sizeof list);
  memcpy(w->hash, list, HASH_DIGITS);
  pthread_mutex_lock(&parent->health.lock);
  hk_attempts *a = children_lists_attempts_of(parent, w->hash);
  w->attempt = (a ? a->n : 0) + 1 + parent->order.unlisted;
  parent->order.unlisted = 0;
  if (w->attempt < least) w->attempt = least;
  if (a) a->n = w->attempt;
  pthread_mutex_unlock(&parent->health.lock);
  snprintf(w->key, sizeof w->key, "x%.16s:%08x", w->hash, w->attempt);
  snprintf(e.text, sizeof e.text, "%.16s:%08x %s", w->hash, w->attempt, list + WORDS_AT);
  hk_children_announce(parent, &e);
}

void hk_children_begin_shrink(hk_children_watch *w) { lists_begin_attempt(w, 1); }

/* The notice of the lowest rank that our list does not exclude and whose own list is not `than`. Under the lock. */
static const hk_notice *children_lists_lowest_notice(const hk_init *how, const char *than) {
  const hk_notice *low = NULL;
  for (const hk_notice *n = how->parent->order.notices; n; n = n->next) {
    if (!n->text[0] || hk_children_excludes(how, n->rank)) continue;
    if (than && strcmp(n->text, than) == 0) continue;
    if (!low || n->rank < low->rank) low = n;
  }
  return low;
}

/* The number of ranks that give this list, whether or not ours excludes them: so all ranks count alike. Under the
 * lock. */
static int children_lists_ranks_with(ncclComm_t parent, const char *list) {
  int ranks = 0;
  for (const hk_notice *n = parent->order.notices; n; n = n->next) ranks += strcmp(n->text, list) == 0;
  return ranks;
}

/* Writes the verdict: for each differing list its hash and the number of its attempt, then the message. All members
 * take over these numbers, so that later attempts have equal numbers. Under the lock. */
static void children_lists_pronounce(hk_children_watch *w, const hk_notice *low, const hk_notice *other) {
  const hk_init *how = w->how;
  size_t bytes = sizeof w->verdict,
         used = (size_t)snprintf(w->verdict, bytes, "%c%.16s:%08x ", HK_CHILDREN_DIFFERENT, w->hash, w->attempt);
  for (const hk_notice *n = how->parent->order.notices; n && used < 8 * TOKEN; n = n->next) {
    char hash[HASH_DIGITS + 1] = "";
    if (!n->text[0] || hk_children_excludes(how, n->rank)) continue;
    memcpy(hash, n->text, HASH_DIGITS);
    if (strstr(w->verdict, hash)) continue;
    hk_attempts *a = children_lists_attempts_of(how->parent, hash);
    if (a) used += (size_t)snprintf(w->verdict + used, bytes - used, "%s:%08x ", hash, ++a->n);
  }
  bool low_is_odd = children_lists_ranks_with(how->parent, low->text) <
                    children_lists_ranks_with(how->parent, other->text);
  const hk_notice *odd = low_is_odd ? low : other, *norm = low_is_odd ? other : low;
  snprintf(w->verdict + used, bytes - used, "|rank %d excludes %.600s, but rank %d excludes %.600s", odd->rank,
           odd->text + WORDS_AT, norm->rank, norm->text + WORDS_AT);
}

/* If another member's verdict is about our attempt, takes it over and returns true. Under the lock. */
static bool children_lists_takes_verdict(hk_children_watch *w, const char *verdict) {
  const char *words = strchr(verdict, '|');
  const char *mine = words ? memmem(verdict, (size_t)(words - verdict), w->hash, HASH_DIGITS) : NULL;
  if (!mine || strtoul(mine + HASH_DIGITS + 1, NULL, 16) < w->attempt) return false;
  for (const char *at = verdict + 1; at + TOKEN <= words; at += TOKEN) {
    hk_attempts *a = children_lists_attempts_of(w->how->parent, at);
    uint32_t n = (uint32_t)strtoul(at + HASH_DIGITS + 1, NULL, 16);
    if (a && a->n < n) a->n = n;
  }
  snprintf(w->verdict, sizeof w->verdict, "%s", verdict);
  return true;
}

/* Sets the verdict if there is one: at once if another member has given it, else once the lists have differed for
 * long_ns, which is longer than a notice needs to arrive. */
static void children_lists_judge(hk_children_watch *w, uint64_t long_ns) {
  ncclComm_t parent = w->how->parent;
  if (w->verdict[0] || !w->attempt) return;
  pthread_mutex_lock(&parent->health.lock);
  for (const hk_notice *n = parent->order.notices; n && !w->verdict[0]; n = n->next)
    if (n->verdict[0] && !hk_children_excludes(w->how, n->rank)) (void)children_lists_takes_verdict(w, n->verdict);
  const hk_notice *low = children_lists_lowest_notice(w->how, NULL),
                  *other = low ? children_lists_lowest_notice(w->how, low->text) : NULL;
  if (!other) w->differ_ns = 0;
  if (other && !w->differ_ns) w->differ_ns = hk_now_ns();
  if (other && !w->verdict[0] && hk_now_ns() - w->differ_ns >= long_ns) children_lists_pronounce(w, low, other);
  pthread_mutex_unlock(&parent->health.lock);
}

/* The newest attempt of a member with our list. */
static uint32_t children_lists_newest_attempt(const hk_children_watch *w) {
  ncclComm_t parent = w->how->parent;
  uint32_t newest = 0;
  pthread_mutex_lock(&parent->health.lock);
  for (const hk_notice *n = parent->order.notices; n; n = n->next)
    if (memcmp(n->text, w->hash, HASH_DIGITS) == 0 && n->attempt > newest) newest = n->attempt;
  pthread_mutex_unlock(&parent->health.lock);
  return newest;
}

hk_status hk_children_check_attempt(hk_children_watch *w) {
  if (w->c->bootstrap || children_lists_newest_attempt(w) <= w->attempt) {
    w->behind_ns = 0;
    return HK_OK;
  }
  if (!w->behind_ns) w->behind_ns = hk_now_ns();
  if (hk_now_ns() - w->behind_ns < BEHIND_NS) return HK_OK;
  hk_error_adopt("a later attempt of this ncclCommShrink is under way"); /* no user sees this error */
  return HK_ERR_REMOTE;
}

/* True if this attempt has ended with a result for the user. */
static bool children_lists_is_over(hk_children_watch *w) {
  children_lists_judge(w, DIFFER_NS);
  return w->verdict[0] || hk_children_has_failed(w) || hk_children_parent_failed(w->how->parent) ||
         atomic_load(&w->how->parent->health.closing) != HK_CLOSING_NO;
}

bool hk_children_catch_up(hk_children_watch *w) {
  hk_health *h = &w->c->health;
  const uint32_t newest = children_lists_newest_attempt(w);
  hk_wait_env env = {.spins = 0};
  hk_waiter nap;
  if (newest <= w->attempt) return false;
  if (!w->behind_ns) w->behind_ns = hk_now_ns();
  hk_wait_begin(&nap, &env);
  while (!children_lists_is_over(w) && hk_now_ns() - w->behind_ns < BEHIND_NS) (void)hk_wait_nap(&nap, -1, 1000 * 1000);
  if (children_lists_is_over(w)) return false;
  pthread_mutex_lock(&h->lock);
  const bool ours = atomic_load(&h->closing) == HK_CLOSING_NO && !atomic_load(&h->settled);
  if (ours) { /* another member that was in the earlier attempt may have left it first */
    atomic_store(&h->failure, 0);
    h->settle_ns = 0;
  }
  pthread_mutex_unlock(&h->lock);
  if (!ours) return false;
  w->behind_ns = 0;
  lists_begin_attempt(w, newest);
  return true;
}

static hk_status children_lists_compare_lists(hk_children_watch *w, uint64_t long_ns) {
  children_lists_judge(w, long_ns);
  if (!w->verdict[0]) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "ncclCommShrink: %s: give the same list on all ranks that stay",
                 strchr(w->verdict, '|') + 1);
}

hk_status hk_children_compare_lists(hk_children_watch *w) { return children_lists_compare_lists(w, DIFFER_NS); }

hk_status hk_children_end_shrink(hk_children_watch *w, hk_status rc) {
  /* If the lists differ, another member may have failed first and caused this failure. */
  if (rc != HK_OK && (w->verdict[0] || children_lists_compare_lists(w, 0) != HK_OK)) rc = HK_ERR_USAGE;
  hk_event e = {0};
  memcpy(e.text, w->verdict, sizeof e.text);
  hk_children_announce(w->how->parent, &e);
  return rc;
}
