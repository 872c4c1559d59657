/* SPDX-License-Identifier: Apache-2.0 */
/* A host that is as strict as NCCL: what NCCL expects of a net plugin, from init to finalize, against
 * libnccl-net-hocket.so over sockets and over the fake RDMA cards. HOCKET_TEST_NET_PLUGIN names another plugin of v12
 * to be checked (make check-plugins), over whatever it finds.
 *
 * What NCCL does, and a plugin has to bear: getProperties at any time; listen on the user's thread, all other calls of
 * a connection on one other thread; connect and accept again and again, and neither may block, whichever side comes
 * first; the handle's NET_PLUGIN_HANDLE bytes are moved to the peer and stay where they are from one connect to the
 * next; a listener is closed as soon as its connection is there, or without one; up to 8 requests a connection;
 * receives larger than their messages; groups of up to maxRecvs receives with tags; a request is tested until it is
 * done, and never after; iflush after the receive; closing in either order, with requests under way if the communicator
 * is aborted; several contexts, each with its finalize.
 */
#include "../support/net_host.h"

/* Makes what a receive has brought visible, as NCCL does for a GPU; the plugin may have nothing to do. */
static void flushes(const ends *e, const buffers *b, int k, int bytes) {
  void *at = b->in + (size_t)k * LARGE, *memory = b->memory[1], *request = NULL;
  uint64_t until = 0;
  int done = 0;
  if (!v->iflush) return;
  QUICK(v->iflush(e->comm[1], 1, &at, &bytes, &memory, &request));
  while (request && !done) {
    QUICK(v->test(request, &done, NULL)); /* NCCL asks for no size */
    WAITS(&until);
  }
}

/* WINDOW messages at once, the receives before the sends or after them. */
static void exchanges(const ends *e, buffers *b, bool sends_first) {
  b->out[0]++; /* no two rounds are alike */
  void *request[2][WINDOW] = {{NULL}};
  bool done[2][WINDOW] = {{false}};
  uint64_t until = 0;
  memset(b->in, 0, (size_t)WINDOW * LARGE);
  for (int left = 2 * WINDOW; left > 0;) {
    for (int side = 0; side < 2; side++) {
      bool open = true; /* an earlier message was taken */
      for (int k = 0; k < WINDOW; k++) {
        void **r = &request[side ^ !sends_first][k];
        if (open && !*r && !done[side ^ !sends_first][k])
          (side ^ !sends_first) ? post_receive(e, b, k, r) : post_send(e, b, k, 0, r);
        open = open && (*r || done[side ^ !sends_first][k]);
      }
    }
    for (int side = 0; side < 2; side++)
      for (int k = 0; k < WINDOW; k++) {
        int over = 0, bytes[GROUP] = {-1, 0};
        if (!request[side][k] || done[side][k]) continue;
        for (int other = 0; other < k; other++)
          MUST(done[side][other] || request[side][other] != request[side][k], "two requests are one");
        QUICK(v->test(request[side][k], &over, bytes));
        if (!over) continue;
        request[side][k] = NULL; /* NCCL tests it no more: the plugin may use it again */
        done[side][k] = true;
        left--;
        if (side == 0) continue;
        MUST(bytes[0] == (int)sizes[k], "message %d has %d bytes", k, bytes[0]);
        flushes(e, b, k, bytes[0]);
        MUST(memcmp(b->in + (size_t)k * LARGE, b->out + (size_t)k * LARGE, sizes[k]) == 0, "message %d is wrong", k);
        MUST(memcmp(b->in + (size_t)k * LARGE + sizes[k], nothing, LARGE - sizes[k]) == 0,
             "message %d writes after its end", k);
      }
    MUST(goes_on(&until), "%d requests of %d do not end", left, 2 * WINDOW);
  }
}

/* ---- tests ---- */

