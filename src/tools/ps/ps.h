/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ps` and `hocket watch`: what the ranks of running jobs do. */
#pragma once
#include "../../ops/collect.h"
#include "../tools.h"

typedef struct hk_ps_options {
  const char *comm, *job;
  int late_ms, times;
  bool all, json;
  double interval_s;   /* of watch */
  const char *address; /* whose RAS service is asked; NULL: the processes of this host are */
} hk_ps_options;

/* The rows of both commands' options, whose struct is `options`. */
#define HK_PS_ROWS                                                                                                     \
  HK_ROW_TEXT(comm, "comm", "ID", "only this communicator, by its number (0x...) or its name", .letter = 'c'),         \
      HK_ROW_TEXT(job, "job", "NAME",                                                                                  \
                  "only the job that a launcher's variable calls so: 17, 17.0 or SLURM_JOB_ID=17, node1:29500",        \
                  .letter = 'j'),                                                                                      \
      HK_ROW_INT(late_ms, "late", "MS", "report waits from this length on, milliseconds", .letter = 'l',               \
                 .def = "1000", .low = 0, .high = 1000000000),                                                         \
      HK_ROW_FLAG(all, "all", "all ranks of large communicators", .letter = 'a'),                                      \
      HK_ROW_FLAG(json, "json", "write JSON")

/* Collects, and prints `before` and what was found. Returns an exit code. */
int hk_ps_show(const hk_ps_options *o, const char *before);
void hk_ps_print_json(const hk_ps *p, const hk_ps_options *o);
bool hk_ps_is_wanted(const hk_ps_comm *c, const hk_ps_options *o);

/* remote.c: what NCCL's RAS service at HOST[:PORT] tells. False: the error is printed. Free `out` in any case. */
bool hk_ps_read_remote(hk_ps *out, const char *address);
