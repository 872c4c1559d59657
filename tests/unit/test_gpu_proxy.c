/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy of GPU links alone: the test plays the kernels on a device that is ordinary memory, and the network. */
#include <check.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../src/base/wait.h"
#include "../../src/gpu/lines.h"
#include "../../src/gpu/pumped.h"
#include "../support/suite.h"

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
static hk_status fake_alloc_host(hk_device *d, size_t bytes, hk_memory *out) {
  (void)d;
  void *p = calloc(1, bytes);
  ck_assert_ptr_nonnull(p);
  *out = (hk_memory){.base = p, .host = p, .bytes = bytes, .kind = HK_MEMORY_PINNED};
  return HK_OK;
}
static hk_status fake_pin(hk_device *d, void *host, size_t bytes, hk_memory *out) {
  (void)d;
  if (pin_after) UNTIL(atomic_load(pin_after));
  *out = (hk_memory){.base = host, .host = host, .bytes = bytes, .kind = HK_MEMORY_REGISTERED};
  return HK_OK;
}
static hk_status fake_release(hk_device *d, hk_memory *m) {
  (void)d;
  if (m->kind == HK_MEMORY_PINNED) free(m->host);
  memset(m, 0, sizeof *m);
  return HK_OK;
}
static hk_status fake_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  (void)d;
  (void)q;
  memcpy(to, from, bytes);
  atomic_fetch_add(&copies, 1);
  return HK_OK;
}
static hk_status fake_wait(hk_device *d, hk_queue q) {
  (void)d;
  (void)q;
  return HK_OK;
}
static const hk_device_ops fake_ops = {.name = "fake",
                                       .alloc_host = fake_alloc_host,
                                       .pin = fake_pin,
                                       .release = fake_release,
                                       .copy = fake_copy,
                                       .wait = fake_wait};

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

static hk_status net_open(hk_transport_state *s, const hk_link_key *key, hk_link *link) {
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
                    .pumped = 1,
                    .gpu = gpu ? link->gpu : NULL,
                    .owner = s};
  atomic_init(&link->state, n->connecting ? HK_LINK_CONNECTING : HK_LINK_READY);
  *(i ? &n->recv : &n->send) = link;
  return HK_OK;
}

/* A card that takes no more of the GPU's memory. */
static void take_back(network *n, hk_link *l, int i) {
  if (!l || !l->gpu) return;
  l->gpu = NULL;
  l->payload = n->fifo[i] + CONTROL;
}

static char *payload_of(hk_link *l, uint64_t k, uint32_t bytes) {
  return l->gpu ? l->payload + (k & l->mask) * l->slot_bytes : hk_link_place(l, k, bytes);
}

