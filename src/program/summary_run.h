/* SPDX-License-Identifier: Apache-2.0 */
/* A run of all ranks' programs in which only messages take time (summary.h). */
#pragma once
#include <stdbool.h>
#include "cursor.h"
#include "summary.h"

/* The first wave fills a pipeline, and the third adds what each further wave adds. */
enum { HK_SUMMARY_WAVES = 3 };

/* The length of a chain as one number: messages between hosts in the upper bits, then all messages, then
 * instructions. */
typedef uint64_t hk_chain_key;
enum { HK_CHAIN_FAR = 44, HK_CHAIN_ROUNDS = 24 }; /* the lowest bits of each */

static inline hk_chain hk_summary_chain_of(hk_chain_key k) {
  return (hk_chain){.far = (int32_t)(k >> HK_CHAIN_FAR),
                    .rounds = (int32_t)(k >> HK_CHAIN_ROUNDS & ((1u << (HK_CHAIN_FAR - HK_CHAIN_ROUNDS)) - 1)),
                    .instrs = (int32_t)(k & ((1u << HK_CHAIN_ROUNDS) - 1))};
}

/* One end of a link. */
typedef struct hk_summary_end {
  /* Receiving end: when slots arrive, [taken, filled), and before them when they were taken. */
  hk_chain_key *slots;
  uint32_t taken, filled, capacity;
  uint32_t thread;   /* the lane that uses the end */
  uint32_t first, n; /* sending end: its receivers, in hk_summary_run.receivers */
  uint32_t group;    /* 1 + its hk_summary_group; 0: none */
  uint32_t rank, peer;
  uint8_t reach; /* hk_reach of the peer */
  bool own;      /* the peer is another lane of the rank */
  bool crosses;  /* see hk_volume.crossing */
  bool waiting;  /* the lane waits for a slot */
  bool full;     /* receiving end: the sender's lane `sender` waits until a slot is taken */
  uint32_t sender;
} hk_summary_end;

/* Ranks between which the network makes sums, gathers or scatters. */
typedef struct hk_summary_group {
  uint32_t first, n;   /* the members' receiving ends by number, in hk_summary_run.receivers */
  uint8_t kind;        /* hk_link_kind of the sending ends */
  uint8_t reach;       /* HK_BETWEEN if any two members are on different hosts */
  hk_chain_key *slots; /* the latest sender of each slot so far */
  uint32_t *sent;      /* how many members have sent each slot */
  uint32_t nslots, slots_capacity, sent_capacity;
} hk_summary_group;

typedef struct hk_summary_thread {
  hk_cursor at;
  int rank;
  hk_chain_key now;
  uint32_t tail;                /* instructions since a message made the lane wait */
  uint32_t busy;                /* instructions one after another up to here */
  uint64_t instrs;              /* in the first wave */
  uint64_t carried[HK_REACHES]; /* blocks sent in the first wave, by hk_reach */
  const hk_summary_end *last;   /* the end of the last instruction's last message; NULL: it has none */
  bool ended;
} hk_summary_thread;

typedef struct hk_summary_message {
  hk_chain_key after; /* the chain before it */
  uint32_t by;        /* summary.c: hk_map.by, if the message is of a map of the kind that is looked for */
  uint32_t from, to;
} hk_summary_message;

typedef struct hk_summary_run {
  const hk_program *const *programs; /* [period] */
  const int32_t *host;               /* [nranks] or NULL */
  uint32_t *local;                   /* [nranks] numbers among the ranks of a host; NULL if host is */
  int nranks, period;                /* summary.h */
  hk_map_kind kind;                  /* hk_summarize's */
  hk_sizes sizes;
  uint32_t *first_end, *first_thread; /* [period + 1] */
  hk_summary_end *ends;
  hk_chain_key *slots_of_all; /* the memory of all ends' slots */
  uint32_t *busy_of_all;      /* of each of them: instructions one after another before it */
  uint32_t *receivers;
  hk_summary_group *groups;
  uint32_t nreceivers, receivers_capacity, ngroups, groups_capacity;
  hk_summary_thread *threads;
  uint32_t *ready; /* lanes that may go on */
  uint32_t nready;
  hk_volume *volumes; /* [period] */
  uint32_t slots;     /* of a link; 0: `ahead` is not asked for */
  bool bounded;       /* senders wait for free slots */
  bool one_host;      /* see hk_summarize */
  bool ahead;         /* some sender was ahead by more than `slots` */
  hk_chain_key wave_ends[HK_SUMMARY_WAVES];
  uint32_t tail, busy;          /* of the lane that ends the first wave; the most of any lane */
  hk_summary_message *messages; /* of the first wave, between two ranks */
  size_t nmessages, messages_capacity;
  bool traces; /* makes the summary's events */
  hk_summary_event *events;
  size_t nevents, events_capacity;
} hk_summary_run;

/* summary_links.c: ends with their slots, receivers and groups. */
hk_status hk_summary_tie(hk_summary_run *x);
hk_status hk_summary_go(hk_summary_run *x);
hk_status hk_summary_memory(int nranks); /* reports that there is none */
void hk_summary_run_free(hk_summary_run *x);
/* summary_maps.c: the messages' maps. Changes the order of messages. */
hk_status hk_summary_maps(hk_summary *out, hk_summary_run *x);
