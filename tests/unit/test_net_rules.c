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
#include <check.h>
#include <libgen.h>
#include <stdarg.h>
#include "../../src/netplugin/netplugin.h"
#include "../support/fake_rdma.h"
#include "../support/suite.h"

enum { WINDOW = 8, GUARD = 64, LARGE = 300000, PATIENCE_S = 20, QUICK_MS = 2000, SLOW_MS = 20000, GROUP = 8 };
static const char nothing[LARGE];
static const size_t sizes[] = {1, 0, 8, 4096, LARGE, 48, 4097, 131072};

static const net_plugin_v *v;
static bool is_other; /* not ours */
static fake_verbs_state *verbs;

/* What another plugin says explains its failures. */
static void says(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list args;
  (void)flags, (void)file, (void)line;
  if (!is_other || level > 2) return; /* NCCL_LOG_WARN */
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

/* Check writes a line to a file for each of its own assertions, also if it holds. */
#define MUST(condition, ...)                                                                                           \
  do {                                                                                                                 \
    if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                       \
  } while (0)
/* A call that must not block: others of this thread wait for it. (aws-ofi-nccl's connect took more than 2 s over
 * libfabric's tcp;ofi_rxm on a busy machine: there a call must only end.) */
#define QUICK(call)                                                                                                    \
  do {                                                                                                                 \
    uint64_t begin_ = hk_now_ns();                                                                                     \
    int code_ = (call);                                                                                                \
    MUST(code_ == 0, "%s gives code %d", #call, code_);                                                                \
    MUST(hk_now_ns() - begin_ < (is_other ? SLOW_MS : QUICK_MS) * 1000000ull, "%s blocks", #call);                     \
  } while (0)

/* Another round of calls; false: it takes too long. */
static bool goes_on(uint64_t *until) {
  if (!*until) *until = hk_now_ns() + PATIENCE_S * 1000000000ull;
  sched_yield();
  return hk_now_ns() < *until;
}
#define WAITS(until) MUST(goes_on(until), "it does not end within %d s", PATIENCE_S)

static void *begin(uint64_t comm) {
  net_plugin_config config = {.traffic_class = NET_PLUGIN_UNDEFINED};
  void *context = NULL;
  ck_assert_int_eq(v->init.v11(&context, comm, &config, says, NULL), 0);
  return context;
}

static void load(int cards) {
  char self[3800] = "", path[4096];
  const char *other = getenv("HOCKET_TEST_NET_PLUGIN");
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../lib/libnccl-net-hocket.so", dirname(self));
  is_other = other && *other;
  if (cards && !is_other) verbs = rdma_begin(cards);
  void *lib = dlopen(is_other ? other : path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(lib != NULL, "%s", dlerror());
  v = dlsym(lib, "ncclNetPlugin_v12");
  ck_assert_msg(v != NULL, "no ncclNetPlugin_v12");
}
static void unload(void) {
  if (verbs) rdma_end(verbs);
  verbs = NULL;
}

/* ---- connections ---- */

/* Both ends, which one thread makes: neither call may wait for the other. */
typedef struct ends {
  void *listener, *comm[2]; /* the sender's, the receiver's */
  struct {
    _Alignas(16) char handle[NET_PLUGIN_HANDLE];
    char guard[GUARD];
  } h;
} ends;

static void listens(void *context, ends *e) {
  memset(e, 0, sizeof *e);
  memset(e->h.guard, 0x5a, GUARD);
  QUICK(v->listen.v11(context, 0, e->h.handle, &e->listener));
  ck_assert_ptr_nonnull(e->listener);
  for (int i = 0; i < GUARD; i++) MUST(e->h.guard[i] == 0x5a, "listen writes more than its handle");
}

/* One call of each side that is not there yet. */
static bool joins(void *context, ends *e) {
  net_plugin_device_handle *gpu = NULL;
  if (!e->comm[0]) QUICK(v->connect.v11(context, 0, e->h.handle, &e->comm[0], &gpu));
  if (!e->comm[1]) QUICK(v->accept.v7(e->listener, &e->comm[1], &gpu));
  return e->comm[0] && e->comm[1];
}

static void connects(void *context, ends *e) {
  uint64_t until = 0;
  listens(context, e);
  while (!joins(context, e)) WAITS(&until);
  for (int i = 0; i < GUARD; i++) MUST(e->h.guard[i] == 0x5a, "connect writes more than its handle");
  QUICK(v->close_listen(e->listener)); /* the connection stays */
}

static void closes(ends *e, int first) {
  for (int i = 0; i < 2; i++) QUICK((first ^ i ? v->close_recv : v->close_send)(e->comm[first ^ i]));
}

/* ---- messages ---- */

typedef struct buffers {
  char *out, *in;
  void *memory[2];
} buffers;

static void registers(const ends *e, buffers *b) {
  b->out = aligned_alloc(4096, (size_t)WINDOW * LARGE / 4096 * 4096 + 4096);
  b->in = aligned_alloc(4096, (size_t)WINDOW * LARGE / 4096 * 4096 + 4096);
  static _Atomic unsigned connections; /* each has data of its own */
  unsigned mine = connections++;
  for (size_t i = 0; i < (size_t)WINDOW * LARGE; i++) b->out[i] = (char)(i * 7 + i / 4096 + mine * 29);
  memset(b->in, 0, (size_t)WINDOW * LARGE);
  for (int i = 0; i < 2; i++)
    QUICK(v->reg.v8(e->comm[i], i ? b->in : b->out, (size_t)WINDOW * LARGE, NET_PLUGIN_HOST_MEMORY, &b->memory[i]));
}
static void unregisters(const ends *e, buffers *b) {
  for (int i = 0; i < 2; i++) QUICK(v->dereg(e->comm[i], b->memory[i]));
  free(b->out);
  free(b->in);
}

static void post_send(const ends *e, const buffers *b, int k, int tag, void **request) {
  if (!*request)
    QUICK(v->isend.v10(e->comm[0], b->out + (size_t)k * LARGE, sizes[k], tag, b->memory[0], NULL, request));
}
static void post_receive(const ends *e, const buffers *b, int k, void **request) {
  void *at = b->in + (size_t)k * LARGE, *memory = b->memory[1], *event = NULL;
  size_t room = LARGE;
  int tag = 0;
  if (!*request) QUICK(v->irecv.v10(e->comm[1], 1, &at, &room, &tag, &memory, &event, request));
}

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

/* Buffers of one request: their messages are told apart by tags, and may come in any order. */
START_TEST(groups_receives) {
  ends e;
  buffers b;
  net_plugin_properties_v12 p;
  load(_i);
  void *context = begin(1), *at[GROUP], *memory[GROUP], *events[GROUP] = {NULL}, *receive = NULL, *send[GROUP] = {NULL};
  size_t room[GROUP];
  int tags[GROUP], bytes[GROUP] = {0}, done = 0, sent = 0;
  uint64_t until = 0;
  memset(&p, 0, sizeof p);
  QUICK(v->properties(0, &p));
  int n = p.max_receives < WINDOW ? p.max_receives : WINDOW;
  connects(context, &e);
  registers(&e, &b);
  for (int i = 0; i < n; i++) {
    at[i] = b.in + (size_t)i * LARGE;
    memory[i] = b.memory[1];
    room[i] = LARGE;
    tags[i] = 100 + i;
  }
  while (!receive) {
    QUICK(v->irecv.v10(e.comm[1], n, at, room, tags, memory, events, &receive));
    WAITS(&until);
  }
  for (int i = n - 1; i >= 0; i--)
    while (!send[i]) {
      post_send(&e, &b, i, tags[i], &send[i]);
      WAITS(&until);
    }
  while (sent < n || !done) {
    if (!done) QUICK(v->test(receive, &done, bytes));
    for (int i = 0; i < n; i++) {
      int over = 0;
      if (!send[i]) continue;
      QUICK(v->test(send[i], &over, NULL));
      if (over) send[i] = NULL, sent++;
    }
    WAITS(&until);
  }
  for (int i = 0; i < n; i++) {
    ck_assert_int_eq(bytes[i], (int)sizes[i]);
    ck_assert_mem_eq(at[i], b.out + (size_t)i * LARGE, sizes[i]);
  }
  unregisters(&e, &b);
  closes(&e, 0);
  ck_assert_int_eq(v->finalize(context), 0);
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
  tcase_add_loop_test(t, carries_what_is_posted, 0, 3);
  tcase_add_loop_test(t, connections_do_not_know_each_other, 0, 2);
  tcase_add_loop_test(t, communicators_have_threads_of_their_own, 0, 2);
  tcase_add_loop_test(t, groups_receives, 0, 2);
  tcase_add_loop_test(t, closes_what_is_unfinished, 0, 2);
  tcase_add_loop_test(t, reports_a_peer_that_has_gone, 0, 2);
  return suite_run_one("net_rules", t);
}
