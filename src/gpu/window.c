/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric windows: the teams of ranks, the windows' addresses and mappings, and the tables that kernels read. */
#include "window.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../device/host.h"
#include "../rma/windows.h"
#include "../transport/peer.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"

/* Windows as kernels read them. A kernel finds the window of an address in this table (ncclFindWindow).  NVIDIA's
 * device code defines the layout. */
enum { PAGE_WINDOWS = 32 };
typedef struct entry {
  uintptr_t begin, bytes; /* 0: free */
  hk_device_window *window;
} entry;
typedef struct page {
  entry entries[PAGE_WINDOWS];
  struct page *next;
  char pad[1024 - PAGE_WINDOWS * sizeof(entry) - sizeof(struct page *)];
  struct {
    hk_device_window window;
    char pad[128 - sizeof(hk_device_window)];
  } windows[PAGE_WINDOWS];
} page;
_Static_assert(offsetof(page, next) == 768 && offsetof(page, windows) == 1024 && sizeof(page) == 5120,
               "a table of 776 bytes, then windows in lines of their own");

/* Multicast memory of a team of ranks in an NVSwitch: an offset means that offset in all of their parts. */
typedef struct team {
  ncclTeam_t which;
  uint64_t object;
  hk_memory all;
  struct team *next;
} team;

typedef struct hk_gpu_window {
  hk_symmetric seen;
  uintptr_t user; /* address of this rank's memory, as registered */
  size_t bytes;
  size_t at;                  /* offset in each part */
  size_t begin, end;          /* range of offsets that all ranks' allocations take in each part */
  hk_memory *parts;           /* [ranks of the team] each rank's mapping */
  hk_memory own;              /* memory that the library allocated; empty: the memory is the user's */
  unsigned slot;              /* index of its entry in the pages of hk_gpu_space */
  struct hk_gpu_window *next; /* list sorted by `begin` */
} hk_gpu_window;

struct hk_gpu_space {
  pthread_mutex_t lock; /* windows may be dropped by any thread */
  char *base;           /* NULL: no window has been registered yet */
  size_t stride;
  hk_gpu_window *windows; /* sorted by `begin` */
  team *teams;
  hk_memory *pages; /* GPU memory, one `page` each */
  uint32_t *used;   /* bit mask of the used slots of each page */
  unsigned npages;
};

/* ---- teams ---- */

static const uint64_t stride_unit = UINT64_C(1) << 32; /* device code adds it to the upper half of an address */

static int window_common_divisor(int a, int b) { return b ? window_common_divisor(b, a % b) : a; }

/* The largest size of equal teams: the ranks of a team are successive and on one host. */
static int window_team_size(ncclComm_t c) {
  int size = (int)c->settings->LSA_TEAM_SIZE; /* equal on all ranks: hk_consistency_compare */
  for (int r = 0, run = 0; r < c->nranks; r++) {
    run++;
    if (r + 1 < c->nranks && c->peers[r + 1].host == c->peers[r].host) continue;
    size = window_common_divisor(run, size);
    run = 0;
  }
  return size;
}

static int window_first_of_team(ncclComm_t c) { return c->rank - c->rank % c->lsa.ranks; }

void hk_gpu_windows_begin(ncclComm_t c, const struct hk_facts *facts) {
  hk_gpu *g = hk_gpu_of(c);
  size_t most = 1;
  g->windows->usable = c->settings->WIN_ENABLE != 0;
  for (int r = 0; r < c->nranks; r++) {
    const hk_gpu_fact *f = hk_gpu_fact_of(facts, r);
    g->windows->usable = g->windows->usable && f->by_fd;
    if (f->window_stride > most) most = f->window_stride;
  }
  g->windows->stride = hk_round_up(most, stride_unit);
  c->lsa.ranks = g->windows->usable && !g->links->staged ? window_team_size(c) : 1;
  for (int i = 0; i < c->lsa.ranks; i++)
    g->windows->usable = g->windows->usable &&
                         (hk_gpu_by_file(g->links) || !hk_gpu_is_remote(c, window_first_of_team(c) + i));
  c->lsa.kernels = g->windows->usable && c->lsa.ranks == c->nranks; /* equal on all ranks, which are on one host */
  c->lsa.multimem = c->lsa.kernels && g->windows->multimem;
  HK_INFO(HK_SUB_INIT, "rank %d: LSA teams of %d ranks; kernels of users %s communicate, %s multicast memory", c->rank,
          c->lsa.ranks, c->lsa.kernels ? "can" : "cannot", c->lsa.multimem ? "with" : "without");
}

