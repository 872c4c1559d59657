/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parts of an MSCCL++ plan and checks each by itself. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h> /* strcasecmp */
#include "../base/array.h"
#include "formats.h"
#include "mscclpp.h"

/* Each operation of MSCCL++'s executor. A letter stands for a source or destination, and a star repeats the letter
 * before it: l local, p local packets, r remote, q remote packets, s and t in all memories of a switch, t as packets.
 * Pairs: each source has one destination. */
static const struct {
  const char *name;
  hk_mscclpp_kind kind;
  const char *sources, *destinations;
  bool pairs;
} operations[] = {
    {"copy", HK_MSCCLPP_MOVE, "l", "l", false},
    {"cpkt", HK_MSCCLPP_MOVE, "l", "p", false},
    {"upkt", HK_MSCCLPP_MOVE, "p", "l", false},
    {"re", HK_MSCCLPP_MOVE, "ll*", "l", false},
    {"res", HK_MSCCLPP_MOVE, "ll*", "lr*", false},
    {"rre", HK_MSCCLPP_MOVE, "lr*", "l", false},
    {"rres", HK_MSCCLPP_MOVE, "lr*", "lr*", false},
    {"repkt", HK_MSCCLPP_MOVE, "lp*", "l", false},
    {"respkt", HK_MSCCLPP_MOVE, "lp*", "lq*", false},
    {"recpkt", HK_MSCCLPP_MOVE, "lp*", "lp", false},
    {"recspkt", HK_MSCCLPP_MOVE, "lp*", "lpq*", false},
    {"put", HK_MSCCLPP_MOVE, "ll*", "rr*", true},
    {"pws", HK_MSCCLPP_MOVE, "ll*", "rr*", true},
    {"pwsf", HK_MSCCLPP_MOVE, "ll*", "rr*", true},
    {"ppkt", HK_MSCCLPP_MOVE, "ll*", "qq*", true},
    {"rppkt", HK_MSCCLPP_MOVE, "p", "qq*", false},
    {"get", HK_MSCCLPP_MOVE, "rr*", "ll*", true},
    {"glres", HK_MSCCLPP_MOVE, "s", "s", false},
    {"gstore", HK_MSCCLPP_MOVE, "l", "s", false},
    {"gstorepkt", HK_MSCCLPP_MOVE, "p", "t", false},
    {"nop", HK_MSCCLPP_NOP, "", "", false},
    {"signal", HK_MSCCLPP_POST, "", "", false},
    {"rlxsignal", HK_MSCCLPP_POST, "", "", false},
    {"sem_release", HK_MSCCLPP_POST, "", "", false},
    {"wait", HK_MSCCLPP_TAKE, "", "", false},
    {"rlxwait", HK_MSCCLPP_TAKE, "", "", false},
    {"sem_acquire", HK_MSCCLPP_TAKE, "", "", false},
    {"barrier", HK_MSCCLPP_BARRIER, "", "", false},
    {"flush", HK_MSCCLPP_FLUSH, "", "", false},
};
const char *hk_mscclpp_name(const hk_mscclpp_op *o) { return operations[o->name].name; }

/* A thread block's lists: its channels, remote buffers and switches by their numbers in the thread block. */
typedef struct mscclpp_lists {
  int *channels[HK_MSCCLPP_TYPES], *remotes[2], *switches;
  int nchannels[HK_MSCCLPP_TYPES], nremotes[2], nswitches;
} mscclpp_lists;

typedef struct mscclpp_reader {
  hk_mscclpp_file *f;
  hk_json_tree *tree;
  int block;
  mscclpp_lists lists;
  long long unit, unit_chunks; /* of the first pipeline; 0: there is none so far */
  bool no_memory;
} mscclpp_reader;

static bool mscclpp_file_good(const mscclpp_reader *r) { return !r->tree->errors && !r->no_memory; }
static bool mscclpp_file_no_room(mscclpp_reader *r) {
  r->no_memory = true;
  return false;
}
#define NEXT(r, array, n) (HK_RESERVE_NEXT(array, n) || mscclpp_file_no_room(r))

/* "memory", "port", "switch": 0, 1, 2; -1 is an error. */
enum { MSCCLPP_SWITCH = HK_MSCCLPP_SEMAPHORE };
static int mscclpp_file_channel_type(const hk_json_node *n, const char *key) {
  static const char *const types[] = {"memory", "port", "switch"};
  const char *text = hk_json_get_text(n, key, true);
  for (int i = 0; text && i < 3; i++)
    if (!strcmp(text, types[i])) return i;
  if (text) hk_json_say(n, "\"%s\" is \"%.20s\", which is none of memory, port, switch", key, text);
  return -1;
}

