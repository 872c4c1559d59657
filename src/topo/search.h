/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The search for channels. A channel is an order of a host's ranks (GPUs, or CPUs that have ranks). All channels
 * together must get the most bandwidth through their shared links, balanced over NICs and rails. Deterministic: a pure
 * function of its arguments, bounded by a number of steps and not by time. Ranks on one device follow each other in
 * every order.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_fabric; /* topo.h */
struct hk_paths;  /* paths.h */

typedef enum hk_pattern {
  HK_PATTERN_RING, /* in from a NET, through all ranks, out by a NET; without a network back to the first */
  HK_PATTERN_TREE, /* a chain whose head is nearest to the NET */
  /* every rank to an NVSwitch that reduces and multicasts (NVLS); the first in the order owns the part */
  HK_PATTERN_STAR
} hk_pattern;

enum {
  HK_CHANNEL_LIMIT = 64,
  HK_SEARCH_RANKS = 128,
  /* up to this number of devices the search backtracks; above, it always takes the nearest device */
  HK_SEARCH_EXACT = 16,
  HK_SEARCH_STEPS = 1000000 /* total tries of a hop; about 30 ns each */
};

typedef struct hk_channel_order {
  uint16_t *order;          /* [nranks] positions in the `nodes` given to the search */
  uint32_t net_in, net_out; /* node indices; UINT32_MAX: no network, or no NET known */
} hk_channel_order;

typedef struct hk_channels {
  uint8_t pattern;              /* hk_pattern */
  uint8_t intra_cls, inter_cls; /* the worst hk_path_class inside, and to the NETs */
  int nranks, nchannels;        /* no channels: the machine cannot do this pattern (stars without an NVSwitch) */
  /* GB/s of one channel while all are busy: inside the host, and to the NETs (0: no NETs). Trees and stars have this
   * rate up and, at the same time, down. */
  float intra_gbps, inter_gbps;
  float us;       /* latency of the worst hop inside */
  uint32_t steps; /* used by the search, of HK_SEARCH_STEPS */
  hk_channel_order *at;
  uint64_t hash;
} hk_channels;

/* NCCL_CROSS_NIC: may a ring leave the host by a different NIC than it enters by? */
typedef enum hk_cross_nic {
  HK_CROSS_NIC_NO,
  HK_CROSS_NIC_YES,
  HK_CROSS_NIC_BETTER /* if it gives more bandwidth */
} hk_cross_nic;

/* If leaf switches are rails, a ring that changes NICs crosses the spines, so it gains nothing. */
hk_cross_nic hk_cross_nic_on(const struct hk_fabric *f, hk_cross_nic asked);

typedef struct hk_search {
  hk_pattern pattern;
  const uint32_t *nodes; /* [nranks] the nodes of the host's ranks; a node may occur several times */
  int nranks;
  bool network; /* other hosts take part: channels begin and end at NETs */
  hk_cross_nic cross_nic;
  int min_channels, max_channels; /* 0: no limit */
} hk_search;

hk_status hk_search_channels(hk_channels **out, const struct hk_paths *p, const hk_search *what);
/* Channels without NETs, for the caller to fill: all orders are 0. */
hk_status hk_channels_new(hk_channels **out, hk_pattern pattern, int nranks, int nchannels);
void hk_channels_free(hk_channels *c);
/* Hash of all fields except `hash` and `steps`. */
uint64_t hk_channels_hash(const hk_channels *c);
