/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a communicator's work, which lies on several streams and in captured graphs. */
#pragma once
#include <pthread.h>
#include "../device/device.h"

/* How far the calls are ahead of the GPU, if ranks of one process share it. The driver's queue of launches is
 * bounded: about 1000 entries, about two for each launch. A call that waits for space in it blocks the launches of the
 * ranks that it waits for. So a rank's calls wait earlier, outside the driver: at most 2 * HK_GPU_AHEAD launches
 * are ahead. */
enum { HK_GPU_AHEAD = 100 };
typedef struct hk_gpu_ahead {
  bool bounded;
  bool due;               /* a mark has been set since the last look */
  unsigned entries, turn; /* entries: launches and events since the newest mark; turn: index of the oldest mark */
  hk_queue_order mark[2];
} hk_gpu_ahead;

/* Times single operations for the communicator's counters, one at a time. */
typedef struct hk_gpu_timer {
  struct hk_meter *meter;
  struct hk_meter_cell *wanted; /* where the next piece of work was counted, if it is to be timed */
  struct hk_meter_cell *timed;  /* the same of the piece between the marks; NULL: there is none */
  bool open;                    /* only `begin` is set */
  void *begin, *end;            /* marks (device.h) */
} hk_gpu_timer;

typedef struct hk_gpu_order {
  hk_device *device;
  bool loose; /* captured work is not ordered at all */
  bool mixes; /* replays of captured work are ordered with the communicator's other work */
  /* a call was captured. Replays of its graph are not counted, so the ranks' counts of operations may differ. The
   * watchdog reads it on any thread. */
  _Atomic(bool) captures;
  pthread_mutex_t lock; /* protects `plain`: any thread that asks for errors reads it */
  hk_queue_order plain, captured;
  uint64_t launches; /* so far */
  hk_gpu_ahead ahead;
  hk_gpu_timer timer;
} hk_gpu_order;

/* `s`: the state of the queue `q`, in all functions. */
/* Orders the queue after the earlier work. */
hk_status hk_gpu_order_begin(hk_gpu_order *o, hk_queue q, const hk_queue_state *s);
/* Marks a point in the queue for another queue to follow. Nothing was launched, so that this is not hk_gpu_order_end: a
 * captured graph would get the edges of the earlier work twice, which a driver refuses. */
hk_status hk_gpu_order_mark(hk_gpu_order *o, hk_queue q, const hk_queue_state *s);
/* Orders the queue after the last mark or end. */
hk_status hk_gpu_order_follow(hk_gpu_order *o, hk_queue q, const hk_queue_state *s);
/* Records work that was put into the queue. */
hk_status hk_gpu_order_end(hk_gpu_order *o, hk_queue q, const hk_queue_state *s);
/* *done: all work has ended, but for replays.  An error if some failed.  From any thread. */
hk_status hk_gpu_order_over(hk_gpu_order *o, bool *done);
/* *near: the GPU is no more than the limit of hk_gpu_ahead behind. */
hk_status hk_gpu_order_near(hk_gpu_order *o, bool *near);
void hk_gpu_order_free(hk_gpu_order *o);
