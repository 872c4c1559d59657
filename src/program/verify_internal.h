/* SPDX-License-Identifier: Apache-2.0 */
/* What the verifier's parts share.
 *
 *   verify.c         entry, memory, the check of the outputs
 *   verify_static.c  rules that need no run: indices, shapes, equal blocks
 *   verify_links.c   pairs the links of all programs into channels
 *   verify_run.c     one schedule of all lanes of all ranks, with symbolic values
 *   verify_uneven.c  blocks of different lengths
 *   verify_value.c   the values: the origin of data, and the ranks that it holds
 *   verify_order.c   in which order they were added
 *   verify_hazard.c  when an output block may be read and written: happens-before
 *   verify_fault.c   the report
 *
 * A thread is one lane of one rank. An event is one instruction run by a thread; the events of a thread count from 1
 * over all waves. A place is one output block of one rank in one wave; with in_place an input block may be the same
 * place. */
#pragma once
#include "cursor.h"
#include "verify.h"

/* ---- values ----
 * A value represents one chunk of data and says where it comes from: its input block, and the rank (a leaf) or the set
 * of ranks (a sum) whose contributions it holds. It is packed, because a large run keeps millions of them: bits 0-15
 * block, 16-31 the block named by the link operand that sent it, 32-60 rank or set, 61 final, 62-63 kind. */
typedef uint64_t hk_value;
enum { HK_VALUE_NONE, HK_VALUE_EMPTY, HK_VALUE_LEAF, HK_VALUE_SUM };
static inline unsigned hk_value_kind(hk_value x) { return (unsigned)(x >> 62); }
static inline unsigned hk_value_block(hk_value x) { return (uint16_t)x; }
static inline unsigned hk_value_link_block(hk_value x) { return (uint16_t)(x >> 16); }
static inline uint32_t hk_value_index(hk_value x) { return (uint32_t)(x >> 32) & 0x1fffffff; }
static inline bool hk_value_is_final(hk_value x) { return x >> 61 & 1; }
static inline hk_value hk_value_make(unsigned kind, uint32_t index, unsigned block) {
  return (hk_value)kind << 62 | (hk_value)index << 32 | (uint16_t)block;
}
static inline hk_value hk_value_sent_as(hk_value x, unsigned block) {
  return (x & ~(hk_value)0xffff0000) | (hk_value)(uint16_t)block << 16;
}
static inline hk_value hk_value_final(hk_value x) { return x | (hk_value)1 << 61; }

typedef struct hk_rank_set {
  uint32_t refs, count; /* of a free set, count is the next free one */
  uint32_t order;       /* hk_orders: how the sum was made */
  uint64_t words[];
} hk_rank_set;
enum { HK_SETS_PER_CHUNK = 256, HK_NO_SET = 0x1fffffff };
typedef struct hk_set_pool {
  char **chunks;
  size_t nchunks, capacity, set_bytes;
  unsigned words;
  uint32_t used, free; /* free: first of the list, or HK_NO_SET */
} hk_set_pool;

void hk_set_pool_init(hk_set_pool *p, int nranks);
void hk_set_pool_free(hk_set_pool *p);
static inline hk_rank_set *hk_set_at(const hk_set_pool *p, uint32_t i) {
  return (hk_rank_set *)(p->chunks[i / HK_SETS_PER_CHUNK] + (size_t)(i % HK_SETS_PER_CHUNK) * p->set_bytes);
}
void hk_value_release_set(hk_set_pool *p, uint32_t set);
static inline void hk_value_keep(hk_set_pool *p, hk_value x) {
  if (hk_value_kind(x) == HK_VALUE_SUM) hk_set_at(p, hk_value_index(x))->refs++;
}
static inline void hk_value_drop(hk_set_pool *p, hk_value x) {
  if (hk_value_kind(x) == HK_VALUE_SUM && --hk_set_at(p, hk_value_index(x))->refs == 0)
    hk_value_release_set(p, hk_value_index(x));
}
/* The sum of two leaves or sums of one block; consumes both. If both hold the same rank, *twice is that rank (else -1)
 * and the result is NONE. NONE with *twice == -1 means out of memory. */
hk_value hk_value_add(hk_set_pool *p, hk_value a, hk_value b, int *twice);
bool hk_value_has(const hk_set_pool *p, hk_value x, unsigned rank);
static inline uint32_t hk_value_count(const hk_set_pool *p, hk_value x) {
  return hk_value_kind(x) == HK_VALUE_SUM ? hk_set_at(p, hk_value_index(x))->count : hk_value_kind(x) == HK_VALUE_LEAF;
}

/* ---- orders ----
 * A number for how a value was made. Below nranks: the input of that rank. From nranks on: a sum of parts, which are
 * again such numbers. Each list of parts is stored once, so equal numbers mean equal sums. */
