/* SPDX-License-Identifier: Apache-2.0 */
/* The selection of algorithms and protocols for one call: hk_filter_only in select.h. */
#include <stdio.h>
#include <string.h>
#include <strings.h> /* strncasecmp */
#include "../collectives/algorithm.h"
#include "protocol.h"
#include "select.h"

/* NCCL's names; `ours` NULL: no counterpart here. */
static const struct {
  const char *theirs, *ours;
  bool simple; /* only with protocol Simple */
} only_names[] = {{"TREE", "tree", false},
                  {"RING", "ring", false},
                  {"RING", "chain", false},
                  {"NVLS", "nvls", true},
                  {"PAT", "pat", true},
                  {"COLLNET_DIRECT", "collnet", true},
                  {"COLLNET_CHAIN", "collnet", true},
                  {"NVLSTREE", "nvlstree", true},
                  {"SYMK", NULL, false}};

/* True if NAME_PROTOCOL begins with the word. */
static bool only_begins(const char *name, hk_protocol p, const char *word, size_t n) {
  char whole[64];
  snprintf(whole, sizeof whole, "%s_%s", name, hk_protocols[p].name);
  return n <= strlen(whole) && !strncasecmp(whole, word, n);
}

/* Adds the word's algorithms and protocols to `only`; false if the word is unknown. */
static bool only_add_word(const char *word, size_t n, const hk_algorithm *const *algorithms,
                          uint32_t only[HK_PROTO_COUNT]) {
  bool known = n >= strlen("SYMK_") && !strncasecmp(word, "SYMK_", strlen("SYMK_"));
  for (size_t k = 0; n && k < HK_ARRAY_LENGTH(only_names); k++)
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      if ((only_names[k].simple && p != HK_PROTO_SIMPLE) || !only_begins(only_names[k].theirs, (hk_protocol)p, word, n))
        continue;
      known = true;
      for (int i = 0; only_names[k].ours && algorithms[i]; i++)
        if (!strcmp(algorithms[i]->name, only_names[k].ours)) only[p] |= 1u << i;
    }
  if (known) return true;
  for (int i = 0; n && algorithms[i]; i++)
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      if (!only_begins(algorithms[i]->name, (hk_protocol)p, word, n)) continue;
      known = true;
      only[p] |= 1u << i;
    }
  return known;
}

/* A term has words joined by `+`: adds the choices that all of its words allow. */
static bool only_add_term(const char *term, size_t length, const hk_algorithm *const *algorithms,
                          uint32_t only[HK_PROTO_COUNT], char *why, size_t why_bytes) {
  uint32_t allowed[HK_PROTO_COUNT];
  memset(allowed, 0xff, sizeof allowed);
  for (const char *word = term, *end = term + length; word <= end;) {
    const char *plus = memchr(word, '+', (size_t)(end - word));
    size_t n = (size_t)((plus ? plus : end) - word);
    uint32_t one[HK_PROTO_COUNT] = {0};
    const char *next = word + n + 1;
    while (n && *word == ' ') word++, n--;
    while (n && word[n - 1] == ' ') n--;
    bool not = n && *word == '^';
    if (!only_add_word(word + not, n - not, algorithms, one)) {
      snprintf(why, why_bytes, "\"%.*s\" begins no name of an algorithm and protocol, such as RING_LL", (int)n, word);
      return false;
    }
    for (int p = 0; p < HK_PROTO_COUNT; p++) allowed[p] &= not ? ~one[p] : one[p];
    word = next;
  }
  for (int p = 0; p < HK_PROTO_COUNT; p++) only[p] |= allowed[p];
  return true;
}

bool hk_filter_only(const char *selection, const hk_algorithm *const *algorithms, uint32_t only[HK_PROTO_COUNT],
                    char *why, size_t why_bytes) {
  uint32_t there = 0, any = 0;
  memset(only, 0, HK_PROTO_COUNT * sizeof *only);
  for (const char *term = selection;;) {
    size_t n = strcspn(term, ",");
    if (!only_add_term(term, n, algorithms, only, why, why_bytes)) return false;
    if (!term[n]) break;
    term += n + 1;
  }
  for (int i = 0; algorithms[i]; i++) there |= 1u << i;
  for (int p = 0; p < HK_PROTO_COUNT; p++) any |= only[p] &= there;
  if (!any) snprintf(why, why_bytes, "\"%s\" selects nothing that is here", selection);
  return any != 0;
}
