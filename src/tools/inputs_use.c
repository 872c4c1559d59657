/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the inputs of a choice. */
#include "../decide/select.h"
#include "../run/tuner.h"
#include "../sim/sim.h"
#include "../topo/topo.h"
#include "inputs.h"
#include "tools.h"

int hk_inputs_simulator(hk_simulator **out, const hk_inputs *w) {
  const int per_host = (w->nranks + w->cluster->nhosts - 1) / w->cluster->nhosts;
  const hk_status rc = hk_simulator_new_of(out, w->cluster, per_host, w->nranks);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

hk_status hk_inputs_choose(const hk_inputs *w, hk_coll coll, size_t bytes, hk_decision *out) {
  return hk_tuner_select(w->tuner, &w->machine, &w->filter, coll, bytes, out);
}
