/* SPDX-License-Identifier: Apache-2.0 */
/* Classifies a variable's name: known, known to have no effect, or a misspelling. Pure functions, no state. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Variables of NCCL and its plugins that have no effect here (params_inert.def): the reason; NULL: it is none. */
const char *hk_param_inert(const char *name);
/* The same for the families there (NCCL_IB_*). */
const char *hk_param_inert_family(const char *name);
/* The name among `names` with the smallest edit distance to `name` (insert, delete, replace, swap neighbours);
 * *distance gets the distance. NULL if there are no names or `name` is too long. */
const char *hk_param_nearest(const char *name, const char *const *names, size_t n, unsigned *distance);
/* The first of `names` that begins like `name`, which was not written to its end: NCCL_TIPO is near to the beginning of
 * NCCL_TOPO_FILE.  NULL: none does. */
const char *hk_param_begins_like(const char *name, const char *const *names, size_t n);
/* Near enough to call it a misspelling. */
bool hk_param_misspelt(const char *name, unsigned distance);
