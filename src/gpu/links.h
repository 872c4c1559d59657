/* SPDX-License-Identifier: Apache-2.0 */
/* The links of a rank on a GPU: reach.c chooses their kinds, endpoints.c makes their ends. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include "../device/device.h"

struct hk_device_env; /* transport/device_links.h */
struct hk_device_links;
struct hk_device_peer;
struct hk_gpu_endpoint;
struct hk_gpu_proxy;
struct hk_gpu_proxy_work; /* proxy.h */

/* Channels of a GPU's links: first those of collectives, then those among which one send or receive is divided. */
enum { HK_GPU_CHANNELS = 64, HK_GPU_P2P_CHANNELS = 8 };

/* The links to a peer. */
typedef struct hk_gpu_route {
  const struct hk_device_links *by;
  unsigned can; /* properties of the links: HK_DEVICE_* */
} hk_gpu_route;

typedef struct hk_gpu_links {
  struct hk_device_env *env;          /* what the device links get from the communicator */
  struct hk_device_peer *peers;       /* [nranks]: env->peers */
  hk_gpu_route *routes;               /* [nranks] */
  struct hk_gpu_endpoint **ends[2];   /* [receives, sends][peer] */
  hk_memory *opened;                  /* [nranks]: mapping that contains the credits of a rank of another process */
  size_t *opened_at;                  /* [nranks]: offset of the credits in the mapping */
  struct hk_gpu_proxy *_Atomic proxy; /* NULL: no link over the network yet */
  hk_memory page;    /* on which networks test whether they reach the GPU's memory: hk_transport_env.gpu_page */
  bool staged;       /* some pair of ranks of one host communicates through host memory */
  bool proxied;      /* some of this rank's links are proxied; the same on all ranks of a host */
  bool sends_direct; /* network cards may read this rank's data from its GPU's memory */
  bool wide;         /* the links of all pairs of ranks of a host keep lines of 128 bytes whole */
} hk_gpu_links;

void hk_gpu_links_begin(ncclComm_t c); /* peers.c: fills *env */
/* HK_DEVICE_READS, HK_DEVICE_LOCAL and HK_DEVICE_PROXIED of the links to a peer (peers.c). */
bool hk_gpu_can_read(const hk_gpu_links *l, int peer);
bool hk_gpu_is_local(const hk_gpu_links *l, int peer);
bool hk_gpu_is_proxied(const hk_gpu_links *l, int peer);
bool hk_gpu_is_remote(ncclComm_t c, int peer);          /* in another process */
bool hk_gpu_is_far(const struct ncclComm *c, int peer); /* outside of the LSA team of this rank */
bool hk_gpu_processes(const hk_gpu_links *l);           /* the ranks are in several processes */
bool hk_gpu_by_file(const hk_gpu_links *l);             /* hk_device_env.by_file */
size_t hk_gpu_links_slot_bytes(const hk_gpu_links *l);  /* hk_transport_env.slot_bytes */

/* ---- comm_proxy.c, endpoints.c: a communicator's proxy and ends ---- */
hk_status hk_gpu_proxy_make(ncclComm_t c); /* `proxy`, if there is none yet */
/* Gives the communicator's proxy other work (proxy.h). */
hk_status hk_gpu_proxy_give(ncclComm_t c, const struct hk_gpu_proxy_work *work);
/* After a failure: true if the proxy's thread is no longer inside a transport. */
bool hk_gpu_proxy_left(ncclComm_t c);
/* Sends the remaining slots, then ends the proxy (proxy.h). No kernel runs any more, or the communicator is lost. */
void hk_gpu_proxy_stop(ncclComm_t c);
void hk_gpu_endpoints_free(ncclComm_t c);
/* After hk_gpu_reach: allocates memory for links over the network that must not be allocated later. */
hk_status hk_gpu_proxied_begin(ncclComm_t c);
