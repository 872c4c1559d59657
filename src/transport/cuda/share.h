/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory that ranks of two processes share: GPU memory, or pinned host memory. One process allocates it and makes an
 * offer; the other one opens it by the offer. After a failure *out can be given to hk_share_drop.
 */
#pragma once
#include "../../device/device.h"

struct hk_device_env;

typedef struct hk_shared {
  hk_memory memory;
  uint64_t region; /* id by which its file can be requested; 0: none */
  void *host;      /* host memory that was allocated or mapped */
  size_t mapped;   /* bytes to unmap; 0: `host` was allocated */
} hk_shared;

/* Data by which another process opens the memory. Sent unchanged. */
typedef struct hk_share_offer {
  /* region whose file the other process requests (device/host.h); 0: the handle in `share` is enough */
  uint64_t region;
  hk_memory_share share; /* handle of GPU memory; kind HK_MEMORY_NONE: host memory, or memory that cannot be shared */
  uint64_t at;           /* offset of the offered part, bytes */
} hk_share_offer;

/* ---- GPU memory ---- */
/* Rounded up to whole pages of the driver, because processes open whole pages. */
hk_status hk_share_make(const struct hk_device_env *e, size_t bytes, size_t zeroed, hk_memory *out);
/* Offers memory of hk_share_make to all processes, or only to the first that asks (`first`). hk_share_withdraw ends the
 * offer of o->region; 0 has none. */
hk_status hk_share_offer_memory(const struct hk_device_env *e, const hk_memory *m, bool first, hk_share_offer *o);
void hk_share_withdraw(uint64_t region);
hk_status hk_share_open(const struct hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *out);
/* The same for memory that was opened and then parked: opens it at its old address. */
hk_status hk_share_reopen(const struct hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *m);

/* ---- pinned host memory ---- */
/* Zeroed, on the NUMA node of the device. *region: the id by which ranks of other processes open it. */
hk_status hk_share_host_make(hk_device *d, size_t bytes, hk_shared *out, uint64_t *region);
hk_status hk_share_host_open(const struct hk_device_env *e, int peer, uint64_t region, hk_shared *out);

/* Releases either kind, on either side. */
void hk_share_drop(hk_device *d, hk_shared *s);

/* ---- the offer of a link's memory, over a connection of its own ---- */
hk_status hk_share_send(const struct hk_device_env *e, int peer, unsigned channel, const hk_share_offer *o);
/* Waits for the offer. */
hk_status hk_share_receive(const struct hk_device_env *e, int peer, unsigned channel, hk_share_offer *o);
