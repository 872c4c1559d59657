/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin provider's table of functions: moving slots as messages of a net plugin. */
#include "plugin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "../../../base/array.h"
#include "../../../base/param.h"

enum {
  HEADER = offsetof(hk_slot, small),
  NAP_NS = 50000,
  IDLE_POLLS = 256,         /* between two checks of the peers */
  CHECK_NS = 10000000,      /* the same, if progress is called seldom */
  LAST_DATA_NS = 1000000000 /* data that a peer sent before it closed may still arrive within this time */
};
_Static_assert(HEADER + HK_PLUGIN_EAGER == HK_PLUGIN_ENTRY, "a small message fills an entry");

/* ---- requests ---- */

/* A receive that was posted ahead fails when the peer closes its side: an error only if a lane waits for more. */
static hk_status plugin_fault(hk_plugin_end *e, hk_plugin_lane *l, const char *doing, int code) {
  if (e->sends) return hk_plugin_failed(e, doing, code);
  l->broken = code;
  l->broke_in = doing;
  return HK_OK;
}

hk_status hk_plugin_test(hk_plugin_end *e, hk_plugin_lane *l, bool *moved) {
  while (!l->broken && l->done < l->posted) {
    int done = 0, sizes[HK_PLUGIN_WINDOW] = {0}; /* room for plugins that fill more than the one size asked for */
    int code = e->ctx->plugin.lib->calls->test(l->requests[l->done % HK_PLUGIN_WINDOW], &done, sizes);
    if (code) return plugin_fault(e, l, e->sends ? "test of a send" : "test of a receive", code);
    if (!done) break;
    l->sizes[l->done++ % HK_PLUGIN_WINDOW] = sizes[0];
    *moved = true;
  }
  return HK_OK;
}

hk_status hk_plugin_post(hk_plugin_end *e, hk_plugin_lane *l, void *data, size_t bytes, bool *begun, bool *moved) {
  void *request = NULL;
  hk_net_plugin *p = &e->ctx->plugin;
  *begun = false;
  if (l->broken || l->posted - l->done >= HK_PLUGIN_WINDOW) return HK_OK;
  int code = e->sends ? hk_net_plugin_send(p, l->comm, data, bytes, l->registration, &request)
                      : hk_net_plugin_receive(p, l->comm, data, bytes, l->registration, &request);
  if (code) return plugin_fault(e, l, e->sends ? "isend" : "irecv", code);
  if (!request) return HK_OK;
  l->requests[l->posted++ % HK_PLUGIN_WINDOW] = request;
  *begun = *moved = true;
  return HK_OK;
}

static char *plugin_entry_of(const hk_plugin_end *e, int lane, uint64_t k) {
  return e->lane[lane].memory + (size_t)((uint32_t)k & e->end->link->mask) * e->lane[lane].entry;
}

/* ---- sending ---- */

/* Returns true if the slot's payload is a message of its own, on the second lane. */
static bool plugin_is_apart(const hk_plugin_end *e, const hk_slot *s) {
  return e->wire.apart || (e->end->link->gpu ? s->bytes > 0 : s->bytes > HK_PLUGIN_EAGER);
}

/* The address of that message: in registered memory, not in the slot's header. */
static char *plugin_payload_of(const hk_plugin_end *e, uint64_t k) {
  const hk_slot *s = hk_net_slot(e->end, k);
  char *place = hk_net_payload(e->end, k);
  if (!e->end->link->gpu && s->bytes <= HK_SLOT_INLINE) memcpy(place, s->small, s->bytes);
  return place;
}

/* Posts the messages of the next slot. *whole: all of them are posted. */
static hk_status plugin_post_slot(hk_plugin_end *e, bool *whole, bool *moved) {
  const hk_slot *s = hk_net_slot(e->end, e->posted);
  bool large = plugin_is_apart(e, s);
  *whole = false;
  if (!e->begun[0]) {
    char *entry = plugin_entry_of(e, 0, e->posted);
    memcpy(entry, s, HEADER);
    if (!large) memcpy(entry + HEADER, hk_net_slot_data(e->end, e->posted), s->bytes);
    HK_OR_RETURN(hk_plugin_post(e, &e->lane[0], entry, HEADER + (large ? 0 : s->bytes), &e->begun[0], moved));
  }
  if (large && !e->begun[1]) /* at least a byte: not all plugins send empty messages */
    HK_OR_RETURN(
        hk_plugin_post(e, &e->lane[1], plugin_payload_of(e, e->posted), s->bytes ? s->bytes : 1, &e->begun[1], moved));
  *whole = e->begun[0] && (!large || e->begun[1]);
  return HK_OK;
}

