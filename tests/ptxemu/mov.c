/* SPDX-License-Identifier: Apache-2.0 */
/* Moves: between registers, of parts of registers, of special registers and of addresses. */
#include <string.h>
#include <time.h>
#include "decode.h"

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void mov_32(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const uint32_t *a = ROW(uint32_t, i->a);
  EACH_LANE(d[l] = a[l];);
}
static void mov_64(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint64_t *d = ROW(uint64_t, i->d);
  const uint64_t *a = ROW(uint64_t, i->a);
  EACH_LANE(d[l] = a[l];);
}
static void mov_pred(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  *d = (*d & ~lanes) | ((*ROW(uint32_t, i->a) ^ (i->negate ? ~0u : 0)) & lanes);
}
/* d <- {v...}: elements of `size` bytes */
static void mov_pack(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  EACH_LANE(uint64_t x = 0; for (unsigned k = 0; k < i->n; k++) {
    const uint64_t part = i->size == 8 ? ROW(uint64_t, i->v[k])[l] : ROW(uint32_t, i->v[k])[l];
    x |= (i->size >= 4 ? part : part & 0xffff) << 8 * i->size * k;
  } if (i->wide_d) ROW(uint64_t, i->d)[l] = x;
            else ROW(uint32_t, i->d)[l] = (uint32_t)x;);
}
static void mov_unpack(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  EACH_LANE(const uint64_t x = i->wide_a ? ROW(uint64_t, i->a)[l] : ROW(uint32_t, i->a)[l];
            for (unsigned k = 0; k < i->n; k++) {
              if (i->v[k] == NOWHERE) continue;
              const uint64_t part = x >> 8 * i->size * k;
              if (i->size == 8)
                ROW(uint64_t, i->v[k])[l] = part;
              else
                ROW(uint32_t, i->v[k])[l] = (uint32_t)(i->size == 4 ? part : part & 0xffff);
            });
}
/* The address of a thread's local memory, in its window: from the warp's stack. */
static void mov_local(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t at = (uint64_t)(w->fp - w->stack) + (uint64_t)i->offset;
  uint64_t *d = ROW(uint64_t, i->d);
  const uint64_t stride = (uint64_t)i->ntargets;
  EACH_LANE(d[l] = at + l * stride;);
}
static void mov_param(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t at = (uint64_t)(uintptr_t)w->grid->l.params + (uint64_t)i->offset;
  uint64_t *d = ROW(uint64_t, i->d);
  EACH_LANE(d[l] = at;);
}

/* The special registers: what they are called here and in PTX. */
#define SPECIALS(S)                                                                                                    \
  S(TID_X, "%tid.x")                                                                                                   \
  S(TID_Y, "%tid.y")                                                                                                   \
  S(TID_Z, "%tid.z")                                                                                                   \
  S(NTID_X, "%ntid.x")                                                                                                 \
  S(NTID_Y, "%ntid.y")                                                                                                 \
  S(NTID_Z, "%ntid.z")                                                                                                 \
  S(CTA_X, "%ctaid.x")                                                                                                 \
  S(CTA_Y, "%ctaid.y")                                                                                                 \
  S(CTA_Z, "%ctaid.z")                                                                                                 \
  S(NCTA_X, "%nctaid.x")                                                                                               \
  S(NCTA_Y, "%nctaid.y")                                                                                               \
  S(NCTA_Z, "%nctaid.z")                                                                                               \
  S(LANE, "%laneid")                                                                                                   \
  S(WARP, "%warpid")                                                                                                   \
  S(NWARP, "%nwarpid")                                                                                                 \
  S(WARP_SIZE, "WARP_SZ")                                                                                              \
  S(LANE_EQ, "%lanemask_eq")                                                                                           \
  S(LANE_LE, "%lanemask_le")                                                                                           \
  S(LANE_LT, "%lanemask_lt")                                                                                           \
  S(LANE_GE, "%lanemask_ge")                                                                                           \
  S(LANE_GT, "%lanemask_gt")                                                                                           \
  S(CLOCK, "%clock")                                                                                                   \
  S(CLOCK_HI, "%clock_hi")                                                                                             \
  S(CLOCK64, "%clock64")                                                                                               \
  S(GLOBALTIMER, "%globaltimer")                                                                                       \
  S(GLOBALTIMER_LO, "%globaltimer_lo")                                                                                 \
  S(GLOBALTIMER_HI, "%globaltimer_hi")                                                                                 \
  S(SMID, "%smid")                                                                                                     \
  S(NSMID, "%nsmid")                                                                                                   \
  S(GRIDID, "%gridid")                                                                                                 \
  S(DYN_SHARED, "%dynamic_smem_size")                                                                                  \
  S(TOTAL_SHARED, "%total_smem_size")
