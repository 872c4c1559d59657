/* SPDX-License-Identifier: Apache-2.0 */
/* check: timeout=300 */
/* Registrations of memory that the user has not registered, over the fake libibverbs.so.1, whose devices keep the old
 * pages of memory that goes (fake_verbs_gone): what is sent from an entry that is no longer true is wrong. */
#include <check.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <nccl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "../../src/base/param.h"
#include "../../src/base/unmap.h"
#include "../../src/transport/net/ib.h"
#include "../support/fake_rdma.h"
#include "../support/net_streams.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { SLOT = 131072, PIECE = 70000, SIZE = 5 << 20, MIB = 1 << 20 };

static fake_verbs_state *verbs;
static void (*gone)(const void *at, size_t bytes);

static void begin(int devices, const char *mib) {
  verbs = rdma_begin(devices);
  void *symbol = rdma_fake("libibverbs.so.1", "fake_verbs_gone");
  memcpy(&gone, &symbol, sizeof gone);
  rdma_plenty = true;
  rdma_param("NCCL_NET", "IB");
  rdma_param("HOCKET_IB_CACHE", mib);
}
static void end(void) { rdma_end(verbs); }

static char *map_at(void *at, size_t bytes) {
  char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  ck_assert(p != MAP_FAILED);
  return p;
}

static void unmap(char *p, size_t bytes) {
  gone(p, bytes);
  munmap(p, bytes);
}

/* ---- one message at a time, both ranks in this thread ---- */

typedef struct way {
  net_world *w;
  hk_link *send, *recv;
  unsigned sent;
} way;

static void progress(const way *t) {
  for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&t->w->ranks[i], NULL), HK_OK);
}
static way open_way(int devices, const char *mib) {
  begin(devices, mib);
  net_world *w = net_world_new(2, 8, SLOT);
  way t = {w, net_link(&w->ranks[0], 1, HK_LINK_SEND, 3), net_link(&w->ranks[1], 0, HK_LINK_RECV, 3), 0};
  while (atomic_load(&t.send->state) != HK_LINK_READY || atomic_load(&t.recv->state) != HK_LINK_READY) progress(&t);
  return t;
}
static void close_way(way *t) {
  net_unlink(t->recv);
  net_unlink(t->send);
  net_world_free(t->w);
  end();
}

/* What the runtime does when an operation begins. */
static void expect(const way *t, int rank, const void *p, size_t bytes) {
  hk_transport_net.expect(t->w->ranks[rank].state, p, bytes);
}

/* Sends the piece at `from`, from there if that may be, and receives it at `to`, or in other memory. */
enum { BY_REFERENCE = 1, IN_PLACE = 2 };
static int pass(way *t, void *from, void *to) {
  static unsigned char other[PIECE];
  uint32_t bytes, signature;
  bool direct, offers = to && hk_link_places(t->recv, PIECE);
  unsigned char *at = to ? to : other;
  const unsigned i = t->sent++;
  hk_ref ref;
  memset(at, 0xEE, PIECE);
  if (offers) {
    hk_link_offer(t->recv, i, at, PIECE);
    progress(t);
  }
  fill(from, PIECE, i);
  ck_assert(hk_link_can_send(t->send, PIECE));
  bool refers = hk_link_refer(t->send, from, PIECE, &ref);
  if (refers) {
    t->send->slots[(uint32_t)t->send->done & t->send->mask].ref = ref;
    hk_link_publish(t->send, PIECE, 7, HK_SLOT_REF);
  } else {
    memcpy(hk_link_send_buffer(t->send, PIECE), from, PIECE);
    hk_link_publish(t->send, PIECE, 7, 0);
  }
  while (!net_try_recv(t->recv, at, PIECE, false, &bytes, &signature, &direct)) progress(t);
  ck_assert_uint_eq(bytes, PIECE);
  ck_assert_msg(filled(at, PIECE, i), "message %u is wrong", i);
  while (!hk_link_drained(t->send)) progress(t);
  return (refers ? BY_REFERENCE : 0) | (direct ? IN_PLACE : 0);
}

