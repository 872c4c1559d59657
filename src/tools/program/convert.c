/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program convert`: writes the programs of a file in another form. */
#include "program.h"

typedef struct options {
  int to;
  const char *output;
} options;

static const char *convert_form(int i) {
  static const char *const forms[] = {"text", NULL};
  return forms[i];
}

static hk_status convert_write(FILE *to, const void *file) {
  const hk_program_file *f = file;
  for (int i = 0; i < f->nsets; i++) hk_program_set_write(&f->sets[i], to);
  return HK_OK;
}

static int convert_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_program_file f;
  (void)nargs; /* one */
  int code = hk_program_open(&f, args[0]);
  if (code == HK_EXIT_OK) code = hk_program_output(o->output, convert_write, &f);
  hk_program_file_free(&f);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_WORD(to, "to", "FORM", "the form to write", .def = "text", .words = convert_form),
    HK_ROW_FILE(output, "output", "FILE", "the file to write; without it the standard output", .letter = 'o'),
    {0}};

const hk_tool hk_program_convert = {
    .name = "program convert",
    .about = "write the programs of a file in another form",
    .usage = "FILE",
    .text = "Reads a file in any form. The new file holds the same programs.",
    .examples = "hocket program convert ring.xml -o ring.txt\n  Hocket's text form of an algorithm of MSCCL",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = 1,
    .run = convert_run,
};
