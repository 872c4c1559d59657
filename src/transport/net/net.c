/* SPDX-License-Identifier: Apache-2.0 */
/* The net transport: makes FIFOs and chooses the provider that moves their slots. */
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include "../../base/facts.h"
#include "../../base/log.h"
#include "../../base/param.h"
#include "../../base/tls.h"
#include "plugin/plugin.h" /* NCCL's net plugins, which are preferred to the table's providers */

extern const hk_transport hk_transport_net; /* registry.c names it */

/* In order of preference. */
static const hk_net_provider *const providers[] = {&hk_net_ib, &hk_net_socket};

typedef struct net_names {
  char name[HK_NET_ACTIVE][HK_NET_NAME]; /* empty: none */
} net_names;
typedef struct net_fact {
  net_names names;
  char blobs[HK_NET_ACTIVE][HK_NET_FACT_BYTES]; /* facts of the named providers */
} net_fact;
_Static_assert(sizeof(net_fact) == HK_FACT_BYTES, "providers' facts and their names fill a transport's fact");

typedef struct hk_net_used {
  const hk_net_provider *provider;
  char name[HK_NET_NAME]; /* the provider's, or "+" and the plugin's */
  void *ctx;
  char *facts; /* [nranks * HK_NET_FACT_BYTES] */
  int nends;
} hk_net_used;

typedef struct net_state {
  union {
    hk_transport_state base; /* the caller holds a pointer to it */
    hk_net_common common;    /* deliver.c does */
  };
  hk_net_used used[HK_NET_ACTIVE];
  int nused;        /* 0: none works here, for the reason in `why` */
  net_names *names; /* [nranks] of their providers; NULL before the exchange */
  char why[160];
} net_state;

/* ---- providers ---- */

bool hk_net_sends(const hk_net_end *e) { return e->key.kind == HK_LINK_SEND; }

static hk_status net_choose_providers(net_state *s, const char *wanted) {
  char known[128] = "";
  for (size_t i = 0; i < HK_ARRAY_LENGTH(providers) && s->nused < HK_NET_ACTIVE; i++) {
    const hk_net_provider *p = providers[i];
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", p->name);
    if (wanted && *wanted && strcasecmp(wanted, p->name) != 0) continue;
    char why[sizeof s->why] = "";
    if (p->usable(s->base.env->settings, why, sizeof why)) {
      s->used[s->nused++].provider = p;
      continue;
    }
    snprintf(s->why, sizeof s->why, "%s", why);
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "network %s is off: %s", p->name, why);
    if (wanted && *wanted)
      return HK_FAIL(HK_ERR_USAGE, "NCCL_NET (or netName of ncclConfig_t) is %s, which cannot be used here: %s", wanted,
                     why);
  }
  if (wanted && *wanted && !s->nused)
    return HK_FAIL(HK_ERR_USAGE,
                   "NCCL_NET (or netName of ncclConfig_t) is '%s', which names no network provider and no plugin of "
                   "NCCL_NET_PLUGIN that works here; this library has: %s",
                   wanted, known);
  return HK_OK; /* none: a machine without a network, enough for ranks that share memory */
}

static void net_detach(hk_transport_state *state) {
  net_state *s = (net_state *)state;
  for (int i = 0; i < s->nused; i++) {
    if (s->used[i].ctx) s->used[i].provider->fini(s->used[i].ctx);
    free(s->used[i].facts);
  }
  free(s->names);
  free(s);
}

static const char *net_shown(const char *name) { return name + (*name == '+'); }

