/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomic operations, multicast operations and fences. */
#include <stdlib.h>
#include <string.h>
#include "../cudaemu/emu.h"
#include "access.h"
#include "decode.h"
#include "half.h"

/* ---- now: acquire and release of the host keep each thread's accesses in their order ---- */

static void read_piece(unsigned char *to, uint64_t at, unsigned bytes, bool strong) {
  if (!strong) {
    memcpy(to, (const void *)(uintptr_t)at, bytes);
    return;
  }
  for (unsigned left = bytes; left;) { /* the upper half first: what is next to it is at least as new */
    const unsigned n = left > 8 ? 8 : left;
    left -= n;
    const uintptr_t p = (uintptr_t)at + left;
    uint64_t x8;
    uint32_t x4;
    uint16_t x2;
    if (n == 8)
      x8 = __atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE), memcpy(to + left, &x8, 8);
    else if (n == 4)
      x4 = __atomic_load_n((uint32_t *)p, __ATOMIC_ACQUIRE), memcpy(to + left, &x4, 4);
    else if (n == 2)
      x2 = __atomic_load_n((uint16_t *)p, __ATOMIC_ACQUIRE), memcpy(to + left, &x2, 2);
    else
      to[left] = __atomic_load_n((unsigned char *)p, __ATOMIC_ACQUIRE);
  }
}
void ptx_write_piece(const unsigned char *from, uint64_t at, unsigned bytes, bool strong) {
  if (!strong) {
    memcpy((void *)(uintptr_t)at, from, bytes);
    return;
  }
  for (unsigned done = 0; done < bytes;) {
    const unsigned n = bytes - done > 8 ? 8 : bytes - done;
    const uintptr_t p = (uintptr_t)at + done;
    uint64_t x8;
    uint32_t x4;
    uint16_t x2;
    if (n == 8)
      memcpy(&x8, from + done, 8), __atomic_store_n((uint64_t *)p, x8, __ATOMIC_RELEASE);
    else if (n == 4)
      memcpy(&x4, from + done, 4), __atomic_store_n((uint32_t *)p, x4, __ATOMIC_RELEASE);
    else if (n == 2)
      memcpy(&x2, from + done, 2), __atomic_store_n((uint16_t *)p, x2, __ATOMIC_RELEASE);
    else
      __atomic_store_n((unsigned char *)p, from[done], __ATOMIC_RELEASE);
    done += n;
  }
}
void ptx_read_now(ptx_access *a, uint32_t lanes) {
  for (unsigned l = LANES; l-- > 0;)
    if (lanes >> l & 1) read_piece(a->data[l], a->at[l], a->bytes, a->strong);
}
static void write_multi(const ptx_access *a, unsigned l) {
  char *views[EMU_DEVICES];
  const unsigned n = emu_multicast_views((const void *)(uintptr_t)a->at[l], a->bytes, views);
  for (unsigned d = 0; d < n; d++) ptx_write_piece(a->data[l], (uint64_t)(uintptr_t)views[d], a->bytes, true);
}
void ptx_write_now(const ptx_access *a, uint32_t lanes) {
  for (unsigned l = 0; l < LANES; l++) {
    if (!(lanes >> l & 1)) continue;
    if (a->multi)
      write_multi(a, l);
    else
      ptx_write_piece(a->data[l], a->at[l], a->bytes, a->strong);
  }
}

/* ---- where ---- */

