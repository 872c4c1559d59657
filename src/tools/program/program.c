/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program`: what users do with programs of their own, in files. */
#include "program.h"
#include <stdlib.h>
#include <string.h>
#include "../../base/text_file.h"
#include "../proof.h"

const char *hk_program_file_name(const char *path) { return strcmp(path, "-") ? path : "stdin"; }

int hk_program_open(hk_program_file *f, const char *path) {
  char *text;
  size_t bytes;
  *f = (hk_program_file){.nsets = 0};
  hk_status rc = hk_text_read(path, HK_PROGRAM_FILE_BYTES, &text, &bytes);
  if (rc != HK_OK) return hk_tool_failed(rc);
  rc = hk_program_file_read(f, hk_program_file_name(path), text, hk_tool_slots());
  free(text);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

int hk_program_open_proved(hk_program_file *f, const char *path) {
  const int code = hk_program_open(f, path);
  hk_status rc = HK_OK;
  for (int i = 0; i < f->nsets && code == HK_EXIT_OK && rc == HK_OK; i++)
    rc = hk_program_set_prove(&f->sets[i], hk_program_file_name(path), hk_tool_slots());
  return rc == HK_OK ? code : hk_tool_failed(rc);
}

static const hk_tool *const parts[] = {&hk_program_check,
                                       &hk_program_show,
                                       &hk_program_convert,
                                       &hk_program_price,
                                       &hk_program_draw,
                                       &hk_program_search,
                                       NULL};

const hk_tool hk_tool_program = {
    .name = "program",
    .about = "prove, show, price, draw and find programs of your own",
    .usage = "COMMAND ...",
    .text = "A program says what each rank does in a collective. A FILE holds the programs of all ranks, in Hocket's "
            "text form or JSON, in MSCCL's XML or in MSCCL++'s JSON. docs/programs.md explains the forms, and how the "
            "library runs such a file.",
    .findings = "a file was refused",
    .parts = parts,
};
