/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy of GPU links alone: slots in LL lines. The test plays the kernels, the device and the network. */
#include "../../src/gpu/lines.h"
#include "../support/gpu_proxy.h"
#include "../support/suite.h"

/* Slots in lines, as the kernels' link.h and move.h have them: each word of data, and next to it the slot's flag. */
static uint32_t flag_of(uint64_t k) { return hk_gpu_line_flag(k + 1, SIGNATURE); }
static uint64_t *lines_of(const hk_gpu_link *l, uint64_t k) {
  return (uint64_t *)(void *)(l->lines + k % SLOTS * 2 * HK_GPU_LL_NET_MAX);
}
static void store_line(const hk_gpu_link *l, uint64_t k, uint32_t i) {
  const uint32_t data = (uint32_t)(k + 1) * 0x01010101u;
  __atomic_store_n(lines_of(l, k) + i, (uint64_t)flag_of(k) << 32 | data, __ATOMIC_RELAXED);
}
/* Has the receiver all lines of slot k, and in them what the network gave? */
static bool has_lines(const hk_gpu_link *l, uint64_t k, uint32_t bytes) {
  char data[HK_GPU_LL_NET_MAX];
  if (!hk_gpu_lines_take(lines_of(l, k), flag_of(k), data, bytes)) return false;
  for (uint32_t i = 0; i < bytes; i++) ck_assert_int_eq(data[i], (char)(k + 1));
  return true;
}

/* Lines of every length: what goes in comes out, and nothing is written next to it; one that is missing is noticed. */
TEST(lines) {
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

/* A slot in lines is not sent before all of them are there, in whatever order they come. */
TEST(lines_come_late) {
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
}

/* Slots and lines in any order over one link, at both ends; a length of its own for each. */
TEST(lines_and_slots) {
  enum { N = 9 * SLOTS + 1 };
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
}

/* Only the end whose small slots the CPU has gets lines. */
TEST(lines_need_host_memory) {
  begin(w, GPU);
  ck_assert_ptr_null(w->send.lines);
  ck_assert_ptr_null(w->recv.lines);
}

/* The receiver's end, which the proxy's thread leaves alone from now on. */
static hk_gpu_proxied *still_receiver(void) {
  hk_gpu_proxied *f = hk_gpu_proxy_links(w->proxy);
  while (f->link.kind != HK_LINK_RECV) f = f->next;
  hk_gpu_proxy_pause(w->proxy);
  return f;
}
/* The network's slot k, which is handed to the kernel. */
static void hand_over(hk_gpu_proxied *f, uint64_t k, uint32_t bytes) {
  const hk_gpu_proxy_env e = {.env = &w->env, .device = &w->device};
  hk_slot *slot = &f->link.slots[k % SLOTS];
  bool moved = false;
  memset(hk_link_place(&f->link, k, bytes), (int)k + 1, bytes);
  slot->bytes = bytes;
  slot->signature = SIGNATURE;
  atomic_store(&slot->seq, (uint32_t)(k + 1));
  ck_assert_int_eq(hk_gpu_proxied_after(&e, f, &moved), HK_OK);
  ck_assert(moved);
}

/* Numbers in flags repeat after 2^20 slots. By then no line has the old flag, though only short slots came since; nor
 * after a suspension, which may leave anything in the memory. */
TEST(old_lines) {
  enum { ROUND = 1 << (32 - HK_GPU_LL_TAG_BITS) };
  begin(w, HOST);
  hk_gpu_proxied *f = still_receiver();
  const uint64_t first = 5 * SLOTS + 1;
  f->link.done = first;
  hand_over(f, first, 3000);
  ck_assert(has_lines(&w->recv, first, 3000));
  for (uint64_t k = first + 1; k < first + ROUND; k++) hand_over(f, k, 8);
  ck_assert_uint_eq(flag_of(first), flag_of(first + ROUND));
  uint64_t *line = lines_of(&w->recv, first);
  for (uint32_t i = 0; i < HK_GPU_LL_NET_MAX / 4; i++) ck_assert_uint_ne(line[i] >> 32, flag_of(first + ROUND));
  hand_over(f, first + ROUND, 3000);
  ck_assert(has_lines(&w->recv, first + ROUND, 3000));
  memset(w->recv.lines, 0x77, (size_t)SLOTS * 2 * HK_GPU_LL_NET_MAX);
  hk_gpu_proxied_clear_lines(f);
  for (uint64_t k = 0; k < SLOTS; k++)
    for (uint32_t i = 0; i < HK_GPU_LL_NET_MAX / 4; i++)
      ck_assert_uint_eq(lines_of(&w->recv, k)[i], (uint64_t)hk_gpu_line_flag(f->link.done, 0) << 32);
}

/* A slot that has no lines, because it is empty or too long, shows its tag in the first one all the same. */
TEST(lines_of_another_call) {
  begin(w, HOST);
  hk_gpu_proxied *f = still_receiver();
  static const uint32_t sizes[] = {0, HK_GPU_LL_NET_MAX + 1, HK_GPU_LL_NET_MAX};
  for (uint64_t k = 0; k < 3; k++) {
    hand_over(f, k, sizes[k]);
    const uint64_t *line = lines_of(&w->recv, k);
    ck_assert_uint_eq(line[0] >> 32, flag_of(k));
    ck_assert_uint_eq(line[1] >> 32, flag_of(k));
    ck_assert_int_eq(line[2] >> 32 == flag_of(k), sizes[k] == HK_GPU_LL_NET_MAX);
  }
}

int main(void) { return suite_main("gpu_proxy_lines", .setup = setup, .teardown = teardown, .timeout = 60); }
