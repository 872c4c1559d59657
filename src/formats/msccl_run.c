/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the blocks of an MSCCL file with names in place of data, and makes programs of what they do. A block runs one
 * chunk of a step in each round, so messages are received soon after they are sent, and few slots are filled at a
 * time. Each rank's instructions keep the order of this run. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../program/builder.h"
#include "../program/limits.h"
#include "msccl_file.h"

/* What a chunk of memory holds: a chunk of the message, with the parts of these ranks; no rank: nothing. */
typedef struct value {
  int chunk;
  uint64_t ranks;
} value;

typedef struct operand {
  uint8_t space;  /* hk_space; HK_LINK: a block's connection, as source from its sender, else to its receiver */
  uint16_t block; /* of the program */
  int owner;      /* HK_LINK: the block of the file */
} operand;

enum { DESTINATIONS = 2, OPERANDS = DESTINATIONS + HK_MSCCL_SOURCES };
typedef struct record {
  int block; /* of the file */
  int to;    /* the place that `re` adds to, in the output; -1: another type of step */
  unsigned flags;
  uint8_t ndst, nsrc;
  operand dst[DESTINATIONS], src[HK_MSCCL_SOURCES];
} record;

/* A rank's memory and instructions. */
typedef struct memory {
  value *in, *out, *scratch;
  bool *moved; /* of the input: a step has written it, so it is in the output */
  int *owner;  /* of the scratch memory: a block that uses the chunk, plus 1 */
  record *records;
  size_t nrecords, room;
} memory;

typedef struct message {
  value data;
  int turn; /* its number among the messages of the link */
} message;
typedef struct queue {
  message *at;
  size_t room;
} queue;

/* The link of a connection: two ranks have at most HK_CHANNELS, so connections may have to share one. */
typedef struct link {
  int first; /* the first sending block of those that share it, which counts for all */
  int channel;
  int sent, received; /* messages */
} link;

typedef struct run {
  hk_msccl_file *f;
  int nin, nout; /* chunks of a rank's input and output */
  memory *ranks;
  queue *sent;      /* by sending block */
  link *links;      /* likewise */
  size_t *last;     /* by block: its last record, plus 1 */
  unsigned scratch; /* chunks that the programs use */
} run;

__attribute__((format(printf, 4, 5), cold)) static bool msccl_run_wrong(run *x, const hk_msccl_block *b,
                                                                        const hk_msccl_step *s, const char *format,
                                                                        ...) {
  char text[300];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  hk_xml_say(&x->f->report, s->node, true, "gpu %d, block %d, step %d (%s) %s", b->gpu, b->id,
             (int)(s - &x->f->steps[b->first]), hk_xml_get(s->node, "type"), text);
  return false;
}

/* ---- blocks that share a lane ---- */

static int msccl_run_lane(const run *x, int block) {
  while (x->f->blocks[block].lane != block) block = x->f->blocks[block].lane;
  return block;
}

static void msccl_run_tie(run *x, int a, int b) {
  a = msccl_run_lane(x, a), b = msccl_run_lane(x, b);
  x->f->blocks[a > b ? a : b].lane = a < b ? a : b;
}

/* ---- memory ---- */

static value msccl_run_input(const run *x, int gpu, int block) {
  const hk_coll coll = x->f->coll;
  if (!hk_coll_has_input(coll, gpu, 0)) return (value){0, 0};
  const bool sum = hk_coll_reduces(coll) || hk_coll_partition(coll) == HK_PART_SPLIT; /* all ranks have this chunk */
  return (value){sum ? block : gpu * x->nin + block, (uint64_t)1 << gpu};
}

/* The block that a link's operand names. */
static uint16_t msccl_run_link_block(const run *x, const value *v) {
  return (uint16_t)(v->chunk % (x->nin > x->nout ? x->nin : x->nout));
}

static int msccl_run_alias(const run *x, int gpu, int in) {
  const int parts = x->f->parts;
  if (hk_coll_partition(x->f->coll) == HK_PART_SPLIT) return in;
  const int whole = hk_coll_alias(x->f->coll, gpu, x->f->nranks, 0, in / parts);
  return whole < 0 ? whole : whole * parts + in % parts;
}

/* The input block that is at the place of an output block if the call is in place; -1: none. */
static int msccl_run_alias_of(const run *x, int gpu, int out) {
  for (int in = 0; in < x->nin; in++)
    if (msccl_run_alias(x, gpu, in) == out) return in;
  return -1;
}

