/* SPDX-License-Identifier: Apache-2.0 */
/* A plain interpreter of programs, to check the verifier by: it shares no code and no cleverness with it.  It moves
 * contribution counts through FIFOs, with lanes in a random order, slots that randomly hold references instead of
 * copies, and data that randomly stands in its place as soon as it is sent, as program.h and verify.h allow, and looks
 * whether the outputs are right. */
#ifndef HK_TESTS_REFRUN_H
#define HK_TESTS_REFRUN_H
#include <stdbool.h>
#include "../../src/program/program.h"

enum { REFRUN_RANKS = 8 };
/* NULL where all went right, else what went wrong, a static string.  At most REFRUN_RANKS ranks.  The programs must be
 * sound in form (indices in range, links that pair): the verifier's static rules are not looked at again. */
const char *refrun(hk_program *const *programs, int nranks, unsigned slots, unsigned waves, bool in_place,
                   uint64_t seed);
#endif
