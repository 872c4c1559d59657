/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of all ranks' links, and who receives from whom (summary.h). */
#include <stdlib.h>
#include "../base/array.h"
#include "receivers.h"
#include "summary_run.h"

static hk_status summary_links_alone(const hk_summary_run *x, int rank, uint32_t link) {
  return HK_FAIL(HK_ERR_INTERNAL, "%s: link %u of rank %d has no other end: hocket verify says more",
                 x->programs[rank]->algorithm, link, rank);
}

static hk_link_kind summary_links_kind(const hk_link_need *l) { return (hk_link_kind)l->kind; }

/* The rank's link of this kind on the channel, whatever peer it names; UINT32_MAX: none. */
static uint32_t summary_links_on_channel(const hk_program *p, hk_link_kind kind, unsigned channel) {
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++)
    if (l[k].kind == kind && l[k].channel == channel) return k;
  return UINT32_MAX;
}

typedef struct tie_table {
  hk_receivers receivers;
  uint32_t *senders; /* [nranks * channels] of one rank: 1 + its link to a peer on a channel; multicast: to itself */
  unsigned channels;
} tie_table;

static hk_status summary_links_prepare(const hk_summary_run *x, tie_table *t) {
  for (int r = 0; r < x->period; r++)
    if (x->programs[r]->traits.span > t->channels) t->channels = x->programs[r]->traits.span;
  t->senders = calloc((size_t)x->nranks * t->channels, sizeof *t->senders);
  return t->senders ? hk_receivers_sort(&t->receivers, x->programs, x->period) : hk_summary_memory(x->nranks);
}

/* Enters the rank's sending links in the table, or removes them. */
static void summary_links_enter(const hk_summary_run *x, tie_table *t, int sender, bool enter) {
  const hk_link_need *l = hk_program_links(x->programs[sender]);
  for (uint32_t k = 0; k < x->programs[sender]->nlinks; k++)
    if (hk_link_sends(summary_links_kind(&l[k])))
      t->senders[(size_t)l[k].peer * t->channels + l[k].channel] = enter ? k + 1 : 0;
}

/* The sending end of receiver number i of the table, among the sender's; NULL: there is none. A receiver whose peer is
 * in another period means the rank with the peer's place in the first one. That rank knows the receiver by a number
 * that is shifted or flipped alike. */
static hk_summary_end *summary_links_sender(const hk_summary_run *x, const tie_table *t, int sender, uint32_t i) {
  const hk_receiver *r = &t->receivers.at[i];
  const int rank = r->rank;
  const hk_link_need *l = &hk_program_links(x->programs[rank])[r->link];
  const int named = l->kind == HK_LINK_MCAST_RECV ? sender
                    : x->kind == HK_MAP_FLIP      ? rank ^ (int)l->peer ^ sender
                                                  : (rank - (l->peer - sender) + x->nranks) % x->nranks;
  const uint32_t link = t->senders[(size_t)named * t->channels + l->channel];
  if (!link || hk_program_links(x->programs[sender])[link - 1].kind != hk_link_other_end(summary_links_kind(l)))
    return NULL;
  return &x->ends[x->first_end[sender] + link - 1];
}

/* Gives each sending end of the rank its receivers. */
static hk_status summary_links_receivers(hk_summary_run *x, tie_table *t, int sender) {
  const hk_receiver *all = t->receivers.at;
  const uint32_t first = t->receivers.first[sender], last = t->receivers.first[sender + 1];
  uint32_t at = x->nreceivers;
  summary_links_enter(x, t, sender, true);
  for (uint32_t i = first; i < last; i++) {
    hk_summary_end *e = summary_links_sender(x, t, sender, i);
    if (!e) return summary_links_alone(x, all[i].rank, all[i].link);
    e->n++;
  }
  for (uint32_t k = x->first_end[sender]; k < x->first_end[sender + 1]; k++) {
    x->ends[k].first = at;
    at += x->ends[k].n;
    x->ends[k].n = 0;
  }
  for (uint32_t i = first; i < last; i++) {
    hk_summary_end *e = summary_links_sender(x, t, sender, i);
    x->receivers[e->first + e->n++] = x->first_end[all[i].rank] + all[i].link;
  }
  x->nreceivers = at;
  summary_links_enter(x, t, sender, false);
  return HK_OK;
}

