/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that NCCL calls: ncclNetPlugin_v6 to ncclNetPlugin_v12. Results are hk_status values, which are
 * ncclResult_t's. */
#include "netplugin.h"
#include <stdlib.h>
#include <string.h>
#include "../transport/net/net.h"

#define EXPORT __attribute__((visibility("default"))) extern

enum { MOST_BYTES = 1 << 30, CONNECTIONS = 65536 };

/* Parameters and log come from the environment. NCCL's own log callback is not needed, because the lines look alike. */
static int begin_v6(hk_plugin_logger log) {
  (void)log;
  return pair_allowed();
}
static int begin_v10(hk_plugin_logger log, net_plugin_profiler profiler) {
  (void)profiler;
  return begin_v6(log);
}
static int begin_v11(void **context, uint64_t comm, net_plugin_config *config, hk_plugin_logger log,
                     net_plugin_profiler profiler) {
  static char all; /* all communicators share one context, which is empty */
  (void)comm, (void)config, (void)profiler;
  *context = &all;
  return begin_v6(log);
}
static int end_v11(void *context) {
  (void)context;
  return HK_OK;
}

static int devices(int *n) {
  *n = pair_devices();
  return HK_OK;
}

#define PROPERTIES(d)                                                                                                  \
  .name = (d)->name, .pci_path = *(d)->pci ? (d)->pci : NULL, .guid = (d)->guid, .memory = (d)->memory,                \
  .speed = (d)->speed, .port = (d)->port, .max_comms = CONNECTIONS, .max_receives = *(d)->device ? PAIR_GROUP : 1

