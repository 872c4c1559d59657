/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Links between GPUs. hk_device_links has the role of hk_transport (transport.h) for ranks whose kernels fill and read
 * the slots. It provides the memory that both kernels share, and the properties of that memory. The layout of that
 * memory belongs to the kernels' side (src/gpu/endpoints.c, kernels/cuda/work.h).
 *
 * A new one is one file in src/transport/cuda and one line in registry.def.  For each peer the first one of that list
 * whose `reachable` is true is taken.
 */
#pragma once
#include "../device/device.h"

struct hk_share_offer; /* cuda/share.h */
struct hk_shared;      /* the same */
struct hk_transport_env;

/* How two ranks can access each other's GPU memory: the lesser of both ranks' results, so that both decide alike. */
typedef enum hk_device_reach {
  HK_REACH_NONE,
  HK_REACH_NO_FILE, /* memory cannot be shared by file descriptor; a driver's handle may work */
  HK_REACH_MEMORY,  /* each GPU reads and writes the other one's memory */
  HK_REACH_NVLINK   /* the same, over NVLink */
} hk_device_reach;

/* What one rank knows about another rank; equal on both ranks of a pair. */
typedef struct hk_device_peer {
  uint8_t reach;      /* hk_device_reach */
  bool same_device;   /* both ranks use one GPU */
  bool shares_memory; /* both ranks can map the same host memory */
  bool process;       /* both ranks are threads of one process */
} hk_device_peer;

/* What device links get from the communicator; lives as long as they do. */
typedef struct hk_device_env {
  const struct hk_transport_env *env; /* transport.h */
  struct hk_device *device;
  const hk_device_peer *peers; /* [nranks] */
  /* GPU memory is shared with other processes by file descriptor, else by a driver's handle */
  bool by_file;
  bool processes; /* the ranks are in several processes */
  /* hk_transport.file of the transport that this host's ranks share; an error if there is none. */
  hk_status (*file)(void *arg, int peer, uint64_t region, int *fd, size_t *bytes);
  /* An allgather of all ranks: row `env->rank` of `rows` is this rank's. */
  hk_status (*exchange)(void *arg, void *rows, size_t row_bytes);
  void *arg;
} hk_device_env;

/* Properties of the memory of a link to a peer. */
enum {
  HK_DEVICE_LINES = 1,   /* keeps lines of 128 bytes whole (LL128) */
  HK_DEVICE_READS = 2,   /* each GPU can also read the other rank's registered memory */
  HK_DEVICE_LOCAL = 4,   /* one device: memory has one address for all ranks of a process */
  HK_DEVICE_CREDITS = 8, /* the sender's head and counter are in the link's memory too, because the receiver cannot
                          * access the sender's GPU */
  HK_DEVICE_PROXIED = 16 /* the ends share no memory: the proxy moves slots by the host's transport (gpu/proxy.h) */
};

/* All memory belongs to the receiver. alloc, make and open are NULL for HK_DEVICE_PROXIED. */
typedef struct hk_device_links {
  const char *name;
  /* True if links to `peer` can be made this way. If not, `why` gets the reason. Depends only on data that both ranks
   * have. */
  bool (*reachable)(const hk_device_env *e, int peer, char *why, size_t why_bytes);
  unsigned (*properties)(const hk_device_env *e, int peer); /* HK_DEVICE_* */
  /* For two ranks that are threads of one process: allocates memory for `receiver`; its first `zeroed` bytes are zeros.
   * The device's `release` frees it. */
  hk_status (*alloc)(struct hk_device *receiver, size_t bytes, size_t zeroed, hk_memory *out);
  /* For ranks of two processes: the receiver allocates memory and makes the offer by which the sender opens it.
   * hk_share_drop frees it. */
  hk_status (*make)(const hk_device_env *e, size_t bytes, size_t zeroed, struct hk_shared *out,
                    struct hk_share_offer *offer);
  hk_status (*open)(const hk_device_env *e, int peer, const struct hk_share_offer *offer, struct hk_shared *out);
} hk_device_links;

/* registry.def: in order of preference. */
#define HK_TRANSPORT(name)
#define HK_DEVICE_LINKS(name) extern const hk_device_links hk_device_links_##name;
#include "registry.def"
#undef HK_DEVICE_LINKS
#define HK_DEVICE_LINKS(name) HK_DEVICE_LINKS_##name,
enum hk_device_links_index {
#include "registry.def"
  HK_DEVICE_LINKS_COUNT
};
#undef HK_DEVICE_LINKS
#undef HK_TRANSPORT
extern const hk_device_links *const hk_device_links_all[HK_DEVICE_LINKS_COUNT];
/* The first that reaches `peer`; NULL: none, and `why` has every reason. */
const hk_device_links *hk_device_links_to(const hk_device_env *e, int peer, char *why, size_t why_bytes);
