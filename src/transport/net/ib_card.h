/* SPDX-License-Identifier: Apache-2.0 */
/* Open RDMA devices. A connection of the net plugin has a context (hk_ib_ctx) of its own; all of a process share the
 * devices, so that a device is open once, however many connections there are. */
#ifndef HK_TRANSPORT_NET_IB_CARD_H
#define HK_TRANSPORT_NET_IB_CARD_H
#include "ib_verbs.h"

enum { HK_IB_CARD_EVENTS = 64 };

typedef struct hk_ib_card hk_ib_card;
struct hk_ib_card {
  hk_ib_card *next; /* of the shared ones */
  const char *name; /* the device's */
  hk_ibv_context *context;
  hk_ibv_pd *pd;
  hk_ibv_device_attr attr;
  int users, process; /* process: its id; a child of fork cannot use what its parent opened */
  bool shared, gone;  /* gone: it has failed; who opens the device from here on does not get this */
  uint64_t nevents;   /* so far; the last ones are here, for all users */
  hk_ibv_async_event events[HK_IB_CARD_EVENTS];
};

/* Opens a device. `shared`: one that is open already serves. *heard: the number of its events. NULL with errno. From
 * any thread. */
hk_ib_card *hk_ib_card_open(const hk_ibv *api, const char *name, bool shared, uint64_t *heard);
void hk_ib_card_close(const hk_ibv *api, hk_ib_card *c); /* does nothing if it is NULL */
/* The event after `*heard`, which it counts up; false: none. An event's object may no longer exist. */
bool hk_ib_card_event(const hk_ibv *api, hk_ib_card *c, uint64_t *heard, hk_ibv_async_event *e);
/* As hk_ibv_opens, which it asks about a device that is not open and shared. */
bool hk_ib_card_opens(void *api, const char *name, char *why, size_t why_bytes);
#endif
