/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL calls: ncclNetPlugin_v6 to ncclNetPlugin_v11.  Results are hk_status values, which are ncclResult_t's. */
#include "netplugin.h"
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default"))) extern

enum { SPEED_MBPS = 10000, MOST_BYTES = 1 << 30, CONNECTIONS = 65536 };

/* Parameters and log come from the environment, NCCL's own log callback is not needed: the lines look alike. */
static int begin_v6(hk_plugin_logger log) {
  (void)log;
  return HK_OK;
}
static int begin_v10(hk_plugin_logger log, net_plugin_profiler profiler) {
  (void)log, (void)profiler;
  return HK_OK;
}
static int begin_v11(void **context, uint64_t comm, net_plugin_config *config, hk_plugin_logger log,
                     net_plugin_profiler profiler) {
  static char all; /* every communicator has the same context: none */
  (void)comm, (void)config, (void)log, (void)profiler;
  *context = &all;
  return HK_OK;
}
static int end_v11(void *context) {
  (void)context;
  return HK_OK;
}

static int devices(int *n) {
  *n = 1;
  return HK_OK;
}

/* The interfaces' speed, or a guess. */
static int speed(void) {
  hk_iface ifaces[32];
  int n = (int)HK_ARRAY_LENGTH(ifaces);
  if (hk_ifaces(ifaces, &n, NULL) != HK_OK || n < 1 || !ifaces[0].speed_mbps) return SPEED_MBPS;
  return (int)ifaces[0].speed_mbps;
}

static char device_name[] = "hocket0";

