/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to a RAS service, for `hocket ras` and `hocket ps HOST`. Errors are printed. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* HOST, HOST:PORT, [V6]:PORT, or NULL for NCCL_RAS_ADDR, whose port is also the default. */
bool hk_ras_split(const char *address, char *host, size_t host_bytes, char *port, size_t port_bytes);
/* A connected socket; -1: no address of the host accepts the connection, and the error is printed. */
int hk_ras_connect(const char *host, const char *port);
/* Each send and recv takes at most this long; 0: any time. */
void hk_ras_set_patience(int fd, int seconds);
bool hk_ras_send(int fd, const char *line);
/* Sends a line, and reads the line that answers it. False: it does not begin with `expected`. */
bool hk_ras_ask(int fd, const char *line, const char *expected);
