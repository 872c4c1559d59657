/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of a connection: the best pair of GIDs, and with it the pairs of other ports of the same two cards. The
 * lower rank chooses them from the list that both ranks have. Also the registration of the connection's memory with the
 * paths' devices. */
#include <stdio.h>
#include <string.h>
#include "../../../base/meter.h"
#include "ib_cm.h"
#include "ib_device.h"
#include "ib_memory.h"
#include "ib_state.h"
#include "ib_verbs.h"

enum { TRIES_OF_A_PROVEN_PAIR = 4 };

void hk_ib_describe_path(const hk_ib_conn *c, const hk_ib_path *w, char text[HK_IB_ROUTE]) {
  const hk_ib_pair *p = &c->ports.pairs[w->pair];
  const hk_ib_port *a = hk_ib_my_port(c, w), *b = hk_ib_their_port(c, w);
  char from[48], to[48];
  if (a->layer == HK_IBV_LAYER_ETHERNET)
    snprintf(text, HK_IB_ROUTE, "%.20s port %d GID %d %.40s -> %.20s port %d GID %d %.40s", a->device, a->number,
             a->gids[p->my_gid].index, hk_ib_gid_text(&a->gids[p->my_gid].gid, from), b->device, b->number,
             b->gids[p->their_gid].index, hk_ib_gid_text(&b->gids[p->their_gid].gid, to));
  else
    snprintf(text, HK_IB_ROUTE, "%.31s port %d LID %u -> %.31s port %d LID %u", a->device, a->number, a->lid, b->device,
             b->number, b->lid);
}

static bool ib_path_port_is_up(hk_ib_conn *c, int mine) {
  hk_ib_device *d;
  const hk_ib_port *port = &c->ports.mine[mine];
  return hk_ib_device_open(c->ctx, port->device, &d) == HK_OK &&
         strcmp(hk_ib_port_state(c->ctx, d, port->number), "ACTIVE") == 0;
}

/* Marks the pairs that are not to be chosen now. A bad pair that has never carried data is replaced by the next one.
 * One that has is kept, unless its port is down, or it fails repeatedly, or other paths work: then all pairs of its two
 * ports are left out. */
static void ib_path_leave_out_bad(hk_ib_conn *c) {
  bool up[HK_IB_PATHS];
  uint32_t good = 0;
  for (uint32_t i = 0; i < c->npaths; i++) {
    up[i] = ib_path_port_is_up(c, c->ports.pairs[c->paths[i].pair].mine);
    good += up[i] && !c->paths[i].bad;
  }
  for (uint32_t i = 0; i < c->npaths; i++) {
    hk_ib_pair *bad = &c->ports.pairs[c->paths[i].pair];
    if (up[i] && !c->paths[i].bad) continue;
    bool both = good > 0 || (bad->worked && c->repair.attempts >= TRIES_OF_A_PROVEN_PAIR);
    for (int k = 0; k < c->ports.npairs; k++) {
      hk_ib_pair *p = &c->ports.pairs[k];
      if (p->mine == bad->mine && (!up[i] || (both && p->theirs == bad->theirs))) p->out = true;
    }
    if (!bad->worked) bad->out = true;
  }
}

static bool ib_path_fits(const hk_ib_conn *c, const hk_ib_pair *p) {
  for (uint32_t i = 0; i < c->npaths; i++)
    if (!hk_ib_pairs_go_together(c->ports.mine, c->ports.theirs, &c->ports.pairs[c->paths[i].pair], p)) return false;
  return true;
}

/* The best pair for another path: first one that has worked, then any other, and for the first path even one whose port
 * is down. -1: there is none. */
static int ib_path_best_pair(hk_ib_conn *c) {
  for (int pass = 0; pass < (c->npaths ? 2 : 3); pass++) {
    for (int i = 0; i < c->ports.npairs; i++) {
      const hk_ib_pair *p = &c->ports.pairs[i];
      if (p->out || (pass == 0 && !p->worked) || !ib_path_fits(c, p)) continue;
      if (pass == 2 || ib_path_port_is_up(c, p->mine)) return i;
    }
  }
  return -1;
}