static hk_status net_attach(const hk_transport_env *env, hk_transport_state **out, void *fact) {
  hk_status rc;
  net_fact *f = fact;
  const char *wanted = env->settings->NET;
  if (!wanted || !*wanted) wanted = env->net_name;
  net_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL_ERRNO("no memory for the net transport of rank %d", env->rank);
  s->base = (hk_transport_state){&hk_transport_net, env};
  HK_TRY(hk_net_plugins_init(env, wanted, &s->used[0].ctx, s->used[0].name), out);
  if (s->used[0].ctx) s->used[s->nused++].provider = &hk_net_plugins;
  if (!s->nused || !wanted || !*wanted) HK_TRY(net_choose_providers(s, wanted), out);
  for (int i = 0; i < s->nused; i++) {
    hk_net_used *u = &s->used[i];
    if (!u->ctx) {
      snprintf(u->name, sizeof u->name, "%s", u->provider->name);
      HK_TRY(u->provider->init(env, &u->ctx, f->blobs[i]), out);
    }
    memcpy(f->names.name[i], u->name, sizeof f->names.name[i]);
  }
  if (s->nused)
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "Using network %s%s%s%s", net_shown(s->used[0].name), s->nused > 1 ? " (" : "",
            s->nused > 1 ? net_shown(s->used[1].name) : "", s->nused > 1 ? " with ranks that do not have it)" : "");
  if (s->nused && s->used[0].provider != &hk_net_socket && hk_tls_on())
    HK_WARN_ONCE("encryption covers TCP only: network %s carries data as it is (NCCL_NET=Socket encrypts everything)",
                 net_shown(s->used[0].name));
  *out = &s->base;
  return HK_OK;
out:
  net_detach(&s->base);
  return rc;
}

/* The index of the provider of this name among a rank's, or -1. */
static int net_index_of(const net_names *names, const char *name) {
  for (int i = 0; i < HK_NET_ACTIVE; i++)
    if (strcmp(names->name[i], name) == 0) return i;
  return -1;
}

static hk_status net_join(hk_transport_state *state, const hk_facts *facts) {
  net_state *s = (net_state *)state;
  size_t n = (size_t)state->env->nranks;
  s->names = malloc(n * sizeof *s->names);
  if (!s->names) return HK_FAIL_ERRNO("no memory for the network facts of %zu ranks", n);
  for (size_t r = 0; r < n; r++) {
    s->names[r] = ((const net_fact *)hk_fact_of(facts, (int)r))->names;
    for (int i = 0; i < HK_NET_ACTIVE; i++) s->names[r].name[i][HK_NET_NAME - 1] = '\0';
  }
  for (int i = 0; i < s->nused; i++) {
    hk_net_used *u = &s->used[i];
    if (!(u->facts = calloc(n, HK_NET_FACT_BYTES)))
      return HK_FAIL_ERRNO("no memory for the network facts of %zu ranks", n);
    for (size_t r = 0; r < n; r++) {
      int at = net_index_of(&s->names[r], u->name);
      if (at >= 0)
        memcpy(u->facts + r * HK_NET_FACT_BYTES, ((const net_fact *)hk_fact_of(facts, (int)r))->blobs[at],
               HK_NET_FACT_BYTES);
    }
    if (u->provider->join) u->provider->join(u->ctx, u->facts, HK_NET_FACT_BYTES);
  }
  return HK_OK;
}

static bool net_joins(const hk_net_used *u, int a, int b, char *why, size_t why_bytes) {
  return !u->provider->reachable || u->provider->reachable(u->ctx, a, b, why, why_bytes);
}

const hk_net_used *hk_net_between(hk_transport_state *state, int a, int b, bool *joined, char *why, size_t why_bytes) {
  const net_state *s = (const net_state *)state;
  *joined = false;
  for (int i = 0; i < s->nused && s->names; i++) {
    const hk_net_used *u = &s->used[i];
    if (net_index_of(&s->names[a], u->name) < 0 || net_index_of(&s->names[b], u->name) < 0) continue;
    *joined = net_joins(u, a, b, why, why_bytes);
    return u;
  }
  return NULL;
}

