/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A transport makes links.  A new one is one file and one line in registry.def.  For each peer the first transport of
 * that list whose `reachable` is true is taken.
 */
#pragma once
#include "../base/wait.h"
#include "link.h"

struct hk_facts;    /* base/facts.h */
struct hk_settings; /* base/param.h */

enum { HK_FACT_BYTES = 768 }; /* the most that a transport may publish about itself to the other ranks */

union hk_addr;         /* base/addr.h */
struct hk_status_page; /* status_page.h */
struct hk_call_checks; /* status_page.h */
struct hk_memory;      /* device/device.h */
struct hk_peer;        /* peer.h */
struct hk_remote;      /* remote.h */
struct hk_service;     /* base/service.h: the communicator's service thread */

/* What a transport gets from the communicator; lives as long as the transport's state. */
typedef struct hk_transport_env {
  int rank, nranks;
  uint64_t comm_id;            /* equal on all ranks of the communicator, different for each communicator */
  const uint8_t *secret;       /* 16 bytes, equal on all ranks */
  const struct hk_peer *peers; /* [nranks]; only [rank] is filled before `join` */
  const hk_wait_env *wait;
  struct hk_service *service;
  struct hk_meter *meter; /* base/meter.h: counts repairs; NULL: nothing does */
  /* Opens a data connection to `peer`: an authenticated, nonblocking TCP socket. Blocks for about one round trip,
   * because the peer's service thread answers, whatever its ranks do. `at` (may be NULL) is one of the peer's interface
   * addresses to connect to; its port is filled in. If it does not answer soon, the addresses that the bootstrap knows
   * are tried too. The transport chooses the tags: one connection for each tag and direction. */
  hk_status (*dial)(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd);
  /* Takes the connection that `peer` opened with `tag`; -1 if it has not arrived yet. */
  int (*take)(void *arg, int peer, uint64_t tag);
  /* As `dial`, from any thread, to a peer that was connected before. The checks of the rank's waits do not run; *stop
   * (an hk_status that is not HK_OK) ends it. *gone: no process listens there any more, or the rank has left. NULL:
   * lost connections are not made again. */
  hk_status (*redial)(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone);
  /* Gives connections with that tag to fn(fn_arg, peer, fd) when they arrive, on the listener's thread; fn NULL ends
   * it. */
  void (*serve)(void *arg, uint64_t tag, void (*fn)(void *fn_arg, int peer, int fd), void *fn_arg);
  /* Announces a failure of this rank that none of its calls has met: all ranks report it. From any thread. NULL: it is
   * not announced. */
  void (*announce)(void *arg, hk_status rc, const char *text);
  void *arg;
  const struct hk_settings *settings; /* base/param.h; of the communicator */
  size_t slot_bytes;
  uint32_t nslots;
  const char *net_name;  /* ncclConfig_t's netName: the network to use if NCCL_NET names none; NULL or empty: any */
  int traffic_class;     /* ncclConfig_t's; -1: undefined */
  struct hk_device *gpu; /* that this rank's kernels run on; NULL: it works on host memory */
  /* HK_DEVICE_PAGE bytes of its memory, to try which network cards can register it; allocated before the first link is
   * opened.  Such memory cannot be freed while kernels may wait for the link: the driver would wait for the kernels. */
  void *gpu_page;
  void *gpu_queue; /* hk_queue: for short copies from and to its memory, from any thread */
  /* For network plugins that report events of their own; `profiler` goes into each request.  NULL: no profiler. */
  int (*net_event)(void **event, int type, void *profiler, int64_t id, void *data);
  void *profiler;
  /* The states of all transports, by hk_transport_index, from `join` on. For a transport that uses others. NULL: there
   * are no others. */
  struct hk_transport_state *const *states;
} hk_transport_env;

/* An end of an empty FIFO of env->nslots slots in zeroed memory: `slots`, the head after them, and `payload`. Its state
 * is HK_LINK_READY; the transport adds its own fields. */
hk_link hk_link_in_memory(const hk_transport_env *env, const hk_link_key *key, hk_slot *slots, char *payload);

typedef struct hk_transport_state {
  const struct hk_transport *transport;
  const hk_transport_env *env;
} hk_transport_state; /* the transport's own struct begins with it */

/* A question to a rank of another process, and its answer.  The runtime defines the bytes. */
enum { HK_QUESTION_BYTES = 128, HK_REASON_BYTES = 160 };
/* `payload` is the question and becomes the answer; false refuses it with a text in `reason`. `fd`: the file sent with
 * the question, which the caller keeps; -1: none. Runs on the service thread of the process, whatever its ranks do. */