static int mscclpp_file_space(const hk_json_node *n, const char *key) {
  const char *text = hk_json_get_text(n, key, true);
  const char *at = text && *text && !text[1] ? strchr("ios", *text) : NULL;
  if (text && !at) hk_json_say(n, "\"%s\" is \"%.20s\", which is none of i, o, s", key, text);
  return at ? (int)(at - strchr("ios", 'i')) : -1;
}

static int mscclpp_file_int(const hk_json_node *n, const char *key, long long min, long long max) {
  long long v = min;
  hk_json_get_whole(n, key, true, min, max, &v);
  return (int)v;
}

/* ---- the plan and its gpus ---- */

static void mscclpp_file_read_head(mscclpp_reader *r, const hk_json_node *file) {
  static const hk_coll known[] = {HK_ALLREDUCE, HK_ALLGATHER, HK_REDUCE_SCATTER, HK_ALLTOALL};
  hk_mscclpp_file *f = r->f;
  const char *coll = hk_json_get_text(file, "collective", true), *name = hk_json_get_text(file, "name", true);
  const char *protocol = hk_json_get_text(file, "protocol", true);
  long long least = 0, most = 0;
  hk_json_node n;
  size_t c = 0;
  while (coll && c < HK_ARRAY_LENGTH(known) && strcasecmp(coll, hk_coll_name(known[c]))) c++;
  if (coll && c == HK_ARRAY_LENGTH(known))
    hk_json_say(file, "\"collective\" is \"%.40s\"; allreduce, allgather, reducescatter and alltoall can be read",
                coll);
  f->coll = known[c % HK_ARRAY_LENGTH(known)];
  hk_program_algorithm_name(f->algorithm, name, "mscclpp");
  if (protocol && strcmp(protocol, "LL") && strcmp(protocol, "Simple"))
    hk_json_say(file, "\"protocol\" is \"%.40s\", which is none of Simple, LL", protocol);
  f->packets = protocol && !strcmp(protocol, "LL");
  hk_json_get_boolean(file, "inplace", true, &f->in_place);
  hk_json_get_whole(file, "min_message_size", false, 0, LLONG_MAX, &least);
  f->least = (unsigned long long)least;
  /* Without a limit it is 2^64 - 1, which is no whole number for the reader. */
  n = (hk_json_node){.value = NULL};
  if (hk_json_has(file, "max_message_size", HK_JSON_WHOLE, &n)) most = hk_json_value(&n);
  f->most = most > 0 && most < LLONG_MAX ? (unsigned long long)most : 0;
}

static void mscclpp_file_read_chunks(mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  int in = mscclpp_file_int(g, "input_chunks", 0, HK_TRACE_CHUNKS);
  int out = mscclpp_file_int(g, "output_chunks", 0, HK_TRACE_CHUNKS);
  const int messages_in = hk_coll_in_blocks(f->coll, f->nranks), messages_out = hk_coll_out_blocks(f->coll, f->nranks);
  if (!out && f->in_place) out = in / messages_in * messages_out; /* the buffer that the plan does not name */
  if (!in && f->in_place) in = out / messages_out * messages_in;
  f->gpus[gpu].scratch = mscclpp_file_int(g, "scratch_chunks", 0, HK_TRACE_CHUNKS);
  if (f->gpus[gpu].scratch > f->scratch) f->scratch = f->gpus[gpu].scratch;
  if (gpu && (in != f->nin || out != f->nout))
    hk_json_say(g, "it has %d chunks in and %d out, and gpu 0 has %d and %d", in, out, f->nin, f->nout);
  f->nin = in;
  f->nout = out;
  f->parts = in / messages_in;
  if (f->parts < 1 || f->parts * messages_in != in || f->parts * messages_out != out)
    hk_json_say(g, "%d chunks in and %d out are not those of %s of %d gpus, which has %d messages in and %d out", in,
                out, hk_coll_name(f->coll), f->nranks, messages_in, messages_out);
}

static void mscclpp_file_add_signal(mscclpp_reader *r, hk_mscclpp_signal s) {
  hk_mscclpp_file *f = r->f;
  if (f->nsignals >= HK_MSCCLPP_CHANNELS || !NEXT(r, f->signals, f->nsignals)) return;
  hk_mscclpp_gpu *g = &f->gpus[s.gpu];
  s.number = g->nsignals[s.type]++;
  s.other = s.type == HK_MSCCLPP_SEMAPHORE ? f->nsignals : -1;
  for (int i = g->signals[s.type]; s.type != HK_MSCCLPP_SEMAPHORE && i < f->nsignals; i++)
    s.turn += f->signals[i].peer == s.peer;
  f->signals[f->nsignals++] = s;
}

