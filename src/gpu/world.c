/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of one process have together on GPUs: the memory of links between them, and whom they reach. */
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../device/host.h"
#include "net.h"

/* The worlds of a process.  They are global because ranks that are threads of a process have nothing else in common when
 * they begin, and because what they share must outlive whichever of them leaves first. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static hk_gpu_world *worlds;

/* ---- worlds ---- */

/* A rank's credits, in its memory: for each link that it sends on the head, which the receiver writes, and its counter;
 * for those over the network the counters of both directions; behind them words that other ranks try to read, and room for
 * what this rank reads of theirs. */
enum { CREDIT_BYTES = 128, SENT_AT = 64, RECEIVED_AT = 96, PROBE_BYTES = 4096 };

static size_t credit_at(int peer, unsigned channel) {
  return ((size_t)peer * HK_GPU_CHANNELS + channel) * CREDIT_BYTES;
}
static size_t probe_at(int nranks) { return credit_at(nranks, 0); }
static uint64_t probe_word(uint64_t comm_id, int rank, unsigned i) {
  return (comm_id + (uint64_t)rank * 64 + i + 1) * 0x9e3779b97f4a7c15u;
}

static hk_gpu_world *world_new(uint64_t comm_id, int nranks) {
  hk_gpu_world *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->comm_id = comm_id;
  w->nranks = nranks;
  w->devices = calloc((size_t)nranks, sizeof(hk_device *));
  w->credits = calloc((size_t)nranks, sizeof(hk_memory));
  w->fifos = calloc((size_t)nranks, sizeof(hk_gpu_fifo *));
  w->words = calloc((size_t)nranks, sizeof(hk_gpu_remote));
  if (!w->devices || !w->credits || !w->fifos || !w->words) {
    free(w->devices);
    free(w->credits);
    free(w->words);
    free(w->fifos);
    free(w);
    return NULL;
  }
  pthread_mutex_init(&w->lock, NULL);
  w->next = worlds;
  worlds = w;
  return w;
}

/* Memory that other processes open is whole pages of the driver's: what lies beside it is not theirs to see. */
static hk_status make_credits(ncclComm_t c, uint64_t comm_id, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_device *d = hk_gpu_of(c)->device;
  hk_queue q = hk_gpu_of(c)->queue;
  int rank = c->rank, nranks = c->nranks;
  static const size_t words = PROBE_BYTES / 8;
  size_t probe = probe_at(nranks), bytes = probe + (size_t)2 * PROBE_BYTES;
  uint64_t *pattern = malloc(PROBE_BYTES);
  if (!pattern) return HK_FAIL_ERRNO("no memory for a communicator's GPU");
  for (unsigned i = 0; i < words; i++) pattern[i] = probe_word(comm_id, rank, i);
  HK_TRY(d->ops->alloc_shared(d, (bytes + HK_GPU_SHARED_GRANULE - 1) / HK_GPU_SHARED_GRANULE * HK_GPU_SHARED_GRANULE,
                              bytes, hk_gpu_of(c)->by_fd, out),
         out);
  HK_TRY(d->ops->copy(d, (char *)out->base + probe, pattern, PROBE_BYTES, q), undo);
  HK_TRY(d->ops->wait(d, q), undo);
  goto out;
undo:
  (void)d->ops->release(d, out); /* the first failure is the one to tell */
out:
  free(pattern);
  return rc;
}

hk_status hk_gpu_world_join(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  uint64_t comm_id = hk_bootstrap_comm_id(c->bootstrap);
  hk_memory credits;
  HK_TRY(make_credits(c, comm_id, &credits), out);
  pthread_mutex_lock(&table_lock);
  hk_gpu_world *w = worlds;
  while (w && w->comm_id != comm_id) w = w->next;
  if (!w) w = world_new(comm_id, c->nranks);
  if (w) {
    w->refs++;
    w->devices[c->rank] = g->device;
    w->credits[c->rank] = credits;
  } else {
    rc = HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
    (void)g->device->ops->release(g->device, &credits);
  }
  g->world = w;
  pthread_mutex_unlock(&table_lock);
out:
  return rc;
}