void hk_ib_choose_paths(hk_ib_conn *c) {
  ib_path_leave_out_bad(c);
  for (uint32_t i = 0; i < c->npaths && c->ctx->env->meter; i++) {
    const hk_ib_pair *p = &c->ports.pairs[c->paths[i].pair];
    if (p->out && p->worked) hk_meter_event(&c->ctx->env->meter->failovers);
  }
  c->npaths = 0;
  int at = ib_path_best_pair(c);
  if (at < 0) { /* all pairs were tried: begin again */
    for (int i = 0; i < c->ports.npairs; i++) c->ports.pairs[i].out = false;
    at = ib_path_best_pair(c);
  }
  for (; at >= 0 && c->npaths < HK_IB_PATHS; at = ib_path_best_pair(c)) c->paths[c->npaths++].pair = at;
}

bool hk_ib_take_paths(hk_ib_conn *c, const hk_ib_epoch *theirs) {
  if (theirs->npaths < 1 || theirs->npaths > HK_IB_PATHS) return false;
  c->npaths = theirs->npaths;
  for (uint32_t i = 0; i < c->npaths; i++) {
    const uint8_t *port = theirs->paths[i].port, *gid = theirs->paths[i].gid;
    int at = 0;
    for (; at < c->ports.npairs; at++) {
      const hk_ib_pair *p = &c->ports.pairs[at];
      if (p->theirs == port[0] && p->mine == port[1] && p->their_gid == gid[0] && p->my_gid == gid[1]) break;
    }
    c->paths[i].pair = at < c->ports.npairs ? at : 0;
    if (at == c->ports.npairs) return false;
  }
  return true;
}

static uint8_t ib_path_mtu_of(const hk_ib_conn *c, const hk_ib_path *w) {
  const hk_ib_port *port = hk_ib_my_port(c, w);
  hk_ibv_port_attr attr;
  memset(&attr, 0, sizeof attr);
  if (c->ctx->api->query_port(w->device->context, port->number, &attr) == 0 && attr.active_mtu)
    return (uint8_t)attr.active_mtu;
  return port->mtu;
}

void hk_ib_fill_paths(hk_ib_conn *c) {
  bool low = c->dials;
  c->ours.npaths = (uint8_t)c->npaths;
  for (uint32_t i = 0; i < c->npaths; i++) {
    const hk_ib_pair *p = &c->ports.pairs[c->paths[i].pair];
    uint8_t *port = c->ours.paths[i].port, *gid = c->ours.paths[i].gid;
    port[0] = low ? p->mine : p->theirs;
    port[1] = low ? p->theirs : p->mine;
    gid[0] = low ? p->my_gid : p->their_gid;
    gid[1] = low ? p->their_gid : p->my_gid;
    c->ours.paths[i].mtu = ib_path_mtu_of(c, &c->paths[i]);
  }
}

/* ---- the kernel's view of a route ---- */

_Static_assert((int)HK_IB_KERNEL_TEXT >= (int)HK_IB_CM_WORDS + 20, "the answer fits");
const char *hk_ib_kernel_reason(hk_ib_conn *c, char text[HK_IB_KERNEL_TEXT]) {
  enum { PATIENCE_MS = 500 };
  char words[HK_IB_CM_WORDS];
  const hk_ib_pair *now = &c->ports.pairs[c->paths[0].pair], *pair = c->ports.pairs;
  while (pair->mine != now->mine || pair->theirs != now->theirs) pair++; /* the best pair of these ports */
  const hk_ib_port *mine = &c->ports.mine[pair->mine], *theirs = &c->ports.theirs[pair->theirs];
  *text = '\0';
  if (c->ctx->asked_kernel || mine->layer != HK_IBV_LAYER_ETHERNET) return text;
  c->ctx->asked_kernel = true;
  hk_wait_env wait = hk_ib_wait_env(c->ctx);
  if (hk_ib_cm_ask(&wait, &mine->gids[pair->my_gid].gid, &theirs->gids[pair->their_gid].gid, PATIENCE_MS, words) !=
      HK_IB_CM_NO_ANSWER)
    snprintf(text, HK_IB_KERNEL_TEXT, "; the kernel says: %s", words);
  return text;
}

