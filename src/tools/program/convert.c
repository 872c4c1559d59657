/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program convert`: writes the programs of a file in another form. */
#include "program.h"

typedef struct options {
  int to;
  const char *output;
  const hk_program_file *file; /* not an option */
} options;

enum { JSON = 1 };

static const char *convert_form(int i) {
  static const char *const forms[] = {"text", "json", NULL};
  return forms[i];
}

static hk_status convert_write(FILE *to, const void *what) {
  const options *o = what;
  for (int i = 0; i < o->file->nsets; i++)
    o->to == JSON ? hk_program_set_json(&o->file->sets[i], to) : hk_program_set_text(&o->file->sets[i], to);
  return HK_OK;
}

static int convert_run(void *into, int nargs, char **args) {
  options *o = into;
  hk_program_file f;
  (void)nargs; /* one */
  o->file = &f;
  int code = hk_program_open(&f, args[0]);
  if (code == HK_EXIT_OK && o->to == JSON && f.nsets > 1)
    code = hk_tool_wrong("%s holds programs of %d collectives; a JSON file has those of one", args[0], f.nsets);
  if (code == HK_EXIT_OK) code = hk_tool_output(o->output, convert_write, o);
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
    .text =
        "Reads a file in any form. The new file holds the same programs. JSON also has the calls and sizes for which "
        "they are meant.",
    .examples = "hocket program convert ring.xml -o ring.txt\n  Hocket's text form of an algorithm of MSCCL",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = 1,
    .run = convert_run,
};
