/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the forms of program files apart (file.h). */
#include "file.h"
#include <stdlib.h>
#include <string.h>
#include "../base/text_file.h"
#include "formats.h"

hk_status hk_program_file_read_proved(hk_program_file *out, const char *name, const char *text, unsigned slots,
                                      uint8_t way) {
  char *own = NULL;
  size_t bytes;
  hk_status rc;
  *out = (hk_program_file){.way = way};
  if (!text) HK_OR_RETURN(hk_text_read(name, HK_PROGRAM_FILE_BYTES, &own, &bytes));
  if (!text) text = own;
  switch (text[strspn(text, " \t\r\n")]) {
    case '<': rc = hk_msccl_read(out, name, text, slots); break;
    case '{':
    case '[': rc = hk_json_programs_read(out, name, text, slots); break;
    default: rc = hk_text_programs_read(out, name, text);
  }
  for (int i = 0; i < out->nsets && way; i++) out->sets[i].proved = true;
  free(own);
  return rc;
}

hk_status hk_program_file_read(hk_program_file *out, const char *name, const char *text, unsigned slots) {
  return hk_program_file_read_proved(out, name, text, slots, 0);
}
