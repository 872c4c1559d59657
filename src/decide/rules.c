/* SPDX-License-Identifier: Apache-2.0 */
/* Rules: the lines of a tuning file, parsed, kept and matched to a call: see rules.h. */
#include "rules.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h> /* strcasecmp */
#include "../base/hash.h"
#include "../base/text_file.h"
#include "../collectives/algorithm.h"
#include "machine.h"
#include "protocol.h"

enum { FIELDS = 8, RULES_MOST = 10000, FILE_MOST = 4 << 20 };
static const char *const field_names[FIELDS] = {"collective", "bytes from", "bytes to", "ranks",
                                                "hosts",      "algorithm",  "protocol", "channels"};

typedef struct place {
  const char *file;
  int line;
  const hk_algorithm *const *algorithms;
} place;

static hk_status rules_wrong(const place *p, int field, const char *text, const char *wanted) {
  return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: field %d (%s) is \"%.80s\": %s", p->file, p->line, field + 1,
                 field_names[field], text, wanted);
}

/* Cuts the line at its commas; the fields lose blanks around them.  Gives their number, at most FIELDS + 1. */
static int rules_cut(char *line, char *fields[FIELDS + 1]) {
  int n = 0;
  for (char *p = line; p && n <= FIELDS; n++) {
    char *comma = strchr(p, ',');
    if (comma) *comma = 0;
    p += strspn(p, " \t");
    size_t length = strlen(p);
    while (length && strchr(" \t\r", p[length - 1])) p[--length] = 0;
    fields[n] = p;
    p = comma ? comma + 1 : NULL;
  }
  return n;
}

static bool rules_any(const char *text) { return !strcmp(text, "*"); }

static hk_status rules_parse_size(const place *p, char *f[FIELDS], int field, size_t *out) {
  const char *text = f[field];
  char *end;
  int shift = 0;
  if (rules_any(text)) return HK_OK;
  errno = 0;
  const unsigned long long v = strtoull(text, &end, 10);
  bool good = end != text && text[0] != '-' && !errno;
  if (*end && strchr("kKmMgG", *end)) {
    shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : 30;
    end++;
  }
  if (*end == 'B' && shift) end++;
  good = good && !*end && v <= SIZE_MAX >> shift;
  if (!good) return rules_wrong(p, field, text, "a size, as 0, 64K or 1M, or *");
  *out = (size_t)v << shift;
  return HK_OK;
}

static hk_status rules_parse_count(const place *p, char *f[FIELDS], int field, int *out) {
  char *end;
  HK_ASSERT(HK_RANKS_MOST == 524287, "the text below");
  if (rules_any(f[field])) return HK_OK;
  errno = 0;
  const long v = strtol(f[field], &end, 10);
  if (end == f[field] || *end || errno || v < 1 || v > HK_RANKS_MOST)
    return rules_wrong(p, field, f[field], "1 to 524287 or *");
  *out = (int)v;
  return HK_OK;
}

static hk_status rules_parse_names(const place *p, char *f[FIELDS], hk_rule *r) {
  const hk_coll coll = hk_coll_by_name(f[0], strlen(f[0]));
  r->coll = coll == HK_COLL_COUNT ? -1 : (int)coll;
  r->algorithm = r->protocol = -1;
  for (int i = 0; p->algorithms[i]; i++)
    if (!strcasecmp(f[5], p->algorithms[i]->name)) r->algorithm = i;
  for (int i = 0; i < HK_PROTO_COUNT; i++)
    if (!strcasecmp(f[6], hk_protocols[i].name)) r->protocol = i;
  if (r->coll < 0 && !rules_any(f[0])) return rules_wrong(p, 0, f[0], "a collective, as allreduce, or *");
  if (r->algorithm < 0 && !rules_any(f[5]))
    return rules_wrong(p, 5, f[5], "an algorithm (hocket plan lists them) or *");
  if (r->protocol < 0 && !rules_any(f[6])) return rules_wrong(p, 6, f[6], "Simple, LL, LL128 or *");
  if (r->coll >= 0 && r->algorithm >= 0 && !hk_algorithm_has(p->algorithms[r->algorithm], coll))
    return rules_wrong(p, 5, f[5], "this algorithm has no program for that collective");
  return HK_OK;
}

