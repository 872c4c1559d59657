/* SPDX-License-Identifier: Apache-2.0 */
/* PTX as text: tokens, and what is at a module's level: variables, and functions whose bodies are decoded later. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "ptx.h"

/* ---- tokens ---- */

static bool in_word(const char *p, const char *end) {
  if (isalnum((unsigned char)*p) || *p == '_' || *p == '$' || *p == '.' || *p == '%') return true;
  /* `L1::no_allocate`, but not a label's colon */
  if (*p != ':') return false;
  return (p + 1 < end && p[1] == ':') || p[-1] == ':';
}
void ptx_read(ptx_reader *r) {
  const char *p = r->at, *end = r->end;
  for (;;) {
    while (p < end && isspace((unsigned char)*p)) r->line += *p++ == '\n';
    if (p + 1 < end && p[0] == '/' && p[1] == '/') {
      while (p < end && *p != '\n') p++;
    } else if (p + 1 < end && p[0] == '/' && p[1] == '*') {
      for (p += 2; p + 1 < end && !(p[0] == '*' && p[1] == '/'); p++) r->line += *p == '\n';
      p = p + 2 < end ? p + 2 : end;
    } else {
      break;
    }
  }
  r->now = (ptx_token){p, 0, r->line};
  if (p < end && *p == '"') {
    for (p++; p < end && *p != '"'; p++) r->line += *p == '\n';
    if (p < end) p++;
  } else if (p < end && in_word(p, end) && *p != ':') {
    while (p < end && in_word(p, end)) p++;
  } else if (p < end && *p) {
    p++;
  }
  r->now.n = (unsigned)(p - r->now.at);
  r->at = p;
}
bool ptx_accept(ptx_reader *r, const char *text) {
  if (!ptx_is(&r->now, text)) return false;
  ptx_read(r);
  return true;
}
char *ptx_text(const ptx_token *t) {
  char *copy = strndup(t->at, t->n);
  if (!copy) abort();
  return copy;
}
uint64_t ptx_number(const ptx_token *t, bool *ok) {
  char text[80], *end = text;
  *ok = t->n > 0 && t->n < sizeof text && isdigit((unsigned char)t->at[0]);
  if (!*ok) return 0;
  memcpy(text, t->at, t->n);
  text[t->n] = '\0';
  if (text[0] == '0' && strchr("fFdD", text[1]) && text[1]) return strtoull(text + 2, NULL, 16);
  if (strchr(text, '.')) { /* a decimal one is a double */
    double x = strtod(text, NULL);
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
  }
  uint64_t x = text[0] == '0' && (text[1] == 'b' || text[1] == 'B') ? strtoull(text + 2, &end, 2)
                                                                    : strtoull(text, &end, 0);
  *ok = *end == '\0' || *end == 'U' || *end == 'u';
  return x;
}

static const struct {
  const char *name;
  ptx_type type;
  unsigned bytes;
} types[] = {{"u8", T_U8, 1},         {"s8", T_S8, 1},        {"b8", T_B8, 1},       {"u16", T_U16, 2},
             {"s16", T_S16, 2},       {"b16", T_B16, 2},      {"u32", T_U32, 4},     {"s32", T_S32, 4},
             {"b32", T_B32, 4},       {"u64", T_U64, 8},      {"s64", T_S64, 8},     {"b64", T_B64, 8},
             {"f16", T_F16, 2},       {"bf16", T_BF16, 2},    {"f16x2", T_F16X2, 4}, {"bf16x2", T_BF16X2, 4},
             {"f32", T_F32, 4},       {"f64", T_F64, 8},      {"pred", T_PRED, 4},   {"b128", T_B128, 16},
             {"e4m3x2", T_E4M3X2, 2}, {"e5m2x2", T_E5M2X2, 2}};
ptx_type ptx_type_of(const char *name, unsigned n) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strlen(types[i].name) == n && memcmp(types[i].name, name, n) == 0) return types[i].type;
  return T_NONE;
}
unsigned ptx_type_bytes(ptx_type t) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].type == t) return types[i].bytes;
  return 0;
}

