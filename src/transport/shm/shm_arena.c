/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the arena, its mapping, and the links in it: see shm_arena.h. */
#include "shm_arena.h"
#include <sys/mman.h>
#include "../status_page.h"
#include "shm.h"

enum {
  PAGE = 4096, /* of the layout; larger real pages only make it less sparse */
  COPIES = 16384,
  INCOMING = 2 << 20,
  PAIR = 2 * HK_CACHE_LINE, /* processors fetch lines in pairs, so data written by two ranks is a pair apart */
  FAILURE_AT = 0,
  CMA_AT = HK_CACHE_LINE,
  READS_AT = PAIR /* up to the header page's end */
};

static size_t shm_arena_control_bytes(uint32_t nslots) { return hk_round_up(nslots * sizeof(hk_slot), PAIR); }

/* The payloads of slot_bytes that a link of collectives uses. Those that all others send to a rank take at most
 * INCOMING bytes together, so that they stay in its caches: with 8 ranks on two cores an alltoall of 2 MiB takes 0.75
 * ms with 8 payloads, 0.50 with 2. At least two: one is filled while the other is read. Multicasts and sends use one
 * for each of nslots, because few of their FIFOs are in use at a time. */
static uint32_t shm_arena_payloads(const hk_shm_shape *shape) {
  uint64_t peers = shape->nranks - 1;
  uint32_t n = shape->nslots;
  while (n > 2 && n * peers * shape->slot_bytes > INCOMING) n /= 2;
  return n;
}

/* Each reader's cache has a copy of each sender's slots: those of one number take at most COPIES bytes, so that those
 * of all HK_MCAST_SLOTS numbers take a mebibyte. */
static uint32_t shm_arena_small_bytes(const hk_shm_shape *shape) {
  const size_t copies = (size_t)shape->nranks * (shape->nranks - 1);
  uint32_t bytes = HK_SLOT_SMALL_MOST;
  while (bytes > HK_SLOT_SMALL && bytes * copies > COPIES) bytes /= 2;
  return bytes;
}

void hk_shm_arena_layout(hk_shm_arena *a, const hk_shm_shape *shape) {
  size_t n = shape->nranks;
  *a = (hk_shm_arena){.shape = *shape};
  a->mcast_slots = shape->nslots > HK_MCAST_SLOTS ? shape->nslots : HK_MCAST_SLOTS;
  a->link_control = shm_arena_control_bytes(shape->nslots) + PAIR;
  a->mcast_control = shm_arena_control_bytes(a->mcast_slots) + hk_round_up(n * sizeof(hk_head), PAIR);
  a->large = hk_round_up(shape->nslots * shape->slot_bytes, PAGE);
  a->link_payload = a->large + (size_t)shape->nslots * HK_SLOT_SMALL_MOST;
  a->mcast_payload = a->large + (size_t)a->mcast_slots * shm_arena_small_bytes(shape);
  a->status_pages_at = PAGE;
  a->call_checks_at = hk_round_up(a->status_pages_at + n * sizeof(hk_status_page), PAIR);
  a->links_at = hk_round_up(a->call_checks_at + sizeof(hk_call_checks), PAGE);
  a->mcasts_at = hk_round_up(a->links_at + HK_CHANNEL_COUNT * n * n * a->link_control, PAGE);
  a->link_payload_at = hk_round_up(a->mcasts_at + HK_CHANNEL_COUNT * n * a->mcast_control, PAGE);
  a->mcast_payload_at = a->link_payload_at + HK_CHANNEL_COUNT * n * n * a->link_payload;
  a->bytes = a->mcast_payload_at + HK_CHANNEL_COUNT * n * a->mcast_payload;
}

bool hk_shm_arena_map(hk_shm_arena *a, int fd) {
  int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void *m = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (m == MAP_FAILED) return false;
  a->base = m;
  madvise(m, a->bytes, MADV_DONTDUMP); /* best effort: a core file should not contain terabytes of unused pages */
  return true;
}

