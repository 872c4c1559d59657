/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hocket's networks as a net plugin for NCCL: libnccl-net-hocket.so.
 *
 * A connection of the plugin is a world of two ranks, the sender 0 and the receiver 1, joined by the net transport,
 * which chooses RDMA or sockets as it does in Hocket. A control connection does what the bootstrap does for a
 * communicator: listen's handle has the receiver's address and a key; the two sides exchange the transport's facts over
 * the control connection, and data connections arrive on a listener that each side keeps. devices.c finds the devices,
 * pair.c makes the pair, messages.c moves messages, netplugin.c has the functions that NCCL calls.
 *
 * Over RDMA a message is a slot. The sender's card reads its bytes from the sender's memory and writes them to their
 * place, in memory of the host or of a GPU (hk_link.placed): NCCL registers all that it sends and receives.
 *
 * A receive may have several buffers with tags. The sender learns the tags before it sends: over RDMA with the places,
 * over sockets by the control connection. It sends the messages of a receive in the order of the buffers, so nothing
 * else has to know of groups.
 *
 * Over sockets a message is a slot with its size, and with all of its bytes if it is short; otherwise slots with its
 * bytes follow.
 */
#ifndef HK_NETPLUGIN_NETPLUGIN_H
#define HK_NETPLUGIN_NETPLUGIN_H
#include "../base/addr.h"
#include "../transport/net/ib_port.h"
#include "../transport/net/net.h"
#include "../transport/net/plugin_abi.h"
#include "../transport/transport.h"

enum {
  PAIR_KEY = 16,
  PAIR_ARRIVED = 40,  /* data connections that have arrived and are not taken yet */
  PAIR_REQUESTS = 32, /* as many as NCCL has under way on a connection */
  PAIR_GROUP = 8,     /* most buffers of a receive over RDMA */
  PAIR_MESSAGES = PAIR_REQUESTS * PAIR_GROUP,
  PAIR_IN_HEADER = HK_SLOT_INLINE - 8 /* bytes that are sent with the size */
};

/* in listen's NET_PLUGIN_HANDLE bytes; `begun` is the sender's own, NULL when it is sent */
typedef struct pair_handle {
  uint64_t magic;
  uint8_t key[PAIR_KEY];
  hk_addr at;
  struct pair *begun;
} pair_handle;
_Static_assert(sizeof(pair_handle) <= NET_PLUGIN_HANDLE, "the handle fits");

typedef struct pair_hello { /* over the control connection, in both directions */
  uint8_t key[PAIR_KEY];
  uint32_t port; /* the port for this side's data connections */
  uint32_t slot_bytes, nslots;
  uint32_t groups; /* this side receives, and may have several buffers in a receive */
  char facts[HK_FACT_BYTES];
} pair_hello;

typedef struct pair_tag { /* first on a data connection */
  uint8_t key[PAIR_KEY];
  uint64_t tag;
} pair_tag;

/* A data connection that has arrived and is not taken yet. */
typedef struct pair_conn {
  int fd;
  pair_tag first;
  size_t got;        /* of `first` */
  uint64_t until_ns; /* when it must have arrived */
} pair_conn;

/* A message. A receive of n buffers is n of them, the first of which is what NCCL gets. */
typedef struct pair_request {
  struct pair *pair;
  uint64_t at; /* its number on the connection */
  int n;       /* of the receive's first message */
  hk_net_mark mark;
  char *data;
  size_t room, bytes, moved; /* of the buffer, of the message (a receiver knows it when it begins), of what is moved */
  uint64_t last;             /* SEND: the link's slots that must be given back */
  bool used, begun, over, flush; /* flush: a GPU must see `last` messages, one of which is at `data` */
} pair_request;

/* A message's mark on the control connection. */
typedef struct pair_mark {
  int32_t tag;
  uint32_t more;
} pair_mark;

/* What has been registered with a connection. */
typedef struct pair_memory {
  char *base;
  size_t bytes;
  bool gpu; /* a GPU's */
} pair_memory;

typedef enum pair_step {
  PAIR_CONNECTING,
  PAIR_EXCHANGING,
  PAIR_OPENING,
  PAIR_READY,
  PAIR_BROKEN,
  PAIR_WRONG_KEY /* the process that connected to the listener does not have the key */
} pair_step;

typedef struct pair {
  bool sends;
  pair_step step;
  int fd, listener;
  hk_addr control; /* the peer's address on the control connection, port 0 */
  pair_hello mine, theirs;
  size_t wrote, got;
  hk_wait_env wait;
  hk_peer peers[2];
  hk_transport_env env;
  hk_transport_state *state;
  hk_link link;
  bool open;
  uint64_t deadline_ns; /* of connecting */
  pair_conn arrived[PAIR_ARRIVED];
  int narrived;
  uint64_t posted, done; /* messages; those of a sender that were posted after a gap are not counted yet */
  pair_request requests[PAIR_MESSAGES], flushes[PAIR_REQUESTS];
  /* Over sockets, if the receiver's `groups` is set: the receiver sends the marks of messages over the control
   * connection. */
  hk_net_mark marks[PAIR_MESSAGES]; /* SEND: of messages up to `nmarks` */
  uint64_t nmarks;                  /* marks that were received; RECV: that were sent */
  pair_mark mark;                   /* the one that is being sent or received... */
  size_t mark_moved;                /* ...and how many bytes of it have been */
} pair;

typedef struct pair_listener {
  int fd, device;
  uint8_t key[PAIR_KEY];
  pair *begun; /* the pair that is being accepted */
} pair_listener;

/* An RDMA card (NCCL_NET_MERGE_LEVEL), or, on a machine without RDMA, its first interface. A connection that is made or
 * accepted with a card uses it as long as it works. */
typedef struct pair_device {
  char name[4 * HK_IB_NAME], pci[256]; /* a path in /sys; "": unknown */
  char device[HK_IB_NAME];             /* of RDMA; "": an interface */
  uint64_t guid;
  int port, memory, speed; /* of RDMA; NET_PLUGIN_*_MEMORY; Mb/s */
  int rail;                /* -1: unknown */
} pair_device;
int pair_devices(void);
pair_device *pair_device_at(int i); /* the first one if there is no such one */
/* While connections exist, all RDMA devices are open, once: what a connection opens costs nothing more. */
void pair_cards_hold(void);
void pair_cards_release(void);

/* pair.c. One step of connecting; PAIR_READY is its end. */
hk_status pair_listen(int device, pair_handle *handle, pair_listener **out);
void pair_listener_free(pair_listener *l);
hk_status pair_dial(int device, const pair_handle *handle, pair **out);
hk_status pair_answer(pair_listener *l, pair **out); /* *out stays NULL until a peer has connected */
hk_status pair_advance(pair *p);
/* HK_ERR_USAGE if connections would have to be encrypted. */
hk_status pair_allowed(void);
void pair_free(pair *p);

/* messages.c */
/* NULL: no room, or the receiver has no buffer with this tag in the receive whose turn it is. */
pair_request *pair_send(pair *p, void *data, size_t bytes, int tag);
pair_request *pair_receive(pair *p, int n, void *const *data, const size_t *bytes, const int *tags); /* NULL: no room */
/* Is the request over? Then `sizes` gets a size for each buffer, unless it is NULL. */
bool pair_is_over(pair_request *r, int *sizes);
/* A GPU must see all that has been received, the last message at `data`; NULL: no room. */
pair_request *pair_flush(pair *p, void *data);
hk_status pair_flushed(pair_request *r);
hk_status pair_progress(pair *p);
#endif