static bool msccl_run_in_range(run *x, const hk_msccl_block *b, const hk_msccl_step *s, char buf, int at) {
  const int n = buf == 'i' ? x->nin : buf == 'o' ? x->nout : x->f->scratch;
  if (at < n) return true;
  return msccl_run_wrong(x, b, s, "uses chunk %d of buffer %c, which has %d", at, buf, n);
}

static void msccl_run_use_scratch(run *x, const hk_msccl_block *b, int at) {
  int *owner = &x->ranks[b->gpu].owner[at], own = (int)(b - x->f->blocks);
  if (*owner) msccl_run_tie(x, *owner - 1, own);
  *owner = own + 1;
}

static bool msccl_run_read(run *x, const hk_msccl_block *b, const hk_msccl_step *s, hk_msccl_place p, operand *o,
                           value *v) {
  memory *m = &x->ranks[b->gpu];
  if (!msccl_run_in_range(x, b, s, p.buf, p.at)) return false;
  int in = p.at;
  switch (p.buf) {
    case 's':
      msccl_run_use_scratch(x, b, p.at);
      *o = (operand){HK_SCRATCH, (uint16_t)p.at, -1};
      *v = m->scratch[p.at];
      break;
    case 'i':
      if (!m->moved[p.at]) break;
      p.at = msccl_run_alias(x, b->gpu, p.at);
      __attribute__((fallthrough));
    default:
      *o = (operand){HK_OUT, (uint16_t)p.at, -1};
      *v = m->out[p.at];
      in = v->ranks ? -1 : msccl_run_alias_of(x, b->gpu, p.at);
      p.buf = in >= 0 ? 'i' : 'o';
  }
  if (p.buf == 'i') {
    *o = (operand){HK_IN, (uint16_t)in, -1};
    *v = m->in[in];
  }
  return v->ranks || msccl_run_wrong(x, b, s, "reads chunk %d of buffer %c, which holds nothing yet", p.at, p.buf);
}

static bool msccl_run_write(run *x, const hk_msccl_block *b, const hk_msccl_step *s, hk_msccl_place p, operand *o,
                            const value *v) {
  memory *m = &x->ranks[b->gpu];
  if (!msccl_run_in_range(x, b, s, p.buf, p.at)) return false;
  if (p.buf == 's') {
    msccl_run_use_scratch(x, b, p.at);
    *o = (operand){HK_SCRATCH, (uint16_t)p.at, -1};
    m->scratch[p.at] = *v;
    return true;
  }
  if (p.buf == 'i') {
    const int out = msccl_run_alias(x, b->gpu, p.at);
    if (out < 0)
      return msccl_run_wrong(x, b, s, "writes chunk %d of the input, which has no place in the output", p.at);
    m->moved[p.at] = true;
    p.at = out;
  }
  if (v->chunk % x->f->parts != p.at % x->f->parts)
    return msccl_run_wrong(x, b, s, "writes chunk %d of a message to the place of chunk %d", v->chunk % x->f->parts,
                           p.at % x->f->parts);
  *o = (operand){HK_OUT, (uint16_t)p.at, -1};
  m->out[p.at] = *v;
  return true;
}

/* ---- steps ---- */