enum { HK_NO_ORDER = UINT32_MAX };
typedef struct hk_orders {
  uint32_t nranks, count;          /* sums known */
  uint32_t *ends, ends_capacity;   /* end of sum i's parts; they begin at the end of sum i - 1's */
  uint32_t *parts, parts_capacity; /* of all sums, then of the sum that is being described */
  uint32_t nparts;
  uint32_t *table, table_capacity; /* by hash: the sum's number in `ends` + 1; a power of two */
  bool failed;                     /* out of memory */
} hk_orders;
void hk_orders_free(hk_orders *o);
/* Describes a sum: each part in turn, then its number; HK_NO_ORDER if out of memory. */
void hk_orders_part(hk_orders *o, uint32_t part);
uint32_t hk_orders_sum(hk_orders *o);
static inline uint32_t hk_value_order(const hk_set_pool *p, hk_value x) {
  return hk_value_kind(x) == HK_VALUE_SUM ? hk_set_at(p, hk_value_index(x))->order : hk_value_index(x);
}

/* ---- the machine ---- */
enum { HK_NOWHERE = UINT32_MAX };
#define HK_LANDS 0x80000000u /* flag in a count of writes: some land from a slot and may precede their turn */

/* One FIFO. */
typedef struct hk_channel {
  size_t slot_at;    /* first of `capacity` slots; readers_left has the same index */
  size_t times_at;   /* event of the sender that sent slot k, k = 0, 1, ... */
  uint32_t capacity; /* slots kept: the FIFO's, or fewer if fewer are ever sent */
  uint32_t sent;
  uint32_t thread; /* the sender's thread */
  uint32_t first_reader, nreaders;
  uint32_t reverse; /* the sender's reader of the opposite channel, or HK_NOWHERE */
  bool in_switch;   /* its slots were sent with HK_INSTR_IN_SWITCH; a link is always in the switch or never */
  /* Sums in the network: the channel on which this channel's reader sends, and so on round the group; else HK_NOWHERE.
   * A slot holds the sender's data until all ranks of the group have sent theirs, then the sum. */
  uint32_t next;
  uint32_t summed; /* slots that hold sums; gathers and scatters: completed rounds */
  /* Gathers and scatters: slots of a round that the sender sends, and that the reader gets; else 1. The reader's slots
   * of one round are kept at made_at. Transports have room for more rounds; programs that do not block here do not
   * block there. */
  uint32_t in_each, out_each;
  uint32_t number; /* the reader's number in the group */
  uint8_t kind;    /* hk_link_kind of the sender */
  size_t made_at;
} hk_channel;

typedef struct hk_reader {
  size_t times_at; /* event of the reader that consumed slot k */
  uint32_t channel, thread, consumed;
} hk_reader;

typedef struct hk_thread {
  const hk_program *program;
  const hk_instr *instrs;
  const uint32_t *ends; /* program link -> channel (sending links) or reader */
  size_t scratch_at;
  /* range of program links that contains its lane's links; a builder makes those one after another */
  uint32_t first_link, end_link;
  hk_cursor at;
  uint32_t event;
  uint32_t scan;      /* number of operands known to be ready */
  uint32_t waits_for; /* channel or reader, while blocked */
  uint16_t rank, lane;
  uint8_t state; /* HK_THREAD_* */
  bool waits_to_send;
} hk_thread;
enum { HK_THREAD_READY, HK_THREAD_BLOCKED, HK_THREAD_DONE };

/* A read that must end before a later write. A lane's read ends with its event; a read by reference ends when all
 * readers have consumed the slot. */
typedef struct hk_read {
  uint32_t next;
  uint32_t channel; /* HK_NOWHERE: a lane's read */
  uint32_t number;  /* the lane's event, or the slot's number */
  uint16_t lane;
} hk_read;

typedef struct hk_place {
  hk_value value;
  uint32_t writer_event; /* 0: holds no output yet (in place: still the input) */
  uint32_t writes;
  uint32_t reads; /* first hk_read + 1 */
  uint16_t writer_lane;
} hk_place;

typedef struct hk_verifier {
  const hk_program *const *programs;
  int nranks;
  hk_verify_options options;
  hk_verify_report *report;
  bool reduces, split, uneven;
  bool switch_adds; /* a switch or the network makes some sum: its order is not known */

  hk_thread *threads;
  uint32_t nthreads;
  uint32_t *first_thread; /* by rank */

  size_t *first_end; /* by rank: its links' place in `ends` and `uses` */
  uint32_t *ends;
  uint32_t *uses; /* by link: messages in one wave */
  hk_channel *channels;
  hk_reader *readers;
  uint32_t nchannels, nreaders;
  hk_value *slots;
  uint32_t *readers_left; /* same indices as `slots`; NULL without multicast */
  uint32_t *times;

  hk_place *places;
  size_t *first_place; /* by rank */
  /* [first_place / waves + block] writes to the block in one wave, optionally | HK_LANDS */
  uint32_t *place_writes;
  hk_value *scratch;
  hk_set_pool sets;
  hk_orders orders; /* with options.orders */

  uint32_t *queue; /* ready threads, a ring of nthreads */
  uint32_t queue_head, queue_count;

  hk_read *reads;
  uint32_t nreads, reads_capacity, free_read; /* free_read: index + 1 */
  /* One happens-before search. known: the latest known event of each thread. */
  uint32_t *known, *search;
  uint64_t *known_stamp, *queued_stamp, stamp;
} hk_verifier;

