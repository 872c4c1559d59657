/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind a switch that copies and adds up (NVLS): ranks of one host, each on a GPU of its own, bind memory of one
 * layout to one multicast object, which goes to other processes by file descriptor.  For each channel:
 *
 *   done    counters, a rank's own, as all links have them: of what it gives to p, of what it takes from r
 *   word    [p][r][slot]  rank r has put its part for p into its own slot; [p][p][slot]: p has written to all
 *   head    [p]           p has added up;  [p][r] r has read what p has written to all
 *   given   [p][slot]     each rank's own part of what p is to add up
 *   sums    [p][slot]     what p has written to all
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../device/host.h"
#include "gpu.h"

enum {
  SLOT_BYTES = 64 << 10, /* enough for a chunk: the switch's answer takes a microsecond or two */
  SLOTS = 4,
  ROOM = 64 << 20, /* of a rank, at most */
  LINE = 8 * HK_GPU_HEAD_STRIDE
};

/* ---- the layout ---- */

typedef struct layout {
  size_t done, word, adds, reads, given, sums, end;
} layout;
static layout layout_of(const hk_gpu_multicast *m, int nranks) {
  layout l = {0};
  size_t n = (size_t)nranks, slots = n * m->nslots * m->slot_bytes;
  l.word = 4 * n * LINE;
  l.adds = l.word + (n * n * m->nslots * 8 * HK_GPU_WORD_STRIDE + LINE - 1) / LINE * LINE;
  l.reads = l.adds + n * LINE;
  l.given = l.reads + n * n * LINE;
  l.sums = l.given + slots;
  l.end = l.sums + slots;
  return l;
}
/* All channels' signals come first: they begin with zeros. */
static size_t zeroed_of(const hk_gpu_multicast *m, int nranks) { return m->channels * layout_of(m, nranks).given; }
static size_t bytes_of(const hk_gpu_multicast *m, int nranks) { return m->channels * layout_of(m, nranks).end; }

static void choose_sizes(hk_gpu_multicast *m, ncclComm_t c) {
  const hk_transport_env *e = &c->wiring.env;
  m->channels = hk_gpu_of(c)->blocks < HK_GPU_SWITCH_CHANNELS ? hk_gpu_of(c)->blocks : HK_GPU_SWITCH_CHANNELS;
  m->nslots = e->nslots < SLOTS ? e->nslots : SLOTS;
  m->slot_bytes = e->slot_bytes < SLOT_BYTES ? e->slot_bytes : SLOT_BYTES;
  while (m->slot_bytes > 4096 && bytes_of(m, c->nranks) > ROOM) m->slot_bytes /= 2;
  m->slot_bytes &= ~(size_t)63;
}

/* ---- links ---- */

hk_gpu_link hk_gpu_multicast_link(ncclComm_t c, const hk_link_need *need, unsigned channel, bool first) {
  const hk_gpu_multicast *m = &hk_gpu_of(c)->world->multicast;
  const size_t n = (size_t)c->nranks, me = (size_t)c->rank, peer = need->peer;
  const layout l = layout_of(m, c->nranks);
  const size_t data = m->channels * l.given + channel * (l.end - l.given) - l.given;
  char *own = m->own[c->rank].base, *all = m->all[c->rank].base;
  char *mine = own + channel * l.given, *theirs = all + channel * l.given; /* signals: read here, written there */
  const bool sends = hk_link_sends((hk_link_kind)need->kind);
  const size_t adder = need->kind == HK_LINK_SEND ? peer : need->kind == HK_LINK_RECV ? me : peer;
  const size_t from = sends ? me : peer;
  char *word = (sends ? theirs : mine) + l.word + (adder * n + from) * m->nslots * 8 * HK_GPU_WORD_STRIDE;
  const bool sums = need->kind == HK_LINK_MCAST_SEND || need->kind == HK_LINK_MCAST_RECV;
  const size_t slots = data + (sums ? l.sums : l.given) + adder * m->nslots * m->slot_bytes;
  /* The readers of p's sums have heads one after another, without p. */
  const size_t place = me < adder ? me : me - 1;
  char *head = (sends ? mine : theirs) +
               (sums ? l.reads + (adder * n + (sends ? 0 : place)) * LINE : l.adds + adder * LINE);
  hk_gpu_link k = {.done = (uint64_t *)(void *)(mine + ((size_t)need->kind * n + peer) * LINE),
                   .head = (uint64_t *)(void *)head,
                   .word = (uint64_t *)(void *)word,
                   .data = own + slots,
                   .slot_bytes = (uint32_t)m->slot_bytes,
                   .nslots = m->nslots,
                   .peer = need->peer,
                   .sends = sends,
                   .multi = HK_GPU_MULTI_SIGNAL};
  if (need->kind == HK_LINK_RECV) {
    k.own = own + slots;
    k.data = all + slots;
    if (!first) k.head = NULL; /* all who gave have one head to look at */
  } else if (need->kind == HK_LINK_MCAST_SEND) {
    k.data = all + slots;
    k.multi |= HK_GPU_MULTI_DATA;
    k.others = (uint32_t)n - 2;
  }
  return k;
}

