/* SPDX-License-Identifier: Apache-2.0 */
/* The run of an MSCCL++ plan: its schedule is in mscclpp_run.c, its memory and clocks are in mscclpp_access.c.
 * Clocks show what signals order, so an access that nothing orders is found, whatever the schedule was: clock[b][a] is
 * the last operation of thread block a that is over when thread block b goes on. */
#pragma once
#include "mscclpp.h"

/* A chunk of memory. The numbers of operations are of the file's list, or -1. */
typedef struct hk_mscclpp_cell {
  hk_trace_value data;
  int writer, readers; /* the operation that wrote it; since then: the first of the list of readers */
  int clock;           /* packets: the clock of their writer, which a reader gets */
  bool used, again;    /* again: it was written more than once */
} hk_mscclpp_cell;

typedef struct hk_mscclpp_access {
  int op, next;
} hk_mscclpp_access;

/* Clocks of signals that are sent and not yet taken; -1: of a semaphore's start. */
typedef struct hk_mscclpp_queue {
  int *clocks, n, taken;
} hk_mscclpp_queue;

typedef struct hk_mscclpp_state {
  const hk_mscclpp_file *f;
  hk_mscclpp_events *t;
  hk_mscclpp_cell *cells; /* by rank and place */
  uint16_t *known, *got;  /* by block: its clock; the same with what a wait has given and no nop has passed on */
  uint16_t *snapshots;
  int nsnapshots;
  size_t snapshots_capacity;
  hk_mscclpp_access *readers;
  int nreaders;
  hk_mscclpp_queue *queues; /* by signal */
  struct hk_mscclpp_progress {
    int pc, done;    /* the next operation; its chunks that are done */
    uint16_t synced; /* the last operation before the last nop */
    bool arrived;    /* at a barrier */
  } * blocks;
  int *arrived; /* by gpu and barrier: thread blocks */
  int round;
  bool no_memory, wrong;
} hk_mscclpp_state;

/* The number of an operation in the clocks; 1 is the beginning of its thread block. */
uint16_t hk_mscclpp_tick(const hk_mscclpp_state *x, int op);
/* Says it of the operation; returns false. */
bool hk_mscclpp_wrong(hk_mscclpp_state *x, int op, const char *format, ...) __attribute__((format(printf, 3, 4), cold));
/* Returns false. */
bool hk_mscclpp_no_memory(hk_mscclpp_state *x);
/* In place, an input chunk is the output chunk at its address. */
int hk_mscclpp_place_of(const hk_mscclpp_state *x, const hk_mscclpp_buffer *b, int chunk);
hk_mscclpp_cell *hk_mscclpp_cell_at(const hk_mscclpp_state *x, int rank, int place);
/* "chunk 3 of the input of gpu 1", as the file counts chunks. */
const char *hk_mscclpp_place_name(const hk_mscclpp_state *x, const hk_mscclpp_buffer *b, int chunk, char *text,
                                  size_t capacity);
/* Of a thread block, or a snapshot. */
uint16_t *hk_mscclpp_clock(uint16_t *clocks, const hk_mscclpp_state *x, int block);
void hk_mscclpp_merge(const hk_mscclpp_state *x, uint16_t *into, const uint16_t *from);
/* Keeps the clock that a signal of this thread block carries, with its operations up to `own`; -1: an error. */
int hk_mscclpp_snapshot(hk_mscclpp_state *x, int block, uint16_t own);
/* True if operation `before` is over when the thread block's threads, or one that has waited, go on. */
bool hk_mscclpp_ordered(const hk_mscclpp_state *x, const uint16_t *clock, int block, int before);
/* Says so; returns false. */
bool hk_mscclpp_unordered(hk_mscclpp_state *x, int op, bool writes, const hk_mscclpp_buffer *b, int chunk, int other,
                          bool other_writes);
/* False: it is wrong. */
bool hk_mscclpp_access_read(hk_mscclpp_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                            hk_trace_value *v);
/* False: it is wrong. */
bool hk_mscclpp_access_write(hk_mscclpp_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                             const hk_trace_value *v);
