/* SPDX-License-Identifier: Apache-2.0 */
#include "textbook.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static hk_operand step(hk_operand o) {
  o.flags |= HK_OPERAND_STEP;
  return o;
}
static int wrap(int k, int n) { return ((k % n) + n) % n; }

/* One rank alone: its input is the result. */
static bool alone(hk_builder *b, const hk_build *w) {
  if (w->nranks > 1) return false;
  hk_operand out = hk_out(0, 0), in = hk_in(0, 0);
  hk_build_lane(b);
  hk_build_move(b, hk_coll_reduces(w->coll) ? HK_INSTR_FINAL : 0, &out, 1, &in, 1);
  return true;
}

static void ring_allreduce(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank, next = wrap(r + 1, n), prev = wrap(r - 1, n);
  if (alone(b, w)) return;
  hk_build_split(b, (unsigned)n);
  hk_build_lane(b);
#define BLOCK(k) (unsigned)wrap((k), n)
  hk_build_copy(b, hk_send_to(b, next, BLOCK(r), 0), hk_in(BLOCK(r), 0));
  hk_build_repeat(b, (unsigned)n - 2);
  hk_operand onward = hk_send_to(b, next, BLOCK(r - 1), -1);
  hk_build_move(b, 0, &onward, 1, (hk_operand[]){hk_recv_from(b, prev, BLOCK(r - 1), -1), hk_in(BLOCK(r - 1), -1)}, 2);
  hk_build_end_repeat(b);
  hk_build_move(b, HK_INSTR_FINAL, (hk_operand[]){hk_out(BLOCK(r + 1), 0), hk_send_to(b, next, BLOCK(r + 1), 0)}, 2,
                (hk_operand[]){hk_recv_from(b, prev, BLOCK(r + 1), 0), hk_in(BLOCK(r + 1), 0)}, 2);
  hk_build_repeat(b, (unsigned)n - 2);
  hk_operand from = hk_recv_from(b, prev, BLOCK(r), -1);
  hk_build_move(b, 0, (hk_operand[]){hk_out(BLOCK(r), -1), hk_send_to(b, next, BLOCK(r), -1)}, 2, &from, 1);
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(BLOCK(r + 2), 0), hk_recv_from(b, prev, BLOCK(r + 2), 0));
}

static void ring_reduce_scatter(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank, next = wrap(r + 1, n), prev = wrap(r - 1, n);
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, next, BLOCK(r - 1), 0), hk_in(BLOCK(r - 1), 0));
  hk_build_repeat(b, (unsigned)n - 2);
  hk_operand onward = hk_send_to(b, next, BLOCK(r - 2), -1);
  hk_build_move(b, 0, &onward, 1, (hk_operand[]){hk_recv_from(b, prev, BLOCK(r - 2), -1), hk_in(BLOCK(r - 2), -1)}, 2);
  hk_build_end_repeat(b);
  hk_operand out = hk_out(0, 0);
  hk_build_move(b, HK_INSTR_FINAL, &out, 1, (hk_operand[]){hk_recv_from(b, prev, BLOCK(r), 0), hk_in(BLOCK(r), 0)}, 2);
}

static void ring_allgather(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank, next = wrap(r + 1, n), prev = wrap(r - 1, n);
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_operand in = hk_in(0, 0);
  hk_build_move(b, 0, (hk_operand[]){hk_out(BLOCK(r), 0), hk_send_to(b, next, BLOCK(r), 0)}, 2, &in, 1);
  hk_build_repeat(b, (unsigned)n - 2);
  hk_operand from = hk_recv_from(b, prev, BLOCK(r - 1), -1);
  hk_build_move(b, 0, (hk_operand[]){hk_out(BLOCK(r - 1), -1), hk_send_to(b, next, BLOCK(r - 1), -1)}, 2, &from, 1);
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(BLOCK(r + 1), 0), hk_recv_from(b, prev, BLOCK(r + 1), 0));
}

