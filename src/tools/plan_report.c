/* SPDX-License-Identifier: Apache-2.0 */
/* What `hocket plan` is asked, and the answer. */
#include "../decide/cost.h"
#include "../program/quantised.h"
#include "../sim/sim.h"
#include "inputs.h"
#include "plan.h"

hk_status hk_plan_ask(hk_plan_report *r, const hk_inputs *w, hk_coll coll, size_t bytes) {
  *r = (hk_plan_report){.world = w, .coll = coll, .bytes = bytes};
  HK_OR_RETURN(hk_inputs_choose(w, coll, bytes, &r->chosen));
  hk_machine as = hk_machine_as(&w->machine, r->chosen.protocol, r->chosen.channels);
  const hk_request request = {.coll = coll, .bytes = bytes, .unit = 1};
  HK_OR_RETURN(hk_decide_execution(&as, &request, &r->chosen));
  return hk_select_all(&w->machine, &w->filter, coll, bytes, r->rows, &r->n);
}

double hk_plan_latency(const hk_plan_report *r, const hk_decision *d) {
  if (r->world->nranks < 2) return 0;
  hk_machine as = hk_machine_as(&r->world->machine, d->protocol, d->channels);
  double us;
  if (hk_algorithm_price(&as, d->algorithm, r->coll, 8, &us) != HK_OK) return d->us;
  return us < d->us ? us : d->us;
}

double hk_plan_algbw(size_t bytes, double us) { return us > 0 ? (double)bytes / us / 1000 : 0; }

double hk_plan_busbw(hk_coll coll, int nranks, size_t bytes, double us) {
  return hk_coll_bus_factor(coll, nranks) * hk_plan_algbw(bytes, us);
}

bool hk_plan_same(const hk_decision *a, const hk_decision *b) {
  return a->algorithm == b->algorithm && a->protocol == b->protocol;
}

size_t hk_plan_change(const hk_inputs *w, hk_coll coll, size_t bytes, const hk_decision *here, bool up,
                      hk_decision *other) {
  while (bytes > HK_PLAN_LEAST || up) {
    bytes = up ? 2 * bytes : bytes / 2;
    if (bytes > HK_PLAN_MOST || hk_inputs_choose(w, coll, bytes, other) != HK_OK) return 0;
    if (!hk_plan_same(here, other)) return bytes;
  }
  return 0;
}

int hk_plan_ranges(const hk_inputs *w, hk_coll coll, hk_plan_range out[HK_PLAN_RANGES]) {
  int n = 0;
  for (size_t bytes = HK_PLAN_LEAST; bytes <= HK_PLAN_MOST; bytes *= 2) {
    hk_decision d;
    if (hk_inputs_choose(w, coll, bytes, &d) != HK_OK) return n;
    if (n && hk_plan_same(&out[n - 1].chosen, &d)) {
      out[n - 1].last = bytes;
      out[n - 1].chosen = d;
    } else if (n < HK_PLAN_RANGES) {
      out[n++] = (hk_plan_range){bytes, bytes, d, d.us};
    }
  }
  return n;
}

/* The simulator's time for an alternative. Below 0 if it cannot be simulated, or if its price is very high, because the
 * slowest programs take longest to simulate. */
double hk_plan_simulated(const hk_simulator *x, const hk_plan_report *r, const hk_decision *d) {
  hk_sim_options o = {.algorithm = hk_decision_algorithm(d),
                      .protocol = (int)d->protocol,
                      .channels = d->channels,
                      .quantised = r->world->machine.quantised};
  hk_sim_result result;
  if (!x || d->us > 4 * r->chosen.us || hk_sim_run(&result, x, r->coll, r->bytes, &o) != HK_OK) return -1;
  double us = result.us;
  hk_sim_result_clear(&result);
  return us;
}

double hk_plan_error_bound(const hk_plan_report *r) { return r->world->machine.quantised ? HK_QUANTISED_ERROR : 0; }