static void mscclpp_file_read_channels(mscclpp_reader *r, const hk_json_node *g, int gpu, int type) {
  hk_mscclpp_file *f = r->f;
  hk_json_node list, c, peers, p;
  if (!hk_json_get(g, "channels", HK_JSON_LIST, true, &list)) return;
  if (type < HK_MSCCLPP_SEMAPHORE) f->gpus[gpu].signals[type] = f->nsignals;
  for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &c) || mscclpp_file_channel_type(&c, "channel_type") != type) continue;
    if (type == MSCCLPP_SWITCH) {
      hk_json_node groups, group;
      const int space = mscclpp_file_space(&c, hk_json_has(&c, "buff", HK_JSON_TEXT, &p) ? "buff" : "buffer_type");
      if (space < 0 || !hk_json_get(&c, "rank_groups", HK_JSON_LIST, true, &groups)) return;
      for (size_t k = 0; k < hk_json_size(&groups) && mscclpp_file_good(r); k++) {
        hk_mscclpp_switch s = {.space = (uint8_t)space};
        if (!hk_json_at(&groups, k, HK_JSON_OBJECT, &group) ||
            !hk_json_get(&group, "ranks", HK_JSON_LIST, true, &peers))
          return;
        for (size_t j = 0; j < hk_json_size(&peers); j++)
          if (hk_json_at(&peers, j, HK_JSON_WHOLE, &p) && hk_json_within(&p, 0, f->nranks - 1))
            s.ranks |= (uint64_t)1 << hk_json_value(&p);
        if (!(s.ranks >> gpu & 1)) hk_json_say(&group, "gpu %d is not in its switch's group", gpu);
        if (!NEXT(r, f->switches, f->nswitches)) return;
        f->switches[f->nswitches++] = s;
        f->gpus[gpu].nswitches++;
      }
      continue;
    }
    if (!hk_json_get(&c, "connected_to", HK_JSON_LIST, true, &peers)) return;
    for (size_t k = 0; k < hk_json_size(&peers) && mscclpp_file_good(r); k++) {
      if (!hk_json_at(&peers, k, HK_JSON_WHOLE, &p) || !hk_json_within(&p, 0, f->nranks - 1)) return;
      if (hk_json_value(&p) == gpu) hk_json_say(&p, "gpu %d has a channel to itself", gpu);
      mscclpp_file_add_signal(r,
                              (hk_mscclpp_signal){.type = (uint8_t)type, .gpu = gpu, .peer = (int)hk_json_value(&p)});
    }
  }
  if (f->nsignals >= HK_MSCCLPP_CHANNELS)
    hk_json_say(&list, "the file has more than %d channels, which is too many", HK_MSCCLPP_CHANNELS - 1);
}

static void mscclpp_file_read_gpu(mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  hk_mscclpp_gpu *to = &f->gpus[gpu];
  hk_json_node list, n;
  if (mscclpp_file_int(g, "id", 0, INT_MAX) != gpu) hk_json_say(g, "\"id\" is not %d: gpus are in order", gpu);
  mscclpp_file_read_chunks(r, g, gpu);
  to->switches = f->nswitches;
  for (int type = 0; type < 3; type++) mscclpp_file_read_channels(r, g, gpu, type);
  to->signals[HK_MSCCLPP_SEMAPHORE] = f->nsignals;
  if (hk_json_get(g, "semaphores", HK_JSON_LIST, false, &list))
    for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++)
      if (hk_json_at(&list, i, HK_JSON_OBJECT, &n))
        mscclpp_file_add_signal(r, (hk_mscclpp_signal){.type = HK_MSCCLPP_SEMAPHORE,
                                                       .gpu = gpu,
                                                       .peer = -1,
                                                       .start = mscclpp_file_int(&n, "init_value", 0, HK_MSCCLPP_OPS)});
  to->remotes = f->nremotes;
  if (!hk_json_get(g, "remote_buffers", HK_JSON_LIST, false, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n) || !NEXT(r, f->remotes, f->nremotes)) return;
    const int rank = mscclpp_file_int(&n, "rank", 0, f->nranks - 1), space = mscclpp_file_space(&n, "type");
    f->remotes[f->nremotes++] = (hk_mscclpp_remote){rank, (uint8_t)(space < 0 ? 0 : space)};
    to->nremotes++;
  }
}

