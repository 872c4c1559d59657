/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the blocks of an MSCCL file with names in place of data. A block runs one chunk of a step in each round, and a
 * message arrives in the round after it was sent. So a lane's instructions are in an order in which all ranks work at
 * the same time, and few slots are filled at a time. */
#include "msccl_run.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../program/limits.h"

__attribute__((format(printf, 4, 5), cold)) static bool msccl_run_wrong(hk_msccl_state *x, const hk_msccl_block *b,
                                                                        const hk_msccl_step *s, const char *format,
                                                                        ...) {
  char text[300];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  hk_xml_say(s->node, true, "gpu %d, block %d, step %d (%s) %s", b->gpu, b->id, (int)(s - &x->f->steps[b->first]),
             hk_xml_get(s->node, "type"), text);
  return false;
}

/* ---- memory ---- */

static hk_trace_value msccl_run_input(const hk_msccl_state *x, int gpu, int block) {
  const hk_coll coll = x->f->coll;
  if (!hk_coll_has_input(coll, gpu, 0)) return (hk_trace_value){0, 0};
  const bool sum = hk_coll_reduces(coll) || hk_coll_partition(coll) == HK_PART_SPLIT; /* all ranks have this chunk */
  return (hk_trace_value){sum ? block : gpu * x->trace.nin + block, (uint64_t)1 << gpu};
}

/* All ranks, as hk_trace_value.ranks. */
static uint64_t msccl_run_all(const hk_msccl_state *x) { return ~(uint64_t)0 >> (64 - x->f->nranks); }

/* The block that a link's operand names. */
static uint16_t msccl_run_link_block(const hk_msccl_state *x, const hk_trace_value *v) {
  return (uint16_t)(v->chunk % (x->trace.nin > x->trace.nout ? x->trace.nin : x->trace.nout));
}

/* The input block that is at the place of an output block if the call is in place; -1: none. */
static int msccl_run_alias_of(const hk_msccl_state *x, int gpu, int out) {
  for (int in = 0; in < x->trace.nin; in++)
    if (hk_trace_alias(&x->trace, gpu, in) == out) return in;
  return -1;
}

static bool msccl_run_in_range(hk_msccl_state *x, const hk_msccl_block *b, const hk_msccl_step *s, char buf, int at) {
  const int n = buf == 'i' ? x->trace.nin : buf == 'o' ? x->trace.nout : x->f->scratch;
  if (at < n) return true;
  return msccl_run_wrong(x, b, s, "uses chunk %d of buffer %c, which has %d", at, buf, n);
}

static void msccl_run_use_scratch(hk_msccl_state *x, const hk_msccl_block *b, int at) {
  int *owner = &x->ranks[b->gpu].owner[at], own = (int)(b - x->f->blocks);
  if (*owner) hk_trace_tie(&x->trace, *owner - 1, own);
  *owner = own + 1;
}

static bool msccl_run_read(hk_msccl_state *x, const hk_msccl_block *b, const hk_msccl_step *s, hk_msccl_place p,
                           hk_trace_operand *o, hk_trace_value *v) {
  hk_msccl_memory *m = &x->ranks[b->gpu];
  if (!msccl_run_in_range(x, b, s, p.buf, p.at)) return false;
  int in = p.at;
  switch (p.buf) {
    case 's':
      msccl_run_use_scratch(x, b, p.at);
      *o = (hk_trace_operand){HK_SCRATCH, (uint16_t)p.at, -1};
      *v = m->scratch[p.at];
      break;
    case 'i':
      if (!m->moved[p.at]) break;
      p.at = hk_trace_alias(&x->trace, b->gpu, p.at);
      __attribute__((fallthrough));
    default:
      *o = (hk_trace_operand){HK_OUT, (uint16_t)p.at, -1};
      *v = m->out[p.at];
      in = v->ranks ? -1 : msccl_run_alias_of(x, b->gpu, p.at);
      p.buf = in >= 0 ? 'i' : 'o';
  }
  if (p.buf == 'i') {
    *o = (hk_trace_operand){HK_IN, (uint16_t)in, -1};
    *v = m->in[in];
  }
  return v->ranks || msccl_run_wrong(x, b, s, "reads chunk %d of buffer %c, which holds nothing yet", p.at, p.buf);
}

