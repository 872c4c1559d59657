/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket watch`: what `hocket ps` shows, again and again. */
#include <unistd.h>
#include "../base/wait.h"
#include "ps/ps.h"

typedef hk_ps_options options;

static int watch_run(void *into, int nargs, char **args) {
  options *o = into;
  const hk_wait_env env = {.spins = 0};
  const bool live = isatty(STDOUT_FILENO);
  hk_waiter w;
  o->address = nargs ? args[0] : NULL;
  if (o->interval_s <= 0) return hk_tool_wrong("--interval is a pause of more than 0 seconds");
  hk_wait_begin(&w, &env);
  int code = hk_ps_show(o, live ? "\033[H\033[2J" : ""); /* home, clear */
  for (int left = o->times - 1; left && code != HK_EXIT_TROUBLE; left -= left > 0) {
    (void)hk_wait_nap(&w, -1, (uint64_t)(o->interval_s * 1e9));
    code = hk_ps_show(o, live ? "\033[H\033[2J" : "");
  }
  return code;
}

static const hk_tool_option rows[] = {
    HK_PS_ROWS,
    HK_ROW_NUMBER(interval_s, "interval", "SECONDS", "the pause between two looks", .letter = 'i', .def = "2"),
    HK_ROW_INT(times, "times", "N", "end after so many looks; 0: when you interrupt it", .letter = 'n', .def = "0",
               .low = 0, .high = 1000000000),
    {0}};

const hk_tool hk_tool_watch = {
    .name = "watch",
    .about = "what `hocket ps` shows, live in a terminal",
    .usage = "[HOST[:PORT]]",
    .text =
        "Shows what `hocket ps` shows, again and again, until you interrupt it or the service that it asks ends. In "
        "a terminal each look replaces the one before; else they follow each other, with --json one a line.",
    .findings = "the last look has a rank that keeps others waiting, or does not answer",
    .examples = "hocket watch\n  all communicators with ranks on this host, each two seconds\n"
                "hocket watch --json --interval 10 >>log\n  a line each ten seconds, for a program",
    .options = rows,
    .bytes = sizeof(options),
    .most = 1,
    .run = watch_run};