/* The n-th channel from a to b and the n-th from b to a are the two ends of one. */
static void mscclpp_file_pair(hk_mscclpp_file *f) {
  for (int i = 0; i < f->nsignals; i++) {
    hk_mscclpp_signal *s = &f->signals[i];
    if (s->type == HK_MSCCLPP_SEMAPHORE) continue;
    const hk_mscclpp_gpu *peer = &f->gpus[s->peer];
    for (int k = peer->signals[s->type]; k < peer->signals[s->type] + peer->nsignals[s->type]; k++)
      if (f->signals[k].peer == s->gpu && f->signals[k].turn == s->turn) s->other = k;
  }
}

/* ---- thread blocks ---- */

/* Appends numbers below `limit` to a list. */
static void mscclpp_file_read_numbers(mscclpp_reader *r, const hk_json_node *n, const char *key, int limit, int **list,
                                      int *count) {
  hk_json_node numbers, v;
  if (!hk_json_get(n, key, HK_JSON_LIST, true, &numbers)) return;
  for (size_t i = 0; i < hk_json_size(&numbers) && mscclpp_file_good(r); i++) {
    if (!hk_json_at(&numbers, i, HK_JSON_WHOLE, &v) || !hk_json_within(&v, 0, limit - 1) || !NEXT(r, *list, *count))
      return;
    (*list)[(*count)++] = (int)hk_json_value(&v);
  }
}

static void mscclpp_file_drop_lists(mscclpp_lists *l) {
  for (int i = 0; i < HK_MSCCLPP_TYPES; i++) free(l->channels[i]);
  for (int i = 0; i < 2; i++) free(l->remotes[i]);
  free(l->switches);
  *l = (mscclpp_lists){.nswitches = 0};
}

static void mscclpp_file_read_lists(mscclpp_reader *r, const hk_json_node *b, int gpu) {
  const hk_mscclpp_gpu *g = &r->f->gpus[gpu];
  mscclpp_lists *l = &r->lists;
  hk_json_node list, n;
  mscclpp_file_drop_lists(l);
  if (hk_json_get(b, "channels", HK_JSON_LIST, false, &list))
    for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++) {
      if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return;
      const int type = mscclpp_file_channel_type(&n, "channel_type");
      if (type == MSCCLPP_SWITCH)
        mscclpp_file_read_numbers(r, &n, "channel_ids", g->nswitches, &l->switches, &l->nswitches);
      else if (type >= 0)
        mscclpp_file_read_numbers(r, &n, "channel_ids", g->nsignals[type], &l->channels[type], &l->nchannels[type]);
    }
  if (!hk_json_get(b, "remote_buffer_refs", HK_JSON_LIST, false, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return;
    const int type = mscclpp_file_channel_type(&n, "access_channel_type");
    if (type == MSCCLPP_SWITCH) hk_json_say(&n, "a switch reaches no remote buffer");
    if (type >= 0 && type < 2)
      mscclpp_file_read_numbers(r, &n, "remote_buffer_ids", g->nremotes, &l->remotes[type], &l->nremotes[type]);
  }
}

/* ---- operations ---- */

static void mscclpp_file_add_buffer(mscclpp_reader *r, hk_mscclpp_buffer b) {
  if (NEXT(r, r->f->buffers, r->f->nbuffers)) r->f->buffers[r->f->nbuffers++] = b;
}

