/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of programs in which every rank communicates with every other one (mesh.h). */
#include "mesh.h"

const char *hk_mesh_switch_cannot(const hk_team *team, int ranks) {
  if (ranks > HK_MESH_SWITCH) return "adds up at most 128 ranks in the switch";
  if (!team->in_switch) return "needs a switch that adds up (NVSwitch since Hopper)";
  return NULL;
}

hk_operand hk_mesh_walk(hk_builder *b, const hk_build *w, hk_link_kind kind, unsigned block, int stride) {
  unsigned first = 0;
  int direction = hk_link_sends(kind) ? 1 : -1;
  for (int j = 1; j < w->nranks; j++) {
    unsigned link = hk_build_link(b, kind, hk_shift(w->rank, direction * j, w->nranks));
    if (j == 1) first = link;
  }
  return (hk_operand){.space = HK_LINK, .flags = HK_OPERAND_STEP, .link = first, .block = block, .stride = stride};
}

void hk_mesh_deal(hk_builder *b, const hk_build *w) {
  const unsigned after = (unsigned)hk_shift(w->rank, 1, w->nranks);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_mesh_walk(b, w, HK_LINK_SEND, after, 1), hk_in(after, 1));
  hk_build_end_repeat(b);
}

void hk_mesh_collect(hk_builder *b, const hk_build *w, hk_link_kind kind) {
  const unsigned before = (unsigned)hk_shift(w->rank, -1, w->nranks);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_out(before, -1), hk_mesh_walk(b, w, kind, before, -1));
  hk_build_end_repeat(b);
}

void hk_mesh_reduce(hk_builder *b, const hk_build *w, hk_link_kind kind, unsigned block, hk_operand in) {
  hk_operand src[HK_MESH_SWITCH], sum = hk_scratch(0, 0);
  unsigned k = 0, fan = hk_builder_in_switch(b) ? HK_MESH_SWITCH : HK_MESH_FAN;
  for (int r = 0; r < w->nranks; r++) {
    if (k == fan) {
      hk_build_move(b, 0, &sum, 1, src, k);
      src[0] = sum;
      k = 1;
    }
    src[k++] = r == w->rank ? in : hk_link_operand(b, kind, r, block, 0);
  }
  for (unsigned i = 0; i < k; i++) hk_build_from(b, src[i]);
  hk_build_instr(b, HK_INSTR_FINAL);
}

/* The next instruction also sends the block to at most `most` ranks, from the one `first` positions further on. Returns
 * the position after the last. */
static int mesh_send_some(hk_builder *b, const hk_build *w, unsigned block, int first, int most) {
  int j = first;
  for (; j < w->nranks && j < first + most; j++)
    hk_build_to(b, hk_send_to(b, hk_shift(w->rank, j, w->nranks), block, 0));
  return j;
}

/* { links to all other ranks, *last } <- from. The last instruction writes `last` (may be NULL), so in place `last` and
 * `from` may be the same memory. */
static void mesh_send_all(hk_builder *b, const hk_build *w, hk_link_kind kind, unsigned flags, unsigned block,
                          hk_operand from, const hk_operand *last) {
  const bool multicast = kind == HK_LINK_MCAST_RECV;
  if (multicast) hk_build_to(b, hk_mcast(b, block, 0));
  int j = multicast ? w->nranks : mesh_send_some(b, w, block, 1, HK_MESH_FAN - 1);
  while (j < w->nranks) {
    hk_build_from(b, from);
    hk_build_instr(b, flags);
    j = mesh_send_some(b, w, block, j, HK_MESH_FAN - 1);
  }
  if (last) hk_build_to(b, *last);
  hk_build_from(b, from);
  hk_build_instr(b, flags);
}

/* ---- programs ---- */

/* The sends are copies: in place, the next instruction overwrites what was sent. */
void hk_mesh_one_shot(hk_builder *b, const hk_build *w, hk_link_kind kind) {
  hk_build_scratch(b, hk_mesh_scratch(b, w));
  hk_build_lane(b);
  mesh_send_all(b, w, kind, HK_INSTR_COPY, 0, hk_in(0, 0), NULL);
  hk_build_to(b, hk_out(0, 0));
  hk_mesh_reduce(b, w, kind, 0, hk_in(0, 0));
}

void hk_mesh_two_shot(hk_builder *b, const hk_build *w, hk_link_kind kind) {
  const bool multicast = kind == HK_LINK_MCAST_RECV;
  const unsigned mine = (unsigned)w->rank, sums = multicast ? 0 : 1; /* the channel of sums */
  hk_build_split(b, (unsigned)w->nranks);
  hk_build_scratch(b, hk_mesh_scratch(b, w));
  hk_build_lane(b);
  hk_mesh_deal(b, w);

  hk_build_lane(b);
  hk_build_channel(b, sums);
  if (multicast) hk_build_to(b, hk_mcast(b, mine, 0));
  hk_build_to(b, hk_out(mine, 0));
  int j = multicast ? w->nranks : mesh_send_some(b, w, mine, 1, HK_MESH_FAN - 1);
  hk_build_channel(b, 0);
  hk_mesh_reduce(b, w, HK_LINK_RECV, mine, hk_in(mine, 0));
  hk_build_channel(b, sums);
  while (j < w->nranks) {
    j = mesh_send_some(b, w, mine, j, HK_MESH_FAN);
    hk_build_from(b, hk_out(mine, 0));
    hk_build_instr(b, 0);
  }

  hk_build_lane(b);
  hk_build_channel(b, sums);
  hk_mesh_collect(b, w, kind);
}

void hk_mesh_reduce_scatter(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank;
  hk_build_scratch(b, hk_mesh_scratch(b, w));
  hk_build_lane(b);
  hk_mesh_deal(b, w);
  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_build_to(b, hk_out(0, 0));
  hk_mesh_reduce(b, w, HK_LINK_RECV, mine, hk_in(mine, 0));
}

/* Sending has a lane of its own, because it may be several waves ahead of the slowest reader. */
void hk_mesh_allgather(hk_builder *b, const hk_build *w, hk_link_kind kind) {
  const hk_operand own = hk_out((unsigned)w->rank, 0);
  hk_build_lane(b);
  mesh_send_all(b, w, kind, 0, (unsigned)w->rank, hk_in(0, 0), &own);
  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_collect(b, w, kind);
}

void hk_mesh_broadcast(hk_builder *b, const hk_build *w, hk_link_kind kind) {
  const hk_operand own = hk_out(0, 0);
  hk_build_lane(b);
  if (w->rank == w->root)
    mesh_send_all(b, w, kind, 0, 0, hk_in(0, 0), &own);
  else
    hk_build_copy(b, own, hk_link_operand(b, kind, w->root, 0, 0));
}
