/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving links of programs, by the rank that they receive from: the verifier and the summary pair links so. */
#pragma once
#include "program.h"

typedef struct hk_receiver {
  uint32_t rank;
  uint32_t link;
} hk_receiver;
typedef struct hk_receivers {
  uint32_t *first; /* [n + 1] of each rank that is received from, in `at` */
  hk_receiver *at; /* of equal ones, in the order of receiving ranks and their links */
} hk_receivers;

/* `programs` [n]; a peer counts as the rank with its number modulo n. HK_ERR_SYSTEM: no memory. */
hk_status hk_receivers_sort(hk_receivers *out, const hk_program *const *programs, int n);
void hk_receivers_free(hk_receivers *r);
