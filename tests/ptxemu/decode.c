/* SPDX-License-Identifier: Apache-2.0 */
/* A function's text becomes instructions: registers get rows in its frame, labels become pointers. */
#include "decode.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static symbol *add_symbol(decoder *d, symbol_kind kind, const ptx_token *name) {
  if (d->nsymbols == MAX_SYMBOLS) abort();
  symbol *s = &d->symbols[d->nsymbols++];
  *s = (symbol){.kind = kind, .name = name->at, .n = name->n};
  return s;
}
static int32_t place(decoder *d, size_t bytes) {
  const int32_t at = d->code->frame;
  d->code->frame += (int32_t)((bytes + 127) / 128 * 128);
  return at;
}
static const symbol *find_symbol(const decoder *d, const ptx_token *t, unsigned *index) {
  unsigned n = t->n, number = 0, scale = 1;
  while (n > 0 && isdigit((unsigned char)t->at[n - 1]) && scale < 1000000000) {
    number += (unsigned)(t->at[--n] - '0') * scale;
    scale *= 10;
  }
  for (unsigned i = d->nsymbols; i-- > 0;) {
    const symbol *s = &d->symbols[i];
    *index = 0;
    if (s->n == t->n && !s->count && memcmp(s->name, t->at, s->n) == 0) return s;
    *index = number;
    if (s->count && s->n == n && n < t->n && number < s->count && memcmp(s->name, t->at, n) == 0) return s;
  }
  return NULL;
}
static int32_t row_of(const symbol *s, unsigned index) { return s->place + (int32_t)index * s->stride; }

/* .reg .b32 %r<37>, x; */
static bool read_registers(decoder *d, ptx_reader *r) {
  const ptx_type type = ptx_type_of(r->now.at + 1, r->now.n - 1);
  bool ok = type != T_NONE && type != T_B128;
  ptx_read(r);
  while (ok && !ptx_accept(r, ";")) {
    symbol *s = add_symbol(d, SYM_REG, &r->now);
    s->pred = type == T_PRED;
    s->wide = ptx_type_bytes(type) == 8;
    s->stride = s->pred ? 4 : s->wide ? 256 : 128;
    ptx_read(r);
    unsigned n = 1;
    if (ptx_accept(r, "<")) {
      n = s->count = (unsigned)ptx_number(&r->now, &ok);
      ptx_read(r);
      ok = ok && ptx_accept(r, ">");
    }
    s->place = place(d, (size_t)n * (size_t)s->stride);
    ptx_accept(r, ",");
  }
  return ok;
}
/* .param or .local of a body: bytes of each lane's own. */
static bool read_memory(decoder *d, ptx_reader *r, symbol_kind kind) {
  size_t align = 1, bytes = 0;
  bool ok = true;
  while (r->now.n && r->now.at[0] == '.') {
    if (ptx_accept(r, ".align"))
      align = ptx_number(&r->now, &ok);
    else
      bytes = ptx_type_bytes(ptx_type_of(r->now.at + 1, r->now.n - 1));
    ptx_read(r);
  }
  symbol *s = add_symbol(d, kind, &r->now);
  ptx_read(r);
  if (ptx_accept(r, "[")) {
    bytes *= ptx_number(&r->now, &ok);
    ptx_read(r);
    ok = ok && ptx_accept(r, "]");
  }
  s->stride = (int32_t)((bytes + 15) / 16 * 16);
  s->bytes = bytes;
  s->place = place(d, (size_t)s->stride * LANES);
  return ok && bytes && align <= 128 && ptx_accept(r, ";");
}

/* ---- operands ---- */

