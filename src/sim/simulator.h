/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster that is ready to be simulated, for the parts of the simulator. */
#pragma once
#include "../decide/machine.h"
#include "sim.h"

struct hk_channels;  /* topo/search.h */
struct hk_decision;  /* decide/select.h */
struct hk_layout;    /* program/layout.h */
struct hk_paths;     /* topo/paths.h */
struct hk_placement; /* topo/topo.h */
struct hk_sim;       /* run.h */

struct hk_simulator {
  const struct hk_cluster *c;
  struct hk_placement *placements;
  int nranks;
  struct hk_paths **paths;    /* [c->nkinds] */
  struct hk_channels **rings; /* [c->nkinds]; entries may be NULL */
  hk_machine machine;
  struct hk_layout *layout;
};

/* choice.c: the algorithm, protocol and channels. */
hk_status hk_sim_choose(const hk_simulator *x, hk_coll coll, size_t bytes, const hk_sim_options *o,
                        struct hk_decision *out);
/* costs.c: the times of software, once the sizes are known. */
void hk_sim_take_constants(struct hk_sim *s, const hk_simulator *x, hk_protocol protocol);
/* result.c */
hk_status hk_sim_report(struct hk_sim *s, const hk_simulator *x, const struct hk_decision *d, size_t bytes, bool graph,
                        hk_sim_result *out);
