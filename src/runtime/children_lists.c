/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of excluded ranks.
 *
 * The members of a shrink compute each other's new ranks from the list that each was given.  With lists that differ
 * they would wait for each other in vain, so each rank announces its list to the parent's ranks, and the end of its
 * shrink. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "children_internal.h"

enum {
  HASH_DIGITS = 16,
  WORDS_AT = HASH_DIGITS + 1, /* before them: a hash of the whole list, and a space */
  TOKEN = HASH_DIGITS + 10    /* a hash, a colon, eight digits, a space */
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
  } else if (n) {
    snprintf(n->text, sizeof n->text, "%s", e->text);
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

/* A hash of the whole list, then the list in words, as far as there is room. */
static void list_words(const hk_init *how, char *text, size_t bytes) {
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

void hk_children_begin_shrink(hk_children_watch *w) {
  hk_event e = {0};
  ncclComm_t parent = w->how->parent;
  list_words(w->how, e.text, sizeof e.text);
  memcpy(w->hash, e.text, HASH_DIGITS);
  pthread_mutex_lock(&parent->health.lock);
  hk_attempts *a = attempts_of(parent, w->hash);
  w->attempt = a ? ++a->n : 1;
  pthread_mutex_unlock(&parent->health.lock);
  snprintf(w->key, sizeof w->key, "x%.16s:%08x", w->hash, w->attempt);
  hk_children_announce(parent, &e);
}

/* The notice of a member that stays, by our list, and whose list is not `than`: of the lowest such rank.  Under the
 * lock. */
static const hk_notice *lowest_notice(const hk_init *how, const char *than) {
  const hk_notice *low = NULL;
  for (const hk_notice *n = how->parent->order.notices; n; n = n->next) {
    if (!n->text[0] || hk_children_excludes(how, n->rank)) continue;
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
         used = (size_t)snprintf(w->verdict, bytes, "%c%.16s:%08x ", HK_CHILDREN_DIFFERENT, w->hash, w->attempt);
  for (const hk_notice *n = how->parent->order.notices; n && used < 8 * TOKEN; n = n->next) {
    char hash[HASH_DIGITS + 1] = "";
    if (!n->text[0] || hk_children_excludes(how, n->rank)) continue;
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
  const char *words = strchr(verdict, '|');
  const char *mine = words ? memmem(verdict, (size_t)(words - verdict), w->hash, HASH_DIGITS) : NULL;
  if (!mine || strtoul(mine + HASH_DIGITS + 1, NULL, 16) < w->attempt) return false;
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
    if (n->verdict[0] && !hk_children_excludes(w->how, n->rank)) (void)takes_verdict(w, n->verdict);
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

hk_status hk_children_compare_lists(hk_children_watch *w) { return compare_lists(w, DIFFER_NS); }

hk_status hk_children_end_shrink(hk_children_watch *w, hk_status rc) {
  /* Where lists differ another member may have failed first, and this one because of that. */
  if (rc != HK_OK && (w->verdict[0] || compare_lists(w, 0) != HK_OK)) rc = HK_ERR_USAGE;
  hk_event e = {0};
  memcpy(e.text, w->verdict, sizeof e.text);
  hk_children_announce(w->how->parent, &e);
  return rc;
}
