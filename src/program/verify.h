/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Runs all ranks' programs symbolically and proves, for the given number of FIFO slots:
 *  - every output block holds exactly the right contributions, each once, and the operator's last step applied once;
 *  - every send meets its receive, with equal logical blocks; nothing is left in a FIFO at the end;
 *  - nothing deadlocks. Lanes are deterministic and block on reads and writes of bounded FIFOs (a Kahn network), so one
 *    schedule decides for all schedules;
 * - two accesses to one output block, at least one a write, are ordered by happens-before in every schedule that the
 *    FIFOs allow (with in_place, input in the same memory counts as the block). A slot may hold a reference instead of
 *    a copy: to its instruction's only source, if that is input or output, or to an output block that the instruction
 *    writes. The reference reads the memory until all readers have consumed the slot. HK_INSTR_COPY forbids references.
 *    Data that a lane receives unchanged into one output (hk_instr_lands) may be written there as soon as it is sent:
 *    the send, not the lane's turn, must be ordered;
 *  - scratch is written before it is read (in the first wave, hence in each);
 *  - in an uneven collective, for any lengths of blocks: the length that an instruction moves is the length of its
 *    operands' blocks and of the data that it reads;
 *  - static rules: indices in range, at most one HK_IN source in an instruction, equal blocks in a split instruction,
 *    no input or output if only the root has one.
 *
 * On demand it also finds the order in which every output block is summed up: which instruction adds which sources in
 * which order, down to the inputs. Sums with equal orders are equal in every bit, because an instruction's result
 * depends only on its sources and their order.
 *
 * Its cost: about 0.15 us an instruction and 40 bytes an output block and wave; a ring of 1000 ranks takes half a
 * second.
 */
#pragma once
#include <stdbool.h>
#include "program.h"

/* Result about the order of sums, over all output blocks, ranks and waves; each value is stronger than the one
 * before. */
typedef enum hk_order {
  HK_ORDER_VARIES, /* blocks or ranks differ: the bits of an element depend on its place in the message */
  HK_ORDER_SIDES,  /* equal, except which value is on the left of an addition (max and min of -0 and 0 differ) */
  HK_ORDER_EQUAL,  /* equal; another algorithm, root or layout may have another order */
  HK_ORDER_FIXED   /* the fixed order (HK_FIXED_ORDER_SOURCES): equal wherever this is proved */
} hk_order;
const char *hk_order_name(hk_order o); /* "varies", "sides", "equal", "fixed" */

/* The most ranks, and blocks of a space: values of a proof are packed (verify_internal.h). */
enum { HK_VERIFY_MOST = 65535 };

typedef struct hk_verify_options {
  unsigned slots; /* of every FIFO, at least 1 */
  unsigned waves; /* 2 or more also checks dependencies between waves */
  bool in_place;
  bool orders;    /* if the collective reduces, find the order of its sums */
  hk_order least; /* with `orders`: a weaker order is a fault */
  /* Uneven collective: the seed of the random number of waves in which each block takes part. 0: in all waves. */
  uint64_t lengths;
  /* [nranks]: ranks of one host have equal numbers; NULL: one host. Multicasts and switches join those of one host. */
  const int32_t *host;
} hk_verify_options;

typedef struct hk_verify_report {
  char message[512];     /* empty when proved; else names rank, lane, instruction, block and what is wrong */
  int rank, lane, instr; /* of the fault, -1 if none applies */
  uint64_t steps;        /* instructions run */
  uint32_t sets;         /* the most sets of ranks (hk_rank_set) that existed at once */
  hk_order order;        /* with `orders`, of programs that are proved */
} hk_verify_report;

/* programs[r] is rank r's; all of one collective. HK_OK when proved, HK_ERR_INTERNAL with a report when not (other
 * errors, of memory or arguments, fill the message too). The fault found first in one schedule is reported. */
hk_status hk_verify(const hk_program *const *programs, int nranks, const hk_verify_options *options,
                    hk_verify_report *report);