/* ---- the space ---- */

static hk_status window_space_of(ncclComm_t c, struct hk_gpu_space **out) {
  hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_space *s = g->windows->space;
  if (!s) {
    s = calloc(1, sizeof *s);
    if (!s) return HK_FAIL_ERRNO("no memory for windows");
    pthread_mutex_init(&s->lock, NULL);
    s->stride = g->windows->stride;
    g->windows->space = s;
  }
  if (!s->base)
    HK_OR_RETURN(g->device->ops->space->create(g->device, (size_t)c->lsa.ranks * s->stride, (void **)&s->base));
  *out = s;
  return HK_OK;
}

/* The lowest offset from `from` on with `bytes` free bytes; SIZE_MAX: none. */
static size_t window_find_room(struct hk_gpu_space *s, size_t from, size_t bytes) {
  pthread_mutex_lock(&s->lock);
  for (const hk_gpu_window *w = s->windows; w && w->begin < from + bytes; w = w->next)
    if (w->end > from) from = w->end;
  pthread_mutex_unlock(&s->lock);
  return bytes <= s->stride && from <= s->stride - bytes ? from : SIZE_MAX;
}

static void window_insert(struct hk_gpu_space *s, hk_gpu_window *w) {
  hk_gpu_window **at = &s->windows;
  while (*at && (*at)->begin < w->begin) at = &(*at)->next;
  w->next = *at;
  *at = w;
}

/* ---- what kernels read ---- */

static page *window_page_of(const struct hk_gpu_space *s, unsigned slot) { return s->pages[slot / PAGE_WINDOWS].base; }
static hk_device_window *window_in(const struct hk_gpu_space *s, unsigned slot) {
  return &window_page_of(s, slot)->windows[slot % PAGE_WINDOWS].window;
}
static entry *window_entry_in(const struct hk_gpu_space *s, unsigned slot) {
  return &window_page_of(s, slot)->entries[slot % PAGE_WINDOWS];
}

static hk_status window_add_page(hk_gpu *g, struct hk_gpu_space *s) {
  hk_status rc = HK_OK;
  if (!HK_RESERVE_NEXT(s->pages, s->npages) || !HK_RESERVE_NEXT(s->used, s->npages))
    return HK_FAIL_ERRNO("no memory for windows");
  hk_memory *new = &s->pages[s->npages];
  HK_TRY(g->device->ops->memory->alloc_open(g->device, sizeof(page), sizeof(page), new), out);
  if (s->npages) {
    page *last = s->pages[s->npages - 1].base;
    HK_TRY(g->device->ops->copy(g->device, &last->next, &new->base, sizeof new->base, g->queue), undo);
  }
  s->used[s->npages++] = 0;
  return HK_OK;
undo:
  (void)g->device->ops->memory->release(g->device, new);
out:
  return rc;
}

/* Under the lock. */
static hk_status window_publish(ncclComm_t c, hk_gpu_window *w, int flags) {
  hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_space *s = g->windows->space;
  unsigned p = 0;
  while (p < s->npages && s->used[p] == UINT32_MAX) p++;
  if (p == s->npages) HK_OR_RETURN(window_add_page(g, s));
  w->slot = p * PAGE_WINDOWS + (unsigned)__builtin_ctz(~s->used[p]);
  w->seen.image = (hk_device_window){.host = w,
                                     .flat = s->base + w->at,
                                     .lsa_rank = c->rank % c->lsa.ranks,
                                     .world_rank = c->rank,
                                     .stride_4g = (uint32_t)(s->stride / stride_unit),
                                     .multicast_4k = (uint32_t)(w->at / 4096),
                                     .flags = (uint32_t)flags,
                                     .segments = 1,
                                     .cft_endpoint = UINT32_MAX};
  hk_device_window *there = window_in(s, w->slot);
  const entry shown = {w->user, w->bytes, there};
  HK_OR_RETURN(hk_device_copy(g->device, there, &w->seen.image, sizeof *there, g->queue));
  HK_OR_RETURN(hk_device_copy(g->device, window_entry_in(s, w->slot), &shown, sizeof shown, g->queue));
  w->seen.handle = (ncclWindow_t)(void *)there;
  s->used[p] |= UINT32_C(1) << w->slot % PAGE_WINDOWS;
  return HK_OK;
}

