/* SPDX-License-Identifier: Apache-2.0 */
/* Open RDMA devices: room in their completion queues, their events and the states of their ports.
 * check: notsan */
#include "../../src/transport/net/ib/ib_device.h"
#include "../../src/transport/net/ib/ib_memory.h"
#include "../../src/transport/net/ib/ib_verbs.h"
#include "../support/ib.h"

static const hk_ibv *load(void) {
  char why[160];
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  ck_assert_msg(api != NULL, "%s", why);
  return api;
}

/* ---- devices ---- */

/* A device is opened once; one that is not there, or refuses, is an error that says why. */
TEST(opens_devices) {
  ib_begin(2);
  hk_transport_env env = {.settings = hk_settings_now(), .rank = 3};
  hk_ib_ctx x = {.api = load(), .env = &env};
  hk_ib_device *d, *again, *other;
  ck_assert_int_eq(hk_ib_device_open(&x, "fake1", &d), HK_OK);
  ck_assert_int_eq(hk_ib_device_open(&x, "fake1", &again), HK_OK);
  ck_assert(d == again && x.ndevices == 1 && verbs->ncontexts == 1);
  ck_assert_str_eq(d->context->device->name, "fake1");
  ck_assert_int_eq(hk_ib_device_open(&x, "fake7", &other), HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), strerror(ENODEV)), "%s", hk_last_error());
  verbs->device[0].refuses_open = EPERM;
  ck_assert_int_eq(hk_ib_device_open(&x, "fake0", &other), HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), "rank 3 cannot open RDMA device fake0"), "%s", hk_last_error());
  ck_assert_msg(strstr(hk_last_error(), strerror(EPERM)), "%s", hk_last_error());
  ck_assert_int_eq(x.ndevices, 1);
  hk_ib_device_close(&x, d);
  ck_assert(!d->context && !d->pd && verbs->ncontexts == 0);
}

/* ---- completion queues ---- */

/* Each queue has as many entries as all before it, at least what is asked for, and at most what the device allows. */
TEST_LOOP(makes_room_for_completions, 2) {
  enum { QUARTER = HK_IB_CQ_DEPTH / 4 };
  ib_begin(1);
  if (_i) verbs->device[0].max_cqe = 3000;
  hk_ib_ctx x = {.api = load()};
  hk_transport_env env = {.settings = hk_settings_now(), .rank = 0};
  hk_ib_device *d, *again;
  x.env = &env;
  ck_assert_int_eq(hk_ib_device_open(&x, "fake0", &d), HK_OK);
  ck_assert_int_eq(hk_ib_device_open(&x, "fake0", &again), HK_OK);
  ck_assert(d == again && x.ndevices == 1);
  hk_ib_cq *first = hk_ib_cq_take(&x, d, QUARTER - 1), *rest = hk_ib_cq_take(&x, d, 1);
  ck_assert(first && rest == first && first->capacity == QUARTER && first->used == QUARTER && d->ncqs == 1);
  hk_ib_cq *second = hk_ib_cq_take(&x, d, 1);
  ck_assert(second != first && d->ncqs == 2);
  ck_assert_uint_eq(second->capacity, _i ? 3000 : 2 * QUARTER);
  hk_ib_cq *third = hk_ib_cq_take(&x, d, 30000); /* more than is usual */
  ck_assert(third && third->capacity == 30000 && d->ncqs == 3);
  hk_ib_cq_give(&rest, 1);
  ck_assert(!rest && first->used == QUARTER - 1);
  rest = hk_ib_cq_take(&x, d, 1); /* the room is used again */
  ck_assert_ptr_eq(rest, first);
  hk_ib_cq_give(&rest, 1);
  hk_ib_cq_give(&first, QUARTER - 1);
  hk_ib_cq_give(&second, 1);
  hk_ib_cq_give(&third, 30000);
  hk_ib_cq *none = NULL;
  hk_ib_cq_give(&none, 7);
  while (_i && d->ncqs < HK_IB_CQS) ck_assert_ptr_nonnull(hk_ib_cq_take(&x, d, 30001 + (uint32_t)d->ncqs));
  if (_i) {
    errno = 0;
    ck_assert_ptr_null(hk_ib_cq_take(&x, d, 100000));
    ck_assert_int_eq(errno, ENOSPC);
    ck_assert_int_eq(verbs->ncqs, HK_IB_CQS);
  }
  hk_ib_device_close(&x, d);
}

/* ---- sleeping ---- */

