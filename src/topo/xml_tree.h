/* SPDX-License-Identifier: Apache-2.0 */
/* XML as a tree in memory, read within bounds, and the list of its findings. For xml_*.c only. */
#ifndef HK_TOPO_XML_TREE_H
#define HK_TOPO_XML_TREE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "xml.h"

/* A file beyond these bounds is not a machine. Real dumps have some hundred elements and a depth of ten. */
enum {
  HK_XML_BYTES = 16 << 20,
  HK_XML_DEPTH = 64,
  HK_XML_NODES = 32768,
  HK_XML_ATTRS = 64,    /* of one element */
  HK_XML_VALUE = 4096,  /* characters of a name or value */
  HK_XML_FINDINGS = 500 /* errors, and remarks, reported for one file */
};

typedef struct hk_xml_attr {
  const char *name, *value;
  struct hk_xml_attr *next;
} hk_xml_attr;

typedef struct hk_xml_node {
  const char *name;
  hk_xml_attr *attrs;
  struct hk_xml_node *parent, *first, *last, *next;
  int line, column; /* 0: not from a file */
} hk_xml_node;

typedef struct hk_xml_tree {
  hk_xml_node *root;
  struct hk_xml_block *blocks; /* memory of nodes and texts */
  int nodes;
} hk_xml_tree;

/* Where findings go: to `sink`, and the first error also into `first`. */
typedef struct hk_xml_report {
  const char *file;
  hk_xml_sink *sink;
  void *arg;
  int errors, remarks;
  char first[400];
} hk_xml_report;
void hk_xml_say(hk_xml_report *r, const hk_xml_node *at, bool error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void hk_xml_say_at(hk_xml_report *r, int line, int column, bool error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The status after reading: the first error's message, or HK_OK. */
hk_status hk_xml_status(const hk_xml_report *r);

/* An error if the text is not XML or beyond the bounds; the report then says so, and *out is NULL. */
hk_status hk_xml_parse(hk_xml_tree **out, const char *text, size_t bytes, hk_xml_report *r);
hk_status hk_xml_read(hk_xml_tree **out, hk_xml_report *r); /* the same from r->file */
void hk_xml_free(hk_xml_tree *t);

const char *hk_xml_get(const hk_xml_node *n, const char *name); /* NULL: not present */
hk_status hk_xml_set(hk_xml_tree *t, hk_xml_node *n, const char *name, const char *value);
/* Adds a copy of `from`, if `deep` with its children, after the children of `parent`. */
hk_status hk_xml_graft(hk_xml_tree *t, hk_xml_node *parent, const hk_xml_node *from, bool deep, hk_xml_node **out);
void hk_xml_remove(hk_xml_node *n);
const hk_xml_node *hk_xml_child(const hk_xml_node *n, const char *name); /* the first */

/* An attribute as a number. A missing, malformed or out-of-range one is reported: as an error if it is `needed`, else
 * as an error only if malformed. False: *out keeps its value. */
bool hk_xml_int(hk_xml_report *r, const hk_xml_node *n, const char *name, bool needed, long min, long max, long *out);
bool hk_xml_float(hk_xml_report *r, const hk_xml_node *n, const char *name, bool needed, float min, float max,
                  float *out);
bool hk_xml_hex(hk_xml_report *r, const hk_xml_node *n, const char *name, uint64_t max, uint64_t *out);

/* Remarks about elements and attributes that the schema does not have. */
void hk_xml_check_names(hk_xml_report *r, const hk_xml_node *root);
#endif
