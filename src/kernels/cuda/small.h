/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot programs (hk_gpu_small in work.h) without an interpreter: the same slots, lines, counters and order of sums
 * as in exec.cu, so the two ends of a link may run different kernels. A block is a channel. A thread has 8 bytes of the
 * message: it stores them for all peers, polls the lines of all peers, and adds them. Before the first store there is
 * one round trip to memory, for counters, heads and the user's data. */
#pragma once
#include "link.h"
#include "reduce.h"

typedef struct hk_gpu_small_shared {
  hk_gpu_move move; /* the operands of hk_gpu_small's `end` */
  const char *in;
  char *out;
  uint32_t bytes;
  uint32_t sources, received; /* number of sources; a bit for each source that arrives in lines */
} hk_gpu_small_shared;

/* 8 bytes, or less at the end of the message, in the first half. */
HK_DEVICE unsigned line_bytes(uint32_t bytes, uint32_t i) { return bytes - 8 * i < 8 ? bytes - 8 * i : 8; }
HK_DEVICE hk_vec small_line(const char *in, uint32_t bytes, uint32_t i) {
  return load_pieces(in + 8 * i, line_bytes(bytes, i));
}

HK_DEVICE hk_vec small_premultiplied(const int type, hk_vec v, uint64_t scalar) {
  uint32_t a[WORDS_MAX];
  decode(type, v, a);
  premultiply(type, a, scalar);
  return encode(type, a);
}
HK_DEVICE hk_vec small_data(hk_vec line) {
  const hk_vec v = {{line.w[0], line.w[2], 0, 0}};
  return v;
}
HK_DEVICE hk_vec small_sum(const int type, const hk_gpu_small_shared *s, hk_vec *line) {
  const hk_gpu_move *m = &s->move;
  uint32_t a[WORDS_MAX], b[WORDS_MAX];
  decode(type, small_data(line[0]), a);
  if (m->reducer.op == OP_PROD || m->reducer.op == OP_MAX || m->reducer.op == OP_MIN) {
    HK_NO_UNROLL
    for (unsigned k = 1; k < s->sources; k++) { /* one copy of the code */
      move_up(line, HK_GPU_SMALL_SOURCES);
      decode(type, small_data(line[0]), b);
      combine_by(type, m, a, b);
    }
  } else {
    HK_UNROLL
    for (unsigned k = 1; k < HK_GPU_SMALL_SOURCES; k++) {
      if (k >= s->sources) continue;
      decode(type, small_data(line[k]), b);
      combine(type, OP_SUM, a, b);
    }
  }
  if (m->reducer.post) divide(type, a, m->reducer.divisor);
  return encode(type, a);
}
/* Called sometimes during a wait for line i: as lines_of_another_call. litmus: none; for a report */
HK_DEVICE_CALL bool small_of_another_call(const hk_gpu_small_shared *s, uint32_t i, uint32_t missing) {
  uint32_t lines = 0;
  for (unsigned k = 0; missing >> k; k++) lines |= (missing >> k & 1) << (2 * k + i % 2);
  return lines_of_another_call(&s->move, 0, i / 2, lines);
}
/* This thread's lines of the result; false if a wait was given up. litmus: line, line_polled_again */
HK_DEVICE bool small_result(const int type, const hk_gpu_small_shared *s) {
  const char *from[HK_GPU_SMALL_SOURCES];
  uint32_t flag[HK_GPU_SMALL_SOURCES];
  HK_UNROLL
  for (int k = 0; k < HK_GPU_SMALL_SOURCES; k++) {
    from[k] = s->move.at[k];
    flag[k] = s->move.flag[k];
  }
  HK_NO_UNROLL
  for (uint32_t i = hk_thread(); 8 * i < s->bytes; i += hk_threads()) {
    hk_vec line[HK_GPU_SMALL_SOURCES], own = small_line(s->in, s->bytes, i);
    uint32_t missing = s->received, polls = 0;
    if (s->move.reducer.pre) own = small_premultiplied(type, own, s->move.reducer.scalar);
    HK_UNROLL
    for (int k = 0; k < HK_GPU_SMALL_SOURCES; k++) { /* the rank's own source keeps it */
      const hk_vec v = {{own.w[0], 0, own.w[1], 0}};
      line[k] = v;
    }
    for (;;) {
      HK_UNROLL
      for (int k = 0; k < HK_GPU_SMALL_SOURCES; k++) hk_load_line_if(&line[k], from[k] + 16 * i, missing >> k & 1);
      HK_UNROLL
      for (int k = 0; k < HK_GPU_SMALL_SOURCES; k++)
        if (line[k].w[1] == flag[k] && line[k].w[3] == flag[k]) missing &= ~(1u << k);
      if (!missing) break;
      if (give_up(s->move.state, &polls)) return false;
      if (polls % POLLS_BETWEEN_TAGS == 0 && small_of_another_call(s, i, missing)) return false;
    }
    store_pieces(s->out + 8 * i, small_sum(type, s, line), line_bytes(s->bytes, i));
  }
  return true;
}