static bool shared_is_there(const ptx_warp *w, uint64_t at, unsigned bytes) {
  const ptx_launch *l = &w->grid->l;
  if (at < SHARED_STATIC) return at + bytes <= l->dynamic_shared;
  return at + bytes <= SHARED_STATIC + l->kernel->m->shared;
}
static void take_addresses(const ptx_warp *w, const ptx_ins *i, uint32_t lanes, uint64_t *at) {
  const uint64_t base = i->space == SP_SHARED  ? (uint64_t)(uintptr_t)w->block->shared
                        : i->space == SP_LOCAL ? (uint64_t)(uintptr_t)w->stack
                                               : 0;
  const uint64_t offset = base + (uint64_t)i->offset;
  if (i->wide_a) {
    const uint64_t *a = ROW(uint64_t, i->a);
    EACH_LANE(at[l] = a[l] + offset;);
  } else {
    const uint32_t *a = ROW(uint32_t, i->a);
    EACH_LANE(at[l] = a[l] + offset;);
  }
}
/* False: a lane's address is not what the instruction says, or not aligned. */
static bool resolve(ptx_warp *w, const ptx_ins *i, uint32_t lanes, ptx_access *a) {
  static const char *const names[] = {"generic", "global", "shared", "local", "param", "const"};
  const uint64_t shared = (uint64_t)(uintptr_t)w->block->shared, stack = (uint64_t)(uintptr_t)w->stack;
  uint64_t low = 0;
  a->lanes = lanes;
  a->bytes = i->n * i->size;
  a->size = i->size;
  a->strong = i->sem != SEM_WEAK;
  a->multi = false;
  a->release = i->sem == SEM_RELEASE;
  a->scope = i->scope;
  a->global = 0;
  take_addresses(w, i, lanes, a->at);
  for (uint32_t left = lanes; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    const bool in_shared = a->at[l] - shared < SHARED_ROOM, in_local = a->at[l] - stack < WARP_STACK;
    low |= a->at[l];
    if (!in_shared && !in_local) a->global |= 1u << l;
    if ((i->space == SP_GLOBAL && (in_shared || in_local)) || (i->space == SP_SHARED && !in_shared) ||
        (i->space == SP_LOCAL && !in_local)) {
      ptx_fail(w, i, "thread %u: %#llx is no address of %s memory", w->index * LANES + l,
               (unsigned long long)(a->at[l] - (i->space == SP_SHARED ? shared : 0)), names[i->space]);
      return false;
    }
    if (in_shared && !shared_is_there(w, a->at[l] - shared, a->bytes)) {
      ptx_fail(w, i, "thread %u: no shared memory at %#llx", w->index * LANES + l,
               (unsigned long long)(a->at[l] - shared));
      return false;
    }
    if (a->at[l] < SHARED_ROOM) { /* NULL, or a place in shared memory that was not made an address */
      ptx_fail(w, i, "thread %u: nothing is at %#llx", w->index * LANES + l, (unsigned long long)a->at[l]);
      return false;
    }
  }
  if (low & (a->bytes - 1)) {
    ptx_fail(w, i, "misaligned: %u bytes", a->bytes);
    return false;
  }
  return true;
}

/* ---- loads and stores ---- */

static uint64_t element(const unsigned char *p, const ptx_ins *i) {
  uint64_t x = 0;
  memcpy(&x, p, i->size);
  if (i->type == T_S8) return (uint64_t)(int8_t)x;
  if (i->type == T_S16) return (uint64_t)(int16_t)x;
  if (i->type == T_S32) return (uint64_t)(int32_t)x;
  return x;
}
static void scatter(ptx_warp *w, const ptx_ins *i, const ptx_access *a) {
  const uint32_t lanes = a->lanes;
  for (unsigned k = 0; k < i->n; k++) {
    if (i->v[k] == NOWHERE) continue;
    if (i->wide_d) {
      uint64_t *d = ROW(uint64_t, i->v[k]);
      EACH_LANE(d[l] = element(a->data[l] + k * i->size, i););
    } else if (i->size == 4) {
      uint32_t *d = ROW(uint32_t, i->v[k]);
      EACH_LANE(memcpy(&d[l], a->data[l] + 4 * k, 4););
    } else {
      uint32_t *d = ROW(uint32_t, i->v[k]);
      EACH_LANE(d[l] = (uint32_t)element(a->data[l] + k * i->size, i););
    }
  }
}
static void gather(ptx_warp *w, const ptx_ins *i, ptx_access *a) {
  const uint32_t lanes = a->lanes;
  for (unsigned k = 0; k < i->n; k++)
    if (i->wide_d) {
      const uint64_t *s = ROW(uint64_t, i->v[k]);
      EACH_LANE(memcpy(a->data[l] + k * i->size, &s[l], i->size););
    } else {
      const uint32_t *s = ROW(uint32_t, i->v[k]);
      EACH_LANE(memcpy(a->data[l] + k * i->size, &s[l], i->size););
    }
}
static void load(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a;
  if (!resolve(w, i, lanes, &a)) return;
  if (a.strong && a.global) ptx_wait(w);
  if (w->grid->l.weak && a.global) {
    ptx_read_now(&a, lanes & ~a.global);
    ptx_model_load(w, &a);
    if (i->sem == SEM_ACQUIRE) ptx_model_acquire(w, a.global, (ptx_scope)i->scope);
  } else {
    ptx_read_now(&a, lanes);
  }
  scatter(w, i, &a);
}
static void store(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a;
  if (!resolve(w, i, lanes, &a)) return;
  gather(w, i, &a);
  if (a.global) w->grid->progress = true;
  if (w->grid->l.weak && a.global) {
    ptx_write_now(&a, lanes & ~a.global);
    if (i->sem == SEM_RELEASE) ptx_model_release(w, a.global, (ptx_scope)i->scope);
    ptx_model_store(w, &a);
  } else {
    if (i->sem == SEM_RELEASE) __atomic_thread_fence(__ATOMIC_RELEASE); /* release: the weak stores before it */
    ptx_write_now(&a, lanes);
  }
}
/* A function's parameters, in its own frame or for the call of another. */
static void load_param(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes};
  const char *from = w->fp + i->a + i->offset;
  EACH_LANE(memcpy(a.data[l], from + (size_t)l * i->ntargets * 16, (size_t)i->n * i->size););
  scatter(w, i, &a);
}
static void store_param(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes};
  char *to = w->fp + i->a + i->offset;
  gather(w, i, &a);
  EACH_LANE(memcpy(to + (size_t)l * i->ntargets * 16, a.data[l], (size_t)i->n * i->size););
}
static void load_kernel_param(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes};
  EACH_LANE(memcpy(a.data[l], (const char *)w->grid->l.params + i->offset, (size_t)i->n * i->size););
  scatter(w, i, &a);
}

