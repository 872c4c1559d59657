/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's diagnostics at init: what differs between the ranks, and whether their links carry data unchanged. All ranks
 * take part; the process of rank 0 writes a report to its standard output, whose lines begin with HOST:PID NCCL DIAG.
 * What they find is no error. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"

struct hk_settings; /* base/param.h */

enum {
  HK_DIAGNOSE_SETTINGS = 1, /* NCCL_RUN_RAS_DIAGNOSTICS */
  HK_DIAGNOSE_LINKS = 2     /* NCCL_RUN_DIAGNOSTICS */
};
unsigned hk_diagnose_wanted(const struct hk_settings *settings);
/* diagnose.c: compares environments and GPUs. */
hk_status hk_diagnose_settings(ncclComm_t c);
/* diagnose_links.c: data between the ranks of each host, then between neighbouring hosts. Uses the communicator. */
hk_status hk_diagnose_links(ncclComm_t c);

/* ---- a report ---- */

typedef struct hk_diagnosis {
  FILE *f; /* NULL: this rank writes none */
  char *text;
  size_t bytes;
  uint64_t begin_ns;
  ncclComm_t comm;
} hk_diagnosis;

/* Rank 0 only writes. HK_ERR_SYSTEM without memory. */
hk_status hk_diagnosis_begin(hk_diagnosis *d, ncclComm_t c, const char *title);
typedef enum hk_diagnosis_tag { HK_DIAGNOSIS_NONE, HK_DIAGNOSIS_OK, HK_DIAGNOSIS_INFO } hk_diagnosis_tag;
__attribute__((format(printf, 3, 4))) void hk_diagnosis_say(hk_diagnosis *d, hk_diagnosis_tag tag, const char *format,
                                                            ...);
/* Writes it out as a whole; `name`: "RAS diagnostics". */
void hk_diagnosis_end(hk_diagnosis *d, const char *name);
