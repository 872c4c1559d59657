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
 * thread of its own that sleeps while there is no client. If it dies, a process with a rank of its communicators takes
 * its place.
 */
#pragma once

struct hk_settings; /* base/param.h */

/* A communicator begins. It never fails: without a server the process goes on. */
void hk_ras_hold(const struct hk_settings *settings);
/* A process has died. If it was the one that answered, this one takes its place. Does not block. */
void hk_ras_take_over(void);
/* It ends. The last one ends the server, and waits for its thread. */
void hk_ras_release(void);
