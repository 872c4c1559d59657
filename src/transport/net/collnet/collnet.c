/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a CollNet plugin, and makes links whose slots it reduces (../collnet.h). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../../base/fork.h"
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "collnet_plugin.h"

enum { WINDOW = COLLNET_WINDOW };

/* ---- the library ----
 * Up to v10 init is for the process, and libraries stay loaded: their threads may run. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static const void *initialised; /* the struct of up to v10 whose init was called */

static bool collnet_failed(char *why, size_t why_bytes, const char *call, int code) {
  if (code) snprintf(why, why_bytes, "%s fails with code %d (%s)", call, code, hk_plugin_result(code));
  return code != 0;
}

static const char *collnet_missing_call(const collnet_v *c, int version) {
  if (!c->properties) return "getProperties";
  if (!c->listen.v8) return "listen";
  if (!c->connect) return "connect";
  if (!c->reduce_support) return "reduceSupport";
  if (!c->reg || !c->dereg) return "regMr or deregMr";
  if (!c->iallreduce.v8) return "iallreduce";
  if (!c->test) return "test";
  if (!c->close || !c->close_listen) return "closeColl or closeListen";
  return version >= 11 && !c->finalize ? "finalize" : NULL;
}

static int collnet_call_init(collnet_state *s) {
  const collnet_v *c = s->calls;
  if (s->version >= 11) return c->init.v11(&s->context, s->base.env->comm_id, hk_plugin_log);
  pthread_mutex_lock(&lock);
  int code = initialised == c ? 0 : c->init.v8(hk_plugin_log);
  if (!code) initialised = c;
  pthread_mutex_unlock(&lock);
  return code;
}

/* Listens on one of the devices that reduce host memory. */
static bool collnet_listen_on_device(collnet_state *s, hk_collnet_fact *fact) {
  char *why = fact->why;
  int n = 0, good = 0;
  hk_net_device devices[64];
  if (collnet_failed(why, sizeof fact->why, "devices", s->calls->devices(&n))) return false;
  const char *lacks = n > 0 ? collnet_missing_call(s->calls, s->version) : NULL;
  snprintf(why, sizeof fact->why, "it has no %s", lacks ? lacks : "device that adds up host memory");
  if (lacks) return false;
  for (int i = 0; i < n && good < (int)HK_ARRAY_LENGTH(devices); i++) {
    hk_net_device *d = &devices[good];
    if (collnet_failed(why, sizeof fact->why, "getProperties",
                       hk_plugin_properties(s->calls->properties, s->version, i, d)))
      return false;
    good += (d->memory & NET_PLUGIN_HOST_MEMORY) != 0;
  }
  if (!good) return false;
  const hk_net_device *d = &devices[s->base.env->rank % good];
  snprintf(s->device, sizeof s->device, "%s", d->name);
  if (d->max_collective && d->max_collective < s->base.env->slot_bytes) {
    snprintf(why, sizeof fact->why, "it adds up %zu bytes at most: lower HOCKET_SLOT_BYTES", d->max_collective);
    return false;
  }
  bool rounds = !d->max_collective || d->max_collective >= HK_COLLNET_ROUND_BYTES;
  fact->calls = (rounds && s->calls->iallgather ? HK_COLLNET_GATHERS : 0) |
                (rounds && s->calls->ireducescatter ? HK_COLLNET_SCATTERS : 0);
  int code = s->version >= 11 ? s->calls->listen.v11(s->context, d->index, fact->handle, &s->listener)
                              : s->calls->listen.v8(d->index, fact->handle, &s->listener);
  return !collnet_failed(why, sizeof fact->why, "listen", code);
}

static bool collnet_ask_what_it_adds(collnet_state *s, hk_collnet_fact *fact) {
  for (int type = 0; type < HK_DTYPE_COUNT; type++)
    for (int op = HK_SUM; op <= HK_MIN; op++) {
      int yes = 0;
      if (collnet_failed(fact->why, sizeof fact->why, "reduceSupport", s->calls->reduce_support(type, op, &yes)))
        return false;
      if (yes) fact->sums |= hk_collnet_sum((hk_dtype)type, (hk_redop)op);
    }
  if (!fact->sums) snprintf(fact->why, sizeof fact->why, "it adds up no type (reduceSupport)");
  return fact->sums != 0;
}

/* ---- the plugin's thread ---- */