/* The buffers of one source or destination; `letter`: see `operations`. */
static void mscclpp_file_read_buffer(mscclpp_reader *r, const hk_json_node *n, char letter, int type, int slice,
                                     int of) {
  hk_mscclpp_file *f = r->f;
  const int gpu = f->blocks[r->block].gpu;
  hk_mscclpp_buffer b = {.rank = (int16_t)gpu, .slice = slice, .of = of};
  uint64_t ranks = 0;
  long long number;
  if (letter == 'l' || letter == 'p') {
    const int space = mscclpp_file_space(n, "type");
    b.space = (uint8_t)(space < 0 ? 0 : space);
  } else if (letter == 's' || letter == 't') {
    if (!hk_json_get_whole(n, "switch_channel_id", true, 0, r->lists.nswitches - 1, &number)) return;
    const hk_mscclpp_switch *s = &f->switches[f->gpus[gpu].switches + r->lists.switches[number]];
    b.space = s->space;
    ranks = s->ranks;
  } else {
    if (type > HK_MSCCLPP_PORT) {
      hk_json_say(n, "memory of other gpus is reached by channels of the types memory and port");
      return;
    }
    if (!hk_json_get_whole(n, "buffer_id", true, 0, r->lists.nremotes[type] - 1, &number)) return;
    const hk_mscclpp_remote *m = &f->remotes[f->gpus[gpu].remotes + r->lists.remotes[type][number]];
    b.rank = (int16_t)m->rank;
    b.space = m->space;
  }
  const bool packets = letter == 'p' || letter == 'q' || letter == 't';
  if (packets && b.space != HK_MSCCLPP_SCRATCH) hk_json_say(n, "packets are in scratch memory only (s)");
  if (packets && !f->packets)
    hk_json_say(n, "packets need \"protocol\": \"LL\", which gives scratch memory room for them");
  b.at = mscclpp_file_int(n, "index", 0, HK_TRACE_CHUNKS);
  b.size = mscclpp_file_int(n, "size", 1, HK_TRACE_CHUNKS);
  const int most = b.space == HK_MSCCLPP_IN ? f->nin : b.space == HK_MSCCLPP_OUT ? f->nout : f->gpus[b.rank].scratch;
  if (b.at + b.size > most)
    hk_json_say(n, "chunks %d to %d of buffer %c of gpu %d: it has %d", b.at, b.at + b.size - 1, "ios"[b.space], b.rank,
                most);
  if (packets) b.space = HK_MSCCLPP_PACKETS;
  b.waits = packets;
  if (!ranks) mscclpp_file_add_buffer(r, b);
  for (int k = 0; k < f->nranks && ranks; k++) { /* this gpu first */
    b.rank = (int16_t)((gpu + k) % f->nranks);
    if (b.space >= HK_MSCCLPP_SCRATCH && ranks >> b.rank & 1 && b.at + b.size > f->gpus[b.rank].scratch)
      hk_json_say(n, "chunk %d of buffer s of gpu %d: it has %d", b.at, b.rank, f->gpus[b.rank].scratch);
    if (ranks >> b.rank & 1) mscclpp_file_add_buffer(r, b);
  }
}

/* Reads the list of sources or destinations, and returns their number in the file. */
static int mscclpp_file_read_buffers(mscclpp_reader *r, const hk_json_node *op, const char *key, const char *letters,
                                     int type, bool raw) {
  hk_json_node list, n, group;
  long long slice = 0, of = 1;
  if (!hk_json_get(op, key, HK_JSON_LIST, true, &list)) return 0;
  if (hk_json_get(op, "tbg_info", HK_JSON_OBJECT, false, &group)) {
    hk_json_get_whole(&group, "tbg_size", true, 1, 64, &of);
    hk_json_get_whole(&group, "tb_id", true, 0, of - 1, &slice);
  }
  const size_t size = hk_json_size(&list);
  size_t i = 0;
  if (size > HK_MSCCLPP_OPERANDS) hk_json_say(&list, "there are more than %d buffers", HK_MSCCLPP_OPERANDS);
  for (const char *l = letters; i < size && *l && mscclpp_file_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return 0;
    const int first = r->f->nbuffers;
    mscclpp_file_read_buffer(r, &n, *l == '*' ? l[-1] : *l, type, (int)slice, (int)of);
    for (int k = first; raw && k < r->f->nbuffers; k++) r->f->buffers[k].waits = 0;
    if (*l != '*') l++;
  }
  const size_t least = strcspn(letters, "*") - (strchr(letters, '*') != NULL);
  if (mscclpp_file_good(r) && (i < size || size < least))
    hk_json_say(op, "\"%s\" has %zu buffers, which is not the number that the operation has", key, size);
  return (int)size;
}

static hk_mscclpp_op *mscclpp_file_add_op(mscclpp_reader *r, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  hk_mscclpp_block *b = &f->blocks[r->block];
  if (f->nops >= HK_MSCCLPP_OPS || b->n >= HK_MSCCLPP_BLOCK_OPS) {
    const hk_json_node all = hk_json_root(r->tree);
    hk_json_say(&all, "more than %d operations, or %d of one thread block, which is too many", HK_MSCCLPP_OPS,
                HK_MSCCLPP_BLOCK_OPS);
    return NULL;
  }
  if (!NEXT(r, f->ops, f->nops)) return NULL;
  b->n++;
  f->ops[f->nops] = o;
  return &f->ops[f->nops++];
}

