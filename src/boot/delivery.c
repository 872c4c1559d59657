/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps data connections that other ranks have made to this one until a transport takes them. */
#include <stdlib.h>
#include "internal.h"

int hk_bootstrap_take(hk_bootstrap *b, int peer, uint64_t tag) {
  int fd = -1;
  pthread_mutex_lock(&b->lock);
  for (hk_delivery **at = &b->deliveries; *at; at = &(*at)->next) {
    hk_delivery *v = *at;
    if (v->from != peer || v->tag != tag) continue;
    *at = v->next;
    if (!v->next) b->deliveries_end = at;
    fd = v->fd;
    free(v);
    break;
  }
  pthread_mutex_unlock(&b->lock);
  return fd;
}

struct hk_served *hk_delivery_served(hk_bootstrap *b, uint64_t tag) {
  for (int i = 0; i < HK_SERVED; i++)
    if (b->served[i].fn && b->served[i].tag == tag) return &b->served[i];
  return NULL;
}

void hk_bootstrap_serve(hk_bootstrap *b, uint64_t tag, void (*fn)(void *arg, int rank, int fd), void *arg) {
  pthread_mutex_lock(&b->lock);
  struct hk_served *s = hk_delivery_served(b, tag);
  for (int i = 0; !s && i < HK_SERVED; i++)
    if (!b->served[i].fn) s = &b->served[i];
  if (s) *s = (struct hk_served){fn, arg, tag};
  for (hk_delivery **at = &b->deliveries; fn && *at;) {
    hk_delivery *v = *at;
    if (v->tag != tag) {
      at = &v->next;
      continue;
    }
    *at = v->next;
    if (!v->next) b->deliveries_end = at;
    fn(arg, v->from, v->fd);
    free(v);
  }
  pthread_mutex_unlock(&b->lock);
}

int hk_bootstrap_untaken(hk_bootstrap *b, int after) {
  int low = -1;
  pthread_mutex_lock(&b->lock);
  for (const hk_delivery *v = b->deliveries; v; v = v->next)
    if (v->from > after && (low < 0 || v->from < low)) low = v->from;
  pthread_mutex_unlock(&b->lock);
  return low;
}