static void collnet_call_connect(void *arg) {
  collnet_state *s = arg;
  s->code = s->calls->connect(s->handles, (int)s->n, s->me, s->listener, &s->comm);
}

static void collnet_call_close(void *arg) {
  collnet_state *s = arg;
  for (int i = 0; i < 2; i++) {
    if (s->registrations[i]) s->calls->dereg(s->comm, s->registrations[i]);
    for (int k = 0; k < 2; k++)
      if (s->rounds[i].registrations[k]) s->calls->dereg(s->comm, s->rounds[i].registrations[k]);
  }
  if (s->comm) s->calls->close(s->comm);
  if (s->listener) s->calls->close_listen(s->listener);
  if (s->context) s->calls->finalize(s->context);
}

static void collnet_free_state(void *arg) {
  collnet_state *s = arg;
  if (s->memory) munmap(s->memory, s->bytes);
  for (int i = 0; i < 2; i++)
    if (s->rounds[i].memory) munmap(s->rounds[i].memory, s->rounds[i].bytes);
  free(s->handles);
  free(s->copies);
  free(s);
}

static void collnet_detach(hk_transport_state *state) {
  collnet_state *s = (collnet_state *)state;
  char whose[96];
  snprintf(whose, sizeof whose, "rank %d: CollNet plugin %s (v%d)", state->env->rank, s->name, s->version);
  s->closing = (hk_plugin_job){.call = collnet_call_close, .arg = s};
  (void)hk_plugin_thread_close(&s->thread, &s->closing, s->base.env->settings->LEAVE_TIMEOUT, whose);
  if (hk_plugin_thread_end(&s->thread, collnet_free_state, s)) collnet_free_state(s);
}

hk_status hk_collnet_begin(const hk_transport_env *env, hk_transport_state **out, hk_collnet_fact *fact) {
  char why[200];
  hk_plugin p;
  *out = NULL;
  *fact = (hk_collnet_fact){.sums = 0};
  collnet_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL_ERRNO("no memory for a CollNet plugin");
  s->base = (hk_transport_state){&hk_transport_collnet, env};
  const hk_plugin_request request = {.nets = env->settings->NET_PLUGIN,
                                     .prefix = "ncclCollNetPlugin_v",
                                     .newest = (int)env->settings->NET_PLUGIN_VERSION,
                                     .oldest = COLLNET_OLDEST};
  if (!hk_plugin_find_in_net(&request, &p)) {
    snprintf(fact->why, sizeof fact->why, "no library of NCCL_NET_PLUGIN has a CollNet plugin (v%d to v%d)",
             COLLNET_OLDEST, NET_PLUGIN_NEWEST);
    free(s);
    return HK_OK;
  }
  hk_plugin_thread_init(&s->thread);
  s->calls = p.symbol;
  s->version = fact->version = p.version;
  snprintf(s->file, sizeof s->file, "%s", p.file);
  bool good = s->calls->init.v8 && s->calls->devices;
  if (!good) snprintf(fact->why, sizeof fact->why, "it has no init or no devices");
  good = good && !collnet_failed(fact->why, sizeof fact->why, "init", collnet_call_init(s)) &&
         collnet_listen_on_device(s, fact) && collnet_ask_what_it_adds(s, fact);
  snprintf(s->name, sizeof s->name, "%s",
           s->calls->name ? s->calls->name : "(without a name)"); /* init may change it */
  memcpy(fact->name, s->name, sizeof fact->name);
  if (good) {
    *out = &s->base;
    return HK_OK;
  }
  snprintf(why, sizeof why, "%s", fact->why);
  snprintf(fact->why, sizeof fact->why, "CollNet plugin %s (v%d): %.*s", s->name, s->version, 100, why);
  fact->sums = 0;
  collnet_detach(&s->base);
  return HK_OK;
}