START_TEST(describes_its_devices) {
  int n = 0;
  load(_i);
  void *context = begin(1);
  QUICK(v->devices(&n));
  ck_assert_int_ge(n, 1);
  for (int i = 0; i < n; i++) {
    net_plugin_properties_v12 p[2];
    for (int k = 0; k < 2; k++) {
      memset(&p[k], 0xa5, sizeof p[k]);
      QUICK(v->properties(i, &p[k]));
    }
    ck_assert_msg(p[0].name && *p[0].name, "a device without a name");
    ck_assert_str_eq(p[0].name, p[1].name);
    ck_assert(p[0].memory & NET_PLUGIN_HOST_MEMORY);
    if (!is_other) ck_assert_int_gt(p[0].speed, 0); /* aws-ofi-nccl knows none of libfabric's tcp */
    ck_assert_int_ge(p[0].max_comms, 1);
    ck_assert(p[0].max_receives >= 1 && p[0].max_receives <= GROUP);
    ck_assert_int_eq(p[0].ndevices, 1);
    ck_assert_int_eq(p[0].devices[0], i);
    ck_assert_uint_ge(p[0].max_message, LARGE);
    ck_assert_int_eq(p[0].gpu_type, 0);
    ck_assert(p[0].rail >= -1 && p[0].plane >= -1);
    if (p[0].pci_path) ck_assert_msg(access(p[0].pci_path, F_OK) == 0, "%s does not exist", p[0].pci_path);
  }
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

START_TEST(carries_what_is_posted) {
  ends e;
  buffers b;
  load(_i);
  void *context = begin(1);
  for (int order = 0; order < 2; order++) {
    connects(context, &e);
    registers(&e, &b);
    for (int round = 0; round < 4; round++) exchanges(&e, &b, round & 1);
    unregisters(&e, &b);
    closes(&e, order);
  }
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

/* The last connection is used by the same thread as the first one, in other orders: nothing belongs to one alone. */
START_TEST(connections_do_not_know_each_other) {
  enum { N = 5 };
  static const int ended[N] = {2, 0, 4, 1, 3};
  ends e[N];
  buffers b[N];
  uint64_t until = 0;
  load(_i);
  void *context[2] = {begin(1), begin(2)};
  for (int i = 0; i < N; i++) listens(context[i & 1], &e[i]); /* several listeners at a time */
  for (int left = N; left > 0;) {
    left = 0;
    for (int i = N - 1; i >= 0; i--) left += !joins(context[i & 1], &e[i]);
    WAITS(&until);
  }
  for (int i = 0; i < N; i++) QUICK(v->close_listen(e[i].listener));
  for (int i = 0; i < N; i++) registers(&e[i], &b[i]);
  for (int i = 0; i < N; i++) exchanges(&e[i], &b[i], i & 1);
  for (int i = 0; i < N; i++) {
    unregisters(&e[ended[i]], &b[ended[i]]);
    closes(&e[ended[i]], i & 1);
    for (int k = i + 1; k < N; k++) exchanges(&e[ended[k]], &b[ended[k]], k & 1);
  }
  ck_assert_int_eq(v->finalize(context[0]), 0);
  connects(context[1], &e[0]); /* the other communicator goes on */
  closes(&e[0], 0);
  ck_assert_int_eq(v->finalize(context[1]), 0);
  unload();
}
END_TEST

typedef struct worker {
  void *context;
  ends e;
} worker;

/* NCCL's proxy thread: everything after listen. */
static void *works(void *arg) {
  worker *w = arg;
  uint64_t until = 0;
  buffers b;
  while (!joins(w->context, &w->e)) WAITS(&until);
  QUICK(v->close_listen(w->e.listener));
  registers(&w->e, &b);
  for (int round = 0; round < 3; round++) exchanges(&w->e, &b, round & 1);
  unregisters(&w->e, &b);
  closes(&w->e, w->context == NULL);
  return NULL;
}

START_TEST(communicators_have_threads_of_their_own) {
  enum { N = 4 };
  pthread_t threads[N];
  worker w[N];
  load(_i);
  for (int i = 0; i < N; i++) {
    w[i].context = begin((uint64_t)i);
    listens(w[i].context, &w[i].e); /* on the user's thread */
  }
  for (int i = 0; i < N; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, works, &w[i]), 0);
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < N; i++) ck_assert_int_eq(v->finalize(w[i].context), 0);
  unload();
}
END_TEST

/* An aborted communicator closes what is there: a listener that nobody called, a connection that is half made, one with
 * requests under way. */
START_TEST(closes_what_is_unfinished) {
  ends e;
  buffers b;
  net_plugin_device_handle *gpu = NULL;
  void *request[WINDOW] = {NULL};
  load(_i);
  void *context = begin(1);
  listens(context, &e);
  QUICK(v->close_listen(e.listener));
  listens(context, &e);
  for (int i = 0; i < 3; i++) QUICK(v->accept.v7(e.listener, &e.comm[1], &gpu));
  ck_assert_ptr_null(e.comm[1]);
  QUICK(v->close_listen(e.listener));
  for (int order = 0; order < 2; order++) {
    connects(context, &e);
    registers(&e, &b);
    memset(request, 0, sizeof request);
    for (int k = 0; k < 4; k++) post_receive(&e, &b, k, &request[k]);
    if (order) post_send(&e, &b, 4, 0, &request[4]);
    unregisters(&e, &b);
    closes(&e, order);
  }
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

/* Who waits for a peer that has closed its end gets an error: NCCL ends the communicator with it. Not all plugins do
 * that: a receive of aws-ofi-nccl over libfabric's tcp waits for ever, and hosts watch their peers by connections of
 * their own. */
START_TEST(reports_a_peer_that_has_gone) {
  ends e;
  buffers b;
  void *request = NULL;
  uint64_t until = 0;
  int done = 0, code = 0, bytes[GROUP];
  load(_i);
  if (is_other) return;
  void *context = begin(1);
  connects(context, &e);
  registers(&e, &b);
  post_receive(&e, &b, 0, &request);
  ck_assert_ptr_nonnull(request);
  QUICK(v->dereg(e.comm[0], b.memory[0]));
  QUICK(v->close_send(e.comm[0]));
  while (!code) {
    code = v->test(request, &done, bytes);
    MUST(!done, "done, without a peer");
    WAITS(&until);
  }
  (void)v->dereg(e.comm[1], b.memory[1]);
  (void)v->close_recv(e.comm[1]);
  ck_assert_int_eq(v->finalize(context), 0);
  free(b.out);
  free(b.in);
  unload();
}
END_TEST

int main(void) {
  TCase *t = tcase_create("rules");
  tcase_set_timeout(t, 120);
  tcase_add_loop_test(t, describes_its_devices, 0, 2); /* 0: over sockets, else so many RDMA devices */
  tcase_add_loop_test(t, carries_what_is_posted, 0, KINDS);
  tcase_add_loop_test(t, connections_do_not_know_each_other, 0, 2);
  tcase_add_loop_test(t, communicators_have_threads_of_their_own, 0, 2);
  tcase_add_loop_test(t, closes_what_is_unfinished, 0, 2);
  tcase_add_loop_test(t, reports_a_peer_that_has_gone, 0, 2);
  return suite_run_one("net_rules", t);
}
