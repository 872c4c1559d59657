/* SPDX-License-Identifier: Apache-2.0 */
/* Data movement by all threads of a block: destinations <- source. reduce.h has the reductions.
 *
 * Threads work on vectors of 16 bytes. If all operands are aligned plain memory, each thread has several vectors in
 * flight. Else each vector is assembled from pieces; the last vector may be short. If an operand is in LL128 lines, the
 * lines determine which thread moves which bytes: wide.h. */
#pragma once
#include <stdbool.h>
#include "primitives.h"
#include "work.h"

/* How an operand's data lies in memory. */
enum hk_gpu_lines {
  PLAIN,
  LL_LINES,
  WIDE_LINES,
  EVERYWHERE = 4 /* a multicast address; of LL lines, too */
};               /* bits */

/* Reading the abort flag is a read of host memory by each waiting warp. On a GPU a poll takes about a microsecond, so
 * it is read once in some milliseconds. CPU threads (HK_CUDAEMU) poll more slowly. */
#ifdef __CUDACC__
enum { POLLS_BETWEEN_LOOKS = 4096 };
#else
enum { POLLS_BETWEEN_LOOKS = 256 };
#endif
enum {
  POLLS_BETWEEN_TAGS = 16, /* after so many polls, checks whether a missing line belongs to another call */
  LINES_MOST = 8           /* sources whose LL lines are polled at once: each takes two vectors of registers */
};

/* Operands of one instruction's move, in the block's shared memory. A wait reads LINES_MOST entries, also beyond the
 * last operand. */
typedef struct hk_gpu_move {
  char *at[HK_GPU_OPERANDS + LINES_MOST];      /* destinations, then sources */
  uint32_t flag[HK_GPU_OPERANDS + LINES_MOST]; /* of lines */
  uint32_t peer[HK_GPU_OPERANDS];              /* of lines that are received */
  uint8_t lines[HK_GPU_OPERANDS];              /* hk_gpu_lines */
  uint32_t tag;                                /* of LL128 lines, next to the flag */
  hk_gpu_reducer reducer;
  hk_gpu_state *state;
} hk_gpu_move;
/* The same for all threads, in registers. */
typedef struct hk_gpu_shape {
  uint32_t ndst, src, nsrc; /* destinations that get data; the first source's place among the operands */
  int fresh;                /* the source that is premultiplied, or -1 */
  bool divided;             /* the last step of avg */
  bool simple;              /* no lines; all addresses aligned */
  bool wide;                /* some operand is LL128 lines */
  bool switched;            /* some destination is a multicast address */
  uint64_t bytes;
} hk_gpu_shape;

/* To be called in a wait's loop; true if the wait must be given up. */
HK_DEVICE bool give_up(hk_gpu_state *state, uint32_t *polls) {
  hk_relax();
  if (++*polls % POLLS_BETWEEN_LOOKS) return false;
  return hk_load_relaxed(&state->abort) != 0;
}

/* For the watchdog: new work of the communicator begins, so the earlier work has ended. Not at a kernel's end, which
 * would wait until the store has reached the host. */
HK_DEVICE void note_begin(hk_gpu_state *state) { hk_store_relaxed(&state->begun, 1); /* relaxed: it orders nothing */ }

/* The first thread that finds an error describes it and ends all waits. The state is in host memory. */
HK_DEVICE_CALL void report(hk_gpu_state *state, uint32_t peer, uint32_t found, uint32_t expected) {
  if (hk_swap_if(&state->error, HK_GPU_OK, HK_GPU_MISMATCH) != HK_GPU_OK) return;
  hk_store_relaxed(&state->peer, peer);
  hk_store_relaxed(&state->found, found);
  hk_store_relaxed(&state->expected, expected);
  hk_store_relaxed(&state->abort, 1);
}

/* ---- one vector, anywhere ---- */

/* A whole vector at an address that is `head` bytes before a multiple of 4: these bytes, three words, and the bytes
 * that are left. Bytes outside of the vector are not accessed: they may belong to another thread or be unmapped. `head`
 * is a constant, so that no branch is between the loads. */
