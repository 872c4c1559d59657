/* SPDX-License-Identifier: Apache-2.0 */
/* Builds, proves and simulates candidates (search.h). */
#include <stdlib.h>
#include <string.h>
#include "../../collectives/algorithm.h"
#include "../../formats/file.h"
#include "../../program/builder.h"
#include "../../program/layout.h"
#include "../proof.h"
#include "search.h"
#include "site.h"
#include "vary.h"

enum { ORDER_SHOWN = 16 /* ranks; an order of more is too long for a line */ };

const char *hk_candidate_words(char *text, const hk_candidate *c, int nranks) {
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < c->nparts && n < HK_CANDIDATE_WORDS - 64; i++) {
    n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n, "%s%s", i ? " and " : "", c->parts[i].algorithm->name);
    if (c->parts[i].order) n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n, " on ring %d", c->parts[i].order);
    if (c->parts[i].copies > 1)
      n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n, ", %u copies", c->parts[i].copies);
    if (c->parts[i].pieces > 1)
      n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n, ", blocks in %u pieces", c->parts[i].pieces);
  }
  if (c->swaps)
    n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n,
                          nranks <= ORDER_SHOWN ? ", by ranks" : ", by ranks in another order");
  for (int r = 0; c->swaps && nranks <= ORDER_SHOWN && r < nranks; r++)
    n += (size_t)snprintf(text + n, HK_CANDIDATE_WORDS - n, " %u", c->place[r]);
  return text;
}

/* "ring-4", "ring-order", "ring+tree": new programs have names that no algorithm has. */
static void candidate_name(char *text, size_t capacity, const hk_candidate *c) {
  const bool two = c->nparts > 1 && c->parts[1].algorithm != c->parts[0].algorithm;
  const unsigned copies = c->parts[0].copies, pieces = c->parts[0].pieces;
  int n = snprintf(text, capacity, "%.10s", c->parts[0].algorithm->name);
  if (two)
    n += snprintf(text + n, capacity - (size_t)n, "+%.9s", c->parts[1].algorithm->name);
  else if (c->nparts > 1)
    n += snprintf(text + n, capacity - (size_t)n, "-rings%d", c->nparts);
  else if (copies > 1 || pieces > 1)
    n += snprintf(text + n, capacity - (size_t)n, "-%ux%u", copies, pieces);
  if (c->swaps && !two) snprintf(text + n, capacity - (size_t)n, "-order");
}

hk_status hk_candidate_build(hk_program ***out, const hk_candidate *c, const hk_site *site, hk_coll coll) {
  hk_status rc = HK_OK;
  hk_program **base[HK_CANDIDATE_PARTS] = {NULL};
  hk_variation parts[HK_CANDIDATE_PARTS];
  const int nranks = hk_simulator_ranks(site->simulator);
  char name[24];
  *out = NULL;
  for (int i = 0; i < c->nparts; i++) {
    const hk_build what = {.coll = coll, .nranks = nranks, .layout = site->layout, .channel = c->parts[i].order};
    HK_TRY(hk_proof_build(c->parts[i].algorithm, &what, &base[i]), out);
    parts[i] = (hk_variation){.programs = base[i],
                              .copies = c->parts[i].copies,
                              .pieces = c->parts[i].pieces,
                              .place = c->swaps ? c->place : NULL};
  }
  candidate_name(name, sizeof name, c);
  rc = hk_vary(out, name, parts, c->nparts);
out:
  for (int i = 0; i < c->nparts; i++) hk_proof_free(base[i], nranks);
  return rc;
}

hk_status hk_trial_run(hk_trial *t, const hk_site *site, hk_coll coll, size_t bytes, int protocol) {
  const hk_sim_options how = {.protocol = protocol};
  const unsigned slots = hk_tool_slots();
  const int nranks = hk_simulator_ranks(site->simulator);
  hk_program **programs;
  hk_status rc = hk_candidate_build(&programs, &t->what, site, coll);
  t->fits = rc == HK_OK;
  t->proved = false;
  if (rc != HK_OK) return rc == HK_ERR_SYSTEM ? rc : HK_OK;
  hk_program_set set = {.programs = programs, .nranks = nranks};
  rc = hk_program_set_prove(&set, programs[0]->algorithm, slots);
  if (rc == HK_OK) rc = hk_site_run(&t->result, site, programs, bytes, &how);
  t->proved = rc == HK_OK;
  hk_proof_free(programs, nranks);
  free(t->result.loads); /* only the time is of interest, and there are many trials */
  t->result.loads = NULL;
  t->result.nloads = 0;
  return rc == HK_ERR_SYSTEM ? rc : HK_OK;
}
