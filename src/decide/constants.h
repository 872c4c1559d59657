/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "../base/status.h"

/* The constants of ranks on CPUs: the built-in values, or those that `hocket tune` has measured. */
typedef struct hk_constants {
#define HK_CONSTANT_US(field, ...) double field;
#define HK_CONSTANT_RATE(field, ...) double field;
#include "constants.def"
} hk_constants;
extern const hk_constants hk_constants_default;
/* A file of `hocket tune`. */
hk_status hk_constants_read(hk_constants *k, const char *path);
hk_status hk_constants_write(const hk_constants *k, FILE *to);
/* The path of the file that `hocket tune` writes and init reads. Returns false if there is no home directory. */
bool hk_constants_path(char *path, size_t bytes);
