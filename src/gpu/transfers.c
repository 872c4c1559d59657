/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives on GPUs: one launch for all of a group, a block of threads for each link. Large messages use
 * several links. */
#include <stdlib.h>
#include "../core/call.h"
#include "buffer.h"
#include "code.h"
#include "endpoints.h"
#include "launch.h"
#include "links.h"
#include "memory.h"
#include "run.h"

/* A transfer, or the part of it that one link moves. */
typedef struct part {
  hk_gpu_work work;
  hk_gpu *gpu;
  uint64_t comm_id;
  uint32_t later, delta, rank, sends, channel, index;
} part;

/* The number of links among which the message is divided; equal at both ends. */
static unsigned transfers_parts_of(ncclComm_t c, int peer, size_t bytes) {
  const hk_gpu *g = hk_gpu_of(c);
  const unsigned most = hk_gpu_is_proxied(g->links, peer) ? g->split->net_parts : g->split->parts;
  size_t worth = bytes / (4 * hk_gpu_links_slot_bytes(g->links));
  if (worth < 1) return 1;
  return worth < most ? (unsigned)worth : most;
}

/* Bytes for each link; the last link may have fewer. */
static size_t transfers_each_of(size_t bytes, unsigned of) {
  return of == 1 ? bytes : ((bytes + of - 1) / of + 4095) & ~(size_t)4095;
}

static hk_status transfers_offer(const hk_call *call) {
  ncclComm_t c = call->comm;
  unsigned of = transfers_parts_of(c, call->root, call->count * hk_dtype_size((hk_dtype)call->dtype));
  for (unsigned k = 0; k < of; k++)
    HK_OR_RETURN(
        hk_gpu_endpoint_offer(c, call->root, call->p2p == HK_P2P_SEND, HK_GPU_CHANNELS - HK_GPU_P2P_CHANNELS + k));
  return HK_OK;
}

static hk_status transfers_arguments(hk_gpu_launch_item *p) {
  const hk_call *call = p->call;
  ncclComm_t c = call->comm;
  const bool sends = call->p2p == HK_P2P_SEND;
  const size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  const unsigned of = transfers_parts_of(c, call->root, bytes);
  for (unsigned k = 0; k < of; k++) {
    hk_gpu_endpoint *e;
    HK_OR_RETURN(hk_gpu_endpoint_get(c, call->root, sends, HK_GPU_CHANNELS - HK_GPU_P2P_CHANNELS + k, &e));
    HK_OR_RETURN(hk_gpu_endpoint_grow(c, e, transfers_each_of(bytes, of)));
    HK_OR_RETURN(hk_gpu_endpoint_program(c, call->root, sends, e));
  }
  return HK_OK;
}

static hk_status transfers_add_parts(const hk_gpu_launch_item *p, part *parts, size_t *n) {
  const hk_call *call = p->call;
  ncclComm_t c = call->comm;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  unsigned of = transfers_parts_of(c, call->root, bytes);
  size_t each = transfers_each_of(bytes, of);
  bool sends = call->p2p == HK_P2P_SEND;
  int way = sends ? call->root - c->rank : c->rank - call->root;
  const int64_t *seen = NULL;
  bool reads = false;
  if (sends) HK_OR_RETURN(hk_gpu_buffer_for(c, call->root, call->in, bytes, &reads, &seen));
  for (unsigned k = 0; k < of; k++) {
    hk_gpu_endpoint *e;
    size_t at = k * each < bytes ? k * each : bytes, size = bytes - at < each ? bytes - at : each;
    HK_OR_RETURN(hk_gpu_endpoint_get(c, call->root, sends, HK_GPU_CHANNELS - HK_GPU_P2P_CHANNELS + k, &e));
    /* then the whole part is one slot; the receiver sees that in the tag */
    bool refers = reads && size >= HK_GPU_REF_MIN;
    parts[*n] = (part){.work = {.program = (char *)e->device + HK_GPU_PROGRAM_AT,
                                .links = e->device,
                                .in = sends ? (const char *)call->in + at : NULL,
                                .out = sends ? NULL : (char *)call->out + at,
                                .sizes = hk_sizes_of(HK_PART_WHOLE, size, size, refers ? size : e->link.slot_bytes),
                                .state = hk_gpu_of(c)->state.base,
                                .seen_in = refers ? seen : NULL,
                                .signature = hk_transfer_signature(bytes),
                                .program_bytes = e->program_bytes,
                                .nlinks = 1,
                                .channels = 1,
                                .orders = 1,
                                .lanes = 1},
                       .gpu = hk_gpu_of(c),
                       .comm_id = p->comm_id,
                       .later = c->options.nvlink_first && !hk_wire_near(c, call->root),
                       .delta = (uint32_t)(way < 0 ? way + c->nranks : way),
                       .rank = (uint32_t)c->rank,
                       .sends = sends,
                       .channel = k,
                       .index = (uint32_t)*n};
    ++*n;
  }
  return HK_OK;
}