static bool msccl_run_write(hk_msccl_state *x, const hk_msccl_block *b, const hk_msccl_step *s, hk_msccl_place p,
                            hk_trace_operand *o, const hk_trace_value *v) {
  hk_msccl_memory *m = &x->ranks[b->gpu];
  if (!msccl_run_in_range(x, b, s, p.buf, p.at)) return false;
  if (p.buf == 's') {
    msccl_run_use_scratch(x, b, p.at);
    *o = (hk_trace_operand){HK_SCRATCH, (uint16_t)p.at, -1};
    m->scratch[p.at] = *v;
    return true;
  }
  if (p.buf == 'i') {
    const int out = hk_trace_alias(&x->trace, b->gpu, p.at);
    if (out < 0)
      return msccl_run_wrong(x, b, s, "writes chunk %d of the input, which has no place in the output", p.at);
    m->moved[p.at] = true;
    p.at = out;
  }
  if (v->chunk % x->trace.parts != p.at % x->trace.parts)
    return msccl_run_wrong(x, b, s, "writes chunk %d of a message to the place of chunk %d", v->chunk % x->trace.parts,
                           p.at % x->trace.parts);
  *o = (hk_trace_operand){HK_OUT, (uint16_t)p.at, -1};
  m->out[p.at] = *v;
  return true;
}

/* ---- steps ---- */

static bool msccl_run_add(hk_msccl_state *x, const hk_msccl_block *b, const hk_msccl_step *s, hk_trace_value *sum,
                          const hk_trace_value *v) {
  const uint64_t both = sum->ranks & v->ranks;
  if (!hk_coll_reduces(x->f->coll))
    return msccl_run_wrong(x, b, s, "adds, and %s only copies", hk_coll_name(x->f->coll));
  if (sum->chunk != v->chunk)
    return msccl_run_wrong(x, b, s, "adds chunk %d of the message to chunk %d", v->chunk, sum->chunk);
  if (both)
    return msccl_run_wrong(x, b, s, "adds the part of gpu %d of chunk %d, which the sum has already",
                           __builtin_ctzll(both), v->chunk);
  sum->ranks |= v->ranks;
  return true;
}

static bool msccl_run_no_memory(hk_msccl_state *x) {
  (void)HK_FAIL_ERRNO("no memory to run %s", x->f->report.file);
  x->f->report.errors = -1;
  return false;
}

static bool msccl_run_is(const hk_trace_operand *a, const hk_trace_operand *b) {
  return a->space == b->space && a->block == b->block;
}

/* True if the record reads or writes what `r` writes, or writes what `r` reads. */
static bool msccl_run_conflicts(const hk_trace_record *other, const hk_trace_record *r) {
  bool any = false;
  for (int k = 0; k < other->ndst; k++) {
    if (other->dst[k].space == HK_LINK) continue;
    any |= msccl_run_is(&other->dst[k], &r->dst[0]);
    for (int j = 0; j < r->nsrc; j++) any |= msccl_run_is(&other->dst[k], &r->src[j]);
  }
  for (int k = 0; k < other->nsrc; k++) any |= msccl_run_is(&other->src[k], &r->dst[0]);
  return any;
}

/* `re` to the same place after `re` in the same block: one sum, at the place of the later one. */
static void msccl_run_join(hk_trace_rank *m, size_t last, hk_trace_record *r) {
  hk_trace_record *before = &m->records[last];
  if (r->to < 0 || before->to != r->to || before->nsrc == HK_TRACE_SOURCES) return;
  for (size_t i = last + 1; i < m->nrecords; i++)
    if (msccl_run_conflicts(&m->records[i], before)) return;
  const hk_trace_operand added = r->src[1];
  memcpy(r->src, before->src, sizeof r->src);
  r->nsrc = before->nsrc;
  r->src[r->nsrc++] = added;
  before->ndst = before->nsrc = 0; /* gone */
  before->to = -1;
}

static bool msccl_run_keep(hk_msccl_state *x, int gpu, hk_trace_record *r) {
  hk_trace_rank *m = &x->trace.ranks[gpu];
  size_t *last = &x->last[r->block];
  if (*last) msccl_run_join(m, *last - 1, r);
  if (!HK_RESERVE(m->records, m->capacity, m->nrecords + 1)) return msccl_run_no_memory(x);
  m->records[m->nrecords++] = *r;
  *last = m->nrecords;
  return true;
}

