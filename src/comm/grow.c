/* SPDX-License-Identifier: Apache-2.0 */
/* ncclCommGrow: how the ranks meet. The ranks of the parent exchange over its overlay the id that one of them has made.
 * Then all ranks, the new ones too, join with that id as in ncclCommInitRank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../boot/bootstrap.h"
#include "children.h"

typedef struct grow_row {
  uint32_t nranks, has_id;
  ncclUniqueId id;
} grow_row;

/* Gets the id that one rank of the parent has, if all ranks give the same new size. */
static hk_status grow_agree_on_growth(const hk_init *how, const grow_row *rows, ncclUniqueId *id) {
  int from = -1;
  for (int r = 0; r < how->parent->nranks; r++) {
    if (rows[r].nranks != rows[0].nranks)
      return HK_FAIL(HK_ERR_USAGE, "ncclCommGrow: rank 0 gave %u ranks and rank %d gave %u: give the same on all ranks",
                     rows[0].nranks, r, rows[r].nranks);
    if (!rows[r].has_id) continue;
    if (from >= 0 && memcmp(&rows[r].id, &rows[from].id, sizeof *id) != 0)
      return HK_FAIL(HK_ERR_USAGE,
                     "ncclCommGrow: ranks %d and %d have ids that differ: call ncclCommGetUniqueId on one rank only",
                     from, r);
    from = r;
  }
  if (from < 0)
    return HK_FAIL(HK_ERR_USAGE,
                   "ncclCommGrow: no rank has an id: call ncclCommGetUniqueId on one rank of the communicator first, "
                   "and give the id to the new ranks");
  *id = rows[from].id;
  return HK_OK;
}

hk_status hk_children_grow(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o) {
  hk_status rc = HK_OK;
  hk_children_watch *w = c->wait.arg;
  ncclComm_t parent = how->parent;
  ncclUniqueId id;
  char what[64];
  snprintf(what, sizeof what, "ncclCommGrow, child number %llu", (unsigned long long)how->turn);
  hk_bootstrap_begin(parent->bootstrap, HK_PHASE_GROW, what);
  grow_row *rows = calloc((size_t)parent->nranks, sizeof *rows);
  int *members = malloc((size_t)c->nranks * sizeof *members);
  if (!rows || !members) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to grow to %d ranks", c->nranks), out);
  for (int r = 0; r < c->nranks; r++) members[r] = r < parent->nranks ? r : -1;
  w->members = members;
  members = NULL;
  rows[parent->rank].nranks = (uint32_t)c->nranks;
  if (how->nids) {
    rows[parent->rank].has_id = 1;
    rows[parent->rank].id = how->ids[0];
  }
  HK_TRY(hk_children_exchange(w, rows, sizeof *rows), out);
  HK_TRY(grow_agree_on_growth(how, rows, &id), out);
  HK_TRY(hk_bootstrap_join(&c->bootstrap, &id, 1, o), out);
out:
  hk_bootstrap_begin(parent->bootstrap, HK_PHASE_IDLE, NULL);
  free(members);
  free(rows);
  return rc;
}
