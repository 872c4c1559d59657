/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The flight recorder: the last operations of a communicator, in a ring in memory. One thread at a time writes it, as
 * calls run. Any thread reads it, to write a file: after a failure, on a signal, or for hocketFlightDump.
 */
#pragma once
#include <nccl.h>
#include "../base/status.h"

struct hk_activity; /* boot/activity.h */

typedef void hk_flight_report(void *comm, struct hk_activity *out); /* what the rank does now */

/* c->flight; NULL if the settings ask for no record (HOCKET_FLIGHT_RECORDS). */
hk_status hk_flight_new(ncclComm_t c, hk_flight_report *report);
/* Once c->service exists: from here on signals and failures write files. */
void hk_flight_watch(ncclComm_t c);
/* The communicator has a failure that is not settled yet. From any thread; never blocks. */
void hk_flight_await(ncclComm_t c);
/* Its failure is settled: writes the file in HOCKET_FLIGHT_DIR, unless that is done. Blocks for the time of the write.
 * Must not be called with health.lock held. */
void hk_flight_failed(ncclComm_t c);
/* The same for a failure that the application wants (an abort): only if it ends an operation. */
void hk_flight_aborted(ncclComm_t c);
/* Before the service ends: no file will be written from here on. */
void hk_flight_end(ncclComm_t c);
void hk_flight_free(ncclComm_t c);
/* Writes the communicator's last operations to a file. `path` NULL: HOCKET_FLIGHT_DIR, else the current folder, under a
 * name of this communicator and rank. HK_ERR_SYSTEM: it cannot be written. From any thread. */
hk_status hk_flight_dump(ncclComm_t c, const char *path);
