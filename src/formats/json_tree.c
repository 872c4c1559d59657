/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON with jansson (json_tree.h). Jansson is loaded when it is needed. */
#include "json_tree.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "../base/dl.h"
#include "../base/log.h"
#include "../base/text_file.h" /* hk_text_clean */
#include "jansson_abi.h"

typedef struct api {
  HK_JANSSON_CALLS(HK_DL_MEMBER)
  HK_JANSSON_LOAD(HK_DL_MEMBER)
} api;
/* Global because the loaded library belongs to the process. */
static api jansson;
#define CALL(type, name, arguments) HK_DL_SYMBOL(api, name, #name),
static const hk_dl_symbol jansson_symbols[] = {HK_JANSSON_CALLS(CALL) HK_JANSSON_LOAD(CALL)};
#undef CALL
static hk_dl library =
    HK_DL_LIBRARY(jansson, jansson_symbols, HK_SUB_TUNING, "programs in JSON cannot be read", "libjansson.so.4");

bool hk_json_tree_available(void) { return hk_dl_load(&library); }

/* ---- errors ---- */

static void json_tree_say(hk_json_tree *t, const char *place, const char *format, va_list args) {
  char text[240];
  vsnprintf(text, sizeof text, format, args);
  if (!t->errors++) snprintf(t->first, sizeof t->first, "%.200s%.80s: %s", t->file, place, text);
  hk_text_clean(t->first);
}

__attribute__((format(printf, 4, 5), cold)) static void json_tree_say_at(hk_json_tree *t, int line, int column,
                                                                         const char *format, ...) {
  char place[40];
  va_list args;
  snprintf(place, sizeof place, ":%d:%d", line, column);
  va_start(args, format);
  json_tree_say(t, place, format, args);
  va_end(args);
}

/* Writes the way to the node: ": gpus[2].ops[5]". Nothing for the whole file. */
static size_t json_tree_way(const hk_json_node *n, char *text, size_t capacity) {
  if (!n->parent) return (size_t)snprintf(text, capacity, "%s", "");
  size_t used = json_tree_way(n->parent, text, capacity);
  const char *before = used ? "." : ": ";
  if (used >= capacity) return used;
  if (n->key) return used + (size_t)snprintf(text + used, capacity - used, "%s%s", before, n->key);
  return used + (size_t)snprintf(text + used, capacity - used, "%s[%zu]", used ? "" : ": ", n->index);
}

void hk_json_say(const hk_json_node *n, const char *format, ...) {
  char way[80];
  va_list args;
  json_tree_way(n, way, sizeof way);
  va_start(args, format);
  json_tree_say(n->tree, way, format, args);
  va_end(args);
}

bool hk_json_no_memory(hk_json_tree *t) {
  t->errors++;
  t->no_memory = true;
  return false;
}

hk_status hk_json_tree_status(const hk_json_tree *t) {
  if (t->no_memory) return HK_FAIL(HK_ERR_SYSTEM, "no memory to read %s", t->file);
  return t->errors ? HK_FAIL(HK_ERR_ARGUMENT, "%s", t->first) : HK_OK;
}

/* ---- the text ---- */

/* Checks depth and the number of nodes before jansson takes memory for them. */
static bool json_tree_bounded(hk_json_tree *t, const char *text) {
  int line = 1, depth = 0, nodes = 1;
  bool in_text = false;
  const char *begin = text;
  for (const char *c = text; *c; c++) {
    if (*c == '\n') line++, begin = c + 1;
    if (in_text) {
      if (*c == '"') in_text = false;
      if (*c == '\\' && c[1]) c++; /* the next character does not end the text */
      continue;
    }
    in_text = *c == '"';
    if (*c == '[' || *c == '{') depth++;
    if (*c == ']' || *c == '}') depth--;
    nodes += *c == ',' || *c == '[' || *c == '{';
    if (depth <= HK_JSON_TREE_DEPTH && nodes <= HK_JSON_TREE_NODES) continue;
    if (depth > HK_JSON_TREE_DEPTH)
      json_tree_say_at(t, line, (int)(c - begin) + 1, "values are nested deeper than %d; no program is that deep",
                       HK_JSON_TREE_DEPTH);
    else
      json_tree_say_at(t, line, (int)(c - begin) + 1, "more than %d values, which is too many", HK_JSON_TREE_NODES);
    return false;
  }
  return true;
}

/* Numbers are reals, because files have 2^64 - 1, for which a jansson integer has no room. */
enum { json_tree_flags = HK_JANSSON_REJECT_DUPLICATES | HK_JANSSON_INT_AS_REAL };

hk_status hk_json_tree_parse(hk_json_tree *t, const char *file, const char *text) {
  const size_t bytes = strlen(text);
  hk_jansson_error error = {.line = 1};
  *t = (hk_json_tree){.file = file};
  if (!hk_json_tree_available())
    json_tree_say_at(t, 1, 1, "install jansson (Debian: libjansson4), which reads JSON: %s", library.why);
  else if (bytes > HK_JSON_TREE_BYTES)
    json_tree_say_at(t, 1, 1, "more than %d MiB, which is the limit for a file", HK_JSON_TREE_BYTES >> 20);
  else if (json_tree_bounded(t, text) && !(t->root = jansson.json_loadb(text, bytes, json_tree_flags, &error)))
    json_tree_say_at(t, error.line, error.column, "not well-formed JSON: %.159s", error.text);
  return hk_json_tree_status(t);
}

