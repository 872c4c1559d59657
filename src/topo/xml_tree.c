/* SPDX-License-Identifier: Apache-2.0 */
/* XML as a tree in memory, read by expat within bounds, written, and the list of findings. Expat is loaded when it is
 * needed. */
#include "xml_tree.h"
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/dl.h"
#include "../base/log.h"
#include "../base/text_file.h"
#include "expat_abi.h"

static void xml_tree_say(hk_xml_report *r, int line, int column, bool error, const char *format, va_list args) {
  hk_xml_finding f = {.line = line, .column = column, .error = error};
  vsnprintf(f.text, sizeof f.text, format, args);
  hk_text_clean(f.text);
  if (error && !r->errors++) snprintf(r->first, sizeof r->first, "%.150s:%d:%d: %s", r->file, line, column, f.text);
  int reported = error ? r->errors - 1 : r->remarks++;
  if (!r->sink || reported > HK_XML_FINDINGS) return;
  if (reported == HK_XML_FINDINGS)
    snprintf(f.text, sizeof f.text, "more than %d %s; the others are not shown", HK_XML_FINDINGS,
             error ? "errors" : "remarks");
  r->sink(r->arg, &f);
}

void hk_xml_say_at(hk_xml_report *r, int line, int column, bool error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  xml_tree_say(r, line, column, error, format, args);
  va_end(args);
}

hk_status hk_xml_status(const hk_xml_report *r) { return r->errors ? HK_FAIL(HK_ERR_ARGUMENT, "%s", r->first) : HK_OK; }

/* --- Memory: all parts of a tree live as long as the tree --- */

struct hk_xml_block {
  struct hk_xml_block *next;
  size_t used, size;
  max_align_t data[];
};

static void *xml_tree_allocate(hk_xml_tree *t, size_t bytes) {
  struct hk_xml_block *b = t->blocks;
  bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
  if (!b || b->size - b->used < bytes) {
    size_t size = bytes > 32768 ? bytes : 32768;
    b = malloc(sizeof *b + size);
    if (!b) return NULL;
    *b = (struct hk_xml_block){.next = t->blocks, .size = size};
    t->blocks = b;
  }
  void *p = (char *)b->data + b->used;
  b->used += bytes;
  memset(p, 0, bytes);
  return p;
}

static const char *xml_tree_copy(hk_xml_tree *t, const char *text) {
  size_t n = strlen(text) + 1;
  char *p = xml_tree_allocate(t, n);
  return p ? memcpy(p, text, n) : NULL;
}

hk_status hk_xml_new(hk_xml_tree **out) {
  *out = calloc(1, sizeof **out);
  return *out ? HK_OK : HK_FAIL_ERRNO("no memory for XML");
}

