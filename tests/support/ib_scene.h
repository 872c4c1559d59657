/* SPDX-License-Identifier: Apache-2.0 */
/* For test_ib_trace.c: two ranks that exchange messages over the verbs provider by turns, with all that they do in a
 * trace. */
#ifndef HK_TESTS_IB_SCENE_H
#define HK_TESTS_IB_SCENE_H
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include "../../src/device/device.h"
#include "../../src/program/limits.h"
#include "../../src/transport/net/ib/ib_data.h"
#include "../../src/transport/remote.h"
#include "ib_trace.h"

enum { SLOTS = 8, SLOT = 262144, MOST = 600, MEMORY = 1 << 22 };

typedef struct scene {
  net_world *w;
  hk_link *send[2], *recv[2];
  unsigned sent[2], got[2];
  uint64_t step_ns;
  unsigned char *memory[2]; /* [MEMORY] of each rank, that may be registered */
  bool by_ref;              /* it is sent from there */
  char *grown;              /* for links that grow, of which so much is used */
  size_t used;
  hk_status rc[2];
  bool ended[2];
} scene;

/* Nothing is waited for: the other rank is of this thread, too. */
int poll(struct pollfd *fds, nfds_t n, int ms) {
  const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, none = {0};
  return (int)syscall(SYS_ppoll, fds, n, trace_now ? &none : ms < 0 ? NULL : &wait, NULL, 0);
}

/* What the kernel says of control connections; all 0: nothing, as they are no TCP. */
static struct tcp_info trace_info;
int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
  static const struct tcp_info none;
  if (level != IPPROTO_TCP || name != TCP_INFO || !memcmp(&trace_info, &none, sizeof none))
    return (int)syscall(SYS_getsockopt, fd, level, name, value, bytes);
  memcpy(value, &trace_info, *bytes < sizeof trace_info ? *bytes : sizeof trace_info);
  return 0;
}

/* NULL: another network has it. */
static const hk_ib_conn *scene_conn(const scene *s, int rank) {
  const hk_link *l = s->send[rank] ? s->send[rank] : s->recv[rank];
  void *ctx = NULL;
  if (!l || hk_transport_net.proxied->remote(s->w->ranks[rank].state, 1 - rank, &ctx) != &hk_ib_remote_table)
    return NULL;
  const hk_ib_ctx *x = ctx;
  const void *c = ((const hk_net_end *)l->priv)->priv;
  for (uint32_t i = 0; i < x->capacity; i++)
    if (c && x->conns[i] == c) return c;
  return NULL;
}
static void scene_check(const scene *s, int rank) {
  trace_log();
  const hk_ib_conn *c = scene_conn(s, rank);
  if (!c) return;
  check_conn(rank, c);
  check_ctx(c->ctx);
}