static bool read_address(decoder *d, ptx_reader *r, operand *o) {
  unsigned index;
  bool ok;
  *o = (operand){.kind = O_ADDRESS, .place = NOWHERE};
  const symbol *s = find_symbol(d, &r->now, &index);
  const ptx_variable *v = s ? NULL : ptx_module_var(d->f->m, r->now.at, r->now.n);
  if (s && s->kind == SYM_REG) {
    o->place = row_of(s, index);
    o->wide = s->wide;
  } else if (s) {
    o->symbol = s;
  } else if (v) {
    o->place = ptx_const(d->f->m, v->at, true);
    o->wide = true;
  } else {
    uint64_t x = ptx_number(&r->now, &ok);
    if (!ok) return false;
    o->place = ptx_const(d->f->m, x, true);
    o->wide = true;
  }
  ptx_read(r);
  while (ptx_is(&r->now, "+") || ptx_is(&r->now, "-")) {
    bool minus = ptx_is(&r->now, "-");
    ptx_read(r);
    if (ptx_accept(r, "-")) minus = !minus;
    const int64_t x = (int64_t)ptx_number(&r->now, &ok);
    if (!ok) return false;
    o->offset += minus ? -x : x;
    ptx_read(r);
  }
  return ptx_accept(r, "]");
}
static bool read_number(ptx_reader *r, operand *o) {
  bool ok, minus = ptx_accept(r, "-");
  o->kind = O_NUMBER;
  o->value = ptx_number(&r->now, &ok);
  o->single = r->now.n > 2 && (r->now.at[1] == 'f' || r->now.at[1] == 'F') && r->now.at[0] == '0';
  o->fraction = memchr(r->now.at, '.', r->now.n) != NULL;
  if (minus) o->value = o->fraction ? o->value ^ 1ull << 63 : 0 - o->value;
  ptx_read(r);
  return ok;
}
static bool read_operand(decoder *d, ptx_reader *r, operand *o) {
  unsigned index;
  *o = (operand){.place = NOWHERE, .also = NOWHERE};
  if (ptx_accept(r, "[")) return read_address(d, r, o);
  if (ptx_accept(r, "{")) {
    o->kind = O_VECTOR;
    while (!ptx_accept(r, "}")) {
      if (o->n == VECTOR || !(o->parts ? true : (o->parts = calloc(VECTOR, sizeof *o->parts)) != NULL)) return false;
      if (!read_operand(d, r, &o->parts[o->n++])) return false;
      ptx_accept(r, ",");
    }
    return o->n > 0;
  }
  if (ptx_is(&r->now, "-") || isdigit((unsigned char)*r->now.at)) return read_number(r, o);
  o->negate = ptx_accept(r, "!");
  o->name = r->now;
  ptx_read(r);
  if (ptx_is(&o->name, "_")) {
    o->kind = O_SINK;
  } else {
    o->symbol = find_symbol(d, &o->name, &index);
    o->kind = o->symbol ? (o->symbol->kind == SYM_REG ? O_REG : O_SYMBOL) : O_NAME;
  }
  if (o->kind == O_REG) {
    o->place = row_of(o->symbol, index);
    o->wide = o->symbol->wide;
  }
  if (ptx_accept(r, "+")) {
    operand offset = {0};
    if (!read_number(r, &offset)) return false;
    o->offset = (int64_t)offset.value;
  }
  if (ptx_accept(r, "|")) {
    operand second;
    if (!read_operand(d, r, &second)) return false;
    o->also = second.place;
  }
  return true;
}
static void drop_operands(operand *o, unsigned n) {
  for (unsigned i = 0; i < n; i++) free(o[i].parts);
}

/* ---- instructions ---- */

ptx_ins *ptx_add_ins(decoder *d) {
  ptx_code *c = d->code;
  if (c->n == d->capacity) {
    d->capacity = d->capacity ? 2 * d->capacity : 256;
    c->ins = realloc(c->ins, d->capacity * sizeof *c->ins);
    if (!c->ins) abort();
  }
  ptx_ins *i = &c->ins[c->n++];
  *i = (ptx_ins){.guard = -1, .d = NOWHERE, .a = NOWHERE, .b = NOWHERE, .c = NOWHERE, .e = NOWHERE, .line = d->line};
  for (int k = 0; k < VECTOR; k++) i->v[k] = NOWHERE;
  return i;
}
static void split(const ptx_token *t, ptx_mods *m) {
  unsigned at = 0;
  *m = (ptx_mods){.n = 0};
  for (unsigned part = 0; at < t->n; part++) {
    unsigned n = 0;
    while (at + n < t->n && t->at[at + n] != '.') n++;
    char *to = part ? m->mod[m->n] : m->op;
    const unsigned keep = n < 23 ? n : 23;
    memcpy(to, t->at + at, keep);
    to[keep] = '\0';
    const ptx_type type = part ? ptx_type_of(to, keep) : T_NONE;
    if (type != T_NONE && m->ntypes < 4)
      m->type[m->ntypes++] = type;
    else if (part && m->n < 15)
      m->n++;
    at += n + 1;
  }
}
bool ptx_has(const ptx_mods *m, const char *mod) {
  for (unsigned i = 0; i < m->n; i++)
    if (strcmp(m->mod[i], mod) == 0) return true;
  return false;
}

