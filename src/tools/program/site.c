/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the programs of a file on the simulator (site.h). */
#include "site.h"
#include <stdlib.h>
#include <string.h>
#include "../../collectives/algorithm.h"
#include "../../program/program.h"
#include "../../sim/sim.h"
#include "../inputs.h"
#include "../tools.h"

int hk_site_open(hk_site *s, const char *words, const char *file, int nranks) {
  *s = (hk_site){.inputs = calloc(1, sizeof(hk_inputs)), .name = words ? words : file ? file : "this machine"};
  if (!s->inputs) return hk_tool_failed(HK_FAIL_ERRNO("no memory for a machine"));
  int code = hk_inputs_open(s->inputs, words, file, nranks);
  s->cluster = s->inputs->cluster;
  s->layout = s->inputs->layout;
  if (code == HK_EXIT_OK) code = hk_inputs_simulator(&s->simulator, s->inputs);
  if (code == HK_EXIT_OK && nranks && nranks != hk_simulator_ranks(s->simulator))
    return hk_tool_wrong("there are programs for %d ranks, and %s has %d", nranks, s->name,
                         hk_simulator_ranks(s->simulator));
  return code;
}

void hk_site_close(hk_site *s) {
  hk_simulator_free(s->simulator);
  if (s->inputs) hk_inputs_close(s->inputs);
  free(s->inputs);
}

hk_status hk_site_run(hk_sim_result *out, const hk_site *s, hk_program *const *programs, size_t bytes,
                      const hk_sim_options *how) {
  const hk_program *p = programs[0];
  const hk_loaded loaded = {.programs = programs, .nranks = p->nranks, .coll = (hk_coll)p->coll};
  const hk_algorithm a = {.name = p->algorithm, .about = "", .loaded = &loaded};
  const hk_algorithm *const list[] = {&a, NULL};
  hk_filter filter = s->inputs->filter;
  hk_sim_options own = *how;
  filter.algorithms = list;
  filter.rules = NULL;
  filter.batch_invariant = false;
  memset(filter.only, 0, sizeof filter.only);
  memset(filter.barred, 0, sizeof filter.barred);
  own.filter = &filter;
  own.algorithm = p->algorithm;
  own.resident = true;
  const hk_status rc = hk_sim_run(out, s->simulator, (hk_coll)p->coll, bytes, &own);
  hk_simulator_forget(s->simulator, &a);
  return rc;
}

hk_status hk_site_run_built_in(hk_sim_result *out, const hk_site *s, hk_coll coll, size_t bytes) {
  const hk_sim_options how = {.filter = &s->inputs->filter, .protocol = -1, .resident = true};
  return hk_sim_run(out, s->simulator, coll, bytes, &how);
}