TEST(arms_queues_once) {
  bench b = bench_open(2);
  hk_ib_ctx *x = b.peer->ctx;
  struct pollfd fds[HK_IB_PORTS];
  ck_assert_int_eq(x->ndevices, 2);
  for (int i = 0; i < 2; i++) {
    ck_assert(hk_ib_arm(x, fds));
    for (int d = 0; d < 2; d++) {
      ck_assert(fds[d].fd == x->devices[d].channel->fd && fds[d].events == POLLIN);
      for (int q = 0; q < x->devices[d].ncqs; q++) ck_assert(x->devices[d].cqs[q].armed);
    }
  }
  const uint64_t heard = verbs->heard;
  for (unsigned i = 0; i < 2; i++) ib_pass_on(b.w, b.send, b.recv, i); /* one by each path */
  ck_assert_int_eq(poll(fds, 2, 0), 2);
  fds[1].revents = 0; /* this one is not looked at */
  hk_ib_read_notifications(x, fds);
  ck_assert_uint_eq(verbs->heard, heard + 1);
  ck_assert(!x->devices[0].cqs[0].armed && x->devices[1].cqs[0].armed);
  fds[0].revents = 0, fds[1].revents = POLLIN;
  hk_ib_read_notifications(x, fds);
  ck_assert_uint_eq(verbs->heard, heard + 2);
  ck_assert(!x->devices[1].cqs[0].armed);
  hk_ibv_channel *channel = x->devices[1].channel;
  x->devices[1].channel = NULL;
  ck_assert(!hk_ib_arm(x, fds));
  x->devices[1].channel = channel;
  hk_ib_ctx none = {.ndevices = 0};
  ck_assert(!hk_ib_arm(&none, fds)); /* nothing would end the sleep */
}

/* ---- events ---- */

