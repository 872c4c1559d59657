/* SPDX-License-Identifier: Apache-2.0 */
/* Open RDMA devices: who shares them, room in their completion queues, their events and the states of their ports.
 * check: notsan */
#include <errno.h>
#include "../../src/transport/net/ib_card.h"
#include "../support/ib_bench.h"

static const hk_ibv *load(void) {
  char why[160];
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  ck_assert_msg(api != NULL, "%s", why);
  return api;
}

/* ---- cards ---- */

/* Users that share a device have one; others have it for themselves, and one that has failed is opened again. */
START_TEST(shares_cards) {
  begin(2);
  const hk_ibv *api = load();
  uint64_t heard;
  char why[160];
  hk_ib_card *a = hk_ib_card_open(api, "fake0", true, &heard), *b = hk_ib_card_open(api, "fake0", true, &heard);
  hk_ib_card *own = hk_ib_card_open(api, "fake0", false, &heard), *other = hk_ib_card_open(api, "fake1", true, &heard);
  ck_assert(a && a == b && own && own != a && other && other != a);
  ck_assert_int_eq(verbs->ncontexts, 3);
  ck_assert_str_eq(other->name, "fake1");
  uint64_t opened = verbs->opened;
  ck_assert(hk_ib_card_opens((void *)(uintptr_t)api, "fake0", why, sizeof why));
  ck_assert_uint_eq(verbs->opened, opened); /* it is open */
  a->gone = true;
  hk_ib_card *again = hk_ib_card_open(api, "fake0", true, &heard);
  ck_assert(again && again != a);
  ck_assert(hk_ib_card_opens((void *)(uintptr_t)api, "fake0", why, sizeof why));
  hk_ib_card *const all[] = {other, a, again, own, b};
  static const int left[] = {4, 3, 3, 2, 1}; /* the second has another user, who is the last */
  for (int i = 0; i < 5; i++) {
    ck_assert_int_eq(verbs->ncontexts, left[i]);
    hk_ib_card_close(api, all[i]);
  }
  hk_ib_card_close(api, NULL);
  errno = 0;
  ck_assert_ptr_null(hk_ib_card_open(api, "fake7", true, &heard));
  ck_assert_int_eq(errno, ENODEV);
  verbs->device[1].refuses_open = EPERM;
  ck_assert_ptr_null(hk_ib_card_open(api, "fake1", true, &heard));
  ck_assert_int_eq(errno, EPERM);
  ck_assert(!hk_ib_card_opens((void *)(uintptr_t)api, "fake1", why, sizeof why));
  ck_assert_msg(strstr(why, "EPERM"), "%s", why);
  end();
}
END_TEST