/* Goes round the circle of ranks from `rank`, which is its lowest, and collects their receiving ends. */
static hk_status summary_links_group(hk_summary_run *x, int rank, uint32_t link) {
  const hk_link_need *first = &hk_program_links(x->programs[rank])[link];
  if (!HK_RESERVE(x->groups, x->groups_capacity, x->ngroups + 1)) return hk_summary_memory(x->nranks);
  hk_summary_group *g = &x->groups[x->ngroups++];
  *g = (hk_summary_group){.first = x->nreceivers, .kind = first->kind};
  int at = rank;
  do {
    const hk_program *p = x->programs[at];
    uint32_t send = summary_links_on_channel(p, summary_links_kind(first), first->channel);
    uint32_t receive = summary_links_on_channel(p, hk_link_other_end(summary_links_kind(first)), first->channel);
    if (send == UINT32_MAX || receive == UINT32_MAX || g->n >= (uint32_t)x->nranks)
      return summary_links_alone(x, rank, link);
    if (!HK_RESERVE(x->receivers, x->receivers_capacity, x->nreceivers + 1)) return hk_summary_memory(x->nranks);
    x->receivers[x->nreceivers++] = x->first_end[at] + receive;
    x->ends[x->first_end[at] + send].group = x->ngroups;
    if (x->host && x->host[at] != x->host[rank]) g->reach = HK_BETWEEN;
    g->n++;
    at = hk_program_links(p)[send].peer;
  } while (at != rank);
  return HK_OK;
}

static void summary_links_ends(hk_summary_run *x, int rank) {
  const hk_program *p = x->programs[rank];
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    x->ends[x->first_end[rank] + k] =
        (hk_summary_end){.thread = x->first_thread[rank] + l->lane,
                         .rank = (uint32_t)rank,
                         .peer = l->peer,
                         .own = l->peer == (uint32_t)rank,
                         .reach = x->host && x->host[rank] != x->host[l->peer] ? HK_BETWEEN : HK_INSIDE};
    hk_summary_end *e = &x->ends[x->first_end[rank] + k];
    e->crosses = e->reach == HK_BETWEEN && x->local[rank] != x->local[l->peer];
  }
}

static hk_status summary_links_groups(hk_summary_run *x, int rank) {
  const hk_program *p = x->programs[rank];
  for (uint32_t k = 0; p->traits.in_groups && k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    if (hk_link_in_group(summary_links_kind(l)) && hk_link_sends(summary_links_kind(l)) &&
        !x->ends[x->first_end[rank] + k].group)
      HK_OR_RETURN(summary_links_group(x, rank, k));
  }
  return HK_OK;
}

/* Gives each receiving end room for the slots that its lane takes. */
static hk_status summary_links_slots(hk_summary_run *x) {
  const uint32_t n = x->first_end[x->period];
  size_t all = 0;
  for (int r = 0; r < x->period; r++) {
    const hk_program *p = x->programs[r];
    hk_scan s = {.end = p->ninstrs};
    for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
      const hk_operand *o = hk_instr_operands(p, i) + i->ndst;
      for (const hk_operand *end = o + i->nsrc; o < end; o++) {
        const bool steps = o->flags & HK_OPERAND_STEP;
        for (uint32_t j = 0; o->space == HK_LINK && j < (steps ? s.times : 1); j++)
          x->ends[x->first_end[r] + o->link + j].capacity += HK_SUMMARY_WAVES * (steps ? 1 : s.times);
      }
    }
  }
  for (uint32_t k = 0; k < n; k++) all += x->ends[k].capacity;
  x->slots_of_all = malloc((all + 1) * sizeof *x->slots_of_all);
  x->busy_of_all = malloc((all + 1) * sizeof *x->busy_of_all);
  if (!x->slots_of_all || !x->busy_of_all) return hk_summary_memory(x->nranks);
  hk_chain_key *at = x->slots_of_all;
  for (uint32_t k = 0; k < n; at += x->ends[k++].capacity) x->ends[k].slots = at;
  return HK_OK;
}

hk_status hk_summary_tie(hk_summary_run *x) {
  tie_table t = {.channels = 1};
  hk_status rc;
  for (int r = 0; r < x->period; r++) summary_links_ends(x, r);
  HK_TRY(summary_links_prepare(x, &t), out);
  if (!HK_RESERVE(x->receivers, x->receivers_capacity, t.receivers.first[x->period] + 1))
    HK_GIVE_UP(hk_summary_memory(x->nranks), out);
  for (int r = 0; r < x->period; r++) HK_TRY(summary_links_receivers(x, &t, r), out);
  for (int r = 0; r < x->period; r++) HK_TRY(summary_links_groups(x, r), out);
  rc = summary_links_slots(x);
out:
  hk_receivers_free(&t.receivers);
  free(t.senders);
  return rc;
}