static hk_status window_table(ncclComm_t c, void **out) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_space *s = NULL;
  HK_TRY(window_space_of(c, &s), out);
  pthread_mutex_lock(&s->lock);
  if (!s->npages) rc = window_add_page(g, s);
  *out = rc == HK_OK ? s->pages[0].base : NULL;
  pthread_mutex_unlock(&s->lock);
out:
  return rc;
}

/* ---- a window ---- */

/* A rank's row in the exchanges about a window. */
typedef struct row {
  uint64_t could;  /* the rank has completed the step */
  uint64_t before; /* bytes of the allocation before the window, and from the window's beginning on */
  uint64_t after;
  uint64_t address; /* for ranks of the same process */
  uint64_t region;  /* for ranks of other processes (device/host.h) */
  uint64_t place;   /* proposed offset for all ranks' allocations */
} row;

/* Completes a step on all ranks. *all: every rank could do it. */
static hk_status window_step(ncclComm_t c, row *rows, bool could, bool *all) {
  rows[c->rank].could = could;
  HK_OR_RETURN(hk_gpu_exchange(c, rows, sizeof *rows));
  *all = true;
  for (int r = 0; r < c->nranks; r++) *all = *all && rows[r].could;
  return HK_OK;
}

/* Fills the row with the window's allocation and its file.  False: others cannot map it; the reason is logged. */
static bool window_offer(ncclComm_t c, const hk_gpu_window *w, row *mine) {
  hk_device *d = hk_gpu_of(c)->device;
  hk_memory_share share = {.fd = -1};
  hk_pointer whose = {.device = -1};
  uintptr_t base = 0;
  const void *user = (const void *)w->user;
  const char *why = NULL;
  if (!user)
    why = hk_last_error(); /* error of the library's allocation */
  else if (!hk_gpu_of(c)->windows->usable)
    why = "memory does not go to other processes by file descriptor";
  else if (d->ops->memory->pointer(d, user, &whose) != HK_OK || whose.kind != HK_POINTER_DEVICE ||
           whose.device != d->limits.ordinal)
    why = "it is not memory of the communicator's GPU";
  else if (d->ops->share->offer_address(d, user, &share, &base) != HK_OK)
    why = hk_last_error();
  else if (share.kind != HK_MEMORY_VMM)
    why = "it is not virtual memory (cuMemCreate): give memory of ncclMemAlloc";
  else if (w->user + w->bytes > base + share.bytes)
    why = "it lies in several allocations";
  else if (hk_host_lend(share.fd, share.bytes, false, &mine->region) != HK_OK)
    why = hk_last_error();
  if (why) {
    HK_INFO(HK_SUB_REG, "rank %d: %zu bytes at %p are no window: %s", c->rank, w->bytes, user, why);
    if (share.fd >= 0 && !mine->region) close(share.fd);
    return false;
  }
  mine->before = w->user - base;
  mine->after = share.bytes - mine->before;
  mine->address = w->user;
  return true;
}