static bool is_wide(ptx_type t) { return ptx_type_bytes(t) == 8; }
/* The row of a source; k: its place among the sources. */
int32_t ptx_source(decoder *d, const operand *o, ptx_type type) {
  if (o->kind == O_NUMBER) {
    uint64_t x = o->value;
    if (type == T_PRED) return ptx_const(d->f->m, x ? 0xffffffffu : 0, false);
    if (o->fraction && type == T_F32) {
      double wide;
      float narrow;
      uint32_t bits;
      memcpy(&wide, &x, 8);
      narrow = (float)wide;
      memcpy(&bits, &narrow, 4);
      x = bits;
    }
    const unsigned bytes = ptx_type_bytes(type);
    if (bytes < 4) x &= (1u << 8 * bytes) - 1;
    return ptx_const(d->f->m, is_wide(type) ? x : (uint32_t)x, is_wide(type));
  }
  return o->place;
}
/* What the operand at `k` (0: the destination) must be, where it is not the instruction's own type. */
static ptx_type operand_type(const ptx_mods *m, unsigned k, ptx_type type) {
  const char *op = m->op;
  if (strcmp(op, "shl") == 0 || strcmp(op, "shr") == 0) return k == 2 ? T_U32 : type;
  if (strcmp(op, "shf") == 0) return T_B32;
  if (strcmp(op, "bfe") == 0) return k >= 2 ? T_U32 : type;
  if (strcmp(op, "bfi") == 0) return k >= 3 ? T_U32 : type;
  if (strcmp(op, "selp") == 0) return k == 3 ? T_PRED : type;
  if (strcmp(op, "setp") == 0) return k == 0 || k == 3 ? T_PRED : type;
  if (strcmp(op, "vote") == 0) return k == 1 ? T_PRED : T_B32;
  if (strcmp(op, "bar") == 0 || strcmp(op, "barrier") == 0) return T_B32;
  if (strcmp(op, "shfl") == 0) return T_B32;
  if (strcmp(op, "cvt") == 0 && m->ntypes > 1) return k ? m->type[m->ntypes - 1] : type;
  if (ptx_has(m, "wide")) return k == 3 ? (ptx_type_bytes(type) == 2 ? T_U32 : T_U64) : type;
  return type;
}

