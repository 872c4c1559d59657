/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON (json.h). */
#include "json.h"
#include <math.h>

/* The comma before an element. */
static void json_element(hk_json *w) {
  if (w->after_key) {
    w->after_key = false;
    return;
  }
  if (!w->depth) return;
  if (w->filled[w->depth - 1]) fputc(',', w->f);
  w->filled[w->depth - 1] = true;
}

static void json_quoted(hk_json *w, const char *text) {
  fputc('"', w->f);
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
    if (*p == '"' || *p == '\\')
      fprintf(w->f, "\\%c", *p);
    else if (*p < 0x20 || *p == 0x7f)
      fprintf(w->f, "\\u%04x", *p);
    else if (*p < 0x80)
      fputc(*p, w->f);
    else
      fprintf(w->f, "\\u00%02x", *p); /* a byte of an unknown encoding: kept readable as Latin-1 */
  }
  fputc('"', w->f);
}

void hk_json_open(hk_json *w, char bracket) {
  if (!w->f || w->depth == HK_JSON_DEPTH) return;
  json_element(w);
  fputc(bracket, w->f);
  w->closers[w->depth] = bracket == '{' ? '}' : ']';
  w->filled[w->depth++] = false;
}

void hk_json_close(hk_json *w) {
  if (!w->f || !w->depth) return;
  if (w->after_key) hk_json_null(w);
  fputc(w->closers[--w->depth], w->f);
}

void hk_json_key(hk_json *w, const char *name) {
  if (!w->f) return;
  json_element(w);
  json_quoted(w, name);
  fputc(':', w->f);
  w->after_key = true;
}

void hk_json_text(hk_json *w, const char *text) {
  if (!w->f) return;
  if (!text) {
    hk_json_null(w);
    return;
  }
  json_element(w);
  json_quoted(w, text);
}

void hk_json_integer(hk_json *w, long long v) {
  if (!w->f) return;
  json_element(w);
  fprintf(w->f, "%lld", v);
}

void hk_json_number(hk_json *w, double v) {
  if (!w->f) return;
  json_element(w);
  if (isfinite(v))
    fprintf(w->f, "%.10g", v);
  else
    fputs(isnan(v) ? "\"nan\"" : "\"inf\"", w->f);
}

void hk_json_boolean(hk_json *w, bool v) {
  if (!w->f) return;
  json_element(w);
  fputs(v ? "true" : "false", w->f);
}

void hk_json_null(hk_json *w) {
  if (!w->f) return;
  json_element(w);
  fputs("null", w->f);
}

void hk_json_put_text(hk_json *w, const char *key, const char *text) { hk_json_key(w, key), hk_json_text(w, text); }

void hk_json_put_integer(hk_json *w, const char *key, long long v) { hk_json_key(w, key), hk_json_integer(w, v); }

void hk_json_put_number(hk_json *w, const char *key, double v) { hk_json_key(w, key), hk_json_number(w, v); }

void hk_json_put_boolean(hk_json *w, const char *key, bool v) { hk_json_key(w, key), hk_json_boolean(w, v); }

void hk_json_begin(hk_json *w, const char *key, char bracket) {
  hk_json_key(w, key);
  hk_json_open(w, bracket);
}
