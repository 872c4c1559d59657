/* SPDX-License-Identifier: Apache-2.0 */
/* A machine for the programs of a file: simulated, with the built-in algorithms for comparison. */
#pragma once
#include "../../base/status.h"
#include "../../program/operation.h"

struct hk_cluster;     /* topo/topo.h */
struct hk_inputs;      /* tools/inputs.h */
struct hk_layout;      /* program/layout.h */
struct hk_program;     /* program/program.h */
struct hk_sim_options; /* sim/sim.h */
struct hk_sim_result;
struct hk_simulator;

typedef struct hk_site {
  struct hk_inputs *inputs;
  const struct hk_cluster *cluster; /* of the inputs */
  const struct hk_layout *layout;   /* the same; NULL: one host */
  struct hk_simulator *simulator;
  const char *name;
} hk_site;

/* The machine as for hk_inputs_open. Returns an exit code, after printing the error; close it in any case. */
int hk_site_open(hk_site *s, const char *words, const char *file, int nranks);
void hk_site_close(hk_site *s);
/* Simulates the programs of all ranks, which are proved. `how`: without filter and algorithm. */
hk_status hk_site_run(struct hk_sim_result *out, const hk_site *s, struct hk_program *const *programs, size_t bytes,
                      const struct hk_sim_options *how);
/* The same for the library's choice. */
hk_status hk_site_run_built_in(struct hk_sim_result *out, const hk_site *s, hk_coll coll, size_t bytes);
