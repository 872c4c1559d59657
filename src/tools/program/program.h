/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket program`. */
#pragma once
#include "../../formats/file.h"
#include "../tools.h"

extern const hk_tool hk_program_check, hk_program_show, hk_program_convert, hk_program_price, hk_program_draw,
    hk_program_search;

/* The name of a file in messages: "-" is the standard input. */
const char *hk_program_file_name(const char *path);
/* Reads a file; returns an exit code, after printing the error. Free `f` with hk_program_file_free in any case. */
int hk_program_open(hk_program_file *f, const char *path);
/* The same, and proves all programs. */
int hk_program_open_proved(hk_program_file *f, const char *path);
