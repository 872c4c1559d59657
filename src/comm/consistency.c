/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the ranks' settings (consistency.h). */
#include "consistency.h"
#include <stdio.h>
#include <string.h>
#include "../base/facts.h"
#include "../base/hash.h"
#include "../base/param.h"
#include "../core/comm.h"
#include "../decide/overrides.h"
#include "../failure/failure.h"
#include "../program/operation.h" /* HK_REDOP_INVARIANT */
#include "../run/selection.h"

typedef struct agree_fact {
  uint64_t slot_bytes, nslots;
  uint64_t agreement[HK_AGREE_COUNT];
  uint64_t tuner; /* hk_tuner_hash */
  hk_constants constants;
} agree_fact;
_Static_assert(sizeof(agree_fact) == HK_AGREE_FACT_BYTES, "its size is part of the format");

hk_status hk_consistency_publish(ncclComm_t c, void *fact) {
  agree_fact *f = fact;
  hk_selection *s = c->selection;
  const hk_comm_options *o = &c->options;
  HK_OR_RETURN(hk_overrides_read(s->overrides, c->settings, o->min_ctas, o->max_ctas));
  if (o->batch_invariant >= 0 ? o->batch_invariant : s->overrides->filter.batch_invariant)
    c->numerics.redop_flags = HK_REDOP_INVARIANT;
  c->options.by_place = s->overrides->by_place;
  HK_OR_RETURN(hk_selection_load_tuner(c, &f->tuner));
  f->slot_bytes = (uint64_t)c->settings->SLOT_BYTES;
  f->nslots = (uint64_t)c->settings->SLOTS;
  memcpy(f->agreement, s->overrides->agreement, sizeof f->agreement);
  f->agreement[HK_AGREE_BATCH_INVARIANT] = c->numerics.redop_flags;
  const int64_t settings[] = {o->nvls_ctas,
                              o->net_channels,
                              o->nvlink_first,
                              o->policy & NCCL_CTA_POLICY_EFFICIENCY,
                              c->settings->WIN_ENABLE,
                              c->settings->LSA_TEAM_SIZE};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(settings); i++)
    f->agreement[HK_AGREE_CONFIG] = hk_hash_mix(f->agreement[HK_AGREE_CONFIG], (uint64_t)settings[i]);
  f->agreement[HK_AGREE_COLLNET] = o->collnet ? 1 + (uint64_t)c->settings->COLLNET_NODE_THRESHOLD : 0;
  f->constants = s->overrides->constants;
  return HK_OK;
}

/* The name of a setting that differs; NULL: none does. */
static const char *consistency_difference(const agree_fact *a, const agree_fact *b) {
  if (a->slot_bytes != b->slot_bytes) return "HOCKET_SLOT_BYTES (or NCCL_BUFFSIZE)";
  if (a->nslots != b->nslots) return "HOCKET_SLOTS";
  for (int k = 0; k < HK_AGREE_COUNT; k++)
    if (a->agreement[k] != b->agreement[k]) return hk_consistency_names[k];
  return a->tuner != b->tuner ? "NCCL_TUNER_PLUGIN (or the plugin is not found on all hosts)" : NULL;
}

hk_status hk_consistency_compare(ncclComm_t c, const hk_facts *facts) {
  const agree_fact *first = hk_fact_of(facts, 0); /* so that all ranks name the same pair */
  for (int r = 0; r < c->nranks; r++) {
    const agree_fact *f = hk_fact_of(facts, r);
    const char *what = consistency_difference(f, first);
    if (what) {
      char text[256];
      snprintf(text, sizeof text, "rank 0 and rank %d have different values of %s: set it equally on all ranks", r,
               what);
      hk_failure_raise(c, HK_EVENT_VERDICT, r, HK_ERR_USAGE, text);
      return HK_ERR_USAGE;
    }
  }
  /* Hosts may have different measurements or none: rank 0's constants count for all. */
  c->selection->overrides->constants = first->constants;
  return HK_OK;
}
