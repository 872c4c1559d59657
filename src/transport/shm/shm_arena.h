/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The arena of the shm transport: one mapping that all ranks of a group share. Its layout follows from the group's size
 * and the slots' geometry alone, so no rank has to send addresses.
 *
 *   header           the failure word; how long it takes to read other ranks' memory; a byte for each rank: it can read
 *                    the memory of all others
 *   status page      of each rank, then the call checks
 *   link control     [channel][sender][receiver]: slot headers, then the head
 *   multicast control [channel][sender]: slot headers, then a head for each reader
 *   link payload     [channel][sender][receiver]: the large ones, then the small ones
 *   multicast payload [channel][sender]: likewise
 *
 * It is sparse: only pages that are touched cost memory.  Control is dense, so that a rank with many links touches few
 * pages; payload is page-aligned.  Zeroed memory is an empty FIFO, so there is nothing to initialize.
 */
#pragma once
#include "../transport.h"

struct hk_status_page;
struct hk_call_checks;

typedef struct hk_shm_shape {
  uint32_t nranks; /* of the group */
  uint32_t nslots;
  uint64_t slot_bytes;
} hk_shm_shape;

typedef struct hk_shm_arena {
  char *base; /* NULL: not mapped */
  hk_shm_shape shape;
  size_t link_control, mcast_control;        /* bytes of one */
  size_t large, link_payload, mcast_payload; /* bytes of the large payloads of one; of all of a link, of a multicast */
  uint32_t mcast_slots;                      /* headers of a multicast FIFO */
  size_t status_pages_at, call_checks_at, links_at, mcasts_at, link_payload_at, mcast_payload_at;
  size_t bytes;
} hk_shm_arena;

/* Fills the layout (offsets and sizes in bytes); maps nothing. */
void hk_shm_arena_layout(hk_shm_arena *a, const hk_shm_shape *shape);
/* Maps `fd`, or private memory if fd is -1 (for ranks of one process). Returns false with errno. */
bool hk_shm_arena_map(hk_shm_arena *a, int fd);
void hk_shm_arena_unmap(hk_shm_arena *a); /* does nothing if it is not mapped */

/* The parts of a mapped arena. `index` is a rank's index in the group. */
_Atomic(int) *hk_shm_arena_failure(const hk_shm_arena *a); /* NULL if it is not mapped */
/* Of process_vm_readv, measured on this host (shm_measure.c). */
typedef struct hk_shm_cma_times {
  _Atomic(uint32_t) from; /* the least size in bytes from which it is faster than slots; UINT32_MAX: it never is */
  _Atomic(uint32_t) time; /* of a copy by it, in thousandths of one by a core; 0: not measured */
} hk_shm_cma_times;
hk_shm_cma_times *hk_shm_arena_cma(const hk_shm_arena *a);
/* The byte with which a rank publishes that it reads the memory of all others (shm_cma.c); NULL for indices beyond the
 * header page. */
_Atomic(uint8_t) *hk_shm_arena_reads(const hk_shm_arena *a, uint32_t index);
struct hk_status_page *hk_shm_arena_status_page(const hk_shm_arena *a, uint32_t index);
struct hk_call_checks *hk_shm_arena_call_checks(const hk_shm_arena *a);
/* Fills slots, payload, heads and geometry of one end, and its counters from the state of the FIFO: an end that was
 * closed may be opened again. `self` and `peer` are the ranks' indices in the group. */
void hk_shm_arena_link(const hk_shm_arena *a, const hk_link_key *key, uint32_t self, uint32_t peer, hk_link *link);