hk_status hk_net_again(hk_transport_state *state, const hk_transport_env *env, hk_transport_state **out) {
  hk_status rc = HK_OK;
  const net_state *from = (const net_state *)state;
  const size_t n = (size_t)env->nranks;
  char fact[HK_NET_FACT_BYTES] = {0}; /* peers have it already */
  net_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL_ERRNO("no memory for the networks of rank %d", env->rank);
  s->base = (hk_transport_state){&hk_transport_net, env};
  if (!(s->names = malloc(n * sizeof *s->names))) goto no_memory;
  memcpy(s->names, from->names, n * sizeof *s->names);
  for (int i = 0; i < from->nused; i++) {
    const hk_net_used *old = &from->used[i];
    hk_net_used *u = &s->used[s->nused];
    if (old->provider == &hk_net_plugins) continue;
    *u = (hk_net_used){.provider = old->provider};
    memcpy(u->name, old->name, sizeof u->name);
    if (!(u->facts = malloc(n * HK_NET_FACT_BYTES))) goto no_memory;
    s->nused++;
    memcpy(u->facts, old->facts, n * HK_NET_FACT_BYTES);
    HK_TRY(u->provider->init(env, &u->ctx, fact), out);
    if (u->provider->join) u->provider->join(u->ctx, u->facts, HK_NET_FACT_BYTES);
  }
  *out = &s->base;
  return HK_OK;
no_memory:
  rc = HK_FAIL_ERRNO("no memory for the networks of rank %d", env->rank);
out:
  net_detach(&s->base);
  return rc;
}

/* The first provider, from index `from` on, by which the two ranks reach each other; NULL with the reasons. Both ends
 * get the same one: they try the providers that both have in the table's order. */
static hk_net_used *net_provider_from(net_state *s, int from, int peer, char *why, size_t why_bytes) {
  bool common = false;
  *why = 0;
  for (int i = from; i < s->nused; i++) {
    hk_net_used *u = &s->used[i];
    char reason[160] = "";
    if (net_index_of(&s->names[peer], u->name) < 0) continue;
    common = true;
    if (net_joins(u, s->base.env->rank, peer, reason, sizeof reason)) return u;
    size_t used = strlen(why);
    snprintf(why + used, why_bytes - used, "%s%s: %s", used ? "; " : "", net_shown(u->name), reason);
  }
  if (!common)
    snprintf(why, why_bytes, "rank %d uses network %s and rank %d uses %s: set NCCL_NET alike", s->base.env->rank,
             net_shown(s->used[0].name), peer, net_shown(s->names[peer].name[0]));
  return NULL;
}

static hk_net_used *net_provider_of(net_state *s, int peer, char *why, size_t why_bytes) {
  return net_provider_from(s, 0, peer, why, why_bytes);
}

static bool net_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  net_state *s = (net_state *)state;
  if (!s->names || peer == state->env->rank) {
    snprintf(why, why_bytes, "%s",
             s->names ? "it is this rank itself" : "the ranks have not exchanged their addresses");
    return false;
  }
  if (!s->nused || !s->names[peer].name[0][0]) {
    snprintf(why, why_bytes, "rank %d has no usable network: %s", s->nused ? peer : state->env->rank,
             s->nused ? "see its log" : s->why);
    return false;
  }
  return net_provider_of(s, peer, why, why_bytes) != NULL;
}

static bool net_apart(hk_transport_state *state, int peer) {
  net_state *s = (net_state *)state;
  char why[160];
  const hk_net_used *u = s->names && peer != state->env->rank ? net_provider_of(s, peer, why, sizeof why) : NULL;
  return u && u->provider->apart;
}

/* ---- links ---- */

static char *net_on_gpu(const hk_net_end *e) {
  return (char *)hk_round_up((uintptr_t)e->gpu_memory.base, HK_DEVICE_PAGE);
}

