/* SPDX-License-Identifier: Apache-2.0 */
/* Files of programs: Hocket's own text and JSON, MSCCL's XML and MSCCL++'s JSON. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"

struct hk_program; /* program/program.h */

enum { HK_PROGRAM_FILE_BYTES = 256 << 20 };

/* What all ranks do in one collective, and the calls for which its author meant it. */
typedef struct hk_program_set {
  struct hk_program **programs; /* [nranks], by rank */
  int nranks;
  bool in_place, out_of_place;    /* marks of the file */
  unsigned long long least, most; /* bytes of the larger of a rank's buffers; most 0: no limit */
  int *lines;                     /* text form: where each rank's program begins, [nranks]; else NULL */
  bool proved;                    /* for the slots of hk_program_file_read */
} hk_program_set;

typedef struct hk_program_file {
  hk_program_set *sets;
  int nsets;
  uint8_t way; /* of the reader's ways to make these programs the one that was proved; 0: it proves nothing */
} hk_program_file;

/**
 * Reads the sets of programs in a file; the first character that is no space tells the form. `text` ends with a zero
 * byte; NULL: the text of the file `name`.
 *
 * An algorithm of MSCCL becomes programs that are proved for links with `slots` slots, out of place and in place. Each
 * of its blocks becomes a lane. Blocks of a rank that wait for each other (depid), or share a chunk of scratch memory,
 * become one lane, in an order in which they can run. So a program needs no waits between lanes. If two ranks have more
 * than HK_CHANNELS connections, some of these share a link. A plan of MSCCL++ becomes such programs, too. What an
 * operation reads or writes on another rank becomes a message; signals, semaphores and barriers only order its run.
 *
 * HK_ERR_ARGUMENT: the file is not of such a form, or a rank's program is missing. Or, run with unlimited FIFOs, it
 * waits for ever, adds parts that do not belong together, or leaves a wrong chunk in an output: the message has file
 * and line, gpu, block and step. In a plan, nothing orders two accesses to a chunk: the message has both. Or the proof
 * fails: the message has the instruction of the program.
 * HK_ERR_SYSTEM: there is no memory.
 * Free `out` with hk_program_file_free in any case.
 */
hk_status hk_program_file_read(hk_program_file *out, const char *name, const char *text, unsigned slots);
/* The same for a text that another rank has read and proved: `way` is what hk_program_file_prove left in its file. The
 * programs are those that it proved, and are not proved again. The caller must compare them with its programs. */
hk_status hk_program_file_read_proved(hk_program_file *out, const char *name, const char *text, unsigned slots,
                                      uint8_t way);
/* Proves all sets, as hk_program_set_prove; from then on f->way is not 0. */
hk_status hk_program_file_prove(hk_program_file *f, const char *name, unsigned slots);
void hk_program_file_free(hk_program_file *f);
void hk_program_set_free(hk_program_set *s);

/* Proves a set out of place and in place; does nothing if it is proved. HK_ERR_ARGUMENT: the proof fails. */
hk_status hk_program_set_prove(hk_program_set *s, const char *name, unsigned slots);

/* Writes the programs in the forms that hk_program_file_read reads: text has the programs only, JSON also the calls for
 * which they are meant. */
void hk_program_set_text(const hk_program_set *s, FILE *to);
void hk_program_set_json(const hk_program_set *s, FILE *to);
