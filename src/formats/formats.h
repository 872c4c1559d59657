/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of each form, for file.c only. They append to `out`; `text` is writable. */
#pragma once
#include "file.h"

/* An empty set at the end of the file; NULL: no memory. */
hk_program_set *hk_program_file_add(hk_program_file *f, int nranks);
/* HK_ERR_INTERNAL: not proved; the report says why. */
struct hk_verify_report;
hk_status hk_program_set_try(const hk_program_set *s, unsigned slots, struct hk_verify_report *report);

hk_status hk_text_programs_read(hk_program_file *out, const char *name, char *text);
hk_status hk_msccl_read(hk_program_file *out, const char *name, const char *text, unsigned slots);