void hk_shm_arena_unmap(hk_shm_arena *a) {
  if (a->base) munmap(a->base, a->bytes);
  a->base = NULL;
}

_Atomic(int) *hk_shm_arena_failure(const hk_shm_arena *a) {
  return a->base ? (_Atomic(int) *)(a->base + FAILURE_AT) : NULL;
}

hk_shm_cma_times *hk_shm_arena_cma(const hk_shm_arena *a) { return (hk_shm_cma_times *)(a->base + CMA_AT); }

_Atomic(uint8_t) *hk_shm_arena_reads(const hk_shm_arena *a, uint32_t index) {
  return index < PAGE - READS_AT ? (_Atomic(uint8_t) *)(a->base + READS_AT + index) : NULL;
}

hk_status_page *hk_shm_arena_status_page(const hk_shm_arena *a, uint32_t index) {
  return (hk_status_page *)(a->base + a->status_pages_at) + index;
}

hk_call_checks *hk_shm_arena_call_checks(const hk_shm_arena *a) {
  return (hk_call_checks *)(a->base + a->call_checks_at);
}

/* Sets the counters of an end: slots that all readers have given back, plus, for a sender, the slots that are filled
 * and not given back. */
static void shm_arena_resume(hk_link *link) {
  uint64_t head = UINT64_MAX, filled;
  for (uint32_t i = 0; i < link->nheads; i++) {
    /* acquire: as in hk_link_refresh_credit */
    uint64_t h = atomic_load_explicit(&link->heads[i].value, memory_order_acquire);
    if (h < head) head = h;
  }
  if (!link->nheads) head = 0;
  link->done = head;
  if (!hk_link_sends((hk_link_kind)link->kind)) return;
  for (filled = head; filled < head + link->mask + 1; filled++) /* relaxed: this end wrote it */
    if (atomic_load_explicit(&link->slots[filled & link->mask].seq, memory_order_relaxed) != (uint32_t)(filled + 1))
      break;
  link->done = filled;
  link->limit = head + link->mask + 1;
}

void hk_shm_arena_link(const hk_shm_arena *a, const hk_link_key *key, uint32_t self, uint32_t peer, hk_link *link) {
  size_t n = a->shape.nranks;
  bool sends = hk_link_sends((hk_link_kind)key->kind);
  uint32_t from = sends ? self : peer, to = sends ? peer : self;
  char *control;
  if (key->kind == HK_LINK_SEND || key->kind == HK_LINK_RECV) {
    size_t index = (key->channel * n + from) * n + to;
    control = a->base + a->links_at + index * a->link_control;
    link->payload = a->base + a->link_payload_at + index * a->link_payload;
    link->heads = (hk_head *)(control + shm_arena_control_bytes(a->shape.nslots));
    link->nheads = 1;
    link->mask = a->shape.nslots - 1;
    link->small_bytes = HK_SLOT_SMALL_MOST;
    link->area_mask = (key->channel == HK_CHANNEL_P2P ? a->shape.nslots : shm_arena_payloads(&a->shape)) - 1;
  } else {
    size_t index = key->channel * n + from;
    control = a->base + a->mcasts_at + index * a->mcast_control;
    link->payload = a->base + a->mcast_payload_at + index * a->mcast_payload;
    link->small_bytes = shm_arena_small_bytes(&a->shape);
    link->area_mask = a->shape.nslots - 1;
    link->mask = a->mcast_slots - 1;
    /* The readers' heads are dense: the sender has none. */
    link->heads = (hk_head *)(control + shm_arena_control_bytes(a->mcast_slots)) + (sends ? 0 : self - (self > from));
    link->nheads = sends ? (uint32_t)n - 1 : 1;
  }
  link->small = link->payload + a->large;
  link->slots = (hk_slot *)control;
  link->slot_bytes = (uint32_t)a->shape.slot_bytes;
  link->peer = key->peer;
  link->kind = key->kind;
  shm_arena_resume(link);
}