/* Every rank sends everything to every other and adds up what it gets, in the order of ranks. */
static void oneshot_allreduce(hk_builder *b, const hk_build *w) {
  int n = w->nranks;
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_operand *to = calloc((size_t)n * 2, sizeof *to), *from = to + n;
  unsigned nto = 0;
  for (int q = 0; q < n; q++) {
    if (q != w->rank) to[nto++] = hk_send_to(b, q, 0, 0);
    from[q] = q == w->rank ? hk_in(0, 0) : hk_recv_from(b, q, 0, 0);
  }
  hk_operand in = hk_in(0, 0), out = hk_out(0, 0);
  hk_build_move(b, HK_INSTR_COPY, to, nto, &in, 1);
  hk_build_move(b, HK_INSTR_FINAL, &out, 1, from, (unsigned)n);
  free(to);
}

static void pairwise_alltoall(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank;
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_build_copy(b, hk_out(BLOCK(r), 0), hk_in(BLOCK(r), 0));
  for (int k = 1; k < n; k++) hk_build_link(b, HK_LINK_SEND, wrap(r + k, n));
  for (int k = 1; k < n; k++) hk_build_link(b, HK_LINK_RECV, wrap(r - k, n));
  hk_build_repeat(b, (unsigned)n - 1);
  /* The block's number on the way is the receiver's rank. */
  hk_build_copy(b, step(hk_send_to(b, wrap(r + 1, n), BLOCK(r + 1), 1)), hk_in(BLOCK(r + 1), 1));
  hk_build_copy(b, hk_out(BLOCK(r - 1), -1), step(hk_recv_from(b, wrap(r - 1, n), BLOCK(r), 0)));
  hk_build_end_repeat(b);
}

static void flat_broadcast(hk_builder *b, const hk_build *w) {
  hk_operand in = hk_in(0, 0);
  if (alone(b, w)) return;
  hk_build_lane(b);
  if (w->rank != w->root) {
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, w->root, 0, 0));
    return;
  }
  hk_operand *to = calloc((size_t)w->nranks, sizeof *to);
  for (int q = 0; q < w->nranks; q++) to[q] = q == w->root ? hk_out(0, 0) : hk_send_to(b, q, 0, 0);
  hk_build_move(b, 0, to, (unsigned)w->nranks, &in, 1);
  free(to);
}

static void multicast_broadcast(hk_builder *b, const hk_build *w) {
  hk_operand in = hk_in(0, 0);
  if (alone(b, w)) return;
  hk_build_split(b, 3);
  hk_build_lane(b);
  hk_build_repeat(b, 3);
  if (w->rank == w->root)
    hk_build_move(b, 0, (hk_operand[]){hk_mcast(b, 0, 1), hk_out(0, 1)}, 2, (in.stride = 1, &in), 1);
  else
    hk_build_copy(b, hk_out(0, 1), hk_mcast_from(b, w->root, 0, 1));
  hk_build_end_repeat(b);
}

/* A chain towards the root, in two lanes with a half of the message each. */
static void chain_reduce(hk_builder *b, const hk_build *w) {
  int n = w->nranks, place = wrap(w->rank - w->root, n); /* 0: the root; n - 1: the chain's begin */
  if (alone(b, w)) return;
  hk_build_split(b, 2);
  for (unsigned lane = 0; lane < 2; lane++) {
    hk_build_lane(b);
    hk_operand to = place ? hk_send_to(b, wrap(w->rank - 1, n), lane, 0) : hk_out(lane, 0);
    if (place == n - 1)
      hk_build_copy(b, to, hk_in(lane, 0));
    else
      hk_build_move(b, place ? 0 : HK_INSTR_FINAL, &to, 1,
                    (hk_operand[]){hk_recv_from(b, wrap(w->rank + 1, n), lane, 0), hk_in(lane, 0)}, 2);
  }
}

static void flat_gather(hk_builder *b, const hk_build *w) {
  hk_build_lane(b);
  for (int q = 0; q < w->nranks; q++) {
    if (w->rank == w->root)
      hk_build_copy(b, hk_out((unsigned)q, 0), q == w->root ? hk_in(0, 0) : hk_recv_from(b, q, (unsigned)q, 0));
    else if (w->rank == q)
      hk_build_copy(b, hk_send_to(b, w->root, (unsigned)q, 0), hk_in(0, 0));
  }
}

static void flat_scatter(hk_builder *b, const hk_build *w) {
  hk_build_lane(b);
  for (int q = 0; q < w->nranks; q++) {
    if (w->rank == w->root)
      hk_build_copy(b, q == w->root ? hk_out(0, 0) : hk_send_to(b, q, (unsigned)q, 0), hk_in((unsigned)q, 0));
    else if (w->rank == q)
      hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, w->root, (unsigned)q, 0));
  }
}

