/* SPDX-License-Identifier: Apache-2.0 */
/* Programs in MSCCL's XML, as MSCCL, RCCL and their compilers write them. */
#pragma once
#include <stdbool.h>
#include "../program/program.h"

typedef struct hk_msccl {
  hk_program **programs; /* [nranks], by rank */
  int nranks;
  bool in_place, out_of_place;    /* the calls for which the file is meant */
  unsigned long long least, most; /* bytes of a message, likewise; most 0: no limit */
} hk_msccl;

/**
 * Reads an algorithm and makes the programs of all its ranks. Each block of the file becomes a lane. Blocks of a rank
 * that wait for each other (depid), or share a chunk of scratch memory, become one lane, in an order in which they can
 * run. So a program needs no waits between lanes. If two ranks have more than HK_CHANNELS connections, some of these
 * share a link.
 *
 * The programs are proved for links with `slots` slots, out of place and in place.
 *
 * HK_ERR_ARGUMENT: the text is not such a file; or, run with unlimited FIFOs, it waits for ever, adds parts that do not
 * belong together, or leaves a wrong chunk in an output: the message has file and line, gpu, block and step. Or the
 * proof fails: the message has the instruction of the program.
 * HK_ERR_SYSTEM: the file cannot be read, or there is no memory.
 * `text` ends with a zero byte; NULL: the text of the file `file`. Free `out` with hk_msccl_free in any case.
 */
hk_status hk_msccl_read(hk_msccl *out, const char *file, const char *text, unsigned slots);
void hk_msccl_free(hk_msccl *m);
