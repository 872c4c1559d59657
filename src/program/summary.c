/* SPDX-License-Identifier: Apache-2.0 */
/* What programs do: the traits of one, and the summary of those of all ranks. */
#include "summary.h"
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "program_internal.h"
#include "quantised.h"
#include "summary_run.h"

/* ---- one program ---- */

/* The kind of the operand's link; -1 if it is on no link, or if the program's text names one that does not exist. */
static int summary_kind(const hk_program *p, const hk_operand *o) {
  return o->space == HK_LINK && o->link < p->nlinks ? hk_program_links(p)[o->link].kind : -1;
}

static void summary_switch(const hk_link_need *l, hk_traits *t) {
  if (l->channel >= t->switch_span) t->switch_span = (uint16_t)(l->channel + 1);
}

static void summary_links(const hk_program *p, hk_traits *t) {
  t->span = 1;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    if (l->channel >= t->span) t->span = (uint16_t)(l->channel + 1);
    const bool multicast = l->kind == HK_LINK_MCAST_SEND || l->kind == HK_LINK_MCAST_RECV;
    t->multicasts |= multicast;
    if (multicast) summary_switch(l, t);
    t->in_groups |= hk_link_in_group((hk_link_kind)l->kind);
    t->in_rounds |= hk_link_in_rounds((hk_link_kind)l->kind);
  }
}

/* Blocks that one execution of the instruction reads and writes. */
static unsigned summary_moves(const hk_instr *i, const hk_operand *o, bool by_reference) {
  unsigned moves = 0, kept = 0; /* kept: operands that hold the value until the operation ends */
  if (!i->ndst || !i->nsrc) return 0;
  for (unsigned k = 0; k < i->ndst; k++) kept += o[k].space == HK_OUT;
  if (i->nsrc == 1) kept += o[i->ndst].space == HK_IN || o[i->ndst].space == HK_OUT;
  if (i->flags & HK_INSTR_COPY) kept = 0;
  for (unsigned k = 0; k < i->ndst; k++) moves += o[k].space != HK_LINK || !by_reference || !kept;
  return moves ? moves + i->nsrc : 0; /* if all is sent by reference, the value is not read */
}

/* The slots of multicasts that the instruction, run `times` times, moves unchanged to outputs; -1: it uses such a slot
 * in another way. */
static int64_t summary_landing(const hk_program *p, const hk_instr *i, const hk_operand *o, uint32_t times) {
  int64_t landing = 0;
  for (unsigned k = i->ndst; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (summary_kind(p, &o[k]) != HK_LINK_MCAST_RECV) continue;
    if (i->ndst != 1 || !hk_instr_lands(i, o) || (times > 1 && !(o[k].flags & HK_OPERAND_STEP))) return -1;
    landing += times;
  }
  return landing;
}

/* The number of landing slots equals that of receiving links, and the verifier has proved that every link has a
 * receive: so each link has one. */
static bool summary_places(const hk_program *p, int64_t landing) {
  uint32_t sends = 0, receives = 0;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    sends += hk_program_links(p)[k].kind == HK_LINK_MCAST_SEND;
    receives += hk_program_links(p)[k].kind == HK_LINK_MCAST_RECV;
  }
  return sends && receives && landing == receives;
}

static bool summary_one_shot(const hk_program *p) {
  if (p->nlanes != 1 || p->ninstrs != 2 || p->blocks != 1 || !hk_coll_reduces((hk_coll)p->coll)) return false;
  const hk_instr *send = hk_program_instrs(p), *sum = send + 1;
  if (send->op != HK_OP_MOVE || (send->flags & ~HK_INSTR_TABLE) != HK_INSTR_COPY || send->nsrc != 1) return false;
  if (sum->op != HK_OP_MOVE || (sum->flags & ~HK_INSTR_TABLE) != HK_INSTR_FINAL || sum->ndst != 1) return false;
  const hk_operand *to = hk_instr_operands(p, send), *at = hk_instr_operands(p, sum);
  unsigned inputs = 0;
  for (unsigned k = 0; k < send->ndst; k++)
    if (summary_kind(p, &to[k]) != HK_LINK_SEND) return false;
  for (unsigned k = 1; k <= sum->nsrc; k++) {
    if (at[k].space != HK_IN && summary_kind(p, &at[k]) != HK_LINK_RECV) return false;
    inputs += at[k].space == HK_IN;
  }
  return to[send->ndst].space == HK_IN && at[0].space == HK_OUT && inputs == 1;
}

