/* SPDX-License-Identifier: Apache-2.0 */
/* The making of programs of an MSCCL++ plan: lanes and links are in mscclpp_lanes.c, instructions in mscclpp_emit.c. */
#pragma once
#include "mscclpp.h"

/* A message that is sent, and whose place has not been used yet. */
typedef struct hk_mscclpp_message {
  int place, next; /* of the receiving rank; the next message of the link, or -1 */
  int when;        /* it was sent, as a number of messages */
  uint16_t block;  /* of the message's chunk */
} hk_mscclpp_message;

/* A link has one lane at either end. Messages that an event writes and those that it reads are in different links, so
 * that a rank can send what others read before it does its own part of these events. */
typedef struct hk_mscclpp_link {
  int from, to; /* agents that stand for the lanes */
  bool reads;
  int channel;
  int send_block, recv_block; /* of the trace */
  int first, last, under_way; /* messages that are sent and not received, except those that an event receives itself */
  int stopped;                /* the round in which no more messages are sent ahead */
  int next;                   /* link of the same sending lane, or -1 */
  int with;                   /* the link whose messages go over this one's, or -1 */
} hk_mscclpp_link;

/* A place of a rank: its pending message's link, or -1; `written`: it does not hold the user's input. */
typedef struct hk_mscclpp_emit_place {
  int link;
  int round; /* in which it was written last */
  bool written, shared;
  int agent; /* that uses it, or -1 */
} hk_mscclpp_emit_place;

typedef struct hk_mscclpp_emitter {
  const hk_mscclpp_events *t;
  const hk_mscclpp_file *f;
  unsigned slots;
  int *lanes; /* by agent: another agent of its lane; its own number: it stands for the lane */
  hk_mscclpp_emit_place *cells;
  hk_mscclpp_link *links;
  int *first_link; /* by agent */
  int nlinks;
  int *inputs; /* by rank and output chunk: the input chunk at its place, if the call is in place, or -1 */
  hk_mscclpp_message *messages;
  int nmessages;
  int sent;   /* messages */
  int *ahead; /* by place of the events: when its message was sent, or 0 */
  bool joins; /* links are to be joined */
  hk_trace trace;
  int nblocks;     /* of the trace */
  int *lane_block; /* by agent that stands for a lane: a block of the trace */
  bool no_memory;
} hk_mscclpp_emitter;

/* Returns false. */
bool hk_mscclpp_emit_no_memory(hk_mscclpp_emitter *x);
/* What a thread block does on a rank, its own one or another, is an agent. On another rank it is in the lane of the
 * thread block with its number there. Agents of a rank that use a chunk which one of them writes are in one lane. */
int hk_mscclpp_agent(const hk_mscclpp_emitter *x, int block, int rank);
/* The agent that stands for its lane. */
int hk_mscclpp_lane(const hk_mscclpp_emitter *x, int agent);
hk_mscclpp_emit_place *hk_mscclpp_emit_cell(const hk_mscclpp_emitter *x, const hk_mscclpp_place *p);
/* The cell that two chunks share which are at one address if the call is in place. */
hk_mscclpp_emit_place *hk_mscclpp_shared_cell(const hk_mscclpp_emitter *x, hk_mscclpp_place p);
void hk_mscclpp_find_lanes(hk_mscclpp_emitter *x);
/* One lane for each rank. */
void hk_mscclpp_one_lane(hk_mscclpp_emitter *x);
/* The link between the lanes of two agents; -1: no memory. */
int hk_mscclpp_link_of(hk_mscclpp_emitter *x, int from, int to, bool reads);
/* False: no memory. */
bool hk_mscclpp_find_links(hk_mscclpp_emitter *x);
/* Lanes become one if two ranks have more than HK_CHANNELS links. Returns false if so: links must be found again. */
bool hk_mscclpp_few_links(hk_mscclpp_emitter *x, int *numbers);
/* The channels of two ranks' links, from 0 on. False: no memory. */
bool hk_mscclpp_number_links(hk_mscclpp_emitter *x);
/* Joins the links whose messages have one order at both ends. False: no memory. */
bool hk_mscclpp_join_links(hk_mscclpp_emitter *x);
