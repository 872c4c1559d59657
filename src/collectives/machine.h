/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the cost model knows it. It is made from a topology (also of machines that do not exist here) or from
 * facts that ranks exchange. */
#ifndef HK_COLLECTIVES_MACHINE_H
#define HK_COLLECTIVES_MACHINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"
#include "../program/program.h"
#include "protocol.h"

struct hk_channels; /* topo/search.h */
struct hk_cluster;  /* topo/topo.h */
struct hk_layout;   /* program/layout.h */
struct hk_seat;     /* topo/topo.h */

/* Links of one level: inside a host (more exactly: a scale-up domain), or between hosts. */
typedef struct hk_level {
  double alpha_us;   /* one message by protocol Simple, until it is there; less the machine's sync_us */
  double message_us; /* of it, what the core that sends or receives the message works for it */
  double link_us; /* work for each link that a rank fills, beside its messages: a socket is a system call of its own */
  /* One byte handed on along the rings, all channels together; what they share is counted.  0: the ranks' copies in and
   * out are all there is (shared memory). */
  double ring_us_per_b;
  /* One byte if all send to all at once.  Inside: of the bytes that a rank sends; between: of those that a host
   * sends, its ranks together. */
  double mesh_us_per_b;
  double one_us_per_b; /* GPUs: one byte that one rank alone sends to one other */
} hk_level;

/* Which rank sends to which inside a host of GPUs. */
typedef enum hk_traffic_kind {
  HK_TRAFFIC_PLAIN,    /* no more is known than hk_level has */
  HK_TRAFFIC_RING,     /* to the next on the rings */
  HK_TRAFFIC_ALL,      /* to all others at once */
  HK_TRAFFIC_TURNS,    /* to all others, one distance after another */
  HK_TRAFFIC_BOTH,     /* half of it by turns, the rest at once */
  HK_TRAFFIC_ROOT,     /* one alone to all others at once */
  HK_TRAFFIC_DEAL,     /* one alone to all others, one after another */
  HK_TRAFFIC_FLIPS,    /* to the rank whose number differs in one bit, bit after bit, as much each time */
  HK_TRAFFIC_CUBE,     /* the same, twice as much each time */
  HK_TRAFFIC_SHIFTS,   /* to those 1, 2, 4, ... further, one distance after another */
  HK_TRAFFIC_BINOMIAL, /* along a binomial tree, to each child as much */
  HK_TRAFFIC_SUBTREES, /* along a binomial tree, to each child what is its subtree's */
  HK_TRAFFIC_HANDOUT,  /* the same, the root to one child after another */
  HK_TRAFFIC_TREE,     /* two trees on each of the rings' orders, up or down */
  HK_TRAFFIC_UP_DOWN,  /* and both */
  HK_TRAFFICS
} hk_traffic_kind;
/* What it costs; 0: not known. */
typedef struct hk_traffic {
  double alpha_us;       /* of a message, on average: the links' latency alone */
  double us_per_b;       /* of what the busiest rank sends, on the fullest link; all channels share it out */
  double one_us_per_b;   /* the same, of one channel's order alone */
  double apart_us_per_b; /* the same for steps that follow one another, if all were under way at once */
} hk_traffic;

/* What a cost function may know of the machine: a few terms of the alpha-beta-gamma model. Equal on all ranks, because
 * it is computed from facts that all ranks exchanged at init. */
typedef struct hk_machine {
  int nranks;
  int nhosts;         /* 1: all ranks share a host */
  int ranks_per_host; /* the largest number */
  int least_per_host; /* the smallest */
  int cores_per_host; /* that the ranks of one host may run on together, the smallest number of any host; 0: GPUs */
  bool multicast;     /* links of kind HK_LINK_MCAST_* are there (all ranks share memory, or a switch copies) */
  bool in_switch;     /* a switch inside adds up what all ranks send to one (NVLS) */
  bool in_network;    /* the network adds up what hosts send (CollNet) */
  bool reads;         /* hk_transport.reads; known after init, and no price depends on it */
  bool uncached;      /* of one message, set after the choice: no cache holds it, so waves need not fit the caches */
  bool overlap;       /* links move bytes while a rank works (GPUs); otherwise the rank's core does both */
  hk_level inside, between;
  hk_traffic traffic[HK_TRAFFICS]; /* GPUs: patterns inside a host of which more is known than `inside` has */
  double gamma_us_per_b;           /* one byte reduced */
  double copy_us_per_b;            /* one byte copied */
  double switch_us;                /* handing the core to another rank; counts if ranks outnumber cores */
  double launch_us;                /* beginning an operation at all */
  double sync_us;                  /* what Simple's fence adds to a message; 0 if there is none */
  double far_sync_us;              /* the same between hosts, if the message is longer than ... */
  size_t far_lines;                /* ... the lines of the decision's protocol carry there; hk_machine_as sets it */
  double channel_us;               /* one channel more */
  double channel_us_per_b;         /* GPUs: one byte on one lane of one channel, which one core moves */
  int channels;       /* that share out the message, in the decision being priced: 1 unless hk_machine_as set it */
  int max_channels;   /* worth trying; 1 on the host: one thread runs all */
  int rings;          /* orders that channels take in turn; a channel more than a multiple loads one twice; 0: one */
  unsigned protocols; /* bit set of 1u << hk_protocol: those of the links here */
  size_t slot_bytes;  /* the largest chunk */
  uint32_t nslots;    /* of a FIFO: so many waves ahead of its receiver is a sender at most */
} hk_machine;

