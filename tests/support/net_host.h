/* SPDX-License-Identifier: Apache-2.0 */
/* A host of a net plugin that is as strict as NCCL (test_net_rules.c says how NCCL uses a plugin): it loads the plugin
 * and makes connections, each with buffers. */
#ifndef HK_TESTS_NET_HOST_H
#define HK_TESTS_NET_HOST_H
#include <check.h>
#include <libgen.h>
#include <stdarg.h>
#include "../../src/netplugin/netplugin.h"
#include "fake_rdma.h"
#include "suite.h"

enum { WINDOW = 8, GUARD = 64, LARGE = 300000, PATIENCE_S = 20, QUICK_MS = 2000, SLOW_MS = 20000, GROUP = 8 };
static const char nothing[LARGE];
static const size_t sizes[] = {1, 0, 8, 4096, LARGE, 48, 4097, 131072};

static const net_plugin_v *v;
static bool is_other; /* not ours */
static fake_verbs_state *verbs;
static bool both, beside; /* both devices carry something; no device does */

/* What another plugin says explains its failures. */
static inline void says(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
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
static inline bool goes_on(uint64_t *until) {
  if (!*until) *until = hk_now_ns() + PATIENCE_S * 1000000000ull;
  sched_yield();
  return hk_now_ns() < *until;
}
#define WAITS(until) MUST(goes_on(until), "it does not end within %d s", PATIENCE_S)

static inline void *begin(uint64_t comm) {
  net_plugin_config config = {.traffic_class = NET_PLUGIN_UNDEFINED};
  void *context = NULL;
  ck_assert_int_eq(v->init.v11(&context, comm, &config, says, NULL), 0);
  return context;
}

/* What lies between the ends: sockets; so many RDMA devices; a device, but sockets all the same; few slots; two devices
 * that act as one, and that carry each message together. */
enum { OVER_SOCKETS, OVER_RDMA, OVER_TWO, BESIDE_RDMA, FEW_SLOTS, OVER_BOTH, SPLIT_OVER_BOTH, KINDS };

static inline void load(int kind) {
  const bool merged = kind >= OVER_BOTH;
  const int cards = merged ? 2 : kind >= BESIDE_RDMA ? 1 : kind;
  char self[3800] = "", path[4096];
  const char *other = getenv("HOCKET_TEST_NET_PLUGIN");
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../lib/libnccl-net-hocket.so", dirname(self));
  is_other = other && *other;
  if (cards && !is_other) verbs = rdma_begin(cards);
  void *lib = dlopen(is_other ? other : path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(lib != NULL, "%s", dlerror());
  if (kind == FEW_SLOTS) rdma_param("HOCKET_SLOTS", "2");
  if (merged) {
    both = rdma_lock(true); /* ports are not merged where little memory may be locked */
    if (!both) printf("SKIP: ports are not merged: this process may lock little memory, and gets no CAP_IPC_LOCK\n");
    rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
    rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", kind == SPLIT_OVER_BOTH ? "1" : "0");
  }
  v = dlsym(lib, "ncclNetPlugin_v12");
  ck_assert_msg(v != NULL, "no ncclNetPlugin_v12");
  int n;
  beside = kind == BESIDE_RDMA && !is_other;
  if (beside) { /* its port goes down once the plugin has seen it */
    v->devices(&n);
    fm_file("sys/class/infiniband/fake0/ports/1/state", "1: DOWN\n");
  }
}
static inline void unload(void) {
  if (verbs && both)
    for (int i = 0; i < 2; i++) MUST(verbs->device[i].writes > 0, "device %d has sent nothing", i);
  if (verbs && beside) MUST(verbs->writes == 0, "the connection does not go over sockets");
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

static inline void listens(void *context, ends *e) {
  memset(e, 0, sizeof *e);
  memset(e->h.guard, 0x5a, GUARD);
  QUICK(v->listen.v11(context, 0, e->h.handle, &e->listener));
  ck_assert_ptr_nonnull(e->listener);
  for (int i = 0; i < GUARD; i++) MUST(e->h.guard[i] == 0x5a, "listen writes more than its handle");
}

/* One call of each side that is not there yet. */
static inline bool joins(void *context, ends *e) {
  net_plugin_device_handle *gpu = NULL;
  if (!e->comm[0]) QUICK(v->connect.v11(context, 0, e->h.handle, &e->comm[0], &gpu));
  if (!e->comm[1]) QUICK(v->accept.v7(e->listener, &e->comm[1], &gpu));
  return e->comm[0] && e->comm[1];
}

static inline void connects(void *context, ends *e) {
  uint64_t until = 0;
  listens(context, e);
  while (!joins(context, e)) WAITS(&until);
  for (int i = 0; i < GUARD; i++) MUST(e->h.guard[i] == 0x5a, "connect writes more than its handle");
  QUICK(v->close_listen(e->listener)); /* the connection stays */
}

static inline void closes(ends *e, int first) {
  for (int i = 0; i < 2; i++) QUICK((first ^ i ? v->close_recv : v->close_send)(e->comm[first ^ i]));
}

/* ---- messages ---- */

typedef struct buffers {
  char *out, *in;
  void *memory[2];
} buffers;

static inline void registers(const ends *e, buffers *b) {
  b->out = aligned_alloc(4096, (size_t)WINDOW * LARGE / 4096 * 4096 + 4096);
  b->in = aligned_alloc(4096, (size_t)WINDOW * LARGE / 4096 * 4096 + 4096);
  static _Atomic unsigned connections; /* each has data of its own */
  unsigned mine = connections++;
  for (size_t i = 0; i < (size_t)WINDOW * LARGE; i++) b->out[i] = (char)(i * 7 + i / 4096 + mine * 29);
  memset(b->in, 0, (size_t)WINDOW * LARGE);
  for (int i = 0; i < 2; i++)
    QUICK(v->reg.v8(e->comm[i], i ? b->in : b->out, (size_t)WINDOW * LARGE, NET_PLUGIN_HOST_MEMORY, &b->memory[i]));
}
static inline void unregisters(const ends *e, buffers *b) {
  for (int i = 0; i < 2; i++) QUICK(v->dereg(e->comm[i], b->memory[i]));
  free(b->out);
  free(b->in);
}

static inline void post_send(const ends *e, const buffers *b, int k, int tag, void **request) {
  if (!*request)
    QUICK(v->isend.v10(e->comm[0], b->out + (size_t)k * LARGE, sizes[k], tag, b->memory[0], NULL, request));
}
static inline void post_receive(const ends *e, const buffers *b, int k, void **request) {
  void *at = b->in + (size_t)k * LARGE, *memory = b->memory[1], *event = NULL;
  size_t room = LARGE;
  int tag = 0;
  if (!*request) QUICK(v->irecv.v10(e->comm[1], 1, &at, &room, &tag, &memory, &event, request));
}

static inline int most_of_a_group(void) {
  net_plugin_properties_v12 p;
  memset(&p, 0, sizeof p);
  QUICK(v->properties(0, &p));
  return p.max_receives < WINDOW ? p.max_receives : WINDOW;
}
#endif