/* False if the instruction sends something that links cannot refer to, or adds. */
static bool summary_refers(const hk_program *p, const hk_instr *i, const hk_operand *o) {
  bool sends = false, kept = i->nsrc == 1 && (o[i->ndst].space == HK_IN || o[i->ndst].space == HK_OUT);
  for (unsigned k = 0; k < i->ndst; k++) {
    kept |= o[k].space == HK_OUT;
    if (o[k].space != HK_LINK) continue;
    if (summary_kind(p, &o[k]) != HK_LINK_SEND) return false;
    sends = true;
  }
  return i->nsrc <= 1 && (!sends || (kept && !(i->flags & HK_INSTR_COPY)));
}

/* Blocks of each message of a collective of whole messages; 0: one. */
static uint16_t summary_parts(const hk_program *p) {
  const int in = hk_coll_in_blocks((hk_coll)p->coll, p->nranks), out = hk_coll_out_blocks((hk_coll)p->coll, p->nranks);
  const unsigned messages = (unsigned)(in > out ? in : out);
  if (p->partition != HK_PART_WHOLE || p->blocks <= messages || !messages || p->blocks % messages) return 0;
  return (uint16_t)(p->blocks / messages);
}

hk_traits hk_traits_of(const hk_program *p) {
  hk_traits t = {.max_operands = 1, .refers = 1, .parts = summary_parts(p)};
  hk_scan s = {.end = p->ninstrs};
  int64_t landing = 0;
  summary_links(p, &t);
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    const unsigned operands = (unsigned)i->ndst + i->nsrc;
    if (operands > t.max_operands) t.max_operands = (uint16_t)operands;
    t.in_switch |= (i->flags & HK_INSTR_IN_SWITCH) != 0;
    for (unsigned k = 0; i->flags & HK_INSTR_IN_SWITCH && k < operands; k++)
      if (summary_kind(p, &o[k]) >= 0) summary_switch(&hk_program_links(p)[o[k].link], &t);
    t.refers &= summary_refers(p, i, o);
    t.moves += s.times * summary_moves(i, o, false);
    t.moves_by_reference += s.times * summary_moves(i, o, true);
    const int64_t more = summary_landing(p, i, o, s.times);
    landing = landing < 0 || more < 0 ? -1 : landing + more;
  }
  t.one_shot = summary_one_shot(p);
  t.places = summary_places(p, landing);
  return t;
}

/* ---- the programs of all ranks ---- */

/* How many blocks' whole sums the program rounds and sends in a wave (hk_summary.quantises). -1: its links may carry no
 * quantised values, because it sends or keeps a sum that is not whole, or keeps a whole sum and does not send it. Then
 * other ranks would get other bits. */
static int64_t summary_rounded(const hk_program *p) {
  hk_scan s = {.end = p->ninstrs};
  int64_t rounded = 0;
  if (!hk_quantised_coll((hk_coll)p->coll)) return -1;
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i), *source = o + i->ndst;
    bool sends = false, keeps = false;
    if (i->flags & HK_INSTR_IN_SWITCH) return -1;
    for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
      const int kind = summary_kind(p, &o[k]);
      if (kind >= 0 && hk_link_in_group((hk_link_kind)kind)) return -1;
      sends |= k < i->ndst && o[k].space == HK_LINK;
      keeps |= k < i->ndst && o[k].space == HK_OUT;
    }
    if (i->nsrc > 1 && i->flags & HK_INSTR_FINAL && sends)
      rounded += s.times;
    else if (i->nsrc > 1 && (sends || keeps))
      return -1;
    else if (i->nsrc == 1 && (source->space == HK_SCRATCH || (source->space == HK_IN && keeps)))
      return -1;
  }
  return rounded;
}

hk_status hk_summary_memory(int nranks) {
  return HK_FAIL(HK_ERR_SYSTEM, "out of memory for a summary of %d ranks", nranks);
}

static hk_status summary_prepare(hk_summary_run *x) {
  const hk_program *p = x->programs[0];
  const size_t n = (size_t)x->period;
  const uint64_t waves = HK_SUMMARY_WAVES;
  uint32_t ends = 0, threads = 0;
  x->sizes = hk_sizes_for(p, hk_program_parts(p) * waves, waves, 1);
  x->first_end = malloc((n + 1) * sizeof *x->first_end);
  x->first_thread = malloc((n + 1) * sizeof *x->first_thread);
  x->volumes = calloc(n, sizeof *x->volumes);
  if (!x->first_end || !x->first_thread || !x->volumes) return hk_summary_memory(x->nranks);
  for (size_t r = 0; r < n; r++) {
    x->first_end[r] = ends;
    x->first_thread[r] = threads;
    ends += x->programs[r]->nlinks;
    threads += x->programs[r]->nlanes;
  }
  x->first_end[n] = ends;
  x->first_thread[n] = threads;
  x->ends = calloc((size_t)ends + 1, sizeof *x->ends);
  x->threads = calloc((size_t)threads + 1, sizeof *x->threads);
  x->ready = malloc(((size_t)threads + 1) * sizeof *x->ready);
  return x->ends && x->threads && x->ready ? HK_OK : hk_summary_memory(x->nranks);
}

