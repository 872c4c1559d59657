/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of operations.def, with data that is checked.  Every element has the same value on a rank; an
 * operation that reported success and left another value in any place is counted in w->wrong. */
#include <stdio.h>
#include <string.h>
#include "rank.h"

enum { GROUP_MIDDLE = 1 << 18, GROUP_SEND = 1 << 14, SENT = 1 << 20, NEXT = 5 };

/* The value of a rank in a repetition: small, so that sums are exact in every type. */
static int value(int rank, int repetition) { return 1 + rank + repetition % 7; }
static int sum(int n, int repetition) {
  int s = 0;
  for (int r = 0; r < n; r++) s += value(r, repetition);
  return s;
}

static void fill(void *p, size_t n, int v) {
  int32_t *x = p;
  for (size_t i = 0; i < n; i++) x[i] = v;
}

static void check(run *w, const void *p, size_t n, int v) {
  const int32_t *x = p;
  long wrong = 0;
  for (size_t i = 0; i < n; i++) wrong += x[i] != v;
  if (wrong && !w->wrong) printf("rank %d: %ld of %zu wrong, the first is %d, not %d\n", w->rank, wrong, n, x[0], v);
  w->wrong += wrong;
}

call op_call(const run *w, int repetition) {
  call k = {.type = ncclInt32,
            .operator= ncclSum,
            .exclude = RANKS - 1,
            .peer = (w->rank + 1) % w->n,
            .in = w->in,
            .out = w->out,
            .count = 2};
  if (w->op == OP_large || w->op == OP_bcast) k.count = LARGE;
  if (w->op == OP_sendrecv && repetition % 2 == 0) k.count = SENT;
  return k;
}

void op_failed(run *w, ncclComm_t c, ncclResult_t code, const char *where) {
  if (w->code != ncclSuccess) return;
  w->ended = now_ns();
  w->code = code;
  w->where = where;
  snprintf(w->text, sizeof w->text, "%s", ncclGetLastError(c));
  atomic_fetch_or(&w->board->failed, 1u << w->rank);
}

static ncclResult_t allreduce(run *w, ncclComm_t c, const call *k, int rank, int n, int repetition) {
  if (k->in == w->in) fill(w->in, k->count, value(rank, repetition));
  ncclResult_t rc = ncclAllReduce(k->in, k->out, k->count, k->type, k->operator, c, NULL);
  if (rc == ncclSuccess && k->out == w->out) check(w, w->out, k->count, sum(n, repetition));
  return rc;
}

static ncclResult_t rooted(run *w, ncclComm_t c, const call *k, int repetition) {
  bool broadcast = w->op == OP_bcast || repetition % 2 == 0;
  if (k->in == w->in) fill(w->in, k->count, value(w->rank, repetition));
  ncclResult_t rc = broadcast ? ncclBroadcast(k->in, k->out, k->count, k->type, k->root, c, NULL)
                              : ncclReduce(k->in, k->out, k->count, k->type, k->operator, k->root, c, NULL);
  if (rc != ncclSuccess || k->out != w->out) return rc;
  if (broadcast)
    check(w, w->out, k->count, value(0, repetition)); /* all must agree: the root is 0 */
  else if (w->rank == k->root)
    check(w, w->out, k->count, sum(w->n, repetition));
  return rc;
}

/* Sends to the next rank (or to the victim's wrong one), receives from the one before. */
static ncclResult_t around(run *w, ncclComm_t c, const call *k, size_t count, int repetition) {
  int before = (w->rank + w->n - 1) % w->n;
  if (k->in == w->in) fill(w->in, count, value(w->rank, repetition));
  ncclGroupStart();
  ncclSend(k->in, count, k->type, k->peer, c, NULL);
  ncclRecv(k->out, count, k->type, before, c, NULL);
  ncclResult_t rc = ncclGroupEnd(); /* the first error of the calls in it, too */
  if (rc == ncclSuccess && k->out == w->out) check(w, w->out, count, value(before, repetition));
  return rc;
}