START_TEST(registers_what_is_used) {
  way t = open_way(_i ? 2 : 1, "64");
  char *a = map_at(NULL, SIZE + MIB), *b = map_at(NULL, SIZE + MIB);
  ck_assert_int_eq(pass(&t, a, b), 0);
  uint64_t registered = verbs->registered, locked = verbs->locked;
  expect(&t, 0, a, SIZE);
  ck_assert_int_eq(pass(&t, a + 12345, b), BY_REFERENCE);
  expect(&t, 1, b, SIZE);
  for (unsigned i = 0; i < 40; i++) {
    expect(&t, 0, a, SIZE);
    expect(&t, 1, b, SIZE);
    ck_assert_int_eq(pass(&t, a + SIZE - PIECE, b + i), BY_REFERENCE | IN_PLACE);
  }
  ck_assert_uint_eq(verbs->registered, registered + 2);
  ck_assert_uint_eq(verbs->locked, locked + 2 * SIZE);
  ck_assert_int_eq(pass(&t, a + SIZE - PIECE + 1, b + SIZE - PIECE + 1), 0); /* beyond their ends */
  unmap(a, SIZE + MIB);
  unmap(b, SIZE + MIB);
  close_way(&t);
}
END_TEST

/* Small buffers never, others when they have been used for a while. */
START_TEST(waits_until_it_is_worth_it) {
  way t = open_way(1, "64");
  char *a = map_at(NULL, SIZE);
  for (int i = 0; i < 1000; i++) expect(&t, 0, a, HK_IB_CACHE_LEAST - 1);
  for (int i = 0; i < 3; i++) {
    expect(&t, 0, a, MIB);
    ck_assert_int_eq(pass(&t, a, NULL), 0);
  }
  expect(&t, 0, a + MIB, MIB); /* another one */
  ck_assert_int_eq(pass(&t, a, NULL), 0);
  expect(&t, 0, a, MIB);
  ck_assert_int_eq(pass(&t, a, NULL), BY_REFERENCE);
  ck_assert_int_eq(pass(&t, a + MIB, NULL), 0);
  unmap(a, SIZE);
  close_way(&t);
}
END_TEST

/* ---- memory that goes ---- */

