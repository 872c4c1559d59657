/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's net plugins as a provider.  plugin_load.c finds them and calls them whatever their version; plugin.c moves slots
 * with them; plugin_connect.c makes the connections.
 *
 * A direction of a channel between two ranks is two connections of the plugin's, the first for messages of up to
 * HK_PLUGIN_EAGER bytes with their header before them, the second for the payloads of larger ones, whose header goes over
 * the first.  Each carries its messages in order, so tags are not needed: all are 0, and receives come singly.  The receiver
 * posts receives ahead, at most HK_PLUGIN_WINDOW of them, into memory that is registered once; what came is read from there.
 *
 * The FIFO's payloads may lie in a GPU's memory, at either end alone.  The second connection is registered with that then: what
 * lies there leaves over it whatever its size, and to a receiver there each slot has a message on it (plugin_gpu.c).
 */
#ifndef HK_TRANSPORT_NET_PLUGIN_H
#define HK_TRANSPORT_NET_PLUGIN_H
#include "../../base/silence.h"
#include "net.h"
#include "plugin_abi.h"

enum {
  HK_PLUGIN_EAGER = 4096 - 16, /* payload of a message with its header */
  HK_PLUGIN_ENTRY = 4096,
  HK_PLUGIN_WINDOW =
      8, /* requests under way on a connection: what NCCL itself has on one, so what plugins are made for */
  HK_PLUGIN_LANES = 2 /* connections of a direction */
};

/* ---- plugin_load.c: a loaded library ---- */
typedef struct hk_net_plugin_lib hk_net_plugin_lib;
struct hk_net_plugin_lib {
  hk_net_plugin_lib *next;
  const net_plugin_v *calls;
  int version;
  bool begun; /* up to v10 init is for the process, once */
  bool named; /* the name is the one after init, which may change it */
  char name[64];
  char asked[HK_PLUGIN_FILE], file[HK_PLUGIN_FILE];
};

/* What we use of a device's properties. */
typedef struct hk_net_device {
  char name[32], pci[128];  /* where it is in /sys; empty: unknown */
  int index, speed, memory; /* NET_PLUGIN_*_MEMORY */
  bool force_flush;         /* v9: GPUs see nothing without its iflush, whatever they say */
  size_t max_message;
} hk_net_device;

/* One communicator's use of a plugin. */
typedef struct hk_net_plugin {
  const hk_net_plugin_lib *lib;
  void *context; /* v11 */
  net_plugin_config config;
  net_plugin_profiler event; /* v10 and newer tell of their events; NULL: nobody listens */
  void *profiler;
  int ndevices;
  hk_net_device devices[16];
} hk_net_plugin;

/* The first plugin of NCCL_NET_PLUGIN, or libnccl-net.so, that works here and has the name `wanted` (NULL: any); p->lib is
 * NULL where there is none.  What does not work is told in a line. */
hk_status hk_net_plugin_begin(hk_net_plugin *p, const hk_transport_env *env, const char *wanted);
void hk_net_plugin_end(hk_net_plugin *p);

/* The calls that differ between versions; they give the plugin's code. */
int hk_net_plugin_listen(hk_net_plugin *p, int device, void *handle, void **listener);
int hk_net_plugin_connect(hk_net_plugin *p, int device, void *handle, void **comm);
int hk_net_plugin_accept(hk_net_plugin *p, void *listener, void **comm);
int hk_net_plugin_register(hk_net_plugin *p, void *comm, void *data, size_t bytes, int type, void **registration);
int hk_net_plugin_send(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request);
int hk_net_plugin_receive(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request);

/* ---- plugin_connect.c, plugin.c: an end of a link ---- */
typedef struct hk_plugin_ctx hk_plugin_ctx;

typedef struct hk_plugin_lane {
  void *listener, *comm, *registration;
  char *memory; /* registered: the ring of entries, or the FIFO's payloads */
  size_t entry;
  uint64_t posted, done;            /* requests begun, and those that are over */
  void *requests[HK_PLUGIN_WINDOW]; /* of posted ones, by number */
  int sizes[HK_PLUGIN_WINDOW];      /* RECV: of those that are over */
  int broken;           /* RECV: the code that a call failed with, which counts once somebody waits for more */
  const char *broke_in; /* that call */
} hk_plugin_lane;