TEST(names_states_of_ports) {
  static const char *const names[] = {NULL, "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "in an unknown state"};
  bench b = bench_open(1);
  hk_ib_device *d = b.c->paths[0].device;
  for (int state = 1; state < 7; state++) {
    verbs->device[0].state = state;
    ck_assert_str_eq(hk_ib_port_state(b.c->ctx, d, 1), names[state]);
  }
  verbs->device[0].state = -1;
  ck_assert_str_eq(hk_ib_port_state(b.c->ctx, d, 1), "in an unknown state");
  ck_assert_str_eq(hk_ib_port_state(b.c->ctx, d, 2), "in a state that cannot be read");
  verbs->device[0].unreadable = EIO;
  ck_assert_str_eq(hk_ib_port_state(b.c->ctx, d, 1), "in a state that cannot be read");
  d->gone = true;
  ck_assert_str_eq(hk_ib_port_state(b.c->ctx, d, 1), "gone with its device");
  d->gone = false;
  verbs->device[0].state = verbs->device[0].unreadable = 0;
}

/* The event comes as if the device had reported it. */
static hk_status report(hk_ib_ctx *x, hk_ib_device *d, const hk_ibv_async_event *e) {
  int ends[2];
  const int own = d->context->async_fd;
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  ck_assert_int_eq(write(ends[1], e, sizeof *e), sizeof *e);
  d->context->async_fd = ends[0];
  const hk_status rc = hk_ib_handle_events(x);
  d->context->async_fd = own;
  close(ends[0]);
  close(ends[1]);
  return rc;
}

/* A device's end is the end of connections that use it; a queue's, of those that use the queue. NCCL's setting says
 * whether events count. */
static const struct {
  bool fatal, counts, uses; /* a device, else a queue; uses: the connection uses it */
  int phase;
} events[] = {{true, true, true, HK_IB_BACKING_OFF}, {true, true, false, HK_IB_UP},  {true, false, true, HK_IB_UP},
              {false, true, true, HK_IB_FAILED},     {false, true, false, HK_IB_UP}, {false, false, true, HK_IB_UP}};

TEST_LOOP(ends_connections_of_failed_devices, HK_ARRAY_LENGTH(events)) {
  if (!events[_i].counts) rdma_param("NCCL_IB_RETURN_ASYNC_EVENTS", "0");
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *d = c->paths[1].device;
  hk_ibv_async_event e = {.event_type = events[_i].fatal ? HK_IBV_EVENT_DEVICE_FATAL : HK_IBV_EVENT_CQ_ERR};
  hk_ib_cq *unused = hk_ib_cq_take(x, d, 5000);
  e.element.object = events[_i].uses ? c->qps[1].cq->cq : unused->cq;
  if (events[_i].fatal && !events[_i].uses) c->npaths = c->nqps = 1;
  const hk_status rc = report(x, d, &e);
  ck_assert_int_eq(rc, events[_i].phase == HK_IB_FAILED ? HK_ERR_REMOTE : HK_OK);
  ck_assert_int_eq(c->phase, events[_i].phase);
  ck_assert_int_eq(d->gone, events[_i].fatal && events[_i].counts);
  if (events[_i].phase != HK_IB_UP)
    ck_assert_msg(
        strstr(c->repair.cause, d->name) && strstr(c->repair.cause, events[_i].fatal ? "removed" : "overflowed"), "%s",
        c->repair.cause);
  if (events[_i].fatal && !events[_i].uses) c->npaths = c->nqps = 2;
  d->gone = false;
  hk_ib_cq_give(&unused, 5000);
}

static hk_status fails(hk_ib_ctx *x, hk_ib_device *d) {
  return report(x, d, &(hk_ibv_async_event){.event_type = HK_IBV_EVENT_DEVICE_FATAL});
}

/* A device that has failed is closed when nothing of it is used any more, and opened when it is there again. */
TEST(opens_devices_again) {
  static char memory[2][8192];
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  hk_ib_ctx *x = c->ctx;
  struct pollfd fds[HK_IB_PORTS];
  hk_ib_device *d = c->paths[1].device;
  const int number = d->name[4] - '0';
  const hk_ibv_context *context = d->context;
  hk_ib_user_memory(x, memory, sizeof memory, true);
  ck_assert_ptr_nonnull(hk_ib_user_mr(x, d, memory, 8192, true));
  c->epoch = 2; /* ports count as left from the second one on */
  const uint64_t before = hk_now_ns();
  ck_assert_int_eq(fails(x, d), HK_OK);
  uint64_t when = d->retry_ns;
  ck_assert(d->gone && when >= before + SECOND && when <= hk_now_ns() + SECOND);
  ck_assert_ptr_null(hk_ib_user_mr(x, d, memory, 8192, true));
  hk_ib_devices_return(x, when); /* its queue pairs are there */
  ck_assert_ptr_eq(d->context, context);
  hk_ib_drop_qps(c);
  hk_ib_devices_return(x, when); /* its registrations are */
  ck_assert_ptr_eq(d->context, context);
  hk_ib_leave_devices(c);
  ck_assert(c->paths[0].arena_mr && !c->paths[1].arena_mr);
  verbs->device[number].dead = 1;
  const int contexts = verbs->ncontexts;
  hk_ib_devices_return(x, when - 1);
  ck_assert_ptr_eq(d->context, context);
  hk_ib_devices_return(x, when);
  ck_assert(d->gone && !d->context && verbs->ncontexts == contexts - 1);
  ck_assert(hk_ib_arm(x, fds) && fds[d - x->devices].fd == -1 && fds[1 - (d - x->devices)].fd >= 0);
  hk_ib_read_notifications(x, fds);
  ck_assert_int_eq(hk_ib_handle_events(x), HK_OK);
  verbs->device[number].dead = 0;
  hk_ib_devices_return(x, when + SECOND - 1);
  ck_assert(d->gone);
  c->repair.back_ns = 0;
  hk_ib_devices_return(x, when + SECOND);
  ck_assert(!d->gone && d->context && verbs->ncontexts == contexts);
  ck_assert_uint_eq(c->repair.back_ns, when + 3 * SECOND); /* it must stay up for two seconds */
  ck_assert_ptr_nonnull(hk_ib_user_mr(x, d, memory, 8192, true));
  for (uint64_t wait = 2; wait < 200; wait *= 2) { /* each time it is left for twice as long, up to about a minute */
    ck_assert_int_eq(fails(x, d), HK_OK);
    when = hk_now_ns() + (wait < 64 ? wait : 64) * SECOND;
    ck_assert(d->retry_ns > when - SECOND && d->retry_ns <= when);
    hk_ib_devices_return(x, when);
    ck_assert(!d->gone);
  }
  hk_ib_user_memory(x, memory, sizeof memory, false);
}

/* A device that allows fewer requests than are wanted. */
TEST(is_content_with_short_queues) {
  ib_begin(1);
  verbs->device[0].max_wr = 20;
  net_world *w = ib_world(8, 65536);
  hk_link *send, *recv;
  ib_make_way(w, &send, &recv);
  ck_assert_uint_eq(bench_conn(send)->qps[0].depth, 20);
  for (unsigned i = 0; i < 60; i++) ib_carry(w, send, recv, i % 2 ? 30000 : 100);
}

TEST(a_library_of_the_user) {
  char why[160];
  setenv("NCCL_IBVERBS_LIB", "/no/such/libmine.so", 1);
  hk_param_reload();
  ck_assert_ptr_null(hk_ibv_load(why, sizeof why));
  ck_assert_ptr_nonnull(strstr(why, "/no/such/libmine.so"));
}

int main(void) { return ib_main("ib_device", .timeout = 60); }
