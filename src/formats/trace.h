/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of another library's file do, as instructions. A reader runs the file and records them: msccl*.c,
 * mscclpp*.c. trace*.c makes programs of them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../program/program.h"
#include "file.h"

enum { HK_TRACE_RANKS = 64, HK_TRACE_CHUNKS = 4096, HK_TRACE_SOURCES = 16, HK_TRACE_DESTINATIONS = 16 };

/* What a chunk of memory holds: a chunk of the message, with the parts of these ranks; no rank: nothing. */
typedef struct hk_trace_value {
  int chunk;
  uint64_t ranks;
} hk_trace_value;

typedef struct hk_trace_operand {
  uint8_t space;  /* hk_space; HK_LINK: a block's connection, as source from its sender, else to its receiver */
  uint16_t block; /* of the program */
  int owner;      /* HK_LINK: the block of the trace */
} hk_trace_operand;

typedef struct hk_trace_record {
  int block; /* of the trace */
  int to;    /* the place that MSCCL's `re` adds to, in the output; -1: another record */
  int part;  /* of a message, that it moves */
  unsigned flags;
  uint8_t ndst, nsrc;
  hk_trace_operand dst[HK_TRACE_DESTINATIONS], src[HK_TRACE_SOURCES];
} hk_trace_record;

/* A rank's instructions. */
typedef struct hk_trace_rank {
  hk_trace_record *records;
  size_t nrecords, capacity;
} hk_trace_rank;

/* A part of a rank, with one connection to send and one to receive. */
typedef struct hk_trace_block {
  int send, recv;       /* the peers; -1: none */
  int sender, receiver; /* the blocks at the other ends: of `recv`, and of `send`; -1: none */
  int lane;             /* blocks of a rank with equal numbers run in one lane */
} hk_trace_block;

/* The link of a connection: two ranks have at most HK_CHANNELS, so connections may have to share one. */
typedef struct hk_trace_link {
  int first; /* the first sending block of those that share it, which counts for all */
  int channel;
} hk_trace_link;

/* Ways to make the programs. COPIES: a link carries a copy of memory that is written later; else a reference, which is
 * right if something shows that the receiver has read it by then. DIRECT: what is received into scratch memory and used
 * once is used where it arrives, so it occupies its slot for longer; what is written and sent is one instruction. */
enum { HK_TRACE_COPIES = 1, HK_TRACE_DIRECT = 2 };

typedef struct hk_trace {
  const char *file; /* its name */
  hk_coll coll;
  char name[24];     /* of the algorithm */
  unsigned how;      /* HK_TRACE_* */
  int nranks, parts; /* parts: chunks of a message */
  int nin, nout;     /* chunks of a rank's input and output */
  int scratch;       /* records name only scratch chunks below this number */
  int first_block[HK_TRACE_RANKS + 1];
  hk_trace_block *blocks; /* rank after rank */
  hk_trace_link *links;   /* by sending block */
  hk_trace_rank *ranks;
  unsigned used; /* scratch chunks that the programs use */
} hk_trace;

int hk_trace_lane(const hk_trace *x, int block); /* blocks with equal results run in one lane */
void hk_trace_tie(hk_trace *x, int a, int b);    /* they run in one lane */
/* The source of the record that is this chunk of scratch memory; -1: none. */
int hk_trace_reads(const hk_trace_record *r, uint16_t chunk);
/* True if the record writes this chunk of scratch memory. */
bool hk_trace_writes(const hk_trace_record *r, uint16_t chunk);
/* The output chunk at the place of an input chunk if the call is in place; -1: none. */
int hk_trace_alias(const hk_trace *x, int gpu, int in);
/* Frees all but the struct. */
void hk_trace_free(hk_trace *x);

/* trace_programs.c: the set gets the programs of all ranks, instead of those that it has, from their records. */
hk_status hk_trace_programs(hk_trace *x, hk_program_set *s);

/* The steps of hk_trace_programs. */
/* trace_fold.c: parts of a message that all ranks treat alike become one. The library makes copies of lanes itself, as
 * many as the call needs, so a file need not bring them. */
hk_status hk_trace_fold(hk_trace *x);
/* trace_sums.c: sums of scratch chunks into scratch memory are made where they are used. */
void hk_trace_spread_sums(hk_trace *x, int gpu);
