/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of net plugins. The receiver listens and sends its handles to the sender over a TCP connection that the
 * bootstrap opens; the sender answers, and both connect. That TCP connection stays open, and its end shows that the
 * peer has ended. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "../../../base/log.h"
#include "../../../base/tcp.h"
#include "plugin.h"

enum { WIRE_MAGIC = 0x486b4e52 };
static const char ANSWER = 'H', BEAT = 'B', READY = 'R';
enum {
  KEEPALIVES = 9
}; /* without an answer, until the kernel ends the connection: plugin_connect_host_is_silent() finds it earlier */
static const uint64_t beat_every_ns = 100 * 1000000u;
static const uint64_t beat_counts_ns = 1000 * 1000000u; /* for a peer on a crowded host */
/* a longer gap counts only this much: this process did not try during the rest */
static const uint64_t look_counts_ns = 500 * 1000000u;
static const uint64_t second_ns = 1000 * 1000000u;
static const uint64_t fault_ns = 2000 * 1000000ull; /* time after a failed call in which the peer's end would be seen */

void hk_plugin_mark_failed(hk_plugin_end *e, hk_status rc) {
  e->step = HK_PLUGIN_FAILED;
  e->failed = rc;
  /* relaxed: the state says nothing about other memory */
  atomic_store_explicit(&e->end->link->state, HK_LINK_FAILED, memory_order_relaxed);
}

hk_status hk_plugin_failed(hk_plugin_end *e, const char *doing, int code) {
  if (!e->fault_in) {
    e->fault_in = doing;
    e->fault = code;
    e->fault_ns = hk_now_ns();
  }
  return HK_ERR_SYSTEM;
}

hk_status hk_plugin_lost(hk_plugin_end *e) {
  char call[96] = "";
  hk_plugin_mark_failed(e, HK_ERR_REMOTE);
  if (e->fault_in) snprintf(call, sizeof call, " (%s failed with code %d)", e->fault_in, e->fault);
  return HK_FAIL(
      HK_ERR_REMOTE,
      "rank %d lost rank %d while %s it by net plugin %s, device %s, channel %d%s: its process has ended, or "
      "its communicator was destroyed or aborted: look at that rank's output",
      e->ctx->env->rank, e->end->key.peer, e->sends ? "sending to" : "receiving from", e->ctx->plugin.lib->name,
      e->device->name, e->end->key.channel, call);
}

/* When a process ends, a plugin's connections to it may fail a little before the TCP connection does. If the plugin
 * itself reports the peer as the cause, there is no wait, because all ranks then collect events
 * (failure/precedence.h). */
hk_status hk_plugin_judge(hk_plugin_end *e, hk_status rc) {
  const hk_net_plugin_lib *l = e->ctx->plugin.lib;
  if (rc == HK_OK || !e->fault_in) return rc;
  e->step = HK_PLUGIN_FAULTY;
  if (hk_plugin_peer_gone(e)) return hk_plugin_lost(e);
  bool remote = e->fault == HK_ERR_REMOTE;
  if (!remote && e->fd >= 0 && hk_ago_ns(hk_now_ns(), e->fault_ns) < fault_ns) return HK_OK;
  rc = remote ? HK_ERR_REMOTE : HK_ERR_SYSTEM;
  hk_plugin_mark_failed(e, rc);
  return HK_FAIL(
      rc,
      "rank %d: net plugin %s (v%d, %s) fails in %s with code %d (%s), %s rank %d, device %s, channel %d: its "
      "own lines in the log (NCCL_DEBUG=INFO) may say why; NCCL_NET_PLUGIN=none does without it",
      e->ctx->env->rank, l->name, l->version, l->file, e->fault_in, e->fault, hk_plugin_result(e->fault),
      e->sends ? "to" : "from", e->end->key.peer, e->device->name, e->end->key.channel);
}

/* Fails the end because the peer did not connect, or has ended. */
static hk_status plugin_connect_not_connected(hk_plugin_end *e, const char *what) {
  const hk_net_plugin_lib *l = e->ctx->plugin.lib;
  hk_plugin_mark_failed(e, HK_ERR_REMOTE);
  return HK_FAIL(
      HK_ERR_REMOTE,
      "rank %d: no connection %s rank %d by net plugin %s (v%d), device %s, channel %d: %s; look at that rank's "
      "output, at the network between the two, or use another one with NCCL_NET_PLUGIN",
      e->ctx->env->rank, e->sends ? "to" : "from", e->end->key.peer, l->name, l->version, e->device->name,
      e->end->key.channel, what);
}

