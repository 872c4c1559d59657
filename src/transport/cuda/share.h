/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory that ranks of two processes use together: of a GPU, or pinned memory of the host.  One process makes it and an
 * offer; the other one opens it by the offer.  What fails leaves *out ready for hk_share_drop.
 */
#ifndef HK_TRANSPORT_CUDA_SHARE_H
#define HK_TRANSPORT_CUDA_SHARE_H
#include "../../device/device.h"

struct hk_device_env;

typedef struct hk_shared {
  hk_memory memory;
  uint64_t region; /* under which its file can be asked for; 0: none */
  void *host;      /* memory of the host: what was allocated or mapped */
  size_t mapped;   /* bytes to unmap; 0: `host` was allocated */
} hk_shared;

/* How another process opens the memory.  Sent as it is. */
typedef struct hk_share_offer {
  uint64_t region;       /* whose file it asks for (device/host.h); 0: the handle in `share` is enough */
  hk_memory_share share; /* of GPU memory; kind HK_MEMORY_NONE: it is the host's, or cannot be shared */
  uint64_t at;           /* how far from its beginning that lies which is offered */
} hk_share_offer;

/* ---- GPU memory ---- */
/* Rounded up to whole pages of the driver, because processes open whole pages. */
hk_status hk_share_make(const struct hk_device_env *e, size_t bytes, size_t zeroed, hk_memory *out);
/* Offers memory of hk_share_make to all processes, or to the `first` that asks.  hk_share_withdraw ends the offer
 * of o->region; 0 has none. */
hk_status hk_share_offer_memory(const struct hk_device_env *e, const hk_memory *m, bool first, hk_share_offer *o);
void hk_share_withdraw(uint64_t region);
hk_status hk_share_open(const struct hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *out);
/* The same for memory that was opened and parked: where it was. */
hk_status hk_share_reopen(const struct hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *m);

/* ---- pinned host memory ---- */
/* Zeros, on the NUMA node of the device; *region: by which ranks of other processes open it. */
hk_status hk_share_host_make(hk_device *d, size_t bytes, hk_shared *out, uint64_t *region);
hk_status hk_share_host_open(const struct hk_device_env *e, int peer, uint64_t region, hk_shared *out);

/* Releases either kind, on either side. */
void hk_share_drop(hk_device *d, hk_shared *s);

/* ---- the offer of a link's memory, over a connection of its own ---- */
hk_status hk_share_send(const struct hk_device_env *e, int peer, unsigned channel, const hk_share_offer *o);
/* Waits for it. */
hk_status hk_share_receive(const struct hk_device_env *e, int peer, unsigned channel, hk_share_offer *o);
#endif