void hk_xml_free(hk_xml_tree *t) {
  if (!t) return;
  for (struct hk_xml_block *b = t->blocks, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(t);
}

/* --- The tree --- */

const char *hk_xml_get(const hk_xml_node *n, const char *name) {
  for (const hk_xml_attr *a = n->attrs; a; a = a->next)
    if (!strcmp(a->name, name)) return a->value;
  return NULL;
}

const char *hk_xml_text(const hk_xml_node *n, const char *name) {
  const char *value = hk_xml_get(n, name);
  return value ? value : "";
}

static const hk_xml_node *xml_tree_named(const hk_xml_node *n, const char *name) {
  while (n && strcmp(n->name, name) != 0) n = n->next;
  return n;
}
const hk_xml_node *hk_xml_child(const hk_xml_node *n, const char *name) { return xml_tree_named(n->first, name); }
const hk_xml_node *hk_xml_next(const hk_xml_node *n) { return xml_tree_named(n->next, n->name); }

void hk_xml_set(hk_xml_tree *t, hk_xml_node *n, const char *name, const char *value) {
  hk_xml_attr **at = &n->attrs, *a;
  const char *copy = xml_tree_copy(t, value);
  while (*at && strcmp((*at)->name, name)) at = &(*at)->next;
  a = *at ? *at : xml_tree_allocate(t, sizeof *a);
  if (!a || !copy || (!a->name && !(a->name = xml_tree_copy(t, name)))) {
    t->incomplete = true;
    return;
  }
  a->value = copy;
  *at = a;
}

void hk_xml_set_number(hk_xml_tree *t, hk_xml_node *n, const char *name, float value) {
  char text[HK_XML_NUMBER];
  hk_xml_set(t, n, name, hk_xml_number(value, text));
}

void hk_xml_put(hk_xml_tree *t, hk_xml_node *n, const char *format, ...) {
  char text[320], *save;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  for (char *name = strtok_r(text, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
    char *value = strchr(name, '=');
    *value++ = 0;
    hk_xml_set(t, n, name, value);
  }
}

hk_xml_node *hk_xml_add(hk_xml_tree *t, hk_xml_node *parent, const char *name) {
  hk_xml_node *n = xml_tree_allocate(t, sizeof *n);
  if (!n || !(n->name = xml_tree_copy(t, name))) {
    t->incomplete = true;
    t->spare = (hk_xml_node){.tree = t, .name = "", .parent = parent};
    return &t->spare;
  }
  n->tree = t;
  n->parent = parent;
  if (!parent)
    t->root = n;
  else if (parent->last)
    parent->last = parent->last->next = n;
  else
    parent->first = parent->last = n;
  t->nodes++;
  return n;
}

hk_xml_node *hk_xml_graft(hk_xml_tree *t, hk_xml_node *parent, const hk_xml_node *from, bool deep) {
  hk_xml_node *n = hk_xml_add(t, parent, from->name);
  for (const hk_xml_attr *a = from->attrs; a; a = a->next) hk_xml_set(t, n, a->name, a->value);
  for (const hk_xml_node *c = deep ? from->first : NULL; c; c = c->next) hk_xml_graft(t, n, c, true);
  return n;
}

void hk_xml_remove(hk_xml_node *n) {
  hk_xml_node *p = n->parent, **at = &p->first, *before = NULL;
  while (*at != n) before = *at, at = &before->next;
  *at = n->next;
  if (p->last == n) p->last = before;
}

/* --- Writing --- */

static void xml_tree_print_value(const char *value, FILE *to) {
  for (const char *c = value; *c; c++) {
    switch (*c) {
      case '&': fputs("&amp;", to); break;
      case '<': fputs("&lt;", to); break;
      case '>': fputs("&gt;", to); break;
      case '"': fputs("&quot;", to); break;
      default: fputc((unsigned char)*c < ' ' || (unsigned char)*c > 0x7e ? '?' : *c, to);
    }
  }
}

static void xml_tree_print_node(const hk_xml_node *n, int depth, FILE *to) {
  fprintf(to, "%*s<%s", 2 * depth, "", n->name);
  for (const hk_xml_attr *a = n->attrs; a; a = a->next) {
    fprintf(to, " %s=\"", a->name);
    xml_tree_print_value(a->value, to);
    fputc('"', to);
  }
  fputs(n->first ? ">\n" : "/>\n", to);
  for (const hk_xml_node *c = n->first; c; c = c->next) xml_tree_print_node(c, depth + 1, to);
  if (n->first) fprintf(to, "%*s</%s>\n", 2 * depth, "", n->name);
}

hk_status hk_xml_print(const hk_xml_tree *t, FILE *to) {
  if (t->incomplete) return HK_FAIL(HK_ERR_SYSTEM, "no memory for XML");
  xml_tree_print_node(t->root, 0, to);
  return fflush(to) || ferror(to) ? HK_FAIL_ERRNO("cannot write <%s>", t->root->name) : HK_OK;
}

/* --- Reading --- */

typedef struct api {
  HK_EXPAT_CALLS(HK_DL_MEMBER)
} api;
/* Global because the loaded library belongs to the process. */
static api expat;
#define CALL(type, name, arguments) HK_DL_SYMBOL(api, name, #name),
static const hk_dl_symbol expat_symbols[] = {HK_EXPAT_CALLS(CALL)};
#undef CALL
static hk_dl library =
    HK_DL_LIBRARY(expat, expat_symbols, HK_SUB_GRAPH, "topology and graph XML cannot be read", "libexpat.so.1");

bool hk_xml_available(void) { return hk_dl_load(&library); }

typedef struct parse {
  hk_expat *expat;
  hk_xml_tree *tree;
  hk_xml_node *at;
  hk_xml_report *report;
  int depth;
  bool stopped, told_text;
} parse;

static int xml_tree_line_of(const parse *p) { return (int)expat.XML_GetCurrentLineNumber(p->expat); }
static int xml_tree_column_of(const parse *p) { return (int)expat.XML_GetCurrentColumnNumber(p->expat) + 1; }

__attribute__((format(printf, 2, 3))) static void xml_tree_stop(parse *p, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (!p->stopped) xml_tree_say(p->report, xml_tree_line_of(p), xml_tree_column_of(p), true, format, args);
  va_end(args);
  p->stopped = true;
  expat.XML_StopParser(p->expat, false);
}

static void xml_tree_begin_element(void *arg, const char *name, const char **attrs) {
  parse *p = arg;
  if (p->stopped) return;
  if (++p->depth > HK_XML_DEPTH) {
    xml_tree_stop(p, "elements are nested deeper than %d; a machine is not that deep", HK_XML_DEPTH);
    return;
  }
  if (p->tree->nodes >= HK_XML_NODES) {
    xml_tree_stop(p, "more than %d elements, which is too many", HK_XML_NODES);
    return;
  }
  if (strlen(name) > HK_XML_VALUE) {
    xml_tree_stop(p, "an element's name has more than %d characters", HK_XML_VALUE);
    return;
  }
  hk_xml_node *n = hk_xml_add(p->tree, p->at, name);
  n->line = xml_tree_line_of(p);
  n->column = xml_tree_column_of(p);
  p->at = n;
  for (int i = 0; attrs[i]; i += 2) {
    if (i / 2 >= HK_XML_ATTRS) {
      xml_tree_stop(p, "<%.40s> has more than %d attributes", name, HK_XML_ATTRS);
      return;
    }
    if (strlen(attrs[i]) > HK_XML_VALUE || strlen(attrs[i + 1]) > HK_XML_VALUE) {
      xml_tree_stop(p, "attribute %.40s of <%.40s> has more than %d characters", attrs[i], name, HK_XML_VALUE);
      return;
    }
    hk_xml_set(p->tree, n, attrs[i], attrs[i + 1]);
  }
  if (p->tree->incomplete) xml_tree_stop(p, "no memory for the file's elements");
}

static void xml_tree_end_element(void *arg, const char *name) {
  parse *p = arg;
  (void)name;
  if (p->stopped) return;
  p->depth--;
  p->at = p->at->parent;
}

static void xml_tree_text_between(void *arg, const char *text, int n) {
  parse *p = arg;
  for (int i = 0; i < n && !p->told_text && !p->stopped; i++) {
    if (strchr(" \t\r\n", text[i])) continue;
    p->told_text = true;
    hk_xml_say_at(p->report, xml_tree_line_of(p), xml_tree_column_of(p), false,
                  "text between elements is ignored here, but NCCL refuses the file; put it into <!-- -->");
  }
}

/* No document type: without it there are no entities, and no attacks that use them. */
static void xml_tree_doctype(void *arg, const char *name, const char *system, const char *public, int internal) {
  (void)name, (void)system, (void)public, (void)internal;
  xml_tree_stop(arg, "a <!DOCTYPE> is refused, so that no entities can be defined; remove it");
}

hk_status hk_xml_parse(hk_xml_tree **out, const char *text, size_t bytes, hk_xml_report *r) {
  *out = NULL;
  if (!hk_xml_available()) {
    hk_xml_say_at(r, 1, 1, true, "install expat (Debian: libexpat1), which reads XML: %s", library.why);
    return hk_xml_status(r);
  }
  hk_xml_tree *t = calloc(1, sizeof *t);
  parse p = {.tree = t, .report = r, .expat = expat.XML_ParserCreate(NULL)};
  bool good = false;
  if (!t || !p.expat) {
    hk_xml_say_at(r, 1, 1, true, "no memory to read it");
    goto out;
  }
  t->report = r;
  if (bytes > HK_XML_BYTES) {
    hk_xml_say_at(r, 1, 1, true, "more than %d MiB, which is the limit for a file", HK_XML_BYTES >> 20);
    goto out;
  }
  expat.XML_SetUserData(p.expat, &p);
  expat.XML_SetElementHandler(p.expat, xml_tree_begin_element, xml_tree_end_element);
  expat.XML_SetCharacterDataHandler(p.expat, xml_tree_text_between);
  expat.XML_SetStartDoctypeDeclHandler(p.expat, xml_tree_doctype);
  good = expat.XML_Parse(p.expat, text, (int)bytes, 1) == HK_XML_STATUS_OK && !p.stopped && t->root;
  if (!good && !p.stopped)
    hk_xml_say_at(r, xml_tree_line_of(&p), xml_tree_column_of(&p), true, "not well-formed XML: %s",
                  expat.XML_ErrorString(expat.XML_GetErrorCode(p.expat)));
out:
  if (p.expat) expat.XML_ParserFree(p.expat);
  if (good) return *out = t, HK_OK;
  hk_xml_free(t);
  return hk_xml_status(r);
}

hk_status hk_xml_read(hk_xml_tree **out, hk_xml_report *r) {
  char *text;
  size_t bytes;
  *out = NULL;
  HK_OR_RETURN(hk_text_read(r->file, HK_XML_BYTES, &text, &bytes));
  const hk_status rc = hk_xml_parse(out, text, bytes, r);
  free(text);
  return rc;
}

/* --- Attributes as numbers --- */

typedef struct decimal_point {
  locale_t plain, had;
} decimal_point;
static decimal_point xml_tree_begin_points(void) {
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
  return (decimal_point){plain, plain ? uselocale(plain) : (locale_t)0};
}
static void xml_tree_end_points(decimal_point d) {
  if (d.plain) uselocale(d.had), freelocale(d.plain);
}

float hk_xml_strtof(const char *text, char **end) {
  decimal_point d = xml_tree_begin_points();
  float value = strtof(text, end);
  xml_tree_end_points(d);
  return value;
}

const char *hk_xml_number(float value, char *text) {
  decimal_point d = xml_tree_begin_points();
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(text, HK_XML_NUMBER, "%.*g", digits, (double)value);
    if (strtof(text, NULL) == value) break;
  }
  xml_tree_end_points(d);
  return text;
}

static const char *xml_tree_value_of(const hk_xml_node *n, const char *name, bool needed) {
  const char *text = hk_xml_get(n, name);
  if (!text && needed) hk_xml_say(n, true, "<%.40s> needs the attribute %s", n->name, name);
  return text;
}

bool hk_xml_int(const hk_xml_node *n, const char *name, bool needed, long min, long max, long *out) {
  const char *text = xml_tree_value_of(n, name, needed);
  char *end;
  if (!text) return false;
  errno = 0;
  long v = strtol(text, &end, 0);
  if (end == text || *end || errno || v < min || v > max) {
    hk_xml_say(n, true, "%s=\"%.40s\" of <%.40s> is not a whole number from %ld to %ld", name, text, n->name, min, max);
    return false;
  }
  *out = v;
  return true;
}

bool hk_xml_float(const hk_xml_node *n, const char *name, bool needed, float min, float max, float *out) {
  const char *text = xml_tree_value_of(n, name, needed);
  char *end;
  if (!text) return false;
  float v = hk_xml_strtof(text, &end);
  if (end == text || *end || !(v >= min) || !(v <= max)) { /* NaN is neither */
    hk_xml_say(n, true, "%s=\"%.40s\" of <%.40s> is not a number from %g to %g", name, text, n->name, (double)min,
               (double)max);
    return false;
  }
  *out = v;
  return true;
}

bool hk_xml_hex(const hk_xml_node *n, const char *name, uint64_t max, uint64_t *out) {
  const char *text = hk_xml_get(n, name);
  char *end;
  if (!text) return false;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 16);
  if (end == text || *end || errno || v > max || strchr(text, '-')) {
    hk_xml_say(n, true, "%s=\"%.40s\" of <%.40s> is not a hexadecimal number up to 0x%llx", name, text, n->name,
               (unsigned long long)max);
    return false;
  }
  *out = v;
  return true;
}
