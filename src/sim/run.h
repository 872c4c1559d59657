/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the simulator's parts.
 *
 *   sim.c       entry: programs, channels and chunk
 *   simulator.c a cluster that is ready to be simulated    choice.c   algorithm, protocol and channels
 *   costs.c     the times of software                      result.c   times, links, timeline
 *   fold.c      which hosts have equal surroundings, and the programs
 *   wire.c      threads, and the ends of their links tied together
 *   run.c       the loop: threads wait, move, signal
 *   coarse.c    the same at flow level, for large machines
 *   step.c      one instruction: its bytes and the resources it uses
 *   cluster.c   hosts and fabric as resources    flow.c   how flows share them
 *
 * A thread is one lane of one rank on one channel.  An end is one side of a link on one channel.  A message is
 * published to the ends that read it, with its time of arrival. A consumed message returns a credit in the same way. */
#pragma once
#include "../program/builder.h"
#include "../program/cursor.h"
#include "../program/limits.h"
#include "cluster.h"
#include "sim.h"

struct hk_algorithm; /* collectives/algorithm.h */

#define HK_SIM_NONE UINT32_MAX
enum { HK_SIM_SIDES = 8 << 20 };

/* Programs, built on demand and kept until the end. */
typedef struct hk_programs {
  const struct hk_algorithm *algorithm;
  hk_build what; /* without rank and channel */
  int norders;   /* different ring orders: channel c has the programs of order c % norders */
  hk_program **at;
} hk_programs;
hk_status hk_programs_init(hk_programs *p, const struct hk_algorithm *a, const hk_build *what, int norders);
void hk_programs_free(hk_programs *p);
hk_status hk_programs_get(hk_programs *p, int rank, int channel, const hk_program **out);
void hk_programs_drop(hk_programs *p, int rank); /* frees the rank's; they are built again on demand */
/* Finds hosts whose ranks do the same, with partners that do the same: fills w->rep and w->size. With more than
 * HK_SIM_SIDES links, or with `shifted`, builds only a few hosts' programs; all must be shifted copies of the first
 * host's. */
hk_status hk_fold(hk_sim_cluster *w, hk_programs *programs, bool shifted);

/* Times at which messages arrive, or credits return, oldest first. */
typedef struct hk_times {
  double *at; /* negative, -1 - time: the message is a reference to the sender's memory */
  uint32_t head, count, capacity;
} hk_times;

typedef struct hk_sim_queue {
  hk_flow flow;
  uint32_t end;   /* index of the sending side */
  hk_times bytes; /* sizes of messages that wait for the network; the first is being sent */
} hk_sim_queue;

typedef struct hk_side {
  hk_times times;
  uint32_t thread;
  uint32_t credits;                /* sender: slots never used yet */
  uint32_t sent;                   /* sender */
  uint32_t consumed;               /* receiver */
  uint32_t first_target, ntargets; /* sender: the sides that read it; receiver: the sides that get its credits */
  uint32_t first_use, nuses;       /* sender: its route's uses; receiver: the path from its sender's memory */
  hk_sim_queue *queue;             /* sender to another host */
  uint32_t *left;                  /* multicast sender: readers that have not given back each slot */
  int peer;                        /* the rank whose memory is at the other side, a rank of a representative host */
  float us;                        /* latency of a message */
  double us_per_byte;              /* sender to another host, at flow level */
  uint32_t needs, gives, passed;   /* rounds: after each `needs` messages or credits, the targets get `gives` of them */
  bool waiting;                    /* the thread waits for this side */
  bool sends, multicast, switched; /* switched: its slots are in a switch */
  bool summed;                     /* GPUs: the switch adds the data of all ranks in the slot */
} hk_side;

/* Counts one more message or credit; returns how many the side's targets get now. */
static inline uint32_t hk_side_passes(hk_side *e) { return ++e->passed % e->needs ? 0 : e->gives; }
/* A sender's credits at the beginning; a scatter has one round more. `nslots`: of links that are in no switch. */
static inline uint32_t hk_side_credits(const hk_side *e, uint32_t nslots) {
  const uint32_t slots = e->switched && nslots > HK_GPU_SWITCH_SLOTS ? HK_GPU_SWITCH_SLOTS : nslots;
  return e->sends ? slots + (e->needs > 1 ? e->needs : 0) : 0;
}

