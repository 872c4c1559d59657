/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket program`. */
#pragma once
#include "../../formats/file.h"
#include "../tools.h"

extern const hk_tool hk_program_check;

/* The name of a file in messages: "-" is the standard input. */
const char *hk_program_file_name(const char *path);