/* One chunk of the block's step. False: it is wrong. */
static bool msccl_run_chunk(hk_msccl_state *x, hk_msccl_block *b, const hk_msccl_step *s) {
  const int own = (int)(b - x->f->blocks), k = b->done;
  const hk_msccl_place from = {s->from.buf, s->from.at + k}, to = {s->to.buf, s->to.at + k};
  const bool adds_to = s->does == (HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE);
  hk_trace_record r = {.block = own, .to = -1};
  hk_trace_value v = {0, 0}, w;
  if (adds_to && !msccl_run_read(x, b, s, to, &r.src[r.nsrc++], &v)) return false;
  if (s->does & HK_MSCCL_READ) {
    if (!msccl_run_read(x, b, s, from, &r.src[r.nsrc++], &w)) return false;
    if (!adds_to)
      v = w;
    else if (!msccl_run_add(x, b, s, &v, &w))
      return false;
  }
  if (s->does & HK_MSCCL_RECV) {
    const hk_msccl_message *got = &x->sent[b->sender].at[b->received++];
    if (got->turn != x->counts[x->trace.links[b->sender].first].received++)
      return msccl_run_wrong(
          x, b, s,
          "receives before a message that was sent earlier: gpu %d has more than %d connections with "
          "it, so some share a link, on which messages keep their order",
          b->recv, HK_CHANNELS);
    w = got->data;
    r.src[r.nsrc++] = (hk_trace_operand){HK_LINK, msccl_run_link_block(x, &w), own};
    if (!(s->does & HK_MSCCL_ADD))
      v = w;
    else if (!msccl_run_add(x, b, s, &v, &w))
      return false;
  }
  if (s->does & HK_MSCCL_WRITE && !msccl_run_write(x, b, s, to, &r.dst[r.ndst++], &v)) return false;
  if (s->does & HK_MSCCL_SEND) {
    hk_msccl_queue *q = &x->sent[own];
    r.dst[r.ndst++] = (hk_trace_operand){HK_LINK, msccl_run_link_block(x, &v), own};
    if (!HK_RESERVE(q->at, q->capacity, (size_t)b->sent + 1)) return msccl_run_no_memory(x);
    q->at[b->sent++] = (hk_msccl_message){v, x->counts[x->trace.links[own].first].sent++, x->round};
  }
  if (s->does & HK_MSCCL_ADD && v.ranks == msccl_run_all(x)) r.flags = HK_INSTR_FINAL;
  r.part = v.chunk % x->trace.parts;
  if (adds_to && r.dst[0].space == HK_OUT) r.to = r.dst[0].block;
  return msccl_run_keep(x, b->gpu, &r);
}

static bool msccl_run_ready(const hk_msccl_state *x, const hk_msccl_block *b, const hk_msccl_step *s) {
  const hk_msccl_block *mine = &x->f->blocks[x->f->first_block[b->gpu]];
  if (s->dep_block >= 0 && mine[s->dep_block].pc <= s->dep_step) return false;
  if (!(s->does & HK_MSCCL_RECV)) return true;
  if (b->sender < 0 || x->f->blocks[b->sender].sent == b->received) return false;
  const hk_msccl_message *next = &x->sent[b->sender].at[b->received];
  if (next->round == x->round) return false;
  return !(x->trace.how & HK_MSCCL_MERGE) || next->turn == x->counts[x->trace.links[b->sender].first].received;
}

/* Names a block that waits for ever: if there is one, for a block that has ended or does not exist. */
static bool msccl_run_stuck(hk_msccl_state *x) {
  const hk_msccl_block *found = NULL;
  for (int i = 0; i < x->f->nblocks; i++) {
    const hk_msccl_block *b = &x->f->blocks[i];
    if (b->pc == b->n) continue;
    if (!found) found = b;
    const bool receives = x->f->steps[b->first + b->pc].does & HK_MSCCL_RECV;
    const hk_msccl_block *peer = b->sender >= 0 ? &x->f->blocks[b->sender] : NULL;
    if (receives && (!peer || peer->pc == peer->n)) {
      found = b;
      break;
    }
  }
  const hk_msccl_step *s = &x->f->steps[found->first + found->pc];
  const hk_msccl_block *mine = &x->f->blocks[x->f->first_block[found->gpu]];
  if (s->dep_block >= 0 && mine[s->dep_block].pc <= s->dep_step)
    return msccl_run_wrong(x, found, s, "waits for ever: for step %d of block %d, which is at step %d", s->dep_step,
                           s->dep_block, mine[s->dep_block].pc);
  return msccl_run_wrong(x, found, s, "waits for ever: gpu %d sends only %d messages to it on channel %d", found->recv,
                         found->received, found->chan);
}

/* The k-th block that runs in a round. A gpu begins with the first one that sends to a later gpu: if all began with the
 * same peer, they would all wait for its link. */
