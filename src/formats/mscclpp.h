/* SPDX-License-Identifier: Apache-2.0 */
/* An execution plan of MSCCL++, for mscclpp*.c only: its parts (mscclpp_file.c), and what it does (mscclpp_run.c). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../program/program.h"
#include "json_tree.h"
#include "trace.h"

enum {
  HK_MSCCLPP_RANKS = HK_TRACE_RANKS,
  HK_MSCCLPP_BLOCKS = 1024, /* thread blocks of all gpus */
  HK_MSCCLPP_OPS = 1 << 16,
  HK_MSCCLPP_BLOCK_OPS = 60000, /* of one thread block: their numbers are 16 bits */
  HK_MSCCLPP_CHANNELS = 1 << 14,
  HK_MSCCLPP_OPERANDS = 64,    /* of one list of an operation */
  HK_MSCCLPP_PLACES = 1 << 20, /* that all operations read and write */
  HK_MSCCLPP_CLOCKS = 1 << 26  /* numbers in the clocks of all signals */
};

/* The kinds of memory. A packet has two chunks' room in the scratch memory: data and flags. */
typedef enum hk_mscclpp_space {
  HK_MSCCLPP_IN,
  HK_MSCCLPP_OUT,
  HK_MSCCLPP_SCRATCH,
  HK_MSCCLPP_PACKETS,
  HK_MSCCLPP_SPACES
} hk_mscclpp_space;

typedef struct hk_mscclpp_buffer {
  uint8_t space;
  uint8_t waits; /* a source whose packets are waited for */
  int16_t rank;
  int at, size;  /* chunks */
  int slice, of; /* this slice of so many equal ones: a thread block of a group */
} hk_mscclpp_buffer;

typedef enum hk_mscclpp_kind {
  HK_MSCCLPP_MOVE,    /* its destinations receive the sum of its sources */
  HK_MSCCLPP_NOP,     /* the threads of the block wait for each other */
  HK_MSCCLPP_POST,    /* signals */
  HK_MSCCLPP_TAKE,    /* waits for signals */
  HK_MSCCLPP_BARRIER, /* of thread blocks */
  HK_MSCCLPP_FLUSH
} hk_mscclpp_kind;

typedef struct hk_mscclpp_op {
  uint8_t kind, name;    /* name: of hk_mscclpp_name */
  bool port;             /* by the proxy of a port channel */
  int number;            /* in its thread block of the file */
  int first, nsrc, ndst; /* MOVE: buffers. POST, TAKE: `nsrc` numbers of signals from `first` on */
  int barrier, blocks;   /* BARRIER: which, and how many thread blocks */
} hk_mscclpp_op;

typedef struct hk_mscclpp_block {
  int gpu, id;
  int first, n; /* ops */
} hk_mscclpp_block;

/* What is signalled: the end of a channel, or a semaphore of a gpu. */
typedef enum hk_mscclpp_channel {
  HK_MSCCLPP_MEMORY,
  HK_MSCCLPP_PORT,
  HK_MSCCLPP_SEMAPHORE,
  HK_MSCCLPP_TYPES
} hk_mscclpp_channel;
typedef struct hk_mscclpp_signal {
  uint8_t type;
  int gpu, number, peer; /* `number` of this type on the gpu */
  int turn;              /* a channel's number among those of the type to the peer */
  int other;             /* the end that receives what is sent here: a semaphore itself; -1: none */
  int start;             /* a semaphore's value at the beginning */
} hk_mscclpp_signal;

typedef struct hk_mscclpp_remote {
  int rank;
  uint8_t space;
} hk_mscclpp_remote;
typedef struct hk_mscclpp_switch {
  uint8_t space;
  uint64_t ranks;
} hk_mscclpp_switch;

typedef struct hk_mscclpp_gpu {
  int signals[HK_MSCCLPP_TYPES], nsignals[HK_MSCCLPP_TYPES]; /* first of each type, and their number */
  int remotes, nremotes, switches, nswitches;
  int scratch; /* chunks, as the file counts them */
  int first_block;
} hk_mscclpp_gpu;

typedef struct hk_mscclpp_file {
  const char *name; /* of the file */
  char algorithm[24];
  hk_coll coll;
  bool in_place, packets;
  unsigned long long least, most;
  int nranks, parts, nin, nout, scratch; /* chunks: of a message; of input, output, scratch memory */
  int slices;                            /* chunks for each chunk of the file */
  hk_mscclpp_gpu gpus[HK_MSCCLPP_RANKS + 1];
  hk_mscclpp_block *blocks;
  hk_mscclpp_op *ops;
  hk_mscclpp_buffer *buffers;
  hk_mscclpp_signal *signals;
  hk_mscclpp_remote *remotes;
  hk_mscclpp_switch *switches;
  int *numbers;
  int nblocks, nops, nbuffers, nsignals, nremotes, nswitches, nnumbers;
} hk_mscclpp_file;

const char *hk_mscclpp_name(const hk_mscclpp_op *o); /* "put" */
/* Fills f. An error is in the tree; HK_ERR_SYSTEM: no memory. */
hk_status hk_mscclpp_file_read(hk_mscclpp_file *f, const hk_json_node *file);
void hk_mscclpp_file_free(hk_mscclpp_file *f);

/* A chunk of a rank's memory: all spaces, one after another. */
typedef struct hk_mscclpp_place {
  int rank, at;
} hk_mscclpp_place;
/* One chunk of a MOVE. Events are in an order in which they can happen. */
typedef struct hk_mscclpp_event {
  int block, round;      /* round: of the schedule, in which each thread block did one step */
  int first, nsrc, ndst; /* places: sources, then destinations */
  int chunk;             /* of the message */
  bool final;            /* it completes a sum */
} hk_mscclpp_event;
typedef struct hk_mscclpp_events {
  const hk_mscclpp_file *f;
  hk_mscclpp_event *events;
  hk_mscclpp_place *places;
  int nevents, nplaces;
  size_t events_capacity, places_capacity;
} hk_mscclpp_events;

/* The number of places of a rank; where a space begins. */
int hk_mscclpp_places(const hk_mscclpp_file *f);
int hk_mscclpp_begin(const hk_mscclpp_file *f, hk_mscclpp_space s);
/* The output chunk at the place of an input chunk, if the call is in place; -1: none. */
int hk_mscclpp_alias(const hk_mscclpp_file *f, int rank, int in);

/* mscclpp_run.c: runs the plan. HK_ERR_ARGUMENT: it is wrong, and the message says where. Free t's arrays always. */
hk_status hk_mscclpp_run(const hk_mscclpp_file *f, hk_mscclpp_events *t);
/* Ways to make the programs, with HK_TRACE_COPIES and HK_TRACE_DIRECT. LANES: thread blocks that share no memory have
 * lanes of their own. JOIN: what a rank writes to another one goes over the same link as what the other one reads.
 * LATE: any number of messages is under way, so parts of a message that are treated alike have equal records. */
enum { HK_MSCCLPP_LANES = 16, HK_MSCCLPP_JOIN = 32, HK_MSCCLPP_LATE = 64 };
/* mscclpp_emit.c: makes the programs of the events. Unless LATE: a link of each kind has at most `slots` messages under
 * way. */
hk_status hk_mscclpp_emit(const hk_mscclpp_events *t, unsigned how, unsigned slots, hk_program_set *s);