/* Allocates payloads in a GPU's memory. */
static hk_status net_map_on_gpu(const hk_transport_env *env, hk_net_end *e, hk_device *gpu, char **payload) {
  size_t bytes = hk_round_up(env->nslots * env->slot_bytes, HK_DEVICE_PAGE);
  /* Virtual memory, if cards take that: a suspended communicator can give it back. */
  const bool virtual = gpu->limits.gdr && gpu->limits.fd_handles;
  HK_OR_RETURN(gpu->ops->memory->alloc_shared(gpu, bytes + (virtual ? 0 : HK_DEVICE_PAGE), 0, virtual, &e->gpu_memory));
  *payload = net_on_gpu(e);
  e->gpu = gpu;
  return HK_OK;
}

static void net_unmap_fifo(hk_net_end *e) {
  if (e->memory) munmap(e->memory, e->bytes);
  if (e->gpu_memory.base) (void)e->gpu->ops->memory->release(e->gpu, &e->gpu_memory); /* a failure is logged */
}

/* Makes the parts of the FIFO for which the caller has no memory. Mapped, not malloc'ed: only used pages cost memory,
 * and zeroed memory is an empty FIFO. */
static hk_status net_map_fifo(const hk_transport_env *env, hk_net_end *e, const hk_net_provider *p, hk_device *gpu) {
  hk_slot *slots = e->link->slots;
  const bool grows = e->link->small != NULL;
  const size_t control = slots ? 0 : hk_round_up(env->nslots * sizeof(hk_slot) + sizeof(hk_head), 4096);
  /* host memory for a move of a GPU's payloads; nothing else uses it */
  e->host_payload = gpu ? NULL : e->link->payload;
  const bool given = e->host_payload || (grows && !gpu);
  e->bytes = control + (given ? 0 : env->nslots * env->slot_bytes);
  if (e->bytes) {
    e->memory = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->memory == MAP_FAILED) {
      e->memory = NULL;
      return HK_FAIL_ERRNO("rank %d cannot map %zu bytes for a link to rank %u", env->rank, e->bytes, e->key.peer);
    }
  }
  if (!slots) slots = e->memory;
  if (!given) e->host_payload = (char *)e->memory + control;
  hk_link link = hk_link_in_memory(env, &e->key, slots, grows ? NULL : gpu ? net_on_gpu(e) : e->host_payload);
  link.small = e->link->small;
  link.small_bytes = e->link->small_bytes;
  link.by_ref = !p->copies ? 2 /* sent from any address */ : p->refer ? 1 : 0;
  link.proxied = 1;
  link.delivers_ref = !hk_link_sends((hk_link_kind)e->key.kind) && !gpu && p->delivers_ref;
  link.priv = e;
  link.gpu = gpu;
  *e->link = link;
  return HK_OK;
}

static bool net_grows(hk_transport_state *state, const hk_link_key *key) {
  char why[160];
  const hk_net_used *u = net_provider_of((net_state *)state, key->peer, why, sizeof why);
  return u && u->provider->grows && u->provider->grows(u->ctx);
}

static hk_status net_reserve(hk_link *link, char **data) {
  hk_net_end *e = link->priv;
  const hk_transport_env *env = link->owner->env;
  *data = NULL;
  if (e->taken && net_map_on_gpu(env, e, e->taken, data) != HK_OK)
    HK_INFO(HK_SUB_NET, "rank %d: %s: data passes through host memory on channel %d with rank %d", env->rank,
            hk_last_error(), e->key.channel, e->key.peer);
  return HK_OK;
}

/* If the link moved to another network after it was opened, its payloads are in host memory. */
static hk_status net_grow(hk_link *link, char *data, bool host) {
  hk_net_end *e = link->priv;
  hk_device *gpu = host ? NULL : link->gpu;
  if (host) e->host_payload = data;
  char *payload = gpu ? data : e->host_payload;
  if (e->used) return e->used->provider->grow(e->used->ctx, e, payload, gpu);
  link->payload = payload;
  return HK_OK;
}

