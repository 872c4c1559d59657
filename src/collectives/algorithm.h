/* SPDX-License-Identifier: Apache-2.0 */
/* An algorithm is one file that builds programs plus one line in registry.def. No other code knows it by name. */
#ifndef HK_COLLECTIVES_ALGORITHM_H
#define HK_COLLECTIVES_ALGORITHM_H
#include <stdbool.h>
#include "../program/builder.h"
#include "protocol.h"

/* Links of one level: inside a host (more exactly: a scale-up domain), or between hosts. */
typedef struct hk_level {
  double alpha_us;   /* one message by protocol Simple, until it is there; less the machine's sync_us */
  double message_us; /* of it, what the core that sends or receives the message works for it */
  double link_us; /* work for each link that a rank fills, beside its messages: a socket is a system call of its own */
  /* One byte handed on along the rings, all channels together; what they share is counted.  0: the ranks' copies in and
   * out are all there is (shared memory). */
  double ring_us_per_b;
  /* One byte where all send to all at once.  Inside: of the bytes that a rank sends; between: of those that a host
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
 * it is computed from facts that all ranks exchanged at init. machine.h makes one. */
typedef struct hk_machine {
  int nranks;
  int nhosts;         /* 1: all ranks share a host */
  int ranks_per_host; /* the largest number */
  int least_per_host; /* the smallest */
  int cores_per_host; /* that the ranks of one host may run on together, the smallest number of any host; 0: GPUs */
  bool multicast;     /* links of kind HK_LINK_MCAST_* are there (all ranks share memory, or a switch copies) */
  bool in_switch;     /* a switch inside adds up what all ranks send to one (NVLS) */
  bool overlap;       /* links move bytes while a rank works (GPUs); otherwise the rank's core does both */
  hk_level inside, between;
  hk_traffic traffic[HK_TRAFFICS]; /* GPUs: patterns inside a host of which more is known than `inside` has */
  double gamma_us_per_b;           /* one byte reduced */
  double copy_us_per_b;            /* one byte copied */
  double switch_us;                /* handing the core to another rank; counts if ranks outnumber cores */
  double launch_us;                /* beginning an operation at all */
  double sync_us;                  /* what Simple's fence adds to a message; 0 if there is none */
  double channel_us;               /* one channel more */
  double channel_us_per_b;         /* GPUs: one byte on one lane of one channel, which one core moves */
  int channels;       /* that share out the message, in the decision being priced: 1 unless hk_machine_as set it */
  int max_channels;   /* worth trying; 1 on the host, where one thread runs all */
  unsigned protocols; /* bit set of 1u << hk_protocol: those of the links here */
  size_t slot_bytes;  /* the largest chunk */
} hk_machine;

/* The machine for a decision with this protocol and number of channels: cost functions know of neither. */
hk_machine hk_machine_as(const hk_machine *m, hk_protocol protocol, int channels);

/* What the chunk of a wave depends on; equal on all ranks, as the program of one rank is not. */
typedef struct hk_shape {
  unsigned fan;     /* different links that the busiest rank fills in one wave */
  unsigned depth;   /* ranks that a byte passes one after another while other waves follow; 1 if that gains nothing */
  unsigned scratch; /* scratch blocks of the rank that needs most */
  unsigned rails;   /* ranks of a host that send to other hosts at the same time; 0 means 1 */
} hk_shape;

typedef struct hk_algorithm {
  const char *name;  /* as NCCL_ALGO spells it, lower case */
  const char *about; /* one line */
  unsigned colls;    /* bit set of 1u << hk_coll */
  /* Bit set of 1u << hk_coll: sums are made in the fixed order (HK_FIXED_ORDER_SOURCES), whatever the root and the
   * layout. The verifier proves it. */
  unsigned fixed_order;
  unsigned protocols; /* bit set of 1u << hk_protocol that its links may use; 0: all */
  /* Why it cannot run here, in words that follow its name ("needs ..."); NULL where it can.  The slot may be NULL:
   * every number of ranks from 1 on, any machine.  Must not depend on the rank asking. */
  const char *(*cannot)(const hk_machine *m, hk_coll coll);
  /* Microseconds for `bytes`: the size of the larger of a rank's buffers, as nccl-tests counts. */
  double (*cost)(const hk_machine *m, hk_coll coll, size_t bytes);
  /* May be NULL: {1, 1, 0}. */
  hk_shape (*shape)(const hk_machine *m, hk_coll coll);
  /* nranks >= 2: a rank that is alone copies input to output, whatever the algorithm. */
  void (*build)(hk_builder *b, const hk_build *what);
} hk_algorithm;

/* The registry, ended by NULL. */
extern const hk_algorithm *const hk_algorithms[];
const hk_algorithm *hk_algorithm_by_name(const char *name);
static inline bool hk_algorithm_supports(const hk_algorithm *a, const hk_machine *m, hk_coll coll) {
  return (a->colls >> coll & 1u) && (!a->cannot || !a->cannot(m, coll));
}
hk_status hk_algorithm_build(const hk_algorithm *a, const hk_build *what, hk_program **out);
/* Bytes of a block that one wave moves, for a plan of the algorithm's program p: all ranks get the same value. */
size_t hk_choose_chunk(const hk_machine *m, const hk_algorithm *a, const hk_program *p, size_t block_bytes);
#endif
