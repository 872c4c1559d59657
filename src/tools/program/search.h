/* SPDX-License-Identifier: Apache-2.0 */
/* The candidates of `hocket program search`. */
#pragma once
#include "../../sim/sim.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_program;   /* program/program.h */
struct hk_site;      /* site.h */

enum { HK_CANDIDATE_PARTS = 8, HK_CANDIDATE_RANKS = 1024, HK_CANDIDATE_WORDS = 256 };

/* Built-in programs, varied (vary.h). Zero bytes where nothing is set, so that candidates are compared as bytes. */
typedef struct hk_candidate {
  int nparts;
  struct {
    const struct hk_algorithm *algorithm;
    int order; /* of the machine's ring orders */
    unsigned copies, pieces;
  } parts[HK_CANDIDATE_PARTS];
  uint16_t swaps;                     /* pairs of neighbours that have changed places */
  uint16_t place[HK_CANDIDATE_RANKS]; /* hk_variation.place, if there are swaps */
} hk_candidate;

typedef struct hk_trial {
  hk_candidate what;
  bool fits, proved;    /* fits: its programs are not too large */
  hk_sim_result result; /* without loads; if it is proved */
} hk_trial;

/* "ring, 2 copies, and tree"; text needs HK_CANDIDATE_WORDS bytes and is returned. */
const char *hk_candidate_words(char *text, const hk_candidate *c, int nranks);
/* The programs of all ranks; HK_ERR_ARGUMENT: they would be too large. */
hk_status hk_candidate_build(struct hk_program ***out, const hk_candidate *c, const struct hk_site *site, hk_coll coll);
/* Builds, proves and simulates t->what. HK_OK if `proved` is false, too: the candidate cannot be used. */
hk_status hk_trial_run(hk_trial *t, const struct hk_site *site, hk_coll coll, size_t bytes, int protocol);
