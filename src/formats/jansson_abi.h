/* SPDX-License-Identifier: Apache-2.0 */
/* The part of jansson's ABI that json_tree.c uses, so that building needs no header of it. test_program_json compares
 * this with jansson.h if it is installed. */
#pragma once
#include <stddef.h>

typedef struct json_t hk_jansson; /* their name, so that the types are the same */

/* json_t begins so. */
typedef struct hk_jansson_head {
  int type; /* HK_JANSSON_* */
  volatile size_t references;
} hk_jansson_head;
typedef struct hk_jansson_error {
  int line, column, position;
  char source[80], text[160];
} hk_jansson_error;

enum {
  HK_JANSSON_OBJECT,
  HK_JANSSON_ARRAY,
  HK_JANSSON_STRING,
  HK_JANSSON_INTEGER,
  HK_JANSSON_REAL,
  HK_JANSSON_TRUE,
  HK_JANSSON_FALSE,
  HK_JANSSON_NULL
};
enum { HK_JANSSON_REJECT_DUPLICATES = 1, HK_JANSSON_INT_AS_REAL = 8 };

/* F(type, name, arguments). json_loadb's last argument is a json_error_t. */
#define HK_JANSSON_CALLS(F)                                                                                            \
  F(void, json_delete, (hk_jansson *))                                                                                 \
  F(hk_jansson *, json_object_get, (const hk_jansson *, const char *key))                                              \
  F(void *, json_object_iter, (hk_jansson *))                                                                          \
  F(void *, json_object_iter_next, (hk_jansson *, void *iter))                                                         \
  F(const char *, json_object_iter_key, (void *iter))                                                                  \
  F(size_t, json_array_size, (const hk_jansson *))                                                                     \
  F(hk_jansson *, json_array_get, (const hk_jansson *, size_t index))                                                  \
  F(const char *, json_string_value, (const hk_jansson *))                                                             \
  F(double, json_real_value, (const hk_jansson *))
#define HK_JANSSON_LOAD(F)                                                                                             \
  F(hk_jansson *, json_loadb, (const char *text, size_t bytes, size_t flags, hk_jansson_error *))