/* Chooses the window's offset: every rank proposes its lowest free offset, until all propose the same. */
static hk_status window_agree_on_place(ncclComm_t c, row *rows, hk_gpu_window *w, bool *all) {
  struct hk_gpu_space *s = NULL;
  size_t before = 0, after = 0, from = 0;
  bool aligned = true, same = false;
  for (int r = 0; r < c->nranks; r++) {
    if (rows[r].before > before) before = rows[r].before;
    if (rows[r].after > after) after = rows[r].after;
    aligned = aligned && (rows[r].before - rows[0].before) % HK_DEVICE_GRANULE == 0;
  }
  if (!aligned)
    HK_WARN("rank %d: the ranks' windows begin at different offsets in their allocations: give memory of ncclMemAlloc "
            "from its beginning. There is no window",
            c->rank);
  bool could = aligned && window_space_of(c, &s) == HK_OK;
  while (!same) {
    const size_t place = could ? window_find_room(s, from, before + after) : SIZE_MAX;
    if (could && place == SIZE_MAX)
      HK_WARN("rank %d: no room of %zu bytes in the %zu bytes of addresses for a rank's windows (NCCL_WIN_STRIDE)",
              c->rank, before + after, s->stride);
    rows[c->rank].place = place;
    HK_OR_RETURN(window_step(c, rows, place != SIZE_MAX, all));
    if (!*all) return HK_OK;
    same = true;
    for (int r = 0; r < c->nranks; r++) {
      if (rows[r].place > from) from = rows[r].place;
      same = same && rows[r].place == rows[0].place;
    }
  }
  w->begin = from;
  w->end = from + before + after;
  w->at = from + before;
  return HK_OK;
}

static hk_status window_map_part(ncclComm_t c, hk_gpu_window *w, int r, const row *theirs) {
  hk_status rc = HK_OK;
  const hk_gpu *g = hk_gpu_of(c);
  const bool here = !hk_gpu_is_remote(c, r);
  const int place = r - window_first_of_team(c);
  char *at = g->windows->space->base + (size_t)place * g->windows->space->stride + w->at - theirs->before;
  size_t bytes = theirs->before + theirs->after, file_bytes;
  int fd = -1;
  if (!here) HK_TRY(hk_wire_file(g->comm, r, theirs->region, &fd, &file_bytes), out);
  rc = g->device->ops->space->place(g->device, at, bytes, here ? (const void *)(uintptr_t)theirs->address : NULL, fd,
                                    &w->parts[place]);
out:
  if (fd >= 0) close(fd);
  return rc;
}

static hk_status window_attach(const hk_gpu *g, const team *t, const hk_gpu_window *w) {
  const hk_memory *own = &w->parts[w->seen.image.lsa_rank];
  const char *part = g->windows->space->base + (size_t)w->seen.image.lsa_rank * g->windows->space->stride;
  return g->device->ops->multicast->attach(g->device, t->object, (size_t)((char *)own->base - part), own);
}

static hk_status window_map_all(ncclComm_t c, hk_gpu_window *w, const row *rows, int flags) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  const int first = window_first_of_team(c);
  for (int r = first; r < first + c->lsa.ranks; r++) HK_TRY(window_map_part(c, w, r, &rows[r]), out);
  pthread_mutex_lock(&g->windows->space->lock);
  rc = window_publish(c, w, flags);
  for (const team *t = g->windows->space->teams; t && rc == HK_OK; t = t->next) rc = window_attach(g, t, w);
  window_insert(g->windows->space, w);
  pthread_mutex_unlock(&g->windows->space->lock);
out:
  return rc;
}

/* Frees a window, also a partial one after window_map_all has failed. */
static void window_forget(ncclComm_t c, hk_gpu_window *w) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  struct hk_gpu_space *s = g->windows->space;
  if (s) {
    pthread_mutex_lock(&s->lock);
    HK_LIST_REMOVE(s->windows, w, next);
    if (w->seen.handle) {
      (void)hk_device_copy(g->device, window_entry_in(s, w->slot), &(entry){0}, sizeof(entry), g->queue);
      s->used[w->slot / PAGE_WINDOWS] &= ~(UINT32_C(1) << w->slot % PAGE_WINDOWS);
    }
    for (int i = 0; w->parts && i < c->lsa.ranks; i++) {
      const char *part = s->base + (size_t)i * s->stride;
      for (const team *t = w->seen.handle && i == w->seen.image.lsa_rank ? s->teams : NULL; t; t = t->next)
        (void)ops->multicast->detach(g->device, t->object, (size_t)((char *)w->parts[i].base - part),
                                     w->parts[i].bytes);
      (void)ops->memory->release(g->device, &w->parts[i]);
    }
    pthread_mutex_unlock(&s->lock);
  }
  (void)ops->memory->release(g->device, &w->own);
  free(w->parts);
  free(w);
}

