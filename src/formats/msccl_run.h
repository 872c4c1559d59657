/* SPDX-License-Identifier: Apache-2.0 */
/* The run of an MSCCL file's blocks, for msccl_run.c, which runs them, and msccl_programs.c, which makes programs of
 * what they did. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../program/limits.h"
#include "msccl_file.h"

/* What a chunk of memory holds: a chunk of the message, with the parts of these ranks; no rank: nothing. */
typedef struct hk_msccl_value {
  int chunk;
  uint64_t ranks;
} hk_msccl_value;

typedef struct hk_msccl_operand {
  uint8_t space;  /* hk_space; HK_LINK: a block's connection, as source from its sender, else to its receiver */
  uint16_t block; /* of the program */
  int owner;      /* HK_LINK: the block of the file */
} hk_msccl_operand;

enum { HK_MSCCL_DESTINATIONS = 16 };
typedef struct hk_msccl_record {
  int block; /* of the file */
  int to;    /* the place that `re` adds to, in the output; -1: another type of step */
  int part;  /* of a message, that it moves */
  unsigned flags;
  uint8_t ndst, nsrc;
  hk_msccl_operand dst[HK_MSCCL_DESTINATIONS], src[HK_MSCCL_SOURCES];
} hk_msccl_record;

/* A rank's memory and instructions. */
typedef struct hk_msccl_memory {
  hk_msccl_value *in, *out, *scratch;
  bool *moved; /* of the input: a step has written it, so it is in the output */
  int *owner;  /* of the scratch memory: a block that uses the chunk, plus 1 */
  hk_msccl_record *records;
  size_t nrecords, room;
} hk_msccl_memory;

typedef struct hk_msccl_message {
  hk_msccl_value data;
  int turn; /* its number among the messages of the link */
  int round;
} hk_msccl_message;
typedef struct hk_msccl_queue {
  hk_msccl_message *at;
  size_t room;
} hk_msccl_queue;

/* The link of a connection: two ranks have at most HK_CHANNELS, so connections may have to share one. */
typedef struct hk_msccl_link {
  int first; /* the first sending block of those that share it, which counts for all */
  int channel;
  int sent, received; /* messages */
} hk_msccl_link;

typedef struct hk_msccl_state {
  hk_msccl_file *f;
  unsigned how;  /* HK_MSCCL_COPIES and the like */
  int round;     /* that runs */
  int parts;     /* chunks of a message */
  int nin, nout; /* chunks of a rank's input and output */
  hk_msccl_memory *ranks;
  hk_msccl_queue *sent; /* by sending block */
  hk_msccl_link *links; /* likewise */
  size_t *last;         /* by block: its last record, plus 1 */
  unsigned scratch;     /* chunks that the programs use */
} hk_msccl_state;

int hk_msccl_lane(const hk_msccl_state *x, int block); /* blocks with equal results run in one lane */
/* The output chunk at the place of an input chunk if the call is in place; -1: none. */
int hk_msccl_alias(const hk_msccl_state *x, int gpu, int in);
/* msccl_fold.c: parts of a message that all ranks treat alike become one. The library makes copies of lanes itself, as
 * many as the call needs, so a file need not bring them. */
hk_status hk_msccl_fold(hk_msccl_state *x);
/* msccl_sums.c: sums of scratch chunks into scratch memory are made where they are used. */
void hk_msccl_spread_sums(hk_msccl_state *x, int gpu);
/* msccl_programs.c: of all ranks, from their records. */
hk_status hk_msccl_programs(hk_msccl_state *x, hk_program **programs);