static bool finish_call(decoder *d, ptx_reader *r, ptx_ins *call);
static bool place_operands(decoder *d, const ptx_mods *m, ptx_ins *i, operand *o, unsigned n) {
  int32_t *const to[] = {&i->d, &i->a, &i->b, &i->c, &i->v[0]};
  for (unsigned k = 0; k < n; k++) {
    const ptx_type type = operand_type(m, k, (ptx_type)i->type);
    if (o[k].kind == O_VECTOR || k >= 5) return false;
    *to[k] = ptx_source(d, &o[k], type);
    if (o[k].also != NOWHERE) i->e = o[k].also;
    if (k == 0) i->wide_d = o[k].wide;
    if (k == 1) i->wide_a = o[k].kind == O_NUMBER ? is_wide(type) : o[k].wide;
    if (o[k].negate) i->negate = true;
    if (*to[k] == NOWHERE && o[k].kind != O_SINK) return false;
  }
  return true;
}
static bool decode_branch(decoder *d, ptx_reader *r, ptx_ins *i, const ptx_mods *m) {
  const uint32_t at = (uint32_t)(i - d->code->ins);
  if (strcmp(m->op, "bra") == 0) {
    i->kind = K_BRA;
    ptx_label_use(d, at, &r->now);
    ptx_read(r);
    return ptx_accept(r, ";");
  }
  operand index; /* brx.idx */
  i->kind = K_BRX;
  if (!read_operand(d, r, &index) || index.kind != O_REG || !ptx_accept(r, ",")) return false;
  i->a = index.place;
  ptx_label_use(d, at, &r->now);
  ptx_read(r);
  return ptx_accept(r, ";");
}
static bool decode_instruction(decoder *d, ptx_reader *r) {
  operand o[8], guard;
  unsigned n = 0;
  ptx_mods m;
  bool ok = true, guarded = false;
  d->line = r->now.line;
  if (ptx_accept(r, "@")) {
    guarded = true;
    if (!read_operand(d, r, &guard) || guard.kind != O_REG) return false;
  }
  split(&r->now, &m);
  d->op = r->now;
  ptx_read(r);
  ptx_ins *i = ptx_add_ins(d);
  if (guarded) {
    i->guard = guard.place;
    i->guard_not = guard.negate;
  }
  i->type =
      (uint8_t)(m.ntypes
                    ? m.type[m.ntypes > 1 && strcmp(m.op, "cvt") != 0 && strcmp(m.op, "set") != 0 ? m.ntypes - 1 : 0]
                    : T_B32);
  if (m.ntypes > 1) i->from = (uint8_t)m.type[m.ntypes - 1];
  if (strcmp(m.op, "bra") == 0 || strcmp(m.op, "brx") == 0) return decode_branch(d, r, i, &m);
  if (strcmp(m.op, "call") == 0) return finish_call(d, r, i);
  while (ok && !ptx_accept(r, ";")) {
    ok = n < 8 && read_operand(d, r, &o[n]);
    n += ok;
    ptx_accept(r, ",");
  }
  if (ok) {
    const char *op = m.op;
    if (strcmp(op, "ld") == 0 || strcmp(op, "st") == 0 || strcmp(op, "ldu") == 0 || strcmp(op, "atom") == 0 ||
        strcmp(op, "red") == 0 || strcmp(op, "multimem") == 0)
      ok = ptx_place_memory(d, &m, i, o, n) && ptx_select_memory(&m, i);
    else if (strcmp(op, "mov") == 0)
      ok = ptx_place_mov(d, i, o, n);
    else if (strcmp(op, "prefetch") == 0 || strcmp(op, "prefetchu") == 0 || strcmp(op, "discard") == 0)
      i->run = NULL;
    else
      ok = place_operands(d, &m, i, o, n) && ptx_select(&m, i);
  }
  drop_operands(o, n);
  return ok;
}

/* ---- calls ---- */

static int32_t layout(ptx_param *list, unsigned n, int32_t at) {
  for (unsigned i = 0; i < n; i++) {
    list[i].place = at;
    at += (int32_t)((list[i].bytes + 15) / 16 * 16 * LANES);
  }
  return at;
}
/* The head of each frame: where lanes return to (pc, fp), parameters, results. */
static int32_t layout_head(ptx_fn *f) { return layout(f->results, f->nresults, layout(f->params, f->nparams, 384)); }

static bool read_list(decoder *d, ptx_reader *r, operand *o, unsigned *n) {
  *n = 0;
  if (!ptx_accept(r, "(")) return false;
  while (!ptx_accept(r, ")")) {
    if (*n == 64 || !read_operand(d, r, &o[*n]) || o[*n].kind != O_SYMBOL) return false;
    ++*n;
    ptx_accept(r, ",");
  }
  return true;
}
static ptx_pass *pass_of(const operand *o, const ptx_param *p, unsigned n, bool back) {
  ptx_pass *list = calloc(n + 1, sizeof *list);
  if (!list) abort();
  for (unsigned k = 0; k < n; k++) {
    const uint32_t theirs = (uint32_t)(p[k].bytes + 15) / 16 * 16, ours = (uint32_t)o[k].symbol->stride;
    list[k] = back ? (ptx_pass){p[k].place, o[k].symbol->place, theirs, ours}
                   : (ptx_pass){o[k].symbol->place, p[k].place, ours, theirs};
  }
  return list;
}
static bool finish_call(decoder *d, ptx_reader *r, ptx_ins *call) {
  operand results[64], args[64];
  unsigned nresults = 0, nargs = 0;
  if (ptx_is(&r->now, "(") && (!read_list(d, r, results, &nresults) || !ptx_accept(r, ","))) return false;
  ptx_fn *f = ptx_module_fn(d->f->m, r->now.at, r->now.n);
  if (!f) return false; /* a call by address */
  ptx_read(r);
  if (ptx_accept(r, ",") && !read_list(d, r, args, &nargs)) return false;
  if (!ptx_accept(r, ";") || nargs != f->nparams || nresults != f->nresults) return false;
  layout_head(f);
  call->kind = K_CALL;
  call->callee = f;
  call->npass = nargs;
  call->pass = pass_of(args, f->params, nargs, false);
  ptx_ins *after = ptx_add_ins(d);
  after->kind = K_RETURNED;
  after->nback = nresults;
  after->back = pass_of(results, f->results, nresults, true);
  return true;
}

