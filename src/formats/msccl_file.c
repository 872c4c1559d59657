/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the elements of an MSCCL file and checks each by itself. */
#include "msccl_file.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What each type of step does. */
static const struct {
  const char *name;
  unsigned does;
} types[] = {
    {"s", HK_MSCCL_READ | HK_MSCCL_SEND},
    {"r", HK_MSCCL_RECV | HK_MSCCL_WRITE},
    {"rcs", HK_MSCCL_RECV | HK_MSCCL_WRITE | HK_MSCCL_SEND},
    {"rrs", HK_MSCCL_RECV | HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_SEND},
    {"rrc", HK_MSCCL_RECV | HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE},
    {"rrcs", HK_MSCCL_RECV | HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE | HK_MSCCL_SEND},
    {"cpy", HK_MSCCL_READ | HK_MSCCL_WRITE},
    {"copy", HK_MSCCL_READ | HK_MSCCL_WRITE},
    {"re", HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE},
    {"reduce", HK_MSCCL_READ | HK_MSCCL_ADD | HK_MSCCL_WRITE},
    {"nop", 0},
};

static void msccl_file_read_head(hk_msccl_file *f, const hk_xml_node *algo) {
  long ranks = 0, chunks = 0, in_place = 0, out_of_place = 1, least = 0, most = 0;
  const char *coll = hk_xml_get(algo, "coll"), *name = hk_xml_get(algo, "name");
  const hk_coll c = coll ? hk_coll_by_name(coll, strlen(coll)) : f->coll;
  if (c == HK_COLL_COUNT || hk_coll_uneven(c))
    hk_xml_say(algo, true, "coll=\"%.40s\" of <algo> is no collective of equal counts, such as allreduce",
               coll ? coll : "");
  f->coll = c;
  snprintf(f->name, sizeof f->name, "%s", name && *name ? name : "msccl");
  for (char *p = f->name; *p; p++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.", *p)) *p = '_';
  hk_xml_int(algo, "ngpus", true, 2, HK_TRACE_RANKS, &ranks);
  hk_xml_int(algo, "nchunksperloop", true, 1, HK_TRACE_CHUNKS, &chunks);
  const bool said = hk_xml_int(algo, "inplace", false, 0, 1, &in_place);
  if (!hk_xml_int(algo, "outofplace", false, 0, 1, &out_of_place)) out_of_place = !said || !in_place;
  hk_xml_int(algo, "minBytes", false, 0, LONG_MAX, &least);
  hk_xml_int(algo, "maxBytes", false, 0, LONG_MAX, &most);
  f->nranks = (int)ranks;
  f->chunks = (int)chunks;
  f->in_place = in_place;
  f->out_of_place = out_of_place;
  f->least = (unsigned long long)least;
  f->most = (unsigned long long)most;
  const int in = hk_coll_in_blocks(f->coll, f->nranks), n = hk_coll_out_blocks(f->coll, f->nranks);
  const int messages = hk_coll_partition(f->coll) == HK_PART_SPLIT ? 1 : in > n ? in : n;
  if (!f->report.errors && f->chunks % messages)
    hk_xml_say(algo, true, "nchunksperloop=\"%d\" of <algo> does not divide the %d messages of %s evenly", f->chunks,
               messages, hk_coll_name(f->coll));
  f->parts = messages > 0 ? f->chunks / messages : 1; /* 0: the number of ranks is missing */
}

static bool msccl_file_read_place(const hk_xml_node *n, const char *buffer, const char *offset, hk_msccl_place *out) {
  const char *buf = hk_xml_get(n, buffer);
  long at = 0;
  if (!buf || !*buf || !strchr("ios", *buf)) {
    hk_xml_say(n, true, "%s=\"%.20s\" of <step> is none of i, o, s", buffer, buf ? buf : "");
    return false;
  }
  if (!hk_xml_int(n, offset, true, 0, HK_TRACE_CHUNKS - 1, &at)) return false;
  *out = (hk_msccl_place){*buf, (int)at};
  return true;
}

static void msccl_file_read_step(const hk_msccl_block *b, const hk_xml_node *n, hk_msccl_step *s) {
  const char *type = hk_xml_get(n, "type");
  long count = 1, number = 0, block = -1, step = -1;
  size_t k = 0;
  while (type && k < HK_ARRAY_LENGTH(types) && strcmp(types[k].name, type)) k++;
  *s = (hk_msccl_step){.node = n, .dep_block = -1, .dep_step = -1};
  if (!type || k == HK_ARRAY_LENGTH(types)) {
    hk_xml_say(n, true, "type=\"%.20s\" of <step> is none of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop",
               type ? type : "");
    return;
  }
  s->does = types[k].does;
  if (hk_xml_int(n, "s", true, 0, HK_MSCCL_STEPS, &number) && number != b->n)
    hk_xml_say(n, true, "step %ld of <tb> follows step %d: steps are numbered from 0 on", number, b->n - 1);
  if (s->does) hk_xml_int(n, "cnt", true, 1, HK_TRACE_CHUNKS, &count);
  hk_xml_int(n, "depid", false, -1, 255, &block);
  hk_xml_int(n, "deps", false, -1, HK_MSCCL_STEPS, &step);
  s->count = (int)count;
  if (block >= 0 && step >= 0) s->dep_block = (int)block, s->dep_step = (int)step;
  if (s->does & HK_MSCCL_READ) msccl_file_read_place(n, "srcbuf", "srcoff", &s->from);
  if (s->does & HK_MSCCL_WRITE) msccl_file_read_place(n, "dstbuf", "dstoff", &s->to);
  if (s->does & HK_MSCCL_SEND && b->send < 0)
    hk_xml_say(n, true, "a step of type %s sends, and its <tb> has no peer to send to", type);
  if (s->does & HK_MSCCL_RECV && b->recv < 0)
    hk_xml_say(n, true, "a step of type %s receives, and its <tb> has no peer to receive from", type);
}

static void msccl_file_read_block(hk_msccl_file *f, int gpu, const hk_xml_node *n) {
  long id = 0, send = -1, recv = -1, chan = 0;
  const long last = f->nranks - 1;
  hk_msccl_block *b = &f->blocks[f->nblocks];
  hk_xml_int(n, "id", true, 0, 255, &id);
  hk_xml_int(n, "send", true, -1, last, &send);
  hk_xml_int(n, "recv", true, -1, last, &recv);
  hk_xml_int(n, "chan", true, 0, 255, &chan);
  *b = (hk_msccl_block){.node = n,
                        .gpu = gpu,
                        .id = (int)id,
                        .send = (int)send,
                        .recv = (int)recv,
                        .chan = (int)chan,
                        .first = f->nsteps,
                        .sender = -1,
                        .receiver = -1};
  if (id != f->nblocks - f->first_block[gpu])
    hk_xml_say(n, true, "<tb> %ld of gpu %d: blocks are numbered from 0 on, and %d is missing", id, gpu,
               f->nblocks - f->first_block[gpu]);
  if (send == gpu || recv == gpu)
    hk_xml_say(n, true, "<tb> %ld of gpu %d sends to, or receives from, its own gpu", id, gpu);
  for (const hk_xml_node *c = n->first; c; c = c->next) {
    if (strcmp(c->name, "step")) continue;
    msccl_file_read_step(b, c, &f->steps[f->nsteps++]);
    b->n++;
  }
  f->nblocks++;
}

/* The block that a step waits for must exist and have that step. */
static void msccl_file_check_waits(hk_msccl_file *f) {
  for (int i = 0; i < f->nblocks; i++) {
    const hk_msccl_block *b = &f->blocks[i];
    const int first = f->first_block[b->gpu], n = f->first_block[b->gpu + 1] - first;
    for (const hk_msccl_step *s = &f->steps[b->first]; s < &f->steps[b->first + b->n]; s++)
      if (s->dep_block >= 0 && (s->dep_block >= n || s->dep_step >= f->blocks[first + s->dep_block].n))
        hk_xml_say(s->node, true, "a step of gpu %d waits for step %d of block %d, which does not exist", b->gpu,
                   s->dep_step, s->dep_block);
  }
}

/* Finds the two ends of each connection. */
static void msccl_file_connect(hk_msccl_file *f) {
  for (int i = 0; i < f->nblocks; i++) {
    hk_msccl_block *b = &f->blocks[i];
    for (int k = f->first_block[b->send < 0 ? 0 : b->send]; b->send >= 0 && k < f->first_block[b->send + 1]; k++) {
      hk_msccl_block *to = &f->blocks[k];
      if (to->recv != b->gpu || to->chan != b->chan) continue;
      if (b->receiver >= 0 || to->sender >= 0)
        hk_xml_say(to->node, true, "two blocks use channel %d from gpu %d to gpu %d", b->chan, b->gpu, b->send);
      b->receiver = k;
      to->sender = i;
    }
  }
}

static int msccl_file_count(const hk_xml_node *n, const char *name) {
  int count = !strcmp(n->name, name);
  for (const hk_xml_node *c = n->first; c; c = c->next) count += msccl_file_count(c, name);
  return count;
}

hk_status hk_msccl_file_read(hk_msccl_file *f, hk_xml_tree *t) {
  const hk_xml_node *algo = t->root;
  int gpu = 0;
  t->report = &f->report;
  if (strcmp(algo->name, "algo"))
    hk_xml_say(algo, true, "<%.40s> is not <algo>, the root of MSCCL's files", algo->name);
  else
    msccl_file_read_head(f, algo);
  if (f->report.errors) return HK_ERR_ARGUMENT;
  f->blocks = calloc((size_t)msccl_file_count(algo, "tb") + 1, sizeof *f->blocks);
  f->steps = calloc((size_t)msccl_file_count(algo, "step") + 1, sizeof *f->steps);
  if (!f->blocks || !f->steps) return HK_FAIL_ERRNO("no memory for the steps of %s", f->report.file);
  for (const hk_xml_node *g = algo->first; g; g = g->next) {
    long id = 0, scratch = 0;
    if (strcmp(g->name, "gpu")) continue;
    if (gpu == f->nranks) {
      hk_xml_say(g, true, "there are more than the %d <gpu> that <algo> names", f->nranks);
      break;
    }
    hk_xml_int(g, "id", true, 0, f->nranks - 1, &id);
    hk_xml_int(g, "s_chunks", false, 0, HK_TRACE_CHUNKS, &scratch);
    if (id != gpu) hk_xml_say(g, true, "<gpu> %ld: they are numbered from 0 on, and %d is missing", id, gpu);
    if (scratch > f->scratch) f->scratch = (int)scratch;
    for (const hk_xml_node *b = g->first; b; b = b->next)
      if (!strcmp(b->name, "tb")) msccl_file_read_block(f, gpu, b);
    f->first_block[++gpu] = f->nblocks;
  }
  if (gpu < f->nranks) hk_xml_say(algo, true, "there are %d <gpu>, and <algo> names %d", gpu, f->nranks);
  if (!f->report.errors) msccl_file_check_waits(f);
  if (!f->report.errors) msccl_file_connect(f);
  return f->report.errors ? HK_ERR_ARGUMENT : HK_OK;
}