static bool msccl_run_add(run *x, const hk_msccl_block *b, const hk_msccl_step *s, value *sum, const value *v) {
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

static bool msccl_run_no_memory(run *x) {
  (void)HK_FAIL_ERRNO("no memory to run %s", x->f->report.file);
  x->f->report.errors = -1;
  return false;
}

static bool msccl_run_is(const operand *a, const operand *b) { return a->space == b->space && a->block == b->block; }

/* True if the record reads or writes what `r` writes, or writes what `r` reads. */
static bool msccl_run_conflicts(const record *other, const record *r) {
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
static void msccl_run_join(memory *m, size_t last, record *r) {
  record *before = &m->records[last];
  if (r->to < 0 || before->to != r->to || before->nsrc == HK_MSCCL_SOURCES) return;
  for (size_t i = last + 1; i < m->nrecords; i++)
    if (msccl_run_conflicts(&m->records[i], before)) return;
  const operand added = r->src[1];
  memcpy(r->src, before->src, sizeof r->src);
  r->nsrc = before->nsrc;
  r->src[r->nsrc++] = added;
  before->ndst = before->nsrc = 0; /* gone */
  before->to = -1;
}

static bool msccl_run_keep(run *x, memory *m, record *r) {
  size_t *last = &x->last[r->block];
  if (*last) msccl_run_join(m, *last - 1, r);
  if (!HK_RESERVE(m->records, m->room, m->nrecords + 1)) return msccl_run_no_memory(x);
  m->records[m->nrecords++] = *r;
  *last = m->nrecords;
  return true;
}

/* One chunk of the block's step. False: it is wrong. */
static bool msccl_run_chunk(run *x, hk_msccl_block *b, const hk_msccl_step *s) {
  const int own = (int)(b - x->f->blocks), k = b->done;
  const hk_msccl_place from = {s->from.buf, s->from.at + k}, to = {s->to.buf, s->to.at + k};
  const bool adds_to = s->does == (HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE);
  const uint64_t all = x->f->nranks == 64 ? ~(uint64_t)0 : ((uint64_t)1 << x->f->nranks) - 1;
  record r = {.block = own, .to = -1};
  value v = {0, 0}, w;
  if (adds_to && !msccl_run_read(x, b, s, to, &r.src[r.nsrc++], &v)) return false;
  if (s->does & HK_MSCCL_READ) {
    if (!msccl_run_read(x, b, s, from, &r.src[r.nsrc++], &w)) return false;
    if (!adds_to)
      v = w;
    else if (!msccl_run_add(x, b, s, &v, &w))
      return false;
  }
  if (s->does & HK_MSCCL_RECV) {
    const message *got = &x->sent[b->sender].at[b->received++];
    if (got->turn != x->links[x->links[b->sender].first].received++)
      return msccl_run_wrong(
          x, b, s,
          "receives before a message that was sent earlier: gpu %d has more than %d connections with "
          "it, so some share a link, on which messages keep their order",
          b->recv, HK_CHANNELS);
    w = got->data;
    r.src[r.nsrc++] = (operand){HK_LINK, msccl_run_link_block(x, &w), own};
    if (!(s->does & HK_MSCCL_ADD))
      v = w;
    else if (!msccl_run_add(x, b, s, &v, &w))
      return false;
  }
  if (s->does & HK_MSCCL_WRITE && !msccl_run_write(x, b, s, to, &r.dst[r.ndst++], &v)) return false;
  if (s->does & HK_MSCCL_SEND) {
    queue *q = &x->sent[own];
    r.dst[r.ndst++] = (operand){HK_LINK, msccl_run_link_block(x, &v), own};
    if (!HK_RESERVE(q->at, q->room, (size_t)b->sent + 1)) return msccl_run_no_memory(x);
    q->at[b->sent++] = (message){v, x->links[x->links[own].first].sent++};
  }
  if (s->does & HK_MSCCL_ADD && v.ranks == all) r.flags = HK_INSTR_FINAL;
  if (adds_to && r.dst[0].space == HK_OUT) r.to = r.dst[0].block;
  return msccl_run_keep(x, &x->ranks[b->gpu], &r);
}

static bool msccl_run_ready(const run *x, const hk_msccl_block *b, const hk_msccl_step *s) {
  const hk_msccl_block *mine = &x->f->blocks[x->f->first_block[b->gpu]];
  if (s->dep_block >= 0 && mine[s->dep_block].pc <= s->dep_step) return false;
  return !(s->does & HK_MSCCL_RECV) || (b->sender >= 0 && x->f->blocks[b->sender].sent > b->received);
}

/* Names a block that waits for ever: if there is one, for a block that has ended or does not exist. */
static bool msccl_run_stuck(run *x) {
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

static bool msccl_run_blocks(run *x) {
  for (bool moved = true, left = true; left;) {
    if (!moved) return msccl_run_stuck(x);
    moved = left = false;
    for (int i = 0; i < x->f->nblocks; i++) {
      hk_msccl_block *b = &x->f->blocks[i];
      if (b->pc == b->n) continue;
      const hk_msccl_step *s = &x->f->steps[b->first + b->pc];
      left = true;
      if (!msccl_run_ready(x, b, s)) continue;
      moved = true;
      if (s->dep_block >= 0) msccl_run_tie(x, i, x->f->first_block[b->gpu] + s->dep_block);
      if (s->does && !msccl_run_chunk(x, b, s)) return false;
      if (s->does && ++b->done < s->count) continue;
      b->done = 0;
      b->pc++;
    }
  }
  return true;
}

/* Compares an output with what it should hold. A chunk that nobody writes is where it belongs in a call in place, and
 * is copied in any other. */
static bool msccl_run_check_output(run *x, int gpu, int out) {
  memory *m = &x->ranks[gpu];
  const hk_coll coll = x->f->coll;
  const int in = m->out[out].ranks ? -1 : msccl_run_alias_of(x, gpu, out);
  const value is = in >= 0 ? m->in[in] : m->out[out];
  const bool split = hk_coll_partition(coll) == HK_PART_SPLIT;
  int from, part;
  hk_coll_source(coll, gpu, x->f->nranks, 0, split ? out : out / x->f->parts, &from, &part);
  if (!split) part = part * x->f->parts + out % x->f->parts;
  const uint64_t all = x->f->nranks == 64 ? ~(uint64_t)0 : ((uint64_t)1 << x->f->nranks) - 1;
  const value should = hk_coll_reduces(coll) ? (value){part, all} : msccl_run_input(x, from, part);
  if (is.chunk == should.chunk && is.ranks == should.ranks) {
    record r = {.block = x->f->first_block[gpu], .to = -1, .ndst = 1, .nsrc = 1};
    r.dst[0] = (operand){HK_OUT, (uint16_t)out, -1};
    r.src[0] = (operand){HK_IN, (uint16_t)in, -1};
    return in < 0 || msccl_run_keep(x, m, &r);
  }
  const hk_xml_node *node = x->f->blocks[x->f->first_block[gpu]].node->parent;
  if (!is.ranks)
    hk_xml_say(&x->f->report, node, true, "gpu %d: chunk %d of its output holds nothing when all blocks have ended",
               gpu, out);
  else if (hk_coll_reduces(coll) && is.chunk == should.chunk)
    hk_xml_say(&x->f->report, node, true, "gpu %d: chunk %d of its output lacks the part of gpu %d", gpu, out,
               __builtin_ctzll(all & ~is.ranks));
  else
    hk_xml_say(&x->f->report, node, true, "gpu %d: chunk %d of its output holds chunk %d of gpu %d", gpu, out, is.chunk,
               __builtin_ctzll(is.ranks));
  return false;
}

/* ---- programs ---- */

/* The source of the record that is this chunk of scratch memory; -1: none. */
static int msccl_run_source(const record *r, uint16_t chunk) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_SCRATCH && r->src[k].block == chunk) return k;
  return -1;
}

static bool msccl_run_writes(const record *r, uint16_t chunk) {
  for (int k = 0; k < r->ndst; k++)
    if (r->dst[k].space == HK_SCRATCH && r->dst[k].block == chunk) return true;
  return false;
}

static bool msccl_run_receives(const run *x, const record *r, int first) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_LINK && x->links[x->f->blocks[r->src[k].owner].sender].first == first) return true;
  return false;
}

