/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ABI of NCCL's profiler plugins, versions 2 to 7: facts about the layout, in our words. A plugin exports one or
 * several of ncclProfiler_v2 to _v7; the newest is used. All have name, init, startEvent, stopEvent, recordEventState
 * and finalize.
 *
 * v2  group, coll, p2p and proxy events
 * v3  also kernel channels and events of net plugins
 * v4  init gets the communicator; times of kernel channels
 * v5  calls of the API and kernel launches; a collective's parent is its call, not its group
 * v6  collectives that copy engines run
 * v7  the tag that the user gave a call, and the phases of a kernel
 */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/plugin.h"

enum { /* types: bits of the mask that init returns */
       PROFILE_GROUP = 1,
       PROFILE_COLL = 2,
       PROFILE_P2P = 4,
       PROFILE_PROXY_OP = 8,
       PROFILE_PROXY_STEP = 16,
       PROFILE_PROXY_CONTROL = 32,
       PROFILE_KERNEL_CHANNEL = 64,
       PROFILE_NET_PLUGIN = 128,
       PROFILE_GROUP_API = 256, /* this one and the next: v5 */
       PROFILE_COLL_API = 512,
       PROFILE_P2P_API = 1024,
       PROFILE_KERNEL_LAUNCH = 2048,
       PROFILE_COPY_COLL = 4096, /* this one and the next two: v6 */
       PROFILE_COPY_SYNC = 8192,
       PROFILE_COPY_BATCH = 16384,
       PROFILE_KERNEL_PHASE = 32768 /* v7; includes PROFILE_KERNEL_CHANNEL */
};
enum { /* states */
       PROFILE_NET_PLUGIN_UPDATE = 21,
       PROFILE_KERNEL_CHANNEL_STOP = 22,
       PROFILE_GROUP_START_OVER = 23,
       PROFILE_GROUP_END_BEGINS = 24,
       PROFILE_KERNEL_PHASE_STOP = 31
};

/* Parts of descriptions that several versions share. */
typedef struct profile_kernel_v3 {
  uint8_t channel;
} profile_kernel_v3;
typedef struct profile_kernel_v4 {
  uint8_t channel;
  uint64_t timer;
} profile_kernel_v4;
typedef struct profile_net_plugin {
  int64_t id;
  void *data;
} profile_net_plugin;
typedef struct profile_coll_v2 { /* this one and the next two: v3, too */
  const char *comm_name;
  uint64_t comm, sequence;
  const char *function;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *type;
} profile_coll_v2;
typedef struct profile_choice_v2 {
  uint8_t channels, warps;
  const char *algorithm, *protocol;
} profile_choice_v2;
typedef struct profile_p2p_v2 {
  const char *comm_name;
  uint64_t comm;
  const char *function;
  void *buffer;
  const char *type;
  size_t count;
  int peer;
} profile_p2p_v2;
typedef struct profile_p2p {
  const char *function;
  void *buffer;
  const char *type;
  size_t count;
  int peer;
  uint8_t channels; /* v4 ends here */
  void *group;      /* v6 */
  uint64_t tag;
} profile_p2p;
typedef struct profile_coll {
  uint64_t sequence;
  const char *function;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *type;
  uint8_t channels, warps;
  const char *algorithm, *protocol; /* v4 ends here */
  void *group;                      /* v6 */
  const char *variant;              /* of a kernel for symmetric memory; NULL: none */
  bool symmetric;
  uint64_t tag;
} profile_coll;

typedef struct profile_event_v2 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      profile_coll_v2 call;
      size_t traffic;
      profile_choice_v2 choice;
    } coll;
    profile_p2p_v2 p2p;
  };
} profile_event_v2;

typedef struct profile_event_v3 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      profile_coll_v2 call;
      profile_choice_v2 choice;
    } coll;
    profile_p2p_v2 p2p;
    profile_kernel_v3 kernel;
    profile_net_plugin net;
  };
} profile_event_v3;

typedef struct profile_copy_coll { /* v6 */
  uint64_t sequence;
  const char *function;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *type, *sync;
  bool batch_sync;
  uint32_t batch, batches, number;
  void *stream; /* v6 ends here */
  uint64_t tag;
} profile_copy_coll;

/* v7; v5 and v6, too, which lack the tags and are shorter; v4, too, except for the type, which is one byte there, and
 * the fields marked above */
typedef struct profile_event {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
      uint64_t tag;
    } coll_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      void *stream;
      bool captured;
      uint64_t tag;
    } p2p_api;
    struct {
      void *stream;
    } launch;
    profile_coll coll;
    profile_p2p p2p;
    profile_kernel_v4 kernel;
    profile_net_plugin net;
    profile_copy_coll copy_coll;
    struct {
      bool complete;
      int ranks;
    } copy_sync;
    struct {
      int operations;
      size_t bytes;
      bool sync;
    } copy_batch;
    struct {
      uint8_t channel, phase;
      const char *name;
      uint64_t timer;
    } kernel_phase;
  };
} profile_event;
_Static_assert(sizeof(profile_event_v2) == 24 + 104, "as NCCL lays it out");
_Static_assert(sizeof(profile_event_v3) == 24 + 96, "as NCCL lays it out");
_Static_assert(sizeof(profile_event) == 24 + 112, "as NCCL lays it out");
_Static_assert(offsetof(profile_coll, group) == 80 && offsetof(profile_p2p, group) == 40, "where v4's parts end");
_Static_assert(offsetof(profile_coll, variant) == 88 && offsetof(profile_copy_coll, tag) == 88, "where v6's parts end");

typedef union profile_state { /* v4 to v7; this library reports no states of v2 and v3 */
  size_t bytes;
  int operations;
  void *data;
  uint64_t timer;
} profile_state;

typedef struct profiler_v {
  const char *name;
  union {
    ncclResult_t (*v2)(void **context, int *mask);
    ncclResult_t (*v4)(void **context, int *mask, const char *comm_name, uint64_t comm, int hosts, int ranks, int rank,
                       hk_plugin_logger log);
    ncclResult_t (*v5)(void **context, uint64_t comm, int *mask, const char *comm_name, int hosts, int ranks, int rank,
                       hk_plugin_logger log);
  } init;
  ncclResult_t (*start)(void *context, void **event, void *description);
  ncclResult_t (*stop)(void *event);
  ncclResult_t (*record)(void *event, int state, void *arguments);
  ncclResult_t (*finalize)(void *context);
} profiler_v;
_Static_assert(sizeof(profiler_v) == 48, "the plugin's struct is 48 bytes");