/* The ends of channels, or semaphores, that an operation signals or waits for. */
static void mscclpp_file_read_sync(mscclpp_reader *r, const hk_json_node *n, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  const int gpu = f->blocks[r->block].gpu;
  const bool semaphore = !strncmp(operations[o.name].name, "sem_", 4);
  const int type = semaphore ? HK_MSCCLPP_SEMAPHORE : mscclpp_file_channel_type(n, "channel_type");
  if (type < 0) return;
  if (type == MSCCLPP_SWITCH && !semaphore) {
    hk_json_say(n, "a channel of the type switch has no signals");
    return;
  }
  o.port = type == HK_MSCCLPP_PORT;
  o.first = f->nnumbers;
  mscclpp_file_read_numbers(r, n, semaphore ? "semaphore_ids" : "channel_ids",
                            semaphore ? f->gpus[gpu].nsignals[type] : r->lists.nchannels[type], &f->numbers,
                            &f->nnumbers);
  o.nsrc = f->nnumbers - o.first;
  if (o.nsrc > HK_MSCCLPP_OPERANDS) hk_json_say(n, "it has more than %d channels or semaphores", HK_MSCCLPP_OPERANDS);
  for (int i = o.first; i < f->nnumbers; i++) {
    int *at = &f->numbers[i];
    *at = f->gpus[gpu].signals[type] + (semaphore ? *at : r->lists.channels[type][*at]);
    if (f->signals[*at].other < 0)
      hk_json_say(n, "gpu %d has no channel to gpu %d that is the other end of this one", f->signals[*at].peer, gpu);
  }
  mscclpp_file_add_op(r, o);
}

/* The signal of a put on a port channel. */
static void mscclpp_file_add_put_signal(mscclpp_reader *r, hk_mscclpp_op o, int channel) {
  hk_mscclpp_file *f = r->f;
  const hk_mscclpp_gpu *g = &f->gpus[f->blocks[r->block].gpu];
  if (!NEXT(r, f->numbers, f->nnumbers)) return;
  f->numbers[f->nnumbers] = g->signals[HK_MSCCLPP_PORT] + r->lists.channels[HK_MSCCLPP_PORT][channel];
  o.kind = HK_MSCCLPP_POST;
  o.first = f->nnumbers++;
  o.nsrc = 1;
  o.ndst = 0;
  mscclpp_file_add_op(r, o);
}

static void mscclpp_file_read_move(mscclpp_reader *r, const hk_json_node *n, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  const char *name = operations[o.name].name, *sum = NULL;
  const bool signals = !strncmp(name, "pws", 3);
  hk_json_node any;
  int type = HK_MSCCLPP_TYPES, *channels = NULL, nchannels = 0;
  if (hk_json_has(n, "channel_type", HK_JSON_TEXT, &any) && strcmp(hk_json_words(&any), "none"))
    type = mscclpp_file_channel_type(n, "channel_type");
  if (hk_json_has(n, "reduce_op", HK_JSON_TEXT, &any)) sum = hk_json_words(&any);
  if (sum && strcmp(sum, "sum"))
    hk_json_say(n, "\"reduce_op\" is \"%.20s\": only sums can be read, and the call says which operator is meant", sum);
  o.port = type == HK_MSCCLPP_PORT;
  if (signals && !o.port) hk_json_say(n, "%s is for channels of the type port", name);
  if (o.port && strcmp(name, "put") && !signals && strcmp(name, "ppkt") && strcmp(name, "rppkt"))
    hk_json_say(n, "%s is not for channels of the type port", name);
  const int first = f->nbuffers;
  const int nsrc = mscclpp_file_read_buffers(r, n, "src_buff",
                                             o.port && !strcmp(name, "ppkt") ? "pp*" : operations[o.name].sources, type,
                                             o.port && !strcmp(name, "ppkt"));
  const int middle = f->nbuffers;
  const int ndst = mscclpp_file_read_buffers(r, n, "dst_buff", operations[o.name].destinations, type, false);
  const int end = f->nbuffers;
  if (!mscclpp_file_good(r)) return;
  const hk_mscclpp_buffer *b = f->buffers;
  if (o.port && hk_json_has(n, "channel_ids", HK_JSON_LIST, &any))
    mscclpp_file_read_numbers(r, n, "channel_ids", r->lists.nchannels[HK_MSCCLPP_PORT], &channels, &nchannels);
  if (o.port && nchannels != ndst) hk_json_say(n, "%d channels for %d destinations", nchannels, ndst);
  for (int i = 0; o.port && i < nchannels && i < ndst; i++) {
    const int at = f->gpus[f->blocks[r->block].gpu].signals[HK_MSCCLPP_PORT] +
                   r->lists.channels[HK_MSCCLPP_PORT][channels[i]];
    if (f->signals[at].peer != b[middle + i].rank)
      hk_json_say(n, "channel %d leads to gpu %d, and the destination is in gpu %d", channels[i], f->signals[at].peer,
                  b[middle + i].rank);
  }
  if (operations[o.name].pairs && nsrc != ndst) hk_json_say(n, "%d sources for %d destinations", nsrc, ndst);
  for (int i = first; i < end; i++) {
    const int as = operations[o.name].pairs && i >= middle ? first + i - middle : first;
    if ((!operations[o.name].pairs || i >= middle) && b[i].size != b[as].size)
      hk_json_say(n, "a buffer has %d chunks, and another %d", b[i].size, b[as].size);
  }
  if (type == HK_MSCCLPP_MEMORY && operations[o.name].pairs && *operations[o.name].sources == 'l')
    for (int i = first + 1; i < middle; i++)
      if (b[i].space != b[first].space)
        hk_json_say(n, "MSCCL++ reads all sources of %s from the buffer of the first one, so they must be of one type",
                    name);
  if (!mscclpp_file_good(r)) goto out;
  if (!operations[o.name].pairs) {
    o.first = first, o.nsrc = middle - first, o.ndst = end - middle;
    mscclpp_file_add_op(r, o);
    goto out;
  }
  for (int i = 0; i < nsrc && mscclpp_file_good(r); i++) { /* one after another */
    o.first = f->nbuffers, o.nsrc = o.ndst = 1;
    mscclpp_file_add_buffer(r, f->buffers[first + i]);
    mscclpp_file_add_buffer(r, f->buffers[middle + i]);
    if (mscclpp_file_good(r)) mscclpp_file_add_op(r, o);
    if (signals && mscclpp_file_good(r)) mscclpp_file_add_put_signal(r, o, channels[i]);
  }
out:
  free(channels);
}

