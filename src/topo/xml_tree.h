/* SPDX-License-Identifier: Apache-2.0 */
/* XML as a tree in memory, read within bounds, and the list of its findings. For xml_*.c only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "xml.h"

/* A file beyond these bounds is no machine and no program. Dumps of machines have some hundred elements and a depth of
 * ten, programs of 64 ranks some ten thousand. */
enum {
  HK_XML_BYTES = 16 << 20,
  HK_XML_DEPTH = 64,
  HK_XML_NODES = 1 << 18,
  HK_XML_ATTRS = 64,    /* of one element */
  HK_XML_VALUE = 4096,  /* characters of a name or value */
  HK_XML_FINDINGS = 500 /* errors, and remarks, reported for one file */
};

typedef struct hk_xml_attr {
  const char *name, *value;
  struct hk_xml_attr *next;
} hk_xml_attr;

typedef struct hk_xml_node {
  struct hk_xml_tree *tree;
  const char *name;
  hk_xml_attr *attrs;
  struct hk_xml_node *parent, *first, *last, *next;
  int line, column; /* 0: not from a file */
} hk_xml_node;

typedef struct hk_xml_tree {
  struct hk_xml_report *report; /* gets the findings about its elements; NULL: there are none */
  hk_xml_node *root;
  struct hk_xml_block *blocks; /* memory of nodes and texts */
  int nodes;
  bool incomplete;   /* there was no memory for a part; additions report this only here */
  hk_xml_node spare; /* stands for elements without memory, so that no caller has to test for them */
} hk_xml_tree;

/* Where findings go: to `sink`, and the first error also into `first`. */
typedef struct hk_xml_report {
  const char *file;
  hk_xml_sink *sink;
  void *arg;
  int errors, remarks;
  char first[400];
} hk_xml_report;
void hk_xml_say_at(hk_xml_report *r, int line, int column, bool error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
#define hk_xml_say(node, ...) hk_xml_say_at((node)->tree->report, (node)->line, (node)->column, __VA_ARGS__)
/* The status after reading: the first error's message, or HK_OK. */
hk_status hk_xml_status(const hk_xml_report *r);

/* An error if the text is not XML or beyond the bounds; the report then says so, and *out is NULL. */
hk_status hk_xml_parse(hk_xml_tree **out, const char *text, size_t bytes, hk_xml_report *r);
hk_status hk_xml_read(hk_xml_tree **out, hk_xml_report *r); /* the same from r->file */
void hk_xml_free(hk_xml_tree *t);

hk_status hk_xml_new(hk_xml_tree **out); /* without elements */
hk_status hk_xml_print(const hk_xml_tree *t, FILE *to);

const char *hk_xml_get(const hk_xml_node *n, const char *name);  /* NULL: not present */
const char *hk_xml_text(const hk_xml_node *n, const char *name); /* "": not present */
void hk_xml_set(hk_xml_tree *t, hk_xml_node *n, const char *name, const char *value);
void hk_xml_set_number(hk_xml_tree *t, hk_xml_node *n, const char *name, float value);
/* Sets attributes whose values have no spaces: "numaid=%d arch=%s". */
void hk_xml_put(hk_xml_tree *t, hk_xml_node *n, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Adds an element after the children of `parent`; without a parent it is the root. */
hk_xml_node *hk_xml_add(hk_xml_tree *t, hk_xml_node *parent, const char *name);
/* Adds a copy of `from`, if `deep` with its children. */
hk_xml_node *hk_xml_graft(hk_xml_tree *t, hk_xml_node *parent, const hk_xml_node *from, bool deep);
void hk_xml_remove(hk_xml_node *n);
const hk_xml_node *hk_xml_child(const hk_xml_node *n, const char *name); /* the first */
const hk_xml_node *hk_xml_next(const hk_xml_node *n);                    /* the next one of the same name */

/* Files have decimal points, whatever the user's locale. */
float hk_xml_strtof(const char *text, char **end);
enum { HK_XML_NUMBER = 24 };
/* The shortest text that reads back as this number; `text` needs HK_XML_NUMBER bytes. */
const char *hk_xml_number(float value, char *text);

/* An attribute as a number. A missing, malformed or out-of-range one is reported: as an error if it is `needed`, else
 * as an error only if malformed. False: *out keeps its value. */
bool hk_xml_int(const hk_xml_node *n, const char *name, bool needed, long min, long max, long *out);
bool hk_xml_float(const hk_xml_node *n, const char *name, bool needed, float min, float max, float *out);
bool hk_xml_hex(const hk_xml_node *n, const char *name, uint64_t max, uint64_t *out);

/* Remarks about elements and attributes that the schema does not have. */
void hk_xml_check_names(const hk_xml_node *root);