static void window_drop(ncclComm_t c, hk_symmetric *w) { window_forget(c, (hk_gpu_window *)(void *)w); }

/* Completes the window `w`, which has this rank's memory, if any. */
static hk_status window_add_window(ncclComm_t c, hk_gpu_window *w, int flags, hk_symmetric **out) {
  hk_status rc = HK_OK;
  bool all = false;
  row *rows = calloc((size_t)c->nranks, sizeof *rows);
  *out = NULL;
  if (!rows) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a window of %d ranks", c->nranks), out);
  HK_TRY(window_step(c, rows, window_offer(c, w, &rows[c->rank]), &all), out);
  if (all) HK_TRY(window_agree_on_place(c, rows, w, &all), out);
  if (all) HK_TRY(window_step(c, rows, window_map_all(c, w, rows, flags) == HK_OK, &all), out);
  if (all) {
    *out = &w->seen;
    HK_INFO(HK_SUB_REG, "rank %d: window %p of %zu bytes at %p, offset 0x%zx", c->rank, (void *)w->seen.handle,
            w->bytes, (void *)w->user, w->at);
  }
out:
  if (rows) hk_host_take_back(rows[c->rank].region); /* after all ranks have opened it */
  free(rows);
  if (!*out) window_forget(c, w);
  return rc;
}

static hk_gpu_window *window_new(ncclComm_t c, uintptr_t user, size_t bytes) {
  hk_gpu_window *w = calloc(1, sizeof *w);
  if (w) w->parts = calloc((size_t)c->lsa.ranks, sizeof *w->parts);
  if (w && !w->parts) {
    free(w);
    w = NULL;
  }
  if (!w) {
    (void)HK_FAIL_ERRNO("no memory for a window of %zu bytes", bytes);
    return NULL;
  }
  w->user = user;
  w->bytes = bytes;
  return w;
}

static hk_status window_add(ncclComm_t c, void *base, size_t bytes, int flags, hk_symmetric **out) {
  hk_gpu_window *w = window_new(c, (uintptr_t)base, bytes);
  return w ? window_add_window(c, w, flags, out) : HK_ERR_SYSTEM;
}

static hk_status window_add_memory(ncclComm_t c, size_t bytes, hk_symmetric **out) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_window *w = window_new(c, 0, bytes);
  if (!w) return HK_ERR_SYSTEM;
  if (g->device->ops->memory->alloc_shared(g->device, bytes, bytes, true, &w->own) == HK_OK)
    w->user = (uintptr_t)w->own.base;
  return window_add_window(c, w, NCCL_WIN_COLL_SYMMETRIC, out);
}

/* ---- multicast memory ---- */

/* Called by the team's first rank: makes the object and offers it to the others. */
static hk_status window_make_object(const hk_gpu *g, ncclTeam_t which, team *t, uint64_t *region) {
  int fd = -1;
  size_t bytes = g->windows->stride;
  HK_OR_RETURN(g->device->ops->multicast->create(g->device, (unsigned)which.nRanks, &bytes, &t->object));
  HK_OR_RETURN(g->device->ops->multicast->share(g->device, t->object, &fd));
  return hk_host_lend(fd, bytes, false, region);
}

static hk_status window_open_object(ncclComm_t c, int owner, uint64_t region, team *t) {
  hk_status rc = HK_OK;
  const hk_gpu *g = hk_gpu_of(c);
  size_t bytes;
  int fd = -1;
  if (hk_gpu_is_remote(c, owner))
    HK_TRY(hk_wire_file(g->comm, owner, region, &fd, &bytes), out);
  else
    fd = hk_host_export(region, &bytes);
  rc = g->device->ops->multicast->open(g->device, fd, &t->object);
out:
  if (fd >= 0) close(fd);
  return rc;
}

