/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Joins the channels that each host found for itself into channels of all ranks. At init every rank publishes one
 * hk_join_fact of fixed size. All later decisions are a pure function of all facts, so all ranks decide alike, also if
 * hosts differ: eight NICs here, four there. A "host" is the ranks that share one topology: for an NVL72 the rack.
 *
 *   - There are as many channels as the host with the fewest has.
 *   - For each channel a host contributes one of its own channels: one on the same rail if any is left, else the
 *     next one.
 *   - Rings visit hosts in the order of their lowest ranks, and a host's ranks in the order of its channel. Trees are
 *     chains inside hosts, whose heads form a binary tree. Every second channel uses another tree, so that no host has
 *     children in both.
 *
 * It is no error if ranks of one host found different channels (containers that see different parts of it). The host's
 * ranks then keep their own order, and the result says so.
 */
#pragma once
#include "search.h"

struct hk_cluster;    /* topo.h */
struct hk_path_rules; /* paths.h */
struct hk_placement;  /* topo.h */
struct hk_topo;

enum { HK_PATTERNS = HK_PATTERN_STAR + 1, HK_JOIN_RANKS = (1 << 19) - 1 };

/* What one rank knows about one pattern. */
typedef struct hk_join_part {
  uint64_t hash;                   /* of its host's channels */
  float intra_gbps, inter_gbps;    /* of one channel */
  uint8_t intra_cls, inter_cls;    /* hk_path_class */
  uint8_t nchannels;               /* 0: this pattern is not possible on the host */
  uint8_t place[HK_CHANNEL_LIMIT]; /* this rank's position in the channel's order */
  int8_t rail[HK_CHANNEL_LIMIT];   /* of the NET by which the channel enters the host; -1: none or unknown */
} hk_join_part;

typedef struct hk_join_fact {
  uint64_t host; /* equal for the ranks that share a topology; any value */
  uint64_t topo; /* hk_topo.hash */
  uint16_t size; /* ranks of the host that the search knew; 0: this rank has no channels */
  hk_join_part part[HK_PATTERNS];
} hk_join_fact;

/* `channels` are the host's by pattern, entries may be NULL. `local` is this rank's position among the host's ranks, in
 * the order in which the search got their nodes: rising ranks. All bytes are set. */
void hk_join_fill(hk_join_fact *out, uint64_t host, const struct hk_topo *t,
                  const hk_channels *const channels[HK_PATTERNS], int local);

typedef struct hk_joined {
  int nranks, nhosts, nchannels;
  uint8_t pattern;              /* hk_pattern */
  uint8_t intra_cls, inter_cls; /* the worst of any host */
  float intra_gbps, inter_gbps; /* of one channel, on the slowest host; 0: unknown */
  int32_t *host;                /* [nranks] numbered in the order of their lowest ranks */
  /* [nchannels][nranks] rings: the rank of each position; trees and stars: host after host, heads first. */
  int32_t *order;
  int32_t *up;       /* trees: [nchannels][nranks] each rank's parent, -1: none; NULL for others */
  int split_host;    /* a host whose ranks saw different machines, -1: none */
  int split_rank[2]; /* and two of these ranks */
  uint64_t hash;     /* of all facts and the result: ranks with equal hashes decide alike */
} hk_joined;

/* HK_ERR_ARGUMENT: no ranks, or more than HK_JOIN_RANKS. */
hk_status hk_join(hk_joined **out, hk_pattern pattern, const hk_join_fact *facts, int nranks);
void hk_joined_free(hk_joined *j);

/* The same for a described cluster: each host has the channels that its ranks would find. `what` gives pattern and
 * limits (nodes, nranks and network are set here). The ranks of a host are neighbours in `placements`. */
hk_status hk_join_cluster(hk_joined **out, const struct hk_cluster *c, const struct hk_placement *placements,
                          int nranks, const hk_search *what, const struct hk_path_rules *rules);
