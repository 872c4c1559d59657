/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the operations of an MSCCL++ plan and checks each by itself. */
#include <limits.h>
#include <stdlib.h>
#include "mscclpp_reader.h"

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

static void mscclpp_ops_add_buffer(hk_mscclpp_reader *r, hk_mscclpp_buffer b) {
  if (HK_MSCCLPP_NEXT(r, r->f->buffers, r->f->nbuffers)) r->f->buffers[r->f->nbuffers++] = b;
}

/* The buffers of one source or destination; `letter`: see `operations`. */
static void mscclpp_ops_read_buffer(hk_mscclpp_reader *r, const hk_json_node *n, char letter, int type, int slice,
                                    int of) {
  hk_mscclpp_file *f = r->f;
  const int gpu = f->blocks[r->block].gpu;
  hk_mscclpp_buffer b = {.rank = (int16_t)gpu, .slice = slice, .of = of};
  uint64_t ranks = 0;
  long long number;
  if (letter == 'l' || letter == 'p') {
    const int space = hk_mscclpp_read_space(n, "type");
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
  b.at = hk_mscclpp_read_int(n, "index", 0, HK_TRACE_CHUNKS);
  b.size = hk_mscclpp_read_int(n, "size", 1, HK_TRACE_CHUNKS);
  const int most = b.space == HK_MSCCLPP_IN ? f->nin : b.space == HK_MSCCLPP_OUT ? f->nout : f->gpus[b.rank].scratch;
  if (b.at + b.size > most)
    hk_json_say(n, "chunks %d to %d of buffer %c of gpu %d: it has %d", b.at, b.at + b.size - 1, "ios"[b.space], b.rank,
                most);
  if (packets) b.space = HK_MSCCLPP_PACKETS;
  b.waits = packets;
  if (!ranks) mscclpp_ops_add_buffer(r, b);
  for (int k = 0; k < f->nranks && ranks; k++) { /* this gpu first */
    b.rank = (int16_t)((gpu + k) % f->nranks);
    if (b.space >= HK_MSCCLPP_SCRATCH && ranks >> b.rank & 1 && b.at + b.size > f->gpus[b.rank].scratch)
      hk_json_say(n, "chunk %d of buffer s of gpu %d: it has %d", b.at, b.rank, f->gpus[b.rank].scratch);
    if (ranks >> b.rank & 1) mscclpp_ops_add_buffer(r, b);
  }
}

/* Reads the list of sources or destinations, and returns their number in the file. */
static int mscclpp_ops_read_buffers(hk_mscclpp_reader *r, const hk_json_node *op, const char *key, const char *letters,
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
  for (const char *l = letters; i < size && *l && hk_mscclpp_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return 0;
    const int first = r->f->nbuffers;
    mscclpp_ops_read_buffer(r, &n, *l == '*' ? l[-1] : *l, type, (int)slice, (int)of);
    for (int k = first; raw && k < r->f->nbuffers; k++) r->f->buffers[k].waits = 0;
    if (*l != '*') l++;
  }
  const size_t least = strcspn(letters, "*") - (strchr(letters, '*') != NULL);
  if (hk_mscclpp_good(r) && (i < size || size < least))
    hk_json_say(op, "\"%s\" has %zu buffers, which is not the number that the operation has", key, size);
  return (int)size;
}

static hk_mscclpp_op *mscclpp_ops_add_op(hk_mscclpp_reader *r, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  hk_mscclpp_block *b = &f->blocks[r->block];
  if (f->nops >= HK_MSCCLPP_OPS || b->n >= HK_MSCCLPP_BLOCK_OPS) {
    const hk_json_node all = hk_json_root(r->tree);
    hk_json_say(&all, "more than %d operations, or %d of one thread block, which is too many", HK_MSCCLPP_OPS,
                HK_MSCCLPP_BLOCK_OPS);
    return NULL;
  }
  if (!HK_MSCCLPP_NEXT(r, f->ops, f->nops)) return NULL;
  b->n++;
  f->ops[f->nops] = o;
  return &f->ops[f->nops++];
}

/* The ends of channels, or semaphores, that an operation signals or waits for. */
static void mscclpp_ops_read_sync(hk_mscclpp_reader *r, const hk_json_node *n, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  const int gpu = f->blocks[r->block].gpu;
  const bool semaphore = !strncmp(operations[o.name].name, "sem_", 4);
  const int type = semaphore ? HK_MSCCLPP_SEMAPHORE : hk_mscclpp_read_type(n, "channel_type");
  if (type < 0) return;
  if (type == HK_MSCCLPP_SWITCH && !semaphore) {
    hk_json_say(n, "a channel of the type switch has no signals");
    return;
  }
  o.port = type == HK_MSCCLPP_PORT;
  o.first = f->nnumbers;
  hk_mscclpp_read_numbers(r, n, semaphore ? "semaphore_ids" : "channel_ids",
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
  mscclpp_ops_add_op(r, o);
}

/* The signal of a put on a port channel. */
static void mscclpp_ops_add_put_signal(hk_mscclpp_reader *r, hk_mscclpp_op o, int channel) {
  hk_mscclpp_file *f = r->f;
  const hk_mscclpp_gpu *g = &f->gpus[f->blocks[r->block].gpu];
  if (!HK_MSCCLPP_NEXT(r, f->numbers, f->nnumbers)) return;
  f->numbers[f->nnumbers] = g->signals[HK_MSCCLPP_PORT] + r->lists.channels[HK_MSCCLPP_PORT][channel];
  o.kind = HK_MSCCLPP_POST;
  o.first = f->nnumbers++;
  o.nsrc = 1;
  o.ndst = 0;
  mscclpp_ops_add_op(r, o);
}

static void mscclpp_ops_read_move(hk_mscclpp_reader *r, const hk_json_node *n, hk_mscclpp_op o) {
  hk_mscclpp_file *f = r->f;
  const char *name = operations[o.name].name, *sum = NULL;
  const bool signals = !strncmp(name, "pws", 3);
  hk_json_node any;
  int type = HK_MSCCLPP_TYPES, *channels = NULL, nchannels = 0;
  if (hk_json_has(n, "channel_type", HK_JSON_TEXT, &any) && strcmp(hk_json_words(&any), "none"))
    type = hk_mscclpp_read_type(n, "channel_type");
  if (hk_json_has(n, "reduce_op", HK_JSON_TEXT, &any)) sum = hk_json_words(&any);
  if (sum && strcmp(sum, "sum"))
    hk_json_say(n, "\"reduce_op\" is \"%.20s\": only sums can be read, and the call says which operator is meant", sum);
  o.port = type == HK_MSCCLPP_PORT;
  if (signals && !o.port) hk_json_say(n, "%s is for channels of the type port", name);
  if (o.port && strcmp(name, "put") && !signals && strcmp(name, "ppkt") && strcmp(name, "rppkt"))
    hk_json_say(n, "%s is not for channels of the type port", name);
  const int first = f->nbuffers;
  const int nsrc = mscclpp_ops_read_buffers(r, n, "src_buff",
                                            o.port && !strcmp(name, "ppkt") ? "pp*" : operations[o.name].sources, type,
                                            o.port && !strcmp(name, "ppkt"));
  const int middle = f->nbuffers;
  const int ndst = mscclpp_ops_read_buffers(r, n, "dst_buff", operations[o.name].destinations, type, false);
  const int end = f->nbuffers;
  if (!hk_mscclpp_good(r)) return;
  const hk_mscclpp_buffer *b = f->buffers;
  if (o.port && hk_json_has(n, "channel_ids", HK_JSON_LIST, &any))
    hk_mscclpp_read_numbers(r, n, "channel_ids", r->lists.nchannels[HK_MSCCLPP_PORT], &channels, &nchannels);
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
  if (!hk_mscclpp_good(r)) goto out;
  if (!operations[o.name].pairs) {
    o.first = first, o.nsrc = middle - first, o.ndst = end - middle;
    mscclpp_ops_add_op(r, o);
    goto out;
  }
  for (int i = 0; i < nsrc && hk_mscclpp_good(r); i++) { /* one after another */
    o.first = f->nbuffers, o.nsrc = o.ndst = 1;
    mscclpp_ops_add_buffer(r, f->buffers[first + i]);
    mscclpp_ops_add_buffer(r, f->buffers[middle + i]);
    if (hk_mscclpp_good(r)) mscclpp_ops_add_op(r, o);
    if (signals && hk_mscclpp_good(r)) mscclpp_ops_add_put_signal(r, o, channels[i]);
  }
out:
  free(channels);
}

/* A loop over parts of each chunk. All loops of a file do as many rounds, and each does in a round what it would do in
 * one round for all, so one round is read: Hocket divides messages by itself. */
static void mscclpp_ops_read_pipeline(hk_mscclpp_reader *r, const hk_json_node *n, bool nested) {
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
  if (hk_mscclpp_good(r)) hk_mscclpp_read_ops(r, n, true);
}

static void mscclpp_ops_read_op(hk_mscclpp_reader *r, const hk_json_node *n, int number, bool nested) {
  const char *name = hk_json_get_text(n, "name", true);
  hk_mscclpp_op o = {.number = number};
  size_t k = 0;
  if (!name) return;
  if (!strcmp(name, "pipeline")) {
    mscclpp_ops_read_pipeline(r, n, nested);
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
    case HK_MSCCLPP_MOVE: mscclpp_ops_read_move(r, n, o); break;
    case HK_MSCCLPP_POST:
    case HK_MSCCLPP_TAKE: mscclpp_ops_read_sync(r, n, o); break;
    case HK_MSCCLPP_BARRIER:
      o.barrier = hk_mscclpp_read_int(n, "barrier_id", 0, HK_MSCCLPP_BLOCKS - 1);
      o.blocks = hk_mscclpp_read_int(n, "num_threadblocks", 1, HK_MSCCLPP_BLOCKS);
      __attribute__((fallthrough));
    case HK_MSCCLPP_NOP:
    case HK_MSCCLPP_FLUSH: mscclpp_ops_add_op(r, o); break;
  }
}

void hk_mscclpp_read_ops(hk_mscclpp_reader *r, const hk_json_node *in, bool nested) {
  hk_json_node ops, n;
  if (!hk_json_get(in, "ops", HK_JSON_LIST, true, &ops)) return;
  for (size_t i = 0; i < hk_json_size(&ops) && hk_mscclpp_good(r); i++)
    if (hk_json_at(&ops, i, HK_JSON_OBJECT, &n)) mscclpp_ops_read_op(r, &n, (int)i, nested);
}
