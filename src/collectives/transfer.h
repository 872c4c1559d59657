/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives as programs: one lane with one instruction, `link <- input` or `output <- link`. */
#pragma once
#include <stdbool.h>
#include "../program/program.h"

/* The program of rank `rank` that sends to `peer`, or receives from it. Its HK_IN or HK_OUT is the whole message. */
hk_status hk_transfer_build(int rank, int nranks, int peer, bool sends, hk_program **out);

/* The signature in a transfer's slots: equal at both ends if the sizes of the send and the receive are equal. */
static inline uint32_t hk_transfer_signature(size_t bytes) {
  uint64_t h = (bytes + 1) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32) | 1u;
}
