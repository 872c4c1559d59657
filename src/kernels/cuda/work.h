/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The data that the host passes to the kernels, and that they report to it. C and CUDA C include this header.
 *
 * A link between two GPUs (or two ranks of one) is a ring of slots like the host's (transport/link.h), with the same
 * numbering from 1, but for many threads at each end:
 *   - the receiver's memory holds for each slot a word and `slot_bytes` of data; the sender's holds the head counter;
 *   - the sender of slot k waits until head >= k - nslots, writes the data, then the slot's word (release);
 *   - the receiver of slot k waits for the word's upper half to be k (acquire), reads, then stores head = k (release);
 *   - the word's lower half is a hash of the call's signature and the length, by which mismatched calls are found;
 *   - `done` counts the slots in device memory, so that a captured launch can be replayed any number of times.
 * With LL each 8 bytes of data are in a line of 16 with flags, and no slot word is written: the flag is the lower bits
 * of the number and some bits of the word's tag. LL128's flag has all bits of both.
 * With LL128 each 120 bytes are in a line of 128 (wide.h), which needs memory that keeps a line whole: the device's
 * own, or another's over NVLink; never over PCIe. Lines begin as zeros. If a message does not fit into the lines, or
 * the link has none, it is sent as with Simple.
 *
 * Over the network each end has its own words in pinned host memory, each followed by a note for the proxy; gpu/proxy.h
 * describes that handshake. There, lines go only between a kernel and its proxy.
 *
 * By reference: if the receiver can read the sender's user memory, a Simple slot may hold the receiver's address of it
 * instead of the data; the tag of its word shows this. For ranks of one process on one GPU (`refs`) it is the sender's
 * own address, else it is computed from a call's tables of registered memory. Each sender decides for each slot, as on
 * the host. Before its kernel ends it waits for the credits of the slots that held references.
 *
 * In the switch (NVLS): slots and signals are in memory that is bound to a multicast object. Data for the rank that
 * adds stays in each sender's own memory; the receiver reads the same slot of all ranks at once, including its own
 * part, and the switch returns the sum. A multicast sender writes to all at once, and waits for the heads of all
 * readers. Signals are stored by the multicast address; all but one rank ignore them. In a sum for all each rank has
 * one part, in its own memory; its receiver waits for the words of all ranks, its own too, and its sender for the heads
 * of all.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../../program/operation.h"
#include "link_end.h"

enum {
  HK_GPU_OPERANDS = 136, /* the most operands of an instruction: programs with more cannot run on GPUs */
  HK_GPU_PROGRAM = 8192, /* bytes of a program that a block holds in shared memory */
  HK_GPU_WINDOW = 32,    /* instructions that a block holds there of a longer program */
  /* entries of an uneven call's table that a block holds there; a longer table stays in host memory */
  HK_GPU_EXTENTS = 128,
  /* links of a program that a block holds there, with counters; if there are more, those of one instruction */
  HK_GPU_LINKS = 160,
  HK_GPU_THREADS = 512,    /* the most threads of a block */
  HK_GPU_LL_TAG_BITS = 12, /* bits of the tag in an LL line's flag; the other bits are the slot's number */
};

/* XORed into the slot number in a proxied link's word if the payload is in LL lines and not in the data area. */
#define HK_GPU_IN_LINES 0x80000000u

/* The flag of an LL line: the lower bits of the slot's number, then some bits of the call's tag. */
HK_INLINE uint32_t hk_gpu_line_flag(uint64_t number, uint32_t tag) {
  /* The upper bits of a product depend on all bits of its factors. */
  return (uint32_t)number << HK_GPU_LL_TAG_BITS | (tag * 0x9e3779b1u) >> (32 - HK_GPU_LL_TAG_BITS);
}
/* True if all lines of slot `number` get a new flag before it.  For each slot that happens four times until the numbers
 * in flags repeat. */
HK_INLINE bool hk_gpu_lines_due(uint64_t number, uint32_t nslots) {
  return (number & ((1u << (32 - HK_GPU_LL_TAG_BITS - 2)) - 1)) < nslots;
}

/* One for each communicator, in mapped host memory. The first thread that finds an error writes it here. */
typedef struct hk_gpu_state {
  uint32_t abort; /* set by the host, or with an error: kernels end at once */
  uint32_t error; /* 0, or an hk_gpu_error */
  uint32_t peer, found, expected;
  uint32_t begun; /* a beginning kernel sets it to 1, the watchdog resets it */
  uint32_t reserved[10];
} hk_gpu_state;
typedef enum hk_gpu_error { HK_GPU_OK, HK_GPU_MISMATCH = 1 } hk_gpu_error;