static hk_status plugin_send_slots(hk_plugin_end *e, bool *moved) {
  bool whole = true;
  while (whole && e->posted - e->end->next < HK_PLUGIN_WINDOW && hk_net_filled(e->end, e->posted)) {
    HK_OR_RETURN(plugin_post_slot(e, &whole, moved));
    if (!whole) break;
    e->posted++;
    e->begun[0] = e->begun[1] = false;
  }
  for (int i = 0; i < HK_PLUGIN_LANES; i++) HK_OR_RETURN(hk_plugin_test(e, &e->lane[i], moved));
  uint64_t before = e->end->next;
  while (e->end->next < e->posted && e->lane[0].done > e->end->next) {
    bool large = plugin_is_apart(e, hk_net_slot(e->end, e->end->next));
    if (large && e->lane[1].done <= e->large) break;
    e->large += large;
    e->end->next++;
  }
  if (e->end->next != before) hk_net_give_credit(e->end, e->end->next);
  return HK_OK;
}

/* ---- receiving ---- */

/* Posts receives for messages that may come. A place is free once the lane has given back the slot that was read from
 * it. */
static hk_status plugin_post_receives(hk_plugin_end *e, bool *moved) {
  hk_plugin_lane *small = &e->lane[0], *large = &e->lane[1];
  uint64_t slots = (uint64_t)e->end->link->mask + 1;
  /* acquire: pairs with hk_link_release; the lane's reads of the places are over before anything is received there */
  uint64_t freed = atomic_load_explicit(&e->end->link->heads->value, memory_order_acquire);
  bool begun = !e->drain.reported;
  while (begun && small->posted < freed + slots && small->posted < e->end->next + HK_PLUGIN_WINDOW)
    HK_OR_RETURN(hk_plugin_post(e, small, plugin_entry_of(e, 0, small->posted), small->entry, &begun, moved));
  begun = !e->drain.reported &&
          (e->large_seen || e->wire.apart); /* without a large message so far, perhaps none will ever come */
  while (begun && large->posted < e->large + slots && large->posted < e->large + HK_PLUGIN_WINDOW &&
         (large->posted < slots || e->owner[(uint32_t)large->posted & e->end->link->mask] <= freed))
    HK_OR_RETURN(hk_plugin_post(e, large, plugin_entry_of(e, 1, large->posted), large->entry, &begun, moved));
  return HK_OK;
}

static hk_status plugin_garbage(hk_plugin_end *e, const hk_slot *h, int size) {
  const hk_net_plugin_lib *l = e->ctx->plugin.lib;
  hk_plugin_mark_failed(e, HK_ERR_REMOTE);
  return HK_FAIL(
      HK_ERR_REMOTE,
      "rank %d got a message of %d bytes from rank %d by net plugin %s (v%d), device %s, channel %d, that makes no "
      "sense: number %u where %u was due, %u bytes; the plugin loses or reorders data, or the ranks run different "
      "versions of this library",
      e->ctx->env->rank, size, e->end->key.peer, l->name, l->version, e->device->name, e->end->key.channel,
      atomic_load_explicit(&h->seq, memory_order_relaxed) /* relaxed: a private copy */, (uint32_t)(e->end->next + 1),
      h->bytes);
}

/* Gives the next slot to the lane if all of it has arrived. */
static hk_status plugin_deliver(hk_plugin_end *e, bool *delivered) {
  hk_net_end *end = e->end;
  char *entry = plugin_entry_of(e, 0, end->next), *place = entry + HEADER;
  int size = e->lane[0].sizes[end->next % HK_PLUGIN_WINDOW];
  hk_slot h;
  *delivered = false;
  if (e->drain.reported && size < HEADER) return HK_OK; /* the sender has sent all */
  memset(&h, 0, sizeof h);
  memcpy(&h, entry, HEADER);
  bool large = size == HEADER && (h.bytes > 0 || e->wire.apart);
  /* relaxed: a private copy */
  if (size < HEADER || atomic_load_explicit(&h.seq, memory_order_relaxed) != (uint32_t)(end->next + 1) ||
      h.bytes > end->link->slot_bytes || (uint32_t)size != HEADER + (large ? 0 : h.bytes) || (e->wire.apart && !large))
    return plugin_garbage(e, &h, size);
  if (large) {
    e->large_seen = true;
    if ((end->link->gpu ? e->flush.seen : e->lane[1].done) <= e->large) return HK_OK;
    size = e->lane[1].sizes[e->large % HK_PLUGIN_WINDOW];
    if ((uint32_t)size != (h.bytes ? h.bytes : 1)) return plugin_garbage(e, &h, size);
    place = plugin_entry_of(e, 1, e->large);
    e->owner[(uint32_t)e->large++ & end->link->mask] = end->next + 1;
  }
  *delivered = true;
  if (end->link->gpu) { /* each slot has a message, so this is the slot's own place; the CPU does not read it */
    hk_net_deliver(end, h.bytes, h.signature, place, false);
    return HK_OK;
  }
  bool in_slot = h.bytes <= HK_SLOT_INLINE;
  if (in_slot) memcpy(hk_net_slot(end, end->next)->small, place, h.bytes);
  hk_net_deliver(end, h.bytes, h.signature, place, !in_slot);
  return HK_OK;
}