static char *replace(char *p) {
  munmap(p, SIZE);
  return map_at(p, SIZE);
}
static char *map_over(char *p) { return map_at(p, SIZE); }
static char *drop(char *p) {
  ck_assert_int_eq(madvise(p, SIZE, MADV_DONTNEED), 0);
  return p;
}
static char *drop_one_page(char *p) {
  ck_assert_int_eq(madvise(p, 4096, MADV_DONTNEED), 0);
  return p;
}
static char *move_away(char *p) {
  char *to = map_at(NULL, SIZE);
  ck_assert(mremap(p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  munmap(to, SIZE);
  return map_at(p, SIZE);
}
static char *(*const ways_to_go[])(char *p) = {replace, map_over, drop, drop_one_page, move_away};

/* Memory at the same address is other memory, whether its operation is announced or not. */
START_TEST(sends_and_receives_in_new_memory) {
  way t = open_way(1, "64");
  const bool announced = _i % 2;
  char *a = map_at(NULL, SIZE), *b = map_at(NULL, SIZE);
  expect(&t, 0, a, SIZE);
  expect(&t, 1, b, SIZE);
  ck_assert_int_eq(pass(&t, a, b), BY_REFERENCE | IN_PLACE);
  gone(a, SIZE);
  gone(b, SIZE);
  a = ways_to_go[_i / 2](a);
  b = ways_to_go[_i / 2](b);
  if (!announced) ck_assert_int_eq(pass(&t, a, b), 0);
  for (int i = 0; i < 3; i++) { /* they did not last: twice as much until the next time, twice */
    expect(&t, 0, a, SIZE);
    expect(&t, 1, b, SIZE);
    (void)pass(&t, a, b);
  }
  ck_assert_int_eq(pass(&t, a, b), BY_REFERENCE | IN_PLACE);
  unmap(a, SIZE);
  unmap(b, SIZE);
  close_way(&t);
}
END_TEST

/* The rest of the buffer still is what it was if the allocator has kept it. */
static void note_unmapped(uintptr_t p) {
  unsigned char in_core;
  uintptr_t first = 0; /* of a run of pages that are not there */
  for (uintptr_t at = p & ~(uintptr_t)4095; at < p + SIZE + 4096; at += 4096) {
    const bool absent = at < p + SIZE && mincore((void *)at, 1, &in_core) != 0;
    if (absent && !first) first = at;
    if (!absent && first) gone((void *)first, at - first);
    if (!absent) first = 0;
  }
}

/* malloc gives the end of the heap back, or maps large blocks: as the allocator likes. */
START_TEST(follows_the_allocator) {
  way t = open_way(1, "64");
  verbs->lets_free = 1;
  mallopt(M_MMAP_THRESHOLD, _i ? 32 << 20 : MIB);
  mallopt(M_TRIM_THRESHOLD, 65536);
  for (int i = 0; i < SUITE_FEW(12); i++) {
    char *a = malloc(SIZE), *b = malloc(SIZE);
    for (int k = 0; k < 8; k++) {
      expect(&t, 0, a, SIZE);
      expect(&t, 1, b, SIZE);
      int how = pass(&t, a + k * 1000, b + k * 1000);
      if (k == 7) ck_assert_int_eq(how, BY_REFERENCE | IN_PLACE);
    }
    const uintptr_t at[] = {(uintptr_t)a, (uintptr_t)b};
    free(a);
    free(b);
    for (int k = 0; k < 2; k++) note_unmapped(at[k]);
  }
  close_way(&t);
}
END_TEST

/* What a request or an announced place uses stays registered until they are over. */
START_TEST(keeps_what_is_under_way) {
  way t = open_way(1, "64");
  hk_ref ref;
  char *a = map_at(NULL, SIZE), *b = map_at(NULL, SIZE);
  uint32_t bytes, signature;
  bool direct;
  expect(&t, 0, a, SIZE);
  expect(&t, 1, b, SIZE);
  ck_assert_int_eq(pass(&t, a, b), BY_REFERENCE | IN_PLACE);
  const int nmrs = verbs->nmrs;
  hk_link_offer(t.recv, 1, b, PIECE);
  progress(&t);
  verbs->lazy = 1u << 30;
  fill((unsigned char *)a, PIECE, 1);
  ck_assert(hk_link_refer(t.send, a, PIECE, &ref));
  t.send->slots[(uint32_t)t.send->done & t.send->mask].ref = ref;
  hk_link_publish(t.send, PIECE, 7, HK_SLOT_REF);
  progress(&t);
  munmap(a + SIZE - 4096, 4096); /* other parts */
  munmap(b + SIZE - 4096, 4096);
  for (int i = 0; i < 2; i++) expect(&t, i, map_at(NULL, HK_IB_CACHE_LEAST), HK_IB_CACHE_LEAST);
  ck_assert_int_eq(verbs->nmrs, nmrs);
  verbs->lazy = 1;
  while (!net_try_recv(t.recv, b, PIECE, false, &bytes, &signature, &direct)) progress(&t);
  ck_assert(direct && filled((unsigned char *)b, PIECE, 1));
  while (!hk_link_drained(t.send)) progress(&t);
  for (int i = 0; i < 2; i++) expect(&t, i, map_at(NULL, HK_IB_CACHE_LEAST), HK_IB_CACHE_LEAST);
  ck_assert_int_eq(verbs->nmrs, nmrs - 2);
  verbs->lazy = 0;
  close_way(&t);
}
END_TEST

/* ---- limits ---- */

START_TEST(makes_room) {
  way t = open_way(1, "12"); /* for two, in both ranks together */
  char *p[4];
  for (int i = 0; i < 4; i++) p[i] = map_at(NULL, SIZE);
  ck_assert_int_eq(pass(&t, p[0], NULL), 0); /* for the FIFO */
  uint64_t locked = verbs->locked;
  for (int k = 0; k < 9; k++) {
    expect(&t, 0, p[k % 3], SIZE);
    ck_assert_int_eq(pass(&t, p[k % 3], NULL), BY_REFERENCE);
    ck_assert_uint_eq(verbs->locked, locked + (k ? 2 : 1) * SIZE);
    ck_assert_int_eq(k ? pass(&t, p[(k + 2) % 3], NULL) : BY_REFERENCE, BY_REFERENCE); /* the one before */
    if (k > 1) ck_assert_int_eq(pass(&t, p[(k + 1) % 3], NULL), 0);
  }
  expect(&t, 0, p[1], SIZE); /* the one that was used longer ago goes */
  expect(&t, 0, p[0], SIZE);
  ck_assert_int_eq(pass(&t, p[0], NULL) + pass(&t, p[1], NULL), 2 * BY_REFERENCE);
  ck_assert_int_eq(pass(&t, p[2], NULL), 0);
  expect(&t, 1, p[3], SIZE); /* the other rank has none that could go */
  ck_assert_int_eq(pass(&t, p[0], p[3]), BY_REFERENCE);
  expect(&t, 0, p[0], 13 * MIB); /* never */
  ck_assert_int_eq(pass(&t, p[0], NULL), BY_REFERENCE);
  for (int i = 0; i < 4; i++) unmap(p[i], SIZE);
  close_way(&t);
}
END_TEST

/* A larger buffer replaces its parts. */
START_TEST(replaces_parts) {
  way t = open_way(1, "64");
  char *p = map_at(NULL, 2 * SIZE);
  ck_assert_int_eq(pass(&t, p, NULL), 0); /* for the FIFO */
  uint64_t locked = verbs->locked;
  expect(&t, 0, p, SIZE);
  expect(&t, 0, p + SIZE, SIZE);
  ck_assert_int_eq(pass(&t, p, NULL) + pass(&t, p + SIZE, NULL), 2 * BY_REFERENCE);
  ck_assert_int_eq(pass(&t, p + SIZE - 100, NULL), 0);
  expect(&t, 0, p, 2 * SIZE);
  ck_assert_int_eq(pass(&t, p + SIZE - 100, NULL), BY_REFERENCE);
  expect(&t, 0, p + 100, SIZE);
  ck_assert_uint_eq(verbs->locked, locked + 2 * SIZE);
  unmap(p, 2 * SIZE);
  close_way(&t);
}
END_TEST

/* The device takes no more memory: everything is copied, and arrives. */
START_TEST(copies_what_devices_refuse) {
  way t = open_way(1, "64");
  char *a = map_at(NULL, SIZE), *b = map_at(NULL, SIZE);
  ck_assert_int_eq(pass(&t, a, NULL), 0);
  verbs->lockable = verbs->locked + SIZE - 1;
  expect(&t, 0, a, SIZE);
  expect(&t, 1, b, SIZE);
  (void)pass(&t, a, b); /* it is tried */
  uint64_t registered = verbs->registered;
  for (int i = 0; i < 5; i++) {
    expect(&t, 0, a, SIZE);
    expect(&t, 1, b, SIZE);
    ck_assert_int_eq(pass(&t, a, b), 0);
  }
  ck_assert_uint_eq(verbs->registered, registered);
  unmap(a, SIZE);
  unmap(b, SIZE);
  close_way(&t);
}
END_TEST

static char *shared(void) {
  char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(p != MAP_FAILED);
  return p;
}

/* No cache: not asked for, not safe, not possible, or for this memory alone. */
START_TEST(switches_off) {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
  begin(1, _i == 0 ? "0" : "64");
  if (_i == 1) verbs->keeps_from_children = 1;
  if (_i == 2) rdma_plenty = false; /* the limit counts, as without CAP_IPC_LOCK */
  struct rlimit limit;
  if (_i == 2 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) {
    limit.rlim_cur = 8 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  }
  if (_i == 3) ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  if (_i == 3) ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
  net_world *w = net_world_new(2, 8, SLOT);
  way t = {w, net_link(&w->ranks[0], 1, HK_LINK_SEND, 3), net_link(&w->ranks[1], 0, HK_LINK_RECV, 3), 0};
  while (atomic_load(&t.send->state) != HK_LINK_READY || atomic_load(&t.recv->state) != HK_LINK_READY) progress(&t);
  char *a = _i == 4 ? shared() : map_at(NULL, SIZE);
  ck_assert_int_eq(pass(&t, a, NULL), 0);
  uint64_t registered = verbs->registered;
  for (int i = 0; i < 20; i++) {
    expect(&t, 0, a, SIZE);
    ck_assert_int_eq(pass(&t, a, NULL), 0);
  }
  ck_assert_uint_eq(verbs->registered, registered);
  unmap(a, SIZE);
  close_way(&t);
}
END_TEST

/* ---- a child of fork, threads, devices ---- */

START_TEST(survives_a_fork) {
  way t = open_way(1, "64");
  int status;
  char *a = map_at(NULL, SIZE);
  expect(&t, 0, a, SIZE);
  ck_assert_int_eq(pass(&t, a, NULL), BY_REFERENCE);
  pid_t child = fork();
  if (!child) {
    munmap(a, SIZE); /* its own */
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  expect(&t, 0, a, SIZE);
  ck_assert_int_eq(pass(&t, a, NULL), BY_REFERENCE);
  unmap(a, SIZE);
  close_way(&t);
}
END_TEST

#ifdef __SANITIZE_THREAD__
enum { BESIDE = 60 };
#else
enum { BESIDE = 300 };
#endif
static _Atomic(bool) over;
static void *come_and_go(void *arg) {
  const way *t = arg;
  for (int i = 0; !atomic_load(&over); i++) {
    char *p = map_at(NULL, SIZE);
    expect(t, i % 2, p, SIZE);
    if (i % 3 == 0) ck_assert_int_eq(madvise(p, SIZE, MADV_DONTNEED), 0);
    gone(p, SIZE);
    munmap(p, SIZE);
    sched_yield();
  }
  return NULL;
}

/* Another thread's memory is watched, and goes, meanwhile. */
START_TEST(works_beside_other_threads) {
  way t = open_way(1, "64");
  pthread_t thread;
  char *a = map_at(NULL, SIZE), *b = map_at(NULL, SIZE);
  ck_assert_int_eq(pthread_create(&thread, NULL, come_and_go, &t), 0);
  for (int i = 0; i < BESIDE; i++) {
    expect(&t, 0, a, SIZE);
    expect(&t, 1, b, SIZE);
    (void)pass(&t, a, b);
  }
  atomic_store(&over, true);
  pthread_join(thread, NULL);
  unmap(a, SIZE);
  unmap(b, SIZE);
  close_way(&t);
}
END_TEST

/* The device fails, and comes back when it has been given back all of its memory; or another one takes over. */
START_TEST(leaves_a_device_that_fails) {
  way t = open_way(_i ? 2 : 1, "64");
  char *a = map_at(NULL, SIZE), *b = map_at(NULL, SIZE);
  expect(&t, 0, a, SIZE);
  expect(&t, 1, b, SIZE);
  ck_assert_int_eq(pass(&t, a, b), BY_REFERENCE | IN_PLACE);
  verbs->device[0].returns = 1;
  verbs->fatal = 1;
  for (int i = 0; i < 20; i++) {
    expect(&t, 0, a, SIZE);
    expect(&t, 1, b, SIZE);
    int how = pass(&t, a, b);
    if (i > 10) ck_assert_int_eq(how, BY_REFERENCE | IN_PLACE);
  }
  unmap(a, SIZE);
  unmap(b, SIZE);
  close_way(&t);
}
END_TEST

/* ---- operations ---- */

enum { RANKS = 2, COUNT = 200003 };
static float buffers[RANKS][2][RANKS * COUNT]; /* of each rank: inputs, outputs */

static float given(int rank, size_t i, int round) {
  return (float)((i * 7 + (size_t)rank * 1001 + (size_t)round * 77) % 4096);
}

static int operate(ncclComm_t c, int rank, int n, void *arg) {
  float *in = buffers[rank][0], *out = buffers[rank][1];
  int faults = 0, next = (rank + 1) % n;
  (void)arg;
  for (int k = 0; k < 10 && !faults; k++) {
    for (size_t i = 0; i < (size_t)n * COUNT; i++) in[i] = given(rank, i, k);
    faults += RANK_CHECK(ncclAllGather(in, out, COUNT, ncclFloat32, c, NULL));
    for (size_t i = 0; i < (size_t)n * COUNT; i++) faults += out[i] != given((int)(i / COUNT), i % COUNT, k);
    faults += RANK_CHECK(ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, c, NULL));
    for (size_t i = 0; i < COUNT; i++) faults += out[i] != given(0, i, k) + given(1, i, k);
    faults += RANK_CHECK(ncclAlltoAll(in, out, COUNT, ncclFloat32, c, NULL));
    for (size_t i = 0; i < (size_t)n * COUNT; i++)
      faults += out[i] != given((int)(i / COUNT), (size_t)rank * COUNT + i % COUNT, k);
    faults += RANK_CHECK(ncclGroupStart());
    faults += RANK_CHECK(ncclSend(in, 2 * COUNT, ncclFloat32, next, c, NULL));
    faults += RANK_CHECK(ncclRecv(out, 2 * COUNT, ncclFloat32, next, c, NULL));
    faults += RANK_CHECK(ncclGroupEnd());
    for (size_t i = 0; i < (size_t)2 * COUNT; i++) faults += out[i] != given(next, i, k);
    /* Other memory with other data, at the same place. */
    if (k % 4 != 3) continue;
    for (int b = 0; b < 2; b++) {
      const size_t page = 4096, bytes = sizeof buffers[rank][b] / page * page - page;
      char *at = (char *)(((uintptr_t)buffers[rank][b] + page - 1) & ~(page - 1));
      gone(buffers[rank][b], sizeof buffers[rank][b]);
      munmap(at, bytes);
      map_at(at, bytes);
    }
  }
  return faults;
}

START_TEST(operates) {
  begin(1, "64");
  rdma_param("NCCL_SHM_DISABLE", "1");
  rdma_param("NCCL_P2P_DISABLE", "1");
  verbs->watched = (char *)buffers;
  verbs->watched_bytes = sizeof buffers;
  ck_assert_int_eq(ranks_as_threads(RANKS, operate, NULL), 0);
  ck_assert_uint_gt(verbs->landed, 0);
  end();
}
END_TEST

int main(void) {
  TCase *t = tcase_create("ib_cache");
  char why[HK_UNMAP_WHY];
  tcase_set_timeout(t, 120);
  tcase_add_loop_test(t, switches_off, 0, 5);
  hk_unmap *u = hk_unmap_open(why);
  const bool skips = !u && strstr(why, "userfaultfd");
  if (skips) printf("SKIP: registrations of the user's memory: %s\n", why);
  hk_unmap_close(u);
  if (!skips) {
    tcase_add_loop_test(t, registers_what_is_used, 0, 2);
    tcase_add_test(t, waits_until_it_is_worth_it);
    tcase_add_loop_test(t, sends_and_receives_in_new_memory, 0, 2 * (int)HK_ARRAY_LENGTH(ways_to_go));
    tcase_add_loop_test(t, follows_the_allocator, 0, 2);
    tcase_add_test(t, keeps_what_is_under_way);
    tcase_add_test(t, makes_room);
    tcase_add_test(t, replaces_parts);
    tcase_add_test(t, copies_what_devices_refuse);
    tcase_add_test(t, survives_a_fork);
    tcase_add_test(t, works_beside_other_threads);
    tcase_add_loop_test(t, leaves_a_device_that_fails, 0, 2);
    tcase_add_test(t, operates);
  }
  return suite_run_one("ib_cache", t);
}
