/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that a user brings: HOCKET_PROGRAMS names a folder of files. Each file that can be used becomes an algorithm
 * after the built-in ones: priced, restricted, chosen and run as they are. */
#pragma once
#include "../collectives/algorithm.h"
#include "../formats/file.h"
#include "filter.h"

/* The files *.json, *.txt and *.xml of a folder, in the order of their names. */
typedef struct hk_program_folder {
  const char *path;
  char **names;
  int n;
} hk_program_folder;
/* HK_ERR_ARGUMENT: the folder cannot be read. Free with hk_program_folder_free in any case. */
hk_status hk_program_folder_list(hk_program_folder *out, const char *path);
void hk_program_folder_free(hk_program_folder *f);

typedef struct hk_user_programs {
  const hk_algorithm *all[HK_ALGORITHM_LIMIT + 1]; /* the built-in algorithms, then `own`; ended by NULL */
  int n;
  struct {
    hk_algorithm algorithm;
    hk_loaded loaded;
    hk_program_set set;
    uint64_t hash; /* of the programs before it */
    char about[96];
  } own[HK_ALGORITHM_LIMIT];
  uint64_t hash; /* of the programs; equal on ranks that have equal ones */
} hk_user_programs;

/* The built-in algorithms alone. */
hk_status hk_user_programs_new(hk_user_programs **out);
/* Adds the programs of one file; `text` as in hk_program_file_read. *way: 0, and the programs are proved, or what this
 * function left there on a rank that proved the same text (hk_program_file.way). HK_ERR_ARGUMENT: it cannot be used,
 * and the message says why. */
hk_status hk_user_programs_add(hk_user_programs *p, const char *path, const char *text, unsigned slots, uint8_t *way);
/* Removes the programs that were added since p->hash had this value. */
void hk_user_programs_drop(hk_user_programs *p, uint64_t hash);

/* Reads the files, and proves their programs for links with `slots` slots. A file that cannot be used is left out; the
 * log says why. ways: as in hk_user_programs_add, one for each file; NULL: all are proved. `proved`: those of a rank
 * that has proved the files; 0 there: it could not use the file. */
hk_status hk_user_programs_load(hk_user_programs **out, const hk_program_folder *f, unsigned slots, uint8_t *ways,
                                bool proved);
void hk_user_programs_free(hk_user_programs *p); /* NULL is fine */
