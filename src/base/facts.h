/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank has published about one subject: a column of the table that the ranks exchange at init. */
#pragma once
#include <stddef.h>

typedef struct hk_facts {
  const void *first; /* rank 0's */
  size_t stride;     /* bytes from a rank's to the next one's */
} hk_facts;
static inline const void *hk_fact_of(const hk_facts *f, int rank) {
  return (const char *)f->first + (size_t)rank * f->stride;
}