/* One of `copies` ranks that do the same. Every member of hk_volume is a uint64_t. */
static void summary_add(hk_volume *most, hk_volume *all, const hk_volume *one, uint64_t copies) {
  enum { FIELDS = sizeof *one / sizeof(uint64_t) };
  uint64_t m[FIELDS], a[FIELDS], x[FIELDS];
  memcpy(m, most, sizeof m);
  memcpy(a, all, sizeof a);
  memcpy(x, one, sizeof x);
  for (int k = 0; k < FIELDS; k++) {
    if (x[k] > m[k]) m[k] = x[k];
    a[k] += copies * x[k];
  }
  memcpy(most, m, sizeof m);
  memcpy(all, a, sizeof a);
}

static hk_chain summary_chain(hk_chain_key from, hk_chain_key to) {
  const hk_chain a = hk_summary_chain_of(from), b = hk_summary_chain_of(to);
  return (hk_chain){.rounds = b.rounds - a.rounds, .far = b.far - a.far, .instrs = b.instrs - a.instrs};
}

/* Numbers the ranks of each host. */
static hk_status summary_number(hk_summary_run *x) {
  if (!x->host) return HK_OK;
  uint32_t *next = calloc((size_t)x->nranks, sizeof *next); /* there are no more hosts than ranks */
  x->local = malloc((size_t)x->nranks * sizeof *x->local);
  for (int r = 0; next && x->local && r < x->nranks; r++) x->local[r] = next[x->host[r]]++;
  const bool done = next && x->local;
  free(next);
  return done ? HK_OK : hk_summary_memory(x->nranks);
}

/* The busiest host's blocks. */
static hk_status summary_leaving(hk_summary *out, const hk_summary_run *x) {
  uint64_t *hosts = calloc(2 * (size_t)x->nranks, sizeof *hosts); /* there are no more hosts than ranks */
  if (!hosts) return hk_summary_memory(x->nranks);
  for (int r = 0; r < x->nranks; r++) {
    const hk_volume *v = &x->volumes[r % x->period];
    uint64_t *host = &hosts[x->host ? x->host[r] : 0];
    *host += v->carried[HK_BETWEEN];
    if (*host > out->leaving) out->leaving = *host;
    host += x->nranks;
    *host += v->received[HK_BETWEEN];
    if (*host > out->entering) out->entering = *host;
  }
  free(hosts);
  return HK_OK;
}

/* The links on which the rank sends to others. */
static void summary_count_links(hk_summary *out, hk_summary_run *x, int rank) {
  const hk_link_need *need = hk_program_links(x->programs[rank]);
  const hk_summary_end *ends = &x->ends[x->first_end[rank]];
  uint32_t far = 0;
  for (uint32_t k = 0; k < x->programs[rank]->nlinks; k++) {
    const bool sends = hk_link_sends((hk_link_kind)need[k].kind) && !ends[k].own;
    x->volumes[rank].links += sends;
    far += sends && ends[k].reach == HK_BETWEEN;
  }
  if (far > out->far_fan) out->far_fan = far;
}

static void summary_volume(hk_summary *out, hk_summary_run *x) {
  for (uint32_t k = 0; k < x->first_thread[x->period]; k++) {
    const hk_summary_thread *t = &x->threads[k];
    hk_volume *v = &x->volumes[t->rank];
    if (t->carried[HK_BETWEEN] && t->carried[HK_BETWEEN] == v->carried[HK_BETWEEN]) v->by_turns = t->carried[HK_INSIDE];
    if (t->instrs > v->longest) v->longest = t->instrs;
  }
  int64_t rounded = 0;
  for (int r = 0; r < x->period; r++) {
    const hk_program *p = x->programs[r];
    hk_volume *v = &x->volumes[r];
    const int64_t more = summary_rounded(p);
    rounded = rounded < 0 || more < 0 ? -1 : rounded + more;
    v->sent[HK_ANYWHERE] = v->sent[HK_INSIDE] + v->sent[HK_BETWEEN];
    v->received[HK_ANYWHERE] = v->received[HK_INSIDE] + v->received[HK_BETWEEN];
    v->bursts[HK_ANYWHERE] = v->bursts[HK_INSIDE] + v->bursts[HK_BETWEEN];
    v->carried[HK_ANYWHERE] = v->carried[HK_INSIDE] + v->carried[HK_BETWEEN];
    v->taken[HK_ANYWHERE] = v->taken[HK_INSIDE] + v->taken[HK_BETWEEN];
    summary_count_links(out, x, r);
    summary_add(&out->most, &out->all, v, (uint64_t)(x->nranks / x->period));
    out->one_way |= v->received[HK_ANYWHERE] == 0;
    if (p->traits.switch_span > out->switch_span) out->switch_span = p->traits.switch_span;
    out->one_shot |= p->traits.one_shot;
    out->refers = (r == 0 || out->refers) && p->traits.refers;
    out->places = (r == 0 || out->places) && p->traits.places;
    if (p->scratch_blocks > out->scratch) out->scratch = p->scratch_blocks;
  }
  out->quantises = rounded * (x->nranks / x->period) == x->programs[0]->blocks;
  out->tail = x->tail;
  out->busy = x->busy;
}

