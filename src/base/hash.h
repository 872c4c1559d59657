/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a, 64 bits. The result of a part is the seed of the next one; 0 at first. */
static inline uint64_t hk_hash(uint64_t seed, const void *data, size_t bytes) {
  uint64_t h = seed ^ 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
  return h;
}
/* Folds a value into a hash; equal on all machines. */
static inline uint64_t hk_hash_mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
static inline uint64_t hk_hash_mix_float(uint64_t hash, float value) {
  uint32_t bits;
  value += 0.0f; /* -0 is 0 */
  memcpy(&bits, &value, sizeof bits);
  return hk_hash_mix(hash, bits);
}
