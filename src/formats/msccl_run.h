/* SPDX-License-Identifier: Apache-2.0 */
/* The run of an MSCCL file's blocks, for msccl_run.c. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../program/limits.h"
#include "msccl_file.h"

/* A rank's memory. */
typedef struct hk_msccl_memory {
  hk_trace_value *in, *out, *scratch;
  bool *moved; /* of the input: a step has written it, so it is in the output */
  int *owner;  /* of the scratch memory: a block that uses the chunk, plus 1 */
} hk_msccl_memory;

typedef struct hk_msccl_message {
  hk_trace_value data;
  int turn; /* its number among the messages of the link */
  int round;
} hk_msccl_message;
typedef struct hk_msccl_queue {
  hk_msccl_message *at;
  size_t capacity;
} hk_msccl_queue;

/* The messages of a link, by its first sending block. */
typedef struct hk_msccl_count {
  int sent, received;
} hk_msccl_count;

typedef struct hk_msccl_state {
  hk_msccl_file *f;
  hk_trace trace;
  int round; /* that runs */
  hk_msccl_memory *ranks;
  hk_msccl_queue *sent; /* by sending block */
  hk_msccl_count *counts;
  size_t *last; /* by block: its last record, plus 1 */
} hk_msccl_state;
