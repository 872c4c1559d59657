/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parts of an MSCCL++ plan and checks each by itself. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "formats.h"
#include "mscclpp_reader.h"

/* ---- the plan and its gpus ---- */

static void mscclpp_file_read_head(hk_mscclpp_reader *r, const hk_json_node *file) {
  hk_mscclpp_file *f = r->f;
  const char *coll = hk_json_get_text(file, "collective", true), *name = hk_json_get_text(file, "name", true);
  const char *protocol = hk_json_get_text(file, "protocol", true);
  long long least = 0, most = 0;
  hk_json_node n;
  const hk_coll c = coll ? hk_coll_by_name(coll, strlen(coll)) : HK_ALLREDUCE;
  const bool can = c != HK_COLL_COUNT && !hk_coll_has_root(c) && !hk_coll_uneven(c);
  if (!can)
    hk_json_say(file, "\"collective\" is \"%.40s\"; allreduce, allgather, reducescatter and alltoall can be read",
                coll);
  f->coll = can ? c : HK_ALLREDUCE;
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

static void mscclpp_file_read_chunks(hk_mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  int in = hk_mscclpp_read_int(g, "input_chunks", 0, HK_TRACE_CHUNKS);
  int out = hk_mscclpp_read_int(g, "output_chunks", 0, HK_TRACE_CHUNKS);
  const int messages_in = hk_coll_in_blocks(f->coll, f->nranks), messages_out = hk_coll_out_blocks(f->coll, f->nranks);
  if (!out && f->in_place) out = in / messages_in * messages_out; /* the buffer that the plan does not name */
  if (!in && f->in_place) in = out / messages_out * messages_in;
  f->gpus[gpu].scratch = hk_mscclpp_read_int(g, "scratch_chunks", 0, HK_TRACE_CHUNKS);
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

static void mscclpp_file_add_signal(hk_mscclpp_reader *r, hk_mscclpp_signal s) {
  hk_mscclpp_file *f = r->f;
  if (f->nsignals >= HK_MSCCLPP_CHANNELS || !HK_MSCCLPP_NEXT(r, f->signals, f->nsignals)) return;
  hk_mscclpp_gpu *g = &f->gpus[s.gpu];
  s.number = g->nsignals[s.type]++;
  s.other = s.type == HK_MSCCLPP_SEMAPHORE ? f->nsignals : -1;
  for (int i = g->signals[s.type]; s.type != HK_MSCCLPP_SEMAPHORE && i < f->nsignals; i++)
    s.turn += f->signals[i].peer == s.peer;
  f->signals[f->nsignals++] = s;
}

static void mscclpp_file_read_channels(hk_mscclpp_reader *r, const hk_json_node *g, int gpu, int type) {
  hk_mscclpp_file *f = r->f;
  hk_json_node list, c, peers, p;
  if (!hk_json_get(g, "channels", HK_JSON_LIST, true, &list)) return;
  if (type < HK_MSCCLPP_SEMAPHORE) f->gpus[gpu].signals[type] = f->nsignals;
  for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &c) || hk_mscclpp_read_type(&c, "channel_type") != type) continue;
    if (type == HK_MSCCLPP_SWITCH) {
      hk_json_node groups, group;
      const int space = hk_mscclpp_read_space(&c, hk_json_has(&c, "buff", HK_JSON_TEXT, &p) ? "buff" : "buffer_type");
      if (space < 0 || !hk_json_get(&c, "rank_groups", HK_JSON_LIST, true, &groups)) return;
      for (size_t k = 0; k < hk_json_size(&groups) && hk_mscclpp_good(r); k++) {
        hk_mscclpp_switch s = {.space = (uint8_t)space};
        if (!hk_json_at(&groups, k, HK_JSON_OBJECT, &group) ||
            !hk_json_get(&group, "ranks", HK_JSON_LIST, true, &peers))
          return;
        for (size_t j = 0; j < hk_json_size(&peers); j++)
          if (hk_json_at(&peers, j, HK_JSON_WHOLE, &p) && hk_json_within(&p, 0, f->nranks - 1))
            s.ranks |= (uint64_t)1 << hk_json_value(&p);
        if (!(s.ranks >> gpu & 1)) hk_json_say(&group, "gpu %d is not in its switch's group", gpu);
        if (!HK_MSCCLPP_NEXT(r, f->switches, f->nswitches)) return;
        f->switches[f->nswitches++] = s;
        f->gpus[gpu].nswitches++;
      }
      continue;
    }
    if (!hk_json_get(&c, "connected_to", HK_JSON_LIST, true, &peers)) return;
    for (size_t k = 0; k < hk_json_size(&peers) && hk_mscclpp_good(r); k++) {
      if (!hk_json_at(&peers, k, HK_JSON_WHOLE, &p) || !hk_json_within(&p, 0, f->nranks - 1)) return;
      if (hk_json_value(&p) == gpu) hk_json_say(&p, "gpu %d has a channel to itself", gpu);
      mscclpp_file_add_signal(r,
                              (hk_mscclpp_signal){.type = (uint8_t)type, .gpu = gpu, .peer = (int)hk_json_value(&p)});
    }
  }
  if (f->nsignals >= HK_MSCCLPP_CHANNELS)
    hk_json_say(&list, "the file has more than %d channels, which is too many", HK_MSCCLPP_CHANNELS - 1);
}