void hk_gpu_world_leave(hk_gpu_world *w) {
  if (!w) return;
  pthread_mutex_lock(&table_lock);
  if (--w->refs > 0) {
    pthread_mutex_unlock(&table_lock);
    return; /* the others' kernels may still use this rank's memory and device */
  }
  hk_gpu_world **at = &worlds;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  pthread_mutex_unlock(&table_lock);
  /* Failures to free are logged, and there is nothing else to do about them. */
  hk_gpu_multicast_free(w);
  for (int r = 0; r < w->nranks; r++) {
    while (w->fifos[r]) {
      hk_gpu_fifo *f = w->fifos[r];
      w->fifos[r] = f->next;
      (void)w->devices[f->to]->ops->release(w->devices[f->to], &f->data);
      free(f);
    }
  }
  hk_gpu_views_bury(w);
  for (int r = 0; r < w->nranks; r++) {
    hk_device *d = w->devices[r];
    if (!d) continue;
    (void)d->ops->release(d, &w->credits[r]);
    hk_gpu_remote_drop(d, &w->words[r]);
    d->ops->close(d);
  }
  hk_gpu_topology_free(w);
  pthread_mutex_destroy(&w->lock);
  free(w->devices);
  free(w->credits);
  free(w->words);
  free(w->fifos);
  free(w);
}

/* ---- who can be reached ---- */

static bool is_remote(ncclComm_t c, int peer) { return c->peers[peer].process != c->peers[c->rank].process; }

/* Does nothing but the network join the two?  Both ends answer alike. */
static bool by_net(ncclComm_t c, int peer) {
  return c->wiring.states[c->wiring.via[peer]]->transport->progress != NULL;
}

static char *credits_of(ncclComm_t c, int rank) {
  return is_remote(c, rank) ? hk_gpu_of(c)->opened[rank].base : hk_gpu_of(c)->world->credits[rank].base;
}

/* Some machines report peer access and deliver something else. */
static hk_status probe(ncclComm_t c, int peer, uint64_t *got, char *why, size_t why_bytes) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  char *mine = credits_of(c, c->rank) + probe_at(c->nranks) + PROBE_BYTES;
  HK_TRY(ops->copy(g->device, mine, credits_of(c, peer) + probe_at(c->nranks), PROBE_BYTES, g->queue), out);
  HK_TRY(ops->copy(g->device, got, mine, PROBE_BYTES, g->queue), out);
  HK_TRY(ops->wait(g->device, g->queue), out);
  for (unsigned i = 0; i < PROBE_BYTES / 8 && !why[0]; i++)
    if (got[i] != probe_word(g->world->comm_id, peer, i))
      snprintf(why, why_bytes,
               "it reads wrong data from there: PCI access control (ACS) or an IOMMU is the usual cause");
  if (why[0])
    HK_WARN(
        "rank %d on GPU %d: the driver says that rank %d's GPU can be reached, but %s. What they send goes through host "
        "memory instead",
        c->rank, c->device, peer, why);
out:
  return rc;
}

/* `why` tells what is against reaching the peer's memory; empty: nothing. */
static hk_status open_peer(ncclComm_t c, int peer, const hk_gpu_offer *credits, char *why, size_t why_bytes) {
  hk_device *d = hk_gpu_of(c)->device;
  if (peer == c->rank) return HK_OK;
  if (c->peers[peer].host != c->peers[c->rank].host)
    snprintf(why, why_bytes, "it is on another host");
  else if (hk_gpu_too_far(c, peer, why, why_bytes))
    ; /* the settings forbid it */
  else if (!is_remote(c, peer)) {
    if (d->ops->peer(d, c->peers[peer].device, why, why_bytes) != HK_OK && !why[0])
      snprintf(why, why_bytes, "%s", hk_last_error());
  } else if (credits->share.kind == HK_MEMORY_NONE)
    snprintf(why, why_bytes, "its driver does not share memory between processes");
  else if (hk_gpu_open_offer(c, peer, credits, &hk_gpu_of(c)->opened[peer]) != HK_OK)
    snprintf(why, why_bytes, "%s", hk_last_error());
  return HK_OK;
}

static const hk_gpu_fact *fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}

static bool share_gpu(const hk_gpu_fact *facts, size_t stride, int a, int b) {
  return fact_of(facts, stride, a)->id == fact_of(facts, stride, b)->id;
}

