/* SPDX-License-Identifier: Apache-2.0 */
/* Set-up and end of multicast memory. multicast.h has the layout. */
#include "multicast.h"
#include <stdlib.h>
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

hk_multicast_layout hk_multicast_layout_of(const hk_multicast *m) {
  hk_multicast_layout l = {0};
  const size_t n = (size_t)m->team.n, each = m->nslots * m->slot_bytes, words = m->nslots * HK_MULTICAST_WORD;
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
size_t hk_multicast_signals(const hk_multicast *m) { return m->channels * hk_multicast_layout_of(m).given; }
static size_t multicast_lines_of(const hk_multicast *m) { /* of a channel */
  return (size_t)m->team.n * m->nslots * HK_GPU_LL_LINES(HK_GPU_LL_MAX);
}
size_t hk_multicast_lines(const hk_multicast *m, unsigned channel) {
  if (channel >= HK_MULTICAST_LL_CHANNELS) return 0;
  return hk_multicast_signals(m) + channel * multicast_lines_of(m);
}
size_t hk_multicast_zeroed(const hk_multicast *m) {
  const size_t with = m->channels < HK_MULTICAST_LL_CHANNELS ? m->channels : HK_MULTICAST_LL_CHANNELS;
  return hk_multicast_signals(m) + with * multicast_lines_of(m);
}
size_t hk_multicast_data(const hk_multicast *m, unsigned channel) {
  const hk_multicast_layout l = hk_multicast_layout_of(m);
  return hk_multicast_zeroed(m) + channel * (l.end - l.given) - l.given;
}
static size_t multicast_bytes_of(const hk_multicast *m) {
  return hk_multicast_data(m, m->channels) + hk_multicast_layout_of(m).given;
}

static void multicast_choose_sizes(hk_multicast *m, const hk_transport_env *e, unsigned channels) {
  m->channels = channels < HK_GPU_SWITCH_CHANNELS ? channels : HK_GPU_SWITCH_CHANNELS;
  m->nslots = e->nslots < HK_GPU_SWITCH_SLOTS ? e->nslots : HK_GPU_SWITCH_SLOTS;
  m->slot_bytes = hk_gpu_switch_slot(e->slot_bytes, m->nslots, m->channels, m->team.n) & ~(size_t)63;
}

/* ---- the beginning ---- */

/* What the first rank of a team publishes about the object. */
typedef struct offer {
  uint64_t could, bytes, slot_bytes, nslots, channels;
  uint64_t object, left; /* regions (device/host.h) that other processes open; 0: there is one process */
} offer;

/* One rank's way through the steps. */
typedef struct joining {
  const hk_device_env *e;
  hk_multicast *m;
  const hk_multicast_team *team; /* NULL: it cannot take part */
  const char *why;               /* then */
  offer *offers;                 /* [nranks] */
  offer theirs;                  /* of the team's first rank */
  bool all;                      /* all ranks of all hosts have succeeded so far */
} joining;

static int multicast_first(const joining *j) { return j->team->rank[0]; }

/* Ends a step that each rank makes. The exchange also makes a rank's writes to *m visible to the other ranks of its
 * process. */
static hk_status multicast_all_could(joining *j, hk_status mine) {
  const int rank = j->e->env->rank, nranks = j->e->env->nranks;
  memset(j->offers, 0, (size_t)nranks * sizeof *j->offers);
  j->offers[rank] = j->theirs;
  j->offers[rank].could = mine == HK_OK;
  hk_status rc = j->e->exchange(j->e->arg, j->offers, sizeof *j->offers);
  for (int r = nranks - 1; r >= 0 && rc == HK_OK; r--) {
    if (j->offers[r].could) continue;
    j->all = false;
    HK_INFO(HK_SUB_INIT | HK_SUB_NVLS,
            "rank %d: no sums in the switch (NVLS), although the GPUs have them: rank %d could not join%s%s. Other "
            "algorithms are used; NCCL_NVLS_ENABLE=0 does not try",
            rank, r, r == rank ? ": " : "",
            r != rank ? ", and says why"
            : j->team ? hk_last_error()
                      : j->why);
  }
  if (j->team) j->theirs = j->offers[multicast_first(j)];
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

/* By the team's first rank. */
static hk_status multicast_make(joining *j, unsigned channels) {
  hk_status rc = HK_OK;
  hk_device *d = j->e->device;
  hk_multicast *m = j->m;
  if (j->e->env->rank != multicast_first(j)) return HK_OK;
  m->team = *j->team;
  multicast_choose_sizes(m, j->e->env, channels);
  m->bytes = multicast_bytes_of(m);
  HK_OR_RETURN(d->ops->multicast->create(d, (unsigned)m->team.n, &m->bytes, &m->object));
  m->made = true;
  j->theirs = (offer){.bytes = m->bytes, .slot_bytes = m->slot_bytes, .nslots = m->nslots, .channels = m->channels};
  if (m->team.processes) rc = multicast_offer_object(j->e, m, &j->theirs);
  return rc;
}

static hk_status multicast_open_left(const joining *j) {
  size_t bytes;
  int fd;
  HK_OR_RETURN(j->e->file(j->e->arg, multicast_first(j), j->theirs.left, &fd, &bytes));
  hk_status rc = multicast_map_left(j->m, fd);
  close(fd);
  return rc;
}

/* Opens the object in each process except that of the team's first rank: its first rank does. */
static hk_status multicast_open_offered(const joining *j) {
  const hk_device_env *e = j->e;
  const offer *o = &j->theirs;
  hk_multicast *m = j->m;
  size_t bytes;
  int fd;
  if (!j->team->processes || e->env->rank == multicast_first(j)) return HK_OK;
  for (int k = 0; j->team->rank[k] < e->env->rank; k++)
    if (e->peers[j->team->rank[k]].process) return HK_OK;
  m->team = *j->team;
  HK_OR_RETURN(multicast_open_left(j));
  HK_OR_RETURN(e->file(e->arg, multicast_first(j), o->object, &fd, &bytes));
  hk_status rc = e->device->ops->multicast->open(e->device, fd, &m->object);
  m->made = rc == HK_OK;
  m->bytes = o->bytes;
  m->slot_bytes = o->slot_bytes;
  m->nslots = (unsigned)o->nslots;
  m->channels = (unsigned)o->channels;
  close(fd);
  return rc;
}

static hk_status multicast_bind(const joining *j) {
  hk_multicast *m = j->m;
  hk_device *d = j->e->device;
  const int place = hk_multicast_place(j->team, j->e->env->rank);
  return d->ops->multicast->bind(d, m->object, m->bytes, hk_multicast_zeroed(m), &m->own[place], &m->all[place]);
}

hk_status hk_multicast_join(const hk_device_env *e, hk_multicast *m, const hk_multicast_team *team, const char *why,
                            unsigned channels, bool *all) {
  hk_status rc = HK_OK;
  hk_device *d = e->device;
  joining j = {.e = e, .m = m, .team = team, .why = why, .all = true};
  uint64_t object = 0, left = 0;
  j.offers = calloc((size_t)e->env->nranks, sizeof *j.offers);
  if (!j.offers) return HK_FAIL_ERRNO("no memory for %d ranks' multicast memory", e->env->nranks);
  const hk_status made = team ? multicast_make(&j, channels) : HK_ERR_ARGUMENT;
  object = j.theirs.object;
  left = j.theirs.left;
  HK_TRY(multicast_all_could(&j, made), out);
  if (j.all && e->processes) HK_TRY(multicast_all_could(&j, multicast_open_offered(&j)), out);
  if (j.all) HK_TRY(multicast_all_could(&j, d->ops->multicast->add(d, m->object)), out);
  if (j.all) HK_TRY(multicast_all_could(&j, multicast_bind(&j)), out);
  if (j.all) atomic_store(&m->bound, true);
  if (j.all)
    HK_INFO(HK_SUB_NVLS, "rank %d: sums in the switch: %u channels, %zu bytes on each GPU", e->env->rank, m->channels,
            m->bytes);
out:
  hk_host_take_back(object); /* every rank that needs them has opened them */
  hk_host_take_back(left);
  free(j.offers);
  *all = j.all;
  return rc;
}

/* ---- the end ---- */

void hk_multicast_leave(hk_multicast *m) {
  if (m->left) atomic_fetch_add(m->left, 1); /* release: this rank's kernels have made all their stores */
}

enum { PATIENCE_S = 2 };

/* Kernels of other processes may still store signals in this process's memory, for which no rank waits any more. So
 * waits until all ranks have left, within a limit, because a process that has died reports nothing. */
static bool multicast_all_have_left(const hk_multicast *m) {
  const hk_wait_env env = {0};
  hk_waiter w;
  if (!m->left || !atomic_load(&m->bound)) return true;
  const uint64_t until = hk_now_ns() + PATIENCE_S * UINT64_C(1000000000);
  hk_wait_begin(&w, &env);
  while (atomic_load(m->left) < m->team.n) /* acquire: see hk_multicast_leave */
    if (hk_now_ns() > until || hk_wait_nap(&w, -1, 100000) != HK_OK) return false;
  return true;
}

/* Failures to free are logged; nothing else can be done about them. */
void hk_multicast_free(hk_multicast *m, hk_device *const *devices) {
  bool over = multicast_all_have_left(m);
  hk_device *any = NULL;
  if (m->left) munmap(m->left, multicast_page());
  if (!m->made) return;
  if (!over) {
    HK_INFO(HK_SUB_NVLS, "%zu bytes on each GPU stay bound to a multicast object: not all processes have left it",
            m->bytes);
    return;
  }
  for (int k = 0; k < m->team.n; k++) {
    hk_device *d = devices[m->team.rank[k]];
    if (!d) continue;
    (void)d->ops->memory->release(d, &m->all[k]);
    (void)d->ops->memory->release(d, &m->own[k]);
    any = d;
  }
  (void)any->ops->multicast->free(any, m->object);
}
