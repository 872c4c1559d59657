/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses of a warp's lanes to memory that others see, and what model.c makes of their order. */
#ifndef HK_PTXEMU_ACCESS_H
#define HK_PTXEMU_ACCESS_H
#include "ptx.h"

typedef struct ptx_access {
  uint32_t lanes, global; /* global: those that are not to shared or local memory */
  unsigned bytes, size;   /* of a lane; of one element */
  bool strong, multi, release;
  uint8_t scope; /* of a strong one */
  uint64_t at[LANES];
  _Alignas(16) unsigned char data[LANES][32];
} ptx_access;

/* Eight neighbours with the eight pieces of a line go as one, whose last word is written last and read first. */
void ptx_read_now(ptx_access *a, uint32_t lanes);
void ptx_write_now(const ptx_access *a, uint32_t lanes);
void ptx_write_piece(const unsigned char *from, uint64_t at, unsigned bytes, bool strong);

/* model.c: with ptx_launch.weak alone. */
void ptx_model_load(ptx_warp *w, ptx_access *a);
void ptx_model_store(ptx_warp *w, const ptx_access *a);
/* Before an atomic or multicast operation at these addresses. */
void ptx_model_touch(ptx_warp *w, const ptx_access *a);
void ptx_model_release(ptx_warp *w, uint32_t lanes, ptx_scope scope);
void ptx_model_acquire(ptx_warp *w, uint32_t lanes, ptx_scope scope);
void ptx_model_alias(ptx_warp *w, uint32_t lanes); /* fence.proxy.alias */
void ptx_model_warp_barrier(ptx_warp *w, uint32_t lanes);
void ptx_model_arrive(ptx_warp *w, uint32_t lanes);
void ptx_model_leave(ptx_warp *w, uint32_t lanes);
void ptx_model_step(ptx_warp *w); /* time passes: a store may arrive */
void ptx_model_begin(ptx_grid *g);
void ptx_model_end(ptx_block *b); /* all of its stores arrive */
#endif
