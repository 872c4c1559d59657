/* SPDX-License-Identifier: Apache-2.0 */
/* What is simulated: the algorithm, protocol and channels. */
#include <string.h>
#include "../collectives/algorithm.h"
#include "../decide/protocol.h"
#include "../decide/select.h"
#include "../topo/topo.h"
#include "simulator.h"

static hk_status choice_filter_algorithm(hk_filter *w, const hk_simulator *x, hk_coll coll, const char *name) {
  const hk_algorithm *const *all = hk_filter_algorithms(w), *a = NULL;
  for (int i = 0; all[i] && !a; i++)
    if (!strcmp(all[i]->name, name)) a = all[i];
  if (!a) return HK_FAIL(HK_ERR_ARGUMENT, "there is no algorithm '%s'", name);
  const char *cannot = hk_simulator_cannot(x, a, coll);
  if (cannot) return HK_FAIL(HK_ERR_ARGUMENT, "%s of %s by %s: it %s", hk_coll_name(coll), x->c->name, name, cannot);
  w->barred[coll] = 0;
  for (int i = 0; all[i]; i++)
    if (all[i] != a) w->barred[coll] |= 1u << i;
  return HK_OK;
}

hk_status hk_sim_choose(const hk_simulator *x, hk_coll coll, size_t bytes, const hk_sim_options *o, hk_decision *out) {
  hk_filter filter = o->filter ? *o->filter : (hk_filter){.min_channels = 0};
  if (o->channels) filter.min_channels = filter.max_channels = o->channels;
  if (o->algorithm) HK_OR_RETURN(choice_filter_algorithm(&filter, x, coll, o->algorithm));
  if (o->protocol >= 0) {
    if (!(x->machine.protocols >> o->protocol & 1u)) {
      return HK_FAIL(HK_ERR_ARGUMENT, "%s is not spoken on %s", hk_protocols[o->protocol].name, x->c->name);
    }
    filter.barred_protocols[coll] = (uint8_t) ~(1u << o->protocol);
  }
  return hk_select(&x->machine, &filter, coll, bytes, out);
}