HK_DEVICE hk_vec load_shifted(const char *p, const unsigned head) {
  const unsigned up = 8 * head, down = 32 - up;
  uint32_t part[5] = {0, 0, 0, 0, 0};
  HK_UNROLL
  for (unsigned i = 0; i < 3; i++) {
    part[i + 1] = *(const uint32_t *)(p + head + 4 * i);
    if (i < head) part[0] |= (uint32_t)(uint8_t)p[i] << 8 * i;
    if (i < 4 - head) part[4] |= (uint32_t)(uint8_t)p[head + 12 + i] << 8 * i;
  }
  hk_vec v = {{part[0] | part[1] << up, 0, 0, 0}};
  HK_UNROLL
  for (unsigned i = 1; i < 4; i++) v.w[i] = part[i] >> down | part[i + 1] << up;
  return v;
}
HK_DEVICE void store_shifted(char *p, hk_vec v, const unsigned head) {
  const unsigned up = 8 * head, down = 32 - up;
  const uint32_t last = v.w[3] >> up;
  HK_UNROLL
  for (unsigned i = 0; i < 3; i++) {
    *(uint32_t *)(p + head + 4 * i) = v.w[i] >> up | v.w[i + 1] << down;
    if (i < head) p[i] = (char)(v.w[0] >> 8 * i);
    if (i < 4 - head) p[head + 12 + i] = (char)(last >> 8 * i);
  }
}
/* Calls, not inlined: the loops that should be fast seldom need them, and each type and operator would have its own
 * copy. */
