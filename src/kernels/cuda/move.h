/* SPDX-License-Identifier: Apache-2.0 */
/* Data movement by all threads of a block: destinations <- source. reduce.h has the reductions.
 *
 * Work is dealt in vectors of 16 bytes. If all is aligned and plain memory, each thread has several vectors in
 * flight. Else each vector is put together from pieces that may be read at once; the last one may be short. If an
 * operand is in LL128 lines, the lines determine which thread moves which bytes: wide.h. */
#ifndef HK_KERNELS_CUDA_MOVE_H
#define HK_KERNELS_CUDA_MOVE_H
#include <stdbool.h>
#include "primitives.h"
#include "work.h"

/* How an operand's data lies in memory. */
enum hk_gpu_lines { PLAIN, LL_LINES, WIDE_LINES, EVERYWHERE = 4 /* a multicast address */ }; /* bits: shape_of */

/* What one instruction moves, in the block's shared memory. */
typedef struct hk_gpu_move {
  char *at[HK_GPU_OPERANDS];      /* destinations, then sources */
  uint32_t flag[HK_GPU_OPERANDS]; /* of lines */
  uint32_t peer[HK_GPU_OPERANDS]; /* of lines that are received */
  uint8_t lines[HK_GPU_OPERANDS]; /* hk_gpu_lines */
  uint32_t tag;                   /* of LL128 lines, beside the flag */
  hk_gpu_reducer reducer;
  hk_gpu_state *state;
} hk_gpu_move;
/* The same for all threads, in registers. */
typedef struct hk_gpu_shape {
  uint32_t ndst, src, nsrc; /* destinations that get data; the first source's place among the operands */
  int fresh;                /* the source that is premultiplied, or -1 */
  bool divided;             /* the last step of avg */
  bool simple;              /* no lines, all aligned */
  bool wide;                /* some operand is LL128 lines */
  bool switched;            /* some destination is a multicast address */
  uint64_t bytes;
} hk_gpu_shape;

enum { POLLS_BETWEEN_LOOKS = 256 }; /* a look at the abort flag goes to the host's memory */

/* In a wait's loop; true when the wait is to be given up. */
HK_DEVICE bool give_up(hk_gpu_state *state, uint32_t *polls) {
  hk_relax();
  if (++*polls % POLLS_BETWEEN_LOOKS) return false;
  return hk_load_relaxed(&state->abort) != 0 || hk_load_relaxed(&state->error) != 0;
}

/* The first one to find an error describes it; the state lies in the host's memory. */
HK_DEVICE_CALL void report(hk_gpu_state *state, uint32_t peer, uint32_t found, uint32_t expected) {
  if (hk_swap_if(&state->error, HK_GPU_OK, HK_GPU_MISMATCH) != HK_GPU_OK) return;
  hk_store_relaxed(&state->peer, peer);
  hk_store_relaxed(&state->found, found);
  hk_store_relaxed(&state->expected, expected);
}

/* ---- one vector, anywhere ---- */

/* Calls, not inlined: the loops that should be fast seldom need them, and each type and operator would have its own
 * copy. */
HK_DEVICE_CALL hk_vec load_odd(const char *p, unsigned n) {
  hk_vec v = {{0, 0, 0, 0}};
  if ((((uintptr_t)p | n) & 3) == 0) {
    HK_UNROLL
    for (unsigned i = 0; i < 4; i++)
      if (4 * i < n) v.w[i] = ((const uint32_t *)p)[i];
  } else {
    HK_UNROLL
    for (unsigned i = 0; i < 16; i++)
      if (i < n) v.w[i / 4] |= (uint32_t)(uint8_t)p[i] << 8 * (i % 4);
  }
  return v;
}
HK_DEVICE_CALL void store_odd(char *p, hk_vec v, unsigned n) {
  if ((((uintptr_t)p | n) & 3) == 0) {
    HK_UNROLL
    for (unsigned i = 0; i < 4; i++)
      if (4 * i < n) ((uint32_t *)p)[i] = v.w[i];
  } else {
    HK_UNROLL
    for (unsigned i = 0; i < 16; i++)
      if (i < n) p[i] = (char)(v.w[i / 4] >> 8 * (i % 4));
  }
}
/* n: 0 to 16 bytes. */
HK_DEVICE hk_vec load_pieces(const char *p, unsigned n) {
  if (((uintptr_t)p & 15) == 0 && n == 16) return hk_load(p);
  if (((uintptr_t)p & 7) == 0 && n == 8) return hk_load_half(p);
  return load_odd(p, n);
}
HK_DEVICE void store_pieces(char *p, hk_vec v, unsigned n) {
  if (((uintptr_t)p & 15) == 0 && n == 16)
    hk_store(p, v);
  else if (((uintptr_t)p & 7) == 0 && n == 8)
    hk_store_half(p, v);
  else
    store_odd(p, v, n);
}