static int msccl_run_nth(const hk_msccl_file *f, int k) {
  const int gpu = f->blocks[k].gpu, first = f->first_block[gpu], n = f->first_block[gpu + 1] - first;
  int begin = 0;
  while (begin < n && f->blocks[first + begin].send < gpu) begin++;
  return first + (k - first + begin) % n;
}

static bool msccl_run_blocks(hk_msccl_state *x) {
  for (bool moved = true, left = true; left;) {
    if (!moved) return msccl_run_stuck(x);
    x->round++;
    moved = left = false;
    for (int k = 0; k < x->f->nblocks; k++) {
      const int i = msccl_run_nth(x->f, k);
      hk_msccl_block *b = &x->f->blocks[i];
      if (b->pc == b->n) continue;
      const hk_msccl_step *s = &x->f->steps[b->first + b->pc];
      left = true;
      if (!msccl_run_ready(x, b, s)) continue;
      moved = true;
      if (s->dep_block >= 0) hk_trace_tie(&x->trace, i, x->f->first_block[b->gpu] + s->dep_block);
      if (s->does && !msccl_run_chunk(x, b, s)) return false;
      if (s->does && ++b->done < s->count) continue;
      b->done = 0;
      b->pc++;
    }
  }
  return true;
}

/* Compares an output chunk with its expected value. If no step writes the chunk, its value can be an input chunk that a
 * call in place has at the same address: then this adds a copy, for calls out of place. */
static bool msccl_run_check_output(hk_msccl_state *x, int gpu, int out) {
  hk_msccl_memory *m = &x->ranks[gpu];
  const hk_coll coll = x->f->coll;
  const int in = m->out[out].ranks ? -1 : msccl_run_alias_of(x, gpu, out);
  const hk_trace_value is = in >= 0 ? m->in[in] : m->out[out];
  const bool split = hk_coll_partition(coll) == HK_PART_SPLIT;
  int from, part;
  hk_coll_source(coll, gpu, x->f->nranks, 0, split ? out : out / x->trace.parts, &from, &part);
  if (!split) part = part * x->trace.parts + out % x->trace.parts;
  const uint64_t all = msccl_run_all(x);
  const hk_trace_value should = hk_coll_reduces(coll) ? (hk_trace_value){part, all} : msccl_run_input(x, from, part);
  if (is.chunk == should.chunk && is.ranks == should.ranks) {
    hk_trace_record r = {.block = x->f->first_block[gpu], .to = -1, .part = out % x->trace.parts, .ndst = 1, .nsrc = 1};
    r.dst[0] = (hk_trace_operand){HK_OUT, (uint16_t)out, -1};
    r.src[0] = (hk_trace_operand){HK_IN, (uint16_t)in, -1};
    return in < 0 || msccl_run_keep(x, gpu, &r);
  }
  const hk_xml_node *node = x->f->blocks[x->f->first_block[gpu]].node->parent;
  if (!is.ranks)
    hk_xml_say(node, true, "gpu %d: chunk %d of its output holds nothing when all blocks have ended", gpu, out);
  else if (hk_coll_reduces(coll) && is.chunk == should.chunk)
    hk_xml_say(node, true, "gpu %d: chunk %d of its output lacks the part of gpu %d", gpu, out,
               __builtin_ctzll(all & ~is.ranks));
  else
    hk_xml_say(node, true, "gpu %d: chunk %d of its output holds chunk %d of gpu %d", gpu, out, is.chunk,
               __builtin_ctzll(is.ranks));
  return false;
}

/* Gives each connection from one rank to another a channel, or all the same one (HK_MSCCL_MERGE). If they are too many,
 * those whose channels in the file differ by a multiple of HK_CHANNELS share a link, and their blocks a lane. */
static void msccl_run_link(hk_msccl_state *x, int from, int to) {
  const hk_msccl_file *f = x->f;
  const int begin = f->first_block[from], end = f->first_block[from + 1];
  int first[HK_CHANNELS], n = 0;
  memset(first, -1, sizeof first);
  for (int i = begin; i < end; i++) n += f->blocks[i].send == to;
  const bool shared = n > HK_CHANNELS;
  for (int i = begin, next = 0; i < end; i++) {
    const hk_msccl_block *b = &f->blocks[i];
    if (b->send != to) continue;
    const int c = x->trace.how & HK_MSCCL_MERGE ? 0 : shared ? b->chan % HK_CHANNELS : next++;
    if (first[c] < 0) first[c] = i;
    x->trace.links[i] = (hk_trace_link){.first = first[c], .channel = c};
    const int with = f->blocks[first[c]].receiver;
    hk_trace_tie(&x->trace, first[c], i);
    if (with >= 0 && b->receiver >= 0) hk_trace_tie(&x->trace, with, b->receiver);
  }
}

