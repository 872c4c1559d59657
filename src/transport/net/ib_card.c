/* SPDX-License-Identifier: Apache-2.0 */
/* Open RDMA devices, and their events, each of which every user gets. */
#include "ib_card.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/fork.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken last: nothing that is called under it takes others */
HK_FORK_GUARD(lock);
static hk_ib_card *cards;

static hk_ib_card *find(const char *name) {
  for (hk_ib_card *c = cards; c; c = c->next)
    if (!c->gone && c->process == getpid() && strcmp(c->name, name) == 0) return c;
  return NULL;
}

static void free_card(const hk_ibv *api, hk_ib_card *c) {
  int err = errno;
  if (c->pd) api->dealloc_pd(c->pd);
  if (c->context) api->close_device(c->context);
  free(c);
  errno = err;
}

static hk_ib_card *open_card(const hk_ibv *api, const char *name) {
  int n = 0;
  hk_ib_card *c = calloc(1, sizeof *c);
  hk_ibv_device **list = c ? api->get_device_list(&n) : NULL;
  if (!c) return NULL;
  errno = ENODEV; /* for a device that is not in the list */
  for (int i = 0; i < n && !c->context; i++)
    if (strcmp(list[i]->name, name) == 0) c->context = api->open_device(list[i]);
  if (!c->context || !(c->pd = api->alloc_pd(c->context)) || api->query_device(c->context, &c->attr) != 0) {
    free_card(api, c);
    c = NULL;
  } else {
    c->name = c->context->device->name;
    /* Events are polled, never waited for. */
    int flags = fcntl(c->context->async_fd, F_GETFL);
    if (flags >= 0) (void)fcntl(c->context->async_fd, F_SETFL, flags | O_NONBLOCK);
  }
  if (list) api->free_device_list(list);
  return c;
}

hk_ib_card *hk_ib_card_open(const hk_ibv *api, const char *name, bool shared, uint64_t *heard) {
  pthread_mutex_lock(&lock);
  hk_ib_card *c = shared ? find(name) : NULL;
  if (!c && (c = open_card(api, name))) {
    c->process = getpid();
    c->shared = shared;
    if (shared) {
      c->next = cards;
      cards = c;
    }
  }
  if (c) {
    c->users++;
    *heard = c->nevents;
  }
  pthread_mutex_unlock(&lock);
  return c;
}

void hk_ib_card_close(const hk_ibv *api, hk_ib_card *c) {
  if (!c) return;
  pthread_mutex_lock(&lock);
  if (--c->users == 0) {
    hk_ib_card **at = &cards;
    while (c->shared && *at != c) at = &(*at)->next;
    if (c->shared) *at = c->next;
    free_card(api, c);
  }
  pthread_mutex_unlock(&lock);
}

bool hk_ib_card_event(const hk_ibv *api, hk_ib_card *c, uint64_t *heard, hk_ibv_async_event *e) {
  pthread_mutex_lock(&lock);
  while (api->get_async_event(c->context, e) == 0) {
    hk_ibv_async_event *kept = &c->events[c->nevents++ % HK_IB_CARD_EVENTS];
    *kept = *e;
    c->gone = c->gone || e->event_type == HK_IBV_EVENT_DEVICE_FATAL;
    api->ack_async_event(e); /* before the queue of the event is destroyed */
  }
  bool any = *heard < c->nevents;
  if (any && c->nevents - *heard > HK_IB_CARD_EVENTS) *heard = c->nevents - HK_IB_CARD_EVENTS;
  if (any) *e = c->events[(*heard)++ % HK_IB_CARD_EVENTS];
  pthread_mutex_unlock(&lock);
  return any;
}

bool hk_ib_card_opens(void *api, const char *name, char *why, size_t why_bytes) {
  pthread_mutex_lock(&lock);
  bool open = find(name) != NULL;
  pthread_mutex_unlock(&lock);
  return open || hk_ibv_opens(api, name, why, why_bytes);
}