static inline bool hk_channel_in_rounds(const hk_channel *c) { return hk_link_in_rounds((hk_link_kind)c->kind); }
/* How many slots of the channel can be read. */
static inline uint32_t hk_channel_readable(const hk_channel *c) {
  return c->next == HK_NOWHERE ? c->sent : c->summed * c->out_each;
}
/* The number of the last slot that each sender of the group must have sent before slot `got` can be read. */
static inline uint32_t hk_channel_sent_for(const hk_channel *c, uint32_t got) {
  return (got / c->out_each + 1) * c->in_each - 1;
}
/* Ranks on one host, and the number of ranks on a rank's host. */
static inline bool hk_is_near(const hk_verifier *v, int a, int b) {
  const int32_t *host = v->options.host;
  return !host || host[a] == host[b];
}
static inline int hk_ranks_near(const hk_verifier *v, int rank) {
  int near = 0;
  for (int r = 0; r < v->nranks; r++) near += hk_is_near(v, rank, r);
  return near;
}
static inline unsigned hk_out_blocks_of(const hk_verifier *v, int rank) {
  const hk_program *p = v->programs[rank];
  return hk_coll_has_output((hk_coll)p->coll, rank, p->root) ? p->out_blocks : 0;
}
static inline hk_place *hk_place_at(const hk_verifier *v, const hk_thread *t, unsigned block) {
  return &v->places[v->first_place[t->rank] + t->at.offset * hk_out_blocks_of(v, t->rank) + block];
}

/* ---- lengths of an uneven collective ----
 * A length is identified by the input block that has it: by its number if the collective reduces (all ranks have equal
 * lengths), otherwise by rank and number. */
enum { HK_NO_LENGTH = UINT32_MAX };
/* The length that the current MOVE of t moves; HK_NO_LENGTH if no operand determines it. */
uint32_t hk_length_of_move(const hk_thread *t, const hk_instr *i, const hk_operand *o);
/* Fault unless the user's operands of the MOVE have that length. */
hk_status hk_length_check_operands(hk_verifier *v, const hk_thread *t, const hk_instr *i, const hk_operand *o);
hk_status hk_length_check_value(hk_verifier *v, const hk_thread *t, uint32_t length, hk_value x);
/* True if the block with this length, or the output block of a rank, has a part in the wave. */
bool hk_length_reaches(const hk_verifier *v, uint32_t length, uint64_t wave);
bool hk_length_reaches_output(const hk_verifier *v, const hk_program *p, unsigned block, uint64_t wave);

/* ---- parts; each returns HK_OK, or an error with the report filled ---- */
hk_status hk_verify_static(hk_verifier *v);
hk_status hk_verify_links(hk_verifier *v);
hk_status hk_verify_run(hk_verifier *v);
hk_status hk_verify_orders(hk_verifier *v); /* after the outputs are found to be complete */

/* In its current event, thread t reads or writes a place. hk_hazard_note_read only records a read.
 * hk_hazard_note_reference records that slot `number` of a channel refers to the place. */
hk_status hk_hazard_read(hk_verifier *v, const hk_thread *t, hk_place *place, const char *what, unsigned block);
hk_status hk_hazard_write(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block);
/* It writes data that reader r has received; the write may happen from the send on. */
hk_status hk_hazard_land(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block, uint32_t r);
hk_status hk_hazard_note_read(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block);
hk_status hk_hazard_note_reference(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block,
                                   uint32_t channel, uint32_t number);

/* ---- the report ---- */
hk_status hk_fault(hk_verifier *v, int rank, int lane, int instr, const char *format, ...)
    __attribute__((format(printf, 5, 6), cold));
hk_status hk_fault_here(hk_verifier *v, const hk_thread *t, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* As hk_fault, for the instruction that was event `event` of a thread. */
hk_status hk_fault_event(hk_verifier *v, const hk_thread *t, uint32_t event, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));
hk_status hk_fault_memory(hk_verifier *v);
hk_status hk_fault_deadlock(hk_verifier *v);
/* "rank 2's block 3", "the sum of block 3 over ranks 0 1 4 ..."; returns `text`. */
enum { HK_VALUE_TEXT = 160 };
const char *hk_value_text(const hk_verifier *v, hk_value x, char *text);
/* "rank 1 lane 0 instruction 4": the instruction that was event `event` of a thread. */
enum { HK_EVENT_TEXT = 112 };
const char *hk_event_text(const hk_thread *t, uint32_t event, char *text);