/* The record that alone uses what record `at` receives into a chunk of scratch memory, if the link's next message is
 * received after it; 0: none. */
static size_t msccl_run_only_use(const run *x, const memory *m, size_t at) {
  const record *r = &m->records[at];
  const uint16_t chunk = r->dst[0].block;
  const int first = x->links[x->f->blocks[r->src[0].owner].sender].first;
  size_t use = 0;
  for (size_t i = at + 1; i < m->nrecords; i++) {
    const record *next = &m->records[i];
    const bool reads = msccl_run_source(next, chunk) >= 0;
    if (use ? reads : (msccl_run_writes(next, chunk) || (next->ndst && msccl_run_receives(x, next, first)))) return 0;
    if (reads) use = i;
    if (use && msccl_run_writes(next, chunk)) break;
  }
  return use;
}

/* From the last record to the first, so that a message's successor on the link is at its place already. */
static void msccl_run_make_direct(run *x, int gpu) {
  memory *m = &x->ranks[gpu];
  for (size_t i = m->nrecords; i-- > 0;) {
    record *r = &m->records[i];
    if (r->ndst != 1 || r->nsrc != 1 || r->dst[0].space != HK_SCRATCH || r->src[0].space != HK_LINK) continue;
    const size_t use = msccl_run_only_use(x, m, i);
    if (!use || msccl_run_receives(x, &m->records[use], x->links[x->f->blocks[r->src[0].owner].sender].first)) continue;
    m->records[use].src[msccl_run_source(&m->records[use], r->dst[0].block)] = r->src[0];
    r->ndst = r->nsrc = 0; /* gone */
  }
}

static void msccl_run_count_scratch(run *x, int gpu) {
  const memory *m = &x->ranks[gpu];
  for (size_t i = 0; i < m->nrecords; i++)
    for (int k = 0; k < m->records[i].ndst; k++)
      if (m->records[i].dst[k].space == HK_SCRATCH && m->records[i].dst[k].block >= x->scratch)
        x->scratch = m->records[i].dst[k].block + 1u;
}

