/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the forms of program files apart (file.h). */
#include "file.h"
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/text_file.h"
#include "../program/verify.h"
#include "formats.h"

hk_program_set *hk_program_file_add(hk_program_file *f, int nranks) {
  if (!HK_RESERVE_NEXT(f->sets, f->nsets)) return NULL;
  hk_program_set *s = &f->sets[f->nsets];
  *s = (hk_program_set){.nranks = nranks, .in_place = true, .out_of_place = true};
  s->programs = calloc((size_t)nranks, sizeof(hk_program *));
  if (!s->programs) return NULL;
  f->nsets++;
  return s;
}

hk_status hk_program_set_try(const hk_program_set *s, unsigned slots, hk_verify_report *report) {
  hk_status rc = HK_OK;
  for (int in_place = 0; in_place < 2 && rc == HK_OK; in_place++) {
    const hk_verify_options o = {.slots = slots, .waves = slots + 1, .in_place = in_place};
    rc = hk_verify((const hk_program *const *)s->programs, s->nranks, &o, report);
  }
  return rc;
}

hk_status hk_program_set_prove(hk_program_set *s, const char *name, unsigned slots) {
  hk_verify_report report;
  const hk_status rc = s->proved ? HK_OK : hk_program_set_try(s, slots, &report);
  s->proved = rc == HK_OK;
  return rc == HK_ERR_INTERNAL ? HK_FAIL(HK_ERR_ARGUMENT, "%s: %s", name, report.message) : rc;
}

hk_status hk_program_file_read(hk_program_file *out, const char *name, const char *text, unsigned slots) {
  char *own = NULL;
  size_t bytes;
  *out = (hk_program_file){.nsets = 0};
  if (!text)
    HK_OR_RETURN(hk_text_read(name, HK_PROGRAM_FILE_BYTES, &own, &bytes));
  else if (!(own = strdup(text)))
    return HK_FAIL_ERRNO("no memory to read %s", name);
  const hk_status rc = own[strspn(own, " \t\r\n")] == '<' ? hk_msccl_read(out, name, own, slots)
                                                          : hk_text_programs_read(out, name, own);
  free(own);
  return rc;
}

void hk_program_set_free(hk_program_set *s) {
  for (int r = 0; s->programs && r < s->nranks; r++) hk_program_free(s->programs[r]);
  free(s->programs);
  free(s->lines);
  s->programs = NULL;
  s->lines = NULL;
}

void hk_program_file_free(hk_program_file *f) {
  for (int i = 0; i < f->nsets; i++) hk_program_set_free(&f->sets[i]);
  free(f->sets);
  *f = (hk_program_file){.nsets = 0};
}
