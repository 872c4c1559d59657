/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_cm without a kernel: what it answers is the test's will.  The device that it names is called cm0, its port 1. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "../../src/base/rdmacm_abi.h"
#include "rdmacm.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT extern fake_cm_state fake_cm;
fake_cm_state fake_cm;

typedef struct channel {
  hk_rdma_event_channel v; /* first: callers hold pointers to these */
  int in;                  /* of a pipe, with events in it */
} channel;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* several ranks ask at once */
static hk_ibv_device device = {.name = "cm0"};
static hk_ibv_context context = {.device = &device};

EXPORT hk_rdma_event_channel *rdma_create_event_channel(void);
EXPORT void rdma_destroy_event_channel(hk_rdma_event_channel *c);
EXPORT int rdma_create_id(hk_rdma_event_channel *c, hk_rdma_cm_id **id, void *arg, int port_space);
EXPORT int rdma_destroy_id(hk_rdma_cm_id *id);
EXPORT int rdma_resolve_addr(hk_rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms);
EXPORT int rdma_resolve_route(hk_rdma_cm_id *id, int ms);
EXPORT int rdma_get_cm_event(hk_rdma_event_channel *c, hk_rdma_cm_event **out);
EXPORT int rdma_ack_cm_event(hk_rdma_cm_event *e);

static void opened(int n) {
  pthread_mutex_lock(&lock);
  fake_cm.open += n;
  pthread_mutex_unlock(&lock);
}

static int fail(int err) {
  errno = err;
  return -1;
}

hk_rdma_event_channel *rdma_create_event_channel(void) {
  int ends[2];
  channel *c = fake_cm.no_device ? NULL : calloc(1, sizeof *c);
  if (!c || pipe(ends) != 0) {
    free(c);
    if (fake_cm.no_device) errno = fake_cm.no_device;
    return NULL;
  }
  c->v.fd = ends[0];
  c->in = ends[1];
  opened(1);
  return &c->v;
}

void rdma_destroy_event_channel(hk_rdma_event_channel *c) {
  close(c->fd);
  close(((channel *)c)->in);
  free(c);
  opened(-1);
}

int rdma_create_id(hk_rdma_event_channel *c, hk_rdma_cm_id **id, void *arg, int port_space) {
  *id = calloc(1, sizeof **id);
  if (!*id) return -1;
  **id = (hk_rdma_cm_id){.channel = c, .context = arg, .port_space = port_space};
  opened(1);
  return 0;
}

int rdma_destroy_id(hk_rdma_cm_id *id) {
  free(id);
  opened(-1);
  return 0;
}

static int report(hk_rdma_cm_id *id, int kind, int err) {
  hk_rdma_cm_event e = {.id = id, .event = kind, .status = -err};
  if (fake_cm.mute) return 0;
  return write(((channel *)id->channel)->in, &e, sizeof e) == sizeof e ? 0 : -1;
}

static void spell(const struct sockaddr *a, char text[64]) {
  const void *at = a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                                           : (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
  if (!inet_ntop(a->sa_family, at, text, 64)) abort();
}

int rdma_resolve_addr(hk_rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms) {
  (void)ms;
  pthread_mutex_lock(&lock);
  fake_cm.asked++;
  spell(from, fake_cm.from);
  spell(to, fake_cm.to);
  pthread_mutex_unlock(&lock);
  if (fake_cm.refused) return fail(fake_cm.refused);
  if (fake_cm.addr_error) return report(id, HK_RDMA_CM_ADDR_ERROR, fake_cm.addr_error);
  id->verbs = &context;
  id->port_num = 1;
  return report(id, HK_RDMA_CM_ADDR_RESOLVED, 0);
}

int rdma_resolve_route(hk_rdma_cm_id *id, int ms) {
  (void)ms;
  return report(id, fake_cm.route_error ? HK_RDMA_CM_ROUTE_ERROR : HK_RDMA_CM_ROUTE_RESOLVED, fake_cm.route_error);
}

int rdma_get_cm_event(hk_rdma_event_channel *c, hk_rdma_cm_event **out) {
  *out = malloc(sizeof **out);
  if (*out && read(c->fd, *out, sizeof **out) == (ssize_t)sizeof **out) {
    opened(1);
    return 0;
  }
  int err = errno;
  free(*out);
  return fail(err);
}

int rdma_ack_cm_event(hk_rdma_cm_event *e) {
  free(e);
  opened(-1);
  return 0;
}