/* Makes the link's end, for the provider that will carry it. */
static hk_status net_new_end(net_state *s, const hk_link_key *key, hk_link *link, hk_net_end **out) {
  if (key->kind != HK_LINK_SEND && key->kind != HK_LINK_RECV)
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d cannot open a multicast link over the network", s->base.env->rank);
  char why[160];
  hk_net_used *u = net_provider_of(s, key->peer, why, sizeof why);
  if (!u) return HK_FAIL(HK_ERR_SYSTEM, "rank %d has no network to rank %u: %s", s->base.env->rank, key->peer, why);
  hk_net_end *e = *out = calloc(1, sizeof *e);
  if (!e) return HK_FAIL_ERRNO("no memory for a link to rank %u", key->peer);
  e->link = link;
  e->key = *key;
  e->used = u;
  if (link->gpu && u->provider->takes_gpu && u->provider->takes_gpu(u->ctx, e)) e->taken = link->gpu;
  return HK_OK;
}

static hk_status net_prepare(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  hk_net_end *e;
  HK_OR_RETURN(net_new_end((net_state *)state, key, link, &e));
  link->priv = e;
  return HK_OK;
}

/* Uses the prepared end, if there is one. If that has no GPU memory, or its network does not take GPU memory any more,
 * its payloads are in host memory. */
static hk_status net_open(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  hk_status rc;
  hk_net_end *e = link->gpu ? link->priv : NULL;
  const bool prepared = e != NULL;
  if (!e) HK_OR_RETURN(net_new_end((net_state *)state, key, link, &e));
  hk_net_used *u = e->used;
  u->nends++;
  if (prepared && !(e->gpu_memory.base && u->provider->takes_gpu(u->ctx, e))) e->taken = NULL;
  HK_TRY(net_map_fifo(state->env, e, u->provider, e->taken), undo);
  link->owner = state;
  atomic_init(&link->state, HK_LINK_CONNECTING);
  HK_TRY(u->provider->open(u->ctx, e), undo);
  return HK_OK;
undo:
  if (e->used) e->used->nends--;
  net_unmap_fifo(e);
  free(e);
  link->priv = NULL;
  return rc;
}

static hk_net_used *net_other_of(const hk_net_end *e) {
  char why[160];
  net_state *s = (net_state *)e->link->owner;
  return net_provider_from(s, (int)(e->used - s->used) + 1, e->key.peer, why, sizeof why);
}

bool hk_net_has_fallback(const hk_net_end *e) { return net_other_of(e) != NULL; }

hk_status hk_net_fall_back(hk_net_end *e) {
  hk_status rc;
  hk_net_used *other = net_other_of(e);
  if (!other) return HK_FAIL(HK_ERR_INTERNAL, "no other network reaches rank %u", e->key.peer);
  e->used->nends--;
  HK_TRY(hk_net_move_to_host(e, NULL), out);
  e->used = other;
  other->nends++;
  e->priv = NULL;
  atomic_store_explicit(&e->link->place_min, 0, memory_order_relaxed); /* relaxed: hk_link_places() */
  rc = other->provider->open(other->ctx, e);
  if (rc == HK_OK) return HK_OK;
  other->nends--;
out:
  e->used = NULL; /* no provider serves it: it can only be closed */
  return rc;
}

static hk_status net_rest(hk_link *link, bool *rests) {
  hk_net_end *e = link->priv;
  const hk_net_provider *p = e->used ? e->used->provider : NULL;
  if (p && p->rest) return p->rest(e->used->ctx, e, rests);
  *rests = *rests && p && !p->copies;
  return HK_OK;
}

static hk_memory *net_gpu_memory(hk_link *link) { return &((hk_net_end *)link->priv)->gpu_memory; }

static void net_close(hk_link *link) {
  hk_net_end *e = link->priv;
  if (e->used) {
    e->used->provider->close(e->used->ctx, e);
    e->used->nends--;
  }
  net_unmap_fifo(e);
  free(e);
  link->priv = NULL;
}

