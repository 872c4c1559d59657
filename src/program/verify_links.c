/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs the link needs of all programs: a sending link of one rank with the receiving link of its peer on the same
 * channel (with those of all other ranks for multicast), and lays the FIFOs out. The number of messages of a link in
 * one wave follows from the program alone, so every array has its exact size. */
#include <stdlib.h>
#include "receivers.h"
#include "verify_internal.h"

typedef struct pairing {
  unsigned channels;    /* one more than the largest of any program */
  uint32_t *by_peer;    /* scratch: [peer * channels + channel] of one rank's sending links, or HK_NOWHERE */
  uint32_t *multicasts; /* the same by channel, for multicast */
  hk_receivers receivers;
} pairing;

static int verify_links_first_use(const hk_program *p, uint32_t link) {
  hk_scan s = {.end = p->ninstrs};
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    for (unsigned n = (unsigned)i->ndst + i->nsrc; n; n--, o++) {
      uint32_t reach = o->flags & HK_OPERAND_STEP ? s.times : 1;
      if (o->space == HK_LINK && link >= o->link && link - o->link < reach) return (int)s.at;
    }
  }
  return -1;
}

static hk_status verify_links_link_fault(hk_verifier *v, int rank, uint32_t link, const char *text) {
  const hk_program *p = v->programs[rank];
  const hk_link_need *l = &hk_program_links(p)[link];
  static const char *const words[] = {"sends to",
                                      "receives from",
                                      "multicasts as",
                                      "receives multicasts of",
                                      "adds to the sum with",
                                      "receives the sum with",
                                      "gathers with",
                                      "receives what is gathered with",
                                      "scatters sums with",
                                      "receives the scattered sum with"};
  return hk_fault(v, rank, l->lane, verify_links_first_use(p, link), "link %u %s rank %u on channel %u: %s", link,
                  words[l->kind], l->peer, l->channel, text);
}

/* Counts every link's messages in one wave. */
static void verify_links_count_uses(const hk_program *p, uint32_t *uses) {
  hk_scan s = {.end = p->ninstrs};
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    for (unsigned n = (unsigned)i->ndst + i->nsrc; n; n--, o++) {
      if (o->space != HK_LINK) continue;
      bool steps = o->flags & HK_OPERAND_STEP;
      for (uint32_t j = 0; j < (steps ? s.times : 1); j++)
        if (__builtin_add_overflow(uses[o->link + j], steps ? 1 : s.times, &uses[o->link + j]))
          uses[o->link + j] = UINT32_MAX;
    }
  }
}

/* Makes the channels of rank r's sending links and enters them in the tables. */
static hk_status verify_links_open_channels(hk_verifier *v, pairing *s, int r) {
  const hk_program *p = v->programs[r];
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    if (!hk_link_sends((hk_link_kind)l[k].kind)) continue;
    bool multicast = l[k].kind == HK_LINK_MCAST_SEND;
    uint32_t *entry = multicast ? &s->multicasts[l[k].channel]
                                : &s->by_peer[(size_t)l[k].peer * s->channels + l[k].channel];
    if (*entry != HK_NOWHERE)
      return verify_links_link_fault(v, r, k, "the rank has a second link of this kind to this peer on the channel");
    *entry = v->nchannels;
    v->channels[v->nchannels] =
        (hk_channel){.thread = v->first_thread[r] + l[k].lane,
                     .first_reader = v->nreaders,
                     .nreaders = 0,
                     .reverse = HK_NOWHERE,
                     .next = hk_link_in_group((hk_link_kind)l[k].kind) ? v->nchannels : HK_NOWHERE,
                     .kind = l[k].kind,
                     .in_each = 1,
                     .out_each = 1,
                     .capacity = v->uses[v->first_end[r] + k]};
    v->ends[v->first_end[r] + k] = v->nchannels++;
    v->nreaders += multicast ? (uint32_t)v->nranks - 1 : 1; /* its readers' places */
  }
  return HK_OK;
}

static hk_status verify_links_join_readers(hk_verifier *v, pairing *s, int sender) {
  for (uint32_t k = s->receivers.first[sender]; k < s->receivers.first[sender + 1]; k++) {
    int r = s->receivers.at[k].rank;
    uint32_t link = s->receivers.at[k].link;
    const hk_link_need *l = &hk_program_links(v->programs[r])[link];
    bool multicast = l->kind == HK_LINK_MCAST_RECV;
    uint32_t c = multicast ? s->multicasts[l->channel] : s->by_peer[(size_t)r * s->channels + l->channel];
    if (c == HK_NOWHERE)
      return verify_links_link_fault(v, r, link, "that rank has no link which sends on this channel");
    if (multicast && !hk_is_near(v, sender, r))
      return verify_links_link_fault(v, r, link, "that rank is on another host, which a multicast does not reach");
    hk_channel *channel = &v->channels[c];
    if (l->kind != channel->kind + 1)
      return verify_links_link_fault(v, r, link,
                                     "one of the two ends is of a sum that the network makes, the other one is not");
    uint32_t at = channel->first_reader + channel->nreaders;
    uint32_t thread = v->first_thread[r] + l->lane;
    /* Receivers are in the order of ranks, so a second link of one rank follows its first. */
    if (channel->nreaders && v->readers[at - 1].thread >= v->first_thread[r])
      return verify_links_link_fault(v, r, link, "the rank has a second link of this kind to this peer on the channel");
    channel->nreaders++;
    v->readers[at] = (hk_reader){.channel = c, .thread = thread};
    v->ends[v->first_end[r] + link] = at;
  }
  return HK_OK;
}

