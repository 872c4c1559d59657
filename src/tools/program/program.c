/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program`: what a user does with the programs of a file. */
#include "program.h"
#include <string.h>

const char *hk_program_file_name(const char *path) { return strcmp(path, "-") ? path : "stdin"; }

static const hk_tool *const parts[] = {&hk_program_check, NULL};

const hk_tool hk_tool_program = {
    .name = "program",
    .about = "prove programs of your own",
    .usage = "COMMAND ...",
    .text = "A program says what each rank does in a collective. A FILE holds the programs of all ranks, in Hocket's "
            "text form or in MSCCL's XML. docs/programs.md explains the forms, and how the library runs such a file.",
    .findings = "a file was refused",
    .parts = parts,
};