static hk_status net_progress(hk_transport_state *s, bool *moved) {
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

static void net_close(hk_link *link) {
  network *n = (network *)link->owner;
  int i = link->kind == HK_LINK_RECV;
  munmap(n->fifo[i], CONTROL + SLOTS * SLOT_BYTES);
  free(n->gpu[i]);
}

static const hk_transport fake_transport = {
    .name = "fake", .open = net_open, .progress = net_progress, .close = net_close};

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

static hk_status over(void *arg, bool *done) {
  atomic_fetch_add(&((world *)arg)->asked, 1);
  *done = atomic_load(&((world *)arg)->over);
  return HK_OK;
}
static hk_status check(void *arg) {
  world *w = arg;
  atomic_fetch_add(&w->checks, 1);
  return atomic_load(&w->refuse) ? HK_FAIL(HK_ERR_REMOTE, "the watchdog ends it") : HK_OK;
}
static hk_status pinned(void *arg, bool payload, size_t bytes, hk_memory *out) {
  (void)payload;
  return fake_alloc_host(&((world *)arg)->device, bytes, out);
}
static void unpinned(void *arg, hk_memory *m) { (void)fake_release(&((world *)arg)->device, m); }
static void failed(void *arg, hk_status rc) { atomic_store(&((world *)arg)->failed, (int)rc); }

static void begin(world *w, memory kind) {
  static const hk_link_key keys[] = {{.peer = PEER, .kind = HK_LINK_SEND, .channel = 3},
                                     {.peer = PEER, .kind = HK_LINK_RECV, .channel = 3}};
  w->net.base = (hk_transport_state){&fake_transport, &w->env};
  w->net.kind = kind;
  w->device.ops = &fake_ops;
  w->env = (hk_transport_env){.rank = RANK, .nranks = 2, .slot_bytes = SLOT_BYTES, .nslots = SLOTS};
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

static hk_gpu_proxy_link look(world *w, bool sends) {
  hk_gpu_proxy_link l[2], untouched;
  memset(l, 0xa5, sizeof l);
  memcpy(&untouched, &l[1], sizeof untouched);
  ck_assert_int_eq(hk_gpu_proxy_look(w->proxy, l, 1), 2); /* how many there are, not how many fit */
  ck_assert_mem_eq(&l[1], &untouched, sizeof untouched);
  ck_assert_int_eq(hk_gpu_proxy_look(w->proxy, l, 2), 2);
  ck_assert_int_ne(l[0].sends, l[1].sends);
  return l[l[1].sends == sends];
}

static void check_text(world *w, bool sends, const char *part) {
  char text[240];
  hk_gpu_proxy_link l = look(w, sends);
  hk_gpu_proxy_describe(&l, text, sizeof text);
  ck_assert_msg(strstr(text, part), "no \"%s\" in \"%s\"", part, text);
}

/* ---- the kernels ---- */

static uint64_t *word_of(const hk_gpu_link *l, uint64_t k) { return l->word + k % SLOTS * HK_GPU_WORD_STRIDE; }
static char *data_of(const hk_gpu_link *l, uint64_t k) { return l->data + k % SLOTS * SLOT_BYTES; }
static void leave_note(const hk_gpu_link *l, uint64_t k, uint32_t note) {
  __atomic_store_n((uint32_t *)(void *)(word_of(l, k) + 1), note, __ATOMIC_RELAXED);
}

/* Slot k, from 0; the credit is the test's to wait for. */
static void send_slot(world *w, uint64_t k, uint32_t bytes) {
  memset(data_of(&w->send, k), (int)k + 1, 64);
  leave_note(&w->send, k, bytes);
  __atomic_store_n(word_of(&w->send, k), (k + 1) << 32 | SIGNATURE, __ATOMIC_RELEASE);
}
static bool has_credit(const world *w, uint64_t k) {
  return k < __atomic_load_n(w->send.head, __ATOMIC_ACQUIRE) + SLOTS;
}
static bool has_slot(const world *w, uint64_t k) {
  return __atomic_load_n(word_of(&w->recv, k), __ATOMIC_ACQUIRE) == ((k + 1) << 32 | SIGNATURE);
}

/* The same in lines, as the kernels' link.h and move.h have them: each word of data, and beside it the slot's flag. */
static uint32_t flag_of(uint64_t k) { return hk_gpu_line_flag(k + 1, SIGNATURE); }
static uint64_t *lines_of(const hk_gpu_link *l, uint64_t k) {
  return (uint64_t *)(void *)(l->lines + k % SLOTS * 2 * HK_GPU_LL_NET_MAX);
}
static void store_line(const hk_gpu_link *l, uint64_t k, uint32_t i) {
  const uint32_t data = (uint32_t)(k + 1) * 0x01010101u;
  __atomic_store_n(lines_of(l, k) + i, (uint64_t)flag_of(k) << 32 | data, __ATOMIC_RELAXED);
}
static void post_lines(const hk_gpu_link *l, uint64_t k, uint32_t bytes) {
  const uint32_t number = (uint32_t)(k + 1);
  __atomic_store_n(word_of(l, k) + 1, (uint64_t)number << 32 | bytes, __ATOMIC_RELAXED);
  __atomic_store_n(word_of(l, k), (uint64_t)(number ^ HK_GPU_IN_LINES) << 32 | SIGNATURE, __ATOMIC_RELAXED);
}
/* Has the receiver all lines of slot k, and in them what the network gave? */
static bool has_lines(const hk_gpu_link *l, uint64_t k, uint32_t bytes) {
  char data[HK_GPU_LL_NET_MAX];
  if (!hk_gpu_lines_take(lines_of(l, k), flag_of(k), data, bytes)) return false;
  for (uint32_t i = 0; i < bytes; i++) ck_assert_int_eq(data[i], (char)(k + 1));
  return true;
}

static void give_back(const world *w, uint64_t k) { __atomic_store_n(w->recv.head, k + 1, __ATOMIC_RELEASE); }

/* ---- tests ---- */

/* Each state of a sender, one slot. */
START_TEST(sender_states) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  hk_gpu_proxy_link l = look(w, true);
  ck_assert(l.waits == HK_PROXY_WAITS_KERNEL && l.peer == PEER && l.channel == 3 && l.credits == SLOTS && l.done == 0);
  send_slot(w, 0, 64);
  UNTIL(look(w, true).done == 1);
  l = look(w, true);
  ck_assert(l.waits == HK_PROXY_WAITS_PEER && l.head == 0 && l.credits == SLOTS - 1);
  check_text(w, true, "sends to rank 1, channel 3: ready, 1 slots done, head 0, 3 credits");
  check_text(w, true, "waits for the peer to give slots back");
  char text[400];
  hk_gpu_proxy_report(w->proxy, text, sizeof text);
  ck_assert_msg(strstr(text, "; it sends to rank 1") == text && !strstr(text, "receives"), "%s", text);
  atomic_store(&w->net.takes, 1);
  UNTIL(look(w, true).waits == HK_PROXY_WAITS_KERNEL);
  l = look(w, true);
  ck_assert(l.head == 1 && l.credits == SLOTS && (l.word >> 32) == 0);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* Each state of a receiver, one slot. */
START_TEST(receiver_states) {
  world *w = calloc(1, sizeof *w);
  char who[16];
  begin(w, HOST);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_NOTHING);
  hk_gpu_proxy_waits_for(w->proxy, who, sizeof who);
  ck_assert_str_eq(who, "");
  leave_note(&w->recv, 0, 1);
  UNTIL((hk_gpu_proxy_waits_for(w->proxy, who, sizeof who), who[0]));
  ck_assert_str_eq(who, "1");
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_PEER);
  check_text(w, false,
             "receives from rank 1, channel 3: ready, 0 slots done, head 0, 4 credits, word 0:00000000, note 1");
  check_text(w, false, "waits for the peer's next slot");
  atomic_store(&w->net.gives, 1);
  UNTIL(has_slot(w, 0));
  UNTIL(look(w, false).done == 1);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_KERNEL);
  check_text(w, false, "waits for the kernel to give slots back");
  give_back(w, 0);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_NOTHING);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* Many slots in both directions, in order, with their data, wherever that is. */
