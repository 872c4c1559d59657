/* SPDX-License-Identifier: Apache-2.0 */
/* A text file as a whole. */
#pragma once
#include <stddef.h>
#include "status.h"

/* Reads a file, or "-", the standard input. *text ends with a zero byte that *bytes does not count; free it.
 * HK_ERR_ARGUMENT: the file cannot be read, has more than `most` bytes, or has a zero byte, so it is no text.
 * HK_ERR_SYSTEM: no memory. */
hk_status hk_text_read(const char *path, size_t most, char **text, size_t *bytes);
/* The next line of a text that says something, without its comment (#); NULL: there is none. *number goes up to that of
 * the line. The text is cut into lines. */
char *hk_text_line(char **text, int *number);
/* Replaces control characters: a file, or another process, must not send them to a terminal. */
void hk_text_clean(char *text);
