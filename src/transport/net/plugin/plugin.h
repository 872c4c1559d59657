/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's net plugins as a provider. plugin_load.c finds plugins and hides the differences of their versions; plugin.c
 * moves slots with them; plugin_connect.c makes the connections and plugin_drain.c ends them; plugin_thread.c is
 * the thread that begins them; plugin_gpu.c registers GPU memory.
 *
 * A direction of a channel between two ranks has two connections of the plugin: the first for messages of up to
 * HK_PLUGIN_EAGER bytes with their headers, the second for the payloads of larger ones, whose headers go over the
 * first. Each carries its messages in order, so tags are not needed: all are 0, and each receive is for one message.
 * The receiver posts receives ahead, at most HK_PLUGIN_WINDOW of them, into memory that is registered once; payloads
 * are read from there.
 *
 * The FIFO's payloads may be in a GPU's memory, at either end independently. That memory is then registered for the
 * second connection: payloads there are sent over it whatever their size, and for a receiver there each slot has a
 * message on it.
 *
 * Threads. All functions run on the thread of the communicator's lanes, and no lock is needed, except for the list of
 * loaded libraries. Of the plugin's calls, listen and the first connect are made on a thread of the communicator's own
 * (plugin_thread.c).
 */
#pragma once
#include <pthread.h>
#include "../../../base/silence.h"
#include "../net.h"
#include "plugin_abi.h"

enum {
  HK_PLUGIN_EAGER = 4096 - 16, /* payload of a message with its header */
  HK_PLUGIN_ENTRY = 4096,
  /* Requests under way on a connection. NCCL itself uses as many, so plugins are made for this number. */
  HK_PLUGIN_WINDOW = 8,
  HK_PLUGIN_LANES = 2 /* connections of a direction */
};

/* ---- plugin_load.c: a loaded library ---- */
typedef struct hk_net_plugin_lib hk_net_plugin_lib;
struct hk_net_plugin_lib {
  hk_net_plugin_lib *next;
  const net_plugin_v *calls;
  int version;
  bool begun; /* init was called; up to v10 it is called once for the process */
  bool named; /* `name` was read again after init, which may change it */
  char name[64];
  char asked[HK_PLUGIN_FILE], file[HK_PLUGIN_FILE];
};

/* The properties of a device that are used. */
typedef struct hk_net_device {
  char name[32], pci[128];            /* its path in /sys; empty: unknown */
  int index, speed, memory;           /* NET_PLUGIN_*_MEMORY */
  bool force_flush;                   /* v9: iflush is needed for every GPU */
  size_t max_message, max_collective; /* max_collective: 0: not known */
  int gpu_type;                       /* 0: the host does the receiver's work */
} hk_net_device;

/* Reads the properties of device i by the getProperties of that version, also of a CollNet plugin. Returns its code. */
int hk_plugin_properties(int (*call)(int device, void *properties), int version, int i, hk_net_device *d);

/* One communicator's use of a plugin. */
typedef struct hk_net_plugin {
  const hk_net_plugin_lib *lib;
  void *context; /* v11 */
  net_plugin_config config;
  net_plugin_profiler event; /* v10 and newer report events to it; NULL: no profiler */
  void *profiler;
  int ndevices;
  hk_net_device devices[16];
} hk_net_plugin;

/* Initialises the first plugin of NCCL_NET_PLUGIN, or libnccl-net.so, that works here and has the name `wanted` (NULL:
 * any). False: there is none. Plugins that do not work are warned about. */
bool hk_net_plugin_begin(hk_net_plugin *p, const hk_transport_env *env, const char *wanted);
void hk_net_plugin_end(hk_net_plugin *p);

/* The calls that differ between versions. They return the plugin's code (ncclResult_t); *comm or *request stays NULL if
 * the call is to be repeated later. */
int hk_net_plugin_listen(hk_net_plugin *p, int device, void *handle, void **listener);
int hk_net_plugin_connect(hk_net_plugin *p, int device, void *handle, void **comm);
int hk_net_plugin_accept(hk_net_plugin *p, void *listener, void **comm);
int hk_net_plugin_register(hk_net_plugin *p, void *comm, void *data, size_t bytes, int type, void **registration);
int hk_net_plugin_send(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request);
int hk_net_plugin_receive(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request);

/* A call for the plugin's thread. It must stay valid until it is over, even if the wait for it has ended earlier. */
typedef struct hk_plugin_job {
  struct hk_plugin_job *next;
  void (*call)(void *arg);
  void *arg;
  bool over;
} hk_plugin_job;

/* A communicator's plugin thread, and the queue of calls that it must make. */
typedef struct hk_plugin_thread {
  pthread_t id;
  pthread_mutex_t lock;
  pthread_cond_t asked, answered;
  bool made, stop;
  bool alone; /* no other thread waits for it any more */
  hk_plugin_job *first, **last;
  void (*forget)(void *owner);
  void *owner;
} hk_plugin_thread;