static bool msccl_run_begin(hk_msccl_state *x) {
  const size_t n = (size_t)x->f->nranks;
  const bool split = hk_coll_partition(x->f->coll) == HK_PART_SPLIT;
  x->trace.nin = split ? x->f->chunks : hk_coll_in_blocks(x->f->coll, x->f->nranks) * x->trace.parts;
  x->trace.nout = split ? x->f->chunks : hk_coll_out_blocks(x->f->coll, x->f->nranks) * x->trace.parts;
  x->ranks = calloc(n, sizeof *x->ranks);
  x->sent = calloc((size_t)x->f->nblocks + 1, sizeof *x->sent);
  x->counts = calloc((size_t)x->f->nblocks + 1, sizeof *x->counts);
  x->trace.ranks = calloc(n, sizeof *x->trace.ranks);
  x->trace.blocks = calloc((size_t)x->f->nblocks + 1, sizeof *x->trace.blocks);
  x->trace.links = calloc((size_t)x->f->nblocks + 1, sizeof *x->trace.links);
  x->last = calloc((size_t)x->f->nblocks + 1, sizeof *x->last);
  if (!x->ranks || !x->sent || !x->counts || !x->last || !x->trace.ranks || !x->trace.blocks || !x->trace.links)
    return false;
  for (size_t r = 0; r < n; r++) {
    hk_msccl_memory *m = &x->ranks[r];
    m->in = calloc((size_t)x->trace.nin, sizeof *m->in);
    m->moved = calloc((size_t)x->trace.nin, sizeof *m->moved);
    m->out = calloc((size_t)x->trace.nout, sizeof *m->out);
    m->scratch = calloc((size_t)x->f->scratch + 1, sizeof *m->scratch);
    m->owner = calloc((size_t)x->f->scratch + 1, sizeof *m->owner);
    if (!m->in || !m->moved || !m->out || !m->scratch || !m->owner) return false;
    for (int b = 0; b < x->trace.nin; b++) m->in[b] = msccl_run_input(x, (int)r, b);
  }
  for (int i = 0; i < x->f->nblocks; i++) {
    hk_msccl_block *b = &x->f->blocks[i];
    x->trace.blocks[i] = (hk_trace_block){b->send, b->recv, b->sender, b->receiver, i};
    b->pc = b->done = b->sent = b->received = 0;
  }
  for (int from = 0; from < x->f->nranks; from++)
    for (int to = 0; to < x->f->nranks; to++) msccl_run_link(x, from, to);
  return true;
}

static void msccl_run_end(hk_msccl_state *x) {
  for (int r = 0; x->ranks && r < x->f->nranks; r++) {
    hk_msccl_memory *m = &x->ranks[r];
    free(m->in);
    free(m->moved);
    free(m->out);
    free(m->scratch);
    free(m->owner);
  }
  for (int i = 0; x->sent && i < x->f->nblocks; i++) free(x->sent[i].at);
  free(x->ranks);
  free(x->sent);
  free(x->counts);
  hk_trace_free(&x->trace);
  free(x->last);
}

hk_status hk_msccl_run(hk_msccl_file *f, unsigned how, hk_program_set *s) {
  hk_status rc = HK_OK;
  hk_msccl_state x = {.f = f,
                      .trace = {.file = f->report.file,
                                .coll = f->coll,
                                .how = how,
                                .nranks = f->nranks,
                                .parts = f->parts,
                                .scratch = f->scratch}};
  memcpy(x.trace.name, f->name, sizeof x.trace.name);
  memcpy(x.trace.first_block, f->first_block, sizeof x.trace.first_block);
  bool good = msccl_run_begin(&x) || msccl_run_no_memory(&x);
  good = good && msccl_run_blocks(&x);
  for (int r = 0; r < f->nranks && good; r++)
    for (int out = 0; hk_coll_has_output(f->coll, r, 0) && out < x.trace.nout && good; out++)
      good = msccl_run_check_output(&x, r, out);
  if (good)
    rc = hk_trace_programs(&x.trace, s);
  else
    rc = f->report.errors > 0 ? HK_ERR_ARGUMENT : HK_ERR_SYSTEM;
  msccl_run_end(&x);
  return rc;
}
