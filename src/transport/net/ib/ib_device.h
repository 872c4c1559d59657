/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the verbs provider: opening them, completion queues, and registrations of memory. */
#pragma once
#include <poll.h>
#include "ib_port.h"
#include "ib_wire.h"

typedef struct hk_ib_ctx hk_ib_ctx; /* ib_context.h */

typedef struct hk_ib_cq {
  hk_ibv_cq *cq;
  uint32_t capacity, used;
  bool armed; /* the next completion is reported on the device's channel */
} hk_ib_cq;

typedef struct hk_ib_device {
  char name[HK_IB_NAME];
  hk_ibv_context *context; /* NULL: it has failed, and is closed */
  hk_ibv_pd *pd;
  hk_ibv_channel *channel; /* of completions, for threads that sleep; NULL: not available */
  hk_ib_cq cqs[HK_IB_CQS];
  int ncqs;
  uint32_t max_wr, max_cqe;
  bool gone;         /* failed or removed */
  uint32_t falls;    /* times that it has failed */
  uint64_t retry_ns; /* when to try to open it again */
} hk_ib_device;

/* Opens a device, once; *out stays valid until the context ends. */
hk_status hk_ib_device_open(hk_ib_ctx *x, const char *name, hk_ib_device **out);
/* Opens the device of d->name, which is new or was closed; false with errno. */
bool hk_ib_device_open_named(hk_ib_ctx *x, hk_ib_device *d);
void hk_ib_device_close(hk_ib_ctx *x, hk_ib_device *d);
/* Takes room for `entries` in a completion queue, which is made if necessary; NULL with errno. */
hk_ib_cq *hk_ib_cq_take(hk_ib_ctx *x, hk_ib_device *d, uint32_t entries);
void hk_ib_cq_give(hk_ib_cq **q, uint32_t entries); /* gives it back, unless *q is NULL, which it is then */
/* Registers memory for remote writes. `data`: payloads, which may be written in any order. Returns NULL with errno, and
 * the cause and the process's limit in `why`. */
hk_ibv_mr *hk_ib_try_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, char why[160]);
/* Returns true if the memory that this process may lock is limited, so that registering may fail: by RLIMIT_MEMLOCK,
 * which does not apply to a process with CAP_IPC_LOCK. */
bool hk_ib_memory_is_scarce(void);
#define HK_IB_MORE_MEMORY "raise it (ulimit -l unlimited; LimitMEMLOCK=infinity; docker --ulimit memlock=-1)"
/* The same as an error that says what to do. */
hk_status hk_ib_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, hk_ibv_mr **out);
/* Deregisters memory and sets *mr to NULL; does nothing if it is NULL. */
void hk_ib_unregister(hk_ib_ctx *x, hk_ibv_mr **mr);
void hk_ib_count_pinned(hk_ib_ctx *x, const hk_ibv_mr *mr); /* memory that was registered otherwise */
/* For sleeping until a request completes: arms the completion queues and fills `fds`, one for each device. Returns
 * false if a device has no channel. Completions before that are not reported, so poll once more; after the sleep, read
 * the notifications. */
bool hk_ib_arm(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]);
void hk_ib_read_notifications(hk_ib_ctx *x, const struct pollfd fds[HK_IB_PORTS]);
/* The state of a port as text: "DOWN", "ACTIVE", ... */
const char *hk_ib_port_state(hk_ib_ctx *x, const hk_ib_device *d, int port);