/* ---- atomic operations ---- */

enum { A_ADD, A_AND, A_OR, A_XOR, A_MIN, A_MAX, A_EXCH, A_CAS, A_INC, A_DEC, A_NONE };
static const char *const atom_names[] = {"add", "and", "or", "xor", "min", "max", "exch", "cas", "inc", "dec"};

static uint32_t halves(uint32_t x, uint32_t y, unsigned op, bool bf16, bool two) {
  uint32_t out = 0;
  for (unsigned k = 0; k < (two ? 2 : 1); k++, x >>= 16, y >>= 16) {
    const float a = bf16 ? ptx_bf16_in(x & 0xffff) : ptx_f16_in(x & 0xffff);
    const float b = bf16 ? ptx_bf16_in(y & 0xffff) : ptx_f16_in(y & 0xffff);
    const float r = op == A_ADD ? a + b : (op == A_MIN) == (a < b) ? a : b;
    out |= (bf16 ? ptx_bf16_out(r) : ptx_f16_out(r)) << 16 * k;
  }
  return out;
}
static uint64_t combined(ptx_type t, unsigned op, uint64_t x, uint64_t y, uint64_t z) {
  double dx, dy;
  switch (op) {
    case A_AND: return x & y;
    case A_OR: return x | y;
    case A_XOR: return x ^ y;
    case A_EXCH: return y;
    case A_CAS: return x == y ? z : x;
    case A_INC: return x >= y ? 0 : x + 1;
    case A_DEC: return x == 0 || x > y ? y : x - 1;
    default: break;
  }
  switch (t) {
    case T_F16:
    case T_F16X2: return halves((uint32_t)x, (uint32_t)y, op, false, t == T_F16X2);
    case T_BF16:
    case T_BF16X2: return halves((uint32_t)x, (uint32_t)y, op, true, t == T_BF16X2);
    case T_F32: return ptx_f32_bits(ptx_f32((uint32_t)x) + ptx_f32((uint32_t)y));
    case T_F64: memcpy(&dx, &x, 8), memcpy(&dy, &y, 8), dx += dy, memcpy(&x, &dx, 8); return x;
    case T_S32:
      if (op != A_ADD) return ((int32_t)x < (int32_t)y) == (op == A_MIN) ? x : y;
      break;
    case T_S64:
      if (op != A_ADD) return ((int64_t)x < (int64_t)y) == (op == A_MIN) ? x : y;
      break;
    default:
      if (op != A_ADD) return (x < y) == (op == A_MIN) ? x : y;
  }
  return x + y;
}
static uint64_t atom_once(const ptx_ins *i, uint64_t at, uint64_t y, uint64_t z) {
  if (i->size == 8) {
    uint64_t *p = (uint64_t *)(uintptr_t)at, old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, combined((ptx_type)i->type, i->op, old, y, z), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
      ;
    return old;
  }
  if (i->size == 2) {
    uint16_t *p = (uint16_t *)(uintptr_t)at, old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, (uint16_t)combined((ptx_type)i->type, i->op, old, y, z), false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      ;
    return old;
  }
  uint32_t *p = (uint32_t *)(uintptr_t)at, old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(p, &old, (uint32_t)combined((ptx_type)i->type, i->op, old, y, z), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    ;
  return old;
}
static uint64_t value_of(const ptx_warp *w, int32_t row, bool wide, unsigned l) {
  if (row == NOWHERE) return 0;
  return wide ? ROW(uint64_t, row)[l] : ROW(uint32_t, row)[l];
}
static void order_before(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  if (w->grid->l.weak && i->sem >= SEM_RELEASE) ptx_model_release(w, lanes, (ptx_scope)i->scope);
}
static void order_after(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  if (w->grid->l.weak && (i->sem == SEM_ACQUIRE || i->sem >= SEM_ACQ_REL))
    ptx_model_acquire(w, lanes, (ptx_scope)i->scope);
}
static void atom(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a;
  if (!resolve(w, i, lanes, &a)) return;
  if (a.global) {
    order_before(w, i, a.global);
    if (w->grid->l.weak) ptx_model_touch(w, &a);
    ptx_wait(w);
    w->grid->progress = true;
  }
  const bool wide = i->size == 8;
  EACH_LANE(const uint64_t old = atom_once(i, a.at[l], value_of(w, i->b, wide, l), value_of(w, i->c, wide, l));
            if (i->v[0] != NOWHERE) {
              if (wide)
                ROW(uint64_t, i->v[0])[l] = old;
              else
                ROW(uint32_t, i->v[0])[l] = (uint32_t)old;
            });
  if (a.global) order_after(w, i, a.global);
}

/* ---- multicast ---- */

static bool multi_views(ptx_warp *w, const ptx_ins *i, uint64_t at, unsigned bytes, char **views, unsigned *n) {
  *n = emu_multicast_views((const void *)(uintptr_t)at, bytes, views);
  if (*n && !(at & (bytes - 1))) return true;
  ptx_fail(w, i, "%#llx is no aligned multicast address with memory on all its devices", (unsigned long long)at);
  return false;
}
static void multi_load(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes, .bytes = i->n * (unsigned)i->size, .strong = true};
  take_addresses(w, i, lanes, a.at);
  for (uint32_t left = lanes; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    char *views[EMU_DEVICES];
    unsigned n;
    if (!multi_views(w, i, a.at[l], a.bytes, views, &n)) return;
    for (unsigned d = 0; d < n; d++) { /* in an order that no program may count on */
      unsigned char one[32];
      read_piece(one, (uint64_t)(uintptr_t)views[(d + (a.at[l] >> 4)) % n], a.bytes, true);
      for (unsigned k = 0; k < i->n && d; k++) {
        uint64_t x = 0, y = 0;
        memcpy(&x, a.data[l] + k * i->size, i->size);
        memcpy(&y, one + k * i->size, i->size);
        x = combined((ptx_type)i->type, i->op, x, y, 0);
        memcpy(a.data[l] + k * i->size, &x, i->size);
      }
      if (!d) memcpy(a.data[l], one, a.bytes);
    }
  }
  if (i->sem == SEM_ACQUIRE && w->grid->l.weak) ptx_model_acquire(w, lanes, (ptx_scope)i->scope);
  scatter(w, i, &a);
}
/* Halves with an fp32 accumulator: added up there, and rounded once. */
static void multi_load_halves(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes, .bytes = i->n * (unsigned)i->size};
  const bool bf16 = i->type == T_BF16X2 || i->type == T_BF16;
  take_addresses(w, i, lanes, a.at);
  for (uint32_t left = lanes; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    char *views[EMU_DEVICES];
    unsigned n;
    float sum[16] = {0};
    uint16_t one[16];
    if (!multi_views(w, i, a.at[l], a.bytes, views, &n)) return;
    for (unsigned d = 0; d < n; d++) {
      read_piece((unsigned char *)one, (uint64_t)(uintptr_t)views[d], a.bytes, true);
      for (unsigned k = 0; k < a.bytes / 2; k++) {
        const float x = bf16 ? ptx_bf16_in(one[k]) : ptx_f16_in(one[k]);
        sum[k] = d ? sum[k] + x : x;
      }
    }
    for (unsigned k = 0; k < a.bytes / 2; k++) one[k] = (uint16_t)(bf16 ? ptx_bf16_out(sum[k]) : ptx_f16_out(sum[k]));
    memcpy(a.data[l], one, a.bytes);
  }
  scatter(w, i, &a);
}
static void multi_store(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  ptx_access a = {.lanes = lanes,
                  .bytes = i->n * (unsigned)i->size,
                  .size = i->size,
                  .multi = true,
                  .strong = true,
                  .scope = i->scope,
                  .release = i->sem == SEM_RELEASE};
  char *views[EMU_DEVICES];
  unsigned n;
  take_addresses(w, i, lanes, a.at);
  EACH_LANE(if (!multi_views(w, i, a.at[l], a.bytes, views, &n)) return;);
  gather(w, i, &a);
  a.global = lanes;
  w->grid->progress = true;
  if (i->sem == SEM_RELEASE && w->grid->l.weak) ptx_model_release(w, lanes, (ptx_scope)i->scope);
  if (w->grid->l.weak)
    ptx_model_store(w, &a);
  else
    ptx_write_now(&a, lanes);
}
static void multi_red(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint64_t at[LANES];
  take_addresses(w, i, lanes, at);
  order_before(w, i, lanes);
  for (uint32_t left = lanes; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    char *views[EMU_DEVICES];
    unsigned n;
    if (!multi_views(w, i, at[l], i->size, views, &n)) return;
    for (unsigned d = 0; d < n; d++)
      atom_once(i, (uint64_t)(uintptr_t)views[d], value_of(w, i->v[0], i->size == 8, l), 0);
  }
  w->grid->progress = true;
}

