/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider of a rank has: ports, devices, connections, and its lock. */
#pragma once
#include <pthread.h>
#include "../net.h"
#include "ib_device.h"

typedef struct hk_ib_conn hk_ib_conn;     /* ib_conn.h */
typedef struct hk_ib_region hk_ib_region; /* ib_memory.c */

/* ib_progress.c: its calls. They look at the active connections alone, which may have something to move, and now and
 * then at a few others. */
typedef struct hk_ib_progress {
  hk_ib_conn **active;     /* [capacity] */
  uint32_t nactive, swept; /* swept: the index with which the next look at others begins */
  uint32_t idle;           /* calls since the last one that moved something */
  uint64_t steps;          /* number of calls */
  uint64_t next_sweep_ns, next_events_ns;
} hk_ib_progress;

/* ib_tick.c: the service thread. */
typedef struct hk_ib_ticking {
  int timer;
  bool serving;  /* the service thread holds the lock */
  uint64_t seen; /* progress.steps at the last tick */
} hk_ib_ticking;

/* ib_control.c: the thread that opens control connections again. */
typedef struct hk_ib_redialing {
  pthread_t thread;
  bool made, busy;   /* busy: the thread will take the lock again */
  _Atomic(int) stop; /* an hk_status: ends what the thread waits for */
} hk_ib_redialing;

/* ib_memory.c: memory that the user has registered. */
typedef struct hk_ib_user_regions {
  hk_ib_region *regions;
  _Atomic(bool) any; /* there is one */
} hk_ib_user_regions;

typedef struct hk_ib_counts {
  uint64_t pinned, pinned_most; /* bytes registered with devices */
  uint64_t placed, copied;      /* large messages that came straight to their places; that were copied from a FIFO */
} hk_ib_counts;

/* ib_gpu.c: the rank's GPU. */
typedef struct hk_ib_gpu_state {
  bool known, direct; /* the ports were examined; cards can register its memory */
  uint8_t flushing;   /* hk_ib_flushing */
} hk_ib_gpu_state;

struct hk_ib_ctx {
  pthread_mutex_t lock; /* for everything that is not atomic or set once, and for the connections */
  const hk_transport_env *env;
  const struct hk_ibv *api; /* ib_verbs.h */
  const char *facts;
  size_t stride;
  uint64_t timeout_ns; /* limit of hk_ib_conn.repair.spent_ns */
  hk_ib_gid_filter filter;
  int fifo_class; /* NCCL_IB_FIFO_TC */
  int nports, nnear, local;
  int most_cards; /* NCCL_NETDEVS_POLICY: of a rank's channels; 0: all that are near */
  hk_ib_port ports[HK_IB_PORTS];
  int ndevices;
  hk_ib_device devices[HK_IB_PORTS];
  hk_ib_conn **conns; /* [capacity]; by index, NULL: free */
  uint32_t capacity, nconns, serial;
  bool ceding; /* there may be ends that wait for another network */
  bool scarce; /* hk_ib_memory_is_scarce() at init */
  bool scarce_reported, asked_kernel;
  hk_ib_progress progress;
  hk_ib_ticking tick;
  hk_ib_redialing redial;
  hk_ib_user_regions user;
  hk_ib_counts counts;
  hk_ib_gpu_state gpu;
};

/* For short waits under the lock, with a limit of their own. Any thread may wait so, and the watchdog reports
 * operations of the user's thread, so it does not check them. */
static inline hk_wait_env hk_ib_wait_env(const hk_ib_ctx *x) {
  return (hk_wait_env){.failure = x->env->wait ? x->env->wait->failure : NULL, .spins = 50};
}

/* ---- ib_gpu_ports.c ---- */
/* Finds which ports are near the rank's GPU, and which can register its memory. Sorts x->ports and removes those that
 * do not fit. Before the first connection; takes the lock. */
void hk_ib_gpu_find_ports(hk_ib_ctx *x);

/* ---- ib_context.c: of the provider's table (net.h) ---- */
bool hk_ib_usable(const struct hk_settings *set, char *why, size_t why_bytes);
hk_status hk_ib_init(const hk_transport_env *env, void **out, void *fact);
void hk_ib_join(void *ctx, const char *facts, size_t stride);
bool hk_ib_reachable(void *ctx, int a, int b, char *why, size_t why_bytes);
void hk_ib_fini(void *ctx);

/* ---- ib_tick.c: the service thread's part ---- */
/* From here on the service thread does what connections need, until ticking stops; not under the lock. */
hk_status hk_ib_start_ticking(hk_ib_ctx *x);
void hk_ib_stop_ticking(hk_ib_ctx *x);

void hk_ib_control_end(hk_ib_ctx *x); /* ib_control.c: ends the thread; not under the lock */
void hk_ib_user_free(hk_ib_ctx *x);   /* ib_memory.c */
