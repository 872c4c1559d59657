/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Links between GPUs.  What hk_transport (transport.h) is for ranks on host memory, hk_device_links is for ranks whose
 * kernels fill and read the slots: it gives the memory in which both kernels meet, and says what that memory can do.
 * The layout of that memory belongs to the kernels' side (src/gpu/endpoints.c, kernels/cuda/work.h).
 *
 * A new one is one file in src/transport/cuda and one line in registry.def.  For each peer the first one of that list
 * whose `reachable` is true is taken.
 */
#ifndef HK_TRANSPORT_DEVICE_LINKS_H
#define HK_TRANSPORT_DEVICE_LINKS_H
#include "../device/device.h"

struct hk_share_offer; /* cuda/share.h */
struct hk_shared;      /* the same */
struct hk_transport_env;

/* What two ranks have found out about each other's GPU memory: the lesser of both ranks' results, so that both ranks of
 * a pair decide alike. */
typedef enum hk_device_reach {
  HK_REACH_NONE,
  HK_REACH_NO_FILE, /* memory does not go there by file descriptor; a driver's handle may be accepted */
  HK_REACH_MEMORY,  /* each GPU reads and writes the other one's memory */
  HK_REACH_NVLINK   /* the same, over NVLink */
} hk_device_reach;

/* What one rank knows about another one.  Both ranks of a pair have the same. */
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
  bool by_file;                /* GPU memory goes to other processes by file descriptor, else by a driver's handle */
  bool processes;              /* the ranks are in several processes */
  /* hk_transport.file of the transport that this host's ranks share; an error if there is none. */
  hk_status (*file)(void *arg, int peer, uint64_t region, int *fd, size_t *bytes);
  /* An allgather of all ranks: row `env->rank` of `rows` is this rank's. */
  hk_status (*exchange)(void *arg, void *rows, size_t row_bytes);
  void *arg;
} hk_device_env;

/* What the memory of a link to a peer can do. */
enum {
  HK_DEVICE_LINES = 1,   /* keeps lines of 128 bytes whole (LL128) */
  HK_DEVICE_READS = 2,   /* each GPU also reads the other rank's registered memory */
  HK_DEVICE_LOCAL = 4,   /* one device: memory has one address for all ranks of a process */
  HK_DEVICE_CREDITS = 8, /* the sender's head and counter lie in the link's memory too, as the receiver cannot reach the
                            sender's GPU */
  HK_DEVICE_PROXIED = 16 /* the ends share no memory: the proxy moves slots by the host's transport (gpu/proxy.h) */
};

/* All memory is the receiver's.  The three that make memory are NULL together for HK_DEVICE_PROXIED. */
typedef struct hk_device_links {
  const char *name;
  /* Can links to `peer` be made this way?  If not, `why` gets the reason in words.  A pure function of what both ranks
   * know. */
  bool (*reachable)(const hk_device_env *e, int peer, char *why, size_t why_bytes);
  unsigned (*properties)(const hk_device_env *e, int peer); /* HK_DEVICE_* */
  /* Both ranks are threads of one process: memory for `receiver`, whose first `zeroed` bytes are zeros.  Undone by the
   * device's `release`. */
  hk_status (*alloc)(struct hk_device *receiver, size_t bytes, size_t zeroed, hk_memory *out);
  /* Ranks of two processes: the receiver makes memory and the offer by which the sender opens it.  Undone by
   * hk_share_drop. */
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
#endif