/* What a rank finds of another one, the better the larger. */
enum { REFUSED, FD_REFUSED /* a handle may be better */, REACHED, BY_NVLINK };
/* What is so for some rank: the first byte of what each tells; then what it finds of each rank of its host. */
enum { SOME_STAGED = 1, SOME_NARROW = 2, SOME_AGAIN = 4 };

static unsigned char sum_up(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, const unsigned char *found) {
  unsigned char some = 0;
  for (int r = 0; r < c->nranks; r++) {
    const bool near = c->peers[r].host == c->peers[c->rank].host;
    if (near && found[r] < REACHED) some |= SOME_STAGED;
    if (found[r] < (share_gpu(facts, stride, c->rank, r) ? REACHED : BY_NVLINK)) some |= SOME_NARROW;
    if (found[r] == FD_REFUSED) some |= SOME_AGAIN;
  }
  return some;
}

static hk_gpu_way way_to(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, int r, unsigned char both) {
  if (both < REACHED) return by_net(c, r) ? HK_GPU_NET : HK_GPU_STAGED;
  if (share_gpu(facts, stride, c->rank, r)) return HK_GPU_SAME;
  return both == BY_NVLINK ? HK_GPU_NVLINK : HK_GPU_REACH;
}

/* A pair goes one way: what one of them cannot do, neither does.  *again: file descriptors did not work for somebody. */
static hk_status agree(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, const unsigned char *found, bool *again) {
  hk_status rc = HK_OK;
  const size_t n = (size_t)c->nranks;
  size_t each = 0, place = 0, k = 0;
  unsigned char some = 0, *rows = NULL;
  uint64_t *hosts = malloc(n * sizeof *hosts);
  for (size_t r = 0; hosts && r < n; r++) hosts[r] = c->peers[r].host;
  if (hosts) each = 1 + (size_t)hk_gpu_most_equal(hosts, c->nranks);
  if (hosts) rows = calloc(n, each);
  if (!rows) {
    rc = HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
    goto out;
  }
  unsigned char *mine = rows + (size_t)c->rank * each;
  mine[0] = sum_up(c, facts, stride, found);
  for (int r = 0; r < c->nranks; r++) {
    if (c->peers[r].host != c->peers[c->rank].host) continue;
    if (r == c->rank) place = k;
    mine[1 + k++] = found[r];
  }
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, rows, each), out);
  for (int r = 0; r < c->nranks; r++) {
    const unsigned char *theirs = rows + (size_t)r * each;
    const bool near = c->peers[r].host == c->peers[c->rank].host;
    const unsigned char back = near ? theirs[1 + place] : REFUSED;
    some |= theirs[0];
    hk_gpu_of(c)->direct[r] = (unsigned char)way_to(c, facts, stride, r, found[r] < back ? found[r] : back);
  }
  hk_gpu_of(c)->staged = some & SOME_STAGED;
  hk_gpu_of(c)->wide = !(some & SOME_NARROW);
  *again = some & SOME_AGAIN;
out:
  free(hosts);
  free(rows);
  return rc;
}

/* Why memory does not go by file descriptor between the processes of this host; NULL: it does.  All there answer alike. */
static const char *no_fds(ncclComm_t c, const hk_gpu_fact *facts, size_t stride) {
  for (int r = 0; r < c->nranks; r++)
    if (c->peers[r].host == c->peers[c->rank].host && !fact_of(facts, stride, r)->by_fd)
      return "NCCL_CUMEM_ENABLE is 0, or a driver gives none";
  return hk_wire_no_files(c);
}

/* From now on by handles: the ranks of this process do not use the old credits yet, or no more. */
static hk_status use_handles(ncclComm_t c, const char *why) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_memory credits;
  HK_INFO(HK_SUB_INIT | HK_SUB_P2P,
          "rank %d: GPU memory goes to other processes by CUDA IPC handles, not by file descriptors: %s", c->rank, why);
  for (int r = 0; r < c->nranks; r++) HK_TRY(g->device->ops->release(g->device, &g->opened[r]), out);
  if (g->by_fd) {
    g->by_fd = false;
    HK_TRY(make_credits(c, g->world->comm_id, &credits), out);
    pthread_mutex_lock(&table_lock);
    hk_memory old = g->world->credits[c->rank];
    g->world->credits[c->rank] = credits;
    pthread_mutex_unlock(&table_lock);
    HK_TRY(g->device->ops->release(g->device, &old), out);
  }
