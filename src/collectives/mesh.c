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

void hk_mesh_reduce(hk_builder *b, const hk_build *w, const hk_operand *dst, unsigned ndst, hk_link_kind kind,
                    unsigned block, hk_operand in) {
  hk_operand src[HK_MESH_SWITCH], sum = hk_scratch(0);
  unsigned k = 0, fan = hk_builder_in_switch(b) ? HK_MESH_SWITCH : HK_MESH_FAN;
  for (int r = 0; r < w->nranks; r++) {
    if (k == fan) {
      hk_build_move(b, 0, &sum, 1, src, k);
      src[0] = sum;
      k = 1;
    }
    if (r == w->rank)
      src[k++] = in;
    else
      src[k++] = kind == HK_LINK_RECV ? hk_recv_from(b, r, block, 0) : hk_mcast_from(b, r, block, 0);
  }
  hk_build_move(b, HK_INSTR_FINAL, dst, ndst, src, k);
}

void hk_mesh_send_all(hk_builder *b, const hk_build *w, unsigned flags, unsigned block, hk_operand from,
                      const hk_operand *last) {
  hk_operand dst[HK_MESH_FAN];
  unsigned k = 0;
  for (int j = 1; j < w->nranks; j++) {
    if (k == HK_MESH_FAN - 1) {
      hk_build_move(b, flags, dst, k, &from, 1);
      k = 0;
    }
    dst[k++] = hk_send_to(b, hk_shift(w->rank, j, w->nranks), block, 0);
  }
  if (last) dst[k++] = *last;
  hk_build_move(b, flags, dst, k, &from, 1);
}