static hk_status rules_parse_line(const place *p, char *text, hk_rule *r) {
  char *f[FIELDS + 1];
  int n = rules_cut(text, f);
  *r = (hk_rule){.to = SIZE_MAX};
  if (n != FIELDS)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s:%d: %d fields; a rule has %d: collective, bytes from, bytes to, ranks, hosts, algorithm, "
                   "protocol, channels",
                   p->file, p->line, n > FIELDS ? FIELDS + 1 : n, FIELDS);
  HK_OR_RETURN(rules_parse_names(p, f, r));
  HK_OR_RETURN(rules_parse_size(p, f, 1, &r->from));
  HK_OR_RETURN(rules_parse_size(p, f, 2, &r->to));
  if (r->to < r->from) return rules_wrong(p, 2, f[2], "it is less than the rule's first size");
  HK_OR_RETURN(rules_parse_count(p, f, 3, &r->nranks));
  HK_OR_RETURN(rules_parse_count(p, f, 4, &r->nhosts));
  return rules_parse_count(p, f, 7, &r->channels);
}

static hk_status rules_add(hk_rules *r, const place *p, const hk_rule *rule) {
  if (r->n == RULES_MOST)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: there are %d rules before it, the most that may be", p->file, p->line,
                   r->n);
  if (!(r->n & (r->n - 1))) { /* full: it grows by doubling */
    hk_rule *more = realloc(r->at, (r->n ? 2 * (size_t)r->n : 1) * sizeof *more);
    if (!more) return HK_FAIL_ERRNO("no memory for %d rules", r->n + 1);
    r->at = more;
  }
  r->at[r->n++] = *rule;
  return HK_OK;
}

uint64_t hk_rules_hash(const hk_rules *r) {
  uint64_t h = r ? 2 : 1;
  for (int i = 0; r && i < r->n; i++) {
    const hk_rule *at = &r->at[i];
    h = hk_hash_mix(hk_hash_mix(hk_hash_mix(h, (uint64_t)at->coll), at->from), at->to);
    h = hk_hash_mix(hk_hash_mix(hk_hash_mix(h, (uint64_t)at->nranks), (uint64_t)at->nhosts), (uint64_t)at->algorithm);
    h = hk_hash_mix(hk_hash_mix(h, (uint64_t)at->protocol), (uint64_t)at->channels);
  }
  return h;
}

hk_status hk_rules_parse(hk_rules **out, const char *name, const char *text, const hk_algorithm *const *algorithms) {
  hk_status rc = HK_OK;
  hk_rules *r = calloc(1, sizeof *r);
  *out = NULL;
  if (!r) return HK_FAIL_ERRNO("no memory for a tuning file's rules");
  char *copy = strdup(text), *at = copy;
  place p = {.file = name, .algorithms = algorithms};
  if (!copy) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a tuning file's text"), out);
  for (char *line; (line = hk_text_line(&at, &p.line));) {
    hk_rule rule;
    HK_TRY(rules_parse_line(&p, line, &rule), out);
    HK_TRY(rules_add(r, &p, &rule), out);
  }
  *out = r;
  r = NULL;
out:
  free(copy);
  hk_rules_free(r);
  return rc;
}

hk_status hk_rules_read(hk_rules **out, const char *path, const hk_algorithm *const *algorithms) {
  char *text;
  size_t bytes;
  *out = NULL;
  hk_status rc = hk_text_read(path, FILE_MOST, &text, &bytes);
  if (rc != HK_OK) return HK_FAIL(rc, "HOCKET_TUNING_FILE: %s", hk_last_error());
  rc = hk_rules_parse(out, path, text, algorithms);
  free(text);
  return rc;
}

void hk_rules_free(hk_rules *r) {
  if (!r) return;
  free(r->at);
  free(r);
}

bool hk_rule_fits(const hk_rule *r, const hk_machine *m, hk_coll coll, size_t bytes) {
  return (r->coll < 0 || r->coll == (int)coll) && bytes >= r->from && bytes <= r->to &&
         (!r->nranks || r->nranks == m->team.nranks) && (!r->nhosts || r->nhosts == m->team.nhosts);
}