static hk_status plugin_receive_slots(hk_plugin_end *e, bool *moved) {
  hk_status rc = HK_OK;
  bool delivered = true;
  HK_OR_RETURN(plugin_post_receives(e, moved));
  HK_OR_RETURN(hk_plugin_test(e, &e->lane[0], moved));
  if (e->large_seen || e->wire.apart) HK_OR_RETURN(hk_plugin_test(e, &e->lane[1], moved));
  if (e->end->link->gpu) HK_OR_RETURN(hk_plugin_gpu_flush(e, &e->lane[1], moved));
  while (delivered && e->end->next < e->lane[0].done) HK_OR_RETURN(plugin_deliver(e, &delivered));
  const hk_plugin_lane *needed =
      &e->lane[e->end->next < e->lane[0].done]; /* after a header has arrived: its payload's lane */
  if (needed->broken && hk_link_waits(e->end->link) == HK_LINK_WAITS)
    rc = hk_plugin_failed(e, needed->broke_in, needed->broken);
  return rc;
}

/* ---- the provider ---- */

hk_status hk_net_plugins_init(const hk_transport_env *env, const char *wanted, void **ctx, char name[HK_NET_NAME]) {
  *ctx = NULL;
  hk_plugin_ctx *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for a net plugin");
  x->env = env;
  x->timeout_ns = (uint64_t)env->settings->PEER_TIMEOUT * 1000000000u;
  if (!hk_net_plugin_begin(&x->plugin, env, wanted)) {
    free(x);
    return HK_OK;
  }
  /* The plus distinguishes it from a built-in provider of the same name, which has another protocol. */
  snprintf(name, HK_NET_NAME, "+%.*s", HK_NET_NAME - 2, x->plugin.lib->name);
  hk_plugin_thread_init(&x->thread);
  *ctx = x;
  return HK_OK;
}

static void plugin_free_memory(hk_plugin_end *e) {
  if (e->fifo) munmap(e->fifo, e->fifo_bytes);
  free(e->ring);
  free(e->owner);
  free(e);
}

/* Frees the context when no call of the plugin is under way any more. */
static void plugin_free_ctx(void *ctx) {
  hk_plugin_ctx *x = ctx;
  for (int i = 0; i < x->nends; i++) plugin_free_memory(x->ends[i]);
  free(x->ends);
  free(x);
}

static void plugin_call_finalize(void *ctx) { hk_net_plugin_end(&((hk_plugin_ctx *)ctx)->plugin); }

bool hk_plugin_close(hk_plugin_ctx *x, hk_plugin_job *job) {
  char whose[96];
  snprintf(whose, sizeof whose, "rank %d: net plugin %s (v%d)", x->env->rank, x->plugin.lib->name,
           x->plugin.lib->version);
  return hk_plugin_thread_close(&x->thread, job, x->env->settings->LEAVE_TIMEOUT, whose);
}

static void plugins_fini(void *ctx) {
  hk_plugin_ctx *x = ctx;
  x->finalize = (hk_plugin_job){.call = plugin_call_finalize, .arg = x};
  (void)hk_plugin_close(x, &x->finalize);
  if (hk_plugin_thread_end(&x->thread, plugin_free_ctx, x)) plugin_free_ctx(x);
}

static void plugin_free_end(hk_plugin_end *e) {
  hk_plugin_ctx *x = e->ctx;
  hk_plugin_drain(e);
  if (!hk_plugin_disconnect(e)) { /* the plugin's thread frees the end together with the context */
    e->fifo = e->end->memory;
    e->fifo_bytes = e->end->bytes;
    e->end->memory = NULL;
    e->end->gpu_memory.base = NULL;          /* the GPU's memory is lost: its device may be gone by then */
    hk_plugin_mark_failed(e, HK_ERR_SYSTEM); /* the end is not used any more */
    return;
  }
  for (int i = 0; i < x->nends; i++)
    if (x->ends[i] == e) {
      x->ends[i] = x->ends[--x->nends];
      break;
    }
  plugin_free_memory(e);
}

