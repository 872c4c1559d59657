/* SPDX-License-Identifier: Apache-2.0 */
/* Set-up and end of multicast memory. multicast.h has the layout. */
#include "multicast.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../base/log.h"
#include "../../device/host.h"
#include "../device_links.h"
#include "../transport.h"

/* ---- the layout ---- */

static size_t multicast_whole_lines(size_t bytes) {
  return (bytes + HK_MULTICAST_LINE - 1) / HK_MULTICAST_LINE * HK_MULTICAST_LINE;
}

hk_multicast_layout hk_multicast_layout_of(const hk_multicast *m, int nranks) {
  hk_multicast_layout l = {0};
  const size_t n = (size_t)nranks, each = m->nslots * m->slot_bytes, words = m->nslots * HK_MULTICAST_WORD;
  l.part_done = 4 * n * HK_MULTICAST_LINE;
  l.word = l.part_done + 2 * HK_MULTICAST_LINE;
  l.adds = l.word + multicast_whole_lines(n * n * words);
  l.reads = l.adds + n * HK_MULTICAST_LINE;
  l.part_word = l.reads + n * n * HK_MULTICAST_LINE;
  l.part_head = l.part_word + multicast_whole_lines(n * words);
  l.given = l.part_head + n * HK_MULTICAST_LINE;
  l.sums = l.given + n * each;
  l.part = l.sums + n * each;
  l.end = l.part + each;
  return l;
}
size_t hk_multicast_signals(const hk_multicast *m, int nranks) {
  return m->channels * hk_multicast_layout_of(m, nranks).given;
}
static size_t multicast_lines_of(const hk_multicast *m, int nranks) { /* of a channel */
  return (size_t)nranks * m->nslots * HK_GPU_LL_LINES(HK_GPU_LL_MAX);
}
size_t hk_multicast_lines(const hk_multicast *m, int nranks, unsigned channel) {
  if (channel >= HK_MULTICAST_LL_CHANNELS) return 0;
  return hk_multicast_signals(m, nranks) + channel * multicast_lines_of(m, nranks);
}
size_t hk_multicast_zeroed(const hk_multicast *m, int nranks) {
  const size_t with = m->channels < HK_MULTICAST_LL_CHANNELS ? m->channels : HK_MULTICAST_LL_CHANNELS;
  return hk_multicast_signals(m, nranks) + with * multicast_lines_of(m, nranks);
}
size_t hk_multicast_data(const hk_multicast *m, int nranks, unsigned channel) {
  const hk_multicast_layout l = hk_multicast_layout_of(m, nranks);
  return hk_multicast_zeroed(m, nranks) + channel * (l.end - l.given) - l.given;
}
static size_t multicast_bytes_of(const hk_multicast *m, int nranks) {
  return hk_multicast_data(m, nranks, m->channels) + hk_multicast_layout_of(m, nranks).given;
}

static void multicast_choose_sizes(hk_multicast *m, const hk_transport_env *e, unsigned channels) {
  m->channels = channels < HK_GPU_SWITCH_CHANNELS ? channels : HK_GPU_SWITCH_CHANNELS;
  m->nslots = e->nslots < HK_GPU_SWITCH_SLOTS ? e->nslots : HK_GPU_SWITCH_SLOTS;
  m->slot_bytes = hk_gpu_switch_slot(e->slot_bytes, m->nslots, m->channels, e->nranks) & ~(size_t)63;
}

/* ---- the beginning ---- */

/* What rank 0 publishes about the object. */
typedef struct offer {
  uint64_t could, bytes, slot_bytes, nslots, channels;
  uint64_t object, left; /* regions (device/host.h) that other processes open; 0: there is one process */
} offer;

/* Ends a step that each rank makes. *all: all ranks succeeded. The exchange also makes a rank's writes to *m visible to
 * the other ranks of its process. *o becomes rank 0's offer. */
static hk_status multicast_all_could(const hk_device_env *e, hk_status mine, offer *o, bool *all) {
  offer offers[HK_MULTICAST_RANKS] = {{0}};
  const int rank = e->env->rank;
  *all = true;
  offers[rank] = *o;
  offers[rank].could = mine == HK_OK;
  hk_status rc = e->exchange(e->arg, offers, sizeof *offers);
  for (int r = e->env->nranks - 1; r >= 0 && rc == HK_OK; r--) {
    if (offers[r].could) continue;
    *all = false;
    HK_INFO(HK_SUB_INIT | HK_SUB_NVLS,
            "rank %d: no sums in the switch (NVLS), although the GPUs have them: rank %d could not join%s%s. Other "
            "algorithms are used; NCCL_NVLS_ENABLE=0 does not try",
            rank, r, r == rank ? ": " : "", r == rank ? hk_last_error() : ", and says why");
  }
  *o = offers[0];
  return rc;
}

