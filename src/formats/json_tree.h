/* SPDX-License-Identifier: Apache-2.0 */
/* A file's JSON, read by jansson within bounds. Each error names the file and the node: `gpus[2].ops[5]: "type" is
 * missing`. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

/* A file beyond these bounds is no program. A node needs some 100 bytes of memory, an empty object some 300. */
enum { HK_JSON_TREE_BYTES = 64 << 20, HK_JSON_TREE_DEPTH = 32, HK_JSON_TREE_NODES = 1 << 22 };

typedef struct hk_json_tree {
  const char *file;
  struct json_t *root;
  int errors;
  bool no_memory;  /* one of them */
  char first[600]; /* error */
} hk_json_tree;

typedef enum hk_json_kind {
  HK_JSON_OBJECT,
  HK_JSON_LIST,
  HK_JSON_TEXT,
  HK_JSON_WHOLE,  /* number, up to 2^53 */
  HK_JSON_BOOLEAN /* true or false */
} hk_json_kind;

/* A value and the way to it. `parent` must live as long as the node. */
typedef struct hk_json_node {
  hk_json_tree *tree;
  const struct hk_json_node *parent; /* NULL: the whole file */
  const char *key;                   /* in the parent; NULL: the parent is a list */
  size_t index;                      /* in the parent, which is a list */
  struct json_t *value;
} hk_json_node;

/* HK_ERR_ARGUMENT: the text is no JSON, or it is beyond the bounds, or jansson is not installed. Free `t` in any
 * case. */
hk_status hk_json_tree_parse(hk_json_tree *t, const char *file, const char *text);
void hk_json_tree_free(hk_json_tree *t);
bool hk_json_tree_available(void); /* false: jansson is not installed */
/* The status after reading: the first error's message, or HK_OK. */
hk_status hk_json_tree_status(const hk_json_tree *t);
/* Notes that there is no memory for what is read; returns false. */
bool hk_json_no_memory(hk_json_tree *t);
/* Notes an error at this node; the first one counts. */
void hk_json_say(const hk_json_node *n, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

hk_json_node hk_json_root(hk_json_tree *t);
bool hk_json_is(const hk_json_node *n, hk_json_kind kind);
size_t hk_json_size(const hk_json_node *list); /* 0 if it is no list */
/* The value of a key, or an element of a list. False: it is of another kind, which is an error, or it is missing, which
 * is an error if it is `needed`. */
bool hk_json_get(const hk_json_node *object, const char *key, hk_json_kind kind, bool needed, hk_json_node *out);
bool hk_json_at(const hk_json_node *list, size_t index, hk_json_kind kind, hk_json_node *out);
/* The same with the value. If there is no value, *out keeps its own. */
bool hk_json_get_whole(const hk_json_node *object, const char *key, bool needed, long long min, long long max,
                       long long *out);
bool hk_json_get_boolean(const hk_json_node *object, const char *key, bool needed, bool *out);
const char *hk_json_get_text(const hk_json_node *object, const char *key, bool needed); /* NULL: none */
/* True if there is a value of this kind; nothing is an error. */
bool hk_json_has(const hk_json_node *object, const char *key, hk_json_kind kind, hk_json_node *out);
/* False is an error. */
bool hk_json_within(const hk_json_node *whole, long long min, long long max);
/* Values of nodes whose kind is known. */
long long hk_json_value(const hk_json_node *whole);
const char *hk_json_words(const hk_json_node *text);
/* Notes an error if the object has a key that is not in `keys`, which has a space before and after each key. */
bool hk_json_only(const hk_json_node *object, const char *keys);