/* How sources become one value: hk_reducer's fields. */
typedef struct hk_gpu_reducer {
  uint8_t dtype, op, elem_bytes, pre, post, reduces;
  uint8_t by_address; /* `scalar` is the address of an element of the type, read when the kernel begins */
  uint8_t reserved;
  int64_t divisor;
  uint64_t scalar; /* bits of the scalar, in the type of the arithmetic */
} hk_gpu_reducer;

/* One call: channels * lanes blocks. */
typedef struct hk_gpu_work {
  const void *program; /* hk_programs, 16-aligned, program_bytes apart: channel c runs number c % orders */
  hk_gpu_link *links;  /* [channels][nlinks] */
  const char *in;
  char *out;
  char *scratch; /* scratch_bytes for each block */
  uint64_t scratch_bytes;
  hk_sizes sizes;
  hk_gpu_state *state;
  hk_gpu_reducer reducer;
  const int64_t *seen_in, *seen_out; /* tables (HK_GPU_UNSEEN) of the memory of `in` and `out`; NULL: not registered */
  uint32_t signature;
  uint32_t program_bytes;           /* size of the longest program; 0, with one program: unknown */
  uint32_t nlinks;                  /* maximum over the programs */
  uint16_t channels, orders, lanes; /* lanes: maximum over the programs */
  uint8_t proto;
  uint8_t many;  /* some link has `others` */
  uint32_t next; /* index of the work that the same blocks run next, over the same links; 0: none */
} hk_gpu_work;

/* A kernel's parameters: one or more works that run at the same time, of one rank or of ranks that share the device. */
enum { HK_GPU_BATCH = (4096 - 128) / sizeof(hk_gpu_work) }; /* a kernel's parameters are 4 KiB at most */
typedef struct hk_gpu_batch {
  uint32_t works;             /* works with their own blocks; later entries are reached by `next` */
  uint32_t end[HK_GPU_BATCH]; /* work i has the grid's blocks from end[i - 1] (0 for i = 0) to end[i] - 1 */
  hk_gpu_work work[HK_GPU_BATCH];
} hk_gpu_batch;

/* The sends and receives of a group, or their parts for one link each. Each runs a program of one instruction
 * (collectives/transfer.h) in one block. */
typedef struct hk_gpu_transfers {
  const hk_gpu_work *work; /* block i begins with work[i]; NULL: `own`; only its used part is passed */
  hk_gpu_work own[HK_GPU_BATCH];
} hk_gpu_transfers;

/* ---- one-shot programs ----
 * { links } <- input, as a copy; output <- the sum of the input and of links, in one wave and with LL lines. A separate
 * kernel runs them (small.h): a block needs so few data that they fit into the kernel's parameters. */
enum { HK_GPU_SMALL_ENDS = HK_GPU_SMALL_SOURCES + HK_GPU_SMALL_SENDS };
/* Copies of members of the end's hk_gpu_link. */
typedef struct hk_gpu_small_end {
  uint64_t *done, *head;
  char *lines;
} hk_gpu_small_end;
/* One block: a channel's part of a call. */
typedef struct hk_gpu_small {
  /* Ends of the sources in order (the input's place is unused), then of the destinations. */
  hk_gpu_small_end end[HK_GPU_SMALL_ENDS];
  const hk_gpu_link *links; /* the channel's links in device memory, for rarely used fields */
  const char *in;
  char *out;
  hk_gpu_state *state;
  hk_gpu_reducer reducer;
  uint32_t bytes; /* of the channel: 1 to HK_GPU_LL_MAX */
  uint32_t signature;
  uint32_t nslots; /* equal at all ends */
  uint32_t ends;   /* a bit for each place of `end` that is used */
  uint32_t peer[HK_GPU_SMALL_SOURCES];
  uint16_t link[HK_GPU_SMALL_SENDS]; /* indices into `links` */
  uint8_t sources;                   /* number of sources, including the input */
  uint8_t first;                     /* 1: it is the work's first block */
  uint16_t reserved[3];
} hk_gpu_small;
enum { HK_GPU_SMALL_BATCH = 4096 / sizeof(hk_gpu_small) };
/* The kernel's parameters: one entry for each block. */
typedef struct hk_gpu_small_batch {
  hk_gpu_small block[HK_GPU_SMALL_BATCH];
} hk_gpu_small_batch;

#ifdef __cplusplus
static_assert(sizeof(hk_gpu_link) == 96 && sizeof(hk_gpu_state) == 64 && sizeof(hk_gpu_work) == 160, "one layout");
#else
_Static_assert(sizeof(hk_gpu_link) == 96 && sizeof(hk_gpu_state) == 64 && sizeof(hk_gpu_work) == 160, "one layout");
#endif

/* The names of the kernels. */
#define HK_GPU_RUN_BATCH "hk_run_batch"
#define HK_GPU_RUN_SMALL "hk_run_small"
#define HK_GPU_RUN_TRANSFERS "hk_run_transfers"
