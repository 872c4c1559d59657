/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier: its data, the order of its steps, and the check of the outputs. verify.h describes what it proves. */
#include "verify.h"
#include <stdlib.h>
#include "verify_internal.h"

static hk_status verify_make_threads(hk_verifier *v) {
  v->first_thread = malloc((size_t)v->nranks * sizeof *v->first_thread);
  if (!v->first_thread) return hk_fault_memory(v);
  for (int r = 0; r < v->nranks; r++) {
    v->first_thread[r] = v->nthreads;
    v->nthreads += v->programs[r]->nlanes;
  }
  size_t n = v->nthreads + 1;
  v->threads = calloc(n, sizeof *v->threads);
  v->queue = malloc(n * sizeof *v->queue);
  v->search = malloc(n * sizeof *v->search);
  v->known = malloc(n * sizeof *v->known);
  v->known_stamp = calloc(n, sizeof *v->known_stamp);
  v->queued_stamp = calloc(n, sizeof *v->queued_stamp);
  return v->threads && v->queue && v->search && v->known && v->known_stamp && v->queued_stamp ? HK_OK
                                                                                              : hk_fault_memory(v);
}

/* Fills the threads, after the links are paired. */
static hk_status verify_fill_threads(hk_verifier *v) {
  size_t scratch = 0;
  for (int r = 0; r < v->nranks; r++) {
    const hk_program *p = v->programs[r];
    for (unsigned lane = 0; lane < p->nlanes; lane++) {
      v->threads[v->first_thread[r] + lane] = (hk_thread){.program = p,
                                                          .instrs = hk_program_instrs(p),
                                                          .ends = v->ends + v->first_end[r],
                                                          .scratch_at = scratch,
                                                          .rank = (uint16_t)r,
                                                          .lane = (uint16_t)lane};
      scratch += p->scratch_blocks;
    }
    for (uint32_t k = 0; k < p->nlinks; k++) {
      hk_thread *t = &v->threads[v->first_thread[r] + hk_program_links(p)[k].lane];
      if (!t->end_link) t->first_link = k;
      t->end_link = k + 1;
    }
  }
  v->scratch = calloc(scratch + 1, sizeof *v->scratch);
  return v->scratch ? HK_OK : hk_fault_memory(v);
}

/* Counts the writes of every output block in one wave. */
static void verify_count_writes(const hk_program *p, uint32_t *writes) {
  hk_scan s = {.end = p->ninstrs};
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    uint32_t lands = hk_instr_lands(i, o) ? HK_LANDS : 0;
    for (unsigned d = 0; d < i->ndst; d++) {
      for (uint32_t j = 0; o[d].space == HK_OUT && j < s.times; j++) {
        uint32_t *n = &writes[hk_operand_block(p, &o[d], j)];
        *n = (*n + 1) | lands;
      }
    }
  }
}

static hk_status verify_make_places(hk_verifier *v) {
  size_t blocks = 0, waves = v->options.waves;
  v->first_place = malloc((size_t)v->nranks * sizeof *v->first_place);
  if (!v->first_place) return hk_fault_memory(v);
  for (int r = 0; r < v->nranks; r++) {
    v->first_place[r] = blocks * waves;
    blocks += hk_out_blocks_of(v, r);
  }
  v->places = calloc(blocks * waves + 1, sizeof *v->places);
  v->place_writes = calloc(blocks + 1, sizeof *v->place_writes);
  if (!v->places || !v->place_writes) return hk_fault_memory(v);
  for (int r = 0; r < v->nranks; r++) verify_count_writes(v->programs[r], v->place_writes + v->first_place[r] / waves);
  return HK_OK;
}

/* The value that an output block must hold: a rank's input block, or the sum of this block of all ranks. */
static hk_value verify_wanted(const hk_program *p, unsigned block) {
  int from, part;
  hk_program_source(p, p->rank, (int)block, &from, &part);
  return hk_value_make(HK_VALUE_LEAF, (uint32_t)from, (uint32_t)part);
}

static bool verify_is_right(const hk_verifier *v, const hk_program *p, hk_value x, unsigned block) {
  if (hk_value_kind(x) < HK_VALUE_LEAF) return false;
  if (!v->reduces) return hk_value_sent_as(x, 0) == verify_wanted(p, block);
  return hk_value_block(x) == hk_value_block(verify_wanted(p, block)) && hk_value_is_final(x) &&
         hk_value_count(&v->sets, x) == (uint32_t)v->nranks;
}

