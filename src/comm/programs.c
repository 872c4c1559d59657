/* SPDX-License-Identifier: Apache-2.0 */
/* The programs that users bring. A proof may take seconds of a core, and a host may have more ranks than cores. So one
 * rank of each host proves them, and tells the others in which way it made them from the files. The others make the
 * same programs without a proof. Then all ranks compare hashes: ranks with equal programs have proved ones. */
#include <stdlib.h>
#include <string.h>
#include "../boot/bootstrap.h"
#include "../core/comm.h"
#include "../decide/overrides.h"
#include "../failure/failure.h"
#include "../run/selection.h"
#include "hosts.h"
#include "machine.h"

/* A host's files may have changed since its rank listed them, or differ from those of another host. */
static hk_status programs_compare(ncclComm_t c) {
  hk_status rc = HK_OK;
  uint64_t *hashes = calloc((size_t)c->nranks, sizeof *hashes);
  if (!hashes) return HK_FAIL_ERRNO("no memory to compare the programs of %d ranks", c->nranks);
  hashes[c->rank] = hk_overrides_loaded(c->selection->overrides);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, hashes, sizeof *hashes), out);
  for (int r = 0; r < c->nranks; r++) {
    if (hashes[r] == hashes[0]) continue;
    char text[300];
    snprintf(text, sizeof text,
             "rank 0 and rank %d have different programs in the folder HOCKET_PROGRAMS, or different rules in "
             "HOCKET_TUNING_FILE: give all hosts the same files",
             r);
    hk_failure_raise(c, HK_EVENT_VERDICT, r, HK_ERR_USAGE, text);
    HK_GIVE_UP(HK_ERR_USAGE, out);
  }
out:
  free(hashes);
  return rc;
}

hk_status hk_programs_load(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_overrides *o = c->selection->overrides;
  const int prover = hk_hosts_first(c, c->rank);
  const size_t n = (size_t)hk_overrides_files(o);
  if (!n) return HK_OK;
  uint8_t *ways = calloc((size_t)c->nranks, n);
  if (!ways) return HK_FAIL_ERRNO("no memory for the programs of %d ranks", c->nranks);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (proofs of HOCKET_PROGRAMS)");
  if (c->rank == prover) HK_TRY(hk_overrides_load(o, &ways[(size_t)c->rank * n], false), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, ways, n), out);
  if (c->rank != prover) HK_TRY(hk_overrides_load(o, &ways[(size_t)prover * n], true), out);
  rc = programs_compare(c);
out:
  free(ways);
  return rc;
}
