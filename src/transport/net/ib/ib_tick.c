/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread's part: it goes on with connections while the rank is outside of the library. */
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "../../../base/service.h"
#include "ib_data.h"
#include "ib_state.h"

/* Runs on the service thread every HK_IB_TICK_MS, and does something if no lane has made progress since: a peer may
 * need this rank's part in repairing a connection, or messages that were lost. It delivers nothing: only the lanes'
 * thread does. */
static void tick_come(void *arg, int fd, uint32_t events) {
  hk_ib_ctx *x = arg;
  uint64_t ticks;
  bool moved = false;
  (void)events;
  if (read(fd, &ticks, sizeof ticks) < 0) return;
  pthread_mutex_lock(&x->lock);
  if (x->progress.steps == x->tick.seen) {
    x->tick.serving = true;
    (void)hk_ib_poll(x, &moved); /* the connection keeps an error for its lanes */
    uint64_t now = hk_now_ns();
    hk_ib_devices_return(x, now);
    for (uint32_t i = 0; i < x->capacity; i++) {
      hk_ib_conn *c = x->conns[i];
      if (!c || c->failed || hk_ib_conn_step(c, now) != HK_OK || c->phase != HK_IB_UP) continue;
      (void)hk_ib_send(c, &moved);
    }
    x->tick.serving = false;
  }
  x->tick.seen = x->progress.steps;
  pthread_mutex_unlock(&x->lock);
}

/* Under the lock: the rank's thread and its service both open connections. */
static hk_status tick_start_timer(hk_ib_ctx *x) {
  hk_status rc = HK_OK;
  if (x->tick.timer >= 0 || !x->env->service) return HK_OK;
  x->tick.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  struct itimerspec every = {.it_interval.tv_nsec = HK_IB_TICK_MS * 1000000L,
                             .it_value.tv_nsec = HK_IB_TICK_MS * 1000000L};
  if (x->tick.timer < 0 || timerfd_settime(x->tick.timer, 0, &every, NULL) != 0)
    return HK_FAIL_ERRNO("rank %d cannot make a timer for its RDMA connections", x->env->rank);
  rc = hk_service_add(x->env->service, x->tick.timer, EPOLLIN, tick_come, x);
  if (rc != HK_OK) {
    close(x->tick.timer);
    x->tick.timer = -1;
  }
  return rc;
}

hk_status hk_ib_start_ticking(hk_ib_ctx *x) {
  pthread_mutex_lock(&x->lock);
  hk_status rc = tick_start_timer(x);
  pthread_mutex_unlock(&x->lock);
  return rc;
}

void hk_ib_stop_ticking(hk_ib_ctx *x) {
  if (x->tick.timer < 0) return;
  hk_service_remove(x->env->service, x->tick.timer);
  close(x->tick.timer);
}
