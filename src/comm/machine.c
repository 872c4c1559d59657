/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"
#include <stdlib.h>
#include "../core/backend.h"
#include "../core/comm.h"
#include "../decide/machine.h"
#include "../decide/outlines.h"
#include "../run/selection.h"
#include "../topo/join.h"
#include "../transport/peer.h"
#include "hosts.h"

static hk_status machine_make_layout(ncclComm_t c, const hk_joined *rings) {
  uint64_t *hosts = malloc((size_t)c->nranks * sizeof *hosts);
  if (!hosts) return HK_FAIL_ERRNO("no memory for the hosts of %d ranks", c->nranks);
  for (int r = 0; r < c->nranks; r++) hosts[r] = c->peers[r].host;
  hk_status rc = hk_selection_layout(c, hosts, rings ? rings->order : NULL, rings ? rings->nchannels : 1);
  free(hosts);
  return rc;
}

hk_status hk_machine_agree(ncclComm_t c, const hk_host_rows *rows, bool child, int *nhosts) {
  hk_status rc = HK_OK;
  hk_joined *rings = NULL;
  hk_outlines *outlines = NULL;
  HK_TRY(hk_rings_agree(c, rows, child, &rings, &c->selection->rings), out);
  hk_host_facts f = hk_hosts_count(c, rows, &c->wait);
  *nhosts = f.team.nhosts;
  if (f.team.nhosts > 1 || rings) HK_TRY(machine_make_layout(c, rings), out);
  hk_machine *m = c->selection->machine;
  c->backend->machine(c, &f, rings, hk_selection_constants(c), m);
  HK_TRY(hk_outlines_new(&outlines, c->nranks, c->selection->layout, hk_machine_held_slots(m)), out);
  m->outlines = outlines;
  if (c->backend->wire) HK_TRY(c->backend->wire(c, outlines), out);
  if (c->selection->tuner) HK_TRY(hk_machine_begin_tuner(c), out); /* all ranks have it, or none */
out:
  hk_joined_free(rings);
  return rc;
}

void hk_machine_joined(ncclComm_t c) {
  hk_machine *m = c->selection->machine;
  m->reads = m->team.overlap ? 0 : hk_wire_reads(c); /* not GPUs: what their peers cannot read is copied into slots */
}
