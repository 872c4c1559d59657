/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the schema. An unknown name is no error, because NCCL ignores it too, but most are misspelt. */
#include <string.h>
#include "../base/param_names.h" /* hk_param_nearest */
#include "xml_tree.h"

typedef struct element {
  const char *name, *inside, *attrs; /* lists with spaces */
} element;
static const element elements[] = {
#define HK_ELEMENT(...) {__VA_ARGS__},
#include "xml_schema.def"
#undef HK_ELEMENT
};

static bool xml_schema_listed(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
    if (strcspn(at, " ") == n && !memcmp(at, word, n)) return true;
  return false;
}

static const element *xml_schema_find(const char *name) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(elements); i++)
    if (!strcmp(elements[i].name, name)) return &elements[i];
  return NULL;
}

/* "; did you mean linkwidth?", or nothing. */
static void xml_schema_guess(const char *name, const char *const *names, size_t n, char *text, size_t size) {
  unsigned distance;
  const char *near = hk_param_nearest(name, names, n, &distance);
  text[0] = 0;
  if (near && hk_param_misspelt(name, distance)) snprintf(text, size, "; did you mean %s?", near);
}

static void xml_schema_check_attrs(const hk_xml_node *n, const element *e) {
  char words[512], hint[80];
  const char *names[24];
  size_t count = 0;
  snprintf(words, sizeof words, "%s", e->attrs);
  for (char *save, *w = strtok_r(words, " ", &save); w && count < HK_ARRAY_LENGTH(names);
       w = strtok_r(NULL, " ", &save))
    names[count++] = w;
  for (const hk_xml_attr *a = n->attrs; a; a = a->next) {
    if (xml_schema_listed(e->attrs, a->name)) continue;
    xml_schema_guess(a->name, names, count, hint, sizeof hint);
    hk_xml_say(n, false, "the attribute %.40s of <%s> is not known and ignored%s", a->name, n->name, hint);
  }
}

void hk_xml_check_names(const hk_xml_node *n) {
  const element *e = xml_schema_find(n->name);
  if (!e || (n->parent && !xml_schema_listed(e->inside, n->parent->name))) {
    const char *names[HK_ARRAY_LENGTH(elements)];
    char hint[80];
    size_t count = 0;
    for (unsigned i = 0; i < HK_ARRAY_LENGTH(elements); i++)
      if (n->parent && xml_schema_listed(elements[i].inside, n->parent->name)) names[count++] = elements[i].name;
    xml_schema_guess(n->name, names, count, hint, sizeof hint);
    if (n->parent) hk_xml_say(n, false, "<%.40s> inside <%.40s> is ignored%s", n->name, n->parent->name, hint);
    return;
  }
  xml_schema_check_attrs(n, e);
  for (const hk_xml_node *c = n->first; c; c = c->next) hk_xml_check_names(c);
}