#define SMALL_OF(name, type)                                                                                           \
  HK_DEVICE_CALL bool small_##name(const hk_gpu_small_shared *s) { return small_result(type, s); }
SMALL_OF(i8, T_I8)
SMALL_OF(u8, T_U8)
SMALL_OF(i32, T_I32)
SMALL_OF(u32, T_U32)
SMALL_OF(i64, T_I64)
SMALL_OF(u64, T_U64)
SMALL_OF(f16, T_F16)
SMALL_OF(f32, T_F32)
SMALL_OF(f64, T_F64)
SMALL_OF(bf16, T_BF16)
SMALL_OF(e4m3, T_E4M3)
SMALL_OF(e5m2, T_E5M2)
HK_DEVICE bool small_any(const hk_gpu_small_shared *s) {
  switch (s->move.reducer.dtype) {
    case T_I8: return small_i8(s);
    case T_U8: return small_u8(s);
    case T_I32: return small_i32(s);
    case T_U32: return small_u32(s);
    case T_I64: return small_i64(s);
    case T_U64: return small_u64(s);
    case T_F16: return small_f16(s);
    case T_F32: return small_f32(s);
    case T_F64: return small_f64(s);
    case T_BF16: return small_bf16(s);
    case T_E4M3: return small_e4m3(s);
    default: return small_e5m2(s);
  }
}
/* The data to send for premulsum, and for avg of floats. */
HK_DEVICE_CALL hk_vec small_any_premultiplied(hk_vec v, int type, uint64_t scalar) {
  switch (type) {
    case T_I8: return small_premultiplied(T_I8, v, scalar);
    case T_U8: return small_premultiplied(T_U8, v, scalar);
    case T_I32: return small_premultiplied(T_I32, v, scalar);
    case T_U32: return small_premultiplied(T_U32, v, scalar);
    case T_I64: return small_premultiplied(T_I64, v, scalar);
    case T_U64: return small_premultiplied(T_U64, v, scalar);
    case T_F16: return small_premultiplied(T_F16, v, scalar);
    case T_F32: return small_premultiplied(T_F32, v, scalar);
    case T_F64: return small_premultiplied(T_F64, v, scalar);
    case T_BF16: return small_premultiplied(T_BF16, v, scalar);
    case T_E4M3: return small_premultiplied(T_E4M3, v, scalar);
    default: return small_premultiplied(T_E5M2, v, scalar);
  }
}

HK_DEVICE_CALL void small_refresh(const hk_gpu_link *k, uint64_t done) { refresh_lines(k, done); }
/* Called by one thread for each end, with the end's counter and head.  False if the wait for the credit was given up.
 * litmus: line, line_step */
