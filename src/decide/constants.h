/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"

/* The constants of ranks on CPUs.
 *   US(field, default, most, about)    microseconds
 *   RATE(field, name, default, about)  microseconds a byte, written as a rate in bytes a microsecond (MB/s)
 * Defaults: measured on two cores of an AMD EPYC (`hocket tune`, docs/results/choices.md), rounded; between hosts a
 * usual Ethernet. */
#define HK_CONSTANTS(US, RATE)                                                                                         \
  US(memory_alpha_us, 0.05, 1e4, "a message between ranks through shared memory")                                      \
  US(tcp_alpha_us, 0.6, 1e6, "a message through a socket")                                                             \
  US(memory_message_us, 0.1, 1e4, "the work of each end for it") /* a part of alpha, as for the others */              \
  US(tcp_message_us, 1.6, 1e6, "the work of each end for it")                                                          \
  US(tcp_link_us, 0.8, 1e5, "work for each socket that is used")                                                       \
  RATE(tcp_us_per_b, "tcp_mb_s", 14000, "bytes through a socket") /* sender and receiver together */                   \
  US(net_alpha_us, 12.0, 1e6, "a message between hosts (hocket tune --between)")                                       \
  US(net_message_us, 3.0, 1e6, "the work of each end for it")                                                          \
  RATE(net_us_per_b, "net_mb_s", 3000, "bytes between hosts")                                                          \
  RATE(copy_us_per_b, "copy_mb_s", 34000, "bytes that a core copies")                                                  \
  RATE(gamma_us_per_b, "reduce_mb_s", 50000, "bytes that a core adds, without the writing of the sum")                 \
  US(switch_us, 0.7, 1e5, "handing a core to another rank")

/* The built-in values, or those that `hocket tune` has measured. */
typedef struct hk_constants {
#define CONSTANTS_FIELD(field, ...) double field;
  HK_CONSTANTS(CONSTANTS_FIELD, CONSTANTS_FIELD)
#undef CONSTANTS_FIELD
  /* Not 0: those whose names begin with net_ were measured. A whole word, because ranks compare all bytes. */
  uint64_t net_measured;
} hk_constants;
extern const hk_constants hk_constants_default;
/* A file of `hocket tune`. */
hk_status hk_constants_read(hk_constants *k, const char *path);
hk_status hk_constants_write(const hk_constants *k, FILE *to);
/* The path of the file that `hocket tune` writes and init reads. Returns false if there is no home directory. */
bool hk_constants_path(char *path, size_t bytes);