bool hk_collnet_connect(hk_transport_state *state, const hk_collnet_fact *facts, const int *ranks, int n, int me,
                        char *why, size_t why_bytes) {
  collnet_state *s = (collnet_state *)state;
  const uint64_t seconds = (uint64_t)state->env->settings->PEER_TIMEOUT;
  hk_wait_env env = *state->env->wait;
  env.deadline_ns = hk_now_ns() + seconds * 1000000000u;
  s->n = (unsigned)n;
  s->me = me;
  s->before = ranks[(me + n - 1) % n];
  s->after = ranks[(me + 1) % n];
  s->handles = calloc((size_t)n, sizeof *s->handles);
  s->copies = calloc((size_t)n, sizeof *s->copies);
  if (!s->handles || !s->copies) return !collnet_failed(why, why_bytes, "connect", HK_ERR_SYSTEM);
  for (int i = 0; i < n; i++) {
    s->copies[i] = facts[ranks[i]];
    s->handles[i] = s->copies[i].handle;
  }
  s->connecting = (hk_plugin_job){.call = collnet_call_connect, .arg = s};
  if (hk_plugin_thread_call(&s->thread, &env, &s->connecting) != HK_OK) {
    snprintf(why, why_bytes, "connect does not return within %llu s (HOCKET_PEER_TIMEOUT), or a rank has ended",
             (unsigned long long)seconds);
    return false;
  }
  int code = s->code;
  if (!code && !s->comm) code = 3;
  if (collnet_failed(why, why_bytes, "connect", code)) return false;
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: number %d of %d in a group of CollNet plugin %s (v%d, %s), device %s",
          state->env->rank, me, n, s->name, s->version, s->file, s->device);
  return true;
}

/* ---- links ---- */

/* Trouble with another rank may be a consequence of that rank's own failure, which all ranks then report. */
hk_status hk_collnet_ended(const collnet_state *s, const char *call, int code) {
  const bool remote = code == NET_PLUGIN_REMOTE_ERROR;
  const hk_net_end *ends[] = {&s->from, &s->rounds[0].from, &s->rounds[1].from};
  for (int i = 0; i < 3; i++) /* relaxed: the lane's own thread */
    if (remote && ends[i]->link) atomic_store_explicit(&ends[i]->link->state, HK_LINK_FAILED, memory_order_relaxed);
  return HK_FAIL(
      remote ? HK_ERR_REMOTE : HK_ERR_SYSTEM,
      "CollNet plugin %s (v%d, %s), device %s: %s fails with code %d (%s): NCCL_COLLNET_ENABLE=0 does without "
      "the plugin",
      s->name, s->version, s->file, s->device, call, code, hk_plugin_result(code));
}

collnet_sizes hk_collnet_sizes(const collnet_state *s) {
  const hk_transport_env *env = s->base.env;
  return (collnet_sizes){.control = hk_round_up(env->nslots * sizeof(hk_slot) + sizeof(hk_head), 4096),
                         .payload = hk_round_up(env->nslots * env->slot_bytes, 4096)};
}

hk_status hk_collnet_map(const collnet_state *s, size_t bytes, char **out) {
  void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED)
    return HK_FAIL_ERRNO("rank %d cannot map %zu bytes for a group of the network", s->base.env->rank, bytes);
  *out = m;
  return HK_OK;
}

hk_status hk_collnet_check_key(const collnet_state *s, const hk_link_key *key, const hk_net_end *e) {
  const bool sends = hk_link_sends((hk_link_kind)key->kind);
  if (s->comm && hk_link_in_group((hk_link_kind)key->kind) && !e->link && key->peer == (sends ? s->after : s->before))
    return HK_OK;
  return HK_FAIL(HK_ERR_INTERNAL, "rank %d has no CollNet link of kind %u to rank %u on channel %u", s->base.env->rank,
                 key->kind, key->peer, key->channel);
}

void hk_collnet_make_link(collnet_state *s, const hk_link_key *key, char *memory, hk_net_end *e, hk_link *link) {
  *link = hk_link_in_memory(s->base.env, key, (hk_slot *)(void *)memory, memory + hk_collnet_sizes(s).control);
  link->proxied = 1;
  link->owner = &s->base;
  link->priv = e;
  *e = (hk_net_end){.link = link, .key = *key};
}

static hk_status collnet_open_link(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  collnet_state *s = (collnet_state *)state;
  if (hk_link_in_rounds((hk_link_kind)key->kind)) return hk_collnet_open_rounds(s, key, link);
  const bool sends = key->kind == HK_LINK_SUM_SEND;
  hk_net_end *e = sends ? &s->to : &s->from;
  const collnet_sizes sizes = hk_collnet_sizes(s);
  HK_OR_RETURN(hk_collnet_check_key(s, key, e));
  s->bytes = 2 * (sizes.control + sizes.payload);
  if (!s->memory) HK_OR_RETURN(hk_collnet_map(s, s->bytes, &s->memory));
  char *memory = s->memory + (sends ? 0 : sizes.control + sizes.payload);
  int code =
      s->calls->reg(s->comm, memory + sizes.control, sizes.payload, NET_PLUGIN_HOST_MEMORY, &s->registrations[!sends]);
  if (code) return hk_collnet_ended(s, "regMr", code);
  hk_collnet_make_link(s, key, memory, e, link);
  return HK_OK;
}

