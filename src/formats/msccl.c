/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MSCCL's XML (msccl.h). */
#include "msccl.h"
#include <stdlib.h>
#include <string.h>
#include "../program/verify.h"
#include "msccl_file.h"

/* HK_ERR_INTERNAL: not proved. */
static hk_status msccl_prove(const hk_msccl *m, unsigned slots, hk_verify_report *report) {
  hk_status rc = HK_OK;
  for (int in_place = 0; in_place < 2 && rc == HK_OK; in_place++) {
    const hk_verify_options o = {.slots = slots, .waves = slots + 1, .in_place = in_place};
    rc = hk_verify((const hk_program *const *)m->programs, m->nranks, &o, report);
  }
  return rc;
}

static hk_status msccl_make(hk_msccl *out, hk_msccl_file *f, unsigned how, unsigned slots, hk_verify_report *report) {
  out->programs = calloc((size_t)out->nranks, sizeof(hk_program *));
  if (!out->programs) return HK_FAIL_ERRNO("no memory for the programs of %s", f->report.file);
  HK_OR_RETURN(hk_msccl_run(f, how, out->programs));
  return msccl_prove(out, slots, report);
}

hk_status hk_msccl_read(hk_msccl *out, const char *file, const char *text, unsigned slots) {
  static const unsigned ways[] = {HK_MSCCL_DIRECT, HK_MSCCL_DIRECT | HK_MSCCL_COPIES, HK_MSCCL_COPIES}; /* best first */
  hk_status rc = HK_OK;
  hk_xml_tree *tree = NULL;
  hk_verify_report report;
  hk_msccl_file *f = calloc(1, sizeof *f);
  *out = (hk_msccl){.nranks = 0};
  if (!f) return HK_FAIL_ERRNO("no memory to read %s", file);
  f->report.file = file;
  HK_TRY(text ? hk_xml_parse(&tree, text, strlen(text), &f->report) : hk_xml_read(&tree, &f->report), out);
  HK_TRY(hk_msccl_file_read(f, tree, out), out);
  rc = HK_ERR_INTERNAL;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(ways) && rc == HK_ERR_INTERNAL; i++) {
    hk_msccl_free(out);
    rc = msccl_make(out, f, ways[i], slots, &report);
  }
  if (rc == HK_ERR_INTERNAL) rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: %s", file, report.message);
out:
  hk_xml_free(tree);
  free(f->blocks);
  free(f->steps);
  free(f);
  return rc;
}

void hk_msccl_free(hk_msccl *m) {
  for (int r = 0; m->programs && r < m->nranks; r++) hk_program_free(m->programs[r]);
  free(m->programs);
  m->programs = NULL;
}
