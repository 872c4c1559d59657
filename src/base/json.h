/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON text, written from front to back. The *_perf programs are linked with a copy of it, because they use only the
 * public API. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { HK_JSON_DEPTH = 16 };
typedef struct hk_json {
  FILE *f; /* NULL: all calls do nothing */
  int depth;
  char closers[HK_JSON_DEPTH]; /* of the objects and lists that are open */
  bool filled[HK_JSON_DEPTH];  /* has an element already */
  bool after_key;
} hk_json;

void hk_json_open(hk_json *w, char bracket); /* '{' or '[' */
void hk_json_close(hk_json *w);
void hk_json_key(hk_json *w, const char *name);
void hk_json_text(hk_json *w, const char *text); /* NULL writes null */
void hk_json_integer(hk_json *w, long long v);
void hk_json_number(hk_json *w, double v);
void hk_json_boolean(hk_json *w, bool v);
void hk_json_null(hk_json *w);
/* Key and value in one. */
void hk_json_put_text(hk_json *w, const char *key, const char *text);
void hk_json_put_integer(hk_json *w, const char *key, long long v);
void hk_json_put_boolean(hk_json *w, const char *key, bool v);
void hk_json_put_number(hk_json *w, const char *key, double v);
void hk_json_begin(hk_json *w, const char *key, char bracket);
