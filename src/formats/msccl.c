/* SPDX-License-Identifier: Apache-2.0 */
/* Reads MSCCL's XML (msccl.h). */
#include "msccl.h"
#include <stdlib.h>
#include <string.h>
#include "msccl_file.h"

hk_status hk_msccl_read(hk_msccl *out, const char *file, const char *text) {
  hk_status rc = HK_OK;
  hk_xml_tree *tree = NULL;
  hk_msccl_file *f = calloc(1, sizeof *f);
  *out = (hk_msccl){.nranks = 0};
  if (!f) return HK_FAIL_ERRNO("no memory to read %s", file);
  f->report.file = file;
  HK_TRY(hk_xml_parse(&tree, text, strlen(text), &f->report), out);
  HK_TRY(hk_msccl_file_read(f, tree, out), out);
  out->programs = calloc((size_t)out->nranks, sizeof(hk_program *));
  if (!out->programs) {
    rc = HK_FAIL_ERRNO("no memory for the programs of %s", file);
    goto out;
  }
  HK_TRY(hk_msccl_run(f, out->programs), out);
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
