/* SPDX-License-Identifier: Apache-2.0 */
/* Moves in tiles that stay in the first cache: sources are added up as fp32, then quantised and written. */
#include "quantised.h"
#include <string.h>
#include "../program/quantised.h"
#include "host/kernels.h"

enum { TILE = 32 * HK_QUANTISED_BLOCK };

/* A part of an operand on a link. */
typedef struct quantised_part {
  int8_t *values;
  uint8_t *scales;
} quantised_part;

static quantised_part quantised_of(void *link, size_t n, size_t from) {
  char *at = link;
  return (quantised_part){(int8_t *)at + from, (uint8_t *)at + n + from / HK_QUANTISED_BLOCK};
}

static size_t quantised_scales(size_t n) { return hk_quantised_bytes(n) - n; }

/* The smallest scale's byte: multiples of it are exact in the type, and normal numbers in fp32. */
static uint32_t quantised_least(const hk_reducer *r) { return r->dtype == HK_F16 ? 127 - 24 : 1; }

typedef struct quantised_move {
  const hk_kernels *level;
  const hk_reducer *r;
  const hk_quantised_operand *dst, *src;
  unsigned ndst, nsrc;
  int fresh;
  size_t n;
  bool forwards; /* the one source is on a link: no sum, and nothing to round */
  bool rounds;
} quantised_move;

static void quantised_add_up(const quantised_move *m, float *sum, size_t from, size_t n) {
  unsigned k = 0;
  do {
    if (m->src[k].link) {
      const quantised_part p = quantised_of(m->src[k].at, m->n, from);
      m->level->restore(sum, p.values, p.scales, n, k > 0);
    } else {
      const float factor = m->r->pre && m->fresh == (int)k ? m->r->scalar.f32 : 1;
      m->level->widen((hk_dtype)m->r->dtype, sum, (const char *)m->src[k].at + from * m->r->elem_bytes, n, factor,
                      k > 0);
    }
  } while (++k < m->nsrc);
}

static void quantised_write(const quantised_move *m, const float *sum, const quantised_part *rounded, size_t from,
                            size_t n) {
  for (unsigned k = 0; k < m->ndst; k++) {
    if (!m->dst[k].link) {
      m->level->narrow((hk_dtype)m->r->dtype, (char *)m->dst[k].at + from * m->r->elem_bytes, sum, n);
      continue;
    }
    const quantised_part p = quantised_of(m->dst[k].at, m->n, from);
    memcpy(p.values, rounded->values, n);
    memcpy(p.scales, rounded->scales, quantised_scales(n));
  }
}

static void quantised_tile(const quantised_move *m, size_t from, size_t n) {
  _Alignas(64) float sum[TILE];
  _Alignas(64) int8_t values[TILE];
  uint8_t scales[TILE / HK_QUANTISED_BLOCK];
  quantised_part rounded = {values, scales};
  bool kept = false; /* in the user's memory or in scratch */
  for (unsigned k = 0; k < m->ndst; k++) kept |= !m->dst[k].link;
  if (m->forwards) rounded = quantised_of(m->src[0].at, m->n, from);
  if (!m->forwards || kept) {
    quantised_add_up(m, sum, from, n);
    if (m->rounds) m->level->quantise(values, scales, sum, n, quantised_least(m->r));
    if (m->rounds && kept) m->level->restore(sum, values, scales, n, false);
  }
  quantised_write(m, sum, &rounded, from, n);
}

void hk_move_quantised(const hk_reducer *r, const hk_quantised_operand *dst, unsigned ndst,
                       const hk_quantised_operand *src, unsigned nsrc, int fresh, size_t n, bool final) {
  quantised_move m = {hk_kernels_level(), r, dst, src, ndst, nsrc, fresh, n, nsrc == 1 && src[0].link, false};
  for (unsigned k = 0; k < ndst && !m.forwards; k++) m.rounds |= dst[k].link || final;
  for (size_t from = 0; from < n; from += TILE) quantised_tile(&m, from, n - from < TILE ? n - from : TILE);
}