bool hk_gpu_switch_adds(hk_dtype type, hk_redop op) {
  if (op == HK_PROD) return false;
  switch (type) {
    case HK_F16:
    case HK_BF16:
    case HK_F32:
    case HK_F64: return op != HK_MAX && op != HK_MIN; /* a switch's would lose NaNs */
    case HK_I32:
    case HK_U32:
    case HK_I64:
    case HK_U64: return true;
    default: return false;
  }
}

/* ---- beginning and end ---- */

static const hk_gpu_fact *fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}

/* Why there is none, from what all ranks know; empty: nothing is against it. */
static void look_against(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, char *why, size_t bytes) {
  why[0] = 0;
  if (c->nranks > HK_GPU_SWITCH_RANKS)
    snprintf(why, bytes, "%d ranks are more than %d", c->nranks, HK_GPU_SWITCH_RANKS);
  for (int r = 0; r < c->nranks && !why[0]; r++) {
    if (!fact_of(facts, stride, r)->multicast)
      snprintf(why, bytes, "the GPU of rank %d has no multicast, or NCCL_NVLS_ENABLE is 0", r);
    else if (c->peers[r].host != c->peers[0].host)
      snprintf(why, bytes, "rank %d is on another host than rank 0", r);
    for (int k = 0; k < r && !why[0]; k++)
      if (fact_of(facts, stride, k)->id == fact_of(facts, stride, r)->id)
        snprintf(why, bytes, "ranks %d and %d share a GPU", k, r);
  }
  if (!why[0] && hk_gpu_of(c)->remote && !hk_gpu_of(c)->by_fd)
    snprintf(why, bytes, "processes cannot pass each other file descriptors of GPU memory");
}

/* What rank 0 tells of the object. */
typedef struct offer {
  uint64_t could, bytes, slot_bytes, nslots, channels;
  uint64_t object, left; /* regions (device/host.h) of what processes open; 0: there is one process */
} offer;

/* A step that each rank takes: true where all could.  What one rank writes of the world there, the others of its process
 * see behind it.  *o becomes rank 0's. */
