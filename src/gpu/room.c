/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for what is small and stays as long as the communicator: plans, the ends of transfers, tables.
 *
 * It is what the credits leave of their granule.  More comes as virtual memory.  Classic memory and pinned memory
 * may be allocated only when all work on the device is over, and kernels that wait for a launch of this very thread
 * would then wait for ever. */
#include <stdlib.h>
#include "../program/program.h"
#include "world.h"

enum { CHUNK_BYTES = 65536, ALIGN = 256 };

static hk_status add_chunk(hk_gpu *g, size_t bytes) {
  hk_status rc = HK_OK;
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", g->device->limits.ordinal);
  if (bytes < CHUNK_BYTES) bytes = CHUNK_BYTES;
  HK_TRY(g->device->ops->alloc_shared(g->device, bytes, 0, true, &k->memory), undo);
  k->at = k->memory.base;
  k->bytes = k->memory.bytes;
  k->next = g->room;
  g->room = k;
  return HK_OK;
undo:
  free(k);
  return rc;
}

hk_status hk_gpu_room_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_memory *credits = &g->world->credits[c->rank];
  const size_t used = hk_round_up(hk_gpu_credit_bytes(c->nranks), ALIGN);
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", g->device->limits.ordinal);
  k->at = (char *)credits->base + used;
  k->bytes = credits->bytes > used ? credits->bytes - used : 0;
  g->room = g->first_room = k;
  return HK_OK;
}

hk_status hk_gpu_room_get(hk_gpu *g, size_t bytes, void **out) {
  hk_status rc = HK_OK;
  *out = NULL;
  bytes = hk_round_up(bytes, ALIGN);
  if (g->room->used + bytes > g->room->bytes) HK_TRY(add_chunk(g, bytes), out);
  *out = g->room->at + g->room->used;
  g->room->used += bytes;
out:
  return rc;
}

void hk_gpu_room_free(hk_gpu *g) {
  while (g->room) {
    hk_gpu_chunk *k = g->room;
    g->room = k->next;
    (void)g->device->ops->release(g->device, &k->memory); /* a failure is logged, and nothing else to do */
    free(k);
  }
}