/* Links carry copies of memory that is written later. */
static void msccl_run_mark_copies(const run *x, int gpu, int *last_write) {
  memory *m = &x->ranks[gpu];
  for (int i = 0; i < x->nout; i++) last_write[i] = -1;
  for (size_t i = 0; i < m->nrecords; i++)
    for (int k = 0; k < m->records[i].ndst; k++)
      if (m->records[i].dst[k].space == HK_OUT) last_write[m->records[i].dst[k].block] = (int)i;
  for (size_t i = 0; i < m->nrecords; i++) {
    record *r = &m->records[i];
    const operand *ops[OPERANDS];
    int n = 0;
    for (int k = 0; k < r->ndst; k++) ops[n++] = &r->dst[k];
    for (int k = 0; k < r->nsrc; k++) ops[n++] = &r->src[k];
    for (int k = 0; k < n; k++) {
      const int out = ops[k]->space == HK_OUT  ? ops[k]->block
                      : ops[k]->space == HK_IN ? msccl_run_alias(x, gpu, ops[k]->block)
                                               : -1;
      if (out >= 0 && last_write[out] > (int)i) r->flags |= HK_INSTR_COPY;
    }
  }
}

static hk_operand msccl_run_operand(const run *x, hk_builder *b, const operand *o, bool source) {
  const hk_msccl_block *block = &x->f->blocks[o->owner];
  if (o->space == HK_IN) return hk_in(o->block, 0);
  if (o->space == HK_OUT) return hk_out(o->block, 0);
  if (o->space == HK_SCRATCH) return hk_scratch(o->block);
  hk_build_channel(b, (unsigned)x->links[source ? block->sender : o->owner].channel);
  return source ? hk_recv_from(b, block->recv, o->block, 0) : hk_send_to(b, block->send, o->block, 0);
}

static void msccl_run_build_lane(const run *x, hk_builder *b, int gpu, int lane) {
  const memory *m = &x->ranks[gpu];
  bool begun = false;
  for (size_t i = 0; i < m->nrecords; i++) {
    const record *r = &m->records[i];
    hk_operand dst[DESTINATIONS], src[HK_MSCCL_SOURCES];
    if (!r->ndst || msccl_run_lane(x, r->block) != lane) continue;
    if (!begun) hk_build_lane(b);
    begun = true;
    for (int k = 0; k < r->ndst; k++) dst[k] = msccl_run_operand(x, b, &r->dst[k], false);
    for (int k = 0; k < r->nsrc; k++) src[k] = msccl_run_operand(x, b, &r->src[k], true);
    hk_build_move(b, r->flags, dst, r->ndst, src, r->nsrc);
  }
}

static hk_status msccl_run_build(const run *x, int gpu, hk_program **out) {
  const hk_build what = {.coll = x->f->coll, .rank = gpu, .nranks = x->f->nranks};
  hk_builder *b;
  HK_OR_RETURN(hk_builder_new(&b, &what));
  if (hk_coll_partition(x->f->coll) == HK_PART_SPLIT)
    hk_build_split(b, (unsigned)x->f->chunks);
  else
    hk_build_parts(b, (unsigned)x->f->parts);
  hk_build_scratch(b, x->scratch);
  for (int i = x->f->first_block[gpu]; i < x->f->first_block[gpu + 1]; i++)
    if (x->f->blocks[i].lane == i) msccl_run_build_lane(x, b, gpu, i);
  return hk_builder_finish(b, x->f->name, out);
}

/* Gives each connection from one rank to another a channel. If they are too many, those whose channels in the file
 * differ by a multiple of HK_CHANNELS share a link, and their blocks a lane. */
static void msccl_run_link(run *x, int from, int to) {
  const hk_msccl_file *f = x->f;
  const int begin = f->first_block[from], end = f->first_block[from + 1];
  int first[HK_CHANNELS], n = 0;
  memset(first, -1, sizeof first);
  for (int i = begin; i < end; i++) n += f->blocks[i].send == to;
  const bool shared = n > HK_CHANNELS;
  for (int i = begin, next = 0; i < end; i++) {
    const hk_msccl_block *b = &f->blocks[i];
    if (b->send != to) continue;
    const int c = shared ? b->chan % HK_CHANNELS : next++;
    if (first[c] < 0) first[c] = i;
    x->links[i] = (link){.first = first[c], .channel = c};
    const int with = f->blocks[first[c]].receiver;
    msccl_run_tie(x, first[c], i);
    if (with >= 0 && b->receiver >= 0) msccl_run_tie(x, with, b->receiver);
  }
}