/* Of connecting, in order.  CALLING: the receiver's handles have not come, or the sender has not answered. */
typedef enum hk_plugin_step {
  HK_PLUGIN_EXCHANGING,
  HK_PLUGIN_CONNECTING,
  HK_PLUGIN_READY,
  HK_PLUGIN_FAILED
} hk_plugin_step;

/* RECV, of payloads in a GPU's memory: large messages that the GPU sees, and for which that was asked. */
typedef struct hk_plugin_flush {
  uint64_t seen, asked;
  void *requests[HK_PLUGIN_WINDOW]; /* by number; NULL: nothing was to be done */
} hk_plugin_flush;

typedef struct hk_plugin_wire { /* what the receiver sends when it calls */
  uint32_t magic, lanes;
  uint32_t apart, reserved; /* apart: its payloads lie with a GPU, so that each slot has a message of the second lane */
  char handles[HK_PLUGIN_LANES][NET_PLUGIN_HANDLE];
} hk_plugin_wire;

/* While the plugin's connections are made both ranks send beats over the connection beside them: the time in which one of them
 * makes no calls (it is late, stopped, elsewhere) is no fault of the plugin's. */
typedef struct hk_plugin_joining {
  uint64_t tried_ns;            /* time in which both ranks tried */
  uint64_t looked_ns, heard_ns; /* the last look; when the peer's last beat was found */
  uint64_t beat_ns, silent_ns;  /* when the next beat, the next look at the peer's host are due */
  hk_silence silence;           /* of the peer's host */
  bool active, notified,
      peer_ready; /* some rank is not ready or does not know that the other is; the last two: the parts of it */
} hk_plugin_joining;

typedef struct hk_plugin_end {
  hk_plugin_ctx *ctx;
  hk_net_end *end;
  bool sends;
  hk_plugin_step step;
  hk_status failed;
  int fd; /* to the peer, beside the plugin's connections: handles go over it, and it tells when the peer is gone */
  const hk_net_device *device;
  hk_plugin_wire wire;
  size_t wire_got;
  uint64_t deadline_ns; /* of data after the peer has closed; 0: it has not */
  hk_plugin_joining joining;
  char *ring;
  hk_plugin_lane lane[HK_PLUGIN_LANES];
  bool begun[HK_PLUGIN_LANES]; /* SEND: which messages of the next slot are posted */
  uint64_t posted;             /* SEND: slots whose messages are all posted */
  uint64_t large;              /* large messages that are over */
  bool large_seen;             /* RECV: one has come */
  uint64_t *owner;             /* RECV: [nslots] number of the slot that a large payload's place was for */
  hk_plugin_flush flush;
} hk_plugin_end;

struct hk_plugin_ctx {
  const hk_transport_env *env;
  hk_net_plugin plugin;
  hk_plugin_end **ends;
  int nends, room;
  unsigned idle;
  uint64_t timeout_ns;
  bool gpu_known, gpu_direct; /* looked at; devices are given the GPU's memory */
};

void hk_plugin_mark_failed(hk_plugin_end *e, hk_status rc);
/* An error of the plugin's, in words; fails the end. */
hk_status hk_plugin_failed(hk_plugin_end *e, const char *doing, int code);
/* Begins to connect, goes on, ends. */
hk_status hk_plugin_listen(hk_plugin_end *e);
hk_status hk_plugin_connect(hk_plugin_end *e);
void hk_plugin_disconnect(hk_plugin_end *e);
/* Has the peer closed its side?  Reads its beats. */
bool hk_plugin_peer_gone(hk_plugin_end *e);

/* ---- plugin_gpu.c: payloads in a GPU's memory ---- */
/* Which devices are given it; keeps to those, where there are some.  Before the first connection. */
void hk_plugin_gpu_find_devices(hk_plugin_ctx *x);
bool hk_plugin_takes_gpu(void *ctx, const hk_net_end *end);
/* Registers the lane's memory, the end's payloads.  Not `taken`: they lie with the host now, unregistered. */
hk_status hk_plugin_gpu_register(hk_plugin_end *e, hk_plugin_lane *l, bool *taken);
/* Goes on with what makes the GPU see the messages that have come. */
hk_status hk_plugin_gpu_flush(hk_plugin_end *e, hk_plugin_lane *l, bool *moved);

extern const hk_net_provider hk_net_plugins;
/* As hk_net_plugins.init, but *ctx is NULL where no plugin is to be used; `name` gets the plugin's. */
hk_status hk_net_plugins_init(const hk_transport_env *env, const char *wanted, void **ctx, char name[HK_NET_NAME]);
#endif