static hk_status window_bind_all(const hk_gpu *g, team *t) {
  hk_status rc = HK_OK;
  pthread_mutex_lock(&g->windows->space->lock);
  HK_TRY(g->device->ops->multicast->map(g->device, t->object, g->windows->stride, &t->all), out);
  for (const hk_gpu_window *w = g->windows->space->windows; w; w = w->next) HK_TRY(window_attach(g, t, w), out);
out:
  pthread_mutex_unlock(&g->windows->space->lock);
  return rc;
}

static void window_free_team(hk_gpu *g, team *t) {
  if (t->all.base)
    (void)g->device->ops->memory->release(g->device, &t->all); /* frees the object, too */
  else if (t->object)
    (void)g->device->ops->multicast->free(g->device, t->object);
  free(t);
}

static hk_status window_make_team(ncclComm_t c, ncclTeam_t which, team *t, bool *all) {
  hk_status rc = HK_OK;
  const hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_space *s;
  const int owner = c->rank - which.rank * which.stride;
  row *rows = calloc((size_t)c->nranks, sizeof *rows);
  if (!rows) return HK_FAIL_ERRNO("no memory for a team of %d ranks", which.nRanks);
  hk_status mine = window_space_of(c, &s);
  if (mine == HK_OK && which.rank == 0) mine = window_make_object(g, which, t, &rows[c->rank].region);
  HK_TRY(window_step(c, rows, mine == HK_OK, all), out);
  if (*all && which.rank != 0) mine = window_open_object(c, owner, rows[owner].region, t);
  if (*all && mine == HK_OK) mine = g->device->ops->multicast->add(g->device, t->object);
  if (*all) HK_TRY(window_step(c, rows, mine == HK_OK, all), out);
  if (*all) HK_TRY(window_step(c, rows, window_bind_all(g, t) == HK_OK, all), out);
out:
  hk_host_take_back(rows[c->rank].region);
  free(rows);
  return rc;
}

static hk_status window_multicast(ncclComm_t c, ncclTeam_t which, char **out) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  bool all = false;
  team *t = g->windows->space ? g->windows->space->teams : NULL;
  while (t && (t->which.nRanks != which.nRanks || t->which.stride != which.stride || t->which.rank != which.rank))
    t = t->next;
  *out = t ? t->all.base : NULL;
  if (t) return HK_OK;
  t = calloc(1, sizeof *t);
  if (!t) return HK_FAIL_ERRNO("no memory for a team of %d ranks", which.nRanks);
  t->which = which;
  rc = window_make_team(c, which, t, &all);
  if (rc != HK_OK || !all) {
    window_free_team(g, t);
    return rc;
  }
  pthread_mutex_lock(&g->windows->space->lock);
  t->next = g->windows->space->teams;
  g->windows->space->teams = t;
  pthread_mutex_unlock(&g->windows->space->lock);
  *out = t->all.base;
  return HK_OK;
}

/* ---- the end ---- */

void hk_gpu_windows_end(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_space *s = g->windows->space;
  if (!s) return;
  while (s->windows) window_forget(c, s->windows);
  while (s->teams) {
    team *t = s->teams;
    s->teams = t->next;
    window_free_team(g, t);
  }
  for (unsigned i = 0; i < s->npages; i++) (void)g->device->ops->memory->release(g->device, &s->pages[i]);
  if (s->base) (void)g->device->ops->space->free(g->device, s->base, (size_t)c->lsa.ranks * s->stride);
  pthread_mutex_destroy(&s->lock);
  free(s->pages);
  free(s->used);
  free(s);
}

size_t hk_gpu_windows_held(hk_gpu_windows *own) {
  size_t bytes = 0;
  if (!own->space) return 0;
  pthread_mutex_lock(&own->space->lock);
  for (const hk_gpu_window *w = own->space->windows; w; w = w->next) bytes += w->own.bytes;
  pthread_mutex_unlock(&own->space->lock);
  return bytes;
}

const hk_window_ops hk_gpu_window_ops = {.add = window_add,
                                         .add_memory = window_add_memory,
                                         .drop = window_drop,
                                         .multicast = window_multicast,
                                         .table = window_table};
