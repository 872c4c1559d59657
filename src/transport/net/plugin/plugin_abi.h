/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ABI of NCCL's net plugins, versions 6 to 12. A plugin exports one or several structs ncclNetPlugin_v6 to _v12.
 *
 * The members of all versions have the same offsets; newer versions have more of them, and some members have other
 * arguments. So one struct describes them all, with a union for members whose arguments differ:
 *
 *   v6   the oldest one here: 17 members
 *   v7   connect and accept give a device handle; getDeviceMr, irecvConsumed
 *   v8   regMr's size is a size_t
 *   v9   sizes of isend and irecv are size_t; makeVDevice
 *   v10  init gets a profiler callback, connect a configuration, isend and irecv a profiler handle
 *   v11  a context for each communicator, made by init and ended by finalize; setNetAttr
 *   v12  devices of up to eight others, rail and plane of a device
 *
 * Results are ncclResult_t's, declared as int because this folder does not include nccl.h. connect and accept may leave
 * the comm NULL, and isend and irecv the request: then the call is to be repeated later.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../../../base/plugin.h"

enum {
  NET_PLUGIN_OLDEST = 6,
  NET_PLUGIN_NEWEST = 12,
  NET_PLUGIN_HANDLE = 128,    /* bytes of listen's handle */
  NET_PLUGIN_HOST_MEMORY = 1, /* a bit of the property `memory`, and regMr's type */
  NET_PLUGIN_CUDA_MEMORY = 2,
  NET_PLUGIN_DMABUF = 4,      /* a bit of `memory`: regMrDmaBuf accepts GPU memory, with the type above */
  NET_PLUGIN_REMOTE_ERROR = 6 /* ncclRemoteError */
};

/* The callback for events that init of v10 and v11 gets. */
typedef int (*net_plugin_profiler)(void **event, int type, void *parent, int64_t id, void *data);

typedef struct net_plugin_config { /* v10 and newer */
  int traffic_class;
} net_plugin_config;

typedef struct net_plugin_device_handle { /* v7 and newer, for plugins that put the receiver's work on a GPU */
  int type, version;
  void *handle;
  size_t size;
  int needs_progress;
} net_plugin_device_handle;

typedef struct net_plugin_v {
  const char *name;
  union {
    int (*v6)(hk_plugin_logger log);
    int (*v10)(hk_plugin_logger log, net_plugin_profiler profiler);
    int (*v11)(void **context, uint64_t comm, net_plugin_config *config, hk_plugin_logger log,
               net_plugin_profiler profiler);
  } init;
  int (*devices)(int *n);
  int (*properties)(int device, void *properties); /* net_plugin_properties_v* */
  union {
    int (*v6)(int device, void *handle, void **listener);
    int (*v11)(void *context, int device, void *handle, void **listener);
  } listen;
  union {
    int (*v6)(int device, void *handle, void **comm);
    int (*v7)(int device, void *handle, void **comm, net_plugin_device_handle **gpu);
    int (*v10)(int device, net_plugin_config *config, void *handle, void **comm, net_plugin_device_handle **gpu);
    int (*v11)(void *context, int device, void *handle, void **comm, net_plugin_device_handle **gpu);
  } connect;
  union {
    int (*v6)(void *listener, void **comm);
    int (*v7)(void *listener, void **comm, net_plugin_device_handle **gpu);
  } accept;
  union {
    int (*v6)(void *comm, void *data, int bytes, int type, void **registration);
    int (*v8)(void *comm, void *data, size_t bytes, int type, void **registration);
  } reg;
  int (*reg_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **registration);
  int (*dereg)(void *comm, void *registration);
  union {
    int (*v6)(void *comm, void *data, int bytes, int tag, void *registration, void **request);
    int (*v9)(void *comm, void *data, size_t bytes, int tag, void *registration, void **request);
    int (*v10)(void *comm, void *data, size_t bytes, int tag, void *registration, void *event, void **request);
  } isend;
  union {
    int (*v6)(void *comm, int n, void **data, int *bytes, int *tags, void **registrations, void **request);
    int (*v9)(void *comm, int n, void **data, size_t *bytes, int *tags, void **registrations, void **request);
    int (*v10)(void *comm, int n, void **data, size_t *bytes, int *tags, void **registrations, void **events,
               void **request);
  } irecv;
  int (*iflush)(void *comm, int n, void **data, int *bytes, void **registrations, void **request);
  int (*test)(void *request, int *done, int *bytes);
  int (*close_send)(void *comm);
  int (*close_recv)(void *comm);
  int (*close_listen)(void *listener);
  /* v7 and newer */
  int (*device_registration)(void *comm, void *registration, void **on_device);
  int (*irecv_consumed)(void *comm, int n, void *request);
  /* v9 and newer */
  int (*make_virtual_device)(int *device, void *devices);
  /* v11 */
  int (*finalize)(void *context);
  int (*set_attributes)(void *context, void *attributes);
} net_plugin_v;
_Static_assert(offsetof(net_plugin_v, device_registration) == 136, "v6's struct is 136 bytes");
_Static_assert(offsetof(net_plugin_v, make_virtual_device) == 152, "those of v7 and v8 are 152 bytes");
_Static_assert(offsetof(net_plugin_v, finalize) == 160, "those of v9 and v10 are 160 bytes");
_Static_assert(sizeof(net_plugin_v) == 176, "v11's struct is 176 bytes");