static ncclResult_t group(run *w, ncclComm_t c, const call *k, int repetition) {
  char *out = k->out, *in = w->in;
  int before = (w->rank + w->n - 1) % w->n;
  size_t at = 4096, far = at + GROUP_MIDDLE * 4;
  fill(in, 2, value(w->rank, repetition)), fill(in + at, GROUP_MIDDLE, value(w->rank, repetition + 1));
  fill(in + far, GROUP_SEND, value(w->rank, repetition + 2));
  ncclGroupStart();
  for (int i = 0; i < 2; i++) {
    if ((i == 0) != k->swapped)
      ncclAllReduce(k->in, out, k->count, k->type, k->operator, c, NULL);
    else
      ncclAllReduce(in + at, w->out + at, GROUP_MIDDLE, ncclInt32, ncclSum, c, NULL);
  }
  ncclSend(in + far, GROUP_SEND, ncclInt32, k->peer, c, NULL);
  ncclRecv(w->out + far, GROUP_SEND, ncclInt32, before, c, NULL);
  ncclResult_t rc = ncclGroupEnd();
  if (rc != ncclSuccess || out != w->out) return rc;
  check(w, out, k->count, sum(w->n, repetition));
  check(w, w->out + at, GROUP_MIDDLE, sum(w->n, repetition + 1));
  check(w, w->out + far, GROUP_SEND, value(before, repetition + 2));
  return rc;
}

/* A child of the communicator, what it adds up, and its end. */
static ncclResult_t child(run *w, ncclComm_t c, const call *k, int repetition) {
  ncclComm_t young = NULL;
  ncclResult_t rc;
  int exclude = k->exclude;
  if (w->op == OP_split)
    rc = ncclCommSplit(c, 0, w->rank, &young, NULL);
  else if (w->rank == RANKS - 1)
    return ncclSuccess;
  else
    rc = ncclCommShrink(c, &exclude, 1, &young, NULL, NCCL_SHRINK_DEFAULT);
  if (rc != ncclSuccess) op_failed(w, NULL, rc, "the child"); /* the parent may end with another text meanwhile */
  if (rc != ncclSuccess) return rc;
  call small = {.count = 2, .type = ncclInt32, .operator= ncclSum, .in = w->in, .out = w->out};
  rc = allreduce(w, young, &small, w->rank, w->op == OP_split ? w->n : w->n - 1, repetition);
  if (rc == ncclSuccess) return ncclCommDestroy(young);
  op_failed(w, young, rc, "the child's allreduce"); /* its text is the child's */
  ncclCommAbort(young);
  return rc;
}

ncclResult_t op_next(run *w, ncclComm_t c) {
  call k = {.count = NEXT, .type = ncclInt32, .operator= ncclSum, .in = w->in, .out = w->out};
  return allreduce(w, c, &k, w->rank, w->n, 3);
}

ncclResult_t op_all(run *w, ncclComm_t c, int rank, int n) {
  call k = {.count = 2, .type = ncclInt32, .operator= ncclSum, .in = w->in, .out = w->out};
  ncclResult_t rc = allreduce(w, c, &k, rank, n, 1);
  k.count = LARGE;
  if (rc == ncclSuccess) rc = allreduce(w, c, &k, rank, n, 2);
  return rc;
}

ncclResult_t op_run(run *w, ncclComm_t c, const call *k, int repetition) {
  w->calls++;
  switch (w->op) {
    case OP_init:
    case OP_destroy:
    case OPERATIONS: return ncclSuccess; /* perform.c */
    case OP_split:
    case OP_shrink: return child(w, c, k, repetition);
    case OP_idle:
    case OP_small:
    case OP_large: return allreduce(w, c, k, w->rank, w->n, repetition);
    case OP_rooted:
    case OP_bcast: return rooted(w, c, k, repetition);
    case OP_group: return group(w, c, k, repetition);
    case OP_sendrecv: return around(w, c, k, k->count, repetition);
  }
  return ncclInternalError;
}
