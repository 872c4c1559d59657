/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's RAS protocol: a TCP server that tells clients on this host what `hocket ps` shows, as text or JSON. Lines in,
 * answers out:
 *
 *   CLIENT PROTOCOL n                  SERVER PROTOCOL 2
 *   TIMEOUT seconds                    OK; a collection waits no longer for ranks that do not answer
 *   SET FORMAT text|json               OK
 *   STATUS, VERBOSE STATUS             a report; then the server closes the connection
 *   MONITOR [lifecycle,trace,all]      OK; then events, until the client closes the connection
 *   anything else                      ERROR: ...
 *
 * The first process of a host that can have the port (NCCL_RAS_ADDR) answers for all processes of its user on the host,
 * and for the ranks of their communicators on other hosts. It does so from its first communicator to its last one, on a
 * thread of its own that sleeps while there is no client. Once it has ended or died, another one takes its
 * place.
 */
#pragma once
#include <stdbool.h>

struct hk_settings; /* base/param.h */

enum { HK_RAS_RETRY_MS = 5000 };

/* A communicator begins. It never fails: without a server the process goes on. True: another process has the port;
 * try to take over about every HK_RAS_RETRY_MS. */
bool hk_ras_hold(const struct hk_settings *settings);
/* If no process answers any more, this one does. Does not block. True: this one answers, so that no more tries are
 * needed. */
bool hk_ras_take_over(void);
/* It ends. The last one ends the server, and waits for its thread. */
void hk_ras_release(void);
