/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of the plugin: how they connect to each other. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "../base/iface.h" /* hk_addr_same_host */
#include "../base/log.h"
#include "../base/param.h"
#include "../transport/net/net.h"
#include "netplugin.h"

enum { SECOND_NS = 1000000000, IFACES = 32, ARRIVAL_S = 10 /* for the first bytes of a connection */ };
static const uint64_t MAGIC = 0x4f434b45542e4e50; /* "OCKET.NP" */

/* ---- data connections, in place of the bootstrap's ---- */

static hk_status broken(pair *p, const char *doing, int err) {
  char text[HK_ADDR_TEXT];
  p->step = PAIR_BROKEN;
  return HK_FAIL(HK_ERR_REMOTE,
                 "the peer at %s closed the connection or is gone, while %s: %s; look at that rank's output",
                 hk_addr_format(&p->control, text), doing, err ? strerror(err) : "it closed it");
}

static hk_status write_whole(pair *p, int fd, const void *data, size_t bytes) {
  for (const char *at = data; bytes > 0;) {
    ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return broken(p, "calling it", errno);
    if (n > 0) at += n, bytes -= (size_t)n;
    if (bytes > 0) HK_OR_RETURN(hk_wait_fd(&p->wait, fd, POLLOUT, "a connection of the net plugin"));
  }
  return HK_OK;
}

static hk_status dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  hk_status rc;
  pair *p = arg;
  hk_addr to = at ? *at : p->control;
  pair_tag first = {.tag = tag};
  (void)peer;
  *fd = -1;
  memcpy(first.key, p->mine.key, PAIR_KEY);
  hk_addr_set_port(&to, p->theirs.port);
  p->wait.deadline_ns = hk_now_ns() + (uint64_t)hk_param_int(HK_P_PEER_TIMEOUT) * SECOND_NS;
  HK_TRY(hk_connect_start(&to, fd), out);
  HK_TRY(hk_wait_fd(&p->wait, *fd, POLLOUT, "a connection of the net plugin"), out);
  HK_TRY(write_whole(p, *fd, &first, sizeof first), out);
out:
  if (rc != HK_OK && *fd >= 0) {
    close(*fd);
    *fd = -1; /* the caller must close it if it is not -1 */
  }
  return rc;
}