/* Memory stays registered until the end of the communicator, which follows soon. */
static void collnet_close_link(hk_link *link) {
  hk_net_end *e = link->priv;
  e->link = NULL;
}

/* Requests the sum of the next slot. *begun is false if the plugin has no room for it. */
static hk_status collnet_post(collnet_state *s, bool *begun) {
  const hk_slot *slot = hk_net_slot(&s->to, s->posted);
  char *data = hk_net_payload(&s->to, s->posted), *sum = hk_net_payload(&s->from, s->posted);
  const hk_dtype type = (hk_dtype)(slot->flags >> 8 & 0xff);
  const hk_redop op = (hk_redop)(slot->flags >> 16 & 0xff);
  const size_t count = slot->bytes / hk_dtype_size(type);
  void **request = &s->requests[s->posted % WINDOW];
  int code = 0;
  *request = NULL;
  if (slot->bytes <= HK_SLOT_INLINE) memcpy(data, slot->small, slot->bytes); /* a header is not registered */
  if (count)
    code = s->version >= 9 ? s->calls->iallreduce.v9(s->comm, data, sum, count, (int)type, (int)op, s->registrations[0],
                                                     s->registrations[1], request)
                           : s->calls->iallreduce.v8(s->comm, data, sum, (int)count, (int)type, (int)op,
                                                     s->registrations[0], s->registrations[1], request);
  if (code) return hk_collnet_ended(s, "iallreduce", code);
  *begun = !count || *request;
  s->posted += *begun;
  return HK_OK;
}

/* Gives a sum to the lane that waits for it, and gives the slot of this rank's part back. */
static void collnet_deliver(collnet_state *s) {
  const hk_slot *slot = hk_net_slot(&s->to, s->done);
  hk_slot *sum = hk_net_slot(&s->from, s->done);
  if (slot->bytes <= HK_SLOT_INLINE) memcpy(sum->small, hk_net_payload(&s->from, s->done), slot->bytes);
  hk_net_deliver(&s->from, slot->bytes, slot->signature, NULL, false);
  hk_net_give_credit(&s->to, ++s->done);
}

static hk_status collnet_progress(hk_transport_state *state, bool *moved) {
  collnet_state *s = (collnet_state *)state;
  bool begun = s->to.link && s->from.link;
  HK_OR_RETURN(hk_collnet_progress_rounds(s, moved));
  if (!begun) return HK_OK;
  while (begun && s->posted - s->done < WINDOW && hk_net_filled(&s->to, s->posted)) {
    /* acquire: pairs with hk_link_release; the lane's reads of the sum's slot are over before it is written */
    uint64_t freed = atomic_load_explicit(&s->from.link->heads->value, memory_order_acquire);
    if (s->posted - freed > s->from.link->mask) break;
    HK_OR_RETURN(collnet_post(s, &begun));
    *moved = *moved || begun;
  }
  while (s->done < s->posted) {
    void *request = s->requests[s->done % WINDOW];
    int done = !request, bytes = 0;
    int code = request ? s->calls->test(request, &done, &bytes) : 0;
    if (code) return hk_collnet_ended(s, "test", code);
    if (!done) break;
    collnet_deliver(s);
    *moved = true;
  }
  return HK_OK;
}

static bool collnet_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  (void)state;
  snprintf(why, why_bytes, "a network that adds up has no link to rank %d alone", peer);
  return false;
}

/* NULL: the functions for a single peer. hk_collnet_begin and hk_collnet_connect replace attach and join. */
static const hk_transport_proxied collnet_proxied = {.progress = collnet_progress};

const hk_transport hk_transport_collnet = {
    .name = "collnet",
    .reachable = collnet_reachable,
    .open = collnet_open_link,
    .close = collnet_close_link,
    .detach = collnet_detach,
    .proxied = &collnet_proxied,
};