/* ---- registrations with the paths' devices ---- */

static bool ib_path_register_end(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, hk_ibv_mr **mr, char why[160]) {
  if (!*mr && e->link->gpu) *mr = hk_ib_gpu_mr(c, w, e, why);
  if (!*mr && !e->link->gpu)
    *mr = hk_ib_try_register(c->ctx, w->device, e->link->payload, hk_ib_ring_bytes(c), true, why);
  return *mr != NULL;
}

static bool ib_path_register_rings(hk_ib_conn *c, hk_ib_path *w, char why[160]) {
  bool source = c->send && c->send->link->payload && (c->send->link->gpu || c->ctx->scarce);
  /* What one device has is announced, so all must have it; a refusal may have moved it to host memory meanwhile. */
  bool due = c->ctx->scarce || c->rx.wanted || c->paths[0].recv_mr;
  bool target = c->recv && c->recv->link->payload && (c->recv->link->gpu || due);
  return (!target || ib_path_register_end(c, w, c->recv, &w->recv_mr, why)) &&
         (!source || ib_path_register_end(c, w, c->send, &w->send_mr, why));
}

hk_ib_path *hk_ib_register_rings(hk_ib_conn *c, char why[160]) {
  for (hk_ib_path *w = c->paths; w < c->paths + c->npaths; w++)
    if (!ib_path_register_rings(c, w, why)) return w;
  return NULL;
}

static void ib_path_free_path_memory(hk_ib_ctx *x, hk_ib_path *w) {
  hk_ib_unregister(x, &w->arena_mr);
  hk_ib_unregister(x, &w->send_mr);
  hk_ib_unregister(x, &w->recv_mr);
}

hk_status hk_ib_open_paths(hk_ib_conn *c, hk_ib_path **refused, char why[160]) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *d;
  *refused = NULL;
  for (uint32_t i = c->npaths; i < HK_IB_PATHS; i++) ib_path_free_path_memory(x, &c->paths[i]);
  for (hk_ib_path *w = c->paths; w < c->paths + c->npaths && !*refused; w++) {
    w->bad = false;
    HK_OR_RETURN(hk_ib_device_open(x, hk_ib_my_port(c, w)->device, &d));
    if (d != w->device) ib_path_free_path_memory(x, w);
    w->device = d;
    if (!w->arena_mr) w->arena_mr = hk_ib_try_register(x, d, c->arena, c->arena_bytes, false, why);
    if (!w->arena_mr || !ib_path_register_rings(c, w, why)) *refused = w;
  }
  return HK_OK;
}

void hk_ib_free_memory(hk_ib_conn *c) {
  for (int i = 0; i < HK_IB_PATHS; i++) ib_path_free_path_memory(c->ctx, &c->paths[i]);
}

void hk_ib_leave_devices(hk_ib_conn *c) {
  for (hk_ib_path *w = c->paths; w < c->paths + HK_IB_PATHS; w++)
    if (w->device && w->device->gone) ib_path_free_path_memory(c->ctx, w);
}

bool hk_ib_has_memory_of(const hk_ib_conn *c, const hk_ib_device *d) {
  for (const hk_ib_path *w = c->paths; w < c->paths + HK_IB_PATHS; w++)
    if (w->device == d && (w->arena_mr || w->send_mr || w->recv_mr)) return true;
  return false;
}

void hk_ib_unregister_end(hk_ib_conn *c, bool sends) {
  for (hk_ib_path *w = c->paths; w < c->paths + HK_IB_PATHS; w++)
    hk_ib_unregister(c->ctx, sends ? &w->send_mr : &w->recv_mr);
}