/* The network adds up. */
static void network_allreduce(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank;
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_operand to = hk_link_operand(b, HK_LINK_SUM_SEND, wrap(r + 1, n), 0, 0), in = hk_in(0, 0);
  hk_build_move(b, HK_INSTR_COPY, &to, 1, &in, 1);
  hk_operand from = hk_link_operand(b, HK_LINK_SUM_RECV, wrap(r - 1, n), 0, 0), out = hk_out(0, 0);
  hk_build_move(b, HK_INSTR_FINAL, &out, 1, &from, 1);
}

/* The network gathers, and scatters sums: it numbers the ranks from the lowest one on. */
static void network_allgather(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank;
  if (alone(b, w)) return;
  hk_build_lane(b);
  hk_operand to = hk_link_operand(b, HK_LINK_GATHER_SEND, wrap(r + 1, n), (unsigned)r, 0), in = hk_in(0, 0);
  hk_build_move(b, HK_INSTR_COPY, &to, 1, &in, 1);
  for (unsigned q = 0; q < (unsigned)n; q++)
    hk_build_copy(b, hk_out(q, 0), hk_link_operand(b, HK_LINK_GATHER_RECV, wrap(r - 1, n), q, 0));
}

static void network_reduce_scatter(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank;
  if (alone(b, w)) return;
  hk_build_lane(b);
  for (unsigned q = 0; q < (unsigned)n; q++) {
    hk_operand to = hk_link_operand(b, HK_LINK_SCATTER_SEND, wrap(r + 1, n), q, 0), in = hk_in(q, 0);
    hk_build_move(b, HK_INSTR_COPY, &to, 1, &in, 1);
  }
  hk_operand from = hk_link_operand(b, HK_LINK_SCATTER_RECV, wrap(r - 1, n), (unsigned)r, 0), out = hk_out(0, 0);
  hk_build_move(b, HK_INSTR_FINAL, &out, 1, &from, 1);
}

const textbook_entry textbook[] = {
    {"network-allgather", HK_ALLGATHER, network_allgather},
    {"network-reduce-scatter", HK_REDUCE_SCATTER, network_reduce_scatter},
    {"network-allreduce", HK_ALLREDUCE, network_allreduce},
    {"ring-allreduce", HK_ALLREDUCE, ring_allreduce},
    {"oneshot-allreduce", HK_ALLREDUCE, oneshot_allreduce},
    {"ring-reduce-scatter", HK_REDUCE_SCATTER, ring_reduce_scatter},
    {"ring-allgather", HK_ALLGATHER, ring_allgather},
    {"pairwise-alltoall", HK_ALLTOALL, pairwise_alltoall},
    {"flat-broadcast", HK_BROADCAST, flat_broadcast},
    {"multicast-broadcast", HK_BROADCAST, multicast_broadcast},
    {"chain-reduce", HK_REDUCE, chain_reduce},
    {"flat-gather", HK_GATHER, flat_gather},
    {"flat-scatter", HK_SCATTER, flat_scatter},
};
const size_t textbook_count = HK_ARRAY_LENGTH(textbook);

const textbook_entry *textbook_find(const char *name) {
  for (size_t k = 0; k < textbook_count; k++)
    if (strcmp(textbook[k].name, name) == 0) return &textbook[k];
  return NULL;
}

hk_program **textbook_build(const textbook_entry *e, int nranks, int root) {
  hk_program **programs = calloc((size_t)nranks, sizeof *programs);
  for (int r = 0; r < nranks; r++) {
    hk_build what = {.coll = e->coll, .rank = r, .nranks = nranks, .root = root};
    hk_builder *b;
    if (hk_builder_new(&b, &what) != HK_OK) goto fail;
    e->build(b, &what);
    if (hk_builder_finish(b, e->name, &programs[r]) != HK_OK) goto fail;
  }
  return programs;
fail:
  fprintf(stderr, "%s, %d ranks: %s\n", e->name, nranks, hk_last_error());
  programs_free(programs, nranks);
  return NULL;
}

void programs_free(hk_program **programs, int nranks) {
  for (int r = 0; r < nranks; r++) hk_program_free(programs[r]);
  free(programs);
}