/* ---- variables ---- */

ptx_fn *ptx_module_fn(ptx_module *m, const char *name, unsigned n) {
  ptx_fn *found = NULL;
  for (ptx_fn *f = m->fns; f; f = f->next)
    if (strlen(f->name) == n && memcmp(f->name, name, n) == 0 && (!found || f->body)) found = f;
  return found;
}
ptx_variable *ptx_module_var(ptx_module *m, const char *name, unsigned n) {
  for (ptx_variable *v = m->vars; v; v = v->next)
    if (strlen(v->name) == n && memcmp(v->name, name, n) == 0) return v;
  return NULL;
}
/* One initial value: a number, or the address of another variable. */
static bool read_value(ptx_module *m, ptx_reader *r, uint64_t *x) {
  bool ok, minus = ptx_accept(r, "-"), generic = ptx_accept(r, "generic");
  if (generic && !ptx_accept(r, "(")) return false;
  *x = ptx_number(&r->now, &ok);
  if (!ok) {
    const ptx_variable *v = ptx_module_var(m, r->now.at, r->now.n);
    if (!v) return false;
    *x = v->at;
  }
  ptx_read(r);
  if (ptx_accept(r, "+")) {
    *x += ptx_number(&r->now, &ok);
    ptx_read(r);
  }
  if (minus) *x = 0 - *x;
  return !generic || ptx_accept(r, ")");
}
static bool read_values(ptx_module *m, ptx_reader *r, char *to, size_t bytes, unsigned each) {
  const bool list = ptx_accept(r, "{");
  for (size_t at = 0; !ptx_is(&r->now, "}") && !ptx_is(&r->now, ";"); at += each) {
    uint64_t x;
    if (!read_value(m, r, &x) || at + each > bytes) return false;
    memcpy(to + at, &x, each);
    ptx_accept(r, ",");
  }
  return !list || ptx_accept(r, "}");
}
ptx_variable *ptx_read_variable(ptx_module *m, ptx_reader *r, ptx_space space) {
  size_t align = 1, bytes = 0;
  bool ok = true, sized = true;
  while (r->now.n && r->now.at[0] == '.') {
    if (ptx_accept(r, ".align"))
      align = ptx_number(&r->now, &ok);
    else if (!bytes)
      bytes = ptx_type_bytes(ptx_type_of(r->now.at + 1, r->now.n - 1));
    ptx_read(r);
  }
  if (!bytes || !ok) return NULL;
  const unsigned each = (unsigned)bytes;
  if (align < each) align = each;
  ptx_variable *v = calloc(1, sizeof *v);
  if (!v) abort();
  v->name = ptx_text(&r->now);
  v->space = space;
  v->next = m->vars;
  m->vars = v;
  ptx_read(r);
  while (ptx_accept(r, "[")) {
    sized = !ptx_is(&r->now, "]");
    if (sized) bytes *= ptx_number(&r->now, &ok), ptx_read(r);
    if (!ptx_accept(r, "]")) return NULL;
  }
  v->bytes = sized ? bytes : 0;
  if (space == SP_SHARED && !sized) { /* dynamic: begins where the window does */
    v->at = 0;
  } else if (space == SP_SHARED) {
    m->shared = (m->shared + align - 1) / align * align;
    v->at = SHARED_STATIC + m->shared;
    m->shared += bytes;
  } else {
    char *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!at) abort();
    memset(at, 0, bytes);
    v->at = (uint64_t)(uintptr_t)at;
    if (ptx_accept(r, "=") && !read_values(m, r, at, bytes, each)) return NULL;
  }
  return ptx_accept(r, ";") ? v : NULL;
}

/* ---- functions ---- */