static void mscclpp_file_read_ops(mscclpp_reader *r, const hk_json_node *in, bool nested);

/* A loop over parts of each chunk. All loops of a file do as many rounds, and each does in a round what it would do in
 * one round for all, so one round is read: Hocket divides messages by itself. */
static void mscclpp_file_read_pipeline(mscclpp_reader *r, const hk_json_node *n, bool nested) {
  long long unit = 0, chunks = 0;
  hk_json_node context;
  if (nested) hk_json_say(n, "a pipeline in a pipeline");
  if (!hk_json_get(n, "iter_context", HK_JSON_OBJECT, true, &context)) return;
  hk_json_get_whole(&context, "unit_size", true, 1, LLONG_MAX, &unit);
  hk_json_get_whole(&context, "num_chunks", true, 1, HK_TRACE_CHUNKS, &chunks);
  if (!r->unit) r->unit = unit, r->unit_chunks = chunks;
  if (r->unit != unit || r->unit_chunks != chunks)
    hk_json_say(
        n,
        "this pipeline loops over %lld chunks in units of %lld bytes, another one over %lld in %lld: such loops "
        "have different numbers of rounds, which cannot be read",
        chunks, unit, r->unit_chunks, r->unit);
  if (mscclpp_file_good(r)) mscclpp_file_read_ops(r, n, true);
}

static void mscclpp_file_read_op(mscclpp_reader *r, const hk_json_node *n, int number, bool nested) {
  const char *name = hk_json_get_text(n, "name", true);
  hk_mscclpp_op o = {.number = number};
  size_t k = 0;
  if (!name) return;
  if (!strcmp(name, "pipeline")) {
    mscclpp_file_read_pipeline(r, n, nested);
    return;
  }
  while (k < HK_ARRAY_LENGTH(operations) && strcmp(operations[k].name, name)) k++;
  if (k == HK_ARRAY_LENGTH(operations)) {
    hk_json_say(n, "\"name\" is \"%.20s\", which is no operation that MSCCL++ runs", name);
    return;
  }
  o.name = (uint8_t)k;
  o.kind = (uint8_t)operations[k].kind;
  switch (operations[k].kind) {
    case HK_MSCCLPP_MOVE: mscclpp_file_read_move(r, n, o); break;
    case HK_MSCCLPP_POST:
    case HK_MSCCLPP_TAKE: mscclpp_file_read_sync(r, n, o); break;
    case HK_MSCCLPP_BARRIER:
      o.barrier = mscclpp_file_int(n, "barrier_id", 0, HK_MSCCLPP_BLOCKS - 1);
      o.blocks = mscclpp_file_int(n, "num_threadblocks", 1, HK_MSCCLPP_BLOCKS);
      __attribute__((fallthrough));
    case HK_MSCCLPP_NOP:
    case HK_MSCCLPP_FLUSH: mscclpp_file_add_op(r, o); break;
  }
}

