/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of registrations of memory that the user has not registered.
 *
 * Operations announce their buffers (hk_ib_cache_expect), so that an entry is a whole buffer, not the chunks that the
 * provider gets. A buffer is registered once HK_IB_CACHE_DUE bytes of it were sent or received: at once if it is as
 * large as that, else after several calls. By then copies have cost about as much as the registration does, so memory
 * that is used once more or never loses at most that. The figure is an estimate: registering takes about 0.15 ms (two
 * calls of the kernel, a look at the process's mappings) and 0.2 us a page, a copy 0.4 us a page: for 4 MiB that is
 * 0.35 and 0.4 ms. If entries end before they were used four times, because the program frees its buffers after each
 * operation, the limit doubles each time.
 *
 * Validity. hk_ib_cache_holds asks base/unmap.h each time that an operation refers to a chunk or offers a place. An
 * operation's memory stays mapped while it runs, so later, when the request is posted, it is enough that no change is
 * known: a change that concerns this data had been reported before the operation began. The watch begins before a
 * device registers the memory, so the device has the pages that the watch is about.
 *
 * An entry that is not valid, or has to go, leaves the list at once. It is deregistered when no request and no place
 * that was announced uses it any more (is_used). That is never done by the thread that reads the kernel's reports. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../base/log.h"
#include "../../base/param.h"
#include "../../base/thread.h"
#include "../../base/unmap.h"
#include "ib.h"

enum { SEEN = 64, PAID = 4, REFUSED_AGAIN = 16 };

typedef struct entry {
  struct entry *next;
  uintptr_t begin, end;
  hk_unmap_range range;
  uint64_t uses;
  bool refused;                /* by a device: it is copied */
  hk_ibv_mr *mrs[HK_IB_PORTS]; /* for each device; NULL: not registered yet */
} entry;

/* A buffer that was sent or received, and is not registered. */
typedef struct seen {
  uintptr_t begin; /* 0: none */
  uint64_t copied, due, when;
} seen;

struct hk_ib_cache {
  uint64_t most;   /* bytes that the process may watch */
  hk_unmap *unmap; /* NULL: not opened yet */
  bool off;        /* it cannot be */
  entry *entries;  /* the last used first */
  entry *retired;
  uint64_t due, calls;
  uint64_t marks; /* hk_unmap_marks at the last sweep */
  seen seen[SEEN];
  uint32_t made, gone, evicted, refused;
};

void hk_ib_cache_init(hk_ib_ctx *x) {
  uint64_t most = (uint64_t)hk_param_int(HK_P_IB_CACHE) << 20;
  if (!most) return;
  const char *why = NULL;
  if (x->scarce) /* connections need it, and cannot do without */
    why = "the memory that this process may lock is limited";
  else if (!x->api->is_fork_initialized || x->api->is_fork_initialized() != HK_IBV_FORK_UNNEEDED)
    why = "libibverbs would keep registered memory from children of fork";
  else if (!(x->cache = calloc(1, sizeof *x->cache)))
    why = "no memory";
  if (why)
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: HOCKET_IB_CACHE has no effect: %s", x->env->rank, why);
  else
    *x->cache = (struct hk_ib_cache){.most = most, .due = HK_IB_CACHE_DUE};
}

bool hk_ib_cache_any(const hk_ib_ctx *x) { return x->cache && x->cache->entries; }

/* ---- entries that go ---- */

static bool contains(const entry *e, const void *data) {
  return (uintptr_t)data >= e->begin && (uintptr_t)data < e->end;
}

/* Requests that are under way, and places to which the peer may still write. */
static bool is_used_by(const entry *e, hk_ib_conn *c) {
  for (uint64_t k = c->given; c->send && k < c->posted; k++) {
    const hk_slot *s = hk_net_slot(c->send, k);
    if (s->flags & HK_SLOT_REF && contains(e, hk_net_slot_data(c->send, k))) return true;
  }
  for (uint64_t k = c->recv ? c->recv->next : 0; c->recv && k < c->offered; k++) {
    const hk_ib_offered *o = &c->offers[k % HK_IB_PLACES];
    if (o->slot == k + 1 && o->announced && contains(e, o->to)) return true;
  }
  return false;
}
static bool is_used(const hk_ib_ctx *x, const entry *e) {
  for (uint32_t i = 0; i < x->room; i++)
    if (x->conns[i] && is_used_by(e, x->conns[i])) return true;
  return false;
}

static void forget(hk_ib_ctx *x, entry *e) {
  for (int i = 0; i < HK_IB_PORTS; i++) hk_ib_unregister(x, &e->mrs[i]);
  hk_unmap_forget(x->cache->unmap, &e->range);
  free(e);
}

/* Takes *at out of the list. */
static void retire(hk_ib_ctx *x, entry **at, bool gone) {
  struct hk_ib_cache *c = x->cache;
  entry *e = *at;
  *at = e->next;
  e->next = c->retired;
  c->retired = e;
  c->gone += gone;
  if (gone && e->uses < PAID && c->due < HK_IB_CACHE_DUE_MOST)
    c->due *= 2;
  else if (gone && e->uses >= PAID && c->due > HK_IB_CACHE_DUE)
    c->due /= 2;
  if (!c->entries) hk_ib_memory_changed(x);
}

static void free_retired(hk_ib_ctx *x) {
  for (entry **at = &x->cache->retired; *at;) {
    entry *e = *at;
    if (is_used(x, e)) {
      at = &e->next;
      continue;
    }
    *at = e->next;
    forget(x, e);
  }
}

void hk_ib_cache_sweep(hk_ib_ctx *x) {
  struct hk_ib_cache *c = x->cache;
  if (!c || !c->unmap) return;
  const uint64_t marks = hk_unmap_marks(c->unmap);
  for (entry **at = &c->entries; *at && marks != c->marks;)
    if (hk_unmap_known_gone(c->unmap, &(*at)->range))
      retire(x, at, true);
    else
      at = &(*at)->next;
  c->marks = marks;
  free_retired(x);
}

void hk_ib_cache_leave(hk_ib_ctx *x, const hk_ib_device *d) {
  if (!x->cache) return;
  const int i = (int)(d - x->devices);
  for (entry *e = x->cache->entries; e; e = e->next) {
    hk_ib_unregister(x, &e->mrs[i]);
    e->refused = false;
  }
  for (entry *e = x->cache->retired; e; e = e->next) hk_ib_unregister(x, &e->mrs[i]);
}

void hk_ib_cache_free(hk_ib_ctx *x) {
  struct hk_ib_cache *c = x->cache;
  if (!c) return;
  HK_INFO(HK_SUB_NET,
          "rank %d: RDMA devices were given %u buffers that the user has not registered; %u went with their memory, "
          "%u made room for others, %u were refused",
          x->env->rank, c->made, c->gone, c->evicted, c->refused);
  while (c->entries) retire(x, &c->entries, false);
  for (entry *e; (e = c->retired);) {
    c->retired = e->next;
    forget(x, e);
  }
  hk_unmap_close(c->unmap);
  free(c);
}

/* ---- buffers that operations use ---- */

static bool is_open(hk_ib_ctx *x) {
  struct hk_ib_cache *c = x->cache;
  char why[HK_UNMAP_WHY];
  if (c->unmap || c->off) return c->unmap;
  c->unmap = hk_unmap_open(why);
  c->off = !c->unmap;
  if (c->off)
    HK_INFO(HK_SUB_NET, "rank %d: HOCKET_IB_CACHE has no effect, because unmapped memory would not be noticed: %s",
            x->env->rank, why);
  return c->unmap;
}

/* The last entry in the list that has not the newest buffer. Returns false if there is none. */
static bool evict(hk_ib_ctx *x) {
  struct hk_ib_cache *c = x->cache;
  entry **at = &c->entries;
  if (!*at) return false;
  while ((*at)->next) at = &(*at)->next;
  c->evicted++;
  retire(x, at, false);
  free_retired(x);
  return true;
}

static seen *seen_of(struct hk_ib_cache *c, uintptr_t begin) {
  seen *oldest = c->seen;
  for (seen *s = c->seen; s < c->seen + SEEN; s++) {
    if (s->begin == begin) return s;
    if (s->when < oldest->when) oldest = s;
  }
  *oldest = (seen){.begin = begin, .due = c->due};
  return oldest;
}

static void add(hk_ib_ctx *x, const void *base, size_t bytes, seen *s) {
  struct hk_ib_cache *c = x->cache;
  char why[HK_UNMAP_WHY] = "";
  hk_unmap_result r = HK_UNMAP_FULL;
  const uintptr_t begin = (uintptr_t)base;
  if (bytes > c->most || !is_open(x)) return;
  entry *e = calloc(1, sizeof *e);
  if (!e) return;
  do r = hk_unmap_watch(c->unmap, base, bytes, c->most, &e->range, why);
  while (r == HK_UNMAP_FULL && evict(x));
  if (r != HK_UNMAP_WATCHED) {
    free(e);
    if (r == HK_UNMAP_BUSY) return;
    s->copied = 0;
    s->due = c->due * REFUSED_AGAIN;
    c->refused++;
    HK_TRACE(HK_SUB_NET, "rank %d: %zu bytes at %p are copied: %s", x->env->rank, bytes, base,
             r == HK_UNMAP_FULL ? "HOCKET_IB_CACHE is full" : why);
    return;
  }
  *s = (seen){0};
  for (entry **at = &c->entries; *at;) /* parts of the new one */
    if ((*at)->begin >= begin && (*at)->end <= begin + bytes)
      retire(x, at, false);
    else
      at = &(*at)->next;
  e->begin = begin;
  e->end = begin + bytes;
  e->next = c->entries;
  c->entries = e;
  c->made++;
  hk_ib_memory_changed(x);
}

/* The entry that contains the data and whose memory is the same for certain. *busy: there may be one. */
static entry **find(hk_ib_ctx *x, const void *data, size_t bytes, bool *busy) {
  struct hk_ib_cache *c = x->cache;
  entry **at = &c->entries;
  *busy = false;
  while (*at) {
    hk_unmap_state is = HK_UNMAP_SAME;
    const bool covers = contains(*at, data) && bytes <= (*at)->end - (uintptr_t)data;
    if (covers) is = hk_unmap_look(c->unmap, &(*at)->range);
    if (is == HK_UNMAP_GONE) {
      retire(x, at, true);
      continue;
    }
    *busy = is == HK_UNMAP_UNKNOWN;
    if (covers) return *busy ? NULL : at;
    at = &(*at)->next;
  }
  return NULL;
}

void hk_ib_cache_expect(void *ctx, const void *base, size_t bytes) {
  hk_ib_ctx *x = ctx;
  bool busy;
  if (!x->cache || bytes < HK_IB_CACHE_LEAST) return;
  hk_cancel_hold(); /* files are opened */
  pthread_mutex_lock(&x->lock);
  struct hk_ib_cache *c = x->cache;
  hk_ib_cache_sweep(x);
  entry **at = find(x, base, bytes, &busy), *e = at ? *at : NULL;
  if (e) {
    *at = e->next;
    e->next = c->entries;
    c->entries = e;
    e->uses++;
  } else if (!busy && !c->off) {
    seen *s = seen_of(c, (uintptr_t)base);
    s->when = ++c->calls;
    s->copied += bytes;
    if (s->copied >= s->due) add(x, base, bytes, s);
  }
  pthread_mutex_unlock(&x->lock);
}

/* ---- data ---- */

bool hk_ib_cache_holds(hk_ib_ctx *x, const void *data, size_t bytes) {
  bool busy;
  if (!hk_ib_cache_any(x)) return false;
  entry **at = find(x, data, bytes, &busy);
  return at && !(*at)->refused;
}

static void register_entry(hk_ib_ctx *x, hk_ib_device *d, entry *e) {
  char why[160];
  const size_t bytes = e->end - e->begin;
  hk_ibv_mr *mr = hk_ib_try_register(x, d, (void *)e->begin, bytes, true, why);
  e->mrs[d - x->devices] = mr;
  e->refused = e->refused || !mr;
  if (mr) return;
  x->cache->refused++;
  HK_INFO_ONCE(HK_SUB_NET, "rank %d: %s: messages from and to such memory are copied", x->env->rank, why);
}

hk_ibv_mr *hk_ib_cache_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes) {
  if (!hk_ib_cache_any(x) || d->gone) return NULL;
  entry *e = x->cache->entries;
  while (e &&
         (!contains(e, data) || bytes > e->end - (uintptr_t)data || hk_unmap_known_gone(x->cache->unmap, &e->range)))
    e = e->next;
  if (!e) return NULL;
  if (!e->mrs[d - x->devices] && !e->refused) register_entry(x, d, e);
  return e->mrs[d - x->devices];
}
