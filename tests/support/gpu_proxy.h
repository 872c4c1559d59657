/* SPDX-License-Identifier: Apache-2.0 */
/* For test_gpu_proxy*.c: the proxy of one rank, with a device that is ordinary memory, and a network and kernels that
 * the test plays. */
#ifndef HK_TESTS_GPU_PROXY_H
#define HK_TESTS_GPU_PROXY_H
#include <sys/mman.h>
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "../../src/gpu/proxied.h"
#include "suite.h"

enum { SLOTS = 4, SLOT_BYTES = 4096, RANK = 0, PEER = 1, SIGNATURE = 0x9f03 };

#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    const hk_wait_env until_ = {.deadline_ns = hk_now_ns() + UINT64_C(20000000000)};                                   \
    hk_waiter w_;                                                                                                      \
    hk_wait_begin(&w_, &until_);                                                                                       \
    while (!(condition)) ck_assert_msg(hk_wait_pause(&w_) == HK_OK, "in vain: %s", #condition);                        \
  } while (0)

/* ---- a device ---- */

static _Atomic(int) copies;
static _Atomic(bool) *pin_after; /* fake_pin waits until this is set, unless it is NULL */
static inline hk_status fake_alloc_host(hk_device *d, size_t bytes, hk_memory *out) {
  (void)d;
  void *p = calloc(1, bytes);
  ck_assert_ptr_nonnull(p);
  *out = (hk_memory){.base = p, .host = p, .bytes = bytes, .kind = HK_MEMORY_PINNED};
  return HK_OK;
}
static inline hk_status fake_pin(hk_device *d, void *host, size_t bytes, hk_memory *out) {
  (void)d;
  if (pin_after) UNTIL(atomic_load(pin_after));
  *out = (hk_memory){.base = host, .host = host, .bytes = bytes, .kind = HK_MEMORY_REGISTERED};
  return HK_OK;
}
static inline hk_status fake_release(hk_device *d, hk_memory *m) {
  (void)d;
  if (m->kind == HK_MEMORY_PINNED) free(m->host);
  memset(m, 0, sizeof *m);
  return HK_OK;
}
static inline hk_status fake_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  (void)d;
  (void)q;
  memcpy(to, from, bytes);
  atomic_fetch_add(&copies, 1);
  return HK_OK;
}
static inline hk_status fake_wait(hk_device *d, hk_queue q) {
  (void)d;
  (void)q;
  return HK_OK;
}
static const hk_device_memory_ops fake_memory = {
    .alloc_host = fake_alloc_host, .pin = fake_pin, .release = fake_release};
static const hk_device_ops fake_ops = {.name = "fake", .copy = fake_copy, .wait = fake_wait, .memory = &fake_memory};

/* ---- a network ---- */

/* Where the data of the kernel's slots is, and what the transport moves. */
typedef enum memory { HOST, GPU, GPU_TAKEN_BACK, MEMORIES } memory;

typedef struct network {
  hk_transport_state base;
  memory kind;
  bool connecting;      /* links begin that way */
  hk_link *send, *recv; /* the proxy's */
  char *fifo[2], *gpu[2];
  _Atomic(uint64_t) takes, gives; /* slots that it may take from the sender, and give to the receiver */
  _Atomic(uint64_t) taken, given;
  _Atomic(int) fails;
  _Atomic(bool) settled;             /* the memory of both links stays as it is */
  uint32_t bytes[64], signature[64]; /* of what was taken */
  char data[64][64];
} network;

enum { CONTROL = 4096 };

