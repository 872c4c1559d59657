/* SPDX-License-Identifier: Apache-2.0 */
/* What users write to restrict the choice (filter.h): NCCL_ALGO and NCCL_PROTO, lists of names to allow or (with ^) to
 * exclude, for one collective or for all; and ncclCollConfig_t's algSelection, for one call. */
#include <stdio.h>
#include <string.h>
#include <strings.h> /* strncasecmp */
#include "../collectives/algorithm.h"
#include "protocol.h"
#include "select.h"

const hk_nccl_algorithm hk_nccl_algorithms[HK_NCCL_ALGORITHMS] = {
    {"TREE", "tree", {"tree"}, false},
    {"RING", "ring", {"ring", "chain"}, false},
    {"COLLNET_DIRECT", "collnetdirect", {"collnet"}, true},
    {"COLLNET_CHAIN", "collnetchain", {"collnet"}, true},
    {"NVLS", "nvls", {"nvls"}, true},
    {"NVLSTREE", "nvlstree", {"nvlstree"}, true},
    {"PAT", "pat", {"pat"}, true}};

/* The algorithms of this library that do what NCCL's k-th does. */
static uint32_t filter_ours(const hk_algorithm *const *algorithms, size_t k) {
  const char *const *ours = hk_nccl_algorithms[k].ours;
  uint32_t bits = 0;
  for (int i = 0; algorithms[i]; i++)
    if (!strcmp(algorithms[i]->name, ours[0]) || (ours[1] && !strcmp(algorithms[i]->name, ours[1]))) bits |= 1u << i;
  return bits;
}

/* The next word of a list, without blanks around it. *at goes behind its separator, and is NULL after the last. */
static bool filter_word(const char **at, const char *end, char separator, const char **word, size_t *n) {
  if (!*at) return false;
  const char *stop = memchr(*at, separator, (size_t)(end - *at));
  *word = *at;
  *n = (size_t)((stop ? stop : end) - *at);
  *at = stop ? stop + 1 : NULL;
  while (*n && (**word == ' ' || **word == '\t')) ++*word, --*n;
  while (*n && ((*word)[*n - 1] == ' ' || (*word)[*n - 1] == '\t')) --*n;
  return true;
}

/* ---- NCCL_ALGO and NCCL_PROTO ---- */

typedef struct vocabulary {
  const char *variable, *things;
  int count;
  const hk_algorithm *const *algorithms; /* NULL: the protocols */
} vocabulary;

static const char *filter_name(const vocabulary *v, int i) {
  return v->algorithms ? v->algorithms[i]->name : hk_protocols[i].name;
}

static bool filter_equal(const char *text, size_t n, const char *name) {
  return strlen(name) == n && !strncasecmp(text, name, n);
}

static hk_status filter_unknown(const vocabulary *v, const char *word, size_t n) {
  char names[400] = "";
  size_t used = 0;
  for (int i = 0; i < v->count && used < sizeof names; i++)
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", filter_name(v, i));
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: \"%.*s\" is no %s; there are %s", v->variable, (int)n, word, v->things, names);
}

/* The names that a word means. */
static uint32_t filter_find(const vocabulary *v, const char *word, size_t n) {
  uint32_t found = 0;
  for (int i = 0; i < v->count; i++)
    if (filter_equal(word, n, filter_name(v, i))) found |= 1u << i;
  for (size_t k = 0; v->algorithms && !found && k < HK_NCCL_ALGORITHMS; k++)
    if (filter_equal(word, n, hk_nccl_algorithms[k].name)) found = filter_ours(v->algorithms, k);
  return found;
}

/* *barred: the mask of the names that the list excludes. */
static hk_status filter_parse_list(const vocabulary *v, const char *whole, const char *list, size_t length,
                                   uint32_t *barred) {
  const bool exclude = length && *list == '^';
  const char *at = list + exclude, *word;
  uint32_t named = 0;
  for (size_t n; filter_word(&at, list + length, ',', &word, &n);) {
    const uint32_t found = filter_find(v, word, n);
    if (n && !found) return filter_unknown(v, word, n);
    named |= found;
  }
  if (!named)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: \"%.*s\" names no %s: write names, as in ring,tree or allreduce:ring",
                   v->variable, (int)strcspn(whole, ";"), whole, v->things);
  *barred = exclude ? named : ~named;
  return HK_OK;
}

static const char filter_colls[] = ""
#define HK_COLL(id, name, ...) ", " name
#include "../program/coll.def"
    ;

