/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of all ranks' links, and who receives from whom (summary.h). */
#include <stdlib.h>
#include "../base/array.h"
#include "summary_run.h"

static hk_status tie_memory(const hk_summary_run *x) {
  return HK_FAIL(HK_ERR_SYSTEM, "out of memory for a summary of %d ranks", x->nranks);
}

static hk_status tie_alone(const hk_summary_run *x, int rank, uint32_t link) {
  return HK_FAIL(HK_ERR_INTERNAL, "%s: link %u of rank %d has no other end: hocket verify says more",
                 x->programs[rank]->algorithm, link, rank);
}

static hk_link_kind tie_kind(const hk_link_need *l) { return (hk_link_kind)l->kind; }

/* The rank's link of this kind on the channel, whatever peer it names; UINT32_MAX: none. */
static uint32_t tie_on_channel(const hk_program *p, hk_link_kind kind, unsigned channel) {
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++)
    if (l[k].kind == kind && l[k].channel == channel) return k;
  return UINT32_MAX;
}

/* The sending end of a receiving one that is in no group. *near: where the search begins, and where the next one
 * should, because the links of two ranks are in similar orders. */
static uint32_t tie_sender(const hk_summary_run *x, int rank, const hk_link_need *l, uint32_t *near) {
  bool multicast = l->kind == HK_LINK_MCAST_RECV;
  uint32_t link =
      hk_link_find(x->programs[l->peer], hk_link_other_end(tie_kind(l)), multicast ? l->peer : rank, l->channel, *near);
  if (link == UINT32_MAX) return link;
  *near = link + 1;
  return x->first_end[l->peer] + link;
}

/* Counts the receivers of each sending end (`fill` false), or enters them in its list. */
static hk_status tie_receivers(hk_summary_run *x, int rank, bool fill) {
  const hk_program *p = x->programs[rank];
  uint32_t near = 0;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    if (hk_link_sends(tie_kind(l)) || hk_link_in_group(tie_kind(l))) continue;
    uint32_t sender = tie_sender(x, rank, l, &near);
    if (sender == UINT32_MAX) return tie_alone(x, rank, k);
    hk_summary_end *e = &x->ends[sender];
    if (fill) x->receivers[e->first + e->n] = x->first_end[rank] + k;
    e->n++;
  }
  return HK_OK;
}

/* Goes round the circle of ranks from `rank`, which is its lowest, and collects their receiving ends. */
static hk_status tie_group(hk_summary_run *x, int rank, uint32_t link) {
  const hk_link_need *first = &hk_program_links(x->programs[rank])[link];
  if (!HK_RESERVE(x->groups, x->groups_room, x->ngroups + 1)) return tie_memory(x);
  hk_summary_group *g = &x->groups[x->ngroups++];
  *g = (hk_summary_group){.first = x->nreceivers, .kind = first->kind};
  int at = rank;
  do {
    const hk_program *p = x->programs[at];
    uint32_t send = tie_on_channel(p, tie_kind(first), first->channel);
    uint32_t receive = tie_on_channel(p, hk_link_other_end(tie_kind(first)), first->channel);
    if (send == UINT32_MAX || receive == UINT32_MAX || g->n >= (uint32_t)x->nranks) return tie_alone(x, rank, link);
    if (!HK_RESERVE(x->receivers, x->receivers_room, x->nreceivers + 1)) return tie_memory(x);
    x->receivers[x->nreceivers++] = x->first_end[at] + receive;
    x->ends[x->first_end[at] + send].group = x->ngroups;
    if (x->host && x->host[at] != x->host[rank]) g->reach = HK_BETWEEN;
    g->n++;
    at = hk_program_links(p)[send].peer;
  } while (at != rank);
  return HK_OK;
}

static void tie_ends(hk_summary_run *x, int rank) {
  const hk_program *p = x->programs[rank];
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    x->ends[x->first_end[rank] + k] =
        (hk_summary_end){.thread = x->first_thread[rank] + l->lane,
                         .rank = (uint16_t)rank,
                         .reach = x->host && x->host[rank] != x->host[l->peer] ? HK_BETWEEN : HK_INSIDE};
  }
}

hk_status hk_summary_tie(hk_summary_run *x) {
  for (int r = 0; r < x->nranks; r++) tie_ends(x, r);
  for (int r = 0; r < x->nranks; r++) HK_OR_RETURN(tie_receivers(x, r, false));
  for (uint32_t k = 0; k < x->first_end[x->nranks]; k++) {
    x->ends[k].first = x->nreceivers;
    x->nreceivers += x->ends[k].n;
    x->ends[k].n = 0;
  }
  if (!HK_RESERVE(x->receivers, x->receivers_room, x->nreceivers)) return tie_memory(x);
  for (int r = 0; r < x->nranks; r++) HK_OR_RETURN(tie_receivers(x, r, true));
  for (int r = 0; r < x->nranks; r++) {
    const hk_program *p = x->programs[r];
    for (uint32_t k = 0; p->traits.in_groups && k < p->nlinks; k++) {
      const hk_link_need *l = &hk_program_links(p)[k];
      if (hk_link_in_group(tie_kind(l)) && hk_link_sends(tie_kind(l)) && !x->ends[x->first_end[r] + k].group)
        HK_OR_RETURN(tie_group(x, r, k));
    }
  }
  return HK_OK;
}
