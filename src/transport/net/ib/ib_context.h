/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider of a rank has: ports, devices, connections, and its lock. */
#ifndef HK_TRANSPORT_NET_IB_CONTEXT_H
#define HK_TRANSPORT_NET_IB_CONTEXT_H
#include <pthread.h>
#include "../net.h"
#include "ib_device.h"

typedef struct hk_ib_conn hk_ib_conn;     /* ib_conn.h */
typedef struct hk_ib_region hk_ib_region; /* ib_memory.c */

struct hk_ib_ctx {
  const hk_transport_env *env;
  const hk_ibv *api;
  hk_ib_port ports[HK_IB_PORTS];
  int nports, nnear, local;
  const char *facts;
  size_t stride;
  hk_ib_device devices[HK_IB_PORTS];
  int ndevices;
  hk_ib_conn **conns; /* [room]; by index, NULL: free */
  uint32_t room, nconns, serial;
  /* The connections that may have something to move. Progress looks at these alone, and now and then at a few others
   * (ib.c). */
  hk_ib_conn **active;     /* [room] */
  uint32_t nactive, swept; /* swept: the index with which the next look at others begins */
  uint64_t next_sweep_ns;
  uint32_t idle;
  pthread_mutex_t lock; /* for everything that is not atomic or set once, and for the connections */
  uint64_t steps, seen; /* calls of progress; at the last tick */
  bool ceding;          /* there may be ends that wait for another network */
  bool scarce;          /* hk_ib_memory_is_scarce() at init */
  bool scarce_reported, asked_kernel;
  bool serving;                  /* the service thread holds the lock */
  pthread_t redialer;            /* ib_control.c */
  bool redialer_made, redialing; /* redialing: the thread will take the lock again */
  _Atomic(int) stop;             /* an hk_status: ends what that thread waits for */
  hk_ib_region *regions;         /* memory that the user has registered */
  _Atomic(bool) any_region;      /* there is one */
  uint64_t pinned, pinned_most;  /* bytes registered with devices */
  uint64_t placed, copied;       /* large messages that came straight to their places; that were copied from a FIFO */
  int timer;
  uint64_t timeout_ns; /* limit of hk_ib_conn.repairing_ns */
  uint64_t next_events_ns;
  hk_ib_gid_wish wish;
  int fifo_class; /* NCCL_IB_FIFO_TC */
  struct {
    bool known, direct; /* the ports were examined; cards can register its memory */
    uint8_t flushing;   /* hk_ib_flushing */
  } gpu;
};

/* For short waits under the lock, with a limit of their own. Any thread may wait so, and the watchdog reports
 * operations of the user's thread, so it does not check them. */
static inline hk_wait_env hk_ib_wait_env(const hk_ib_ctx *x) {
  return (hk_wait_env){.failure = x->env->wait ? x->env->wait->failure : NULL, .spins = 50};
}
#endif