static int properties_v6(int device, void *out) {
  net_plugin_properties_v6 p = {PROPERTIES(pair_device_at(device))};
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
  net_plugin_properties_v8 p = {PROPERTIES(pair_device_at(device))};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v9(int device, void *out) {
  net_plugin_properties_v9 p = {PROPERTIES(pair_device_at(device)), .ndevices = 1, .devices = {device},
                                .max_message = MOST_BYTES, .max_collective = MOST_BYTES};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v11(int device, void *out) {
  net_plugin_properties_v11 p = {.max_multi_request = 1};
  properties_v9(device, &p.base);
  memcpy(out, &p, sizeof p);
  return HK_OK;
}
static int properties_v12(int device, void *out) {
  const pair_device *d = pair_device_at(device);
  net_plugin_properties_v12 p = {
      PROPERTIES(pair_device_at(device)), .ndevices = 1,          .devices = {device},      .max_message = MOST_BYTES,
      .max_collective = MOST_BYTES,       .max_multi_request = 1, .rail = (int16_t)d->rail, .plane = -1};
  memcpy(out, &p, sizeof p);
  return HK_OK;
}

/* ---- connections ---- */

static int listen_v6(int device, void *handle, void **listener) {
  pair_handle h;
  pair_listener *l = NULL;
  hk_status rc = pair_listen(device, &h, &l);
  memcpy(handle, &h, sizeof h);
  *listener = l;
  return rc;
}
static int listen_v11(void *context, int device, void *handle, void **listener) {
  (void)context;
  return listen_v6(device, handle, listener);
}

/* The pair that is being made is stored in the handle, which NCCL passes in every call. */
static int connect_v6(int device, void *handle, void **comm) {
  hk_status rc = HK_OK;
  pair_handle h;
  *comm = NULL;
  memcpy(&h, handle, sizeof h);
  if (!h.begun) HK_TRY(pair_dial(device, &h, &h.begun), out);
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
  if (rc != HK_OK || (l->begun && l->begun->step == PAIR_WRONG_KEY)) { /* the right peer may still connect */
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

/* ---- memory ---- */

static hk_status new_memory(void *data, size_t bytes, bool gpu, void **registration) {
  pair_memory *m = malloc(sizeof *m);
  if (!m) return HK_FAIL_ERRNO("no memory for a registration");
  *m = (pair_memory){.base = data, .bytes = bytes, .gpu = gpu};
  *registration = m;
  return HK_OK;
}

/* `fd`: of a dma-buf; -1: none. */
static hk_status reg_gpu(pair *p, void *data, size_t bytes, int fd, uint64_t offset, void **registration) {
  hk_status rc = HK_OK;
  if (!p->link.placed)
    return HK_FAIL(
        HK_ERR_USAGE,
        "memory of a GPU cannot be registered with this connection: it uses sockets, because RDMA does not work on one "
        "of the two sides (NCCL_DEBUG=INFO gives the reason); NCCL_NET_GDR_LEVEL=LOC keeps data in host memory");
  HK_OR_RETURN(new_memory(data, bytes, true, registration));
  rc = hk_net_gpu_memory(&p->link, data, bytes, fd, offset);
  if (rc == HK_OK) return HK_OK;
  free(*registration);
  *registration = NULL;
  return rc;
}

/* Over sockets nothing needs to be registered. */
static int reg_v8(void *comm, void *data, size_t bytes, int type, void **registration) {
  pair *p = comm;
  *registration = NULL;
  if (type == NET_PLUGIN_CUDA_MEMORY) return reg_gpu(p, data, bytes, -1, 0, registration);
  if (type != NET_PLUGIN_HOST_MEMORY)
    return HK_FAIL(HK_ERR_USAGE, "memory of an unknown kind, %d, to be registered", type);
  HK_OR_RETURN(new_memory(data, bytes, false, registration));
  if (p->link.placed) hk_transport_net.memory(p->state, data, bytes, true);
  return HK_OK;
}
static int reg_v6(void *comm, void *data, int bytes, int type, void **registration) {
  return reg_v8(comm, data, (size_t)bytes, type, registration);
}
static int reg_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **registration) {
  *registration = NULL;
  if (type != NET_PLUGIN_CUDA_MEMORY)
    return HK_FAIL(HK_ERR_USAGE, "a dma-buf of memory of kind %d to be registered, which is no GPU's", type);
  return reg_gpu(comm, data, bytes, fd, offset, registration);
}
static int dereg(void *comm, void *registration) {
  pair *p = comm;
  pair_memory *m = registration;
  if (m && p->link.placed) hk_transport_net.memory(p->state, m->base, m->bytes, false);
  free(m);
  return HK_OK;
}

/* A card can reach only memory that was registered. */
static hk_status within(const pair *p, const void *data, size_t bytes, const pair_memory *m) {
  const char *at = data;
  size_t from = m && at >= m->base ? (size_t)(at - m->base) : SIZE_MAX;
  if (!p->link.placed || !bytes || (m && from <= m->bytes && bytes <= m->bytes - from)) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "a message of %zu bytes at %p is not inside the memory of the given registration", bytes,
                 data);
}

/* ---- messages ---- */

static int isend_v9(void *comm, void *data, size_t bytes, int tag, void *registration, void **request) {
  *request = NULL;
  HK_OR_RETURN(within(comm, data, bytes, registration));
  *request = pair_send(comm, data, bytes, tag);
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
  const pair *p = comm;
  const int most = p->mine.groups ? PAIR_GROUP : 1;
  *request = NULL;
  if (n < 1 || n > most)
    return HK_FAIL(HK_ERR_USAGE, "a receive of %d buffers: this device of the net plugin supports %d", n, most);
  for (int i = 0; i < n; i++) HK_OR_RETURN(within(comm, data[i], bytes[i], registrations[i]));
  *request = pair_receive(comm, n, data, bytes, tags);
  return pair_progress(comm); /* the sender waits for the tags */
}
static int irecv_v6(void *comm, int n, void **data, int *bytes, int *tags, void **registrations, void **request) {
  size_t room[PAIR_GROUP] = {0};
  for (int i = 0; i < n && i < PAIR_GROUP; i++) room[i] = (size_t)bytes[i];
  return irecv_v9(comm, n, data, room, tags, registrations, request);
}
static int irecv_v10(void *comm, int n, void **data, size_t *bytes, int *tags, void **registrations, void **events,
                     void **request) {
  (void)events;
  return irecv_v9(comm, n, data, bytes, tags, registrations, request);
}

static int iflush(void *comm, int n, void **data, int *bytes, void **registrations, void **request) {
  pair *p = comm;
  int i = 0;
  *request = NULL;     /* host memory: what arrived is there */
  for (; i < n; i++) { /* one flush covers all buffers of a GPU */
    const pair_memory *m = registrations[i];
    if (bytes[i] && m && m->gpu) break;
  }
  if (i == n || !p->link.placed) return HK_OK;
  *request = pair_flush(p, data[i]);
  return *request ? HK_OK : HK_FAIL(HK_ERR_USAGE, "more than %d flushes of a connection at once", PAIR_REQUESTS);
}

static int test(void *request, int *done, int *bytes) {
  pair_request *r = request;
  *done = pair_is_over(r, bytes);
  if (*done) return HK_OK;
  hk_status rc = r->flush ? pair_flushed(r) : pair_progress(r->pair);
  *done = pair_is_over(r, bytes); /* an error after it is reported to the next request */
  return *done ? HK_OK : rc;
}

/* ---- the structs ---- */

/* The form of each call, named by the version that introduced it. */
#define PLUGIN(version, init_v, properties_v, listen_v, connect_v, accept_v, reg_v, isend_v, irecv_v, end)             \
  EXPORT const net_plugin_v ncclNetPlugin_##version;                                                                   \
  const net_plugin_v ncclNetPlugin_##version = {.name = "Hocket",                                                      \
                                                .init.init_v = begin_##init_v,                                         \
                                                .devices = devices,                                                    \
                                                .properties = properties_##properties_v,                               \
                                                .listen.listen_v = listen_##listen_v,                                  \
                                                .connect.connect_v = connect_##connect_v,                              \
                                                .accept.accept_v = accept_##accept_v,                                  \
                                                .reg.reg_v = reg_##reg_v,                                              \
                                                .reg_dmabuf = reg_dmabuf,                                              \
                                                .dereg = dereg,                                                        \
                                                .isend.isend_v = isend_##isend_v,                                      \
                                                .irecv.irecv_v = irecv_##irecv_v,                                      \
                                                .iflush = iflush,                                                      \
                                                .test = test,                                                          \
                                                .close_send = close_pair,                                              \
                                                .close_recv = close_pair,                                              \
                                                .close_listen = close_listener,                                        \
                                                .finalize = end}

/* init, properties, listen, connect, accept, regMr, isend, irecv, finalize */
PLUGIN(v6, v6, v6, v6, v6, v6, v6, v6, v6, NULL);
PLUGIN(v7, v6, v7, v6, v7, v7, v6, v6, v6, NULL);
PLUGIN(v8, v6, v8, v6, v7, v7, v8, v6, v6, NULL);
PLUGIN(v9, v6, v9, v6, v7, v7, v8, v9, v9, NULL);
PLUGIN(v10, v10, v9, v6, v10, v7, v8, v10, v10, NULL);
PLUGIN(v11, v11, v11, v11, v11, v7, v8, v10, v10, end_v11);
PLUGIN(v12, v11, v12, v11, v11, v7, v8, v10, v10, end_v11);
