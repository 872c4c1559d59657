/* SPDX-License-Identifier: Apache-2.0 */
/* What prices need to know of algorithms' programs: their summaries, and the load that their messages put on links.
 * They are made when an algorithm is first priced for a collective, and kept. Equal on all ranks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../program/operation.h"
#include "../program/summary.h"

struct hk_algorithm;  /* collectives/algorithm.h */
struct hk_channels;   /* topo/search.h */
struct hk_cluster;    /* topo/topo.h */
struct hk_layout;     /* program/layout.h */
struct hk_machine;    /* machine.h */
struct hk_path_rules; /* topo/paths.h */
struct hk_paths;      /* topo/paths.h */
struct hk_placement;  /* topo/topo.h */
struct hk_topo;       /* topo/topo.h */

enum { HK_PORTS_MOST = 16 };

/* The network ports near a GPU, which channels use in turn. */
typedef struct hk_ports {
  uint32_t n;
  double share;               /* the time of a byte on the GPU's way to all of them, in parts of hk_wires.slowest */
  uint32_t at[HK_PORTS_MOST]; /* numbers below hk_wires.nports */
} hk_ports;

/* The paths between the GPUs of the first host. */
typedef struct hk_wires {
  struct hk_paths *paths;
  uint32_t *nodes; /* [n] of the ranks by their number on the host (hk_layout_local_of) */
  hk_ports *ports; /* [n] likewise */
  int n;
  uint32_t nports;                 /* of a host; 0: not known */
  double slowest;                  /* GB/s of the slowest way from a GPU to its nearest port */
  bool rails;                      /* the fabric has rails: messages leave by their receiver's */
  const struct hk_channels *rings; /* of the ring orders; NULL: their ports are not known */
} hk_wires;

enum { HK_TRAFFIC_ORDERS = 6 };

/* The messages of one wave, in which each block has one byte. */
typedef struct hk_traffic {
  double alpha_us; /* of a message, on average: the links' latency alone; 0: no messages, or the links are not known */
  /* Of the slowest rank's steps one after another, in each round; divided among all ring orders. */
  double turns_us;
  double once_us;                 /* on the fullest link of each round, if all its steps are under way at once */
  double all_us;                  /* the same if all rounds are under way at once */
  double round_us, round_once_us; /* turns_us and once_us of the longest round alone */
  double step_us;                 /* of its steps, on average */
  double one_us;                  /* the same on one ring order alone */
  /* On the fullest link of the first host, with messages to and from other hosts: in all; in the fullest step; in the
   * first step. */
  double joint_us, joint_step_us, first_step_us;
  /* The parts of turns_us in the first steps of rounds without messages between hosts, and of the bytes between hosts
   * in those of rounds without messages inside: they are not under way at the same time. */
  double near_alone, far_alone;
  /* The fullest link's time in a round with messages inside hosts, on average, in parts of all_us; likewise the blocks
   * of the fullest port in one with messages between hosts, in parts of those of the fullest one in all. */
  double near_once, far_once;
  /* The parts of these rounds that are after the last one with the fullest link or port. */
  double near_after, far_after;
  /* If one port is the fullest in all rounds: the chain from its first one to its last, and the part of its blocks
   * before the last. */
  hk_chain early;
  double far_early;
  double on_rings; /* the part of the bytes between hosts that goes over the own ports of ring orders */
  hk_chain head;   /* before the first message between hosts, with its instruction */
  /* The most blocks that a network port (or a rank, if ports are not known) sends to other hosts or receives, if the
   * message is divided among 2^k channels; the last: among `ways`. Those of a faster port are so many fewer, in
   * proportion to the slowest way to one. */
  double far[HK_TRAFFIC_ORDERS + 1];
  int ways; /* channels after which ring orders and ports repeat */
} hk_traffic;

typedef struct hk_outline {
  hk_summary summary;   /* of the ring order with the longest chain, without maps */
  hk_chain first, held; /* the same of the first ring order */
  hk_traffic traffic;
  int orders;  /* ring orders on which its programs differ, at least 1 */
  bool barred; /* its programs are too large to be looked at */
} hk_outline;

typedef struct hk_outlines hk_outlines;

/* `layout` (may be NULL: one host) must outlive it. `slots`: hk_machine_held_slots. */
hk_status hk_outlines_new(hk_outlines **out, int nranks, const struct hk_layout *layout, uint32_t slots);
/* GPUs: the links of a topology, which must outlive it. Without them the load of links is not known. `nodes` [n]: of
 * the first host's ranks by their number on the host; `rings` (of each host, must outlive it) and `rules` may be
 * NULL. */
hk_status hk_outlines_wire(hk_outlines *o, const struct hk_topo *t, const uint32_t *nodes, int n, bool rails,
                           const struct hk_channels *rings, const struct hk_path_rules *rules);
/* Makes the outlines of a machine of a cluster, with the links of its first host if its ranks are on GPUs. */
hk_status hk_outlines_of(hk_outlines **out, const struct hk_cluster *c, const struct hk_placement *placements,
                         const struct hk_machine *m, const struct hk_layout *layout, const struct hk_channels *rings,
                         const struct hk_path_rules *rules);
/* Drops the outlines of an algorithm, before it is freed or changed. */
void hk_outlines_forget(hk_outlines *o, const struct hk_algorithm *a);
void hk_outlines_free(hk_outlines *o); /* NULL is fine */
/* *out: the outline of an algorithm that can run here; NULL if its programs are too large to be looked at, and so to be
 * chosen. */
hk_status hk_outlines_get(hk_outlines *o, const struct hk_algorithm *a, hk_coll coll, const hk_outline **out);
/* *out: the load of the first rank, and of more ranks of its host if that is quick to find. No blocks: the format
 * cannot hold its program. */
hk_status hk_outlines_load(hk_outlines *o, const struct hk_algorithm *a, hk_coll coll, const hk_load **out);
/* Adds up the messages in the summary's maps, which are those of its ring order. On each of the `orders` the rank at a
 * place, or at a distance from the root (-1: none), does the same as that on this one. `wires`: with 0 ranks nothing
 * is known of the links inside a host. */
hk_status hk_traffic_of(hk_traffic *out, const hk_summary *s, int orders, int root, const struct hk_layout *layout,
                        const hk_wires *wires);