/* The machine for a decision with this protocol and number of channels: cost functions know of neither. */
hk_machine hk_machine_as(const hk_machine *m, hk_protocol protocol, int channels);

/* The measured constants of ranks on CPUs: the built-in values, or those of `hocket tune`. */
typedef struct hk_constants {
  double memory_alpha_us, tcp_alpha_us;     /* a message through shared memory, through a socket */
  double memory_message_us, tcp_message_us; /* the part of it that is work of each end */
  double tcp_link_us;                       /* work for each socket that is used */
  double tcp_us_per_b;                      /* a byte through a socket, the sender's and the receiver's part together */
  double net_alpha_us, net_message_us, net_us_per_b; /* the same between hosts */
  double copy_us_per_b, gamma_us_per_b, switch_us;
} hk_constants;
extern const hk_constants hk_constants_default;
struct hk_rules; /* rules.h */
/* Reads or writes a file of `hocket tune`. It also has choices, for cases in which the model errs; `choices` may be
 * NULL. */
hk_status hk_constants_read(hk_constants *k, struct hk_rules **choices, const char *path);
hk_status hk_constants_write(const hk_constants *k, const struct hk_rules *choices, FILE *to);
/* The path of the file that `hocket tune` writes and init reads. Returns false if there is no home directory. */
bool hk_constants_path(char *path, size_t bytes);

struct hk_overrides;

/* Makes the machine from a cluster and its ranks' seats. `rings` (may be NULL: the order of ranks) are the channels of
 * the first host, HK_PATTERN_RING; `o` (overrides.h) may be NULL. */
hk_status hk_machine_of(hk_machine *out, const struct hk_cluster *c, const struct hk_seat *seats, int nranks,
                        const struct hk_channels *rings, const struct hk_overrides *o);
/* Which ranks share a host, and the ring orders of `rings` (may be NULL: host after host). */
hk_status hk_layout_of(struct hk_layout **out, const struct hk_cluster *c, const struct hk_seat *seats, int nranks,
                       const struct hk_channels *rings);

/* What a runtime's ranks on CPUs know about each other: cores, and how they reach each other. */
typedef struct hk_host_facts {
  int nranks, nhosts, ranks_per_host, least_per_host, cores_per_host;
  bool memory;    /* the ranks of one host share memory */
  bool multicast; /* all ranks do */
  size_t slot_bytes;
  uint32_t nslots;
} hk_host_facts;
/* The prices that a topology gives for ranks on GPUs of one host; of fixed size, so that ranks can exchange them. */
typedef struct hk_gpu_prices {
  hk_level inside;
  hk_traffic traffic[HK_TRAFFICS];
  double gamma_us_per_b, copy_us_per_b;
  uint64_t known; /* 0: nothing, and all else is meaningless */
} hk_gpu_prices;
/* Fills them in. `seats` are of the cluster's first host; `o` may be NULL. */
hk_status hk_gpu_prices_of(hk_gpu_prices *out, const struct hk_cluster *c, const struct hk_seat *seats, int nranks,
                           const struct hk_overrides *o);
/* What a runtime's ranks on GPUs know about each other. */
typedef struct hk_gpu_facts {
  int nranks, nhosts, ranks_per_host, least_per_host;
  int ranks_per_gpu, sm; /* the largest number; the oldest generation */
  int max_channels;
  bool wide;      /* all links keep lines of 128 bytes whole */
  bool staged;    /* links between some ranks of a host go through host memory */
  bool in_switch; /* a switch can reduce for them */
  size_t slot_bytes;
  uint32_t nslots;
  hk_gpu_prices prices;
} hk_gpu_facts;
hk_machine hk_machine_of_gpus(const hk_gpu_facts *f, const hk_constants *constants);
hk_machine hk_machine_of_hosts(const hk_host_facts *f, const hk_constants *constants);
#endif