/* ---- bodies ---- */

static bool decode_branch_targets(decoder *d, ptx_reader *r, const ptx_token *label) {
  ptx_table *t = ptx_add_table(d, label);
  while (!ptx_accept(r, ";")) {
    if (t->n == MAX_TARGETS) return false;
    t->target[t->n++] = r->now;
    ptx_read(r);
    ptx_accept(r, ",");
  }
  return true;
}
static bool decode_directive(decoder *d, ptx_reader *r) {
  if (ptx_accept(r, ".reg")) return read_registers(d, r);
  if (ptx_accept(r, ".param")) return read_memory(d, r, SYM_PARAM);
  if (ptx_accept(r, ".local")) return read_memory(d, r, SYM_LOCAL);
  if (ptx_accept(r, ".shared")) return ptx_read_variable(d->f->m, r, SP_SHARED) != NULL;
  if (ptx_accept(r, ".global")) return ptx_read_variable(d->f->m, r, SP_GLOBAL) != NULL;
  if (ptx_accept(r, ".const")) return ptx_read_variable(d->f->m, r, SP_CONST) != NULL;
  const uint32_t line = r->now.line; /* .pragma, .loc */
  while (r->now.n && r->now.line == line && !ptx_accept(r, ";")) ptx_read(r);
  return true;
}
static bool decode_body(decoder *d, ptx_reader *r) {
  unsigned marks[64], depth = 0;
  for (ptx_read(r); r->now.n;) {
    if (ptx_accept(r, "{")) {
      if (depth == 64) return false;
      marks[depth++] = d->nsymbols;
    } else if (ptx_accept(r, "}")) {
      if (!depth) return false;
      d->nsymbols = marks[--depth];
    } else if (ptx_accept(r, ";")) {
      continue;
    } else if (*r->now.at == '.') {
      if (!decode_directive(d, r)) return false;
    } else {
      const ptx_token word = r->now;
      ptx_reader ahead = *r;
      ptx_read(&ahead);
      if (ptx_is(&ahead.now, ":")) {
        *r = ahead;
        ptx_read(r);
        if (ptx_accept(r, ".branchtargets")) {
          if (!decode_branch_targets(d, r, &word)) return false;
        } else {
          ptx_label_here(d, &word);
        }
      } else if (!decode_instruction(d, r)) {
        return false;
      }
    }
  }
  return true;
}

ptx_code *ptx_decode(ptx_fn *f) {
  decoder *d = calloc(1, sizeof *d);
  if (!d || !(d->code = calloc(1, sizeof *d->code))) abort();
  d->f = f;
  d->code->frame = f->entry ? 384 : layout_head(f);
  d->code->frame = (d->code->frame + 127) / 128 * 128;
  for (unsigned k = 0; k < f->nparams + f->nresults; k++) {
    const ptx_param *p = k < f->nparams ? &f->params[k] : &f->results[k - f->nparams];
    const ptx_token name = {p->name, (unsigned)strlen(p->name), 0};
    symbol *s = add_symbol(d, f->entry ? SYM_KERNEL_PARAM : SYM_PARAM, &name);
    s->place = f->entry ? (int32_t)p->at : p->place;
    s->stride = (int32_t)((p->bytes + 15) / 16 * 16);
  }
  ptx_reader r = {f->body, f->end, f->line, {NULL, 0, 0}};
  bool ok = decode_body(d, &r);
  if (ok) {
    ptx_add_ins(d)->kind = K_RET;
    ok = ptx_link(d);
  }
  if (!ok) {
    fprintf(stderr, "ptxemu: function %s, line %u: \"%.*s\" is not known here, or not in this form\n", f->name, d->line,
            (int)d->op.n, d->op.at ? d->op.at : "");
    ptx_code_drop(d->code);
    d->code = NULL;
  }
  ptx_code *code = d->code;
  ptx_decoder_drop(d);
  return code;
}
