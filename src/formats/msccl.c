/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MSCCL's XML. */
#include <stdlib.h>
#include <string.h>
#include "../program/verify.h"
#include "formats.h"
#include "msccl_file.h"

static hk_status msccl_make(hk_program_set *s, hk_msccl_file *f, unsigned how, unsigned slots,
                            hk_verify_report *report) {
  for (int r = 0; r < s->nranks; r++) {
    hk_program_free(s->programs[r]); /* of another way */
    s->programs[r] = NULL;
  }
  f->report.errors = 0;
  const hk_status rc = hk_msccl_run(f, how, s->programs);
  if (rc == HK_ERR_ARGUMENT && how & HK_MSCCL_MERGE) return HK_ERR_INTERNAL; /* without it, this may be no error */
  if (rc != HK_OK) return rc;
  return hk_program_set_try(s, slots, report);
}

hk_status hk_msccl_read(hk_program_file *out, const char *name, const char *text, unsigned slots) {
  static const unsigned ways[] = {
      /* the best first */
      HK_MSCCL_MERGE | HK_MSCCL_DIRECT, HK_MSCCL_DIRECT, HK_MSCCL_DIRECT | HK_MSCCL_COPIES, HK_MSCCL_COPIES};
  hk_status rc = HK_OK;
  hk_xml_tree *tree = NULL;
  hk_verify_report report;
  hk_program_set *set;
  hk_msccl_file *f = calloc(1, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory to read %s", name);
  f->report.file = name;
  HK_TRY(hk_xml_parse(&tree, text, strlen(text), &f->report), out);
  HK_TRY(hk_msccl_file_read(f, tree), out);
  set = hk_program_file_add(out, f->nranks);
  if (!set) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  set->in_place = f->in_place;
  set->out_of_place = f->out_of_place;
  set->least = f->least;
  set->most = f->most;
  rc = HK_ERR_INTERNAL;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(ways) && rc == HK_ERR_INTERNAL; i++)
    rc = msccl_make(set, f, ways[i], slots, &report);
  set->proved = rc == HK_OK;
  if (rc == HK_ERR_INTERNAL) rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: %s", name, report.message);
out:
  hk_xml_free(tree);
  free(f->blocks);
  free(f->steps);
  free(f);
  return rc;
}