/* Reads the first bytes of a connection, as far as they have arrived; false: nothing arrives, or the key is wrong. */
static bool read_tag(const pair *p, pair_conn *c) {
  while (c->got < sizeof c->first) {
    ssize_t n = recv(c->fd, (char *)&c->first + c->got, sizeof c->first - c->got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return hk_now_ns() < c->until_ns;
    if (n <= 0) return false;
    c->got += (size_t)n;
  }
  return memcmp(c->first.key, p->mine.key, PAIR_KEY) == 0;
}

/* The connection now belongs to the caller. */
static int release(pair *p, int i) {
  int fd = p->arrived[i].fd;
  p->arrived[i] = p->arrived[--p->narrived];
  return fd;
}

static void take_calls(pair *p) {
  int fd;
  while (p->narrived < PAIR_ARRIVED && (fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
    p->arrived[p->narrived++] = (pair_conn){.fd = fd, .until_ns = hk_now_ns() + ARRIVAL_S * (uint64_t)SECOND_NS};
  for (int i = p->narrived - 1; i >= 0; i--)
    if (!read_tag(p, &p->arrived[i])) close(release(p, i));
}

static int take(void *arg, int peer, uint64_t tag) {
  pair *p = arg;
  (void)peer;
  take_calls(p);
  for (int i = 0; i < p->narrived; i++)
    if (p->arrived[i].got == sizeof p->arrived[i].first && p->arrived[i].first.tag == tag) return release(p, i);
  return -1;
}

/* ---- the pair ---- */

hk_status pair_allowed(void) {
  const char *key = hk_param_str(HK_P_ENCRYPTION_KEY_FILE);
  if (!key || !*key) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "HOCKET_ENCRYPTION_KEY_FILE is set, and the net plugin encrypts nothing: use it without "
                               "a key, on a network that encrypts");
}

/* The address of this side: the interface that NCCL_SOCKET_IFNAME and the like select. */
static hk_status own_address(hk_addr *a) {
  hk_iface ifaces[IFACES];
  int n = IFACES;
  HK_OR_RETURN(hk_ifaces(ifaces, &n, NULL));
  if (n < 1)
    return HK_FAIL(HK_ERR_SYSTEM, "no network interface of this host is up that NCCL_SOCKET_IFNAME takes (ip address)");
  *a = ifaces[0].addr;
  return HK_OK;
}

static hk_status listen_at(hk_addr *a, int *fd) {
  hk_addr any;
  memset(&any, 0, sizeof any);
  any.sa.sa_family = a->sa.sa_family; /* of every interface, because data may arrive through another one */
  hk_status rc = hk_listen(&any, 16, fd);
  hk_addr_set_port(a, hk_addr_port(&any));
  return rc;
}

/* Are the two ends of the control connection addresses of one host? */
static bool ends_on_one_host(int fd) {
  hk_addr here, there;
  socklen_t n = sizeof here, m = sizeof there;
  memset(&here, 0, sizeof here);
  memset(&there, 0, sizeof there);
  if (getsockname(fd, &here.sa, &n) != 0 || getpeername(fd, &there.sa, &m) != 0) return false;
  return hk_addr_same_host(&here, &there);
}

static hk_status pair_new(bool sends, int device, int fd, const uint8_t key[PAIR_KEY], pair **out) {
  hk_status rc;
  const pair_device *on = pair_device_at(device);
  hk_addr own;
  pair *p = calloc(1, sizeof *p);
  if (!p) {
    close(fd);
    return HK_FAIL_ERRNO("no memory for a connection");
  }
  pair_cards_hold();
  p->sends = sends;
  p->fd = fd;
  p->listener = -1;
  memcpy(p->mine.key, key, PAIR_KEY);
  p->peers[0].process = 1; /* two processes of two hosts, until more is known */
  p->peers[0].host = 1;
  p->env = (hk_transport_env){.rank = sends ? 0 : 1,
                              .nranks = 2,
                              .secret = p->mine.key,
                              .peers = p->peers,
                              .wait = &p->wait,
                              .dial = dial,
                              .take = take,
                              .arg = p,
                              .slot_bytes = (size_t)hk_param_int(HK_P_SLOT_BYTES),
                              .nslots = (uint32_t)hk_param_int(HK_P_SLOTS),
                              .traffic_class = NET_PLUGIN_UNDEFINED,
                              .device = on->device,
                              .device_port = on->port,
                              .within_plugin = true};
  memcpy(&p->env.comm_id, key, sizeof p->env.comm_id);
  p->deadline_ns = hk_now_ns() + (uint64_t)hk_param_int(HK_P_BOOTSTRAP_TIMEOUT) * SECOND_NS;
  HK_TRY(own_address(&own), out);
  HK_TRY(listen_at(&own, &p->listener), out);
  p->mine.port = hk_addr_port(&own);
  p->mine.slot_bytes = (uint32_t)p->env.slot_bytes;
  p->mine.nslots = p->env.nslots;
  p->mine.groups = !sends && *on->device;
  HK_TRY(hk_transport_net.attach(&p->env, &p->state, p->mine.facts), out);
  *out = p;
  return HK_OK;
out:
  pair_free(p);
  return rc;
}

void pair_free(pair *p) {
  if (!p) return;
  if (p->open) hk_transport_net.close(&p->link);
  if (p->state) hk_transport_net.detach(p->state);
  while (p->narrived) close(release(p, 0));
  if (p->listener >= 0) close(p->listener);
  if (p->fd >= 0) close(p->fd);
  pair_cards_release();
  free(p);
}

hk_status pair_listen(int device, pair_handle *handle, pair_listener **out) {
  hk_status rc;
  pair_listener *l = calloc(1, sizeof *l);
  memset(handle, 0, sizeof *handle);
  if (!l) return HK_FAIL_ERRNO("no memory for a listener");
  l->fd = -1;
  l->device = device;
  handle->magic = MAGIC;
  HK_TRY(own_address(&handle->at), out);
  HK_TRY(listen_at(&handle->at, &l->fd), out);
  if (getrandom(l->key, sizeof l->key, 0) != sizeof l->key) {
    rc = HK_FAIL_ERRNO("getrandom gives no random bytes for a key");
    goto out;
  }
  memcpy(handle->key, l->key, PAIR_KEY);
  *out = l;
  return HK_OK;
out:
  pair_listener_free(l);
  return rc;
}

void pair_listener_free(pair_listener *l) {
  pair_free(l->begun);
  if (l->fd >= 0) close(l->fd);
  free(l);
}

hk_status pair_dial(int device, const pair_handle *handle, pair **out) {
  int fd;
  if (handle->magic != MAGIC) return HK_FAIL(HK_ERR_ARGUMENT, "connect was given a handle of another network");
  HK_OR_RETURN(hk_connect_start(&handle->at, &fd));
  HK_OR_RETURN(pair_new(true, device, fd, handle->key, out));
  (*out)->control = handle->at;
  return HK_OK;
}

hk_status pair_answer(pair_listener *l, pair **out) {
  hk_addr from;
  socklen_t n = sizeof from;
  memset(&from, 0, sizeof from);
  int fd = accept4(l->fd, &from.sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
  *out = NULL;
  if (fd < 0)
    return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? HK_OK : HK_FAIL_ERRNO("accept failed");
  HK_OR_RETURN(pair_new(false, l->device, fd, l->key, out));
  (*out)->control = from;
  (*out)->step = PAIR_EXCHANGING;
  return HK_OK;
}

/* ---- steps ---- */

/* Before the key has arrived the other end may be any program. */
static bool is_known(const pair *p) { return p->got >= PAIR_KEY && memcmp(p->theirs.key, p->mine.key, PAIR_KEY) == 0; }

/* If a program that connected goes away before it proved itself, the real peer is not lost. */
static hk_status lost(pair *p, const char *doing, int err) {
  char text[HK_ADDR_TEXT];
  if (p->sends || is_known(p)) return broken(p, doing, err);
  HK_INFO(HK_SUB_NET, "the net plugin closes the connection of %s, which does not have the key",
          hk_addr_format(&p->control, text));
  p->step = PAIR_WRONG_KEY;
  return HK_OK;
}

/* The side that connects sends the key first: the key is not sent to an unknown program. */
static hk_status exchange_hello(pair *p) {
  while (p->got < sizeof p->theirs) {
    ssize_t n = recv(p->fd, (char *)&p->theirs + p->got, sizeof p->theirs - p->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n == 0 || (n < 0 && errno != EINTR)) return lost(p, "waiting for its greeting", n < 0 ? errno : 0);
    if (n > 0) p->got += (size_t)n;
    if (p->got >= PAIR_KEY && !is_known(p)) return lost(p, "it greets without the key", EPROTO);
  }
  while (p->wrote < sizeof p->mine && (p->sends || is_known(p))) {
    ssize_t n = send(p->fd, (char *)&p->mine + p->wrote, sizeof p->mine - p->wrote, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0 && errno != EINTR) return lost(p, "greeting it", errno);
    if (n > 0) p->wrote += (size_t)n;
  }
  if (p->wrote == sizeof p->mine && p->got == sizeof p->theirs) p->step = PAIR_OPENING;
  return HK_OK;
}

static hk_status open_link(pair *p) {
  char facts[2][HK_FACT_BYTES], why[160] = "", text[HK_ADDR_TEXT];
  int me = p->env.rank;
  /* Channels begin with different ports of a card; here connections do, at random. */
  hk_link_key key = {.peer = (uint16_t)(1 - me),
                     .kind = p->sends ? HK_LINK_SEND : HK_LINK_RECV,
                     .channel = p->mine.key[0] % HK_CHANNELS};
  if (p->theirs.slot_bytes != p->mine.slot_bytes || p->theirs.nslots != p->mine.nslots)
    return HK_FAIL(HK_ERR_USAGE,
                   "the peer at %s has HOCKET_SLOTS=%u and HOCKET_SLOT_BYTES=%u, this rank %u and %u: set them alike",
                   hk_addr_format(&p->control, text), p->theirs.nslots, p->theirs.slot_bytes, p->mine.nslots,
                   p->mine.slot_bytes);
  if (ends_on_one_host(p->fd)) p->peers[1].host = p->peers[0].host;
  memcpy(facts[me], p->mine.facts, HK_FACT_BYTES);
  memcpy(facts[1 - me], p->theirs.facts, HK_FACT_BYTES);
  HK_OR_RETURN(hk_transport_net.join(p->state, facts));
  if (!hk_transport_net.reachable(p->state, 1 - me, why, sizeof why))
    return HK_FAIL(HK_ERR_SYSTEM, "the net plugin has no way to its peer at %s: %s", hk_addr_format(&p->control, text),
                   why);
  HK_OR_RETURN(hk_transport_net.open(p->state, &key, &p->link));
  p->open = true;
  return HK_OK;
}

hk_status pair_advance(pair *p) {
  hk_status rc = HK_OK;
  bool moved;
  if (p->step == PAIR_CONNECTING) {
    struct pollfd wait = {.fd = p->fd, .events = POLLOUT};
    if (poll(&wait, 1, 0) > 0) p->step = PAIR_EXCHANGING;
  }
  if (p->step == PAIR_EXCHANGING) HK_TRY(exchange_hello(p), out);
  if (p->step == PAIR_OPENING) {
    if (!p->open) HK_TRY(open_link(p), out);
    HK_TRY(hk_transport_net.progress(p->state, &moved), out);
    /* relaxed: the state says nothing about other memory */
    if (atomic_load_explicit(&p->link.state, memory_order_relaxed) == HK_LINK_READY) p->step = PAIR_READY;
    p->link.placed = hk_net_can_place(&p->link); /* before the first message: the network is now chosen */
  }
  bool late = p->step < PAIR_READY && hk_now_ns() > p->deadline_ns;
  if (late && !p->sends && !is_known(p)) return lost(p, "waiting for its greeting", ETIMEDOUT);
  if (late) {
    char text[HK_ADDR_TEXT];
    rc = HK_FAIL(HK_ERR_REMOTE,
                 "no connection with %s within HOCKET_BOOTSTRAP_TIMEOUT: look at that rank's output, and check that "
                 "the interfaces reach each other (NCCL_SOCKET_IFNAME chooses)",
                 hk_addr_format(&p->control, text));
  }
out:
  if (rc != HK_OK) p->step = PAIR_BROKEN;
  return rc;
}