static void mscclpp_file_read_gpu(hk_mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  hk_mscclpp_gpu *to = &f->gpus[gpu];
  hk_json_node list, n;
  if (hk_mscclpp_read_int(g, "id", 0, INT_MAX) != gpu) hk_json_say(g, "\"id\" is not %d: gpus are in order", gpu);
  mscclpp_file_read_chunks(r, g, gpu);
  to->switches = f->nswitches;
  for (int type = 0; type < 3; type++) mscclpp_file_read_channels(r, g, gpu, type);
  to->signals[HK_MSCCLPP_SEMAPHORE] = f->nsignals;
  if (hk_json_get(g, "semaphores", HK_JSON_LIST, false, &list))
    for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++)
      if (hk_json_at(&list, i, HK_JSON_OBJECT, &n))
        mscclpp_file_add_signal(r,
                                (hk_mscclpp_signal){.type = HK_MSCCLPP_SEMAPHORE,
                                                    .gpu = gpu,
                                                    .peer = -1,
                                                    .start = hk_mscclpp_read_int(&n, "init_value", 0, HK_MSCCLPP_OPS)});
  to->remotes = f->nremotes;
  if (!hk_json_get(g, "remote_buffers", HK_JSON_LIST, false, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n) || !HK_MSCCLPP_NEXT(r, f->remotes, f->nremotes)) return;
    const int rank = hk_mscclpp_read_int(&n, "rank", 0, f->nranks - 1), space = hk_mscclpp_read_space(&n, "type");
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

static void mscclpp_file_drop_lists(hk_mscclpp_lists *l) {
  for (int i = 0; i < HK_MSCCLPP_TYPES; i++) free(l->channels[i]);
  for (int i = 0; i < 2; i++) free(l->remotes[i]);
  free(l->switches);
  *l = (hk_mscclpp_lists){.nswitches = 0};
}

static void mscclpp_file_read_lists(hk_mscclpp_reader *r, const hk_json_node *b, int gpu) {
  const hk_mscclpp_gpu *g = &r->f->gpus[gpu];
  hk_mscclpp_lists *l = &r->lists;
  hk_json_node list, n;
  mscclpp_file_drop_lists(l);
  if (hk_json_get(b, "channels", HK_JSON_LIST, false, &list))
    for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++) {
      if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return;
      const int type = hk_mscclpp_read_type(&n, "channel_type");
      if (type == HK_MSCCLPP_SWITCH)
        hk_mscclpp_read_numbers(r, &n, "channel_ids", g->nswitches, &l->switches, &l->nswitches);
      else if (type >= 0)
        hk_mscclpp_read_numbers(r, &n, "channel_ids", g->nsignals[type], &l->channels[type], &l->nchannels[type]);
    }
  if (!hk_json_get(b, "remote_buffer_refs", HK_JSON_LIST, false, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++) {
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n)) return;
    const int type = hk_mscclpp_read_type(&n, "access_channel_type");
    if (type == HK_MSCCLPP_SWITCH) hk_json_say(&n, "a switch reaches no remote buffer");
    if (type >= 0 && type < 2)
      hk_mscclpp_read_numbers(r, &n, "remote_buffer_ids", g->nremotes, &l->remotes[type], &l->nremotes[type]);
  }
}

static void mscclpp_file_read_blocks(hk_mscclpp_reader *r, const hk_json_node *g, int gpu) {
  hk_mscclpp_file *f = r->f;
  hk_json_node list, n;
  f->gpus[gpu].first_block = f->nblocks;
  if (!hk_json_get(g, "threadblocks", HK_JSON_LIST, true, &list)) return;
  for (size_t i = 0; i < hk_json_size(&list) && hk_mscclpp_good(r); i++) {
    if (f->nblocks == HK_MSCCLPP_BLOCKS) {
      hk_json_say(&list, "the file has more than %d thread blocks, which is too many", HK_MSCCLPP_BLOCKS);
      return;
    }
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &n) || !HK_MSCCLPP_NEXT(r, f->blocks, f->nblocks)) return;
    r->block = f->nblocks;
    f->blocks[f->nblocks++] = (hk_mscclpp_block){.gpu = gpu, .id = (int)i, .first = f->nops};
    if (hk_mscclpp_read_int(&n, "id", 0, INT_MAX) != (int)i)
      hk_json_say(&n, "\"id\" is not %zu: thread blocks are in order", i);
    mscclpp_file_read_lists(r, &n, gpu);
    if (hk_mscclpp_good(r)) hk_mscclpp_read_ops(r, &n, false);
  }
}

/* Divides chunks so that each slice of a thread block group is a whole number of them. */
static void mscclpp_file_slice(hk_mscclpp_reader *r, const hk_json_node *file) {
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
  hk_mscclpp_reader r = {.f = f, .tree = file->tree};
  hk_json_node list, g;
  f->name = file->tree->file;
  mscclpp_file_read_head(&r, file);
  if (!hk_json_get(file, "gpus", HK_JSON_LIST, true, &list) || !hk_mscclpp_good(&r)) goto out;
  if (hk_json_size(&list) < 2 || hk_json_size(&list) > HK_MSCCLPP_RANKS) {
    hk_json_say(&list, "%zu gpus; 2 to %d can be read", hk_json_size(&list), HK_MSCCLPP_RANKS);
    goto out;
  }
  f->nranks = (int)hk_json_size(&list);
  for (int i = 0; i < f->nranks && hk_mscclpp_good(&r); i++)
    if (hk_json_at(&list, (size_t)i, HK_JSON_OBJECT, &g)) mscclpp_file_read_gpu(&r, &g, i);
  if (hk_mscclpp_good(&r)) mscclpp_file_pair(f);
  for (int i = 0; i < f->nranks && hk_mscclpp_good(&r); i++)
    if (hk_json_at(&list, (size_t)i, HK_JSON_OBJECT, &g)) mscclpp_file_read_blocks(&r, &g, i);
  f->gpus[f->nranks].first_block = f->nblocks;
  if (hk_mscclpp_good(&r)) mscclpp_file_slice(&r, file);
out:
  mscclpp_file_drop_lists(&r.lists);
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
