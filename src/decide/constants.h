/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "../base/status.h"

/* The measured constants of ranks on CPUs: the built-in values, or those of `hocket tune`. */
typedef struct hk_constants {
  double memory_alpha_us, tcp_alpha_us;              /* a message through shared memory, through a socket */
  double memory_message_us, tcp_message_us;          /* the part of alpha that is work at each end */
  double tcp_link_us;                                /* work for each socket that is used */
  double tcp_us_per_b;                               /* a byte through a socket, sender and receiver together */
  double net_alpha_us, net_message_us, net_us_per_b; /* the same between hosts */
  double copy_us_per_b, gamma_us_per_b, switch_us;
} hk_constants;
extern const hk_constants hk_constants_default;
/* A file of `hocket tune`. */
hk_status hk_constants_read(hk_constants *k, const char *path);
hk_status hk_constants_write(const hk_constants *k, FILE *to);
/* The path of the file that `hocket tune` writes and init reads. Returns false if there is no home directory. */
bool hk_constants_path(char *path, size_t bytes);
