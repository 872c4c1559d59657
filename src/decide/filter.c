/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_ALGO and NCCL_PROTO: lists of names to allow or (with ^) to exclude, for one collective or for all. */
#include <stdio.h>
#include <string.h>
#include <strings.h> /* strncasecmp */
#include "../collectives/algorithm.h"
#include "protocol.h"
#include "select.h"

/* NCCL's algorithm names that have another name here. */
static const struct {
  const char *theirs, *ours;
} foreign[] = {{"collnetdirect", "collnet"}, {"collnetchain", "collnet"}};

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

/* *barred: the mask of the names that the list excludes. */
static hk_status filter_parse_list(const vocabulary *v, const char *whole, const char *list, size_t length,
                                   uint32_t *barred) {
  bool exclude = length && *list == '^';
  const char *p = list + exclude, *end = list + length;
  uint32_t named = 0;
  bool any = false;
  for (;;) {
    const char *comma = memchr(p, ',', (size_t)(end - p));
    size_t n = (size_t)((comma ? comma : end) - p);
    while (n && (*p == ' ' || *p == '\t')) p++, n--;
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\t')) n--;
    bool known = n == 0;
    any = any || n > 0;
    const char *ours = NULL;
    for (size_t i = 0; v->algorithms && i < HK_ARRAY_LENGTH(foreign); i++)
      if (filter_equal(p, n, foreign[i].theirs)) known = true, ours = foreign[i].ours;
    for (int i = 0; i < v->count; i++)
      if (filter_equal(p, n, filter_name(v, i)) || (ours && !strcmp(ours, filter_name(v, i)))) {
        named |= 1u << i;
        known = true;
      }
    if (!known) return filter_unknown(v, p, n);
    if (!comma) break;
    p = comma + 1;
  }
  if (!any)
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