START_TEST(stream) {
  enum { N = 5 * SLOTS + 1 };
  world *w = calloc(1, sizeof *w);
  begin(w, (memory)_i);
  UNTIL(atomic_load(&w->net.settled)); /* a slot sent before would be in the memory that is taken back */
  atomic_store(&w->net.takes, N);
  atomic_store(&w->net.gives, N);
  for (uint64_t k = 0; k < N; k++) {
    UNTIL(has_credit(w, k));
    send_slot(w, k, k % 2 ? 64 : HK_SLOT_INLINE);
    leave_note(&w->recv, k, (uint32_t)k + 1);
    UNTIL(has_slot(w, k));
    for (int i = 0; i < 64; i++) ck_assert_int_eq(data_of(&w->recv, k)[i], (char)(k + 1));
    give_back(w, k);
  }
  UNTIL(atomic_load(&w->net.taken) == N);
  for (uint64_t k = 0; k < N; k++) {
    ck_assert_uint_eq(w->net.bytes[k], k % 2 ? 64 : HK_SLOT_INLINE);
    ck_assert_uint_eq(w->net.signature[k], SIGNATURE);
    for (int i = 0; i < HK_SLOT_INLINE; i++) ck_assert_int_eq(w->net.data[k][i], (char)(k + 1));
  }
  ck_assert_int_eq(atomic_load(&copies), _i == GPU_TAKEN_BACK ? 2 * N : 0);
  hk_gpu_proxy_end(w->proxy, false);
  ck_assert_int_eq(atomic_load(&w->failed), HK_OK);
  free(w);
}
END_TEST