/* ---- fences ---- */

static void fence(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the host's own accesses on behalf of these threads */
  if (!w->grid->l.weak) return;
  if (i->alias) {
    ptx_model_alias(w, lanes);
    return;
  }
  if (i->sem != SEM_ACQUIRE) ptx_model_release(w, lanes, (ptx_scope)i->scope);
  if (i->sem != SEM_RELEASE) ptx_model_acquire(w, lanes, (ptx_scope)i->scope);
}
static void order_of(const ptx_mods *m, ptx_ins *i) {
  i->scope = ptx_has(m, "sys") ? SCOPE_SYS : ptx_has(m, "cta") ? SCOPE_CTA : SCOPE_GPU;
  i->sem = ptx_has(m, "acquire")   ? SEM_ACQUIRE
           : ptx_has(m, "release") ? SEM_RELEASE
           : ptx_has(m, "acq_rel") ? SEM_ACQ_REL
           : ptx_has(m, "sc")      ? SEM_SC
           : ptx_has(m, "relaxed") ? SEM_RELAXED
                                   : SEM_WEAK;
  if (ptx_has(m, "volatile") || ptx_has(m, "cv") || ptx_has(m, "mmio")) {
    i->sem = SEM_RELAXED;
    i->scope = SCOPE_SYS;
  }
}
bool ptx_select_fence(const ptx_mods *m, ptx_ins *i) {
  order_of(m, i);
  i->run = fence;
  if (strcmp(m->op, "membar") == 0) {
    i->sem = SEM_SC;
    i->scope = ptx_has(m, "sys") ? SCOPE_SYS : ptx_has(m, "cta") ? SCOPE_CTA : SCOPE_GPU;
  }
  i->alias = ptx_has(m, "proxy") || ptx_has(m, "proxy::alias") || ptx_has(m, "alias");
  if (i->alias && !ptx_has(m, "alias")) return false; /* another proxy */
  if (i->sem == SEM_WEAK) i->sem = SEM_ACQ_REL;
  return true;
}