static bool read_params(ptx_reader *r, ptx_param **list, unsigned *n, size_t *total) {
  if (!ptx_accept(r, "(")) return true;
  while (!ptx_accept(r, ")")) {
    ptx_param p = {.align = 1};
    bool ok = true, pointer = false;
    while (r->now.n && r->now.at[0] == '.') {
      if (ptx_is(&r->now, ".ptr")) {
        pointer = true;
      } else if (ptx_accept(r, ".align")) {
        if (!pointer) p.align = ptx_number(&r->now, &ok);
      } else if (!p.bytes) {
        p.bytes = ptx_type_bytes(ptx_type_of(r->now.at + 1, r->now.n - 1));
        if (p.bytes > p.align) p.align = p.bytes;
      }
      ptx_read(r);
    }
    if (!p.bytes || !ok || !r->now.n) return false;
    p.name = ptx_text(&r->now);
    ptx_read(r);
    if (ptx_accept(r, "[")) {
      p.bytes *= ptx_number(&r->now, &ok);
      ptx_read(r);
      if (!ok || !ptx_accept(r, "]")) return false;
    }
    *total = (*total + p.align - 1) / p.align * p.align;
    p.at = *total;
    *total += p.bytes;
    *list = realloc(*list, (*n + 1) * sizeof p);
    if (!*list) abort();
    (*list)[(*n)++] = p;
    ptx_accept(r, ",");
  }
  return true;
}
/* To the brace that closes it.  By characters: a module has megabytes, and few of its functions are called. */
static void skip_body(ptx_reader *r) {
  const char *p = r->at;
  for (unsigned depth = 1; p < r->end; p++) {
    if (*p == '\n') {
      r->line++;
    } else if (*p == '/' && p[1] == '/') {
      while (p + 1 < r->end && p[1] != '\n') p++;
    } else if (*p == '/' && p[1] == '*') {
      for (; p + 1 < r->end && !(p[0] == '*' && p[1] == '/'); p++) r->line += *p == '\n';
    } else if (*p == '"') {
      do p++;
      while (p < r->end && *p != '"');
    } else if (*p == '{') {
      depth++;
    } else if (*p == '}' && --depth == 0) {
      break;
    }
  }
  r->at = p;
  ptx_read(r);
}
static bool read_function(ptx_module *m, ptx_reader *r, bool entry) {
  ptx_fn *f = calloc(1, sizeof *f);
  size_t ignored = 0;
  if (!f) abort();
  f->m = m;
  f->entry = entry;
  f->next = m->fns;
  f->name = strdup("");
  m->fns = f;
  if (!entry && !read_params(r, &f->results, &f->nresults, &ignored)) return false;
  free(f->name);
  f->name = ptx_text(&r->now);
  ptx_read(r);
  if (!read_params(r, &f->params, &f->nparams, &f->param_bytes)) return false;
  while (r->now.n && !ptx_is(&r->now, ";") && !ptx_is(&r->now, "{")) ptx_read(r);
  if (ptx_accept(r, ";")) return true;
  f->body = r->at;
  f->line = r->line;
  skip_body(r);
  f->end = r->now.at;
  return ptx_accept(r, "}");
}

/* A directive of no meaning here, to its end. */
static void skip(ptx_reader *r) {
  const uint32_t line = r->now.line;
  const bool section = ptx_is(&r->now, ".section");
  if (section) {
    while (r->now.n && !ptx_is(&r->now, "}")) ptx_read(r);
    ptx_read(r);
    return;
  }
  while (r->now.n && r->now.line == line) ptx_read(r);
}
static bool read_module(ptx_module *m, ptx_reader *r) {
  for (ptx_read(r); r->now.n && *r->now.at;) {
    if (ptx_accept(r, ".visible") || ptx_accept(r, ".extern") || ptx_accept(r, ".weak") || ptx_accept(r, ".common"))
      continue;
    if (ptx_accept(r, ";")) continue;
    bool ok = true;
    if (ptx_accept(r, ".entry"))
      ok = read_function(m, r, true);
    else if (ptx_accept(r, ".func"))
      ok = read_function(m, r, false);
    else if (ptx_accept(r, ".global"))
      ok = ptx_read_variable(m, r, SP_GLOBAL) != NULL;
    else if (ptx_accept(r, ".const"))
      ok = ptx_read_variable(m, r, SP_CONST) != NULL;
    else if (ptx_accept(r, ".shared"))
      ok = ptx_read_variable(m, r, SP_SHARED) != NULL;
    else
      skip(r);
    if (!ok) return false;
  }
  return m->fns != NULL;
}