/* True if the operand's link leads to another host in the given iteration. */
static bool summary_is_far(const hk_program *p, const hk_operand *o, uint32_t iteration, const int32_t *host) {
  const hk_link_need *l = o->space == HK_LINK ? &hk_program_links(p)[hk_operand_link(o, iteration)] : NULL;
  return l && host[l->peer] != host[p->rank];
}

void hk_load_add(hk_load *load, const hk_program *p, const int32_t *host) {
  load->blocks = p->blocks;
  if (load->work < p->nlinks + p->traits.moves) load->work = p->nlinks + p->traits.moves;
  if (load->program < p->bytes) load->program = p->bytes;
  for (unsigned l = 0; l < p->nlanes; l++) {
    const hk_lane *lane = &hk_program_lanes(p)[l];
    hk_scan s = {.next = lane->first, .end = lane->first + lane->count};
    uint64_t instrs = 0;
    for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p))); instrs += s.times)
      for (const hk_operand *o = hk_instr_operands(p, i), *end = o + i->ndst; i->nsrc && o < end; o++)
        for (uint32_t k = 0; host && k < s.times; k++) load->far += summary_is_far(p, o, k, host);
    if (instrs > load->longest) load->longest = instrs;
  }
}

/* Lets the programs run. */
static hk_status summary_walk(hk_summary_run *x) {
  HK_OR_RETURN(summary_number(x));
  HK_OR_RETURN(summary_prepare(x));
  HK_OR_RETURN(hk_summary_tie(x));
  return hk_summary_go(x);
}

static void summary_path(const hk_summary_run *x, hk_chain *first, hk_chain *again) {
  *first = summary_chain(0, x->wave_ends[0]);
  *again = summary_chain(x->wave_ends[HK_SUMMARY_WAVES - 2], x->wave_ends[HK_SUMMARY_WAVES - 1]);
}

hk_status hk_summarize(hk_summary *out, const hk_program *const *programs, int nranks, int period, hk_map_kind kind,
                       const int32_t *host, uint32_t slots, bool one_host) {
  hk_summary_run x = {.programs = programs,
                      .host = host,
                      .nranks = nranks,
                      .period = period,
                      .kind = kind,
                      .slots = slots,
                      .one_host = one_host};
  hk_summary_run held = x; /* senders wait for slots */
  hk_status rc;
  held.bounded = true;
  x.traces = hk_coll_has_root((hk_coll)programs[0]->coll) && period == nranks;
  *out = (hk_summary){.nranks = nranks, .period = period, .blocks = programs[0]->blocks};
  HK_TRY(summary_walk(&x), out);
  if (x.ahead) HK_TRY(summary_walk(&held), out);
  summary_path(&x, &out->first, &out->again);
  summary_path(x.ahead ? &held : &x, &out->held, &out->held_again);
  summary_volume(out, &x);
  HK_TRY(summary_leaving(out, &x), out);
  HK_TRY(hk_summary_maps(out, &x), out);
  out->nevents = x.nevents;
  out->events = x.events;
  x.events = NULL;
out:
  hk_summary_run_free(&x);
  hk_summary_run_free(&held);
  if (rc != HK_OK) hk_summary_clear(out);
  return rc;
}

void hk_summary_shrink(hk_summary *s) {
  free(s->maps);
  free(s->events);
  s->maps = NULL;
  s->events = NULL;
  s->nmaps = 0;
  s->nevents = 0;
}

void hk_summary_clear(hk_summary *s) {
  hk_summary_shrink(s);
  *s = (hk_summary){.nranks = 0};
}