static int properties_v6(int device, void *out) {
  net_plugin_properties_v6 p = {.name = device_name,
                                .guid = 1,
                                .memory = NET_PLUGIN_HOST_MEMORY,
                                .speed = speed(),
                                .port = device,
                                .max_comms = CONNECTIONS,
                                .max_receives = 1};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v7(int device, void *out) {
  net_plugin_properties_v7 p = {0};
  properties_v6(device, &p.base);
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v8(int device, void *out) {
  net_plugin_properties_v8 p = {.name = device_name,
                                .guid = 1,
                                .memory = NET_PLUGIN_HOST_MEMORY,
                                .speed = speed(),
                                .port = device,
                                .max_comms = CONNECTIONS,
                                .max_receives = 1};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v9(int device, void *out) {
  net_plugin_properties_v9 p = {.name = device_name,
                                .guid = 1,
                                .memory = NET_PLUGIN_HOST_MEMORY,
                                .speed = speed(),
                                .port = device,
                                .max_comms = CONNECTIONS,
                                .max_receives = 1,
                                .ndevices = 1,
                                .devices = {device},
                                .max_message = MOST_BYTES,
                                .max_collective = MOST_BYTES};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v11(int device, void *out) {
  net_plugin_properties_v11 p = {.max_multi_request = 1};
  properties_v9(device, &p.base);
  memcpy(out, &p, sizeof p);
  return HK_OK;
}

/* ---- connections ---- */

static int listen_v6(int device, void *handle, void **listener) {
  pair_handle h;
  pair_listener *l = NULL;
  (void)device;
  hk_status rc = pair_listen(&h, &l);
  memcpy(handle, &h, sizeof h);
  *listener = l;
  return rc;
}
static int listen_v11(void *context, int device, void *handle, void **listener) {
  (void)context;
  return listen_v6(device, handle, listener);
}

/* The pair that is being made is remembered in the handle, which NCCL gives again and again. */
static int connect_v6(int device, void *handle, void **comm) {
  hk_status rc = HK_OK;
  pair_handle h;
  (void)device;
  *comm = NULL;
  memcpy(&h, handle, sizeof h);
  if (!h.begun) HK_TRY(pair_dial(&h, &h.begun), out);
  HK_TRY(pair_advance(h.begun), out);
  if (h.begun->step == PAIR_READY) {
    *comm = h.begun;
    h.begun = NULL;
  }
out:
  if (rc != HK_OK && h.begun) {
    pair_free(h.begun);
    h.begun = NULL;
  }
  memcpy(handle, &h, sizeof h);
  return rc;
}
static int connect_v7(int device, void *handle, void **comm, net_plugin_device_handle **gpu) {
  (void)gpu;
  return connect_v6(device, handle, comm);
}
static int connect_v10(int device, net_plugin_config *config, void *handle, void **comm,
                       net_plugin_device_handle **gpu) {
  (void)config, (void)gpu;
  return connect_v6(device, handle, comm);
}
static int connect_v11(void *context, int device, void *handle, void **comm, net_plugin_device_handle **gpu) {
  (void)context, (void)gpu;
  return connect_v6(device, handle, comm);
}

static int accept_v6(void *listener, void **comm) {
  hk_status rc = HK_OK;
  pair_listener *l = listener;
  *comm = NULL;
  if (!l->begun) HK_TRY(pair_answer(l, &l->begun), out);
  if (!l->begun) return HK_OK;
  HK_TRY(pair_advance(l->begun), out);
  if (l->begun->step == PAIR_READY) {
    *comm = l->begun;
    l->begun = NULL;
  }
out:
  if (rc != HK_OK) {
    pair_free(l->begun);
    l->begun = NULL;
  }
  return rc;
}
static int accept_v7(void *listener, void **comm, net_plugin_device_handle **gpu) {
  (void)gpu;
  return accept_v6(listener, comm);
}

static int close_pair(void *comm) {
  pair_free(comm);
  return HK_OK;
}
static int close_listener(void *listener) {
  pair_listener_free(listener);
  return HK_OK;
}

/* ---- memory: nothing needs to be registered, but host memory alone can be sent ---- */

static int reg_v8(void *comm, void *data, size_t bytes, int type, void **registration) {
  (void)data, (void)bytes;
  if (type != NET_PLUGIN_HOST_MEMORY)
    return HK_FAIL(HK_ERR_USAGE, "the net plugin sends from host memory only: it said so in its properties");
  *registration = comm;
  return HK_OK;
}
static int reg_v6(void *comm, void *data, int bytes, int type, void **registration) {
  return reg_v8(comm, data, (size_t)bytes, type, registration);
}
static int reg_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **registration) {
  (void)comm, (void)data, (void)bytes, (void)type, (void)offset, (void)fd, (void)registration;
  return HK_FAIL(HK_ERR_USAGE, "the net plugin has no DMA-BUF registration: it said so in its properties");
}
static int dereg(void *comm, void *registration) {
  (void)comm, (void)registration;
  return HK_OK;
}

/* ---- messages ---- */

static int isend_v9(void *comm, void *data, size_t bytes, int tag, void *registration, void **request) {
  (void)tag, (void)registration; /* receives come singly: order is enough */
  *request = pair_post(comm, data, bytes);
  return pair_progress(comm);
}
static int isend_v6(void *comm, void *data, int bytes, int tag, void *registration, void **request) {
  return isend_v9(comm, data, (size_t)bytes, tag, registration, request);
}
static int isend_v10(void *comm, void *data, size_t bytes, int tag, void *registration, void *event, void **request) {
  (void)event;
  return isend_v9(comm, data, bytes, tag, registration, request);
}

static int irecv_v9(void *comm, int n, void **data, size_t *bytes, int *tags, void **registrations, void **request) {
  (void)tags, (void)registrations;
  *request = NULL;
  if (n != 1) return HK_FAIL(HK_ERR_USAGE, "a receive of %d buffers was asked for: the net plugin takes one", n);
  *request = pair_post(comm, data[0], bytes[0]);
  return HK_OK;
}
static int irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **registrations, void **request) {
  size_t room = (size_t)bytes[0];
  return irecv_v9(comm, n, data, &room, tags, registrations, request);
}
static int irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags, void **registrations, void **events,
                     void **request) {
  (void)events;
  return irecv_v9(comm, n, data, bytes, tags, registrations, request);
}

static int iflush(void *comm, int n, void **data, int *bytes, void **registrations, void **request) {
  (void)comm, (void)n, (void)data, (void)bytes, (void)registrations;
  *request = NULL; /* host memory: what came is there */
  return HK_OK;
}

static int test(void *request, int *done, int *bytes) {
  pair_request *r = request;
  hk_status rc = r->over ? HK_OK : pair_progress(r->pair);
  *done = r->over; /* what failed behind it is told to the next request */
  if (!r->over) return rc;
  if (bytes) bytes[0] = (int)r->bytes;
  r->used = false;
  return HK_OK;
}

/* ---- the structs ---- */

#define SAME                                                                                                           \
  .name = "Hocket", .devices = devices, .reg_dmabuf = reg_dmabuf, .dereg = dereg, .iflush = iflush, .test = test,      \
  .close_send = close_pair, .close_recv = close_pair, .close_listen = close_listener

EXPORT const net_plugin_v ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10,
    ncclNetPlugin_v11;

const net_plugin_v ncclNetPlugin_v6 = {SAME,
                                       .init.v6 = begin_v6,
                                       .properties = properties_v6,
                                       .listen.v6 = listen_v6,
                                       .connect.v6 = connect_v6,
                                       .accept.v6 = accept_v6,
                                       .reg.v6 = reg_v6,
                                       .isend.v6 = isend_v6,
                                       .irecv.v6 = irecv_v6};
const net_plugin_v ncclNetPlugin_v7 = {SAME,
                                       .init.v6 = begin_v6,
                                       .properties = properties_v7,
                                       .listen.v6 = listen_v6,
                                       .connect.v7 = connect_v7,
                                       .accept.v7 = accept_v7,
                                       .reg.v6 = reg_v6,
                                       .isend.v6 = isend_v6,
                                       .irecv.v6 = irecv_v6};
const net_plugin_v ncclNetPlugin_v8 = {SAME,
                                       .init.v6 = begin_v6,
                                       .properties = properties_v8,
                                       .listen.v6 = listen_v6,
                                       .connect.v7 = connect_v7,
                                       .accept.v7 = accept_v7,
                                       .reg.v8 = reg_v8,
                                       .isend.v6 = isend_v6,
                                       .irecv.v6 = irecv_v6};
const net_plugin_v ncclNetPlugin_v9 = {SAME,
                                       .init.v6 = begin_v6,
                                       .properties = properties_v9,
                                       .listen.v6 = listen_v6,
                                       .connect.v7 = connect_v7,
                                       .accept.v7 = accept_v7,
                                       .reg.v8 = reg_v8,
                                       .isend.v9 = isend_v9,
                                       .irecv.v9 = irecv_v9};
const net_plugin_v ncclNetPlugin_v10 = {SAME,
                                        .init.v10 = begin_v10,
                                        .properties = properties_v9,
                                        .listen.v6 = listen_v6,
                                        .connect.v10 = connect_v10,
                                        .accept.v7 = accept_v7,
                                        .reg.v8 = reg_v8,
                                        .isend.v10 = isend_v10,
                                        .irecv.v10 = irecv_v10};
const net_plugin_v ncclNetPlugin_v11 = {SAME,
                                        .init.v11 = begin_v11,
                                        .properties = properties_v11,
                                        .listen.v11 = listen_v11,
                                        .connect.v11 = connect_v11,
                                        .accept.v7 = accept_v7,
                                        .reg.v8 = reg_v8,
                                        .isend.v10 = isend_v10,
                                        .irecv.v10 = irecv_v10,
                                        .finalize = end_v11};
