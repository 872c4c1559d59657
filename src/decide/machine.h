/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the cost model knows it. It is made from a topology (also of machines that do not exist here) or from
 * facts that ranks exchange. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../collectives/team.h"
#include "../program/limits.h"

struct hk_channels;  /* topo/search.h */
struct hk_cluster;   /* topo/topo.h */
struct hk_constants; /* constants.h */
struct hk_layout;    /* program/layout.h */
struct hk_outlines;  /* outlines.h */
struct hk_overrides; /* overrides.h */
struct hk_placement; /* topo/topo.h */

/* Links of one level: inside a host (more exactly: a scale-up domain), or between hosts. */
typedef struct hk_level {
  double alpha_us;   /* latency of one message by protocol Simple, without the machine's sync_us */
  double message_us; /* the part of alpha_us that is work of the sending or receiving core */
  double link_us; /* work for each link that a rank fills, in addition to its messages: each socket is a system call */
  /* One byte passed on along the rings, for all channels together, including shared links.  0: the only cost is the
   * ranks' copies in and out (shared memory). */
  double ring_us_per_b;
  /* One byte if all send to all at once.  Inside: for each byte that a rank sends; between: for each byte that a host's
   * ranks send together. */
  double mesh_us_per_b;
  double one_us_per_b; /* GPUs: one byte that one rank alone sends to one other */
} hk_level;

/* Rings of a search, each with a rate (0: not known), which are better than the order of ranks. */
static inline void hk_level_use_rings(hk_level *l, int n, double gbps) {
  if (gbps > 0) l->ring_us_per_b = 1 / (n * gbps) / 1000;
}

/* What prices depend on, apart from programs: a few terms of the alpha-beta-gamma model. Equal on all ranks, because
 * it is computed from facts that all ranks exchanged at init. */
typedef struct hk_machine {
  hk_team team;
  int cores_per_host; /* cores on which a host's ranks may run together, minimum over the hosts; 0: GPUs */
  double reads;       /* hk_transport_zero_copy.reads; known only after init, so no price depends on it */
  /* for one message, set after the choice: it exceeds the caches anyway, so waves need not fit them */
  bool long_waves;
  hk_level inside, between;
  double ports_us_per_b; /* GPUs: a byte that a host sends over all ports, each rank over its nearest */
  double gamma_us_per_b; /* one byte reduced */
  double copy_us_per_b;  /* one byte copied */
  double switch_us;      /* handing the core to another rank; counts if ranks outnumber cores */
  double launch_us;      /* beginning an operation */
  double sync_us;        /* time that Simple's fence adds to a message; 0: no fence */
  double far_sync_us;    /* the same between hosts, for messages longer than far_lines bytes */
  /* bytes that the decision's protocol carries in lines between hosts; hk_machine_as sets it */
  size_t far_lines;
  /* bytes on a link inside the host for a byte of the message; hk_machine_as and hk_machine_quantise set it, else 1 */
  double wire;
  double switch_wire;      /* GPUs: the factor on a byte's time on a link if a switch sums or copies it */
  double channel_us;       /* one channel more */
  double channel_us_per_b; /* GPUs: one byte on one lane of one channel (one thread block) */
  /* channels among which the message is divided, in the decision that is priced; hk_machine_as sets it, else 1 */
  int channels;
  int max_channels; /* channels worth trying; 1 on the host, where one thread runs all */
  /* ring orders, used by channels in turn; one channel more than a multiple loads a ring twice; 0: one */
  int rings;
  unsigned protocols;           /* bit set of 1u << hk_protocol that the links support */
  size_t slot_bytes;            /* the largest chunk */
  uint32_t nslots;              /* slots of a FIFO: a sender is at most this number of waves ahead of its receiver */
  bool engines;                 /* GPUs: copy engines run collectives on symmetric windows (NCCL_CTA_POLICY_ZERO) */
  bool quantised;               /* hk_machine_quantise: only programs whose links may carry quantised values */
  struct hk_outlines *outlines; /* outlines.h: of the programs for its ranks; without them there are no prices */
} hk_machine;