static size_t multicast_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static hk_status multicast_map_left(hk_multicast *m, int fd) {
  void *at = mmap(NULL, multicast_page(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return HK_FAIL_ERRNO("mapping a page that processes share");
  m->left = at;
  return HK_OK;
}

/* Offers the object to the processes of other ranks. */
static hk_status multicast_offer_object(const hk_device_env *e, hk_multicast *m, offer *o) {
  hk_status rc = HK_OK;
  int fd;
  HK_OR_RETURN(e->device->ops->multicast->share(e->device, m->object, &fd));
  HK_OR_RETURN(hk_host_lend(fd, m->bytes, false, &o->object));
  fd = hk_host_memfd("hocket-left", multicast_page());
  if (fd < 0) return HK_FAIL_ERRNO("a page for the processes of a communicator");
  rc = multicast_map_left(m, fd);
  if (rc != HK_OK)
    close(fd);
  else
    rc = hk_host_lend(fd, multicast_page(), false, &o->left);
  return rc;
}

/* By rank 0. */
static hk_status multicast_make(const hk_device_env *e, hk_multicast *m, unsigned channels, offer *o) {
  hk_status rc = HK_OK;
  hk_device *d = e->device;
  if (e->env->rank != 0) return HK_OK;
  multicast_choose_sizes(m, e->env, channels);
  m->bytes = multicast_bytes_of(m, e->env->nranks);
  HK_OR_RETURN(d->ops->multicast->create(d, (unsigned)e->env->nranks, &m->bytes, &m->object));
  m->made = true;
  o->bytes = m->bytes;
  o->slot_bytes = m->slot_bytes;
  o->nslots = m->nslots;
  o->channels = m->channels;
  if (e->processes) rc = multicast_offer_object(e, m, o);
  return rc;
}

static hk_status multicast_open_left(const hk_device_env *e, hk_multicast *m, const offer *o) {
  size_t bytes;
  int fd;
  HK_OR_RETURN(e->file(e->arg, 0, o->left, &fd, &bytes));
  hk_status rc = multicast_map_left(m, fd);
  close(fd);
  return rc;
}

/* Called by one rank of each process except rank 0's. */
static hk_status multicast_open_offered(const hk_device_env *e, hk_multicast *m, const offer *o) {
  size_t bytes;
  int fd;
  for (int r = 0; r < e->env->rank; r++)
    if (e->peers[r].process) return HK_OK;
  if (e->env->rank == 0) return HK_OK;
  HK_OR_RETURN(multicast_open_left(e, m, o));
  HK_OR_RETURN(e->file(e->arg, 0, o->object, &fd, &bytes));
  hk_status rc = e->device->ops->multicast->open(e->device, fd, &m->object);
  m->made = rc == HK_OK;
  m->bytes = o->bytes;
  m->slot_bytes = o->slot_bytes;
  m->nslots = (unsigned)o->nslots;
  m->channels = (unsigned)o->channels;
  close(fd);
  return rc;
}

hk_status hk_multicast_join(const hk_device_env *e, hk_multicast *m, unsigned channels, bool *all) {
  hk_status rc = HK_OK;
  hk_device *d = e->device;
  const int rank = e->env->rank;
  offer o = {0};
  HK_TRY(multicast_all_could(e, multicast_make(e, m, channels, &o), &o, all), out);
  if (*all && e->processes) HK_TRY(multicast_all_could(e, multicast_open_offered(e, m, &o), &o, all), out);
  if (*all) HK_TRY(multicast_all_could(e, d->ops->multicast->add(d, m->object), &o, all), out);
  if (*all)
    HK_TRY(multicast_all_could(e,
                               d->ops->multicast->bind(d, m->object, m->bytes, hk_multicast_zeroed(m, e->env->nranks),
                                                       &m->own[rank], &m->all[rank]),
                               &o, all),
           out);
  if (*all) atomic_store(&m->bound, true);
  if (*all)
    HK_INFO(HK_SUB_NVLS, "rank %d: sums in the switch: %u channels, %zu bytes on each GPU", rank, m->channels,
            m->bytes);
out:
  if (rank == 0) { /* every rank that needs them has opened them */
    hk_host_take_back(o.object);
    hk_host_take_back(o.left);
  }
  return rc;
}

/* ---- the end ---- */

void hk_multicast_leave(hk_multicast *m) {
  if (m->left) atomic_fetch_add(m->left, 1); /* release: this rank's kernels have made all their stores */
}

enum { PATIENCE_S = 2 };

/* Kernels of other processes may still store signals in this process's memory, for which no rank waits any more. So
 * waits until all ranks have left, within a limit, because a process that has died reports nothing. */
static bool multicast_all_have_left(const hk_multicast *m, int nranks) {
  const hk_wait_env env = {0};
  hk_waiter w;
  if (!m->left || !atomic_load(&m->bound)) return true;
  const uint64_t until = hk_now_ns() + PATIENCE_S * UINT64_C(1000000000);
  hk_wait_begin(&w, &env);
  while (atomic_load(m->left) < nranks) /* acquire: see hk_multicast_leave */
    if (hk_now_ns() > until || hk_wait_nap(&w, -1, 100000) != HK_OK) return false;
  return true;
}

/* Failures to free are logged; nothing else can be done about them. */
void hk_multicast_free(hk_multicast *m, hk_device *const *devices, int nranks) {
  bool over = multicast_all_have_left(m, nranks);
  hk_device *any = NULL;
  if (m->left) munmap(m->left, multicast_page());
  if (!m->made) return;
  if (!over) {
    HK_INFO(HK_SUB_NVLS, "%zu bytes on each GPU stay bound to a multicast object: not all processes have left it",
            m->bytes);
    return;
  }
  for (int r = 0; r < nranks; r++) {
    hk_device *d = devices[r];
    if (!d) continue;
    (void)d->ops->memory->release(d, &m->all[r]);
    (void)d->ops->memory->release(d, &m->own[r]);
    any = d;
  }
  (void)any->ops->multicast->free(any, m->object);
}
