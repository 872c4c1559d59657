/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"
#include "../base/meter.h"
#include "../base/wait.h" /* hk_now_ns */

static hk_queue_order *order_of(hk_gpu_order *o, const hk_queue_state *s) {
  return s->capturing ? &o->captured : &o->plain;
}

hk_status hk_gpu_order_follow(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  return o->device->ops->order->begin(o->device, order_of(o, s), q, s);
}

static bool order_mixes(const hk_gpu_order *o, const hk_queue_state *s) {
  return s->capturing && o->mixes && !o->loose;
}

/* The work that is wanted next becomes the timed one, unless another one runs still.  Times are a statistic: if one
 * cannot be had, it is left out. */
static void order_time_begin(hk_gpu_timer *t, hk_device *d, hk_queue q, const hk_queue_state *s) {
  bool done = false;
  uint64_t ns = 0;
  hk_meter_cell *wanted = t->wanted;
  t->wanted = NULL;
  if (!wanted || s->capturing || !d->ops->time) return;
  if (t->timed && d->ops->time->between(d, t->begin, t->end, &done, &ns) == HK_OK && !done) return;
  if (t->timed && done) hk_meter_sampled(t->meter, t->timed, ns, hk_now_ns());
  t->timed = d->ops->time->mark(d, &t->begin, q, s) == HK_OK ? wanted : NULL;
  t->open = t->timed != NULL;
}

static void order_time_end(hk_gpu_timer *t, hk_device *d, hk_queue q, const hk_queue_state *s) {
  if (!t->open) return;
  t->open = false;
  if (s->capturing || d->ops->time->mark(d, &t->end, q, s) != HK_OK) t->timed = NULL;
}

hk_status hk_gpu_order_begin(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  hk_status rc = HK_OK;
  if (s->capturing && o->loose) return HK_OK;
  if (order_mixes(o, s)) {
    pthread_mutex_lock(&o->lock);
    rc = o->device->ops->graph->begin(o->device, &o->plain, q, s);
    pthread_mutex_unlock(&o->lock);
  }
  if (rc == HK_OK) rc = hk_gpu_order_follow(o, q, s);
  if (rc == HK_OK) order_time_begin(&o->timer, o->device, q, s);
  return rc;
}

hk_status hk_gpu_order_mark(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  pthread_mutex_lock(&o->lock);
  hk_status rc = o->device->ops->order->end(o->device, order_of(o, s), q, s);
  pthread_mutex_unlock(&o->lock);
  return rc;
}

static hk_status order_ahead(hk_gpu_ahead *a, hk_device *d, hk_queue q, const hk_queue_state *s) {
  if (!a->bounded || s->capturing || ++a->entries < HK_GPU_AHEAD) return HK_OK;
  hk_queue_order *newest = &a->mark[a->turn];
  a->entries = 0;
  a->turn ^= 1;
  a->due = true;
  return d->ops->order->end(d, newest, q, s);
}

hk_status hk_gpu_order_end(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  order_time_end(&o->timer, o->device, q, s);
  pthread_mutex_lock(&o->lock);
  hk_status rc = o->device->ops->order->end(o->device, order_of(o, s), q, s);
  if (rc == HK_OK && order_mixes(o, s)) rc = o->device->ops->graph->end(o->device, &o->plain, q, s);
  if (rc == HK_OK) rc = order_ahead(&o->ahead, o->device, q, s);
  o->launches++;
  pthread_mutex_unlock(&o->lock);
  return rc;
}

hk_status hk_gpu_order_over(hk_gpu_order *o, bool *done) {
  pthread_mutex_lock(&o->lock);
  hk_status rc = o->device->ops->order->done(o->device, &o->plain, done);
  pthread_mutex_unlock(&o->lock);
  return rc;
}

hk_status hk_gpu_order_near(hk_gpu_order *o, bool *near) {
  *near = true;
  if (!o->ahead.due) return HK_OK;
  HK_OR_RETURN(o->device->ops->order->done(o->device, &o->ahead.mark[o->ahead.turn], near));
  o->ahead.due = !*near;
  return HK_OK;
}

void hk_gpu_order_free(hk_gpu_order *o) {
  (void)o->device->ops->order->free(o->device, &o->plain);
  (void)o->device->ops->order->free(o->device, &o->captured);
  for (int i = 0; i < 2; i++) (void)o->device->ops->order->free(o->device, &o->ahead.mark[i]);
  if (!o->device->ops->time) return;
  (void)o->device->ops->time->free(o->device, o->timer.begin);
  (void)o->device->ops->time->free(o->device, o->timer.end);
}
