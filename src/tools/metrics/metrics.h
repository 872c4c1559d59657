/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `hocket metrics`. */
#pragma once
#include "../tools.h"

/* Asks the processes of this host, and writes their metrics in Prometheus' text format. */
hk_status hk_metrics_write(FILE *to, const void *none);
/* Answers GET /metrics over HTTP at `where`, "[ADDRESS:]PORT", until the process ends. Returns an exit code. */
int hk_metrics_serve(const char *where);
