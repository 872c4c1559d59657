/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of an MSCCL file, for msccl*.c only. */
#pragma once
#include <stdint.h>
#include "../program/program.h"
#include "../topo/xml_tree.h"
#include "trace.h"

enum { HK_MSCCL_STEPS = 1 << 20 };

/* What a step does, as bits: it waits for a message, adds, writes a buffer, sends. */
enum { HK_MSCCL_RECV = 1, HK_MSCCL_ADD = 2, HK_MSCCL_WRITE = 4, HK_MSCCL_SEND = 8, HK_MSCCL_READ = 16 };

/* A place in a rank's memory: buf is 'i', 'o' or 's'. */
typedef struct hk_msccl_place {
  char buf;
  int at;
} hk_msccl_place;

typedef struct hk_msccl_step {
  const hk_xml_node *node;
  unsigned does;
  hk_msccl_place from, to;
  int count;               /* chunks */
  int dep_block, dep_step; /* waits until this block of the rank has done this step; -1: it does not wait */
} hk_msccl_step;

typedef struct hk_msccl_block {
  const hk_xml_node *node;
  int gpu, id, send, recv, chan; /* send, recv: the peer; -1: none */
  int first, n;                  /* steps */
  int sender, receiver;          /* the blocks at the other ends: of `recv`, and of `send`; -1: none */
  /* While it runs: the next step, the chunks of it that are done, messages that this block has sent and received. */
  int pc, done, sent, received;
} hk_msccl_block;

typedef struct hk_msccl_file {
  hk_xml_report report;
  hk_coll coll;
  char name[24];
  int nranks;
  int chunks;  /* of the larger of a rank's buffers */
  int parts;   /* chunks of a message */
  int scratch; /* the most chunks of scratch memory of a rank */
  int first_block[HK_TRACE_RANKS + 1];
  bool in_place, out_of_place;    /* the calls for which the file is meant */
  unsigned long long least, most; /* bytes of a message, likewise; most 0: no limit */
  int nblocks, nsteps;
  hk_msccl_block *blocks; /* rank after rank, by id */
  hk_msccl_step *steps;
} hk_msccl_file;

/* msccl_file.c: fills `f`, whose nodes are of `t`, except what belongs to the run. A file that does not name its
 * collective is read as one of f->coll. HK_ERR_ARGUMENT: the error is in f->report, and not logged. */
hk_status hk_msccl_file_read(hk_msccl_file *f, hk_xml_tree *t);
/* A way to make the programs, with HK_TRACE_COPIES and HK_TRACE_DIRECT: all connections from one rank to another are
 * one link, and their blocks one lane. It fails if messages overtake each other. */
enum { HK_MSCCL_MERGE = 4 };
/* msccl_run.c: runs all blocks and makes the programs. Errors as above. */
hk_status hk_msccl_run(hk_msccl_file *f, unsigned how, hk_program_set *s);