static hk_status filter_parse(const vocabulary *v, const char *spec, uint32_t barred[HK_COLL_COUNT]) {
  bool own[HK_COLL_COUNT] = {false}; /* has a part of its own, which beats the part for all */
  while (spec && *spec) {
    size_t n = strcspn(spec, ";");
    const char *colon = memchr(spec, ':', n);
    const char *list = colon ? colon + 1 : spec;
    uint32_t mask = 0;
    hk_status rc = filter_parse_list(v, spec, list, n - (size_t)(list - spec), &mask);
    if (rc != HK_OK) return rc;
    const int coll = colon ? (int)hk_coll_by_name(spec, (size_t)(colon - spec)) : -1;
    if (coll == HK_COLL_COUNT)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s: \"%.*s\" is no collective; there are %s", v->variable, (int)(colon - spec),
                     spec, filter_colls + strlen(", "));
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      if (colon ? c != coll : own[c]) continue;
      barred[c] = mask;
      own[c] = colon != NULL;
    }
    spec += n + (spec[n] == ';');
  }
  return HK_OK;
}

hk_status hk_filter_parse(hk_filter *w, const char *algo, const char *proto) {
  vocabulary algorithms = {"NCCL_ALGO", "algorithm", 0, hk_filter_algorithms(w)};
  vocabulary protocols = {"NCCL_PROTO", "protocol", HK_PROTO_COUNT, NULL};
  while (algorithms.algorithms[algorithms.count]) algorithms.count++;
  uint32_t barred[HK_COLL_COUNT] = {0};
  hk_status rc = filter_parse(&protocols, proto, barred);
  for (int c = 0; c < HK_COLL_COUNT; c++) w->barred_protocols[c] = (uint8_t)(barred[c] & ((1u << HK_PROTO_COUNT) - 1));
  return rc != HK_OK ? rc : filter_parse(&algorithms, algo, w->barred);
}

/* ---- algSelection ---- */

/* True if NAME_PROTOCOL begins with the word. */
static bool filter_begins(const char *name, int p, const char *word, size_t n) {
  char whole[64];
  snprintf(whole, sizeof whole, "%s_%s", name, hk_protocols[p].name);
  return n && n <= strlen(whole) && !strncasecmp(whole, word, n);
}

/* Adds the word's algorithms and protocols to `only`; false if the word is unknown. NCCL's kernels for symmetric memory
 * have no counterpart here. */
static bool filter_add_word(const char *word, size_t n, const hk_algorithm *const *algorithms,
                            uint32_t only[HK_PROTO_COUNT]) {
  bool known = n >= strlen("SYMK_") && !strncasecmp(word, "SYMK_", strlen("SYMK_"));
  for (int p = 0; p < HK_PROTO_COUNT; p++) {
    known |= filter_begins("SYMK", p, word, n);
    for (size_t k = 0; k < HK_NCCL_ALGORITHMS; k++) {
      const hk_nccl_algorithm *a = &hk_nccl_algorithms[k];
      if ((a->simple && p != HK_PROTO_SIMPLE) || !filter_begins(a->selection, p, word, n)) continue;
      known = true;
      only[p] |= filter_ours(algorithms, k);
    }
  }
  if (known) return true;
  for (int i = 0; algorithms[i]; i++)
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      if (!filter_begins(algorithms[i]->name, p, word, n)) continue;
      known = true;
      only[p] |= 1u << i;
    }
  return known;
}

/* A term has words joined by `+`: adds the choices that all of its words allow. */
static bool filter_add_term(const char *term, size_t length, const hk_algorithm *const *algorithms,
                            uint32_t only[HK_PROTO_COUNT], char *why, size_t why_bytes) {
  uint32_t allowed[HK_PROTO_COUNT];
  memset(allowed, 0xff, sizeof allowed);
  const char *at = term, *word;
  for (size_t n; filter_word(&at, term + length, '+', &word, &n);) {
    uint32_t one[HK_PROTO_COUNT] = {0};
    const bool not = n && *word == '^';
    if (!filter_add_word(word + not, n - not, algorithms, one)) {
      snprintf(why, why_bytes, "\"%.*s\" begins no name of an algorithm and protocol, such as RING_LL", (int)n, word);
      return false;
    }
    for (int p = 0; p < HK_PROTO_COUNT; p++) allowed[p] &= not ? ~one[p] : one[p];
  }
  for (int p = 0; p < HK_PROTO_COUNT; p++) only[p] |= allowed[p];
  return true;
}

bool hk_filter_only(const char *selection, const hk_algorithm *const *algorithms, uint32_t only[HK_PROTO_COUNT],
                    char *why, size_t why_bytes) {
  uint32_t there = 0, any = 0;
  const char *at = selection, *term;
  memset(only, 0, HK_PROTO_COUNT * sizeof *only);
  for (size_t n; filter_word(&at, selection + strlen(selection), ',', &term, &n);)
    if (!filter_add_term(term, n, algorithms, only, why, why_bytes)) return false;
  for (int i = 0; algorithms[i]; i++) there |= 1u << i;
  for (int p = 0; p < HK_PROTO_COUNT; p++) any |= only[p] &= there;
  if (!any) snprintf(why, why_bytes, "\"%s\" selects nothing that is here", selection);
  return any != 0;
}
