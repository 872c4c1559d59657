/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The JSON writer: commas, quoting, numbers that JSON has not. */
#include <math.h>
#include "../../src/base/json.h"
#include "../support/suite.h"

static char *text;
static size_t bytes;

static hk_json begin(void) {
  hk_json w = {.f = open_memstream(&text, &bytes)};
  ck_assert_ptr_nonnull(w.f);
  return w;
}
static void is(hk_json *w, const char *want) {
  ck_assert_int_eq(fclose(w->f), 0);
  ck_assert_str_eq(text, want);
  free(text);
}

TEST(nesting) {
  hk_json w = begin();
  hk_json_open(&w, '{');
  hk_json_key(&w, "list");
  hk_json_open(&w, '[');
  hk_json_integer(&w, -1);
  hk_json_open(&w, '{');
  hk_json_close(&w);
  hk_json_boolean(&w, true);
  hk_json_null(&w);
  hk_json_close(&w);
  hk_json_put_text(&w, "none", NULL);
  hk_json_put_boolean(&w, "no", false);
  hk_json_key(&w, "left open");
  hk_json_close(&w);
  hk_json_close(&w); /* one too many does nothing */
  is(&w, "{\"list\":[-1,{},true,null],\"none\":null,\"no\":false,\"left open\":null}");
}

TEST(texts) {
  hk_json w = begin();
  hk_json_text(&w, "a \"b\" \\ \n \x7f \xc3\xa9");
  is(&w, "\"a \\\"b\\\" \\\\ \\u000a \\u007f \\u00c3\\u00a9\"");
}

TEST(numbers) {
  hk_json w = begin();
  hk_json_open(&w, '[');
  hk_json_number(&w, 0.5);
  hk_json_number(&w, 1e-9);
  hk_json_number(&w, 12345678.25);
  hk_json_number(&w, NAN);
  hk_json_number(&w, INFINITY);
  hk_json_close(&w);
  is(&w, "[0.5,1e-09,12345678.25,\"nan\",\"inf\"]");
}

TEST(too_deep) {
  hk_json w = begin();
  for (int i = 0; i < 2 * HK_JSON_DEPTH; i++) hk_json_open(&w, '[');
  for (int i = 0; i < HK_JSON_DEPTH; i++) hk_json_close(&w);
  is(&w, "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]");
}

TEST(nowhere) {
  hk_json w = {.f = NULL};
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "a", 1);
  hk_json_close(&w);
  ck_assert_int_eq(w.depth, 0);
}

int main(void) { return suite_main("json"); }