static bool any_network;
static void (*before_ranks)(void); /* changes the machine */
static scene the_scene = {.step_ns = MS};
static void scene_plenty(void) { rdma_plenty = true; }
static scene *scene_open(const char *name, int devices) {
  scene *s = &the_scene;
  trace_begin(name, devices);
  if (any_network) rdma_param("NCCL_NET", "");
  if (before_ranks) before_ranks();
  s->w = net_world_new(2, SLOTS, SLOT);
  s->grown = mmap(NULL, 4 * SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(s->grown != MAP_FAILED);
  for (int i = 0; i < 2; i++) {
    s->w->ranks[i].env.dial = trace_dial;
    s->memory[i] = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(s->memory[i] != MAP_FAILED);
    fill(s->memory[i], MEMORY, (unsigned)i);
  }
  return s;
}
/* Before the test ends, whose time Check takes. */
static void scene_close(void) {
  scene *s = &the_scene;
  trace_step = 50 * MS; /* it waits for what does not arrive */
  for (int i = 0; i < 2; i++)
    if (scene_conn(s, i) && !s->rc[0] && !s->rc[1] && s->sent[0] == s->got[1] && s->sent[1] == s->got[0])
      check_settled(scene_conn(s, i), s->sent[i], s->got[i]);
  for (int i = 0; i < 2; i++) {
    trace_say("rank %d ends", i);
    if (s->send[i]) net_unlink(s->send[i]);
    trace_pass_controls();
    if (s->recv[i]) net_unlink(s->recv[i]);
    trace_pass_controls();
    trace_log();
  }
  net_world_free(s->w);
  for (int i = 0; i < 2; i++) munmap(s->memory[i], MEMORY);
  munmap(s->grown, 4 * SLOTS * SLOT);
  trace_end();
}

/* Each rank makes progress once. */
static void scene_turn(scene *s) {
  for (int i = 0; i < 2; i++) {
    trace_pass_controls();
    bool moved = false;
    if (s->rc[i] == HK_OK) s->rc[i] = net_progress(&s->w->ranks[i], &moved);
    if (s->rc[i] == HK_OK && !moved) hk_transport_net.proxied->sleep(s->w->ranks[i].state);
    scene_check(s, i);
    if (s->rc[i] != HK_OK && !s->ended[i]) trace_failure(i, s->rc[i]);
    s->ended[i] = s->rc[i] != HK_OK;
    trace_now += s->step_ns;
  }
}
static void scene_turns(scene *s, int n) {
  for (int i = 0; i < n; i++) scene_turn(s);
}
static void scene_connect(scene *s, bool both, bool quiet) {
  trace.blocked = quiet; /* other scenes show it */
  for (int i = 0; i < 2; i++) {
    if (!i || both) s->send[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_SEND, 3);
    scene_check(s, i);
    if (i || both) s->recv[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_RECV, 3);
    scene_check(s, i);
  }
  scene_turns(s, 20);
  for (int i = 0; i < 2; i++)
    if (scene_conn(s, i)) ib_spoil_rest((hk_ib_conn *)(uintptr_t)scene_conn(s, i));
  trace.blocked = false;
}

/* The thread that dials again has ended, or has nothing to do. */
static void scene_await_redial(const scene *s) {
  for (int i = 0; i < 2; i++) {
    hk_ib_ctx *x = scene_conn(s, i)->ctx;
    for (bool redials = true; redials; sched_yield()) {
      pthread_mutex_lock(&x->lock);
      redials = x->redial.busy;
      pthread_mutex_unlock(&x->lock);
    }
  }
}

/* ---- links that grow ---- */

static hk_link *scene_small_link(scene *s, int rank, hk_link_kind kind) {
  const hk_link_key key = {.peer = (1 - rank), .kind = (uint8_t)kind, .channel = 3};
  hk_link *l = calloc(1, sizeof(net_made));
  l->small = calloc(SLOTS, HK_LINK_SMALL);
  l->small_bytes = HK_LINK_SMALL;
  ck_assert_int_eq(hk_transport_net.open(s->w->ranks[rank].state, &key, l), HK_OK);
  return l;
}
/* Gets its memory for large payloads if it needs that now. */
static void scene_may_grow(scene *s, int rank, hk_link *l, bool due) {
  if (l->payload || !due) return;
  char *at = s->grown + s->used;
  s->used += SLOTS * SLOT;
  trace_say("rank %d: its link that %s grows", rank, hk_link_sends((hk_link_kind)l->kind) ? "sends" : "receives");
  ck_assert_int_eq(hk_transport_net.payload->grow(l, at, true), HK_OK);
}

/* ---- messages ---- */

/* In the half of a rank's memory to which nothing is written. */
static unsigned char *scene_source(const scene *s, int rank, unsigned message, uint32_t bytes) {
  return s->memory[rank] + MEMORY / 2 + message * 7919u % (MEMORY / 2 - bytes);
}
static bool scene_send(scene *s, int me, uint32_t bytes) {
  static unsigned char data[2][SLOTS + 1][SLOT];
  if (s->rc[me] != HK_OK || !hk_link_can_send(s->send[me], bytes)) return false;
  scene_may_grow(s, me, s->send[me], bytes > HK_LINK_SMALL);
  unsigned char *from = data[me][s->sent[me] % (SLOTS + 1)];
  if (s->by_ref) from = scene_source(s, me, s->sent[me], bytes);
  if (!s->by_ref) fill(from, bytes, s->sent[me]);
  if (hk_link_on_gpu(s->send[me], bytes)) { /* as a kernel does */
    memcpy(hk_net_payload(s->send[me]->priv, s->sent[me]), from, bytes);
    hk_link_publish(s->send[me], bytes, 1000 + s->sent[me], 0);
  } else {
    ck_assert(net_try_send(s->send[me], from, bytes, 1000 + s->sent[me], s->by_ref));
  }
  s->sent[me]++;
  return true;
}
static void scene_receive(scene *s, int me) {
  static unsigned char data[SLOT];
  uint32_t bytes, signature;
  bool direct;
  if (s->rc[me] != HK_OK) return;
  scene_may_grow(s, me, s->recv[me], atomic_load(&s->recv[me]->needs_buffer));
  if (hk_link_can_recv(s->recv[me]) && hk_link_on_gpu(s->recv[me], hk_link_recv_slot(s->recv[me])->bytes)) {
    bytes = hk_link_recv_slot(s->recv[me])->bytes;
    signature = hk_link_recv_slot(s->recv[me])->signature;
    memcpy(data, hk_net_payload(s->recv[me]->priv, s->got[me]), bytes);
    hk_link_release(s->recv[me]);
  } else if (!net_try_recv(s->recv[me], data, SLOT, false, &bytes, &signature, &direct)) {
    return;
  }
  ck_assert_uint_eq(signature, 1000 + s->got[me]);
  if (!s->by_ref) ck_assert(filled(data, bytes, s->got[me]));
  if (s->by_ref) ck_assert(!memcmp(data, scene_source(s, 1 - me, s->got[me], bytes), bytes));
  trace_say("rank %d: got %u of %u bytes", me, s->got[me]++, bytes);
}

/* Each rank that sends fills the slots that it may, of these sizes in turn, until n have come. */
static void scene_exchange(scene *s, const uint32_t *sizes, unsigned nsizes, unsigned n) {
  const unsigned begin[2] = {s->sent[0], s->sent[1]};
  for (int step = 0; step < 3000; step++) {
    bool over = true;
    for (int i = 0; i < 2; i++) {
      while (s->send[i] && s->sent[i] - begin[i] < n && scene_send(s, i, sizes[(s->sent[i] + (unsigned)i) % nsizes]))
        continue;
      if (s->recv[i]) scene_receive(s, i);
      if (s->recv[i] && s->got[i] - begin[1 - i] < n && s->rc[i] == HK_OK) over = false;
    }
    if (over) return;
    scene_turn(s);
  }
  trace_say("no end");
}

static const uint32_t small[] = {0, 1, 48, 49, 224, 225, 4064, 100, 8},
                      large[] = {4065, 65536, 100, 200000, 262144, 70000};

/* ---- a GPU's memory ---- The test plays the GPU, whose memory is the host's, but only a peer memory module may
 * register it, and what a card writes there shows after a flush. */

static char *gpu_memory;
static size_t gpu_used;
static hk_status gpu_alloc(hk_device *d, size_t bytes, size_t zeroed, bool by_fd, hk_memory *out) {
  (void)d, (void)by_fd;
  *out = (hk_memory){.base = gpu_memory + gpu_used};
  trace_say("the GPU gives %zu bytes, %zu zeros", bytes, zeroed);
  gpu_used += (bytes + 65535) / 65536 * 65536;
  return HK_OK;
}
static hk_status gpu_release(hk_device *d, hk_memory *m) {
  (void)d;
  trace_say("the GPU takes memory back");
  *m = (hk_memory){0};
  return HK_OK;
}
static hk_status gpu_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  (void)d, (void)q;
  trace_say("the GPU copies %zu bytes", bytes);
  memcpy(to, from, bytes);
  return HK_OK;
}
static hk_status gpu_wait(hk_device *d, hk_queue q) {
  (void)d, (void)q;
  trace_say("the GPU is waited for");
  return HK_OK;
}
static void (*flush_cards)(void);
static hk_status gpu_flush(hk_device *d) {
  (void)d;
  trace_say("the GPU's driver flushes");
  flush_cards();
  return HK_OK;
}
static const hk_device_memory_ops gpu_memory_ops = {.alloc_shared = gpu_alloc, .release = gpu_release};
static const hk_device_card_ops gpu_card_ops = {.flush = gpu_flush};
static const hk_device_ops gpu_ops = {
    .copy = gpu_copy, .wait = gpu_wait, .memory = &gpu_memory_ops, .card = &gpu_card_ops};
static hk_device gpu = {.ops = &gpu_ops};

static hk_link *scene_gpu_link(scene *s, int rank, hk_link_kind kind, bool there) {
  const hk_link_key key = {.peer = (1 - rank), .kind = (uint8_t)kind, .channel = 3};
  hk_transport_state *state = s->w->ranks[rank].state;
  char *at;
  hk_link *l = calloc(1, sizeof(net_made));
  l->owner = state;
  if (there) {
    l->gpu = &gpu;
    ck_assert_int_eq(hk_transport_net.payload->prepare(state, &key, l), HK_OK);
    ck_assert_int_eq(hk_transport_net.payload->reserve(l, &at), HK_OK);
  }
  ck_assert_int_eq(hk_transport_net.open(state, &key, l), HK_OK);
  return l;
}

#endif