/* Every channel of the sender has all its readers; then the tables are cleared. */
static hk_status verify_links_close_channels(hk_verifier *v, pairing *s, int r) {
  const hk_program *p = v->programs[r];
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    if (!hk_link_sends((hk_link_kind)l[k].kind)) continue;
    bool multicast = l[k].kind == HK_LINK_MCAST_SEND;
    const hk_channel *c = &v->channels[v->ends[v->first_end[r] + k]];
    if (!multicast && !c->nreaders)
      return verify_links_link_fault(v, r, k, "that rank has no link which receives on this channel");
    if (multicast && (int)c->nreaders + 1 != hk_ranks_near(v, r))
      return verify_links_link_fault(v, r, k, "not every other rank has a link which receives it on this channel");
    if (multicast)
      s->multicasts[l[k].channel] = HK_NOWHERE;
    else
      s->by_peer[(size_t)l[k].peer * s->channels + l[k].channel] = HK_NOWHERE;
  }
  return HK_OK;
}

/* The rank's only link of the kind on the channel, or -1. */
static int64_t verify_links_only_link(const hk_program *p, hk_link_kind kind, unsigned channel) {
  int64_t found = -1;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    if (hk_program_links(p)[k].kind != kind || hk_program_links(p)[k].channel != channel) continue;
    if (found >= 0) return -1;
    found = k;
  }
  return found;
}

/* Numbers the ranks of each group whose links move rounds, from the lowest on. */
static void verify_links_number_groups(hk_verifier *v) {
  for (uint32_t k = 0; k < v->nchannels; k++) {
    hk_channel *first = &v->channels[k], *c = first;
    uint32_t n = 0, number = 0;
    if (!hk_link_in_rounds((hk_link_kind)first->kind) || first->in_each > 1 || first->out_each > 1) continue;
    do {
      n++;
      c = &v->channels[c->next];
      if (v->threads[c->thread].rank < v->threads[first->thread].rank) first = c;
    } while (c != &v->channels[k]);
    c = first;
    do {
      *(c->kind == HK_LINK_GATHER_SEND ? &c->out_each : &c->in_each) = n;
      c->number = ++number % n;
      c = &v->channels[c->next];
    } while (c != first);
  }
}

/* Joins the channels of each sum that the network makes into a circle. Each rank has one of each end, so the circles
 * are closed. */
static hk_status verify_links_join_sums(hk_verifier *v) {
  for (int r = 0; r < v->nranks; r++) {
    const hk_program *p = v->programs[r];
    const hk_link_need *l = hk_program_links(p);
    for (uint32_t k = 0; k < p->nlinks; k++) {
      if (!hk_link_in_group((hk_link_kind)l[k].kind)) continue;
      hk_link_kind sends = (hk_link_kind)(l[k].kind - !hk_link_sends((hk_link_kind)l[k].kind));
      int64_t in = verify_links_only_link(p, (hk_link_kind)(sends + 1), l[k].channel),
              out = verify_links_only_link(p, sends, l[k].channel);
      if (in < 0 || out < 0)
        return verify_links_link_fault(v, r, k,
                                       "the rank must have one link of each of the two kinds of sums on the channel");
      const uint32_t *ends = v->ends + v->first_end[r];
      v->channels[v->readers[ends[in]].channel].next = ends[out];
      v->switch_adds = v->switch_adds || sends != HK_LINK_GATHER_SEND;
    }
  }
  verify_links_number_groups(v);
  return HK_OK;
}

/* Finds each channel's opposite: the sender's own reader of what its receiver sends on the same channel. */
static void verify_links_find_reverses(hk_verifier *v, pairing *s) {
  for (int r = 0; r < v->nranks; r++) {
    const hk_program *p = v->programs[r];
    const hk_link_need *l = hk_program_links(p);
    const uint32_t *ends = v->ends + v->first_end[r];
    for (uint32_t k = 0; k < p->nlinks; k++)
      if (l[k].kind == HK_LINK_RECV) s->by_peer[(size_t)l[k].peer * s->channels + l[k].channel] = ends[k];
    for (uint32_t k = 0; k < p->nlinks; k++)
      if (l[k].kind == HK_LINK_SEND)
        v->channels[ends[k]].reverse = s->by_peer[(size_t)l[k].peer * s->channels + l[k].channel];
    for (uint32_t k = 0; k < p->nlinks; k++)
      if (l[k].kind == HK_LINK_RECV) s->by_peer[(size_t)l[k].peer * s->channels + l[k].channel] = HK_NOWHERE;
  }
}

