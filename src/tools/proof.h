/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of `hocket verify`: the proof of one set of programs, and programs from files. */
#pragma once
#include "../base/json.h"
#include "../collectives/algorithm.h"
#include "../program/verify.h"
#include "tools.h"

typedef struct hk_proof_options {
  int slots, waves; /* waves 0: one more than slots, so that every credit is used */
  bool json;
  bool fixed_order; /* sums must be in the fixed order */
} hk_proof_options;

/* The programs of all ranks; what->rank is ignored. */
hk_status hk_proof_build(const hk_algorithm *a, const hk_build *what, hk_program ***out);
void hk_proof_free(hk_program **p, int nranks); /* NULL is fine */

/* Proves all ranks' programs, out of place and in place; `host` as in hk_verify_options. The report is that of the
 * first failure. If both are proved, its order of sums is the weaker one. */
hk_status hk_prove(const hk_program *const *programs, int nranks, const uint16_t *host, const hk_proof_options *o,
                   hk_verify_report *report);
/* "fixed", "equal", ...; "" if the program does not reduce or is not proved. */
const char *hk_proof_order(const hk_program *p, const hk_verify_report *report);
/* {"collective": ...}; `file` may be NULL. */
void hk_proof_json(hk_json *w, const hk_program *p, const char *ranks, const hk_verify_report *report, const char *file,
                   int line);
/* Proves the programs in a file; returns the exit code. */
int hk_prove_file(const char *path, const hk_proof_options *o, hk_json *w);