/* Each user gets each event once; of very many the last ones. */
START_TEST(hands_events_to_all_users) {
  static const int counts[] = {1, 3, HK_IB_CARD_EVENTS, HK_IB_CARD_EVENTS + 1, HK_IB_CARD_EVENTS + 7};
  begin(1);
  const hk_ibv *api = load();
  void (*port)(int number, int up) =
      (void (*)(int, int))(uintptr_t)dlsym(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_verbs_port");
  uint64_t heard[3];
  hk_ib_card *c = hk_ib_card_open(api, "fake0", true, &heard[0]);
  hk_ib_card_open(api, "fake0", true, &heard[1]);
  for (int i = 0; i < counts[_i]; i++) port(0, i % 2);
  int got[3] = {0};
  hk_ibv_async_event e;
  const int kept = counts[_i] < HK_IB_CARD_EVENTS ? counts[_i] : HK_IB_CARD_EVENTS;
  for (int user = 0; user < 3; user++) {
    if (user == 2) hk_ib_card_open(api, "fake0", true, &heard[2]); /* after them */
    for (; hk_ib_card_event(api, c, &heard[user], &e); got[user]++) {
      const int number = counts[_i] - kept + got[user];
      ck_assert_int_eq(e.event_type, number % 2 ? HK_IBV_EVENT_PORT_ACTIVE : HK_IBV_EVENT_PORT_ERR);
      ck_assert_int_eq(e.element.port_num, 1);
    }
    ck_assert_int_eq(got[user], user < 2 ? kept : 0);
  }
  port(0, 1);
  for (int user = 0; user < 3; user++) {
    ck_assert(hk_ib_card_event(api, c, &heard[user], &e));
    ck_assert(!hk_ib_card_event(api, c, &heard[user], &e));
    ck_assert(!c->gone);
  }
  for (int user = 0; user < 3; user++) hk_ib_card_close(api, c);
  end();
}
END_TEST

/* ---- completion queues ---- */

/* Each queue has as many entries as all before it, at least what is asked for, and at most what the device allows. */
START_TEST(makes_room_for_completions) {
  enum { QUARTER = HK_IB_CQ_DEPTH / 4 };
  begin(1);
  if (_i) verbs->device[0].max_cqe = 3000;
  hk_ib_ctx x = {.api = load()};
  hk_transport_env env = {.rank = 0};
  hk_ib_device *d, *again;
  x.env = &env;
  ck_assert_int_eq(hk_ib_device_open(&x, "fake0", &d), HK_OK);
  ck_assert_int_eq(hk_ib_device_open(&x, "fake0", &again), HK_OK);
  ck_assert(d == again && x.ndevices == 1);
  hk_ib_cq *first = hk_ib_cq_take(&x, d, QUARTER - 1), *rest = hk_ib_cq_take(&x, d, 1);
  ck_assert(first && rest == first && first->room == QUARTER && first->used == QUARTER && d->ncqs == 1);
  hk_ib_cq *second = hk_ib_cq_take(&x, d, 1);
  ck_assert(second != first && d->ncqs == 2);
  ck_assert_uint_eq(second->room, _i ? 3000 : 2 * QUARTER);
  hk_ib_cq *third = hk_ib_cq_take(&x, d, 30000); /* more than is usual */
  ck_assert(third && third->room == 30000 && d->ncqs == 3);
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
  end();
}
END_TEST

/* ---- sleeping ---- */

START_TEST(arms_queues_once) {
  bench b = setup(2);
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
  for (unsigned i = 0; i < 2; i++) pass_on(b.w, b.send, b.recv, i); /* one by each path */
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
  teardown(&b);
}
END_TEST

/* ---- events ---- */

START_TEST(names_states_of_ports) {
  static const char *const names[] = {NULL, "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "in an unknown state"};
  bench b = setup(1);
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
  teardown(&b);
}
END_TEST

/* A device's end is the end of connections that use it; a queue's, of those that use the queue. NCCL's setting says
 * whether events count. */
static const struct {
  bool fatal, counts, uses; /* a device, else a queue; uses: the connection uses it */
  int phase;
} events[] = {{true, true, true, HK_IB_BACKING_OFF}, {true, true, false, HK_IB_UP},  {true, false, true, HK_IB_UP},
              {false, true, true, HK_IB_FAILED},     {false, true, false, HK_IB_UP}, {false, false, true, HK_IB_UP}};

START_TEST(ends_connections_of_failed_devices) {
  bench b = setup(2);
  hk_ib_conn *c = b.c;
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *d = c->paths[1].device;
  if (!events[_i].counts) rdma_param("NCCL_IB_RETURN_ASYNC_EVENTS", "0");
  hk_ibv_async_event e = {.event_type = events[_i].fatal ? HK_IBV_EVENT_DEVICE_FATAL : HK_IBV_EVENT_CQ_ERR};
  hk_ib_cq *unused = hk_ib_cq_take(x, d, 5000);
  e.element.object = events[_i].uses ? c->qps[1].cq->cq : unused->cq;
  if (events[_i].fatal && !events[_i].uses) c->npaths = c->nqps = 1;
  d->card->events[d->card->nevents++ % HK_IB_CARD_EVENTS] = e; /* as if the card had reported it */
  const hk_status rc = hk_ib_handle_events(x);
  ck_assert_int_eq(rc, events[_i].phase == HK_IB_FAILED ? HK_ERR_REMOTE : HK_OK);
  ck_assert_int_eq(c->phase, events[_i].phase);
  ck_assert_int_eq(d->gone, events[_i].fatal && events[_i].counts);
  if (events[_i].phase != HK_IB_UP)
    ck_assert_msg(strstr(c->cause, d->name) && strstr(c->cause, events[_i].fatal ? "removed" : "overflowed"), "%s",
                  c->cause);
  if (events[_i].fatal && !events[_i].uses) c->npaths = c->nqps = 2;
  d->gone = false;
  hk_ib_cq_give(&unused, 5000);
  teardown(&b);
}
END_TEST

static void fails(const hk_ib_device *d) {
  d->card->events[d->card->nevents++ % HK_IB_CARD_EVENTS] =
      (hk_ibv_async_event){.event_type = HK_IBV_EVENT_DEVICE_FATAL};
}

/* A device that has failed is closed when nothing of it is used any more, and opened when it is there again. */
START_TEST(opens_devices_again) {
  static char memory[2][8192];
  bench b = setup(2);
  hk_ib_conn *c = b.c;
  hk_ib_ctx *x = c->ctx;
  struct pollfd fds[HK_IB_PORTS];
  hk_ib_device *d = c->paths[1].device;
  const int number = d->name[4] - '0';
  struct hk_ib_card *card = d->card;
  hk_ib_user_memory(x, memory, sizeof memory, true);
  ck_assert_ptr_nonnull(hk_ib_user_mr(x, d, memory, 8192, true));
  c->epoch = 2; /* ports count as left from the second one on */
  fails(d);
  const uint64_t before = hk_now_ns();
  ck_assert_int_eq(hk_ib_handle_events(x), HK_OK);
  uint64_t when = d->retry_ns;
  ck_assert(d->gone && when >= before + SECOND && when <= hk_now_ns() + SECOND);
  ck_assert_ptr_null(hk_ib_user_mr(x, d, memory, 8192, true));
  hk_ib_devices_return(x, when); /* its queue pairs are there */
  ck_assert_ptr_eq(d->card, card);
  hk_ib_drop_qps(c);
  hk_ib_devices_return(x, when); /* its registrations are */
  ck_assert_ptr_eq(d->card, card);
  hk_ib_leave_devices(c);
  ck_assert(c->paths[0].arena_mr && !c->paths[1].arena_mr);
  verbs->device[number].dead = 1;
  const int contexts = verbs->ncontexts;
  hk_ib_devices_return(x, when - 1);
  ck_assert_ptr_eq(d->card, card);
  hk_ib_devices_return(x, when);
  ck_assert(d->gone && !d->card && verbs->ncontexts == contexts - 1);
  ck_assert(hk_ib_arm(x, fds) && fds[d - x->devices].fd == -1 && fds[1 - (d - x->devices)].fd >= 0);
  hk_ib_read_notifications(x, fds);
  ck_assert_int_eq(hk_ib_handle_events(x), HK_OK);
  verbs->device[number].dead = 0;
  hk_ib_devices_return(x, when + SECOND - 1);
  ck_assert(d->gone);
  c->back_ns = 0;
  hk_ib_devices_return(x, when + SECOND);
  ck_assert(!d->gone && d->card && verbs->ncontexts == contexts);
  ck_assert_uint_eq(c->back_ns, when + 3 * SECOND); /* it must stay up for two seconds */
  ck_assert_ptr_nonnull(hk_ib_user_mr(x, d, memory, 8192, true));
  for (uint64_t wait = 2; wait < 200; wait *= 2) { /* each time it is left for twice as long, up to about a minute */
    fails(d);
    ck_assert_int_eq(hk_ib_handle_events(x), HK_OK);
    when = hk_now_ns() + (wait < 64 ? wait : 64) * SECOND;
    ck_assert(d->retry_ns > when - SECOND && d->retry_ns <= when);
    hk_ib_devices_return(x, when);
    ck_assert(!d->gone);
  }
  hk_ib_user_memory(x, memory, sizeof memory, false);
  teardown(&b);
}
END_TEST

/* A device that allows fewer requests than are wanted. */
START_TEST(is_content_with_short_queues) {
  begin(1);
  verbs->device[0].max_wr = 20;
  net_world *w = net_world_new(2, 8, 65536);
  hk_link *send, *recv;
  make_way(w, &send, &recv);
  ck_assert_uint_eq(conn_of(send)->qps[0].depth, 20);
  for (unsigned i = 0; i < 60; i++) carry(w, send, recv, i % 2 ? 30000 : 100);
  net_unlink(send);
  net_unlink(recv);
  net_world_free(w);
  end();
}
END_TEST

int main(void) {
  TCase *t = tcase_create("ib_device");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, shares_cards);
  tcase_add_loop_test(t, hands_events_to_all_users, 0, 5);
  tcase_add_loop_test(t, makes_room_for_completions, 0, 2);
  tcase_add_test(t, arms_queues_once);
  tcase_add_test(t, names_states_of_ports);
  tcase_add_loop_test(t, ends_connections_of_failed_devices, 0, (int)HK_ARRAY_LENGTH(events));
  tcase_add_test(t, opens_devices_again);
  tcase_add_test(t, is_content_with_short_queues);
  return suite_run_one("ib_device", t);
}