out:
  return rc;
}

/* What others need of the ranks' credits; nothing where there is one process. */
static hk_status share_credits(ncclComm_t c, hk_gpu_offer *all) {
  hk_gpu *g = hk_gpu_of(c);
  if (!g->remote) return HK_OK;
  if (hk_gpu_offer_memory(c, &g->world->credits[c->rank], false, &all[c->rank]) != HK_OK)
    HK_INFO(HK_SUB_INIT | HK_SUB_P2P, "rank %d cannot share its GPU's memory: %s", c->rank, hk_last_error());
  return hk_bootstrap_allgather(c->bootstrap, all, sizeof *all);
}

static hk_status try_peers(ncclComm_t c, const hk_gpu_offer *credits, uint64_t *got, unsigned char *mine) {
  hk_status rc = HK_OK;
  for (int r = 0; r < c->nranks; r++) {
    char why[200] = "";
    HK_TRY(open_peer(c, r, &credits[r], why, sizeof why), out);
    char again[200];
    bool by_fd = is_remote(c, r) && c->peers[r].host == c->peers[c->rank].host &&
                 credits[r].share.kind == HK_MEMORY_VMM;
    const bool nvlink = hk_gpu_of(c)->nvlink[r];
    mine[r] = !why[0] && nvlink                                     ? BY_NVLINK
              : !why[0]                                             ? REACHED
              : by_fd && !hk_gpu_too_far(c, r, again, sizeof again) ? FD_REFUSED
                                                                    : REFUSED;
    if (!why[0]) {
      HK_TRY(probe(c, r, got, why, sizeof why), out);
      if (why[0]) mine[r] = REFUSED;
    }
    if (r == c->rank) continue;
    HK_INFO(HK_SUB_INIT | HK_SUB_P2P, "rank %d reaches rank %d via %s%s%s", c->rank, r,
            why[0] && by_net(c, r) ? "the network; not directly: "
            : why[0]               ? "pinned host memory; not directly: "
            : !is_remote(c, r)     ? "P2P/direct pointer"
            : by_fd                ? "P2P/CUMEM"
                                   : "P2P/IPC",
            why, nvlink && !why[0] ? " over NVLink" : "");
  }
out:
  return rc;
}

/* Opens, probes and agrees; *again where file descriptors did not work for somebody. */
static hk_status reach_once(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, bool *again) {
  hk_status rc = HK_OK;
  size_t n = (size_t)c->nranks;
  uint64_t *got = malloc(PROBE_BYTES);
  unsigned char *found = calloc(n, 1);
  hk_gpu_offer *credits = calloc(n, sizeof *credits);
  *again = false;
  if (!got || !found || !credits) {
    rc = HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
    goto out;
  }
  HK_TRY(share_credits(c, credits), out);
  HK_TRY(try_peers(c, credits, got, found), out);
  rc = agree(c, facts, stride, found, again);
out:
  if (credits) hk_host_take_back(credits[c->rank].region);
  free(got);
  free(found);
  free(credits);
  return rc;
}

hk_status hk_gpu_reach(ncclComm_t c, const hk_gpu_fact *facts, size_t stride) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  size_t n = (size_t)c->nranks;
  bool again;
  g->opened = calloc(n, sizeof(hk_memory));
  g->direct = calloc(n, 1);
  if (!g->opened || !g->direct) {
    rc = HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
    goto out;
  }
  for (int r = 0; r < c->nranks; r++) g->remote = g->remote || is_remote(c, r);
  HK_TRY(hk_gpu_distances(c, facts, stride), out);
  const char *why = g->remote ? no_fds(c, facts, stride) : NULL;
  if (why) HK_TRY(use_handles(c, why), out);
  HK_TRY(reach_once(c, facts, stride, &again), out);
  if (!again) goto out;
  HK_TRY(use_handles(c, "a rank could not open another one's"), out);
  rc = reach_once(c, facts, stride, &again);