static uint64_t plugin_connect_tag_of(const hk_plugin_end *e) { return ((uint64_t)'P' << 56) | e->end->key.channel; }

/* A beat, READY, or a part of what plugin_drain.c sends. */
static void plugin_connect_hear_byte(hk_plugin_end *e, char byte) {
  hk_plugin_drain_state *d = &e->drain;
  if (d->got && d->got <= sizeof d->counts) {
    ((char *)d->counts)[d->got++ - 1] = byte;
    *(e->sends ? &d->asked : &d->ending) = d->got > sizeof d->counts;
  } else if (byte == (e->sends ? HK_PLUGIN_POSTED : HK_PLUGIN_ENDING)) {
    d->got = 1;
  } else if (byte == READY) {
    e->joining.peer_ready = true;
  }
}

bool hk_plugin_peer_gone(hk_plugin_end *e) {
  char beats[64];
  ssize_t n;
  if (e->fd < 0) return false;
  while ((n = hk_tcp_recv(e->fd, beats, sizeof beats)) > 0) {
    e->joining.heard_ns = hk_now_ns();
    for (ssize_t i = 0; i < n; i++) plugin_connect_hear_byte(e, beats[i]);
  }
  return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static hk_status plugin_connect_write_all(hk_plugin_end *e, const void *data, size_t bytes) {
  struct iovec piece = {(void *)(uintptr_t)data, bytes};
  hk_status rc = hk_wait_send(e->ctx->env->wait, e->fd, &piece, 1, "the exchange of a network plugin's handles");
  if (rc != HK_IN_PROGRESS) return rc;
  return plugin_connect_not_connected(e, "the peer closed the connection that exchanges the plugins' handles");
}

/* listen and connect of a lane, on either thread. */
static void plugin_connect_call_listen(void *arg) {
  hk_plugin_lane *l = arg;
  hk_plugin_end *e = l->of;
  l->opened = hk_net_plugin_listen(&e->ctx->plugin, e->device->index, e->wire.handles[l - e->lane], &l->listener);
}

static void plugin_connect_call_connect(void *arg) {
  hk_plugin_lane *l = arg;
  hk_plugin_end *e = l->of;
  l->opened = hk_net_plugin_connect(&e->ctx->plugin, e->device->index, e->wire.handles[l - e->lane], &l->comm);
}

/* On the plugin's thread. */
static hk_status plugin_connect_open_lane(hk_plugin_lane *l, void (*call)(void *arg)) {
  l->opening = (hk_plugin_job){.call = call, .arg = l};
  return hk_plugin_thread_call(&l->of->ctx->thread, l->of->ctx->env->wait, &l->opening);
}

/* Receiver: listens, and sends the handles to the sender. Does nothing for a sender. */
static hk_status plugin_connect_listen(hk_plugin_end *e) {
  const hk_transport_env *env = e->ctx->env;
  if (e->sends) return HK_OK; /* the receiver begins */
  e->wire = (hk_plugin_wire){.magic = WIRE_MAGIC, .lanes = HK_PLUGIN_LANES, .apart = e->end->link->gpu != NULL};
  for (int i = 0; i < HK_PLUGIN_LANES; i++) {
    hk_plugin_lane *l = &e->lane[i];
    HK_OR_RETURN(plugin_connect_open_lane(l, plugin_connect_call_listen));
    if (l->opened || !l->listener) return hk_plugin_failed(e, "listen", l->opened);
  }
  HK_OR_RETURN(env->dial(env->arg, e->end->key.peer, NULL, plugin_connect_tag_of(e), &e->fd));
  return plugin_connect_write_all(e, &e->wire, sizeof e->wire);
}

/* Reads the peer's message before the plugin's connections are made; e->wire_got is the number of bytes received so
 * far. */
static hk_status plugin_connect_read_some(hk_plugin_end *e, void *to, size_t bytes) {
  ssize_t n = hk_tcp_recv(e->fd, (char *)to + e->wire_got, bytes - e->wire_got);
  if (n > 0) e->wire_got += (size_t)n;
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
    return plugin_connect_not_connected(e, "the peer closed it before it was made");
  return HK_OK;
}

static void plugin_connect_handles_exchanged(hk_plugin_end *e) {
  uint64_t now = hk_now_ns();
  e->step = HK_PLUGIN_CONNECTING;
  e->joining = (hk_plugin_joining){.active = true, .looked_ns = now, .heard_ns = now};
  hk_silence_watch(e->fd, (unsigned)(e->ctx->timeout_ns / second_ns), KEEPALIVES);
}

static hk_status plugin_connect_exchange_handles(hk_plugin_end *e) {
  const hk_transport_env *env = e->ctx->env;
  char answer;
  if (!e->sends) {
    /* Not when the end is opened: a plugin may keep resources for each thread, and this one makes all other calls. */
    if (e->fd < 0) HK_OR_RETURN(plugin_connect_listen(e));
    HK_OR_RETURN(plugin_connect_read_some(e, &answer, 1));
    if (e->wire_got) plugin_connect_handles_exchanged(e);
    return HK_OK;
  }
  if (e->fd < 0 && (e->fd = env->take(env->arg, e->end->key.peer, plugin_connect_tag_of(e))) < 0) return HK_OK;
  HK_OR_RETURN(plugin_connect_read_some(e, &e->wire, sizeof e->wire));
  if (e->wire_got < sizeof e->wire) return HK_OK;
  if (e->wire.magic != WIRE_MAGIC || e->wire.lanes != HK_PLUGIN_LANES)
    return plugin_connect_not_connected(
        e, "the peer's handles are not valid: do all ranks run the same version of this library?");
  HK_OR_RETURN(plugin_connect_write_all(e, &ANSWER, 1));
  plugin_connect_handles_exchanged(e);
  return HK_OK;
}

/* Registers the lane's memory. If the device refuses a GPU's memory, the lane uses host memory from now on. */
static hk_status plugin_connect_register_lane(hk_plugin_end *e, int i) {
  hk_plugin_lane *l = &e->lane[i];
  hk_link *link = e->end->link;
  size_t entries = (size_t)link->mask + 1;
  bool taken = false;
  if (i == 1 && link->gpu) HK_OR_RETURN(hk_plugin_gpu_register(e, l, &taken));
  if (taken) return HK_OK;
  if (i == 1) l->memory = link->payload;
  int code = hk_net_plugin_register(&e->ctx->plugin, l->comm, l->memory, entries * l->entry, NET_PLUGIN_HOST_MEMORY,
                                    &l->registration);
  if (code) return hk_plugin_failed(e, "regMr (pinning memory: see ulimit -l)", code);
  return HK_OK;
}

static hk_status plugin_connect_join_lane(hk_plugin_end *e, int i) {
  hk_plugin_lane *l = &e->lane[i];
  hk_net_plugin *p = &e->ctx->plugin;
  if (l->comm) return HK_OK;
  if (!e->sends)
    l->opened = hk_net_plugin_accept(p, l->listener, &l->comm);
  else if (l->connecting)
    plugin_connect_call_connect(l);
  else
    HK_OR_RETURN(plugin_connect_open_lane(l, plugin_connect_call_connect));
  l->connecting = true;
  if (l->opened) return hk_plugin_failed(e, e->sends ? "connect" : "accept", l->opened);
  if (!l->comm) return HK_OK;
  HK_OR_RETURN(plugin_connect_register_lane(e, i));
  if (l->listener) p->lib->calls->close_listen(l->listener);
  l->listener = NULL;
  return HK_OK;
}

static void plugin_connect_send_beat(hk_plugin_end *e, uint64_t now) {
  bool ready = e->step == HK_PLUGIN_READY;
  if (now < e->joining.beat_ns && !ready) return;
  e->joining.beat_ns = now + beat_every_ns;
  /* If the peer does not read, its socket's buffer limits the number of beats. */
  ssize_t n = hk_tcp_send(e->fd, ready ? &READY : &BEAT, 1);
  if (n == 1 && ready) e->joining.notified = true;
}

/* Returns true if the peer's host does not answer the kernel's questions. */
static bool plugin_connect_host_is_silent(hk_plugin_end *e, uint64_t now) {
  unsigned quiet_s;
  if (now < e->joining.silent_ns) return false;
  e->joining.silent_ns = now + second_ns;
  return hk_silence_broken(&e->joining.silence, e->fd, (unsigned)(e->ctx->timeout_ns / second_ns), now, &quiet_s);
}

/* Limits the time in which both ranks try. A peer that sends no beats is late or stopped; its host is checked by its
 * kernel's answers. */
static hk_status plugin_connect_watch_joining(hk_plugin_end *e) {
  hk_plugin_joining *j = &e->joining;
  bool ready = e->step == HK_PLUGIN_READY;
  uint64_t now = hk_now_ns(), since = hk_ago_ns(now, j->looked_ns);
  if (ready && j->notified && since < beat_every_ns) return HK_OK;
  bool gone = hk_plugin_peer_gone(e);
  j->looked_ns = now;
  if (!j->notified) plugin_connect_send_beat(e, now);
  if (ready) {
    j->active = !gone && !(j->notified && j->peer_ready);
    return HK_OK;
  }
  if (gone) return plugin_connect_not_connected(e, "the peer closed it before it was made");
  if (plugin_connect_host_is_silent(e, now)) return plugin_connect_not_connected(e, "that rank's host does not answer");
  if (hk_ago_ns(now, j->heard_ns) < beat_counts_ns) j->tried_ns += since < look_counts_ns ? since : look_counts_ns;
  if (j->tried_ns <= e->ctx->timeout_ns) return HK_OK;
  return plugin_connect_not_connected(
      e, "the plugin's connect and accept did not end within HOCKET_PEER_TIMEOUT, while both ranks tried");
}

hk_status hk_plugin_connect(hk_plugin_end *e) {
  const hk_net_plugin_lib *lib = e->ctx->plugin.lib;
  bool all = true;
  if (e->step == HK_PLUGIN_EXCHANGING) HK_OR_RETURN(plugin_connect_exchange_handles(e));
  if (e->step == HK_PLUGIN_READY) return plugin_connect_watch_joining(e);
  if (e->step != HK_PLUGIN_CONNECTING) return HK_OK;
  for (int i = 0; i < HK_PLUGIN_LANES; i++) {
    HK_OR_RETURN(plugin_connect_join_lane(e, i));
    all = all && e->lane[i].comm;
  }
  if (all) {
    e->step = HK_PLUGIN_READY;
    /* relaxed: the state says nothing about other memory */
    atomic_store_explicit(&e->end->link->state, HK_LINK_READY, memory_order_relaxed);
    HK_INFO(HK_SUB_NET, "rank %d: channel %d %s rank %d by net plugin %s (v%d), device %s", e->ctx->env->rank,
            e->end->key.channel, e->sends ? "to" : "from", e->end->key.peer, lib->name, lib->version, e->device->name);
  }
  return plugin_connect_watch_joining(e);
}

/* The plugin's calls at the end. They use only memory that is kept as long as the plugin's thread needs it. */
static void plugin_connect_call_close(void *arg) {
  hk_plugin_end *e = arg;
  const net_plugin_v *c = e->ctx->plugin.lib->calls;
  for (int i = 0; i < HK_PLUGIN_LANES; i++) {
    hk_plugin_lane *l = &e->lane[i];
    if (l->comm && l->registration) c->dereg(l->comm, l->registration);
    if (l->comm) (e->sends ? c->close_send : c->close_recv)(l->comm);
    if (l->listener) c->close_listen(l->listener);
  }
}

bool hk_plugin_disconnect(hk_plugin_end *e) {
  bool any = false;
  for (int i = 0; i < HK_PLUGIN_LANES; i++) any = any || e->lane[i].opening.call || e->lane[i].comm;
  e->closing = (hk_plugin_job){.call = plugin_connect_call_close, .arg = e};
  bool over = !any || hk_plugin_close(e->ctx, &e->closing);
  if (e->fd >= 0) hk_tcp_close(e->fd);
  e->fd = -1;
  return over;
}
