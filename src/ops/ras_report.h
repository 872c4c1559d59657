/* SPDX-License-Identifier: Apache-2.0 */
/* What the RAS server (ras.h) writes about a collection. */
#pragma once
#include <stdio.h>
#include "collect.h"

typedef struct hk_ras_format {
  bool json, verbose;
  unsigned groups; /* of events: HK_RAS_ bits */
} hk_ras_format;
enum { HK_RAS_LIFECYCLE = 1, HK_RAS_TRACE = 2 };

/* `seconds`: what the collection took. */
void hk_ras_report(FILE *f, const hk_ps *p, const hk_ras_format *how, double seconds);
/* The events between two collections. Without ranks in `before`, all are taken to have answered then. */
void hk_ras_events(FILE *f, const hk_ps *before, const hk_ps *now, const hk_ras_format *how);