/* ---- selection ---- */

bool ptx_select_memory(const ptx_mods *m, ptx_ins *i) {
  const bool multi = strcmp(m->op, "multimem") == 0, atomic = strcmp(m->op, "atom") == 0 || strcmp(m->op, "red") == 0;
  order_of(m, i);
  if ((atomic || multi) && i->sem == SEM_WEAK) i->sem = SEM_RELAXED;
  i->space = ptx_has(m, "global")                                                             ? SP_GLOBAL
             : ptx_has(m, "shared") || ptx_has(m, "shared::cta")                              ? SP_SHARED
             : ptx_has(m, "local")                                                            ? SP_LOCAL
             : ptx_has(m, "param") || ptx_has(m, "param::entry") || ptx_has(m, "param::func") ? SP_PARAM
             : ptx_has(m, "const")                                                            ? SP_CONST
                                                                                              : SP_GENERIC;
  if (ptx_has(m, "shared::cluster")) return false;
  i->size = (uint8_t)ptx_type_bytes((ptx_type)i->type);
  i->op = A_NONE;
  for (unsigned k = 0; k < A_NONE; k++)
    if (ptx_has(m, atom_names[k])) i->op = (uint8_t)k;
  if (i->size > 8 || i->n * i->size > 32) return false;
  if (multi) {
    const bool halves_sum = ptx_has(m, "acc::f32");
    i->run = ptx_has(m, "ld_reduce") ? (halves_sum ? multi_load_halves : multi_load)
             : ptx_has(m, "st")      ? multi_store
             : ptx_has(m, "red")     ? multi_red
                                     : NULL;
    if (halves_sum && i->op != A_ADD) return false;
    return i->run && (i->op != A_NONE || i->run == multi_store);
  }
  if (atomic) {
    i->run = atom;
    return i->op != A_NONE && i->n == 1 && i->size >= 2;
  }
  const bool loads = strcmp(m->op, "st") != 0;
  if (i->kind == K_EXIT) { /* as ptx_place_memory marks a kernel's parameter: at a place, not by a register */
    i->kind = K_PLAIN;
    i->run = load_kernel_param;
    return loads;
  }
  if (i->kind == K_RET) { /* and a function's */
    i->kind = K_PLAIN;
    i->run = loads ? load_param : store_param;
    return true;
  }
  if (i->space == SP_PARAM || i->space == SP_CONST) i->space = SP_GENERIC;
  i->run = loads ? load : store;
  return true;
}
static bool place_data(decoder *d, ptx_ins *i, const operand *o) {
  const bool list = o->kind == O_VECTOR;
  i->n = (uint8_t)(list ? o->n : 1);
  for (unsigned k = 0; k < i->n; k++) {
    const operand *one = list ? &o->parts[k] : o;
    i->v[k] = ptx_source(d, one, (ptx_type)i->type);
    if (one->kind == O_REG && one->wide) i->wide_d = true;
    if (one->kind == O_NUMBER) i->wide_d = ptx_type_bytes((ptx_type)i->type) == 8;
    if (i->v[k] == NOWHERE && one->kind != O_SINK) return false;
  }
  return true;
}
bool ptx_place_memory(decoder *d, const ptx_mods *m, ptx_ins *i, operand *o, unsigned n) {
  const bool gives = strcmp(m->op, "st") != 0 && strcmp(m->op, "red") != 0 &&
                     (strcmp(m->op, "multimem") != 0 || ptx_has(m, "ld_reduce"));
  const unsigned at = gives ? 1 : 0;
  if (n < 2 || o[at].kind != O_ADDRESS) return false;
  i->a = o[at].place;
  i->wide_a = o[at].wide;
  i->offset = o[at].offset;
  if (o[at].symbol) {
    const symbol *s = o[at].symbol;
    if (s->kind == SYM_LOCAL) return false;
    i->kind = s->kind == SYM_KERNEL_PARAM ? K_EXIT : K_RET;
    if (s->kind == SYM_KERNEL_PARAM) i->offset += s->place;
    i->a = s->place;
    i->ntargets = (unsigned)s->stride / 16;
  }
  if (strcmp(m->op, "atom") == 0 || strcmp(m->op, "red") == 0) {
    i->n = 1;
    if (gives) i->v[0] = o[0].place;
    i->b = ptx_source(d, &o[at + 1], (ptx_type)i->type);
    if (n > at + 2) i->c = ptx_source(d, &o[at + 2], (ptx_type)i->type);
    return i->b != NOWHERE;
  }
  return place_data(d, i, &o[gives ? 0 : 1]);
}