ptx_module *ptx_module_load(const char *text, size_t bytes, char *why, size_t capacity) {
  ptx_module *m = calloc(1, sizeof *m);
  if (!m || !(m->text = malloc(bytes + 1))) abort();
  memcpy(m->text, text, bytes);
  m->text[bytes] = '\0';
  m->bytes = bytes;
  pthread_mutex_init(&m->lock, NULL);
  m->consts = mmap(NULL, CONSTS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m->consts == MAP_FAILED) abort();
  m->consts += CONSTS;
  ptx_reader r = {m->text, m->text + bytes, 1, {NULL, 0, 0}};
  if (read_module(m, &r)) return m;
  snprintf(why, capacity, "PTX line %u: cannot be read near \"%.*s\"", r.now.line, (int)r.now.n, r.now.at);
  ptx_module_drop(m);
  return NULL;
}
static void drop_params(ptx_param *list, unsigned n) {
  for (unsigned i = 0; i < n; i++) free(list[i].name);
  free(list);
}
void ptx_module_drop(ptx_module *m) {
  while (m->fns) {
    ptx_fn *f = m->fns;
    m->fns = f->next;
    drop_params(f->params, f->nparams);
    drop_params(f->results, f->nresults);
    if (f->code) ptx_code_drop(f->code);
    free(f->name);
    free(f);
  }
  while (m->vars) {
    ptx_variable *v = m->vars;
    m->vars = v->next;
    if (v->space != SP_SHARED) free((void *)(uintptr_t)v->at);
    free(v->name);
    free(v);
  }
  munmap(m->consts - CONSTS, CONSTS);
  pthread_mutex_destroy(&m->lock);
  free(m->text);
  free(m);
}
ptx_fn *ptx_module_kernel(ptx_module *m, const char *name) {
  ptx_fn *f = ptx_module_fn(m, name, (unsigned)strlen(name));
  return f && f->entry && f->body ? f : NULL;
}
void *ptx_module_variable(ptx_module *m, const char *name, size_t *bytes) {
  const ptx_variable *v = ptx_module_var(m, name, (unsigned)strlen(name));
  if (!v || v->space == SP_SHARED) return NULL;
  *bytes = v->bytes;
  return (void *)(uintptr_t)v->at;
}
bool ptx_kernel_param(const ptx_fn *f, unsigned n, size_t *at, size_t *bytes) {
  if (n >= f->nparams) return false;
  *at = f->params[n].at;
  *bytes = f->params[n].bytes;
  return true;
}
size_t ptx_kernel_param_bytes(const ptx_fn *f) { return f->param_bytes; }

int32_t ptx_const(ptx_module *m, uint64_t value, bool wide) {
  const size_t bytes = wide ? 256 : 128;
  unsigned at = (unsigned)((value ^ value >> 29) * 0x9e3779b97f4a7c15ull >> 52) ^ (wide ? 1 : 0);
  for (unsigned i = 0; i < 4096; i++, at = (at + 2) % 4096) { /* wide ones at odd places */
    if (wide != (at & 1)) at ^= 1;
    if (!m->const_rows[at].at) break;
    if (m->const_rows[at].value == value) return m->const_rows[at].at;
  }
  if (m->used_consts + 512 > CONSTS) abort();
  m->used_consts += bytes;
  const int32_t place = -(int32_t)m->used_consts;
  for (unsigned l = 0; l < LANES; l++)
    if (wide)
      memcpy(m->consts + place + (size_t)8 * l, &value, 8);
    else
      memcpy(m->consts + place + (size_t)4 * l, &value, 4);
  if (!m->const_rows[at].at) {
    m->const_rows[at].value = value;
    m->const_rows[at].at = place;
  }
  return place;
}