/* Changes the machine of ranks on CPUs to one whose links carry values of `unit` bytes in quantised form
 * (program/quantised.h). */
void hk_machine_quantise(hk_machine *m, size_t unit);

/* Ranks that share a core, at least 1. */
static inline double hk_machine_crowd(const hk_machine *m) {
  double k = m->cores_per_host > 0 ? (double)m->team.ranks_per_host / m->cores_per_host : 1;
  return k > 1 ? k : 1;
}

/* The slots of links if prices count waits for a free one, as those of GPUs do; else 0. */
static inline uint32_t hk_machine_held_slots(const hk_machine *m) { return m->team.overlap ? m->nslots : 0; }

/* The machine as seen by a decision with this protocol and number of channels. */
hk_machine hk_machine_as(const hk_machine *m, hk_protocol protocol, int channels);

/* The time of a message of `bytes` to another host in addition to its link's latency: a fence, or the proxies' work on
 * lines. */
double hk_far_sync_us(const hk_machine *m, double bytes);

/* Makes the machine from a cluster and its ranks' placements. `rings` (may be NULL: the order of ranks) are those of
 * the first host, HK_PATTERN_RING; `o` may be NULL. */
hk_status hk_machine_of(hk_machine *out, const struct hk_cluster *c, const struct hk_placement *placements, int nranks,
                        const struct hk_channels *rings, const struct hk_overrides *o);
/* Which ranks share a host, and the ring orders of `rings` (may be NULL: host after host). */
hk_status hk_layout_of(struct hk_layout **out, const struct hk_cluster *c, const struct hk_placement *placements,
                       int nranks, const struct hk_channels *rings);

/* Facts that ranks on CPUs exchange at init: cores, and shared memory. */
typedef struct hk_host_facts {
  hk_team team;
  int cores_per_host;
  bool memory; /* the ranks of one host share memory */
  size_t slot_bytes;
  uint32_t nslots;
} hk_host_facts;
/* The prices that a topology gives for ranks on GPUs; of fixed size, so that ranks can exchange them. */
typedef struct hk_gpu_prices {
  hk_level inside, between;
  double gamma_us_per_b, copy_us_per_b;
  double ports_us_per_b; /* 0: there is one host, or its ports are not known, and `between` has no meaning */
  uint64_t known;        /* 0: nothing is known, and the fields above have no meaning */
  uint64_t links;        /* a hash of the links between the GPUs of this rank's host; 0: not known */
} hk_gpu_prices;
/* Computes the prices; `o` may be NULL. */
hk_status hk_gpu_prices_of(hk_gpu_prices *out, const struct hk_cluster *c, const struct hk_placement *placements,
                           int nranks, const struct hk_overrides *o);
/* Facts that ranks on GPUs exchange at init. */
typedef struct hk_gpu_facts {
  hk_team team;          /* without `multicast` and `overlap` */
  int ranks_per_gpu, sm; /* ranks_per_gpu: the largest number; sm: the oldest generation */
  int max_channels;
  bool wide;   /* all links inside hosts keep lines of 128 bytes whole; between hosts LL128 is as Simple */
  bool staged; /* links between some ranks of a host go through host memory */
  size_t slot_bytes;
  uint32_t nslots;
  hk_gpu_prices prices;
} hk_gpu_facts;
hk_machine hk_machine_of_gpus(const hk_gpu_facts *f, const struct hk_constants *constants);
/* Gives the machine of ranks on CPUs other constants. `memory`: ranks of a host share memory, else they use sockets. */
void hk_machine_set_constants(hk_machine *m, bool memory, const struct hk_constants *k);
hk_machine hk_machine_of_hosts(const hk_host_facts *f, const struct hk_constants *constants);