/* ---- plugin_connect.c, plugin.c: an end of a link ---- */
typedef struct hk_plugin_ctx hk_plugin_ctx;

typedef struct hk_plugin_end hk_plugin_end;
typedef struct hk_plugin_lane {
  hk_plugin_end *of;
  hk_plugin_job opening; /* listen or the first connect, which the plugin's thread calls */
  int opened;            /* its code */
  void *listener, *comm, *registration;
  bool connecting; /* SEND: connect was called */
  char *memory;    /* registered: the ring of entries, or the FIFO's payloads */
  size_t entry;
  uint64_t posted, done;            /* requests posted, and completed */
  void *requests[HK_PLUGIN_WINDOW]; /* posted ones, by number */
  int sizes[HK_PLUGIN_WINDOW];      /* RECV: bytes of completed ones */
  int broken;                       /* RECV: the code of a call that failed; an error once a lane waits for more */
  const char *broke_in;             /* that call */
} hk_plugin_lane;

/* The steps of connecting, in order. EXCHANGING: the receiver's handles have not arrived, or the sender has not
 * answered. */
typedef enum hk_plugin_step {
  HK_PLUGIN_EXCHANGING,
  HK_PLUGIN_CONNECTING,
  HK_PLUGIN_READY,
  HK_PLUGIN_FAULTY, /* a call has failed, and the cause may still show */
  HK_PLUGIN_FAILED
} hk_plugin_step;

/* RECV, payloads in a GPU's memory: the number of large messages that the GPU sees, and for which a flush was
 * requested. */
typedef struct hk_plugin_flush {
  uint64_t seen, asked;
  void *requests[HK_PLUGIN_WINDOW]; /* by number; NULL: no flush was needed */
} hk_plugin_flush;

typedef struct hk_plugin_wire { /* the receiver's message to the sender */
  uint32_t magic, lanes;
  uint32_t apart,
      reserved; /* apart: its payloads are in a GPU's memory, so each slot has a message of the second lane */
  char handles[HK_PLUGIN_LANES][NET_PLUGIN_HANDLE];
} hk_plugin_wire;

/* While the plugin's connections are made, both ranks send beats over the TCP connection: only time in which both ranks
 * make calls counts, not time in which one of them is late, stopped or elsewhere. */
typedef struct hk_plugin_joining {
  uint64_t tried_ns;            /* total time in which both ranks tried */
  uint64_t looked_ns, heard_ns; /* time of the last check; of the peer's last beat */
  uint64_t beat_ns, silent_ns;  /* when the next beat is due; the next check of the peer's host */
  hk_silence silence;           /* the state of these checks */
  bool active;                  /* a rank is not ready, or does not know that the other one is */
  bool notified, peer_ready;    /* this rank has reported that it is ready; the peer has */
} hk_plugin_joining;

/* The end of a connection: plugin_drain.c. */
enum { HK_PLUGIN_ENDING = 'E', HK_PLUGIN_POSTED = 'P' };
typedef struct hk_plugin_drain_state {
  bool ending;                      /* RECV: ENDING has arrived */
  bool reported;                    /* RECV: POSTED was sent: no more receives are posted */
  bool asked;                       /* SEND: POSTED has arrived */
  bool gone;                        /* the peer sends nothing more */
  uint8_t got;                      /* bytes of ENDING or POSTED */
  uint64_t counts[HK_PLUGIN_LANES]; /* SEND: receives posted there; RECV: messages sent */
} hk_plugin_drain_state;

struct hk_plugin_end {
  hk_plugin_ctx *ctx;
  hk_net_end *end;
  bool sends;
  hk_plugin_step step;
  hk_status failed;
  const char *fault_in; /* the first call that failed; NULL: none */
  int fault;            /* its code */
  uint64_t fault_ns;    /* when */
  int fd; /* a TCP connection to the peer: carries the handles, and its end shows that the peer has ended */
  const hk_net_device *device;
  hk_plugin_wire wire;
  size_t wire_got;
  uint64_t deadline_ns; /* for data after the peer has closed; 0: it has not */
  hk_plugin_joining joining;
  hk_plugin_drain_state drain;
  char *ring;
  hk_plugin_lane lane[HK_PLUGIN_LANES];
  bool begun[HK_PLUGIN_LANES]; /* SEND: which messages of the next slot are posted */
  uint64_t posted;             /* SEND: slots whose messages are all posted */
  uint64_t large;              /* large messages that are complete */
  bool large_seen;             /* RECV: a large message has arrived */
  uint64_t *owner;             /* RECV: [nslots] number of the slot for which a large payload's place was last used */
  hk_plugin_flush flush;
  hk_plugin_job closing;
  void *fifo; /* the end's memory, if the plugin's thread must free it */
  size_t fifo_bytes;
};

