/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of programs: HOCKET_PROGRAMS (programs.c). */
#pragma once
#include "../base/status.h"

/* The files *.json, *.txt and *.xml of a folder, in the order of their names. */
typedef struct hk_program_folder {
  const char *path;
  char **names;
  int n;
} hk_program_folder;
/* HK_ERR_ARGUMENT: the folder cannot be read. Free with hk_program_folder_free in any case. */
hk_status hk_program_folder_list(hk_program_folder *out, const char *path);
void hk_program_folder_free(hk_program_folder *f);
