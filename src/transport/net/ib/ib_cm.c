/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the kernel for RDMA routes with librdmacm: see ib_cm.h. */
#include "ib_cm.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/dl.h"
#include "../../../base/log.h"
#include "../../../base/rdmacm_abi.h"

#define CM_CALLS(NEED)                                                                                                 \
  NEED(hk_rdma_event_channel *, create_event_channel, (void), "rdma_create_event_channel")                             \
  NEED(void, destroy_event_channel, (hk_rdma_event_channel * channel), "rdma_destroy_event_channel")                   \
  NEED(int, create_id, (hk_rdma_event_channel * channel, hk_rdma_cm_id * *id, void *context, int port_space),          \
       "rdma_create_id")                                                                                               \
  NEED(int, destroy_id, (hk_rdma_cm_id * id), "rdma_destroy_id")                                                       \
  NEED(int, resolve_addr, (hk_rdma_cm_id * id, struct sockaddr * from, struct sockaddr * to, int ms),                  \
       "rdma_resolve_addr")                                                                                            \
  NEED(int, resolve_route, (hk_rdma_cm_id * id, int ms), "rdma_resolve_route")                                         \
  NEED(int, get_cm_event, (hk_rdma_event_channel * channel, hk_rdma_cm_event * *event), "rdma_get_cm_event")           \
  NEED(int, ack_cm_event, (hk_rdma_cm_event * event), "rdma_ack_cm_event")
typedef struct api {
  CM_CALLS(HK_DL_MEMBER)
} api;
static api cm;
static const hk_dl_symbol symbols[] = {CM_CALLS(HK_DL_NEED)};
static hk_dl library =
    HK_DL_LIBRARY(cm, symbols, HK_SUB_NET, "the kernel is not asked for RDMA routes", "librdmacm.so.1", "librdmacm.so");

/* Converts a GID to its address. Returns false if it is none, or a link-local one. */
static bool ib_cm_address_of(const hk_ibv_gid *gid, struct sockaddr_storage *out, char text[INET6_ADDRSTRLEN]) {
  struct in6_addr a;
  memcpy(&a, gid->raw, sizeof a);
  memset(out, 0, sizeof *out);
  if (IN6_IS_ADDR_V4MAPPED(&a)) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    v4->sin_family = AF_INET;
    memcpy(&v4->sin_addr, gid->raw + 12, 4);
    return inet_ntop(AF_INET, &v4->sin_addr, text, INET6_ADDRSTRLEN) != NULL;
  }
  ((struct sockaddr_in6 *)out)->sin6_family = AF_INET6;
  ((struct sockaddr_in6 *)out)->sin6_addr = a;
  return inet_ntop(AF_INET6, &a, text, INET6_ADDRSTRLEN) && !IN6_IS_ADDR_LINKLOCAL(&a) && !IN6_IS_ADDR_UNSPECIFIED(&a);
}

/* Waits for the event that must come next. Returns 0 or an errno value; ECANCELED if the caller's wait has failed. */
static int ib_cm_await(const hk_wait_env *wait, hk_rdma_event_channel *channel, int wanted, uint64_t deadline_ns) {
  enum { NAP_NS = 50 * 1000 * 1000 }; /* between two checks of the caller's wait */
  hk_rdma_cm_event *e;
  hk_waiter w;
  hk_wait_begin(&w, wait);
  while (cm.get_cm_event(channel, &e) != 0) {
    if (errno != EAGAIN && errno != EINTR) return errno;
    uint64_t now = hk_now_ns();
    if (now >= deadline_ns) return ETIMEDOUT;
    uint64_t left = deadline_ns - now;
    if (hk_wait_nap(&w, channel->fd, left < NAP_NS ? left : NAP_NS) != HK_OK) return ECANCELED;
  }
  int came = e->event, status = e->status < 0 ? -e->status : e->status;
  cm.ack_cm_event(e);
  return came == wanted ? 0 : status ? status : EPROTO;
}

/* Writes what an error of the kernel means here. */
static void ib_cm_explain(int err, const char *from, const char *to, char words[HK_IB_CM_WORDS]) {
  if (err == ETIMEDOUT || err == EHOSTUNREACH)
    snprintf(words, HK_IB_CM_WORDS, "%s does not answer to neighbour discovery from %s: link, VLAN, or host", to, from);
  else if (err == ENETUNREACH)
    snprintf(words, HK_IB_CM_WORDS, "there is no route from %s to %s", from, to);
  else if (err == ENODEV || err == EADDRNOTAVAIL)
    snprintf(words, HK_IB_CM_WORDS, "no RDMA port of this host has the address %s and a route to %s", from, to);
  else
    snprintf(words, HK_IB_CM_WORDS, "no RDMA route from %s to %s: %s", from, to, strerror(err));
}

static int ib_cm_resolve(const hk_wait_env *wait, hk_rdma_event_channel *channel, hk_rdma_cm_id *id,
                         struct sockaddr_storage *from, struct sockaddr_storage *to, int ms) {
  uint64_t deadline = hk_now_ns() + (uint64_t)ms * 1000000;
  int err, flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) < 0) return errno;
  if (cm.resolve_addr(id, (struct sockaddr *)from, (struct sockaddr *)to, ms) != 0) return errno;
  err = ib_cm_await(wait, channel, HK_RDMA_CM_ADDR_RESOLVED, deadline);
  if (err) return err;
  if (cm.resolve_route(id, ms) != 0) return errno;
  return ib_cm_await(wait, channel, HK_RDMA_CM_ROUTE_RESOLVED, deadline);
}

hk_ib_cm_answer hk_ib_cm_ask(const hk_wait_env *wait, const hk_ibv_gid *from, const hk_ibv_gid *to, int ms,
                             char words[HK_IB_CM_WORDS]) {
  struct sockaddr_storage a, b;
  char here[INET6_ADDRSTRLEN], there[INET6_ADDRSTRLEN];
  hk_ib_cm_answer answer = HK_IB_CM_NO_ANSWER;
  hk_rdma_cm_id *id = NULL;
  if (!ib_cm_address_of(from, &a, here) || !ib_cm_address_of(to, &b, there)) {
    snprintf(words, HK_IB_CM_WORDS, "rdma_cm resolves no link-local addresses");
    return answer;
  }
  if (!hk_dl_load(&library)) {
    snprintf(words, HK_IB_CM_WORDS, "%.120s", library.why);
    return answer;
  }
  hk_rdma_event_channel *channel = cm.create_event_channel();
  if (!channel || cm.create_id(channel, &id, NULL, HK_RDMA_PS_TCP) != 0) {
    snprintf(words, HK_IB_CM_WORDS, "rdma_cm cannot be asked (/dev/infiniband/rdma_cm, the module rdma_ucm): %s",
             strerror(errno));
    goto out;
  }
  int err = ib_cm_resolve(wait, channel, id, &a, &b, ms);
  answer = !err ? HK_IB_CM_ROUTE : err == ECANCELED ? HK_IB_CM_NO_ANSWER : HK_IB_CM_NO_ROUTE;
  if (answer == HK_IB_CM_NO_ANSWER)
    snprintf(words, HK_IB_CM_WORDS, "its answer was not waited for: the communicator has failed or is aborted");
  else if (err)
    ib_cm_explain(err, here, there, words);
  else
    snprintf(words, HK_IB_CM_WORDS, "%.31s:%d resolves %s", id->verbs ? id->verbs->device->name : "?", id->port_num,
             there);
out:
  if (id) cm.destroy_id(id);
  if (channel) cm.destroy_event_channel(channel);
  return answer;
}