/* The slot's number, so much of it as there is room for, beside a part of the call's tag. A line that has the number
 * and another tag is of a call that does not match. */
HK_DEVICE uint32_t line_flag(uint64_t number, uint32_t tag) {
  /* The upper bits of a product depend on all bits of its factors. */
  return (uint32_t)number << HK_GPU_LL_TAG_BITS | (tag * 0x9e3779b1u) >> (32 - HK_GPU_LL_TAG_BITS);
}
HK_DEVICE bool of_another_call(uint32_t found, uint32_t flag) {
  return found != flag && (found ^ flag) >> HK_GPU_LL_TAG_BITS == 0;
}
/* False when the wait is given up: *line is no data then. */
HK_DEVICE bool wait_line(const hk_gpu_move *m, unsigned k, const char *p, hk_vec *line) {
  const uint32_t flag = m->flag[k];
  uint32_t polls = 0;
  *line = hk_load_line(p);
  while (line->w[1] != flag || line->w[3] != flag) {
    if (of_another_call(line->w[1], flag) || of_another_call(line->w[3], flag)) {
      report(m->state, m->peer[k], of_another_call(line->w[1], flag) ? line->w[1] : line->w[3], flag);
      return false;
    }
    if (give_up(m->state, &polls)) return false;
    *line = hk_load_line(p);
  }
  return true;
}

/* A vector, or that the wait for it was given up: then nothing may be stored, and the lane ends. */
typedef struct hk_gpu_got {
  hk_vec v;
  bool here;
} hk_gpu_got;
HK_DEVICE_CALL hk_gpu_got load_any(const hk_gpu_move *m, unsigned k, uint64_t i, unsigned n) {
  hk_gpu_got got = {{{0, 0, 0, 0}}, true};
  if (!m->lines[k]) {
    got.v = load_pieces(m->at[k] + 16 * i, n);
    return got;
  }
  hk_vec a, b = {{0, 0, 0, 0}};
  got.here = wait_line(m, k, m->at[k] + 32 * i, &a) && (n <= 8 || wait_line(m, k, m->at[k] + 32 * i + 16, &b));
  got.v.w[0] = a.w[0];
  got.v.w[1] = a.w[2];
  got.v.w[2] = b.w[0];
  got.v.w[3] = b.w[2];
  return got;
}
HK_DEVICE_CALL void store_all(const hk_gpu_move *m, const hk_gpu_shape *s, uint64_t i, unsigned n, hk_vec v) {
  for (unsigned k = 0; k < s->ndst; k++) {
    if (!m->lines[k]) {
      store_pieces(m->at[k] + 16 * i, v, n);
      continue;
    }
    uint32_t flag = m->flag[k];
    hk_vec a = {{v.w[0], flag, v.w[1], flag}}, b = {{v.w[2], flag, v.w[3], flag}};
    hk_store_line(m->at[k] + 32 * i, a);
    if (n > 8) hk_store_line(m->at[k] + 32 * i + 16, b);
  }
}
HK_DEVICE unsigned piece_of(const hk_gpu_shape *s, uint64_t i) {
  return s->bytes - 16 * i < 16 ? (unsigned)(s->bytes - 16 * i) : 16;
}

/* ---- copies ---- */

enum { COPY_FLIGHT = 8 };
HK_DEVICE void copy_fast(const hk_gpu_move *m, const hk_gpu_shape *s, uint64_t vectors) {
  const char *from = m->at[s->src];
  uint64_t i = hk_thread();
  const uint64_t step = hk_threads();
  for (; i + (COPY_FLIGHT - 1) * step < vectors; i += COPY_FLIGHT * step) {
    hk_vec v[COPY_FLIGHT];
    HK_UNROLL
    for (int j = 0; j < COPY_FLIGHT; j++) v[j] = hk_load(from + 16 * (i + j * step));
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) {
      HK_UNROLL
      for (int j = 0; j < COPY_FLIGHT; j++) hk_store(m->at[k] + 16 * (i + j * step), v[j]);
    }
  }
  for (; i < vectors; i += step) {
    hk_vec v = hk_load(from + 16 * i);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) hk_store(m->at[k] + 16 * i, v);
  }
}
/* False, here and in all that moves data: this thread has given up a wait. */
HK_DEVICE_CALL bool copy_move(const hk_gpu_move *m, const hk_gpu_shape *shape) {
  const hk_gpu_shape s = *shape; /* in registers */
  uint64_t whole = s.simple ? s.bytes / 16 : 0, vectors = (s.bytes + 15) / 16;
  if (whole) copy_fast(m, &s, whole);
  for (uint64_t i = whole + hk_thread(); i < vectors; i += hk_threads()) {
    const hk_gpu_got got = load_any(m, s.src, i, piece_of(&s, i));
    if (!got.here) return false;
    store_all(m, shape, i, piece_of(&s, i), got.v);
  }
  return true;
}
#endif
