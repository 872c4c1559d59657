/* SPDX-License-Identifier: Apache-2.0 */
/* Sets up reductions in the network for a communicator (transport/collnet.h). Either all ranks have a plugin that
 * works, or none uses one. */
#include "../transport/collnet.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../core/comm.h"
#include "../program/layout.h"
#include "../program/program.h"
#include "collnet.h"
#include "selection.h"

typedef struct verdict {
  uint64_t good;
  char why[160];
} verdict;

/* The first rank without a plugin compatible with rank 0's, or -1. *sums: the reductions that all plugins support. */
static int collnet_without_plugin(ncclComm_t c, const hk_collnet_fact *facts, uint64_t *sums, char *why, size_t bytes) {
  *sums = facts[0].sums;
  for (int r = 0; r < c->nranks; r++) {
    const hk_collnet_fact *a = &facts[r], *b = &facts[0];
    *sums &= a->sums;
    if (!a->sums) {
      snprintf(why, bytes, "%.*s", (int)sizeof a->why, a->why);
      return r;
    }
    if (a->version == b->version && !strncmp(a->name, b->name, sizeof a->name)) continue;
    snprintf(why, bytes, "its plugin is %.31s (v%d), rank 0's is %.31s (v%d)", a->name, a->version, b->name,
             b->version);
    return r;
  }
  return -1;
}

/* Connects the rank's group, if it has one, and exchanges the results. The memory after the results has room for the
 * group's ranks. */
static hk_status collnet_connect_group(ncclComm_t c, hk_transport_state *s, const hk_collnet_fact *facts,
                                       verdict *verdicts) {
  const hk_layout *l = c->selection->layout;
  const int local = l->local[c->rank];
  verdict *own = &verdicts[c->rank];
  own->good = true;
  if (local < HK_SUM_GROUPS && local < l->least) {
    int *group = (int *)(verdicts + c->nranks);
    const int first = hk_layout_first_host(l, local);
    for (int m = 0; m < l->nhosts; m++) group[m] = hk_layout_rank(l, (first + m) % l->nhosts, local);
    own->good = hk_collnet_connect(s, facts, group, l->nhosts, (l->host[c->rank] + l->nhosts - first) % l->nhosts,
                                   own->why, sizeof own->why);
  }
  return hk_bootstrap_allgather(c->bootstrap, verdicts, sizeof *verdicts);
}

/* All ranks on several hosts have asked for it. *why stays empty on success. */
static hk_status collnet_begin(ncclComm_t c, char *why, size_t bytes) {
  hk_status rc = HK_OK;
  hk_transport_state *s = NULL;
  uint64_t sums;
  char text[240];
  hk_collnet_fact *facts = calloc((size_t)c->nranks, sizeof *facts);
  verdict *verdicts = calloc((size_t)c->nranks, sizeof *verdicts + sizeof(int));
  if (!facts || !verdicts) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for CollNet plugins of %d ranks", c->nranks), out);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (CollNet plugins)");
  HK_TRY(hk_collnet_begin(hk_wire_env(c), &s, &facts[c->rank]), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, facts, sizeof *facts), out);
  int bad = collnet_without_plugin(c, facts, &sums, text, sizeof text);
  if (bad < 0) HK_TRY(collnet_connect_group(c, s, facts, verdicts), out);
  for (int r = 0; bad < 0 && r < c->nranks; r++) {
    if (verdicts[r].good) continue;
    bad = r;
    snprintf(text, sizeof text, "CollNet plugin %.31s: %.159s", facts[r].name, verdicts[r].why);
  }
  if (bad >= 0) {
    snprintf(why, bytes, "rank %d: %s", bad, text);
    goto out;
  }
  int calls = c->selection->layout->nhosts <= HK_COLLNET_ROUND_RANKS ? facts[0].calls : 0;
  for (int r = 1; r < c->nranks; r++) calls &= facts[r].calls;
  hk_wire_use_collnet(c, s);
  hk_selection_use_network(c, sums, calls);
  s = NULL;
out:
  if (s) s->transport->detach(s);
  free(facts);
  free(verdicts);
  return rc;
}

hk_status hk_collnet_agree(ncclComm_t c, int nhosts) {
  int64_t least = c->settings->COLLNET_NODE_THRESHOLD;
  char why[300] = "";
  if (!c->options.collnet) return HK_OK;
  if (c->device >= 0)
    snprintf(why, sizeof why, "it is for ranks on host memory");
  else if (nhosts < 2 || nhosts < least)
    snprintf(why, sizeof why, "the ranks are on %d host%s, and at least %d are needed (NCCL_COLLNET_NODE_THRESHOLD)",
             nhosts, nhosts == 1 ? "" : "s", least > 2 ? (int)least : 2);
  else
    HK_OR_RETURN(collnet_begin(c, why, sizeof why));
  if (why[0] && c->rank == 0) HK_INFO(HK_SUB_INIT | HK_SUB_NET, "CollNet is not used: %s", why);
  return HK_OK;
}

size_t hk_collnet_slot_bytes(const struct ncclComm *c, const struct hk_program *p, size_t bytes) {
  enum { LINE = 128 }; /* the least of HK_COLLNET_ROUND_BYTES / HK_COLLNET_ROUND_RANKS is 1024 */
  if (!p->traits.in_rounds) return bytes;
  size_t most = HK_COLLNET_ROUND_BYTES / (size_t)c->selection->layout->nhosts / LINE * LINE;
  return bytes < most ? bytes : most;
}

bool hk_collnet_can(const struct ncclComm *c, int coll, int dtype, int op) {
  const struct hk_selection *s = c->selection;
  bool adds = s->sums & hk_collnet_sum((hk_dtype)dtype, (hk_redop)op);
  switch ((hk_coll)coll) {
    case HK_ALLREDUCE: return adds;
    case HK_REDUCE_SCATTER: return adds && (s->network_calls & HK_COLLNET_SCATTERS);
    case HK_ALLGATHER: return s->network_calls & HK_COLLNET_GATHERS; /* uneven ones have rounds of unequal blocks */
    default: return false;
  }
}
