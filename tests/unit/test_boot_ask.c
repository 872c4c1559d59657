/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Asking ranks of this process, and those of another process, which the test plays, what they do. */
#include <fcntl.h>
#include <sys/socket.h>
#include "../support/boot_bench.h"

/* A rank that has not begun to make the child says in the parent what it does: the rank that it waits for is named in
 * the child's numbers, if it is a member. */
TEST(asked_in_the_parent) {
  static const int members[] = {4, 2, 6};
  static const int waits[][2] = {{4, 0}, {2, 1}, {6, 2}, {3, -1}, {-1, -1}};
  static struct hk_bootstrap absent;
  hk_activity a;
  make(me, ME, 3);
  make(&parent, 2, 7);
  make(&absent, 6, 7);
  parent.comm = absent.comm = 0xaa;
  hk_member_join(&absent);
  me->parent = &parent;
  me->members = members;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(waits); i++) {
    does[6] = (hk_activity){.phase = HK_PHASE_OPERATION, .sequence = 7, .waits_for = waits[i][0]};
    ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_ANSWERS);
    ck_assert(a.phase == HK_PHASE_OPERATION && a.sequence == 7);
    ck_assert_int_eq(a.waits_for, waits[i][1]);
  }
  ck_assert(hk_bootstrap_ask(me, -1, S, &a) == HK_PRESENCE_UNKNOWN && a.waits_for == -1);
  ck_assert(hk_bootstrap_ask(me, 3, S, &a) == HK_PRESENCE_UNKNOWN && a.waits_for == -1);
  hk_member_leave(&absent);
  ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_LEFT);
}

/* For three seconds after a wait has ended with an error, the rank says that it is in it: those that wait with it give
 * up in that time, too, and ask. */
TEST(answers_of_one_that_gave_up) {
  hk_activity a;
  make_ranks(3);
  clock_ns = hk_now_ns() + 1000 * S;
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "a call");
  clock_ns += 2500 * 1000000u;
  hk_listener_lock();
  ck_assert_int_eq(hk_member_activity(&listener, &family, 0xc0, ME, &a), HK_ACK_OK);
  ck_assert(a.phase == HK_PHASE_SPLIT && a.phase_ms == 2500 && a.waits_for == -1);
  atomic_store(&me->call.awaited, 2);
  hk_member_activity(&listener, &family, 0xc0, ME, &a);
  ck_assert_int_eq(a.waits_for, 2);
  atomic_store(&me->call.gave_up_ns, clock_ns - 3 * S);
  atomic_store(&me->call.gave_up_in, HK_PHASE_SHRINK);
  hk_member_activity(&listener, &family, 0xc0, ME, &a);
  ck_assert(a.phase == HK_PHASE_SHRINK && a.waits_for == 2);
  clock_ns++;
  hk_member_activity(&listener, &family, 0xc0, ME, &a);
  ck_assert(a.phase == HK_PHASE_SPLIT && a.waits_for == -1);
  ck_assert_int_eq(hk_member_activity(&listener, &family, 0xc1, ME, &a), HK_ACK_UNKNOWN);
  ck_assert_int_eq(hk_member_activity(&listener, &family, 0xc0, 3, &a), HK_ACK_UNKNOWN);
  hk_listener_unlock();
  hk_member_leave(me);
  hk_listener_lock();
  ck_assert_int_eq(hk_member_activity(&listener, &family, 0xc0, ME, &a), HK_ACK_GONE);
  ck_assert(a.waits_for == -1 && a.phase == HK_PHASE_IDLE);
  ck_assert_int_eq(hk_member_activity(&listener, &family, 0xc1, ME, &a), HK_ACK_UNKNOWN);
  hk_listener_unlock();
}

/* A rank of this process that is not there: it has left, or it is about to join. */
TEST(absent_ones) {
  hk_activity a;
  make_ranks(3);
  for (int known = 0; known < 2; known++) {
    me->known = known;
    does[2] = (hk_activity){.phase = HK_PHASE_OPERATION, .waits_for = 0};
    ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_ANSWERS);
    hk_member_leave(&ranks[2]);
    ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_LEFT);
    hk_member_join(&ranks[2]); /* again */
  }
  me->comm++; /* no rank of which is here */
  ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_LEFT);
  me->known = false;
  ck_assert_int_eq(hk_bootstrap_ask(me, 2, S, &a), HK_PRESENCE_ANSWERS);
  ck_assert(a.phase == HK_PHASE_INIT && a.waits_for == -1);
}

/* ---- ranks of other processes ---- */

/* The rank's process, to this rank, is at a socket of this test; gives the socket. */
static int elsewhere(int rank, bool listens) {
  hk_contact c = {.process = PROCESS + 1, .n = 1};
  c.at[0].v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof c.at[0];
  ck_assert_int_eq(bind(fd, &c.at[0].sa, hk_addr_len(&c.at[0])), 0);
  ck_assert_int_eq(getsockname(fd, &c.at[0].sa, &size), 0);
  if (listens) ck_assert_int_eq(listen(fd, 8), 0);
  hk_contact_encode(hk_contact_of(me, rank), &c);
  return fd;
}

/* No process listens: it is gone, or, from a complete communicator, it has left, if no news of its death comes. */
TEST_LOOP(no_listener, 2) {
  hk_activity a;
  make_ranks(3);
  int fd = elsewhere(2, false);
  me->known = _i;
  uint64_t begin = hk_now_ns();
  ck_assert_int_eq(hk_bootstrap_ask(me, 2, S / 20, &a), _i ? HK_PRESENCE_LEFT : HK_PRESENCE_GONE);
  if (_i) ck_assert_uint_ge(hk_now_ns() - begin, S / 20);
  close(fd);
}

/* A listener that is full closes connections: it is asked three times. */
static void *close_all(void *arg) {
  static int closed;
  for (int fd; (fd = accept(*(int *)arg, NULL, NULL)) >= 0; closed++) close(fd);
  return &closed;
}

TEST(asks_again) {
  hk_activity a;
  pthread_t thread;
  void *closed;
  make_ranks(3);
  int fd = elsewhere(2, true);
  ck_assert_int_eq(fcntl(fd, F_SETFL, 0), 0); /* it blocks */
  ck_assert_int_eq(pthread_create(&thread, NULL, close_all, &fd), 0);
  me->known = false;
  ck_assert_int_eq(hk_bootstrap_ask(me, 2, 20 * S, &a), HK_PRESENCE_GONE);
  shutdown(fd, SHUT_RDWR);
  pthread_join(thread, &closed);
  ck_assert_int_eq(*(int *)closed, 3);
  close(fd);
}

int main(void) { return suite_main("questions of the bootstrap", .setup = setup, .teardown = teardown); }
