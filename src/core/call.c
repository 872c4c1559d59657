/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a call alone (call.h). */
#include "call.h"
#include <string.h>

uint32_t hk_call_signature(const hk_call *op) {
  uint64_t h = op->count * 0x9e3779b97f4a7c15u;
  h ^= ((uint64_t)op->coll << 48 | (uint64_t)op->dtype << 40 | (uint64_t)op->redop << 32 | (uint32_t)op->root) *
       0xc2b2ae3d27d4eb4fu;
  uint32_t words[sizeof op->options / 4];
  memcpy(words, &op->options, sizeof words); /* 0 in most calls */
  for (size_t i = 0; i < HK_ARRAY_LENGTH(words); i++) h ^= words[i] * (0x9e3779b97f4a7c15u + 2 * i);
  uint32_t signature = (uint32_t)(h >> 32) ^ (uint32_t)h;
  return signature ? signature : 1;
}