struct hk_plugin_ctx {
  const hk_transport_env *env;
  hk_plugin_thread thread;
  hk_net_plugin plugin;
  hk_plugin_end **ends;
  int nends, capacity;
  unsigned idle;
  uint64_t timeout_ns, drain_ns; /* drain_ns: until this time closed ends wait for their peers */
  uint64_t checked_ns;           /* the last check of the peers */
  hk_plugin_job finalize;
  bool gpu_known, gpu_direct; /* the devices were examined; some can register the GPU's memory */
};

/* ---- plugin_thread.c ---- */
void hk_plugin_thread_init(hk_plugin_thread *t);
/* Makes a call on the thread, which the first call starts, and waits until it is over. An error: the wait ended
 * earlier, for a reason that `env` watches, and the call continues. */
hk_status hk_plugin_thread_call(hk_plugin_thread *t, const hk_wait_env *env, hk_plugin_job *job);
/* The same for a call at the end, which HOCKET_LEAVE_TIMEOUT limits. False: it is not over, and from here on the thread
 * is alone: it makes this call and later ones when it can, and no one waits for them. `whose` begins the warning. */
bool hk_plugin_thread_close(hk_plugin_thread *t, hk_plugin_job *job, int64_t seconds, const char *whose);
/* Ends the thread. False: it is alone, ends itself after its last call, and then calls forget(owner), which frees what
 * the calls use and the thread's own struct. */
bool hk_plugin_thread_end(hk_plugin_thread *t, void (*forget)(void *owner), void *owner);

/* ---- plugin.c ---- */
/* hk_plugin_thread_close with this context's thread and name. */
bool hk_plugin_close(hk_plugin_ctx *x, hk_plugin_job *job);
/* Posts a send or a receive. *begun is false if the plugin had no room for it. */
hk_status hk_plugin_post(hk_plugin_end *e, hk_plugin_lane *l, void *data, size_t bytes, bool *begun, bool *moved);
/* Takes completed requests in the order in which they were posted; sizes[k % HK_PLUGIN_WINDOW] keeps the size of number
 * k. */
hk_status hk_plugin_test(hk_plugin_end *e, hk_plugin_lane *l, bool *moved);
/* ---- plugin_drain.c ---- */
/* Before the end is closed: completes all requests together with the peer, or gives up after a moment. */
void hk_plugin_drain(hk_plugin_end *e);
/* Does this rank's part if the peer is closing. */
hk_status hk_plugin_drain_step(hk_plugin_end *e);

void hk_plugin_mark_failed(hk_plugin_end *e, hk_status rc);
/* Notes that call `doing` of the plugin has failed. Returns an error without a text: hk_plugin_judge gives it. */
hk_status hk_plugin_failed(hk_plugin_end *e, const char *doing, int code);
/* Takes the result of work on the end, and decides on failed calls. HK_OK while the cause of a failed call may still
 * appear. Then the error, and the end has failed: the peer is lost if it has gone, else the plugin has failed. */
hk_status hk_plugin_judge(hk_plugin_end *e, hk_status rc);
/* Fails the end because the peer has gone. */
hk_status hk_plugin_lost(hk_plugin_end *e);
hk_status hk_plugin_connect(hk_plugin_end *e); /* goes on with connecting; never blocks */
/* False: the plugin has not returned from a call, and its thread still uses the end. */
bool hk_plugin_disconnect(hk_plugin_end *e);
/* Returns true if the peer has closed its side. Reads its beats. */
bool hk_plugin_peer_gone(hk_plugin_end *e);

/* ---- plugin_gpu.c: payloads in a GPU's memory ---- */
/* Finds which devices can register it, and removes the others if there are any. Before the first connection. */
void hk_plugin_gpu_find_devices(hk_plugin_ctx *x);
bool hk_plugin_takes_gpu(void *ctx, const hk_net_end *end); /* the provider's takes_gpu */
/* Registers the lane's memory, the end's payloads. If *taken is false, they are in host memory now, not registered. */
hk_status hk_plugin_gpu_register(hk_plugin_end *e, hk_plugin_lane *l, bool *taken);
/* Continues the flushes of messages that have arrived. Sets *moved if more of them are visible. */
hk_status hk_plugin_gpu_flush(hk_plugin_end *e, hk_plugin_lane *l, bool *moved);

/* Its contexts come from hk_net_plugins_init, so it has neither `usable` nor `init`. */
extern const hk_net_provider hk_net_plugins;
/* *ctx is NULL if no plugin is to be used; `name` gets the plugin's name. */
hk_status hk_net_plugins_init(const hk_transport_env *env, const char *wanted, void **ctx, char name[HK_NET_NAME]);
