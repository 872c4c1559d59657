/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A transport makes links.  A new one is one file plus one line in registry.c.  For each peer the first transport in the
 * registry's order whose `reachable` says yes is taken: self, shm, net.
 */
#ifndef HK_TRANSPORT_TRANSPORT_H
#define HK_TRANSPORT_TRANSPORT_H
#include "../base/wait.h"
#include "../program/program.h" /* hk_link_kind */
#include "link.h"

enum { HK_FACT_BYTES = 768 }; /* what one transport may tell the other ranks of itself */

/* What every rank knows of every rank after init's exchange. */
typedef struct hk_peer {
  uint64_t host;    /* equal: the ranks can share memory */
  uint64_t process; /* equal: the ranks are threads of one process, addresses mean the same */
  int32_t pid;
  int32_t device; /* -1: host memory */
  int32_t cores;  /* that the rank may run on */
  int32_t reserved;
} hk_peer;

union hk_addr;     /* base/addr.h */
struct hk_service; /* base/service.h: the communicator's service thread */

/* What a transport gets from the communicator; lives as long as the transport's state. */
typedef struct hk_transport_env {
  int rank, nranks;
  uint64_t comm_id;      /* equal on all ranks of the communicator, differs between communicators */
  const uint8_t *secret; /* 16 bytes, equal on all ranks */
  const hk_peer *peers;  /* [nranks]; only [rank] is filled before `join` */
  const hk_wait_env *wait;
  struct hk_service *service;
  /* Opens a data connection to `peer`: an authenticated, nonblocking TCP socket.  Blocks for about one round trip: the peer's
   * service thread answers, whatever its ranks do.  `at` (may be NULL) is one of the peer's interface addresses to go
   * through; its port is filled in; where it does not answer soon, the addresses that the bootstrap knows are tried too.  Tags are the transport's to choose; one connection a tag and direction. */
  hk_status (*dial)(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd);
  /* Takes the connection that `peer` opened with `tag`, or -1 where it has not come yet. */
  int (*take)(void *arg, int peer, uint64_t tag);
  void *arg;
  size_t slot_bytes;
  uint32_t nslots;
  const char *net_name;  /* ncclConfig_t's netName: the network to use where NCCL_NET names none; NULL or empty: any */
  int traffic_class;     /* ncclConfig_t's; -1: undefined */
  struct hk_device *gpu; /* that this rank's kernels run on; NULL: it works on host memory */
  /* HK_DEVICE_PAGE bytes of its memory, to try who takes them; there before the first link is opened.  Nobody can give such
   * memory back while kernels may wait for the link: the driver would wait for them. */
  void *gpu_page;
  void *gpu_queue;    /* hk_queue: for short copies from and to its memory, from any thread */
  bool within_plugin; /* we are NCCL's net plugin: no plugins, and NCCL_NET says nothing to us */
  /* For network plugins that tell of events of their own; `profiler` goes into each request.  NULL: nobody listens. */
  int (*net_event)(void **event, int type, void *profiler, int64_t id, void *data);
  void *profiler;
} hk_transport_env;

typedef struct hk_link_key {
  uint16_t peer;
  uint8_t kind;    /* hk_link_kind */
  uint8_t channel; /* 0..HK_CHANNELS-1: collective lanes; HK_CHANNEL_P2P: send/recv */
} hk_link_key;
enum { HK_CHANNELS = 8, HK_CHANNEL_P2P = HK_CHANNELS, HK_CHANNEL_COUNT };

typedef struct hk_transport_state {
  const struct hk_transport *transport;
  const hk_transport_env *env;
} hk_transport_state; /* the transport's own struct begins with it */

typedef struct hk_transport {
  const char *name;
  /* Makes the state and fills `fact` (HK_FACT_BYTES, zeroed) with what peers need.  Before the exchange. */
  hk_status (*attach)(const hk_transport_env *env, hk_transport_state **out, void *fact);
  /* After the exchange: facts[r * HK_FACT_BYTES] is rank r's.  Collective.  May be NULL. */
  hk_status (*join)(hk_transport_state *s, const void *facts);
  /* May this rank reach `peer`?  If not, `why` gets the reason in words.  Symmetric: both ends answer alike. */
  bool (*reachable)(hk_transport_state *s, int peer, char *why, size_t why_bytes);
  /* May links of kind HK_LINK_MCAST_* be opened?  NULL: no. */
  bool (*multicast)(hk_transport_state *s);
  /* Fills one end of a link; the other end is opened by the peer, in any order.  The state may be CONNECTING. */
  hk_status (*open)(hk_transport_state *s, const hk_link_key *key, hk_link *link);
  /* Moves what can be moved on pumped links, never blocks; *moved is set where anything moved.  NULL: none is needed. */
  hk_status (*progress)(hk_transport_state *s, bool *moved);
  /* Sleeps until something may have come to be moved, or about a millisecond.  NULL: there is nothing to sleep on. */
  void (*sleep)(hk_transport_state *s);
  /* Turns a reference of `link` into an address.  NULL: links are never sent references across processes. */
  const void *(*resolve)(hk_transport_state *s, hk_link *link, const hk_ref *ref, size_t bytes);
  /* Sender: the reference for [data, data + bytes), false where the memory cannot be shared.  NULL: as always false. */
  bool (*refer)(hk_transport_state *s, hk_link *link, const void *data, size_t bytes, hk_ref *out);
  /* The user has registered this host memory, or takes that back (no operation uses it then): messages may be sent from it
   * without a copy.  From any thread.  NULL: it makes no difference. */
  void (*memory)(hk_transport_state *s, void *base, size_t bytes, bool there);
  /* Receiver: hk_link_offer.  NULL: no link's place_min is ever above 0. */
  void (*offer)(hk_transport_state *s, hk_link *link, uint64_t k, void *to, uint32_t bytes);
  /* An operation has ended in an error: when this returns, nothing more is written to places that were offered.  The
   * communicator is not used again.  From its lane's thread.  NULL: nothing is written but by `progress`. */
  void (*withdraw)(hk_transport_state *s);
  /* Copies what a reference with HK_REGION_PRIVATE names.  NULL where `refer` gives none such. */
  hk_status (*fetch)(hk_transport_state *s, hk_link *link, const hk_ref *ref, void *to, size_t bytes);
  /* May be NULL: nothing to give back. */
  void (*close)(hk_link *link);
  void (*detach)(hk_transport_state *s);
} hk_transport;

/* In order of preference, ended by NULL. */
extern const hk_transport *const hk_transports[];
#endif