HK_DEVICE_CALL hk_vec load_odd(const char *p, unsigned n) {
  hk_vec v = {{0, 0, 0, 0}};
  if ((((uintptr_t)p | n) & 3) == 0) {
    HK_UNROLL
    for (unsigned i = 0; i < 4; i++)
      if (4 * i < n) v.w[i] = ((const uint32_t *)p)[i];
    return v;
  }
  switch (n == 16 ? -(uintptr_t)p & 3 : 0) {
    case 1: return load_shifted(p, 1);
    case 2: return load_shifted(p, 2);
    case 3: return load_shifted(p, 3);
    default: break;
  }
  HK_UNROLL
  for (unsigned i = 0; i < 16; i++)
    if (i < n) v.w[i / 4] |= (uint32_t)(uint8_t)p[i] << 8 * (i % 4);
  return v;
}
HK_DEVICE_CALL void store_odd(char *p, hk_vec v, unsigned n) {
  if ((((uintptr_t)p | n) & 3) == 0) {
    HK_UNROLL
    for (unsigned i = 0; i < 4; i++)
      if (4 * i < n) ((uint32_t *)p)[i] = v.w[i];
    return;
  }
  switch (n == 16 ? -(uintptr_t)p & 3 : 0) {
    case 1: store_shifted(p, v, 1); return;
    case 2: store_shifted(p, v, 2); return;
    case 3: store_shifted(p, v, 3); return;
    default: break;
  }
  HK_UNROLL
  for (unsigned i = 0; i < 16; i++)
    if (i < n) p[i] = (char)(v.w[i / 4] >> 8 * (i % 4));
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

/* A line with the slot's number and another tag belongs to a call that does not match. */
HK_DEVICE bool of_another_call(uint32_t found, uint32_t flag) {
  return found != flag && (found ^ flag) >> HK_GPU_LL_TAG_BITS == 0;
}
/* Called sometimes during a wait for lines: if a line of another call has arrived, reports it and returns true.
 * litmus: none; for a report */
HK_DEVICE_CALL bool lines_of_another_call(const hk_gpu_move *m, unsigned first, uint64_t i, uint32_t missing) {
  for (unsigned k = 0; missing >> k; k++) {
    if (!(missing >> k & 1)) continue;
    const uint32_t flag = m->flag[first + k / 2];
    const hk_vec line = hk_load_line(m->at[first + k / 2] + 32 * i + 16 * (k % 2));
    const uint32_t found = of_another_call(line.w[1], flag) ? line.w[1] : line.w[3];
    if (!of_another_call(found, flag)) continue;
    report(m->state, m->peer[first + k / 2], found, flag);
    return true;
  }
  return false;
}
/* Waits for vector i (n bytes) of the `count` sources from `first` on, `most` at most; skips sources that are not in
 * lines. Issues the loads of all lines before it checks one, then reloads the missing ones. So a one-shot waits for its
 * slowest peer, and not for each peer in turn. False if the wait is given up; v then holds no data. litmus: line,
 * line_polled_again */
HK_DEVICE bool load_lines(const hk_gpu_move *m, unsigned first, unsigned count, uint64_t i, unsigned n, const int most,
                          hk_vec *v) {
  hk_vec line[2 * LINES_MOST];
  uint32_t all = 0, missing, polls = 0; /* bits 2 k and 2 k + 1: the lines of source k */
  HK_UNROLL
  for (int k = 0; k < most; k++)
    if (k < (int)count && m->lines[first + k]) all |= (n > 8 ? 3u : 1u) << 2 * k;
  for (bool stop = false;;) {
    missing = all;
    for (int k = 0; k < 2 * most; k++)
      for (int w = 0; w < 4; w++) line[k].w[w] = 0;
    do { /* volatile: the lines take the registers, so addresses and flags are loaded again */
      HK_UNROLL
      for (int k = 0; k < most; k++) {
        const char *from = *(char *const volatile *)&m->at[first + k] + 32 * i;
        hk_load_line_if(&line[2 * k], from, missing >> 2 * k & 1);
        hk_load_line_if(&line[2 * k + 1], from + 16, missing >> (2 * k + 1) & 1);
      }
      HK_UNROLL
      for (int k = 0; k < 2 * most; k++) {
        const uint32_t flag = *(const volatile uint32_t *)&m->flag[first + k / 2];
        if (line[k].w[1] == flag && line[k].w[3] == flag) missing &= ~(1u << k);
      }
    } while (missing && !(stop = give_up(m->state, &polls)) && polls % POLLS_BETWEEN_TAGS);
    if (!missing) break;
    /* The call needs the registers, so no line is kept over it: all are loaded again. */
    if (stop || lines_of_another_call(m, first, i, missing)) return false;
  }
  HK_UNROLL
  for (int k = 0; k < most; k++) {
    const hk_vec data = {{line[2 * k].w[0], line[2 * k].w[2], line[2 * k + 1].w[0], line[2 * k + 1].w[2]}};
    v[k] = data;
  }
  return true;
}

/* A vector. `here` false: the wait was given up; nothing may be stored, and the lane ends. */
typedef struct hk_gpu_got {
  hk_vec v;
  bool here;
} hk_gpu_got;
HK_DEVICE_CALL hk_vec load_plain(const char *p, unsigned n) { return load_pieces(p, n); }
HK_DEVICE_CALL hk_gpu_got load_any(const hk_gpu_move *m, unsigned k, uint64_t i, unsigned n) {
  hk_gpu_got got;
  got.here = true;
  if (m->lines[k])
    got.here = load_lines(m, k, 1, i, n, 1, &got.v);
  else
    got.v = load_pieces(m->at[k] + 16 * i, n);
  return got;
}
/* `everywhere`: to a multicast address, each half with its flag in one piece. litmus: line, line_step,
 * line_everywhere */
HK_DEVICE void store_line(char *p, hk_vec v, unsigned everywhere) {
  if (!everywhere) {
    hk_store_line(p, v);
    return;
  }
  hk_multi_store_signal((uint64_t *)(void *)p, v.w[0] | (uint64_t)v.w[1] << 32);
  hk_multi_store_signal((uint64_t *)(void *)(p + 8), v.w[2] | (uint64_t)v.w[3] << 32);
}
HK_DEVICE_CALL void store_all(const hk_gpu_move *m, const hk_gpu_shape *s, uint64_t i, unsigned n, hk_vec v) {
  for (unsigned k = 0; k < s->ndst; k++) {
    const unsigned lines = m->lines[k];
    if (!(lines & LL_LINES)) {
      if (lines) /* a slot has room for whole vectors */
        hk_multi_store(m->at[k] + 16 * i, v);
      else
        store_pieces(m->at[k] + 16 * i, v, n);
      continue;
    }
    uint32_t flag = m->flag[k];
    hk_vec a = {{v.w[0], flag, v.w[1], flag}}, b = {{v.w[2], flag, v.w[3], flag}};
    store_line(m->at[k] + 32 * i, a, lines & EVERYWHERE);
    if (n > 8) store_line(m->at[k] + 32 * i + 16, b, lines & EVERYWHERE);
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
  if (i >= vectors) return;
  hk_vec v[COPY_FLIGHT - 1] = {{{0, 0, 0, 0}}}; /* the rest, or a whole small chunk: also all in flight at once */
  HK_UNROLL
  for (int j = 0; j < COPY_FLIGHT - 1; j++) hk_load_if(&v[j], from + 16 * (i + j * step), i + j * step < vectors);
  HK_NO_UNROLL
  for (unsigned k = 0; k < s->ndst; k++) {
    HK_UNROLL
    for (int j = 0; j < COPY_FLIGHT - 1; j++)
      if (i + j * step < vectors) hk_store(m->at[k] + 16 * (i + j * step), v[j]);
  }
}
/* Returns false, as all functions that move data do, if this thread has given up a wait. */
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
