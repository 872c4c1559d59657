/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket env`: every parameter, its value here and the source of the value. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/json.h"
#include "../base/param.h"
#include "../base/param_names.h"
#include "tools.h"

typedef struct options {
  bool json, markdown, set;
} options;

static const char *env_name_at(int i) {
  hk_param_info info;
  if (i < 0 || i >= HK_P_COUNT) return NULL;
  hk_param_describe((hk_param_id)i, &info);
  return info.name;
}

/* ---- wrong names and values ---- */

typedef struct complaint {
  bool wrong;
  char *text;
} complaint;
typedef struct complaints {
  int n, wrong;
  complaint *at;
} complaints;

static void env_collect(void *arg, bool wrong, const char *text) {
  complaints *c = arg;
  if (!HK_RESERVE_NEXT(c->at, c->n)) return;
  c->at[c->n++] = (complaint){wrong, strdup(text)};
  c->wrong += wrong;
}

static void env_forget(complaints *c) {
  for (int i = 0; i < c->n; i++) free(c->at[i].text);
  free(c->at);
}

/* ---- one parameter as text ---- */

static void env_value_text(const hk_param_info *p, char *text, size_t capacity, const char *unset) {
  if (p->is_string)
    snprintf(text, capacity, "%s", p->str_value ? p->str_value : unset);
  else
    snprintf(text, capacity, "%lld", (long long)p->value);
}
static void env_default_text(const hk_param_info *p, char *text, size_t capacity) {
  if (p->is_string)
    snprintf(text, capacity, "%s", p->str_def ? p->str_def : "unset");
  else
    snprintf(text, capacity, "%lld", (long long)p->def);
}
static void env_type_text(const hk_param_info *p, char *text, size_t capacity) {
  if (p->is_string)
    snprintf(text, capacity, "text");
  else
    snprintf(text, capacity, "%lld to %lld%s%s", (long long)p->min, (long long)p->max, p->unit[0] ? " " : "", p->unit);
}
static bool env_is_set(const hk_param_info *p) { return strcmp(p->origin, "default") != 0; }

/* The selected ones: those named, or all, or (with --set) those that are set. */
static bool env_wanted(const hk_param_info *p, const options *o, int nargs, char **args) {
  if (o->set && !env_is_set(p)) return false;
  bool any = nargs == 0;
  for (int i = 0; i < nargs; i++) any |= !strcmp(args[i], p->name);
  return any;
}

/* ---- the three forms ---- */

static void env_print_table(const options *o) {
  hk_table *t = hk_table_new("lllw");
  int shown = 0;
  hk_table_row(t, HK_STYLE_BOLD, "NAME\tVALUE\tFROM\tMEANING");
  for (int i = 0; i < HK_P_COUNT; i++) {
    hk_param_info p;
    char value[4096];
    hk_param_describe((hk_param_id)i, &p);
    if (!env_wanted(&p, o, 0, NULL)) continue;
    env_value_text(&p, value, sizeof value, "-");
    hk_style s = env_is_set(&p) ? HK_STYLE_GREEN : HK_STYLE_PLAIN;
    hk_table_cell(t, s, "%s", p.name);
    hk_table_cell(t, s, strlen(value) > 20 ? "%.17s..." : "%s", value);
    hk_table_cell(t, s, strlen(p.origin) > 24 ? "...%s" : "%s",
                  p.origin + (strlen(p.origin) > 24 ? strlen(p.origin) - 21 : 0));
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", p.help);
    shown++;
  }
  if (!shown) hk_table_row(t, HK_STYLE_PLAIN, "-\t-\t-\tnothing is set: every parameter has its default");
  hk_table_print(t, 0, stdout);
}

static void env_print_details(const options *o, int nargs, char **args) {
  bool first = true;
  for (int i = 0; i < HK_P_COUNT; i++) {
    hk_param_info p;
    char text[4096];
    hk_param_describe((hk_param_id)i, &p);
    if (!env_wanted(&p, o, nargs, args)) continue;
    printf("%s%s%s%s\n", first ? "" : "\n", hk_tool_style(stdout, HK_STYLE_BOLD), p.name,
           hk_tool_style(stdout, HK_STYLE_PLAIN));
    hk_tool_wrap(stdout, 2, p.help);
    env_value_text(&p, text, sizeof text, "not set");
    printf("  value    %s\n  from     %s\n", text, p.origin);
    env_default_text(&p, text, sizeof text);
    printf("  default  %s\n", text);
    env_type_text(&p, text, sizeof text);
    printf("  %s  %s\n", p.is_string ? "type   " : "range  ", text);
    first = false;
  }
}

static void env_put_markdown(const char *text) {
  for (; *text; text++) printf(*text == '|' ? "\\|" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "%c", *text);
  fputs(" | ", stdout);
}

static void env_print_markdown(const options *o, int nargs, char **args) {
  printf("| name | value | from | default | values | meaning |\n|---|---|---|---|---|---|\n");
  for (int i = 0; i < HK_P_COUNT; i++) {
    hk_param_info p;
    char text[4096];
    hk_param_describe((hk_param_id)i, &p);
    if (!env_wanted(&p, o, nargs, args)) continue;
    printf("| `%s` | ", p.name);
    env_value_text(&p, text, sizeof text, "unset");
    env_put_markdown(text);
    env_put_markdown(p.origin);
    env_default_text(&p, text, sizeof text);
    env_put_markdown(text);
    env_type_text(&p, text, sizeof text);
    env_put_markdown(text);
    printf("%s |\n", p.help);
  }
}

static void env_print_json(const options *o, int nargs, char **args, const complaints *c) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_begin(&w, "parameters", '[');
  for (int i = 0; i < HK_P_COUNT; i++) {
    hk_param_info p;
    hk_param_describe((hk_param_id)i, &p);
    if (!env_wanted(&p, o, nargs, args)) continue;
    hk_json_open(&w, '{');
    hk_json_put_text(&w, "name", p.name);
    hk_json_put_text(&w, "type", p.is_string ? "text" : "integer");
    if (p.is_string) {
      hk_json_put_text(&w, "value", p.str_value);
      hk_json_put_text(&w, "default", p.str_def);
    } else {
      hk_json_put_integer(&w, "value", p.value);
      hk_json_put_integer(&w, "default", p.def);
      hk_json_put_integer(&w, "min", p.min);
      hk_json_put_integer(&w, "max", p.max);
      hk_json_put_text(&w, "unit", p.unit);
    }
    hk_json_put_text(&w, "origin", p.origin);
    hk_json_put_text(&w, "help", p.help);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_begin(&w, "complaints", '[');
  for (int i = 0; i < c->n; i++) {
    hk_json_open(&w, '{');
    hk_json_put_boolean(&w, "wrong", c->at[i].wrong);
    hk_json_put_text(&w, "text", c->at[i].text);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_close(&w);
  putchar('\n');
}

static void env_print_complaints(const complaints *c) {
  for (int wrong = 1; wrong >= 0; wrong--) {
    bool any = false;
    for (int i = 0; i < c->n; i++) {
      if (c->at[i].wrong != wrong) continue;
      if (!any) printf("\n%s\n", wrong ? "What is wrong:" : "What has no effect:");
      any = true;
      fputs(hk_tool_style(stdout, wrong ? HK_STYLE_RED : HK_STYLE_DIM), stdout);
      hk_tool_wrap(stdout, 2, c->at[i].text);
      fputs(hk_tool_style(stdout, HK_STYLE_PLAIN), stdout);
    }
  }
}

/* The names on the command line must be parameters. */
static int env_check_names(int nargs, char **args) {
  const char *names[HK_P_COUNT];
  for (int i = 0; i < HK_P_COUNT; i++) names[i] = env_name_at(i);
  for (int k = 0; k < nargs; k++) {
    unsigned distance;
    const char *nearest = hk_param_nearest(args[k], names, HK_P_COUNT, &distance);
    if (nearest && distance == 0) continue;
    const char *why = hk_param_inert(args[k]);
    if (!why) why = hk_param_inert_family(args[k]);
    if (why)
      return hk_tool_wrong("%s is a variable of NCCL or its plugins that has no effect in Hocket: %s", args[k], why);
    if (nearest) return hk_tool_wrong("%s is no parameter; did you mean %s?", args[k], nearest);
    return hk_tool_wrong("%.100s... is no parameter", args[k]);
  }
  return HK_EXIT_OK;
}

static int env_run(void *into, int nargs, char **args) {
  const options *o = into;
  complaints c = {0};
  hk_param_check(env_collect, &c);
  int code = env_check_names(nargs, args);
  if (code == HK_EXIT_OK) {
    if (o->json)
      env_print_json(o, nargs, args, &c);
    else if (o->markdown)
      env_print_markdown(o, nargs, args);
    else if (nargs)
      env_print_details(o, nargs, args);
    else
      env_print_table(o);
    if (!o->json && !o->markdown && !nargs) env_print_complaints(&c);
    if (c.wrong && !nargs) code = HK_EXIT_FINDING;
  }
  env_forget(&c);
  return code;
}

static const hk_tool_option rows[] = {HK_ROW_FLAG(set, "set", "only parameters that something sets"),
                                      HK_ROW_FLAG(json, "json", "write JSON"),
                                      HK_ROW_FLAG(markdown, "markdown", "write a Markdown table, for a report"),
                                      {0}};

const hk_tool hk_tool_env = {
    .name = "env",
    .about = "show every parameter, its value and the source of the value",
    .usage = "[NAME...]",
    .text =
        "A value comes from the environment, else from ~/.nccl.conf (or the file that NCCL_CONF_FILE names), else from "
        "/etc/nccl.conf, else it is the default. Misspelt names and values out of range are reported, with the "
        "nearest name and the range. With names, it says more about these.",
    .findings = "a variable that starts with NCCL_ or HOCKET_ is misspelt or its value is out of range",
    .examples = "hocket env --set\n  what differs from the defaults\n"
                "NCCL_ALGOO=ring hocket env --set\n  suggests NCCL_ALGO\n"
                "hocket env NCCL_ALGO\n  what this one does",
    .options = rows,
    .bytes = sizeof(options),
    .most = -1,
    .run = env_run,
};
