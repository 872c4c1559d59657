/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket metrics`: what this host's ranks count, for Prometheus. */
#include "metrics.h"
#include <sys/stat.h>

typedef struct options {
  const char *listen, *textfile;
} options;

static int metrics_run(void *into, int nargs, char **args) {
  const options *o = into;
  (void)nargs, (void)args;
  if (o->listen && o->textfile) return hk_tool_wrong("--listen and --textfile are two ways: choose one");
  if (o->listen) return hk_metrics_serve(o->listen);
  (void)umask(022); /* node_exporter, which reads the file, is another user */
  return hk_tool_output(o->textfile, hk_metrics_write, NULL);
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(listen, "listen", "[ADDRESS:]PORT",
                "answer HTTP requests for /metrics there until interrupted; by default only this host's (127.0.0.1)",
                .letter = 'l'),
    HK_ROW_TEXT(textfile, "textfile", "FILE", "write them once, and replace the file as a whole", .letter = 't'),
    {0}};

const hk_tool hk_tool_metrics = {
    .name = "metrics",
    .about = "what the ranks of this host count, for Prometheus",
    .text =
        "Asks the processes of this host that use the library, as `hocket ps` does, and writes their counters in "
        "Prometheus' text format: calls, bytes, time and bus bandwidth by collective and class of message sizes, "
        "the time since the last operation of each rank, waits, retries and failovers of the network. They go to the "
        "standard output or to a file of node_exporter's textfile collector, once, or to those who ask over HTTP.\n\n"
        "The processes need no setting. Those of other users are not shown, except to root. Nothing secret is "
        "written, but names of communicators and hosts are, and HTTP has no password.",
    .examples = "hocket metrics\n  once\n"
                "hocket metrics --textfile /var/lib/prometheus/node-exporter/hocket.prom\n  for node_exporter\n"
                "hocket metrics --listen 9465\n  for a Prometheus on this host\n"
                "hocket metrics --listen 10.0.0.7:9465\n  for one on another host of that network",
    .options = rows,
    .bytes = sizeof(options),
    .run = metrics_run};
