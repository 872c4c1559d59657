/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo --lint`: reports what is wrong with a topology file, with lines. */
#include "../../base/json.h"
#include "../../topo/topo.h"
#include "../../topo/xml.h"
#include "../machine.h"
#include "../tools.h"
#include "view.h"

typedef struct tally {
  const char *path;
  hk_json *w; /* NULL: text */
  int errors, remarks;
} tally;

static void lint_print_finding(void *arg, const hk_xml_finding *f) {
  tally *t = arg;
  *(f->error ? &t->errors : &t->remarks) += 1;
  if (t->w) {
    hk_json_open(t->w, '{');
    hk_json_put_integer(t->w, "line", f->line);
    hk_json_put_integer(t->w, "column", f->column);
    hk_json_put_boolean(t->w, "error", f->error);
    hk_json_put_text(t->w, "text", f->text);
    hk_json_close(t->w);
    return;
  }
  /* The format that editors jump to. */
  printf("%s:%d:%d: %s%s%s: %s\n", t->path, f->line, f->column,
         hk_tool_style(stdout, f->error ? HK_STYLE_RED : HK_STYLE_YELLOW), f->error ? "error" : "remark",
         hk_tool_style(stdout, HK_STYLE_PLAIN), f->text);
}

int hk_topo_lint(const char *path, hk_json *w) {
  tally t = {.path = path, .w = w};
  hk_topo *topo = NULL;
  if (w) {
    hk_json_open(w, '{');
    hk_json_put_text(w, "file", path);
    hk_json_begin(w, "findings", '[');
  }
  hk_status rc = hk_topo_read_xml(&topo, path, lint_print_finding, &t);
  if (w) {
    hk_json_close(w);
    hk_json_put_boolean(w, "usable", rc == HK_OK);
    hk_json_close(w);
    putchar('\n');
  }
  if (rc != HK_OK && !t.errors) return hk_tool_failed(rc); /* no file, or no memory: nothing was checked */
  if (!w) {
    if (rc == HK_OK) {
      char text[256];
      printf("%s: %s\n", path, hk_topo_summary(topo, text));
    }
    printf("%d error%s, %d remark%s\n", t.errors, t.errors == 1 ? "" : "s", t.remarks, t.remarks == 1 ? "" : "s");
  }
  hk_topo_free(topo);
  return t.errors ? HK_EXIT_FINDING : HK_EXIT_OK;
}