/* Lines of every length: what goes in comes out, and nothing is written beside it; one that is missing is noticed. */
START_TEST(lines) {
  static _Alignas(16) uint64_t line[HK_GPU_LL_NET_MAX / 4 + 2];
  static unsigned char from[HK_GPU_LL_NET_MAX], to[HK_GPU_LL_NET_MAX + 1];
  for (uint32_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)(i * 7 + 3);
  for (uint32_t n = 1; n <= sizeof from; n += n < 70 || n > sizeof from - 20 ? 1 : 61) {
    const uint32_t words = (n + 7) / 8 * 2, flag = hk_gpu_line_flag(n, n);
    memset(line, 0, sizeof line);
    memset(to, 0x5a, sizeof to);
    hk_gpu_lines_give(line, flag, from, n);
    ck_assert_uint_eq(line[words - 1] >> 32, flag);
    ck_assert_uint_eq(line[words], 0);
    ck_assert(hk_gpu_lines_take(line, flag, to, n));
    ck_assert_mem_eq(to, from, n);
    ck_assert_int_eq(to[n], 0x5a);
    for (uint32_t i = 0; i < words; i += i < 8 || i + 8 > words ? 1 : 97) {
      const uint64_t kept = line[i];
      line[i] ^= (uint64_t)1 << (32 + i % 32);
      ck_assert(!hk_gpu_lines_take(line, flag, to, n));
      line[i] = kept;
    }
  }
  hk_gpu_lines_refresh(line, 77, HK_GPU_LL_NET_MAX);
  for (uint32_t i = 0; i < HK_GPU_LL_NET_MAX / 4; i++) ck_assert_uint_eq(line[i], (uint64_t)77 << 32);
  ck_assert_uint_eq(line[HK_GPU_LL_NET_MAX / 4], 0);
}
END_TEST

/* A slot in lines is not sent before all of them are there, in whatever order they come. */
START_TEST(lines_come_late) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  ck_assert_ptr_nonnull(w->send.lines);
  atomic_store(&w->net.takes, 8);
  post_lines(&w->send, 0, 20); /* six words: one more than the data has */
  for (uint32_t i = 6; i-- > 0;) {
    atomic_fetch_add(&w->net.gives, 1); /* what is given back shows that the proxy has looked at the sender's end */
    UNTIL(has_slot(w, 5 - i));
    ck_assert_int_eq(atomic_load(&w->net.taken), 0);
    ck_assert(look(w, true).waits == HK_PROXY_WAITS_PROXY && look(w, true).in_lines == 0);
    give_back(w, 5 - i);
    store_line(&w->send, 0, i);
  }
  UNTIL(atomic_load(&w->net.taken) == 1);
  ck_assert(w->net.bytes[0] == 20 && w->net.signature[0] == SIGNATURE);
  for (int i = 0; i < 20; i++) ck_assert_int_eq(w->net.data[0][i], 1);
  hk_gpu_proxy_link l = look(w, true);
  ck_assert(l.in_lines == 1 && l.done == 1 && l.word >> 32 == 0);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* Slots and lines in any order over one link, at both ends; a length of its own for each. */
