/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of programs that treat a host's ranks and the equal ranks of all hosts (a rail) differently. */
#pragma once
#include "../program/builder.h"
#include "../program/layout.h"
#include "algorithm.h"
#include "pattern.h"

enum { HK_HOST_FAN = 255 }; /* the most ranks of a host that one instruction reads or writes */

/* The place of a rank: local number i among the `per` ranks of host h; `hosts`: the number of hosts. */
typedef struct hk_home {
  const hk_build *w;
  int h, i, hosts, per;
  bool in_switch; /* a switch adds up and copies inside the host */
} hk_home;

static inline hk_home hk_home_of(const hk_build *w) {
  int h = hk_layout_host_of(w->layout, w->rank);
  return (hk_home){.w = w,
                   .h = h,
                   .i = hk_layout_local_of(w->layout, w->rank),
                   .hosts = hk_layout_hosts(w->layout),
                   .per = hk_layout_size(w->layout, h, w->nranks)};
}
/* The fewest ranks of any host. */
static inline int hk_home_least(const hk_home *p) { return p->w->layout ? p->w->layout->least : p->per; }
/* The rank with this local number on this host. */
static inline int hk_home_local(const hk_home *p, int local) { return hk_layout_rank(p->w->layout, p->h, local); }
/* The rank with the same local number on the host `by` further. */
static inline int hk_home_rail(const hk_home *p, int by) {
  return hk_layout_rank(p->w->layout, hk_shift(p->h, by, p->hosts), p->i);
}

/* The rank `by` local numbers further on this host. */
static inline int hk_home_next(const hk_home *p, int by) { return hk_home_local(p, hk_shift(p->i, by, p->per)); }

/* The next instruction also sends the block to each other rank of the host, on the current channel. */
static inline void hk_home_send_all(hk_builder *b, const hk_home *p, unsigned block, int stride) {
  for (int j = 1; j < p->per; j++) hk_build_to(b, hk_send_to(b, hk_home_next(p, j), block, stride));
}

/* ---- sums of a host's contributions to a block, and results for all of the host ----
 * Without a switch, one instruction combines links inside the host with those to other hosts. A switch makes a sum by
 * an instruction of its own, which leaves it in scratch, and copies the result from the output. */

/* The next instruction also adds the host's contributions, which come on the channel. */
static inline void hk_home_add(hk_builder *b, const hk_home *p, unsigned channel, unsigned block, int stride) {
  hk_operand host[HK_HOST_FAN] = {hk_in(block, stride)};
  hk_build_channel(b, channel);
  for (int j = 1; j < p->per; j++) host[j] = hk_recv_from(b, hk_home_next(p, j), block, stride);
  if (!p->in_switch) {
    for (int j = 0; j < p->per; j++) hk_build_from(b, host[j]);
    return;
  }
  hk_build_in_switch(b, true);
  hk_build_move(b, 0, (hk_operand[]){hk_scratch(0, 0)}, 1, host, (unsigned)p->per);
  hk_build_in_switch(b, false);
  hk_build_from(b, hk_scratch(0, 0));
}
/* Ends the instruction, which also writes to the output and to the host's other ranks. */
static inline void hk_home_give(hk_builder *b, const hk_home *p, unsigned channel, unsigned flags, unsigned block,
                                int stride) {
  hk_build_to(b, hk_out(block, stride));
  hk_build_channel(b, channel);
  if (!p->in_switch) hk_home_send_all(b, p, block, stride);
  hk_build_instr(b, flags);
  if (!p->in_switch) return;
  hk_build_in_switch(b, true);
  hk_build_copy(b, hk_mcast(b, block, stride), hk_out(block, stride));
  hk_build_in_switch(b, false);
}
/* `deal`: the block to the rank of this host with the local number, which adds it up; else its result from there. */
static inline void hk_home_exchange(hk_builder *b, const hk_home *p, bool deal, int local, unsigned block, int stride) {
  const int rank = hk_home_local(p, local);
  hk_build_in_switch(b, p->in_switch);
  if (deal)
    hk_build_copy(b, hk_send_to(b, rank, block, stride), hk_in(block, stride));
  else
    hk_build_copy(b, hk_out(block, stride),
                  p->in_switch ? hk_mcast_from(b, rank, block, stride) : hk_recv_from(b, rank, block, stride));
  hk_build_in_switch(b, false);
}
/* The local number of the j-th rank with which a rank exchanges: all ranks together form a permutation. */
static inline int hk_home_turn(const hk_home *p, bool deal, int j) { return hk_shift(p->i, deal ? j : -j, p->per); }

/* Allreduce of hier.c and hiertree.c; nvls.c and nvlstree.c run them with a switch inside each host. */
void hk_build_hier(hk_builder *b, const hk_build *w, bool in_switch);
void hk_build_hiertree(hk_builder *b, const hk_build *w, bool in_switch);
/* Why they cannot run; in words that follow the algorithm's name. */
const char *hk_hier_cannot(const hk_team *team, hk_coll coll);
const char *hk_hier_switch_cannot(const hk_team *team);
