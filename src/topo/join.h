/* SPDX-License-Identifier: Apache-2.0 */
/**
 * From the channels that each host found for itself to those of all ranks.  At init every rank tells one hk_join_fact of
 * fixed size; whatever is decided afterwards is a pure function of all facts, so that all ranks decide alike, also where hosts
 * differ: eight NICs here, four there.  A "host" is what shares one topology: for an NVL72 the rack.
 *
 *   - As many channels as the host with the fewest has.
 *   - A host gives a channel of its own that uses the same rail, where it has one left, else the next one.
 *   - Rings visit hosts in the order of their lowest ranks, and a host's ranks in the order of its channel.  Trees are chains
 *     inside hosts, whose heads form a binary tree, in every second channel another one: no host has children in both.
 *
 * Ranks of one host that found different channels (containers that see different parts of it) are not an error: the host's
 * ranks then go in their own order, and the result says so.
 */
#ifndef HK_TOPO_JOIN_H
#define HK_TOPO_JOIN_H
#include "search.h"

enum { HK_PATTERNS = HK_PATTERN_STAR + 1 };

/* What one rank knows of one pattern. */
typedef struct hk_join_part {
  uint64_t hash;                   /* of its host's channels */
  float intra_gbps, inter_gbps;    /* of one channel */
  uint8_t intra_cls, inter_cls;    /* hk_path_class */
  uint8_t nchannels;               /* 0: this pattern is not possible on the host */
  uint8_t place[HK_CHANNEL_LIMIT]; /* of this rank in the channel's order */
  int8_t rail[HK_CHANNEL_LIMIT];   /* of the NET by which the channel enters the host; -1: none or unknown */
} hk_join_part;

typedef struct hk_join_fact {
  uint64_t host; /* equal for the ranks that share a topology; any value */
  uint64_t topo; /* hk_topo.hash */
  uint16_t size; /* ranks of the host that the search knew; 0: this rank has no channels to tell */
  hk_join_part part[HK_PATTERNS];
} hk_join_fact;

/* `channels` are the host's by pattern, entries may be NULL; `local` is this rank's place among the host's ranks, in the order
 * in which the search got their nodes: rising ranks.  All bytes are set. */
void hk_join_tell(hk_join_fact *out, uint64_t host, const hk_topo *t, const hk_channels *const channels[HK_PATTERNS],
                  int local);

typedef struct hk_joined {
  int nranks, nhosts, nchannels;
  uint8_t pattern;              /* hk_pattern */
  uint8_t intra_cls, inter_cls; /* the worst of any host */
  float intra_gbps, inter_gbps; /* of one channel, on the slowest host; 0: unknown */
  uint16_t *host;               /* [nranks] numbered in the order of their lowest ranks */
  /* [nchannels][nranks] rings: each place's rank; trees and stars: host after host, heads first. */
  uint16_t *order;
  int32_t *up;       /* trees: [nchannels][nranks] each rank's parent, -1: none; NULL for others */
  int split_host;    /* a host whose ranks disagree on what they see, -1: none */
  int split_rank[2]; /* and two of them */
  uint64_t hash;     /* of all facts and the result: ranks with equal hashes decide alike */
} hk_joined;

/* HK_ERR_ARGUMENT: no ranks, or more than 65535. */
hk_status hk_join(hk_joined **out, hk_pattern pattern, const hk_join_fact *facts, int nranks);
void hk_joined_free(hk_joined *j);

/* The same of a cluster that is only described: each host's channels as its ranks would find them.  `what` gives pattern and
 * wishes (nodes, nranks and network are set here); the ranks of a host are neighbours in `seats`. */
hk_status hk_join_cluster(hk_joined **out, const hk_cluster *c, const hk_seat *seats, int nranks, const hk_search *what,
                          const hk_path_rules *rules);
#endif