void hk_json_tree_free(hk_json_tree *t) {
  if (t->root) jansson.json_delete(t->root); /* the only reference */
  t->root = NULL;
}

/* ---- nodes ---- */

hk_json_node hk_json_root(hk_json_tree *t) { return (hk_json_node){.tree = t, .value = t->root}; }

/* Reals are exact so far. */
static bool json_tree_is_whole(double v) {
  const double most = (double)(1ll << 53);
  return v >= -most && v <= most && v == (double)(long long)v;
}

bool hk_json_is(const hk_json_node *n, hk_json_kind kind) {
  switch (((const hk_jansson_head *)n->value)->type) {
    case HK_JANSSON_OBJECT: return kind == HK_JSON_OBJECT;
    case HK_JANSSON_ARRAY: return kind == HK_JSON_LIST;
    case HK_JANSSON_STRING: return kind == HK_JSON_TEXT;
    case HK_JANSSON_REAL: return kind == HK_JSON_WHOLE && json_tree_is_whole(jansson.json_real_value(n->value));
    case HK_JANSSON_TRUE:
    case HK_JANSSON_FALSE: return kind == HK_JSON_BOOLEAN;
    default: return false;
  }
}

static bool json_tree_expect(const hk_json_node *n, hk_json_kind kind) {
  static const char *const kinds[] = {"an object {}", "a list []", "a text", "a whole number", "true or false"};
  if (hk_json_is(n, kind)) return true;
  hk_json_say(n, "this is not %s", kinds[kind]);
  return false;
}

size_t hk_json_size(const hk_json_node *list) { return jansson.json_array_size(list->value); }

bool hk_json_get(const hk_json_node *object, const char *key, hk_json_kind kind, bool needed, hk_json_node *out) {
  *out = (hk_json_node){.tree = object->tree, .parent = object, .key = key};
  out->value = jansson.json_object_get(object->value, key); /* NULL if it is no object */
  if (out->value) return json_tree_expect(out, kind);
  if (needed) hk_json_say(object, "\"%s\" is missing", key);
  return false;
}

bool hk_json_at(const hk_json_node *list, size_t index, hk_json_kind kind, hk_json_node *out) {
  *out = (hk_json_node){.tree = list->tree, .parent = list, .index = index};
  out->value = jansson.json_array_get(list->value, index); /* NULL if there is none */
  if (out->value) return json_tree_expect(out, kind);
  hk_json_say(list, "element %zu is missing", index);
  return false;
}

bool hk_json_has(const hk_json_node *object, const char *key, hk_json_kind kind, hk_json_node *out) {
  *out = (hk_json_node){.tree = object->tree, .parent = object, .key = key};
  out->value = jansson.json_object_get(object->value, key);
  return out->value && hk_json_is(out, kind);
}

long long hk_json_value(const hk_json_node *whole) { return (long long)jansson.json_real_value(whole->value); }

bool hk_json_within(const hk_json_node *whole, long long min, long long max) {
  const long long v = hk_json_value(whole);
  if (v < min || v > max)
    hk_json_say(whole, max < min ? "%lld: there is none" : "%lld is not from %lld to %lld", v, min, max);
  return v >= min && v <= max;
}

const char *hk_json_words(const hk_json_node *text) { return jansson.json_string_value(text->value); }

bool hk_json_get_whole(const hk_json_node *object, const char *key, bool needed, long long min, long long max,
                       long long *out) {
  hk_json_node n;
  if (!hk_json_get(object, key, HK_JSON_WHOLE, needed, &n)) return false;
  if (!hk_json_within(&n, min, max)) return false;
  *out = hk_json_value(&n);
  return true;
}

bool hk_json_get_boolean(const hk_json_node *object, const char *key, bool needed, bool *out) {
  hk_json_node n;
  if (!hk_json_get(object, key, HK_JSON_BOOLEAN, needed, &n)) return false;
  *out = ((const hk_jansson_head *)n.value)->type == HK_JANSSON_TRUE;
  return true;
}

const char *hk_json_get_text(const hk_json_node *object, const char *key, bool needed) {
  hk_json_node n;
  return hk_json_get(object, key, HK_JSON_TEXT, needed, &n) ? hk_json_words(&n) : NULL;
}

bool hk_json_only(const hk_json_node *object, const char *keys) {
  for (void *i = jansson.json_object_iter(object->value); i; i = jansson.json_object_iter_next(object->value, i)) {
    const char *key = jansson.json_object_iter_key(i);
    const size_t n = strlen(key);
    const char *found = NULL;
    for (const char *at = keys; !found && n && (at = strstr(at, key)); at++)
      if (at > keys && at[-1] == ' ' && at[n] == ' ') found = at;
    if (found) continue;
    hk_json_say(object, "the key \"%.40s\" is unknown; known are%.150s", key, keys);
    return false;
  }
  return true;
}
