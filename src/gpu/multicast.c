/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and copies in the switch (NVLS): links in multicast memory (transport/cuda/multicast.h), and the decision for
 * which communicators, types and operators they are used. */
#include "multicast.h"
#include <stdio.h>
#include "../base/log.h"
#include "../core/call.h"
#include "../kernels/cuda/link_end.h"
#include "../program/program.h"
#include "../transport/cuda/multicast.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"
#include "window.h"

enum { LINE = HK_MULTICAST_LINE };

/* A link of the sum for all (kernels/cuda/work.h): each rank gives one part. */
static hk_gpu_link multicast_part_link(ncclComm_t c, const hk_link_need *need, unsigned channel) {
  const hk_multicast *m = hk_gpu_of(c)->group->multicast;
  const hk_multicast_layout l = hk_multicast_layout_of(m);
  const size_t me = (size_t)hk_multicast_place(&m->team, c->rank), data = hk_multicast_data(m, channel);
  char *own = m->own[me].base, *all = m->all[me].base;
  char *mine = own + channel * l.given, *theirs = all + channel * l.given; /* signals: read here, written there */
  const bool sends = need->kind == HK_LINK_SUM_SEND;
  char *words = sends ? theirs + me * m->nslots * HK_MULTICAST_WORD : mine, *heads = sends ? mine : theirs + me * LINE;
  return (hk_gpu_link){.done = (uint64_t *)(void *)(mine + l.part_done + (sends ? 0 : LINE)),
                       .head = (uint64_t *)(void *)(heads + l.part_head),
                       .word = (uint64_t *)(void *)(words + l.part_word),
                       .data = (sends ? own : all) + data + l.part,
                       .slot_bytes = (uint32_t)m->slot_bytes,
                       .nslots = m->nslots,
                       .peer = need->peer,
                       .sends = sends,
                       .multi = HK_GPU_MULTI_SIGNAL | (sends ? 0 : HK_GPU_MULTI_SUM),
                       .others = (uint32_t)m->team.n - 1};
}

hk_gpu_link hk_gpu_multicast_link(ncclComm_t c, const hk_link_need *need, unsigned channel, bool first) {
  if (hk_link_in_group((hk_link_kind)need->kind)) return multicast_part_link(c, need, channel);
  const hk_multicast *m = hk_gpu_of(c)->group->multicast;
  const size_t n = (size_t)m->team.n, me = (size_t)hk_multicast_place(&m->team, c->rank);
  const size_t peer = (size_t)hk_multicast_place(&m->team, need->peer);
  const hk_multicast_layout l = hk_multicast_layout_of(m);
  const size_t data = hk_multicast_data(m, channel), lines = hk_multicast_lines(m, channel);
  char *own = m->own[me].base, *all = m->all[me].base;
  char *mine = own + channel * l.given, *theirs = all + channel * l.given; /* signals: read here, written there */
  const bool sends = hk_link_sends((hk_link_kind)need->kind);
  const size_t adder = need->kind == HK_LINK_SEND ? peer : need->kind == HK_LINK_RECV ? me : peer;
  const size_t from = sends ? me : peer;
  char *word = (sends ? theirs : mine) + l.word + (adder * n + from) * m->nslots * HK_MULTICAST_WORD;
  const bool sums = need->kind == HK_LINK_MCAST_SEND || need->kind == HK_LINK_MCAST_RECV;
  const size_t slots = data + (sums ? l.sums : l.given) + adder * m->nslots * m->slot_bytes;
  /* The heads of the readers of one rank's sums follow each other, without that rank's own. */
  const size_t place = me < adder ? me : me - 1;
  char *head = (sends ? mine : theirs) +
               (sums ? l.reads + (adder * n + (sends ? 0 : place)) * LINE : l.adds + adder * LINE);
  hk_gpu_link k = {.done = (uint64_t *)(void *)(mine + ((size_t)need->kind * n + peer) * LINE),
                   .head = (uint64_t *)(void *)head,
                   .word = (uint64_t *)(void *)word,
                   .data = own + slots,
                   .slot_bytes = (uint32_t)m->slot_bytes,
                   .nslots = m->nslots,
                   .peer = need->peer,
                   .sends = sends,
                   .multi = HK_GPU_MULTI_SIGNAL};
  if (need->kind == HK_LINK_RECV) {
    k.own = own + slots;
    k.data = all + slots;
    if (!first) k.head = NULL; /* all senders read one head, which the first link stores */
  } else if (need->kind == HK_LINK_MCAST_SEND) {
    k.data = all + slots;
    k.multi |= HK_GPU_MULTI_DATA;
    k.others = (uint32_t)n - 2;
  }
  if (sums && lines) k.lines = (sends ? all : own) + lines + adder * m->nslots * HK_GPU_LL_LINES(HK_GPU_LL_MAX);
  return k;
}

