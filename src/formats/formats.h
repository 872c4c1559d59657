/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of each form, for file.c, and what they share (set.c). They append to `out`. */
#pragma once
#include "../program/program.h"
#include "file.h"

/* An empty set at the end of the file; NULL: no memory. */
hk_program_set *hk_program_file_add(hk_program_file *f, int nranks);
/* An algorithm's name from a file's: at most 23 characters, and a character that no such name has becomes _. */
void hk_program_algorithm_name(char out[24], const char *name, const char *if_none);
/* Gives all programs of the set the largest span of them: copies of the lanes use channels from k * span on, which must
 * be the same on all ranks. */
void hk_program_set_span(hk_program_set *s);
/* HK_ERR_INTERNAL: not proved; the report says why. */
struct hk_verify_report;
hk_status hk_program_set_try(const hk_program_set *s, unsigned slots, struct hk_verify_report *report);

/* A program of a file. */
typedef struct hk_program_piece {
  hk_program *program;
  char *text; /* text form: where it begins; it ends with a zero byte */
  int line;   /* text form: likewise; 0: another form */
} hk_program_piece;
/* Moves the programs of `pieces` into the file, one set after another; those of a set may be in any order. `list`: the
 * name of a JSON file's list, for errors. */
hk_status hk_program_file_gather(hk_program_file *out, const char *name, const char *list, hk_program_piece *pieces,
                                 int n);

hk_status hk_text_programs_read(hk_program_file *out, const char *name, const char *text);
hk_status hk_json_programs_read(hk_program_file *out, const char *name, const char *text, unsigned slots);
struct hk_json_node;
hk_status hk_mscclpp_read(hk_program_file *out, const struct hk_json_node *file, unsigned slots);
hk_status hk_msccl_read(hk_program_file *out, const char *name, const char *text, unsigned slots);