START_TEST(lines_and_slots) {
  enum { N = 9 * SLOTS + 1 };
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  atomic_store(&w->net.takes, N);
  atomic_store(&w->net.gives, N);
  for (uint64_t k = 0; k < N; k++) {
    const uint32_t bytes = (uint32_t)(k * 11 % 64) + 1, words = (bytes + 7) / 8 * 2;
    UNTIL(has_credit(w, k));
    if (k * k % 5 < 2) {
      send_slot(w, k, bytes);
    } else {
      for (uint32_t i = 0; i < words; i++) store_line(&w->send, k, i);
      post_lines(&w->send, k, bytes);
    }
    leave_note(&w->recv, k, (uint32_t)k + 1);
    if (k % 2)
      UNTIL(has_slot(w, k));
    else
      UNTIL(has_lines(&w->recv, k, 64));
    give_back(w, k);
  }
  UNTIL(atomic_load(&w->net.taken) == N);
  uint64_t in_lines = 0;
  for (uint64_t k = 0; k < N; k++) {
    in_lines += k * k % 5 >= 2;
    ck_assert_uint_eq(w->net.bytes[k], k * 11 % 64 + 1);
    ck_assert_uint_eq(w->net.signature[k], SIGNATURE);
    for (uint32_t i = 0; i < w->net.bytes[k]; i++) ck_assert_int_eq(w->net.data[k][i], (char)(k + 1));
  }
  ck_assert_uint_eq(look(w, true).in_lines, in_lines);
  ck_assert_int_eq(atomic_load(&w->failed), HK_OK);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* Only the end whose small slots the CPU has gets lines. */
START_TEST(lines_need_host_memory) {
  world *w = calloc(1, sizeof *w);
  begin(w, GPU);
  ck_assert_ptr_null(w->send.lines);
  ck_assert_ptr_null(w->recv.lines);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* The receiver's end, which the proxy's thread leaves alone from now on. */
static hk_gpu_pumped *still_receiver(world *w) {
  hk_gpu_pumped *f = hk_gpu_proxy_links(w->proxy);
  while (f->link.kind != HK_LINK_RECV) f = f->next;
  hk_gpu_proxy_pause(w->proxy);
  return f;
}
/* The network's slot k, which is handed to the kernel. */
static void hand_over(world *w, hk_gpu_pumped *f, uint64_t k, uint32_t bytes) {
  const hk_gpu_proxy_env e = {.env = &w->env, .device = &w->device};
  hk_slot *slot = &f->link.slots[k % SLOTS];
  bool moved = false;
  memset(hk_link_place(&f->link, k, bytes), (int)k + 1, bytes);
  slot->bytes = bytes;
  slot->signature = SIGNATURE;
  atomic_store(&slot->seq, (uint32_t)(k + 1));
  ck_assert_int_eq(hk_gpu_pumped_after(&e, f, &moved), HK_OK);
  ck_assert(moved);
}

/* Numbers in flags repeat after 2^20 slots. By then no line has the old flag, though only short slots came since; nor
 * after a suspension, which may leave anything in the memory. */
START_TEST(old_lines) {
  enum { ROUND = 1 << (32 - HK_GPU_LL_TAG_BITS) };
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  hk_gpu_pumped *f = still_receiver(w);
  const uint64_t first = 5 * SLOTS + 1;
  f->link.done = first;
  hand_over(w, f, first, 3000);
  ck_assert(has_lines(&w->recv, first, 3000));
  for (uint64_t k = first + 1; k < first + ROUND; k++) hand_over(w, f, k, 8);
  ck_assert_uint_eq(flag_of(first), flag_of(first + ROUND));
  uint64_t *line = lines_of(&w->recv, first);
  for (uint32_t i = 0; i < HK_GPU_LL_NET_MAX / 4; i++) ck_assert_uint_ne(line[i] >> 32, flag_of(first + ROUND));
  hand_over(w, f, first + ROUND, 3000);
  ck_assert(has_lines(&w->recv, first + ROUND, 3000));
  memset(w->recv.lines, 0x77, (size_t)SLOTS * 2 * HK_GPU_LL_NET_MAX);
  hk_gpu_pumped_clear_lines(f);
  for (uint64_t k = 0; k < SLOTS; k++)
    for (uint32_t i = 0; i < HK_GPU_LL_NET_MAX / 4; i++)
      ck_assert_uint_eq(lines_of(&w->recv, k)[i], (uint64_t)hk_gpu_line_flag(f->link.done, 0) << 32);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* A slot that has no lines, because it is empty or too long, shows its tag in the first one all the same. */
START_TEST(lines_of_another_call) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  hk_gpu_pumped *f = still_receiver(w);
  static const uint32_t sizes[] = {0, HK_GPU_LL_NET_MAX + 1, HK_GPU_LL_NET_MAX};
  for (uint64_t k = 0; k < 3; k++) {
    hand_over(w, f, k, sizes[k]);
    const uint64_t *line = lines_of(&w->recv, k);
    ck_assert_uint_eq(line[0] >> 32, flag_of(k));
    ck_assert_uint_eq(line[1] >> 32, flag_of(k));
    ck_assert_int_eq(line[2] >> 32 == flag_of(k), sizes[k] == HK_GPU_LL_NET_MAX);
  }
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* A word that is not the next slot's moves nothing. */
START_TEST(old_word) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  atomic_store(&w->net.takes, 8);
  __atomic_store_n(word_of(&w->send, 0), UINT64_C(5) << 32 | SIGNATURE, __ATOMIC_RELEASE);
  send_slot(w, 1, 64); /* slot 2 before slot 1 */
  leave_note(&w->recv, 0, 7);
  atomic_store(&w->net.gives, 1);
  UNTIL(has_slot(w, 0)); /* the proxy has looked at all links by now */
  ck_assert_int_eq(atomic_load(&w->net.taken), 0);
  ck_assert_int_eq(look(w, true).done, 0);
  send_slot(w, 0, 64);
  UNTIL(atomic_load(&w->net.taken) == 2);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

START_TEST(connecting) {
  world *w = calloc(1, sizeof *w);
  w->net.connecting = true;
  begin(w, HOST);
  ck_assert_int_eq(look(w, true).waits, HK_PROXY_WAITS_CONNECTION);
  check_text(w, true, "connecting");
  check_text(w, false, "waits for the connection");
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* The end waits until the network has all that the kernels have sent. */
static void *take_later(void *arg) {
  world *w = arg;
  UNTIL(look(w, true).done == 2);
  atomic_store(&w->net.takes, 2);
  return NULL;
}
START_TEST(ends_drained) {
  world *w = calloc(1, sizeof *w);
  pthread_t thread;
  begin(w, HOST);
  send_slot(w, 0, 64);
  send_slot(w, 1, 64);
  ck_assert_int_eq(pthread_create(&thread, NULL, take_later, w), 0);
  pthread_join(thread, NULL);
  hk_gpu_proxy_end(w->proxy, false);
  ck_assert_int_eq(atomic_load(&w->net.taken), 2);
  free(w);
}
END_TEST

/* A proxy that sleeps, as all launches have ended, is woken by the next one; without launches nothing is watched. */
START_TEST(sleeps) {
  world *w = calloc(1, sizeof *w);
  atomic_store(&w->over, 1);
  atomic_store(&w->net.takes, 4);
  begin(w, HOST);
  for (uint64_t k = 0; k < 4; k++) {
    send_slot(w, k, 64);
    hk_gpu_proxy_wake(w->proxy, false);
    UNTIL(atomic_load(&w->net.taken) == k + 1);
  }
  const uint64_t until = hk_now_ns() + UINT64_C(300000000);
  UNTIL(hk_now_ns() > until);
  ck_assert_int_eq(atomic_load(&w->checks), 0);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* How often the proxy's thread has gone to sleep so far; a yield is no sleep. */
static long sleeps_so_far(void) {
  char path[300], line[128] = "";
  long count = -1;
  DIR *threads = opendir("/proc/self/task");
  ck_assert_ptr_nonnull(threads);
  for (struct dirent *d; count < 0 && (d = readdir(threads));) {
    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", d->d_name);
    FILE *f = fopen(path, "re");
    bool proxy = f && fgets(line, sizeof line, f) && strstr(line, "hocket-proxy");
    while (proxy && count < 0 && fgets(line, sizeof line, f))
      (void)sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    if (f) fclose(f);
  }
  closedir(threads);
  ck_assert_int_ge(count, 0);
  return count;
}

/* While a launch runs, its next slot does not wait for a proxy that sleeps. A test that is stopped for a tenth of a
 * second sees a sleep all the same: the best of several looks counts. */
START_TEST(stays_awake_while_a_launch_runs) {
  world *w = calloc(1, sizeof *w);
  long least = LONG_MAX;
  atomic_store(&w->net.takes, 20);
  begin(w, HOST);
  for (uint64_t k = 0; k < 20 && least > 0; k++) {
    send_slot(w, k, 64);
    UNTIL(atomic_load(&w->net.taken) == k + 1 && has_credit(w, k));
    const uint64_t from = hk_now_ns() + UINT64_C(2000000), until = from + UINT64_C(20000000);
    UNTIL(hk_now_ns() > from);
    long before = sleeps_so_far();
    UNTIL(hk_now_ns() > until);
    long count = sleeps_so_far() - before;
    if (count < least) least = count;
  }
  ck_assert_int_eq(least, 0);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* A graph is launched without a call: once one was captured, the end of all launches no longer lets it sleep long. */
START_TEST(looks_on_for_graphs) {
  world *w = calloc(1, sizeof *w);
  atomic_store(&w->over, 1);
  begin(w, HOST);
  hk_gpu_proxy_wake(w->proxy, true);
  int checks = atomic_load(&w->checks);
  UNTIL(atomic_load(&w->checks) >= checks + 2); /* by the same thread: what it asked before is answered */
  int asked = atomic_load(&w->asked);
  UNTIL(atomic_load(&w->checks) >= checks + 5);
  ck_assert_int_eq(atomic_load(&w->asked), asked);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* While launches run without a slot the watchdog looks, and may end it. */
START_TEST(watched) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  UNTIL(atomic_load(&w->checks) >= 2);
  ck_assert_int_eq(atomic_load(&w->failed), HK_OK);
  atomic_store(&w->refuse, 1);
  UNTIL(atomic_load(&w->failed));
  ck_assert_int_eq(atomic_load(&w->failed), HK_ERR_REMOTE);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* What ends a proxy is reported: the network, a length that no slot has. */
START_TEST(fails) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  if (_i == 2)
    post_lines(&w->send, 0, HK_GPU_LL_NET_MAX + 1);
  else if (_i)
    send_slot(w, 0, SLOT_BYTES + 1);
  else
    atomic_store(&w->net.fails, 1);
  UNTIL(atomic_load(&w->failed));
  ck_assert_int_eq(atomic_load(&w->failed), _i ? HK_ERR_INTERNAL : HK_ERR_REMOTE);
  hk_gpu_proxy_end(w->proxy, false);
  free(w);
}
END_TEST

/* A failure elsewhere ends it, whatever is still to be sent. */
START_TEST(ends_with_failure) {
  world *w = calloc(1, sizeof *w);
  begin(w, HOST);
  send_slot(w, 0, 64);
  UNTIL(look(w, true).done == 1);
  atomic_store(&w->failure, HK_ERR_REMOTE);
  hk_gpu_proxy_end(w->proxy, false);
  ck_assert_int_eq(atomic_load(&w->net.taken), 0);
  free(w);
}
END_TEST

int main(void) {
  Suite *s = suite_create("gpu_proxy");
  TCase *t = tcase_create("gpu_proxy");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, sender_states);
  tcase_add_test(t, receiver_states);
  tcase_add_loop_test(t, stream, 0, MEMORIES);
  tcase_add_test(t, lines);
  tcase_add_test(t, lines_come_late);
  tcase_add_test(t, lines_and_slots);
  tcase_add_test(t, lines_need_host_memory);
  tcase_add_test(t, old_lines);
  tcase_add_test(t, lines_of_another_call);
  tcase_add_test(t, old_word);
  tcase_add_test(t, connecting);
  tcase_add_test(t, ends_drained);
  tcase_add_test(t, sleeps);
  tcase_add_test(t, stays_awake_while_a_launch_runs);
  tcase_add_test(t, looks_on_for_graphs);
  tcase_add_test(t, watched);
  tcase_add_loop_test(t, fails, 0, 3);
  tcase_add_test(t, ends_with_failure);
  suite_add_tcase(s, t);
  return suite_run(s);
}