static bool msccl_run_begin(run *x) {
  const size_t n = (size_t)x->f->nranks;
  const bool split = hk_coll_partition(x->f->coll) == HK_PART_SPLIT;
  x->nin = split ? x->f->chunks : hk_coll_in_blocks(x->f->coll, x->f->nranks) * x->f->parts;
  x->nout = split ? x->f->chunks : hk_coll_out_blocks(x->f->coll, x->f->nranks) * x->f->parts;
  x->ranks = calloc(n, sizeof *x->ranks);
  x->sent = calloc((size_t)x->f->nblocks + 1, sizeof *x->sent);
  x->links = calloc((size_t)x->f->nblocks + 1, sizeof *x->links);
  x->last = calloc((size_t)x->f->nblocks + 1, sizeof *x->last);
  if (!x->ranks || !x->sent || !x->links || !x->last) return false;
  for (size_t r = 0; r < n; r++) {
    memory *m = &x->ranks[r];
    m->in = calloc((size_t)x->nin, sizeof *m->in);
    m->moved = calloc((size_t)x->nin, sizeof *m->moved);
    m->out = calloc((size_t)x->nout, sizeof *m->out);
    m->scratch = calloc((size_t)x->f->scratch + 1, sizeof *m->scratch);
    m->owner = calloc((size_t)x->f->scratch + 1, sizeof *m->owner);
    if (!m->in || !m->moved || !m->out || !m->scratch || !m->owner) return false;
    for (int b = 0; b < x->nin; b++) m->in[b] = msccl_run_input(x, (int)r, b);
  }
  for (int i = 0; i < x->f->nblocks; i++) {
    hk_msccl_block *b = &x->f->blocks[i];
    b->lane = i;
    b->pc = b->done = b->sent = b->received = 0;
  }
  for (int from = 0; from < x->f->nranks; from++)
    for (int to = 0; to < x->f->nranks; to++) msccl_run_link(x, from, to);
  return true;
}

static void msccl_run_end(run *x) {
  for (int r = 0; x->ranks && r < x->f->nranks; r++) {
    memory *m = &x->ranks[r];
    free(m->in);
    free(m->moved);
    free(m->out);
    free(m->scratch);
    free(m->owner);
    free(m->records);
  }
  for (int i = 0; x->sent && i < x->f->nblocks; i++) free(x->sent[i].at);
  free(x->ranks);
  free(x->sent);
  free(x->links);
  free(x->last);
}

hk_status hk_msccl_run(hk_msccl_file *f, unsigned how, hk_program **programs) {
  hk_status rc = HK_OK;
  run x = {.f = f};
  int *last_write = NULL;
  bool good = msccl_run_begin(&x) || msccl_run_no_memory(&x);
  good = good && msccl_run_blocks(&x);
  for (int r = 0; r < f->nranks && good; r++)
    for (int out = 0; hk_coll_has_output(f->coll, r, 0) && out < x.nout && good; out++)
      good = msccl_run_check_output(&x, r, out);
  if (!good) {
    rc = f->report.errors > 0 ? hk_xml_status(&f->report) : HK_ERR_SYSTEM;
    goto out;
  }
  last_write = calloc((size_t)x.nout, sizeof *last_write);
  if (!last_write) {
    rc = HK_FAIL_ERRNO("no memory to run %s", f->report.file);
    goto out;
  }
  for (int r = 0; r < f->nranks; r++) {
    if (how & HK_MSCCL_DIRECT) msccl_run_make_direct(&x, r);
    if (how & HK_MSCCL_COPIES) msccl_run_mark_copies(&x, r, last_write);
    msccl_run_count_scratch(&x, r);
  }
  for (int r = 0; r < f->nranks; r++) HK_TRY(msccl_run_build(&x, r, &programs[r]), out);
  /* Copies of the lanes use channels from k * span on: the same on all ranks. */
  uint16_t span = 0;
  for (int r = 0; r < f->nranks; r++)
    if (programs[r]->traits.span > span) span = programs[r]->traits.span;
  for (int r = 0; r < f->nranks; r++) programs[r]->traits.span = span;
out:
  free(last_write);
  msccl_run_end(&x);
  return rc;
}