/* If more blocks are launched than run at once, no block may wait for a later block, on any device. So parts are sorted
 * by communicator, then (nvlinkCentricSched) transfers inside a host first, then by the distance from sender to
 * receiver in the ring of ranks. Both ends compute the same order. */
static int transfers_by_turn(const void *a, const void *b) {
  const part *x = a, *y = b;
#define COMPARE(field)                                                                                                 \
  if (x->field != y->field) return x->field < y->field ? -1 : 1
  COMPARE(comm_id);
  COMPARE(later);
  COMPARE(delta);
  COMPARE(rank);
  COMPARE(sends);
  COMPARE(channel);
  COMPARE(index);
#undef COMPARE
  return 0;
}

/* The most blocks of a rank. Both directions of one distance have their own blocks: see fill_table. */
static unsigned transfers_most_blocks(const hk_gpu *g) {
  const unsigned parts = g->split->parts > g->split->net_parts ? g->split->parts : g->split->net_parts;
  return g->blocks > 2 * parts ? g->blocks : 2 * parts;
}

/* True if part i is the first one over its link, and its rank has a block left. */
static bool transfers_begins_block(const part *parts, size_t i) {
  if (i && parts[i].work.links == parts[i - 1].work.links) return false;
  return parts[i].gpu->split->turn.links++ < transfers_most_blocks(parts[i].gpu);
}

/* Fills the table and returns the number of blocks. Each link has a block, up to the rank's share of blocks. Further
 * parts over the link follow in the same block, and further links share the blocks in turn. This cannot deadlock: among
 * the incomplete parts, those with the shortest distance in the ring have no incomplete part before them in their
 * blocks. So both of their ends run. */
static unsigned transfers_fill_table(hk_gpu_work *table, const part *parts, size_t n) {
  unsigned blocks = 0, tail;
  for (size_t i = 0; i < n; i++) parts[i].gpu->split->turn.links = 0;
  for (size_t i = 0; i < n; i++) blocks += transfers_begins_block(parts, i);
  for (size_t i = 0; i < n; i++) parts[i].gpu->split->turn.links = 0;
  tail = blocks;
  for (size_t i = 0, block = 0; i < n; i++) {
    hk_gpu *g = parts[i].gpu;
    const bool first = transfers_begins_block(parts, i);
    hk_gpu_work **last = &g->split->turn.last[(g->split->turn.links - 1) % transfers_most_blocks(g)];
    uint32_t at = first ? (uint32_t)block++ : tail++;
    table[at] = parts[i].work;
    if (!first) (*last)->next = at;
    *last = &table[at];
  }
  return blocks;
}

static hk_status transfers_launch(const hk_gpu_launch_batch *s, hk_gpu_launch_item **at, size_t items) {
  hk_status rc = HK_OK;
  hk_gpu_table *table = NULL;
  size_t n = 0;
  part *parts = malloc(items * HK_GPU_P2P_CHANNELS * sizeof *parts);
  if (!parts) return HK_FAIL_ERRNO("no memory for %zu transfers", items * HK_GPU_P2P_CHANNELS);
  for (size_t i = 0; i < items; i++) HK_TRY(transfers_add_parts(at[i], parts, &n), out);
  qsort(parts, n, sizeof *parts, transfers_by_turn);
  hk_gpu_transfers param = {.work = NULL};
  hk_kernel_launch l = {.function = s->gpu->code->transfers,
                        .threads = s->gpu->code->threads,
                        .here = s->at[0]->state.here,
                        .param = &param,
                        .param_bytes = offsetof(hk_gpu_transfers, own)};
  if (n > HK_GPU_BATCH) {
    HK_TRY(hk_gpu_table_get(s->gpu->memory, n * sizeof(hk_gpu_work), &table), out);
    param.work = table->memory.base;
  } else {
    l.param_bytes += n * sizeof(hk_gpu_work);
  }
  l.blocks = transfers_fill_table(table ? table->memory.host : param.own, parts, n);
  HK_TRY(hk_gpu_launch(s->gpu, NULL, &l, s->queue), out);
  if (table) HK_TRY(hk_gpu_table_used(s->gpu->device, table, &s->at[0]->state, s->queue), out);
out:
  hk_gpu_table_put(table);
  free(parts);
  return rc;
}

const hk_gpu_executor hk_gpu_by_transfers = {
    .offer = transfers_offer, .arguments = transfers_arguments, .launch = transfers_launch};