/* Memory for slots and for the times of every message. */
static hk_status verify_links_lay_out_fifos(hk_verifier *v) {
  size_t slots = 0, times = 0;
  bool multicast = false;
  uint64_t waves = v->options.waves;
  for (uint32_t k = 0; k < v->nchannels; k++) {
    hk_channel *c = &v->channels[k];
    uint64_t messages = waves * c->capacity;
    c->capacity = messages < v->options.slots ? (uint32_t)messages : v->options.slots;
    if (c->in_each > 1) c->capacity = c->in_each; /* the slots of a round are kept at one place */
    c->slot_at = slots;
    c->times_at = times;
    slots += c->capacity;
    c->made_at = slots;
    if (hk_link_in_rounds((hk_link_kind)c->kind)) slots += c->out_each;
    times += messages;
    multicast = multicast || c->nreaders != 1;
  }
  for (int r = 0; r < v->nranks; r++) {
    const hk_link_need *l = hk_program_links(v->programs[r]);
    for (uint32_t k = 0; k < v->programs[r]->nlinks; k++) {
      if (hk_link_sends((hk_link_kind)l[k].kind)) continue;
      v->readers[v->ends[v->first_end[r] + k]].times_at = times;
      times += waves * v->uses[v->first_end[r] + k];
    }
  }
  v->slots = calloc(slots + 1, sizeof *v->slots);
  v->times = malloc((times + 1) * sizeof *v->times);
  if (multicast) v->readers_left = calloc(slots + 1, sizeof *v->readers_left);
  return v->slots && v->times && (!multicast || v->readers_left) ? HK_OK : hk_fault_memory(v);
}

static hk_status verify_links_prepare(hk_verifier *v, pairing *s) {
  size_t links = 0, senders = 0, multicasts = 0;
  v->first_end = malloc(((size_t)v->nranks + 1) * sizeof *v->first_end);
  if (!v->first_end) return hk_fault_memory(v);
  for (int r = 0; r < v->nranks; r++) {
    const hk_program *p = v->programs[r];
    const hk_link_need *l = hk_program_links(p);
    v->first_end[r] = links;
    links += p->nlinks;
    for (uint32_t k = 0; k < p->nlinks; k++) {
      senders += hk_link_sends((hk_link_kind)l[k].kind) && l[k].kind != HK_LINK_MCAST_SEND;
      multicasts += l[k].kind == HK_LINK_MCAST_SEND;
      if (l[k].channel >= s->channels) s->channels = l[k].channel + 1u;
    }
  }
  size_t readers = senders + multicasts * (size_t)v->nranks;
  size_t table = (size_t)v->nranks * s->channels;
  v->ends = malloc((links + 1) * sizeof *v->ends);
  v->uses = calloc(links + 1, sizeof *v->uses);
  v->channels = malloc((senders + multicasts + 1) * sizeof *v->channels);
  v->readers = malloc((readers + 1) * sizeof *v->readers);
  s->by_peer = malloc((table + 1) * sizeof *s->by_peer);
  s->multicasts = malloc((s->channels + 1) * sizeof *s->multicasts);
  if (!v->ends || !v->uses || !v->channels || !v->readers || !s->by_peer || !s->multicasts) return hk_fault_memory(v);
  for (size_t k = 0; k < table; k++) s->by_peer[k] = HK_NOWHERE;
  for (unsigned k = 0; k < s->channels; k++) s->multicasts[k] = HK_NOWHERE;
  for (int r = 0; r < v->nranks; r++) verify_links_count_uses(v->programs[r], v->uses + v->first_end[r]);
  return hk_receivers_sort(&s->receivers, v->programs, v->nranks) == HK_OK ? HK_OK : hk_fault_memory(v);
}

hk_status hk_verify_links(hk_verifier *v) {
  pairing s = {0};
  hk_status rc;
  HK_TRY(verify_links_prepare(v, &s), out);
  for (int r = 0; r < v->nranks; r++) {
    HK_TRY(verify_links_open_channels(v, &s, r), out);
    HK_TRY(verify_links_join_readers(v, &s, r), out);
    HK_TRY(verify_links_close_channels(v, &s, r), out);
  }
  HK_TRY(verify_links_join_sums(v), out);
  verify_links_find_reverses(v, &s);
  rc = verify_links_lay_out_fifos(v);
out:
  free(s.by_peer);
  free(s.multicasts);
  hk_receivers_free(&s.receivers);
  return rc;
}
