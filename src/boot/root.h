/* SPDX-License-Identifier: Apache-2.0 */
/* A root and the ranks that have joined it, for root.c (ranks join) and root_end.c (all else). Under the listener's
 * lock. */
#pragma once
#include "../base/param.h"
#include "job.h"
#include "listener.h"
#include "process.h"

#define HK_SECOND_NS 1000000000ull

typedef struct hk_root_waiter { /* a rank of the root's own process */
  pthread_cond_t cond;
  bool done;
  hk_reply reply;
} hk_root_waiter;

typedef enum hk_root_entry_state { HK_ROOT_ENTRY_EMPTY, HK_ROOT_ENTRY_JOINED, HK_ROOT_ENTRY_LOST } hk_root_entry_state;
typedef struct hk_root_entry {
  uint8_t state;    /* hk_root_entry_state */
  uint64_t lost_ns; /* with HK_ROOT_ENTRY_LOST: when */
  uint64_t back_ns; /* with HK_ROOT_ENTRY_LOST: for how long the rank may join again */
  /* At most one of the two is set. A rank that waits long for an ack tries another address with the same nonce, and
   * keeps one of the connections: it gets the answer over all of them. */
  hk_connection *connection; /* linked by `next` */
  hk_root_waiter *waiter;
  uint8_t nonce[HK_NONCE_BYTES];
  uint8_t contact[HK_CONTACT_BYTES];
} hk_root_entry;

typedef enum hk_root_state { HK_ROOT_GATHERING, HK_ROOT_DONE, HK_ROOT_FAILED } hk_root_state;
typedef struct hk_root {
  struct hk_root *next;
  hk_listener *listener;
  hk_root_state state;
  const hk_settings *settings; /* as they were when the root was made */
  uint8_t secret[HK_SECRET_BYTES];
  uint64_t key, salt;
  hk_boot_job job; /* of an NCCL_COMM_ID; else the token is 0 */
  int socket_fd;   /* its own listening socket, for NCCL_COMM_ID; -1: none */
  uint64_t born_ns, first_ns, ended_ns;
  uint64_t reported_ns;      /* how long ranks had been missing at the last report (inquiry.h) */
  int nranks, nroots, index; /* as the first rank says; nranks 0: no rank has joined */
  int first;                 /* the first rank; it may have used the id of another root, and then has not joined */
  int low, share, entries;   /* ranks [low, low + share); entries: one more if the next rank belongs to another root */
  int joined;
  hk_root_entry *entry;
  bool sweep; /* ended, and connections wait for the answer */
  hk_status status;
  char text[HK_REPLY_TEXT];
  char *file; /* that has the id, removed at the root's end; NULL: none */
} hk_root;

static inline int hk_root_rank(const hk_root *r, int at) { return (r->low + at) % r->nranks; }

/* ---- root_end.c ---- */
/* Answers all ranks. */
void hk_root_end(hk_root *r, hk_root_state state);
/* The same with an error. */
void hk_root_fail(hk_root *r, hk_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Closes the connections of an entry. */
void hk_root_drop(hk_root_entry *s);
/* Encodes a reply for a rank of another process, for which a lack of resources here is a remote error. */
void hk_root_encode(const hk_root *r, hk_reply *reply, const uint8_t nonce[HK_NONCE_BYTES],
                    uint8_t out[HK_REPLY_BYTES]);
