/* SPDX-License-Identifier: Apache-2.0 */
/* The machine of the cost model, from the facts that ranks have exchanged (machine.h). */
#include "machine.h"
#include <stdlib.h>
#include "../program/quantised.h"
#include "constants.h"

/* A value to its quantised form or back: measured with AVX2 on an earlier machine. */
#define QUANTISE_US (4.0 / 6500)

void hk_machine_quantise(hk_machine *m, size_t unit) {
  const double part = (double)hk_quantised_bytes(HK_QUANTISED_BLOCK) / (double)(HK_QUANTISED_BLOCK * unit);
  hk_level *levels[] = {&m->inside, &m->between};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(levels); i++) {
    levels[i]->ring_us_per_b *= part;
    levels[i]->mesh_us_per_b *= part;
    levels[i]->one_us_per_b *= part;
  }
  m->wire *= part;
  m->copy_us_per_b += QUANTISE_US / (double)unit;
  m->gamma_us_per_b += QUANTISE_US / (double)unit;
  m->slot_bytes = hk_quantised_fit(m->slot_bytes) * unit;
  m->reads = 0; /* slots carry other bytes than memory has */
  m->quantised = true;
}

void hk_machine_set_constants(hk_machine *m, bool memory, const hk_constants *k) {
  const hk_level shared = {.alpha_us = k->memory_alpha_us,
                           .message_us = k->memory_message_us}; /* the only other cost is the copies in and out */
  const hk_level tcp = {.alpha_us = k->tcp_alpha_us,
                        .message_us = k->tcp_message_us,
                        .link_us = k->tcp_link_us,
                        .ring_us_per_b = k->tcp_us_per_b,
                        .mesh_us_per_b = k->tcp_us_per_b};
  m->inside = memory ? shared : tcp;
  m->between = (hk_level){.alpha_us = k->net_alpha_us,
                          .message_us = k->net_message_us,
                          .ring_us_per_b = k->net_us_per_b,
                          .mesh_us_per_b = k->net_us_per_b};
  m->gamma_us_per_b = k->gamma_us_per_b;
  m->copy_us_per_b = k->copy_us_per_b;
  m->switch_us = k->switch_us;
}

hk_machine hk_machine_of_hosts(const hk_host_facts *f, const hk_constants *constants) {
  hk_machine m = {.team = f->team,
                  .cores_per_host = f->cores_per_host,
                  .wire = 1,
                  .channels = 1,
                  .max_channels = 1,
                  .protocols = 1u << HK_PROTO_SIMPLE,
                  .slot_bytes = f->slot_bytes,
                  .nslots = f->nslots};
  hk_machine_set_constants(&m, f->memory, constants ? constants : &hk_constants_default);
  return m;
}