HK_DEVICE bool small_prepare(const hk_gpu_small *w, hk_gpu_small_shared *s, unsigned k, hk_gpu_small_end end,
                             uint64_t done, uint64_t head) {
  hk_gpu_move *m = &s->move;
  uint32_t polls = 0;
  m->at[k] = end.lines + (done & (w->nslots - 1)) * 2 * HK_GPU_LL_MAX;
  m->flag[k] = hk_gpu_line_flag(done + 1, tag_of(w->signature, w->bytes));
  if (k < HK_GPU_SMALL_SOURCES) return true;
  while (done >= head + w->nslots) {
    if (give_up(w->state, &polls)) return false;
    head = hk_load_signal(end.head);
  }
  if (hk_gpu_lines_due(done + 1, w->nslots)) small_refresh(&w->links[w->link[k - HK_GPU_SMALL_SOURCES]], done);
  return true;
}
HK_DEVICE void small_send(const hk_gpu_small_shared *s, uint32_t ends, uint32_t i, hk_vec v) {
  char *to[HK_GPU_SMALL_SENDS];
  uint32_t flag[HK_GPU_SMALL_SENDS];
  HK_UNROLL
  for (int k = 0; k < HK_GPU_SMALL_SENDS; k++) {
    to[k] = s->move.at[HK_GPU_SMALL_SOURCES + k];
    flag[k] = s->move.flag[HK_GPU_SMALL_SOURCES + k];
  }
  HK_UNROLL
  for (int k = 0; k < HK_GPU_SMALL_SENDS; k++) {
    const hk_vec line = {{v.w[0], flag[k], v.w[1], flag[k]}};
    if (ends >> (HK_GPU_SMALL_SOURCES + k) & 1) hk_store_line(to[k] + 16 * i, line); /* litmus: line, line_step */
  }
}

HK_KERNEL void hk_run_small(HK_PARAMS(hk_gpu_small_batch) batch) {
  HK_SHARED(hk_gpu_small_shared, s);
  const hk_gpu_small *w = &batch.block[hk_block()];
  const unsigned me = hk_thread();
  const bool has_end = me < HK_GPU_SMALL_ENDS && (w->ends >> me & 1);
  hk_gpu_small_end end = {0, 0, 0};
  hk_vec v = {{0, 0, 0, 0}};
  uint64_t done = 0, head = 0;
  if (has_end) {
    end = w->end[me];
    done = *end.done; /* no earlier launch is running */
    if (me >= HK_GPU_SMALL_SOURCES) head = hk_load_signal(end.head);
  }
  if (8 * me < w->bytes) v = small_line(w->in, w->bytes, me);
  if (me == 0) {
    s->move.reducer = w->reducer;
    s->move.state = w->state;
    s->in = w->in;
    s->out = w->out;
    s->bytes = w->bytes;
    s->sources = w->sources;
    if (w->first) note_begin(w->state);
    s->received = w->ends & ((1u << HK_GPU_SMALL_SOURCES) - 1);
  }
  if (me < HK_GPU_SMALL_SOURCES) s->move.peer[me] = w->peer[me];
  bool good = true;
  if (has_end) good = small_prepare(w, s, me, end, done, head);
  if (!hk_barrier_or(!good)) {
    for (uint32_t i = me; 8 * i < w->bytes; i += hk_threads()) {
      hk_vec now = v;
      if (8 * (i + hk_threads()) < w->bytes)
        v = small_line(w->in, w->bytes, i + hk_threads()); /* in flight during the sends */
      if (w->reducer.pre) now = small_any_premultiplied(now, w->reducer.dtype, w->reducer.scalar);
      small_send(s, w->ends, i, now);
    }
    if (!hk_barrier_or(!small_any(s)) && has_end) { /* no signal if data is missing */
      *end.done = done + 1;
      if (me < HK_GPU_SMALL_SOURCES) hk_store_signal(end.head, done + 1); /* litmus: line_step */
    }
  }
}