bool hk_gpu_uses_switch(const hk_program *p) { return p->traits.switch_span > 0; }

unsigned hk_gpu_most_channels(const struct ncclComm *c, const hk_program *p, unsigned span) {
  unsigned most = hk_gpu_of(c)->blocks / (p->nlanes > span ? p->nlanes : span);
  if (!hk_gpu_uses_switch(p)) return most;
  const unsigned in_switch = hk_gpu_of(c)->group->multicast->channels / p->traits.switch_span;
  return most < in_switch ? most : in_switch;
}

size_t hk_gpu_slot_bytes(const struct ncclComm *c, const hk_program *p, size_t bytes) {
  return hk_gpu_uses_switch(p) ? hk_gpu_of(c)->group->multicast->slot_bytes : bytes;
}

bool hk_gpu_switch_reduces(const hk_call *call) {
  hk_dtype type = (hk_dtype)call->dtype;
  hk_redop op = hk_call_op(call);
  if (op == HK_PROD) return false;
  switch (type) {
    case HK_F16:
    case HK_BF16:
    case HK_F32:
    case HK_F64: return op != HK_MAX && op != HK_MIN; /* max and min in a switch would lose NaNs */
    case HK_I32:
    case HK_U32:
    case HK_I64:
    case HK_U64: return true;
    default: return false;
  }
}

/* The first ranks of this rank's host, as many as fit. why: the reason against their multicast memory; empty: none. */
static void multicast_find_team(ncclComm_t c, const struct hk_facts *facts, hk_multicast_team *t, char *why,
                                size_t bytes) {
  const int ranks = hk_wire_host_ranks(c, c->rank), first = hk_wire_host_ranks(c, 0);
  why[0] = 0;
  *t = (hk_multicast_team){.n = 0};
  if (ranks < 2 || ranks != first)
    snprintf(why, bytes, "its host has %d ranks and rank 0's %d, not equally many and at least two", ranks, first);
  for (int r = 0; r < c->nranks; r++) {
    if (!hk_wire_near(c, r)) continue;
    for (int k = 0; k < r && !why[0]; k++)
      if (hk_wire_near(c, k) && hk_gpu_fact_of(facts, k)->id == hk_gpu_fact_of(facts, r)->id)
        snprintf(why, bytes, "ranks %d and %d share a GPU", k, r);
    if (t->n < HK_MULTICAST_RANKS) t->rank[t->n++] = r;
    t->processes = t->processes || hk_gpu_is_remote(c, r);
  }
  if (!why[0] && t->processes && !hk_gpu_by_file(hk_gpu_of(c)->links))
    snprintf(why, bytes, "processes cannot pass each other file descriptors of GPU memory");
}

/* The same for all ranks, from facts that all ranks know. */
static void multicast_look_against(ncclComm_t c, const struct hk_facts *facts, int use, char *why, size_t bytes) {
  why[0] = 0;
  for (int r = 0; r < c->nranks && !why[0]; r++)
    if (!(hk_gpu_fact_of(facts, r)->multicast & use))
      snprintf(why, bytes, "the GPU of rank %d has no multicast, or NCCL_NVLS_ENABLE is 0 or nvlsHostMode forbids it",
               r);
}

void hk_gpu_multicast_end(hk_gpu *g) {
  if (g->in_switch) hk_multicast_leave(g->group->multicast);
}

hk_status hk_gpu_multicast_join(ncclComm_t c, const struct hk_facts *facts) {
  hk_gpu *g = hk_gpu_of(c);
  hk_multicast_team team;
  char why[120], here[120];
  if (c->nranks < 2) return HK_OK;
  multicast_find_team(c, facts, &team, here, sizeof here);
  const int ranks = hk_wire_host_ranks(c, c->rank);
  const bool one_host = ranks == c->nranks;
  multicast_look_against(c, facts, HK_GPU_MULTICAST_WINDOWS, why, sizeof why);
  g->windows->multimem = one_host && !why[0] && !here[0];
  multicast_look_against(c, facts, HK_GPU_MULTICAST_SUMS, why, sizeof why);
  if (!here[0] && ranks > HK_MULTICAST_RANKS)
    snprintf(here, sizeof here, "%d ranks are more than %d", ranks, HK_MULTICAST_RANKS);
  if (one_host && !why[0]) snprintf(why, sizeof why, "%s", here); /* all ranks know it */
  if (why[0]) {
    /* On a GPU with multicast the loss is worth an INIT message. */
    HK_INFO(g->device->limits.multicast ? HK_SUB_INIT | HK_SUB_NVLS : HK_SUB_NVLS,
            "rank %d: no sums in the switch (NVLS): %s", c->rank, why);
    return HK_OK;
  }
  return hk_multicast_join(g->links->env, g->group->multicast, here[0] ? NULL : &team, here, g->blocks, &g->in_switch);
}
