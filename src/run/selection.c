/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator's decisions follow from (selection.h): the machine, and the user's settings. */
#include "selection.h"
#include <stdlib.h>
#include <string.h>
#include "../core/comm.h"
#include "../decide/machine.h"
#include "../decide/outlines.h"
#include "../decide/overrides.h"
#include "../program/layout.h"
#include "../topo/search.h"
#include "tuner.h"

enum { CLASSES = HK_COLL_COUNT * HK_SIZE_CLASSES };

const hk_machine *hk_selection_machine(ncclComm_t c) { return c->selection->machine; }

const hk_constants *hk_selection_constants(ncclComm_t c) { return &c->selection->overrides->constants; }

hk_status hk_selection_load_tuner(ncclComm_t c, uint64_t *hash) {
  HK_OR_RETURN(hk_tuner_load(c->settings, &c->selection->tuner));
  *hash = hk_tuner_hash(c->selection->tuner);
  return HK_OK;
}

void hk_selection_use_network(ncclComm_t c, uint64_t sums, int calls) {
  c->selection->sums = sums;
  c->selection->network_calls = calls;
  c->selection->machine->team.in_network = true;
}

hk_status hk_selection_layout(ncclComm_t c, const uint64_t *hosts, const int32_t *order, int nchannels) {
  return hk_layout_new(&c->selection->layout, c->nranks, hosts, NULL, order, nchannels);
}

const hk_path_rules *hk_selection_paths(const struct ncclComm *c) { return &c->selection->overrides->paths; }

void hk_selection_channels(const struct ncclComm *c, int *least, int *most) {
  *least = c->selection->filter->min_channels;
  *most = c->selection->filter->max_channels;
}

/* Forgets the choices of earlier calls. Their plans stay. */
static void selection_forget(ncclComm_t c) {
  hk_choices_forget(c);
  memset(c->selection->classes, 0, CLASSES * sizeof *c->selection->classes);
}

void hk_selection_only(ncclComm_t c, int coll, uint32_t algorithms) {
  c->selection->overrides->filter.barred[coll] = ~algorithms;
  selection_forget(c);
}

const struct hk_algorithm *const *hk_selection_algorithms(ncclComm_t c) {
  return hk_filter_algorithms(&c->selection->overrides->filter);
}

uint64_t hk_selection_programs(ncclComm_t c) { return hk_overrides_programs(c->selection->overrides); }

hk_status hk_selection_add_program(ncclComm_t c, const char *name, const char *text, uint8_t *way, uint64_t *hash) {
  HK_OR_RETURN(hk_overrides_add_program(c->selection->overrides, c->nranks, name, text, way));
  *hash = hk_selection_programs(c);
  selection_forget(c);
  return HK_OK;
}

void hk_selection_drop_program(ncclComm_t c, uint64_t hash_before) {
  hk_overrides_drop_program(c->selection->overrides, c->selection->machine->outlines, hash_before);
  selection_forget(c);
}

hk_status hk_selection_new(ncclComm_t c) {
  hk_selection *s =
      calloc(1, sizeof *s + sizeof(hk_machine) + sizeof(hk_overrides) + CLASSES * sizeof(hk_class_decision));
  if (!s) return HK_FAIL_ERRNO("no memory for a communicator's decisions");
  s->machine = (hk_machine *)(s + 1);
  s->overrides = (hk_overrides *)(s->machine + 1);
  s->filter = &s->overrides->filter;
  s->classes = (hk_class_decision *)(s->overrides + 1);
  c->selection = s;
  return HK_OK;
}

void hk_selection_free(ncclComm_t c) {
  hk_outlines_free(c->selection->machine->outlines);
  hk_layout_free(c->selection->layout);
  hk_channels_free(c->selection->rings);
  hk_overrides_clear(c->selection->overrides);
  hk_tuner_free(c->selection->tuner);
}