static hk_status net_progress(hk_transport_state *state, bool *moved) {
  net_state *s = (net_state *)state;
  for (int i = 0; i < s->nused; i++)
    if (s->used[i].nends) HK_OR_RETURN(s->used[i].provider->progress(s->used[i].ctx, moved));
  return HK_OK;
}

static void net_ring(hk_link *link) {
  hk_net_end *e = link->priv;
  if (e && e->used && e->used->provider->ring) e->used->provider->ring(e->used->ctx, e);
}

/* Sleeps only if one network alone is in use: a message of the other one would have to wait. */
static void net_sleep(hk_transport_state *state) {
  net_state *s = (net_state *)state;
  hk_net_used *only = NULL;
  for (int i = 0; i < s->nused; i++) {
    if (!s->used[i].nends) continue;
    if (only) return;
    only = &s->used[i];
  }
  if (only && only->provider->sleep) only->provider->sleep(only->ctx);
}

static bool net_refer(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out) {
  const hk_net_end *e = link->priv;
  (void)state;
  if (!e->used) return false;
  const hk_net_provider *p = e->used->provider;
  if (p->copies && !(p->refer && p->refer(e->used->ctx, data, bytes))) return false;
  *out = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)data};
  return true;
}

static void net_memory(hk_transport_state *state, void *base, size_t bytes, bool there) {
  net_state *s = (net_state *)state;
  for (int i = 0; i < s->nused; i++)
    if (s->used[i].provider->memory) s->used[i].provider->memory(s->used[i].ctx, base, bytes, there);
}

static void net_offer(hk_transport_state *state, hk_link *link, uint64_t k, void *to, uint32_t bytes) {
  hk_net_end *e = link->priv;
  (void)state;
  if (e->used && e->used->provider->post_target) e->used->provider->post_target(e->used->ctx, e, k, to, bytes);
}

static const struct hk_remote *net_remote(hk_transport_state *state, int peer, void **ctx) {
  net_state *s = (net_state *)state;
  char why[160];
  hk_net_used *u = s->names && peer != state->env->rank ? net_provider_of(s, peer, why, sizeof why) : NULL;
  if (u) *ctx = u->ctx;
  return u ? u->provider->remote : NULL;
}

static void net_withdraw(hk_transport_state *state) {
  net_state *s = (net_state *)state;
  for (int i = 0; i < s->nused; i++)
    if (s->used[i].provider->withdraw) s->used[i].provider->withdraw(s->used[i].ctx);
}

static const void *net_resolve(hk_transport_state *state, hk_link *link, const hk_ref *ref, size_t bytes) {
  (void)state, (void)link, (void)bytes;
  return ref->region == 0 ? (const void *)(uintptr_t)ref->offset : NULL;
}

static const hk_transport_payload net_payload = {
    .grows = net_grows,
    .prepare = net_prepare,
    .reserve = net_reserve,
    .grow = net_grow,
    .rest = net_rest,
    .gpu_memory = net_gpu_memory,
};

/* NULL: fetch (references are addresses of this process). */
static const hk_transport_zero_copy net_zero_copy = {
    .resolve = net_resolve,
    .refer = net_refer,
    .memory = net_memory,
    .post_target = net_offer,
};

static const hk_transport_proxied net_proxied = {
    .progress = net_progress,
    .ring = net_ring,
    .sleep = net_sleep,
    .withdraw = net_withdraw,
    .apart = net_apart,
    .remote = net_remote,
};

/* NULL: multicast (a network has no link to several ranks). */
const hk_transport hk_transport_net = {
    .name = "net",
    .fact_bytes = sizeof(net_fact),
    .attach = net_attach,
    .join = net_join,
    .reachable = net_reachable,
    .open = net_open,
    .close = net_close,
    .detach = net_detach,
    .zero_copy = &net_zero_copy,
    .payload = &net_payload,
    .proxied = &net_proxied,
};