#define SPECIAL_ID(id, name) id,
#define SPECIAL_NAME(id, name) name,
enum special { SPECIALS(SPECIAL_ID) NSPECIAL };
static const char *const specials[NSPECIAL] = {SPECIALS(SPECIAL_NAME)};
static uint64_t special(const ptx_warp *w, unsigned which, unsigned l) {
  const ptx_launch *g = &w->grid->l;
  const unsigned t = w->index * LANES + l;
  switch (which) {
    case TID_X: return t % g->block[0];
    case TID_Y: return t / g->block[0] % g->block[1];
    case TID_Z: return t / g->block[0] / g->block[1];
    case NTID_X:
    case NTID_Y:
    case NTID_Z: return g->block[which - NTID_X];
    case CTA_X:
    case CTA_Y:
    case CTA_Z: return w->block->at[which - CTA_X];
    case NCTA_X:
    case NCTA_Y:
    case NCTA_Z: return g->grid[which - NCTA_X];
    case LANE: return l;
    case WARP: return w->index;
    case NWARP: return w->block->nwarps;
    case WARP_SIZE: return LANES;
    case LANE_EQ: return 1u << l;
    case LANE_LE: return ~0u >> (31 - l);
    case LANE_LT: return (1u << l) - 1;
    case LANE_GE: return ~0u << l;
    case LANE_GT: return ~0u << l << 1;
    case SMID: return w->block->index % g->sms;
    case NSMID: return g->sms;
    case GRIDID: return w->grid->id;
    case DYN_SHARED: return g->dynamic_shared;
    case TOTAL_SHARED: return g->dynamic_shared + g->kernel->m->shared;
    case CLOCK_HI:
    case GLOBALTIMER_HI: return now_ns() >> 32;
    default: return now_ns();
  }
}
static void mov_special(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const bool timer = i->op >= CLOCK && i->op <= GLOBALTIMER_HI;
  const uint64_t same = timer ? special(w, i->op, 0) : 0;
  EACH_LANE(const uint64_t x = timer ? same : special(w, i->op, l); if (i->wide_d) ROW(uint64_t, i->d)[l] = x;
            else ROW(uint32_t, i->d)[l] = (uint32_t)x;);
}

static bool place_vector(decoder *d, ptx_ins *i, const operand *o, ptx_type type) {
  i->n = (uint8_t)o->n;
  for (unsigned k = 0; k < o->n; k++) {
    i->v[k] = ptx_source(d, &o->parts[k], type);
    if (i->v[k] == NOWHERE && o->parts[k].kind != O_SINK) return false;
  }
  return true;
}
static bool place_name(decoder *d, ptx_ins *i, const operand *o) {
  for (unsigned s = 0; s < NSPECIAL; s++)
    if (ptx_is(&o->name, specials[s])) {
      i->op = (uint8_t)s;
      i->run = mov_special;
      return true;
    }
  const ptx_variable *v = ptx_module_var(d->f->m, o->name.at, o->name.n);
  const ptx_fn *f = v ? NULL : ptx_module_fn(d->f->m, o->name.at, o->name.n);
  if (!v && !f) return false;
  const uint64_t at = (v ? v->at : (uint64_t)(uintptr_t)f) + (uint64_t)o->offset;
  i->a = ptx_const(d->f->m, i->wide_d ? at : (uint32_t)at, i->wide_d);
  i->run = i->wide_d ? mov_64 : mov_32;
  return true;
}
bool ptx_place_mov(decoder *d, ptx_ins *i, operand *o, unsigned n) {
  const unsigned bytes = ptx_type_bytes((ptx_type)i->type);
  if (n != 2) return false;
  if (o[0].kind == O_VECTOR) {
    i->size = (uint8_t)(bytes / o[0].n);
    i->a = ptx_source(d, &o[1], (ptx_type)i->type);
    i->wide_a = bytes == 8;
    i->run = mov_unpack;
    return o[1].kind != O_VECTOR && i->a != NOWHERE && place_vector(d, i, &o[0], T_B32);
  }
  if (o[0].kind != O_REG) return false;
  i->d = o[0].place;
  i->wide_d = o[0].wide;
  if (o[1].kind == O_VECTOR) {
    i->size = (uint8_t)(bytes / o[1].n);
    i->run = mov_pack;
    return place_vector(d, i, &o[1], i->size == 8 ? T_B64 : T_B32);
  }
  if (o[1].kind == O_SYMBOL) {
    i->offset = o[1].symbol->place + o[1].offset;
    i->ntargets = (unsigned)o[1].symbol->stride; /* of mov_local; no branch */
    i->run = o[1].symbol->kind == SYM_KERNEL_PARAM ? mov_param : mov_local;
    return i->wide_d;
  }
  if (o[1].kind == O_NAME) return place_name(d, i, &o[1]);
  i->a = ptx_source(d, &o[1], (ptx_type)i->type);
  i->negate = o[1].negate;
  i->run = i->type == T_PRED ? mov_pred : i->wide_d ? mov_64 : mov_32;
  return i->a != NOWHERE;
}
