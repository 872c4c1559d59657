/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of a plan, as text or JSON. */
#include <stdlib.h>
#include "../collectives/algorithm.h"
#include "../program/builder.h"
#include "inputs.h"
#include "plan.h"
#include "tools.h"

int hk_plan_print_program(const hk_inputs *w, hk_coll coll, size_t bytes, const hk_plan_program *o) {
  hk_plan_report *r = malloc(sizeof *r);
  if (!r) return hk_tool_wrong("out of memory");
  hk_status rc = hk_plan_ask(r, w, coll, bytes);
  const hk_algorithm *a = r->chosen.algorithm;
  int channels = r->chosen.channels;
  free(r);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (o->rank >= w->nranks) return hk_tool_wrong("--rank %d, but there are %d ranks", o->rank, w->nranks);
  if (o->channel >= channels) return hk_tool_wrong("--channel %d, but there are %d channels", o->channel, channels);
  hk_build what = {.coll = coll,
                   .rank = o->rank > 0 ? o->rank : 0,
                   .nranks = w->nranks,
                   .root = hk_coll_has_root(coll) ? o->root : 0,
                   .layout = w->layout,
                   .channel = o->channel};
  if (what.root >= w->nranks) return hk_tool_wrong("--root %d, but there are %d ranks", what.root, w->nranks);
  if (channels > 1)
    printf("# channel %d of %d; each moves its part of the message in the same way\n", o->channel, channels);
  for (; what.rank < w->nranks; what.rank++) {
    hk_program *p;
    rc = hk_algorithm_build(a, &what, &p);
    if (rc != HK_OK) return hk_tool_failed(rc);
    if (o->json)
      hk_program_json(p, stdout);
    else
      hk_program_dump(p, stdout);
    hk_program_free(p);
    if (o->rank >= 0) break;
  }
  return HK_EXIT_OK;
}