typedef bool hk_answer(void *arg, void *payload, int fd, char reason[HK_REASON_BYTES]);

/* The memory of a link's payloads, if it can be made after the link: large buffers on demand, memory of GPUs. */
typedef struct hk_transport_payload {
  /* True if the link can be opened with memory for small payloads only (hk_link.small). The same until `open`. */
  bool (*grows)(hk_transport_state *s, const hk_link_key *key);
  /* For a GPU's link that does not grow: called before `reserve`, which `open` follows, using the reserved memory. */
  hk_status (*prepare)(hk_transport_state *s, const hk_link_key *key, hk_link *link);
  /* Allocates GPU memory for large payloads, once, after `prepare` or before `grow`. Another thread may run `progress`
   * at the same time, because this may wait for the GPU. *data is NULL if the payloads must be in host memory. */
  hk_status (*reserve)(hk_link *link, char **data);
  /* Gives a link that grows the memory of its large payloads, once: from `reserve` or, with `host`, the caller's as in
   * `open`. The two ends grow independently: a large message waits for its receiver. NULL: the links that grow belong
   * to another transport, which has this slot and the next two. */
  hk_status (*grow)(hk_link *link, char *data, bool host);
  /* Quiesces a link that is idle on both sides. With *rests true only the lane uses the memory of its payloads, until a
   * call with false. The link resumes once both sides have made that call. *rests becomes false if this is not possible
   * now. NULL: never possible. */
  hk_status (*rest)(hk_link *link, bool *rests);
  /* The GPU's memory that the link has for payloads; base NULL: none.  With `rest`. */
  struct hk_memory *(*gpu_memory)(hk_link *link);
} hk_transport_payload;

/* User memory as the place of a message: references to the sender's, places in the receiver's. */
typedef struct hk_transport_zero_copy {
  /* Valid after the init of all ranks, and equal on all. Not 0: links with one reader can refer to any memory from a
   * slot's size on, and then the reader's copy takes as long as so many copies by a core. NULL: 0. */
  double (*reads)(hk_transport_state *s);
  /* Turns a reference of `link` into an address.  NULL: no references are sent across processes. */
  const void *(*resolve)(hk_transport_state *s, hk_link *link, const hk_ref *ref, size_t bytes);
  /* Sender: the reference for [data, data + bytes); false if the memory cannot be shared.  NULL: always false. */
  bool (*refer)(hk_transport_state *s, hk_link *link, const void *data, size_t bytes, hk_ref *out);
  /* `there`: the user has registered this host memory, so messages may be sent from it without a copy. False: the
   * registration ends; no operation uses the memory. From any thread. NULL: the transport does not use registered
   * memory. */
  void (*memory)(hk_transport_state *s, void *base, size_t bytes, bool there);
  /* Receiver: hk_link_post_target.  NULL: no link's place_min is ever above 0. */
  void (*post_target)(hk_transport_state *s, hk_link *link, uint64_t k, void *to, uint32_t bytes);
  /* Receiver of a multicast: the reference by which its sender may map [data, data + bytes) and write there. False: it
   * cannot. NULL: always false (places.h). */
  bool (*export_target)(hk_transport_state *s, hk_link *link, const void *data, size_t bytes, hk_ref *out);
  /* Sender of a multicast: the address of the memory that reader `reader` (an index into link->heads) has lent. */
  hk_status (*map_target)(hk_transport_state *s, hk_link *link, unsigned reader, const hk_ref *ref, size_t bytes,
                          char **at);
  /* Copies the data of a reference with HK_REGION_PRIVATE. NULL: `refer` returns no such reference. */
  hk_status (*fetch)(hk_transport_state *s, hk_link *link, const hk_ref *ref, void *to, size_t bytes);
} hk_transport_zero_copy;

/* Links whose two ends share no memory: the transport moves their slots (hk_link.proxied). */
typedef struct hk_transport_proxied {
  /* Moves slots on proxied links and never blocks; *moved is set if anything moved. */
  hk_status (*progress)(hk_transport_state *s, bool *moved);
  /* A lane has filled a slot of a proxied link that was not `rung`.  On the lanes' thread.  NULL: progress looks at all
   * links. */
  void (*ring)(hk_link *link);
  /* Sleeps until there may be data to move, or for about a millisecond. NULL: the transport cannot sleep. */
  void (*sleep)(hk_transport_state *s);
  /* An operation has ended with an error: after this returns, nothing is written to offered places. The communicator is
   * not used again. From its lane's thread. NULL: only `progress` writes to them. */
  void (*withdraw)(hk_transport_state *s);
  /* True if no connection of a link also carries the other direction. */
  bool one_way;
  /* True if data to the peer uses a separate network, not TCP, that itself detects that the peer's host is gone. NULL:
   * false. */
  bool (*apart)(hk_transport_state *s, int peer);
  /* The functions of one-sided operations on `peer`; *ctx: their first argument. NULL result, or a NULL slot: none.
   * From any thread. */
  const struct hk_remote *(*remote)(hk_transport_state *s, int peer, void **ctx);
} hk_transport_proxied;

