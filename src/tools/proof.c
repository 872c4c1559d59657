/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of all ranks' programs (proof.h). */
#include "proof.h"
#include <stdlib.h>
#include "../base/json.h"
#include "../base/param.h"
#include "../collectives/algorithm.h"
#include "../program/builder.h"
#include "../program/verify.h"
#include "tools.h"

unsigned hk_tool_slots(void) { return (unsigned)hk_tool_settings()->SLOTS; }

void hk_proof_free(hk_program **p, int nranks) {
  for (int r = 0; p && r < nranks; r++) hk_program_free(p[r]);
  free(p);
}

hk_status hk_proof_build(const hk_algorithm *a, const hk_build *what, hk_program ***out) {
  hk_status rc = HK_OK;
  hk_program **p = calloc((size_t)what->nranks + 1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for the programs of %d ranks", what->nranks);
  for (int r = 0; r < what->nranks; r++) {
    hk_build one = *what;
    one.rank = r;
    HK_TRY(hk_algorithm_build(a, &one, &p[r]), out);
  }
  *out = p;
  return HK_OK;
out:
  hk_proof_free(p, what->nranks);
  return rc;
}

hk_status hk_prove(const hk_program *const *programs, int nranks, const int32_t *host, const hk_proof_options *o,
                   hk_verify_report *report) {
  const unsigned slots = (unsigned)o->slots;
  hk_status rc = HK_OK;
  hk_order order = HK_ORDER_FIXED;
  /* Out of place and in place, with equal lengths and, if blocks may differ in length, with some random ones. */
  int runs = hk_coll_uneven((hk_coll)programs[0]->coll) ? 8 : 2;
  for (int k = 0; k < runs && rc == HK_OK; k++) {
    hk_verify_options v = {.slots = slots,
                           .waves = o->waves > 0 ? (unsigned)o->waves : slots + 1,
                           .in_place = k % 2,
                           .lengths = (uint64_t)k / 2,
                           .orders = true,
                           .host = host,
                           .least = o->fixed_order ? HK_ORDER_FIXED : HK_ORDER_VARIES};
    rc = hk_verify(programs, nranks, &v, report);
    if (!v.lengths && report->order < order) order = report->order;
  }
  report->order = order;
  return rc;
}

const char *hk_proof_order(const hk_program *p, const hk_verify_report *report) {
  return report->message[0] || !hk_coll_reduces((hk_coll)p->coll) ? "" : hk_order_name(report->order);
}

void hk_proof_json(hk_json *w, const hk_program *p, const char *ranks, const hk_verify_report *report, const char *file,
                   int line) {
  hk_json_open(w, '{');
  if (file) hk_json_put_text(w, "file", file);
  hk_json_put_text(w, "collective", hk_coll_name((hk_coll)p->coll));
  hk_json_put_text(w, "algorithm", p->algorithm);
  hk_json_put_text(w, "ranks", ranks);
  if (hk_coll_has_root((hk_coll)p->coll)) hk_json_put_integer(w, "root", p->root);
  hk_json_put_boolean(w, "proved", !report->message[0]);
  if (*hk_proof_order(p, report)) hk_json_put_text(w, "order", hk_proof_order(p, report));
  if (report->message[0]) {
    hk_json_put_text(w, "message", report->message);
    hk_json_put_integer(w, "rank", report->rank);
    hk_json_put_integer(w, "lane", report->lane);
    hk_json_put_integer(w, "instruction", report->instr);
    if (line) hk_json_put_integer(w, "line", line);
  }
  hk_json_close(w);
}

void hk_proofs_json_begin(hk_json *w) {
  hk_json_open(w, '{');
  hk_json_begin(w, "proofs", '[');
}

void hk_proofs_json_end(hk_json *w, int code) {
  hk_json_close(w);
  hk_json_put_boolean(w, "proved", code == HK_EXIT_OK);
  hk_json_close(w);
  fputc('\n', w->f);
}