static hk_status all_could(ncclComm_t c, hk_status mine, offer *o, bool *all) {
  offer told[HK_GPU_SWITCH_RANKS] = {{0}};
  *all = true;
  told[c->rank] = *o;
  told[c->rank].could = mine == HK_OK;
  if (mine != HK_OK) HK_INFO(HK_SUB_NVLS, "rank %d: no sums in the switch: %s", c->rank, hk_last_error());
  hk_status rc = hk_bootstrap_allgather(c->bootstrap, told, sizeof *told);
  for (int r = 0; r < c->nranks; r++) *all = *all && told[r].could;
  *o = told[0];
  return rc;
}

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static hk_status map_left(hk_gpu_multicast *m, int fd) {
  void *at = mmap(NULL, page(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return HK_FAIL_ERRNO("mapping a page that processes share");
  m->left = at;
  return HK_OK;
}

/* For the processes of other ranks to open. */
static hk_status lend(ncclComm_t c, offer *o) {
  hk_status rc = HK_OK;
  hk_gpu_multicast *m = &hk_gpu_of(c)->world->multicast;
  hk_device *d = hk_gpu_of(c)->device;
  int fd;
  HK_TRY(d->ops->multicast_share(d, m->object, &fd), out);
  HK_TRY(hk_host_lend(fd, m->bytes, false, &o->object), out);
  fd = hk_host_memfd("hocket-left", page());
  if (fd < 0) {
    rc = HK_FAIL_ERRNO("a page for the processes of a communicator");
    goto out;
  }
  rc = map_left(m, fd);
  if (rc != HK_OK)
    close(fd);
  else
    rc = hk_host_lend(fd, page(), false, &o->left);
out:
  return rc;
}

/* By rank 0. */
static hk_status make(ncclComm_t c, offer *o) {
  hk_status rc = HK_OK;
  hk_gpu_multicast *m = &hk_gpu_of(c)->world->multicast;
  hk_device *d = hk_gpu_of(c)->device;
  if (c->rank != 0) return HK_OK;
  choose_sizes(m, c);
  m->bytes = bytes_of(m, c->nranks);
  HK_TRY(d->ops->multicast_new(d, (unsigned)c->nranks, &m->bytes, &m->object), out);
  m->made = true;
  o->bytes = m->bytes;
  o->slot_bytes = m->slot_bytes;
  o->nslots = m->nslots;
  o->channels = m->channels;
  if (hk_gpu_of(c)->remote) rc = lend(c, o);
out:
  return rc;
}

/* By one rank of each process but rank 0's. */
static hk_status open_offered(ncclComm_t c, const offer *o) {
  hk_status rc = HK_OK;
  hk_gpu_multicast *m = &hk_gpu_of(c)->world->multicast;
  hk_device *d = hk_gpu_of(c)->device;
  size_t bytes;
  int fd = -1;
  for (int r = 0; r < c->rank; r++)
    if (c->peers[r].process == c->peers[c->rank].process) return HK_OK;
  if (c->rank == 0) return HK_OK;
  HK_TRY(hk_wire_file(c, 0, o->left, &fd, &bytes), out);
  HK_TRY(map_left(m, fd), out);
  close(fd);
  fd = -1;
  HK_TRY(hk_wire_file(c, 0, o->object, &fd, &bytes), out);
  HK_TRY(d->ops->multicast_open(d, fd, &m->object), out);
  m->made = true;
  m->bytes = o->bytes;
  m->slot_bytes = o->slot_bytes;
  m->nslots = (unsigned)o->nslots;
  m->channels = (unsigned)o->channels;
out:
  if (fd >= 0) close(fd);
  return rc;
}

hk_status hk_gpu_multicast_join(ncclComm_t c, const hk_gpu_fact *facts, size_t stride) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_multicast *m = &g->world->multicast;
  hk_device *d = g->device;
  offer o = {0};
  char why[120];
  bool all;
  if (c->nranks < 2) return HK_OK;
  look_against(c, facts, stride, why, sizeof why);
  if (why[0]) {
    HK_INFO(HK_SUB_NVLS, "rank %d: no sums in the switch: %s", c->rank, why);
    return HK_OK;
  }
  HK_TRY(all_could(c, make(c, &o), &o, &all), out);
  if (all && g->remote) HK_TRY(all_could(c, open_offered(c, &o), &o, &all), out);
  if (all) HK_TRY(all_could(c, d->ops->multicast_add(d, m->object), &o, &all), out);
  if (all)
    HK_TRY(all_could(c,
                     d->ops->multicast_bind(d, m->object, m->bytes, zeroed_of(m, c->nranks), &m->own[c->rank],
                                            &m->all[c->rank]),
                     &o, &all),
           out);
  g->in_switch = all;
  if (all) atomic_store(&m->bound, true);
  if (all)
    HK_INFO(HK_SUB_NVLS, "rank %d: sums in the switch: %u channels, %zu bytes on each GPU", c->rank, m->channels,
            m->bytes);
out:
  if (c->rank == 0) { /* whoever was to open them has */
    hk_host_take_back(o.object);
    hk_host_take_back(o.left);
  }
  return rc;
}

/* ---- the end ---- */

void hk_gpu_multicast_leave(ncclComm_t c) {
  if (!hk_gpu_of(c)->in_switch || !hk_gpu_of(c)->world->multicast.left) return;
  atomic_fetch_add(hk_gpu_of(c)->world->multicast.left, 1); /* release: our kernels have stored all that they will */
}

enum { PATIENCE_S = 2 };

/* Kernels of other processes may still be telling this one's memory what nobody waits for any more.  A process that has died
 * says nothing. */
static bool all_have_left(const hk_gpu_multicast *m, int nranks) {
  const hk_wait_env env = {0};
  hk_waiter w;
  if (!m->left || !atomic_load(&m->bound)) return true;
  const uint64_t until = hk_now_ns() + PATIENCE_S * UINT64_C(1000000000);
  hk_wait_begin(&w, &env);
  while (atomic_load(m->left) < nranks) /* acquire: see hk_gpu_multicast_leave */
    if (hk_now_ns() > until || hk_wait_nap(&w, -1, 100000) != HK_OK) return false;
  return true;
}

/* Failures to free are logged, and there is nothing else to do about them. */
void hk_gpu_multicast_free(hk_gpu_world *w) {
  hk_gpu_multicast *m = &w->multicast;
  bool over = all_have_left(m, w->nranks);
  hk_device *any = NULL;
  if (m->left) munmap(m->left, page());
  if (!m->made) return;
  if (!over) {
    HK_INFO(HK_SUB_NVLS, "%zu bytes on each GPU stay bound to a multicast object: not all processes have left it",
            m->bytes);
    return;
  }
  for (int r = 0; r < w->nranks; r++) {
    hk_device *d = w->devices[r];
    if (!d) continue;
    (void)d->ops->release(d, &m->all[r]);
    (void)d->ops->release(d, &m->own[r]);
    any = d;
  }
  (void)any->ops->multicast_free(any, m->object);
}