/* Services other than links, for the ranks of a host.  The first transport that has them is used.  Valid from `join` to
 * `detach`. */
typedef struct hk_transport_host {
  /* For hk_wait_env.shared_failure: one word for all ranks of the communicator on this host.  NULL result: this rank
   * shares no memory with others. */
  _Atomic(int) *(*failure_word)(hk_transport_state *s);
  /* The status page of a rank of this host; only the rank itself writes it.  NULL result: it cannot be read here. */
  struct hk_status_page *(*status_page)(hk_transport_state *s, int rank);
  /* The call checks of this host's ranks.  NULL result: none. */
  struct hk_call_checks *(*call_checks)(hk_transport_state *s);
  /* Returns the reason why processes of this host cannot get each other's files; NULL: they can. Equal on all ranks of
   * a host. */
  const char *(*no_files)(const hk_transport_state *s);
  /* The file of a region (device/host.h) of a rank of another process, for the caller to map and close. `wait` is for
   * threads other than the rank's; NULL: the rank's. */
  hk_status (*file)(hk_transport_state *s, const hk_wait_env *wait, int peer, uint64_t region, int *fd, size_t *bytes);
  /* Maps a region of a rank, to read and write. The mapping stays while the region exists, and longer. */
  hk_status (*map)(hk_transport_state *s, int peer, uint64_t region, char **base);
  /* Sends a question to a rank of this host and waits for the answer, which replaces `payload` (HK_QUESTION_BYTES);
   * `fd` goes with it unless it is -1. A rank of this process is asked directly, even if no_files has a reason. */
  hk_status (*ask)(hk_transport_state *s, int peer, int fd, void *payload);
  /* The same without waiting for an answer.  A process that has ended needs no notice: this is no error. */
  hk_status (*notify)(hk_transport_state *s, int peer, int fd, void *payload);
  /* Sets the function that answers questions to this rank, until `detach`.  NULL: all are refused. */
  void (*answer_with)(hk_transport_state *s, hk_answer *answer, void *arg);
  /* Tests whether this rank can access any memory of a rank of another process: reads `bytes` at the peer's address
   * `at`, which must equal `expected`. */
  bool (*writable)(hk_transport_state *s, int peer, uint64_t at, const void *expected, size_t bytes);
  /* Writes to the peer's address `at`. */
  hk_status (*write)(hk_transport_state *s, int peer, uint64_t at, const void *from, size_t bytes);
} hk_transport_host;

/* What each transport does; the groups at the end are for some. The state goes first to each function. A slot that may
 * be NULL says so. */
typedef struct hk_transport {
  const char *name;
  size_t fact_bytes; /* of its fact, at most HK_FACT_BYTES; 0: it has none */
  /* Makes the state and fills `fact` (zeroed, 8-aligned) with what peers need.  Before the exchange. */
  hk_status (*attach)(const hk_transport_env *env, hk_transport_state **out, void *fact);
  /* After the exchange, with all ranks' facts, which it copies if it needs them later.  Collective.  NULL: nothing to
   * agree on. */
  hk_status (*join)(hk_transport_state *s, const struct hk_facts *facts);
  /* True if this rank can reach `peer`. If not, `why` gets the reason, or stays empty if the transport is not needed
   * here. Symmetric: both ranks get the same result. */
  bool (*reachable)(hk_transport_state *s, int peer, char *why, size_t why_bytes);
  /* True if links of kind HK_LINK_MCAST_* can be opened. NULL: false. */
  bool (*multicast)(hk_transport_state *s);
  /* Fills one end of a link; the peer opens the other end, in any order.  The link's state may be CONNECTING. */
  hk_status (*open)(hk_transport_state *s, const hk_link_key *key, hk_link *link);
  /* NULL: nothing to give back. */
  void (*close)(hk_link *link);
  void (*detach)(hk_transport_state *s);

  const hk_transport_zero_copy *zero_copy; /* NULL: all messages go through slots, except with hk_link.by_ref 2 */
  const hk_transport_payload *payload;     /* NULL: `open` makes the memory of all payloads, on the host */
  const hk_transport_proxied *proxied;     /* NULL: a receiver sees a slot once the sender has published it */
  const hk_transport_host *host;           /* NULL: none of these services */
} hk_transport;