out:
  return rc;
}

/* ---- links ----
 * The receiver's memory: words, its counter, LL lines, then data.  Where the two do not reach each other's memory it is the
 * host's, pinned, and has the sender's head and counter too. */
enum { COUNTER_AT = 64 * 8 * HK_GPU_WORD_STRIDE, STAGED_CREDIT_AT = COUNTER_AT + 128, LINES_AT = COUNTER_AT + 1024 };

static size_t lines_bytes(const hk_transport_env *e) { return (size_t)e->nslots * 2 * HK_GPU_LL_MAX; }
/* LL128 needs memory that keeps a line whole: the device's own, or another's over NVLink. */
static size_t wide_bytes(const hk_transport_env *e, hk_gpu_way way) {
  return way >= HK_GPU_NVLINK ? (size_t)e->nslots * HK_GPU_WIDE_BYTES : 0;
}
static size_t data_at(const hk_transport_env *e, hk_gpu_way way) {
  return LINES_AT + lines_bytes(e) + wide_bytes(e, way);
}

static hk_status make_data(ncclComm_t c, hk_device *d, hk_gpu_way way, hk_memory *out) {
  const hk_transport_env *e = &c->wiring.env;
  size_t ahead = data_at(e, way), bytes = ahead + (size_t)e->nslots * e->slot_bytes;
  return way == HK_GPU_STAGED ? d->ops->alloc_host(d, bytes, out) : d->ops->alloc_open(d, bytes, ahead, out);
}

static hk_status make_fifo(ncclComm_t c, int from, int to, unsigned channel, hk_gpu_fifo **out) {
  hk_gpu_world *w = hk_gpu_of(c)->world;
  hk_gpu_fifo *f = calloc(1, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory for a link");
  *f = (hk_gpu_fifo){.from = (uint16_t)from, .to = (uint16_t)to, .channel = (uint16_t)channel};
  hk_status rc = make_data(c, w->devices[to], (hk_gpu_way)hk_gpu_of(c)->direct[from == c->rank ? to : from], &f->data);
  if (rc != HK_OK) {
    free(f);
    return rc;
  }
  f->next = w->fifos[from];
  w->fifos[from] = f;
  *out = f;
  return HK_OK;
}

/* Whichever end comes first makes the whole. */
static hk_status get_fifo(ncclComm_t c, int from, int to, unsigned channel, hk_gpu_fifo **out) {
  hk_status rc = HK_OK;
  hk_gpu_world *w = hk_gpu_of(c)->world;
  pthread_mutex_lock(&w->lock);
  hk_gpu_fifo *f = w->fifos[from];
  while (f && (f->to != to || f->channel != channel)) f = f->next;
  if (!f) rc = make_fifo(c, from, to, channel, &f);
  pthread_mutex_unlock(&w->lock);
  *out = f;
  return rc;
}

static hk_gpu_end *find_end(ncclComm_t c, int peer, bool sends, unsigned channel) {
  hk_gpu_end *x = hk_gpu_of(c)->ends[sends][peer];
  while (x && x->channel != channel) x = x->next;
  return x;
}

/* Takes `remote` over where it is not NULL. */
static hk_status add_end(ncclComm_t c, int peer, bool sends, unsigned channel, void *base, const hk_gpu_remote *remote,
                         hk_gpu_end **out) {
  const hk_transport_env *e = &c->wiring.env;
  hk_gpu_end **list = &hk_gpu_of(c)->ends[sends][peer], *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for a link");
  hk_gpu_way way = (hk_gpu_way)hk_gpu_of(c)->direct[peer];
  char *at = base, *credit = way == HK_GPU_STAGED ? at + STAGED_CREDIT_AT
                             : sends              ? credits_of(c, c->rank) + credit_at(peer, channel)
                                                  : credits_of(c, peer) + credit_at(c->rank, channel);
  if (remote) x->remote = *remote;
  x->channel = (uint16_t)channel;
  x->link = (hk_gpu_link){.done = (uint64_t *)(void *)(sends ? credit + SENT_AT : at + COUNTER_AT),
                          .head = (uint64_t *)(void *)credit,
                          .word = (uint64_t *)(void *)at,
                          .data = at + data_at(e, way),
                          .lines = at + LINES_AT,
                          .slot_bytes = (uint32_t)e->slot_bytes,
                          .nslots = e->nslots,
                          .peer = (uint32_t)peer,
                          .sends = sends};
  if (way >= HK_GPU_NVLINK) {
    x->link.wide = at + LINES_AT + lines_bytes(e);
    x->link.wide_bytes = HK_GPU_WIDE_BYTES;
  }
  /* A device reads all that lies on it, in one process at one address.  Of another device's memory it has what CUDA
     * mapped for it: not all of the user's. */
  if (way == HK_GPU_SAME && sends && !is_remote(c, peer)) x->link.refs = HK_GPU_REF_MIN;
  x->next = *list;
  *list = x;
  *out = x;
  return HK_OK;
}

/* A link over the network: this end's own memory, which the proxy serves. */
static hk_status add_net_end(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_end **out) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = &c->wiring.env;
  hk_gpu_end **list = &hk_gpu_of(c)->ends[sends][peer], *x = calloc(1, sizeof *x);
  hk_link_key key = {.peer = (uint16_t)peer, .kind = sends ? HK_LINK_SEND : HK_LINK_RECV, .channel = (uint8_t)channel};
  if (!x) return HK_FAIL_ERRNO("no memory for a link");
  x->channel = (uint16_t)channel;
  x->link = (hk_gpu_link){
      .done = (uint64_t *)(void *)(credits_of(c, c->rank) + credit_at(peer, channel) + (sends ? SENT_AT : RECEIVED_AT)),
      .slot_bytes = (uint32_t)e->slot_bytes,
      .nslots = e->nslots,
      .peer = (uint32_t)peer,
      .sends = sends,
      .proxied = 1};
  HK_TRY(hk_gpu_proxy_open(c, &key, &x->link), undo);
  x->next = *list;
  *list = *out = x;
  return HK_OK;
undo:
  free(x);
  return rc;
}

