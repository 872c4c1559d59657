/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

static hk_queue_order *order_of(hk_gpu_order *o, const hk_queue_state *s) {
  return s->capturing ? &o->captured : &o->plain;
}

hk_status hk_gpu_order_follow(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  return o->device->ops->order->begin(o->device, order_of(o, s), q, s);
}

static bool order_mixes(const hk_gpu_order *o, const hk_queue_state *s) {
  return s->capturing && o->mixes && !o->loose;
}

hk_status hk_gpu_order_begin(hk_gpu_order *o, hk_queue q, const hk_queue_state *s) {
  hk_status rc = HK_OK;
  if (s->capturing && o->loose) return HK_OK;
  if (order_mixes(o, s)) {
    pthread_mutex_lock(&o->lock);
    rc = o->device->ops->graph->begin(o->device, &o->plain, q, s);
    pthread_mutex_unlock(&o->lock);
  }
  return rc == HK_OK ? hk_gpu_order_follow(o, q, s) : rc;
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
}