static inline hk_status net_open(hk_transport_state *s, const hk_link_key *key, hk_link *link) {
  network *n = (network *)s;
  int i = key->kind == HK_LINK_RECV;
  bool gpu = link->gpu && n->kind != HOST;
  n->fifo[i] = mmap(NULL, CONTROL + SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(n->fifo[i] != MAP_FAILED);
  n->gpu[i] = calloc(SLOTS, SLOT_BYTES);
  *link = (hk_link){.slots = (hk_slot *)(void *)n->fifo[i],
                    .heads = (hk_head *)(void *)(n->fifo[i] + SLOTS * sizeof(hk_slot)),
                    .payload = gpu ? n->gpu[i] : n->fifo[i] + CONTROL,
                    .mask = SLOTS - 1,
                    .area_mask = SLOTS - 1,
                    .limit = i ? 0 : SLOTS,
                    .slot_bytes = SLOT_BYTES,
                    .nheads = 1,
                    .peer = key->peer,
                    .kind = key->kind,
                    .proxied = 1,
                    .gpu = gpu ? link->gpu : NULL,
                    .owner = s};
  atomic_init(&link->state, n->connecting ? HK_LINK_CONNECTING : HK_LINK_READY);
  *(i ? &n->recv : &n->send) = link;
  return HK_OK;
}

/* A card that takes no more of the GPU's memory. */
static inline void take_back(network *n, hk_link *l, int i) {
  if (!l || !l->gpu) return;
  l->gpu = NULL;
  l->payload = n->fifo[i] + CONTROL;
}

static inline char *payload_of(hk_link *l, uint64_t k, uint32_t bytes) {
  return l->gpu ? l->payload + (k & l->mask) * l->slot_bytes : hk_link_place(l, k, bytes);
}

static inline hk_status net_progress(hk_transport_state *s, bool *moved) {
  network *n = (network *)s;
  if (atomic_load(&n->fails)) return HK_FAIL(HK_ERR_REMOTE, "the fake network fails");
  if (n->kind == GPU_TAKEN_BACK) take_back(n, n->send, 0), take_back(n, n->recv, 1); /* before the first slot */
  if (n->send && n->recv) atomic_store(&n->settled, true);
  for (uint64_t k = atomic_load(&n->taken); n->send && k < atomic_load(&n->takes); k++) {
    const hk_slot *slot = &n->send->slots[k & n->send->mask];
    if (atomic_load(&slot->seq) != (uint32_t)(k + 1)) break;
    n->bytes[k] = slot->bytes;
    n->signature[k] = slot->signature;
    memcpy(n->data[k], payload_of(n->send, k, slot->bytes), sizeof n->data[k]);
    atomic_store(&n->send->heads->value, k + 1);
    atomic_store(&n->taken, k + 1);
    *moved = true;
  }
  for (uint64_t k = atomic_load(&n->given); n->recv && k < atomic_load(&n->gives); k++) {
    hk_slot *slot = &n->recv->slots[k & n->recv->mask];
    if (k - atomic_load(&n->recv->heads->value) >= SLOTS) break;
    memset(payload_of(n->recv, k, 64), (int)k + 1, 64);
    slot->bytes = 64;
    slot->signature = SIGNATURE;
    slot->flags = 0;
    n->recv->waiting = HK_LINK_NO_WAIT;
    atomic_store(&slot->seq, (uint32_t)(k + 1));
    atomic_store(&n->given, k + 1);
    *moved = true;
  }
  return HK_OK;
}

static inline void net_close(hk_link *link) {
  network *n = (network *)link->owner;
  int i = link->kind == HK_LINK_RECV;
  munmap(n->fifo[i], CONTROL + SLOTS * SLOT_BYTES);
  free(n->gpu[i]);
}

static const hk_transport_proxied fake_proxied = {.progress = net_progress};
static const hk_transport fake_transport = {
    .name = "fake", .open = net_open, .close = net_close, .proxied = &fake_proxied};

/* ---- one rank ---- */

typedef struct world {
  network net;
  hk_device device;
  hk_transport_env env;
  hk_wait_env wait;
  _Atomic(int) failure, checks, refuse, failed, over, asked;
  hk_gpu_proxy *proxy;
  hk_gpu_link send, recv; /* as the kernels see them */
} world;

static inline hk_status over(void *arg, bool *done) {
  atomic_fetch_add(&((world *)arg)->asked, 1);
  *done = atomic_load(&((world *)arg)->over);
  return HK_OK;
}
static inline hk_status check(void *arg) {
  world *w = arg;
  atomic_fetch_add(&w->checks, 1);
  return atomic_load(&w->refuse) ? HK_FAIL(HK_ERR_REMOTE, "the watchdog ends it") : HK_OK;
}
static inline hk_status pinned(void *arg, bool payload, size_t bytes, hk_memory *out) {
  (void)payload;
  return fake_alloc_host(&((world *)arg)->device, bytes, out);
}
static inline void unpinned(void *arg, hk_memory *m) { (void)fake_release(&((world *)arg)->device, m); }
static inline void failed(void *arg, hk_status rc) { atomic_store(&((world *)arg)->failed, (int)rc); }

static inline void begin(world *w, memory kind) {
  static const hk_link_key keys[] = {{.peer = PEER, .kind = HK_LINK_SEND, .channel = 3},
                                     {.peer = PEER, .kind = HK_LINK_RECV, .channel = 3}};
  w->net.base = (hk_transport_state){&fake_transport, &w->env};
  w->net.kind = kind;
  w->device.ops = &fake_ops;
  w->env = (hk_transport_env){
      .settings = hk_settings_now(), .rank = RANK, .nranks = 2, .slot_bytes = SLOT_BYTES, .nslots = SLOTS};
  w->wait = (hk_wait_env){.failure = &w->failure, .spins = 10};
  const hk_gpu_proxy_env e = {.env = &w->env,
                              .device = &w->device,
                              .sends_direct = true,
                              .wait = &w->wait,
                              .over = over,
                              .check = check,
                              .failed = failed,
                              .pinned = pinned,
                              .unpinned = unpinned,
                              .arg = w};
  atomic_store(&copies, 0);
  ck_assert_int_eq(hk_gpu_proxy_new(&e, &w->proxy), HK_OK);
  ck_assert_int_eq(hk_gpu_proxy_add(w->proxy, &w->net.base, &keys[0], &w->send), HK_OK);
  /* The GPU's memory is taken back after the second link is open and before it is bound. */
  pin_after = kind == GPU_TAKEN_BACK ? &w->net.settled : NULL;
  ck_assert_int_eq(hk_gpu_proxy_add(w->proxy, &w->net.base, &keys[1], &w->recv), HK_OK);
  pin_after = NULL;
}

static inline hk_gpu_proxy_link look(world *w, bool sends) {
  hk_gpu_proxy_link l[2], untouched;
  memset(l, 0xa5, sizeof l);
  memcpy(&untouched, &l[1], sizeof untouched);
  ck_assert_int_eq(hk_gpu_proxy_look(w->proxy, l, 1), 2); /* how many there are, not how many fit */
  ck_assert_mem_eq(&l[1], &untouched, sizeof untouched);
  ck_assert_int_eq(hk_gpu_proxy_look(w->proxy, l, 2), 2);
  ck_assert_int_ne(l[0].sends, l[1].sends);
  return l[l[1].sends == sends];
}

static inline void check_text(world *w, bool sends, const char *part) {
  char text[240];
  hk_gpu_proxy_link l = look(w, sends);
  hk_gpu_proxy_describe(&l, text, sizeof text);
  ck_assert_msg(strstr(text, part), "no \"%s\" in \"%s\"", part, text);
}

/* ---- the kernels ---- */

static inline uint64_t *word_of(const hk_gpu_link *l, uint64_t k) { return l->word + k % SLOTS * HK_GPU_WORD_STRIDE; }
static inline char *data_of(const hk_gpu_link *l, uint64_t k) { return l->data + k % SLOTS * SLOT_BYTES; }
static inline void leave_note(const hk_gpu_link *l, uint64_t k, uint32_t note) {
  __atomic_store_n((uint32_t *)(void *)(word_of(l, k) + 1), note, __ATOMIC_RELAXED);
}

/* Slot k, from 0; the credit is the test's to wait for. */
static inline void send_slot(world *w, uint64_t k, uint32_t bytes) {
  memset(data_of(&w->send, k), (int)k + 1, 64);
  leave_note(&w->send, k, bytes);
  __atomic_store_n(word_of(&w->send, k), (k + 1) << 32 | SIGNATURE, __ATOMIC_RELEASE);
}
static inline bool has_credit(const world *w, uint64_t k) {
  return k < __atomic_load_n(w->send.head, __ATOMIC_ACQUIRE) + SLOTS;
}
static inline bool has_slot(const world *w, uint64_t k) {
  return __atomic_load_n(word_of(&w->recv, k), __ATOMIC_ACQUIRE) == ((k + 1) << 32 | SIGNATURE);
}

/* The same in lines, as the kernels' link.h and move.h have them; the lines are stored apart. */
static inline void post_lines(const hk_gpu_link *l, uint64_t k, uint32_t bytes) {
  const uint32_t number = (uint32_t)(k + 1);
  __atomic_store_n(word_of(l, k) + 1, (uint64_t)number << 32 | bytes, __ATOMIC_RELAXED);
  __atomic_store_n(word_of(l, k), (uint64_t)(number ^ HK_GPU_IN_LINES) << 32 | SIGNATURE, __ATOMIC_RELAXED);
}
static inline void give_back(const world *w, uint64_t k) { __atomic_store_n(w->recv.head, k + 1, __ATOMIC_RELEASE); }
/* The world of a test, and its proxy, which ends before the test does or with it. */
static world *w;
static inline void setup(void) { w = calloc(1, sizeof *w); }
static inline void end_proxy(void) {
  hk_gpu_proxy_end(w->proxy, false);
  w->proxy = NULL;
}
static inline void teardown(void) {
  if (w->proxy) end_proxy();
  free(w);
}
#endif