static hk_status verify_wrong_output(hk_verifier *v, const hk_program *p, unsigned wave, unsigned block,
                                     const hk_place *place) {
  char holds[HK_VALUE_TEXT], wants[HK_VALUE_TEXT];
  hk_value_text(v, place->value, holds);
  if (v->reduces)
    snprintf(wants, sizeof wants, "the final sum of block %u over all ranks", hk_value_block(verify_wanted(p, block)));
  else
    hk_value_text(v, verify_wanted(p, block), wants);
  if (!place->writer_event)
    return hk_fault(v, p->rank, -1, -1, "at the end out[b%u] of wave %u holds %s, not %s: no instruction writes it",
                    block, wave, holds, wants);
  return hk_fault_event(v, &v->threads[v->first_thread[p->rank] + place->writer_lane], place->writer_event,
                        "it leaves in out[b%u] %s, not %s", block, holds, wants);
}

static hk_status verify_check_outputs(hk_verifier *v) {
  for (int r = 0; r < v->nranks; r++) {
    unsigned blocks = hk_out_blocks_of(v, r);
    const hk_place *place = v->places + v->first_place[r];
    for (unsigned wave = 0; wave < v->options.waves; wave++)
      for (unsigned b = 0; b < blocks; b++, place++)
        if (hk_length_reaches_output(v, v->programs[r], b, wave) &&
            !verify_is_right(v, v->programs[r], place->value, b))
          return verify_wrong_output(v, v->programs[r], wave, b, place);
  }
  return HK_OK;
}

static void verify_release(hk_verifier *v) {
  void *const owned[] = {v->threads,  v->first_thread, v->first_end,    v->ends,         v->uses,
                         v->channels, v->readers,      v->slots,        v->readers_left, v->times,
                         v->places,   v->first_place,  v->place_writes, v->scratch,      v->queue,
                         v->reads,    v->known,        v->search,       v->known_stamp,  v->queued_stamp};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(owned); k++) free(owned[k]);
  hk_set_pool_free(&v->sets);
  hk_orders_free(&v->orders);
}

hk_status hk_verify(const hk_program *const *programs, int nranks, const hk_verify_options *options,
                    hk_verify_report *report) {
  *report = (hk_verify_report){.rank = -1, .lane = -1, .instr = -1};
  if (nranks > HK_VERIFY_MOST || (nranks > 0 && programs[0]->blocks > HK_VERIFY_MOST)) {
    snprintf(report->message, sizeof report->message, "%d ranks and %u blocks: the verifier takes at most %d of each",
             nranks, programs[0]->blocks, HK_VERIFY_MOST);
    return HK_ERR_ARGUMENT;
  }
  if (nranks < 1 || options->slots < 1 || options->waves < 1) {
    snprintf(report->message, sizeof report->message, "nothing to verify: %d ranks, %u slots, %u waves", nranks,
             options->slots, options->waves);
    return HK_ERR_ARGUMENT;
  }
  hk_verifier v = {.programs = programs,
                   .nranks = nranks,
                   .options = *options,
                   .report = report,
                   .reduces = hk_coll_reduces((hk_coll)programs[0]->coll),
                   .split = programs[0]->partition == HK_PART_SPLIT || programs[0]->traits.parts,
                   .uneven = hk_coll_uneven((hk_coll)programs[0]->coll)};
  hk_status rc;
  hk_set_pool_init(&v.sets, nranks);
  v.options.lengths = v.uneven ? options->lengths : 0;
  const bool orders = v.reduces && options->orders && !v.options.lengths; /* an order is the same for all lengths */
  v.orders.nranks = (uint32_t)nranks;
  HK_TRY(hk_verify_static(&v), out);
  HK_TRY(verify_make_threads(&v), out);
  HK_TRY(hk_verify_links(&v), out);
  v.options.orders = orders && !v.switch_adds; /* a switch's order is not known */
  HK_TRY(verify_fill_threads(&v), out);
  HK_TRY(verify_make_places(&v), out);
  HK_TRY(hk_verify_run(&v), out);
  HK_TRY(verify_check_outputs(&v), out);
  if (orders) rc = hk_verify_orders(&v);
out:
  report->sets = v.sets.used;
  verify_release(&v);
  return rc;
}