enum { HK_T_READY, HK_T_BLOCKED, HK_T_STARTING, HK_T_MOVING, HK_T_QUEUED, HK_T_DRAINING, HK_T_DONE };
typedef struct hk_lane_state {
  hk_flow flow; /* its flow.end is also the event of starting */
  const hk_program *program;
  const hk_instr *instrs;
  uint32_t side; /* index of the side of the program's link 0 on this channel */
  hk_cursor at;
  uint32_t scan;
  uint32_t outstanding; /* messages sent whose credit has not returned */
  uint32_t next;        /* next lane in the queue for the core */
  int rank;
  uint16_t channel, lane;
  uint8_t state;
  bool woken, refers, lent; /* refers: the instruction sends references; lent: an earlier one did */
  double began;
} hk_lane_state;

/* A rank on a CPU has one core for all its lanes. */
typedef struct hk_core {
  uint32_t head, tail; /* lanes that wait for it */
  bool busy;
} hk_core;

/* The instructions that have run, in the order of their ends. */
typedef struct hk_timeline {
  bool kept; /* else the spans are not wanted */
  uint32_t n, capacity;
  hk_sim_span *spans;
} hk_timeline;

typedef struct hk_sim {
  hk_sim_cluster cluster;
  hk_programs programs;
  const hk_sim_options *options;
  hk_coll coll;
  hk_sizes sizes;
  int channels;     /* simulated channels */
  int all_channels; /* existing channels */
  double alike;     /* number of channels that each simulated one represents */
  /* Effects of the protocol. */
  double wire; /* bytes on a link for one byte of payload */
  double lane_us, sync_us, far_sync_us, lane_rate;
  uint32_t nslots;
  bool gpu, coarse;
  bool cached;                /* CPU: the caches hold all buffers */
  double core_copy, core_add; /* microseconds a byte */
  double wake_us;

  hk_lane_state *threads;
  uint32_t nthreads;
  uint32_t live;          /* for coarse.c: lanes that have not ended */
  uint32_t *first_thread; /* [nranks] of representatives' ranks, HK_SIM_NONE for others */
  hk_side *sides;
  uint32_t nsides;
  uint32_t *first_side; /* [nranks * channels] */
  uint32_t *targets;
  hk_use *uses;
  uint32_t nuses, uses_capacity;
  hk_core *cores; /* [nranks]; NULL on GPUs */

  double finished;
  uint64_t steps;
  hk_sim_counts counts;
  hk_timeline timeline;
} hk_sim;

hk_status hk_sim_wire(hk_sim *s);
hk_status hk_sim_loop(hk_sim *s);
/* The same without events: for large machines. */
hk_status hk_sim_coarse(hk_sim *s);
void hk_sim_clear(hk_sim *s);

/* ---- step.c ---- */
static inline const hk_operand *hk_lane_operands(const hk_lane_state *t) {
  return hk_instr_operands(t->program, &t->instrs[t->at.pc]);
}
static inline hk_side *hk_lane_side(const hk_sim *s, const hk_lane_state *t, const hk_operand *o) {
  return &s->sides[t->side + hk_cursor_link(&t->at, o)];
}
static inline size_t hk_lane_bytes(const hk_sim *s, const hk_lane_state *t) {
  return hk_cursor_bytes(&t->at, t->program, &t->instrs[t->at.pc], hk_lane_operands(t), &s->sizes);
}
/* The lane's time for the instruction, in microseconds, before its data moves. */
double hk_step_us(const hk_sim *s, const hk_lane_state *t);
/* Sets the flow's uses and returns its highest rate; 0: nothing moves. */
hk_status hk_step_uses(hk_sim *s, hk_lane_state *t, size_t bytes, double *limit);

hk_status hk_times_push(hk_times *q, double at);
static inline double hk_times_first(const hk_times *q) { return q->at[q->head & (q->capacity - 1)]; }
static inline void hk_times_pop(hk_times *q) {
  q->head++;
  q->count--;
}