static void mscclpp_file_read_ops(mscclpp_reader *r, const hk_json_node *in, bool nested) {
  hk_json_node ops, n;
  if (!hk_json_get(in, "ops", HK_JSON_LIST, true, &ops)) return;
  for (size_t i = 0; i < hk_json_size(&ops) && mscclpp_file_good(r); i++)
    if (hk_json_at(&ops, i, HK_JSON_OBJECT, &n)) mscclpp_file_read_op(r, &n, (int)i, nested);
}

static void mscclpp_file_read_blocks(mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  hk_json_node list, n;
  f->gpus[gpu].first_block = f->nblocks;
  if (!hk_json_get(g, "threadblocks", HK_JSON_LIST, true, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && mscclpp_file_good(r); i++) {
    if (f->nblocks == HK_MSCCLPP_BLOCKS) {
      hk_json_say(&list, "the file has more than %d thread blocks, which is too many", HK_MSCCLPP_BLOCKS);
      return;
    }
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n) || !NEXT(r, f->blocks, f->nblocks)) return;
    r->block = f->nblocks;
    f->blocks[f->nblocks++] = (hk_mscclpp_block){.gpu = gpu, .id = (int)i, .first = f->nops};
    if (mscclpp_file_int(&n, "id", 0, INT_MAX) != (int)i)
      hk_json_say(&n, "\"id\" is not %zu: thread blocks are in order", i);
    mscclpp_file_read_lists(r, &n, gpu);
    if (mscclpp_file_good(r)) mscclpp_file_read_ops(r, &n, false);
  }
}

/* Divides chunks so that each slice of a thread block group is a whole number of them. */
static void mscclpp_file_slice(mscclpp_reader *r, const hk_json_node *file) {
  hk_mscclpp_file *f = r->f;
  int by = 1;
  for (int i = 0; i < f->nbuffers; i++) {
    const hk_mscclpp_buffer *b = &f->buffers[i];
    int least = by;
    while (least * b->size % b->of) least += by; /* at most `of` times */
    by = least;
    if ((long)by * (f->nin > f->nout ? f->nin : f->nout) <= HK_TRACE_CHUNKS && (long)by * f->scratch <= HK_TRACE_CHUNKS)
      continue;
    hk_json_say(file, "groups of thread blocks divide chunks into more than %d", HK_TRACE_CHUNKS);
    return;
  }
  for (int i = 0; i < f->nbuffers; i++) {
    hk_mscclpp_buffer *b = &f->buffers[i];
    const int size = b->size * by / b->of;
    b->at = b->at * by + b->slice * size;
    b->size = size;
  }
  f->slices = by;
  f->nin *= by, f->nout *= by, f->parts *= by, f->scratch *= by;
}

hk_status hk_mscclpp_file_read(hk_mscclpp_file *f, const hk_json_node *file) {
  mscclpp_reader r = {.f = f, .tree = file->tree};
  hk_json_node list, g;
  f->name = file->tree->file;
  mscclpp_file_read_head(&r, file);
  if (!hk_json_get(file, "gpus", HK_JSON_LIST, true, &list) || !mscclpp_file_good(&r)) goto out;
  if (hk_json_size(&list) < 2 || hk_json_size(&list) > HK_MSCCLPP_RANKS) {
    hk_json_say(&list, "%zu gpus; 2 to %d can be read", hk_json_size(&list), HK_MSCCLPP_RANKS);
    goto out;
  }
  f->nranks = (int)hk_json_size(&list);
  for (int i = 0; i < f->nranks && mscclpp_file_good(&r); i++)
    if (hk_json_at(&list, (size_t)i, HK_JSON_OBJECT, &g)) mscclpp_file_read_gpu(&r, &g, i);
  if (mscclpp_file_good(&r)) mscclpp_file_pair(f);
  for (int i = 0; i < f->nranks && mscclpp_file_good(&r); i++)
    if (hk_json_at(&list, (size_t)i, HK_JSON_OBJECT, &g)) mscclpp_file_read_blocks(&r, &g, i);
  f->gpus[f->nranks].first_block = f->nblocks;
  if (mscclpp_file_good(&r)) mscclpp_file_slice(&r, file);
out:
  mscclpp_file_drop_lists(&r.lists);
  if (r.no_memory) return HK_FAIL_ERRNO("no memory to read %s", f->name);
  return hk_json_tree_status(r.tree);
}

void hk_mscclpp_file_free(hk_mscclpp_file *f) {
  free(f->blocks);
  free(f->ops);
  free(f->buffers);
  free(f->signals);
  free(f->remotes);
  free(f->switches);
  free(f->numbers);
}
