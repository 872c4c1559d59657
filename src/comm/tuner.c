/* SPDX-License-Identifier: Apache-2.0 */
#include "../run/tuner.h"
#include <stdlib.h>
#include "../boot/bootstrap.h"
#include "../core/comm.h"
#include "../run/selection.h"
#include "machine.h"

hk_status hk_machine_begin_tuner(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_selection *s = c->selection;
  unsigned char *ready = calloc((size_t)c->nranks, 1);
  bool all = true;
  if (!ready) return HK_FAIL_ERRNO("no memory to agree on a tuner plugin");
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (agreement on a tuner plugin)");
  ready[c->rank] = hk_tuner_begin(s->tuner, s->machine, hk_bootstrap_comm_id(c->bootstrap));
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, ready, 1), out);
  for (int r = 0; r < c->nranks; r++) all = all && ready[r];
  if (!all) {
    hk_tuner_free(s->tuner);
    s->tuner = NULL;
  }
out:
  free(ready);
  return rc;
}
