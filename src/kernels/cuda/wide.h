/* SPDX-License-Identifier: Apache-2.0 */
/* LL128 lines: eight neighbouring threads write 128 bytes with one instruction, and a reader sees them whole or not at
 * all. So 120 bytes of data need one flag of 8 bytes.
 *
 * Two lines are a pair and carry 240 bytes. The first seven threads of line 0 have the pair's vectors 0 to 6, and those
 * of line 1 vectors 7 to 13. The last thread of each line has one half of vector 14, then the flag: the slot's number
 * and the call's tag. So a thread's share of the plain memory on the other side is aligned as the message is, and no
 * data crosses threads. */
#pragma once
#include "move.h"

enum { LINE_THREADS = 8, PAIR_THREADS = 16, PAIR_BYTES = 256, PAIR_DATA = 240 };

/* A thread's part of one pair. */
typedef struct hk_gpu_share {
  uint64_t at; /* bytes from the message's beginning */
  unsigned n;  /* bytes: 16, or 8 next to a flag, fewer at the message's end */
  int sent;    /* its line carries data: equal in all threads of the line, and at both ends */
} hk_gpu_share;

HK_DEVICE int beside_flag(void) { return hk_thread() % LINE_THREADS == LINE_THREADS - 1; }

HK_DEVICE hk_gpu_share share_of(const hk_gpu_shape *s, uint64_t pair) {
  const unsigned t = hk_thread() % PAIR_THREADS, line = t / LINE_THREADS, lane = t % LINE_THREADS;
  const unsigned capacity = beside_flag() ? 8 : 16, within = beside_flag() ? 224 + 8 * line : 16 * (7 * line + lane);
  uint64_t begin = pair * PAIR_DATA, left = begin < s->bytes ? s->bytes - begin : 0;
  hk_gpu_share share = {begin + within, 0, left > 112 * line};
  if (left > within) share.n = left - within < capacity ? (unsigned)(left - within) : capacity;
  return share;
}

/* Loads source k's vectors of `flight` pairs, `step` pairs apart. All threads of a warp call it. Returns false in all
 * of them if the wait is given up; v then holds no data. */
HK_DEVICE bool load_shares(const hk_gpu_move *m, unsigned k, const hk_gpu_share *share, uint64_t pair, uint64_t step,
                           const int flight, hk_vec *v) {
  if (m->lines[k] != WIDE_LINES) {
    HK_UNROLL
    for (int j = 0; j < flight; j++) v[j] = load_pieces(m->at[k] + share[j].at, share[j].n);
    return true;
  }
  const char *from = m->at[k] + pair * PAIR_BYTES + 16 * (hk_thread() % PAIR_THREADS);
  const uint32_t flag = m->flag[k], tag = m->tag;
  uint32_t polls = 0, found = 0;
  for (;;) {
    int missing = 0, stop = 0;
    hk_warp_barrier(); /* the eight threads of a line together */
    /* All loads are issued before any is checked. */
    HK_UNROLL
    for (int j = 0; j < flight; j++) v[j] = hk_load_wide(from + j * step * PAIR_BYTES, share[j].sent);
    HK_UNROLL
    for (int j = 0; j < flight; j++) {
      /* Data is valid only if it was loaded together with its flag, so all lines are loaded again until all flags
       * match. litmus: wide, wide_polled_again */
      if (!share[j].sent || !beside_flag()) continue;
      missing |= v[j].w[2] != flag || v[j].w[3] != tag;
      if (v[j].w[2] == flag && v[j].w[3] != tag) {
        found = v[j].w[3];
        stop = 1;
      }
    }
    if (!hk_warp_any(missing)) return true;
    if (stop) report(m->state, m->peer[k], found, tag);
    stop |= give_up(m->state, &polls);
    if (hk_warp_any(stop)) return false;
  }
}

HK_DEVICE void store_shares(const hk_gpu_move *m, unsigned k, const hk_gpu_share *share, uint64_t pair, uint64_t step,
                            const int flight, const hk_vec *v) {
  if (m->lines[k] != WIDE_LINES) {
    HK_UNROLL
    for (int j = 0; j < flight; j++) store_pieces(m->at[k] + share[j].at, v[j], share[j].n);
    return;
  }
  char *to = m->at[k] + pair * PAIR_BYTES + 16 * (hk_thread() % PAIR_THREADS); /* litmus: wide */
  HK_UNROLL
  for (int j = 0; j < flight; j++) {
    hk_vec line = v[j];
    if (beside_flag()) {
      line.w[2] = m->flag[k];
      line.w[3] = m->tag;
    }
    hk_warp_barrier(); /* as above */
    hk_store_wide(to + j * step * PAIR_BYTES, line, share[j].sent);
  }
}

/* The index of a warp's first pair: all threads of the warp loop over it together. */
HK_DEVICE uint64_t warp_pair(void) { return hk_thread() / HK_WARP * (HK_WARP / PAIR_THREADS); }
HK_DEVICE uint64_t own_pair(uint64_t of_warp) { return of_warp + hk_thread() % HK_WARP / PAIR_THREADS; }

enum { WIDE_FLIGHT = 4 };
HK_DEVICE_CALL bool copy_wide(const hk_gpu_move *m, const hk_gpu_shape *shape) {
  const hk_gpu_shape own = *shape, *s = &own; /* in registers */
  const uint64_t step = hk_threads() / PAIR_THREADS;
  for (uint64_t i = warp_pair(); i * PAIR_DATA < s->bytes; i += WIDE_FLIGHT * step) {
    hk_gpu_share share[WIDE_FLIGHT];
    hk_vec v[WIDE_FLIGHT];
    HK_UNROLL
    for (int j = 0; j < WIDE_FLIGHT; j++) share[j] = share_of(s, own_pair(i) + j * step);
    if (!load_shares(m, s->src, share, own_pair(i), step, WIDE_FLIGHT, v)) return false;
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) store_shares(m, k, share, own_pair(i), step, WIDE_FLIGHT, v);
  }
  return true;
}
