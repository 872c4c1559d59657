/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator on a machine chooses from. */
#pragma once
#include <stddef.h>
#include "../decide/machine.h"
#include "../decide/overrides.h"

struct hk_channels;  /* topo/search.h */
struct hk_cluster;   /* topo/topo.h */
struct hk_decision;  /* decide/select.h */
struct hk_layout;    /* program/layout.h */
struct hk_placement; /* topo/topo.h */
struct hk_simulator; /* sim/sim.h */

/* The user's overrides and programs (HOCKET_PROGRAMS), as a communicator here has them. Clear them in any case. */
hk_status hk_tool_overrides(hk_overrides *o);

/* All inputs of a choice, as a communicator on that machine has them. */
typedef struct hk_inputs {
  struct hk_cluster *cluster;
  struct hk_placement *placements;
  int nranks;
  struct hk_channels *rings; /* the first host's */
  struct hk_layout *layout;
  hk_machine machine;
  hk_overrides overrides; /* from the environment and configuration */
  hk_filter filter;       /* the same */
  struct hk_tuner *tuner; /* NULL: none */
} hk_inputs;
/* The machine as for hk_tool_machine; nranks 0: one for each GPU or core. Returns an exit code, after printing the
 * error; close it in any case. */
int hk_inputs_open(hk_inputs *w, const char *words, const char *file, int nranks);
void hk_inputs_close(hk_inputs *w);
/* A simulator of its ranks; returns an exit code, after printing the error. */
int hk_inputs_simulator(struct hk_simulator **out, const hk_inputs *w);
/* The choice of a communicator on that machine. */
hk_status hk_inputs_choose(const hk_inputs *w, hk_coll coll, size_t bytes, struct hk_decision *out);

/* ---- inputs_rings.c ---- */
/* Ring orders of the first host; none if the search does not support the machine (too many ranks). */
hk_status hk_inputs_find_rings(hk_inputs *w);
void hk_inputs_free_rings(hk_inputs *w);