hk_status hk_gpu_end_get(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_end **out) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = &c->wiring.env;
  size_t ahead = data_at(e, (hk_gpu_way)hk_gpu_of(c)->direct[peer]);
  hk_gpu_remote remote;
  hk_gpu_fifo *f;
  if ((*out = find_end(c, peer, sends, channel))) return HK_OK;
  if (hk_gpu_of(c)->direct[peer] == HK_GPU_NET) return add_net_end(c, peer, sends, channel, out);
  if (!is_remote(c, peer)) {
    HK_TRY(get_fifo(c, sends ? c->rank : peer, sends ? peer : c->rank, channel, &f), out);
    rc = add_end(c, peer, sends, channel, f->data.base, NULL, out);
    goto out;
  }
  if (sends)
    HK_TRY(hk_gpu_remote_open(c, peer, channel, &remote), out);
  else
    HK_TRY(hk_gpu_remote_make(c, peer, channel, ahead + (size_t)e->nslots * e->slot_bytes, ahead, &remote), out);
  rc = add_end(c, peer, sends, channel, remote.memory.base, &remote, out);
  if (rc != HK_OK) hk_gpu_remote_free(c, &remote);
out:
  return rc;
}

hk_status hk_gpu_end_offer(ncclComm_t c, int peer, bool sends, unsigned channel) {
  hk_gpu_end *x;
  return sends || !is_remote(c, peer) ? HK_OK : hk_gpu_end_get(c, peer, sends, channel, &x);
}

void hk_gpu_ends_free(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (int s = 0; s < 2; s++) {
    for (int r = 0; g->ends[s] && r < c->nranks; r++) {
      while (g->ends[s][r]) {
        hk_gpu_end *x = g->ends[s][r];
        g->ends[s][r] = x->next;
        hk_gpu_remote_free(c, &x->remote);
        free(x);
      }
    }
    free(g->ends[s]);
    g->ends[s] = NULL;
  }
  for (int r = 0; g->opened && r < c->nranks; r++) (void)g->device->ops->release(g->device, &g->opened[r]);
  free(g->opened);
  free(g->direct);
  free(g->far);
  g->far = NULL;
  g->opened = NULL;
  g->direct = NULL;
}
