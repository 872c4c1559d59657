/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of all ranks' programs: shared by `hocket verify` and `hocket program`. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_algorithm;     /* collectives/algorithm.h */
struct hk_build;         /* program/builder.h */
struct hk_json;          /* base/json.h */
struct hk_program;       /* program/program.h */
struct hk_verify_report; /* program/verify.h */

typedef struct hk_proof_options {
  int slots, waves; /* waves 0: one more than slots, so that every credit is used */
  bool json;
  bool fixed_order; /* sums must be in the fixed order */
} hk_proof_options;

unsigned hk_tool_slots(void); /* of each FIFO, as HOCKET_SLOTS says */
/* The programs of all ranks; what->rank is ignored. */
hk_status hk_proof_build(const struct hk_algorithm *a, const struct hk_build *what, struct hk_program ***out);
void hk_proof_free(struct hk_program **p, int nranks); /* NULL is fine */

/* Proves all ranks' programs, out of place and in place; `host` as in hk_verify_options. The report is that of the
 * first failure. If both are proved, its order of sums is the weaker one. */
hk_status hk_prove(const struct hk_program *const *programs, int nranks, const int32_t *host, const hk_proof_options *o,
                   struct hk_verify_report *report);
/* "fixed", "equal", ...; "" if the program does not reduce or is not proved. */
const char *hk_proof_order(const struct hk_program *p, const struct hk_verify_report *report);
/* {"collective": ...}; `file` may be NULL. */
void hk_proof_json(struct hk_json *w, const struct hk_program *p, const char *ranks,
                   const struct hk_verify_report *report, const char *file, int line);
/* {"proofs": [ before and ], "proved": true} after the proofs. */
void hk_proofs_json_begin(struct hk_json *w);
void hk_proofs_json_end(struct hk_json *w, int code);

/* For options' tables: the rows of hk_proof_options. */
#define HK_ROWS_PROOF(member)                                                                                          \
  HK_ROW_INT(member.slots, "slots", "N", "slots of every FIFO; without it, as many as HOCKET_SLOTS says",              \
             .letter = 's', .low = 1, .high = 4096),                                                                   \
      HK_ROW_INT(member.waves, "waves", "N", "how often each program runs; without it, one more than slots",           \
                 .letter = 'w', .low = 1, .high = 4096),                                                               \
      HK_ROW_FLAG(member.fixed_order, "fixed-order",                                                                   \
                  "also prove that sums are made in the order of ranks, whatever the place, the root and the "         \
                  "machine"),                                                                                          \
      HK_ROW_FLAG(member.json, "json", "write JSON")
