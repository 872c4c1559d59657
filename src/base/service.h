/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that sleeps in epoll and runs callbacks for file descriptors, posted work and timers: incoming
 * connections, the control overlay, requests for shared memory. There is one for each communicator and rank, but for
 * children that share their parent's (splitShare). While nothing happens it uses no CPU time; it costs two file
 * descriptors and a small stack (HK_SERVICE_STACK). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "status.h"

typedef struct hk_service hk_service;
typedef void (*hk_service_fn)(void *arg, int fd, uint32_t epoll_events);

enum { HK_SERVICE_STACK = 128 * 1024 }; /* callbacks must not have large buffers on the stack */

/* `thread_name`: at most 15 characters. */
hk_status hk_service_new(hk_service **out, const char *thread_name);
/* Adds a holder, which also calls hk_service_free at its end. Before that it removes everything that it added. */
hk_service *hk_service_share(hk_service *s);
/* By the last holder: stops the thread after the callback that runs, and frees the service. If called from a callback,
 * the thread ends as soon as that callback has returned. In a forked child, in which the thread does not exist, only
 * the memory is freed. May be NULL. */
void hk_service_free(hk_service *s);
/* Calls fn(arg, fd, events) on the service thread whenever fd is ready.  From any thread. */
hk_status hk_service_add(hk_service *s, int fd, uint32_t epoll_events, hk_service_fn fn, void *arg);
hk_status hk_service_modify(hk_service *s, int fd, uint32_t epoll_events);
/* After return no callback for fd runs or will run. May be called from a callback, also the fd's own. Does not close
 * fd. A caller that is not a callback must hold no lock that a callback takes, because it may have to wait for one. */
void hk_service_remove(hk_service *s, int fd);
/* Zeroed by its owner, then the service's. */
typedef struct hk_service_timer {
  hk_service_fn fn;
  void *arg;
  uint64_t period_ns, next_ns;
  struct hk_service_timer *next;
} hk_service_timer;
/* Calls fn(arg, -1, 0) about every `period_ms` on the service thread, until the service is freed. A timer that runs
 * already goes on as it is. With a period of 0 it ends: fn and arg are not used, otherwise as hk_service_remove. */
void hk_service_tick(hk_service *s, hk_service_timer *t, unsigned period_ms, hk_service_fn fn, void *arg);

/* Work for the service thread: fn(arg, -1, 0) runs once for any number of posts before it. */
typedef struct hk_service_work {
  hk_service_fn fn;
  void *arg;
  struct hk_service_work *next; /* used by the service after a post */
  bool queued;
} hk_service_work;
void hk_service_post(hk_service *s, hk_service_work *work);
/* After return the work does not run and will not run; otherwise as hk_service_remove. */
void hk_service_cancel(hk_service *s, hk_service_work *work);

/* True on the service's own thread. */
bool hk_service_here(const hk_service *s);