/* The struct that getProperties fills. `memory`: NET_PLUGIN_*_MEMORY; speed in Mb/s; latency in us. */
typedef struct net_plugin_properties_v6 {
  char *name, *pci_path;
  uint64_t guid;
  int memory, speed, port;
  float latency;
  int max_comms, max_receives;
} net_plugin_properties_v6;

typedef struct net_plugin_properties_v7 {
  net_plugin_properties_v6 base;
  int gpu_type, gpu_version; /* 0: the host does the receiver's work */
} net_plugin_properties_v7;

typedef struct net_plugin_properties_v8 {
  char *name, *pci_path;
  uint64_t guid;
  int memory, global_registrations, speed, port;
  float latency;
  int max_comms, max_receives;
  int gpu_type, gpu_version;
} net_plugin_properties_v8;

typedef struct net_plugin_properties_v9 { /* v10 too */
  char *name, *pci_path;
  uint64_t guid;
  int memory, global_registrations, force_flush, speed, port;
  float latency;
  int max_comms, max_receives;
  int gpu_type, gpu_version;
  int ndevices, devices[4]; /* that this one is made of */
  size_t max_message, max_collective;
} net_plugin_properties_v9;

typedef struct net_plugin_properties_v11 {
  net_plugin_properties_v9 base;
  int max_multi_request;
} net_plugin_properties_v11;

typedef struct net_plugin_properties_v12 {
  char *name, *pci_path;
  uint64_t guid;
  int memory, global_registrations, force_flush, speed, port;
  float latency;
  int max_comms, max_receives;
  int gpu_type, gpu_version;
  int ndevices, devices[8]; /* that this one is made of */
  size_t max_message, max_collective;
  int max_multi_request;
  int16_t rail, plane; /* -1: unknown */
} net_plugin_properties_v12;

_Static_assert(sizeof(net_plugin_properties_v12) == 128 && offsetof(net_plugin_properties_v12, rail) == 124,
               "as NCCL lays it out");
_Static_assert(sizeof(net_plugin_properties_v6) == 48, "as NCCL lays it out");
_Static_assert(sizeof(net_plugin_properties_v7) == 56, "as NCCL lays it out");
_Static_assert(sizeof(net_plugin_properties_v8) == 64, "as NCCL lays it out");
_Static_assert(sizeof(net_plugin_properties_v9) == 104, "as NCCL lays it out");
_Static_assert(sizeof(net_plugin_properties_v11) == 112, "as NCCL lays it out");
