/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the fake libibverbs.so.1: libibverbs.c makes and ends what there is, verbs_requests.c carries requests out. */
#ifndef HK_TEST_FAKE_VERBS_PARTS_H
#define HK_TEST_FAKE_VERBS_PARTS_H
#include <stdio.h>
#include <stdlib.h>
#include "../../src/base/verbs_abi.h"
#include "verbs.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT extern fake_verbs_state fake_verbs;

enum { QPS = 32768, MRS = 65536, MAX_WR = 16384, MAX_INLINE = 512, EVENTS = 64, SMALL = 4096 };

typedef struct device {
  hk_ibv_device v; /* first: callers hold pointers to these */
  int index;
} device;
typedef struct context {
  hk_ibv_context v;
  int events[2]; /* a pipe of asynchronous ones */
  int users;     /* protection domains, completion queues and channels */
  int unacked;   /* asynchronous events that were taken */
  struct context *next;
} context;
typedef struct domain {
  hk_ibv_pd v;
  int users; /* memory and queue pairs */
} domain;
extern context *contexts; /* that are open */
typedef struct memory {
  hk_ibv_mr v;
  char *host; /* where address `iova` lies */
  uint64_t iova;
  int access;
  void *map;
} memory;
typedef struct entry {
  hk_ibv_wc wc;
  struct qp *of;     /* NULL: it has been destroyed */
  uint32_t position; /* of the request, counted from 1 */
  int sent;
} entry;
typedef struct queue {
  hk_ibv_cq v;
  entry *entries;
  uint32_t head, tail;
  int armed, full, taken; /* taken: entries that its queue pairs may need */
  int unacked;            /* events on its channel that were taken */
} queue;
typedef struct channel {
  hk_ibv_channel v;
  queue *fired[EVENTS];
  int nfired, users;
} channel;
typedef struct request {
  hk_ibv_send_wr wr;
  hk_ibv_sge sge;
  char inlined[MAX_INLINE];
} request;
typedef struct qp {
  hk_ibv_qp v;
  int device, all;
  uint32_t depth, recv_depth, inline_most, dest, sgid, mtu, sq_psn, rq_psn;
  unsigned access, reads_out, reads_in;
  int to_device; /* by the address that it sends to; -1: without one */
  request *send;
  uint64_t *recv;
  uint32_t ece;
  uint8_t traffic_class;
  uint32_t first, last, recv_first, recv_last; /* counted from 0 */
  uint32_t reaped, recv_reaped;                /* requests whose room is free again: their completion was polled */
  int open;                                    /* in the list of those with requests that are carried out later */
  struct qp *next_open;
} qp;

/* What there is, by number; NULL: free. */
extern qp *qps[QPS];
extern memory *mrs[MRS];
static inline uint32_t index_of_key(uint32_t key) { return key >> 1 & (MRS - 1); }

static inline void lock(void) { pthread_mutex_lock(&fake_verbs.lock); }
static inline void unlock(void) { pthread_mutex_unlock(&fake_verbs.lock); }
static inline int index_of(const hk_ibv_context *c) { return ((device *)(void *)c->device)->index; }
static inline int on_gpu(const char *at) {
  return at >= fake_verbs.gpu && at < fake_verbs.gpu + fake_verbs.gpu_bytes &&
         !(fake_verbs.of_host && fake_verbs.of_host(at));
}

/* Ends the program: its user has broken a rule of verbs(3), for which cards answer with an error, a hang or damage. */
static inline void must(int kept, const char *rule) {
  if (kept) return;
  fprintf(stderr, "fake verbs: %s\n", rule);
  abort();
}

#define TRACE(...)                                                                                                     \
  do {                                                                                                                 \
    char call[160];                                                                                                    \
    if (!fake_verbs.trace) break;                                                                                      \
    snprintf(call, sizeof call, __VA_ARGS__);                                                                          \
    fake_verbs.trace(call, NULL, 0);                                                                                   \
  } while (0)

/* verbs_requests.c: what a context's users call, and under the lock: ends all requests; forgets the queue pair;
 * forgets writes to memory of a GPU's that it has not seen yet. */
void set_operations(hk_ibv_context *c);
void fail_qp(qp *p);
void forget_qp(qp *p);
void drop_late(const char *at, size_t bytes);
#endif