static hk_status plugins_open(void *ctx, hk_net_end *end) {
  hk_status rc = HK_OK;
  hk_plugin_ctx *x = ctx;
  hk_plugin_end *e = calloc(1, sizeof *e);
  if (!e) return HK_FAIL_ERRNO("no memory for a link to rank %u", end->key.peer);
  size_t slots = (size_t)end->link->mask + 1;
  hk_plugin_gpu_find_devices(x);
  *e = (hk_plugin_end){.ctx = x, .end = end, .sends = end->key.kind == HK_LINK_SEND, .fd = -1};
  e->device = &x->plugin.devices[end->key.channel % x->plugin.ndevices];
  e->ring = aligned_alloc(HK_PLUGIN_ENTRY, slots * HK_PLUGIN_ENTRY);
  e->owner = calloc(slots, sizeof *e->owner);
  if (!e->ring || !e->owner || !HK_RESERVE(x->ends, x->capacity, x->nends + 1))
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a link to rank %u", end->key.peer), out);
  x->ends[x->nends++] = e;
  memset(e->ring, 0, slots * HK_PLUGIN_ENTRY);
  e->lane[0].memory = e->ring;
  e->lane[0].entry = HK_PLUGIN_ENTRY;
  e->lane[1].memory = end->link->payload;
  e->lane[1].entry = end->link->slot_bytes;
  for (int i = 0; i < HK_PLUGIN_LANES; i++) e->lane[i].of = e;
  end->priv = e;
out:
  if (rc != HK_OK) plugin_free_end(e);
  return rc;
}

static void plugins_close(void *ctx, hk_net_end *end) {
  (void)ctx;
  plugin_free_end(end->priv);
}

/* Returns true if a lane waits for this end. */
static bool plugin_wanted(const hk_plugin_end *e) {
  return e->sends ? hk_net_filled(e->end, e->end->next) : hk_link_waits(e->end->link) == HK_LINK_WAITS;
}

/* Nothing moves: checks for peers that close, and for awaited peers that have ended. */
static hk_status plugin_check_peers(hk_plugin_ctx *x) {
  uint64_t now = hk_now_ns();
  for (int i = 0; i < x->nends; i++) {
    hk_plugin_end *e = x->ends[i];
    if (e->step != HK_PLUGIN_READY) continue;
    HK_OR_RETURN(hk_plugin_judge(e, hk_plugin_drain_step(e)));
    if (!plugin_wanted(e) || !e->drain.gone) continue;
    if (!e->deadline_ns) e->deadline_ns = now + LAST_DATA_NS;
    if (now < e->deadline_ns) continue;
    return hk_plugin_lost(e);
  }
  return HK_OK;
}

static hk_status plugin_move(hk_plugin_end *e, bool *moved) {
  if (e->step < HK_PLUGIN_READY || e->joining.active) HK_OR_RETURN(hk_plugin_connect(e));
  if (e->step == HK_PLUGIN_FAULTY) return HK_ERR_SYSTEM; /* the fault's */
  if (e->step != HK_PLUGIN_READY) return HK_OK;
  return e->sends ? plugin_send_slots(e, moved) : plugin_receive_slots(e, moved);
}

static hk_status plugins_progress(void *ctx, bool *moved) {
  hk_plugin_ctx *x = ctx;
  bool any = false;
  for (int i = 0; i < x->nends; i++) {
    hk_plugin_end *e = x->ends[i];
    if (e->step == HK_PLUGIN_FAILED && plugin_wanted(e)) return e->failed;
    HK_OR_RETURN(hk_plugin_judge(e, plugin_move(e, &any)));
  }
  if (any) {
    x->idle = 0;
  } else if (++x->idle % IDLE_POLLS == 0 || hk_ago_ns(hk_now_ns(), x->checked_ns) > CHECK_NS) {
    x->checked_ns = hk_now_ns();
    HK_OR_RETURN(plugin_check_peers(x));
  }
  *moved |= any;
  return HK_OK;
}

/* A plugin has nothing to wait for in the kernel. A short sleep gives the core to other threads. */
static void plugins_sleep(void *ctx) {
  (void)ctx;
  nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

const hk_net_provider hk_net_plugins = {
    .name = "plugin",
    .copies = true, /* sent memory must be registered, so it is the FIFO's own */
    .apart = true,
    .delivers_ref = true,
    .takes_gpu = hk_plugin_takes_gpu,
    .open = plugins_open,
    .progress = plugins_progress,
    .sleep = plugins_sleep,
    .close = plugins_close,
    .fini = plugins_fini,
};
