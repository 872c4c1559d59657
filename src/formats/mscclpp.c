/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MSCCL++'s JSON. */
#include "mscclpp.h"
#include <stdlib.h>
#include "../program/verify.h"
#include "formats.h"

static hk_status mscclpp_make(hk_program_set *s, const hk_mscclpp_events *t, unsigned how, unsigned slots,
                              hk_verify_report *report) {
  HK_OR_RETURN(hk_mscclpp_emit(t, how, slots, s));
  return hk_program_set_try(s, slots, report);
}

enum { NWAYS = 7 };

/* Ways to make the programs, from 1 on, the best first: all with lanes, then all without. */
static unsigned mscclpp_way(unsigned i) {
  enum { BEST = HK_MSCCLPP_JOIN | HK_TRACE_DIRECT };
  static const unsigned ways[NWAYS] = {
      BEST | HK_MSCCLPP_LATE, BEST | HK_MSCCLPP_LATE | HK_TRACE_COPIES, BEST,           BEST | HK_TRACE_COPIES,
      HK_TRACE_DIRECT,        HK_TRACE_DIRECT | HK_TRACE_COPIES,        HK_TRACE_COPIES};
  return ways[(i - 1) % NWAYS] | (i <= NWAYS ? HK_MSCCLPP_LANES : 0);
}

hk_status hk_mscclpp_read(hk_program_file *out, const hk_json_node *file, unsigned slots) {
  const char *name = file->tree->file;
  hk_status rc = HK_OK;
  hk_verify_report report;
  hk_program_set *set;
  hk_mscclpp_events t = {.nevents = 0};
  hk_mscclpp_file *f = calloc(1, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory to read %s", name);
  HK_TRY(hk_mscclpp_file_read(f, file), out);
  HK_TRY(hk_mscclpp_run(f, &t), out);
  set = hk_program_file_add(out, f->nranks);
  if (!set) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  set->in_place = f->in_place;
  set->out_of_place = !f->in_place;
  set->least = f->least;
  set->most = f->most;
  rc = HK_ERR_INTERNAL;
  if (out->way) HK_GIVE_UP(hk_mscclpp_emit(&t, mscclpp_way(out->way), slots, set), out);
  for (uint8_t i = 1; i <= 2 * NWAYS && rc == HK_ERR_INTERNAL; i++) {
    rc = mscclpp_make(set, &t, mscclpp_way(i), slots, &report);
    if (rc == HK_OK) out->way = i;
  }
  set->proved = rc == HK_OK;
  if (rc == HK_ERR_INTERNAL) rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: %s", name, report.message);
out:
  free(t.events);
  free(t.places);
  hk_mscclpp_file_free(f);
  free(f);
  return rc;
}
