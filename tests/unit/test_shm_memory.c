/* SPDX-License-Identifier: Apache-2.0 */
/* The host device's allocator, and references to its memory over links. */
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include "../../src/device/host.h"
#include "../../src/transport/registry.h"
#include "../support/process.h"
#include "../support/shm_world.h"
#include "../support/suite.h"

/* Mappings of this process whose line holds `text`. */
static unsigned count_maps(const char *text) {
  unsigned n = 0;
  char line[512];
  FILE *f = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, f)) n += strstr(line, text) != NULL;
  fclose(f);
  return n;
}

TEST(allocator) {
  int fds = open_fds();
  enum { N = 40 };
  char *p[N];
  for (size_t i = 0; i < N; i++) {
    size_t bytes = i * i * 5000;
    ck_assert_int_eq(hk_host_alloc((void **)&p[i], bytes), HK_OK);
    ck_assert_uint_eq((uintptr_t)p[i] % (bytes >= (2u << 20) ? 2u << 20 : 4096), 0);
    if (bytes) p[i][bytes - 1] = 1;
    hk_host_span s = hk_host_find(p[i] + bytes / 2);
    ck_assert(s.region && s.begin == (uintptr_t)p[i] && s.end >= s.begin + bytes);
  }
  uint64_t last = hk_host_find(p[N - 1]).region;
  char local = 0;
  hk_host_span outside = hk_host_find(&local);
  ck_assert(outside.region == 0 && outside.begin <= (uintptr_t)&local && outside.end > (uintptr_t)&local);
  for (size_t i = 0; i < N; i++) ck_assert(outside.end <= (uintptr_t)p[i] || outside.begin > (uintptr_t)p[i]);
  ck_assert_int_eq(hk_host_free(p[0] + 1), HK_ERR_ARGUMENT);
  for (size_t i = 0; i < N; i++) ck_assert_int_eq(hk_host_free(p[(i * 7) % N]), HK_OK);
  ck_assert_int_eq(hk_host_free(p[3]), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_host_free(NULL), HK_OK);
  ck_assert_int_eq(hk_host_alloc((void **)&p[0], SIZE_MAX - 100), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_host_alloc((void **)&p[0], 100), HK_OK);
  ck_assert(hk_host_find(p[0]).region > last);
  ck_assert_int_eq(hk_host_free(p[0]), HK_OK);
  ck_assert_uint_eq(open_fds(), fds);
}

static void send_ref(world_rank *r, hk_link *l, const void *data, size_t bytes) {
  await_send(r, l);
  MUST(r->transport->zero_copy->refer(r->state, l, data, bytes, &l->slots[l->done & l->mask].ref));
  hk_link_publish(l, (uint32_t)bytes, 0, HK_SLOT_REF);
}

static bool all_are(const unsigned char *b, size_t n, unsigned char v) {
  return n == 0 || (b[0] == v && !memcmp(b, b + 1, n - 1)); /* one instrumented access in place of n */
}

enum { ROUNDS = 30, BIG = 300000 };

/* Rank 0 sends references to memory that it allocates, reuses, frees; the others read them, over links of their own. */
static void ring_leader(world_rank *r, hk_link *out, int n) {
  unsigned char *keep, plain[64] = {0};
  MUST(hk_host_alloc((void **)&keep, BIG) == HK_OK);
  hk_ref ref;
  for (int i = 0; i < n; i++)
    if (out[i].by_ref == 1) {
      MUST(!r->transport->zero_copy->refer(r->state, &out[i], plain, sizeof plain, &ref));
      /* beyond the region's end */
      MUST(!r->transport->zero_copy->refer(r->state, &out[i], keep + BIG - 1, 8192, &ref));
      MUST(r->transport->zero_copy->refer(r->state, &out[i], keep + 5, 8, &ref) && ref.region && ref.offset == 5);
    }
  for (int k = 0; k < ROUNDS; k++) {
    unsigned char *once;
    MUST(hk_host_alloc((void **)&once, BIG + (size_t)k * 4096) == HK_OK);
    memset(keep, k, BIG);
    memset(once, k + 100, BIG);
    for (int i = 0; i < n; i++) send_ref(r, &out[i], keep + k, BIG - 100);
    for (int i = 0; i < n; i++) send_ref(r, &out[i], once + 1000, BIG - 1000);
    for (int i = 0; i < n; i++) await_drained(r, &out[i]);
    MUST(hk_host_free(once) == HK_OK);
  }
  MUST(hk_host_free(keep) == HK_OK);
}

static void follower(world_rank *r, hk_link *in) {
  for (int k = 0; k < ROUNDS; k++)
    for (int which = 0; which < 2; which++) {
      await_recv(r, in);
      const hk_slot *s = hk_link_recv_slot(in);
      const void *data = hk_link_recv_data(in);
      MUST(data && all_are(data, s->bytes, (unsigned char)(which ? k + 100 : k)));
      hk_link_release(in);
    }
}

static void references(world_rank *r) {
  int n = r->env.nranks;
  hk_link *links = calloc((size_t)n, sizeof *links);
  for (int p = 1; p < n; p++) {
    if (r->env.rank == 0) {
      world_open(r, p, HK_LINK_SEND, 0, &links[p - 1]);
      MUST(links[p - 1].by_ref == (r->world->peers[p].process == r->world->peers[0].process ? 2 : 1));
    } else if (p == r->env.rank) {
      world_open(r, 0, HK_LINK_RECV, 0, &links[0]);
    }
  }
  if (r->env.rank == 0)
    ring_leader(r, links, n - 1);
  else
    follower(r, &links[0]);
  world_barrier(r);
  /* Freed regions do not pile up in the readers. */
  if (r->world->nprocs) MUST(count_maps("memfd:hocket (deleted)") <= 3);
  for (int p = 0; p < n - 1; p++) world_close(r, &links[p]);
  free(links);
}

static void multicast_references(world_rank *r) {
  hk_link l;
  bool sends = r->env.rank == 0;
  world_open(r, 0, sends ? HK_LINK_MCAST_SEND : HK_LINK_MCAST_RECV, 0, &l);
  if (sends) {
    MUST(l.by_ref == (r->world->nprocs ? 1 : 2));
    ring_leader(r, &l, 1);
  } else {
    follower(r, &l);
  }
  world_barrier(r);
  world_close(r, &l);
}

static const struct { int ranks, procs; } shapes[] = {{2, 0}, {4, 0}, {2, 2}, {6, 3}, {7, 2}};

TEST_LOOP(refs, sizeof shapes / sizeof shapes[0]) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, shapes[_i].ranks, shapes[_i].procs, references)), 0);
}
TEST_LOOP(mcast_refs, sizeof shapes / sizeof shapes[0]) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, shapes[_i].ranks, shapes[_i].procs, multicast_references)),
                   0);
}

/* A reference to memory that is gone, or beyond a region's end, is an error and no crash. */
static void bad_references(world_rank *r) {
  hk_link l;
  bool sends = r->env.rank == 0;
  world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, 0, &l);
  hk_ref ref = {0, 0};
  if (sends) {
    void *p;
    MUST(hk_host_alloc(&p, 4096) == HK_OK);
    MUST(r->transport->zero_copy->refer(r->state, &l, p, 100, &ref));
    MUST(hk_host_free(p) == HK_OK);
    atomic_store(&r->world->notes[0], (int)ref.region);
  }
  world_barrier(r);
  ref = (hk_ref){(uint64_t)atomic_load(&r->world->notes[0]), 0};
  if (!sends) {
    MUST(!r->transport->zero_copy->resolve(r->state, &l, &ref, 100));
    MUST(strstr(hk_last_error(), "no longer has"));
  }
  world_barrier(r);
  void *again = NULL;
  if (sends) {
    MUST(hk_host_alloc(&again, 4096) == HK_OK);
    MUST(r->transport->zero_copy->refer(r->state, &l, again, 100, &ref) &&
         ref.region > (uint64_t)atomic_load(&r->world->notes[0]));
    atomic_store(&r->world->notes[0], (int)ref.region);
  }
  world_barrier(r);
  if (!sends) {
    ref = (hk_ref){(uint64_t)atomic_load(&r->world->notes[0]), 4000};
    MUST(r->transport->zero_copy->resolve(r->state, &l, &ref, 96) &&
         !r->transport->zero_copy->resolve(r->state, &l, &ref, 97));
    ref.offset = UINT64_MAX - 10;
    MUST(!r->transport->zero_copy->resolve(r->state, &l, &ref, 20));
  }
  world_barrier(r);
  if (sends) hk_host_free(again);
  world_close(r, &l);
}
TEST(bad_refs) { ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, 2, bad_references)), 0); }

/* The rank whose service answers for its process leaves first: another one takes over. */
static void first_leaves(world_rank *r) {
  hk_link l;
  int me = r->env.rank;
  static void *memory; /* rank 2's, of process 0 */
  if (me == 2) world_open(r, 1, HK_LINK_SEND, 0, &l);
  if (me == 1) world_open(r, 2, HK_LINK_RECV, 0, &l);
  world_barrier(r);
  if (me == 0) return; /* with ranks 0 and 2 in a process, at the latest the next to leave serves */
  if (me == 2) {
    while (atomic_load(&r->world->notes[1]) == 0) usleep(1000);
    MUST(hk_host_alloc(&memory, 4096) == HK_OK);
    memset(memory, 9, 4096);
    send_ref(r, &l, memory, 4096);
    await_drained(r, &l);
    MUST(hk_host_free(memory) == HK_OK);
  } else if (me == 1) {
    usleep(50000); /* rank 0 has left by now */
    atomic_store(&r->world->notes[1], 1);
    await_recv(r, &l);
    MUST(all_are(hk_link_recv_data(&l), 4096, 9));
    hk_link_release(&l);
  }
  world_close(r, &l);
}
static void last_leaves(world_rank *r) {
  /* The same with the two ranks' order of attaching reversed. */
  if (r->env.rank == 0) usleep(20000);
}
TEST_LOOP(server_leaves, 2) {
  world *w = world_new(&hk_transport_shm, 3, 2, first_leaves);
  if (_i) w->tamper = last_leaves;
  ck_assert_int_eq(world_run(w), 0);
}

/* The owner is killed while a reader wants its memory. */
static void owner_dies(world_rank *r) {
  hk_link l;
  bool owner = r->env.rank == 0;
  world_open(r, owner, owner ? HK_LINK_SEND : HK_LINK_RECV, 0, &l);
  if (owner) {
    void *p;
    MUST(hk_host_alloc(&p, 4096) == HK_OK);
    send_ref(r, &l, p, 100);
    atomic_store(&r->world->notes[0], getpid());
    for (;;) pause();
  }
  await_recv(r, &l);
  while (!atomic_load(&r->world->notes[0])) usleep(1000);
  kill(atomic_load(&r->world->notes[0]), SIGKILL);
  usleep(50000);
  MUST(!hk_link_recv_data(&l) && strstr(hk_last_error(), "rank 0"));
  world_close(r, &l);
}
TEST(owner_killed) { ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, 2, owner_dies)), 1); }

/* ---- private memory, which only the kernel can copy ---- */

enum { PIECE = 100000 };

/* Rank 0 refers to its own array; the others fetch one piece and let the link copy another. */
static void peek(world_rank *r) {
  int n = r->env.nranks;
  hk_link out, in;
  unsigned char *data = malloc(2 * PIECE);
  hk_ref ref;
  world_barrier(r); /* all have tried whose memory they can read */
  for (int i = 0; i < 2 * PIECE; i++) data[i] = r->env.rank ? 0 : (unsigned char)(i % 251);
  for (int p = 1; p < n; p++) {
    if (r->env.rank == 0 && r->world->peers[p].process != r->world->peers[0].process) {
      world_open(r, p, HK_LINK_SEND, 0, &out);
      MUST(!r->transport->zero_copy->refer(r->state, &out, data, 1000, &ref)); /* cheaper in a slot */
      send_ref(r, &out, data, PIECE);
      MUST(out.slots[0].ref.region == HK_REGION_PRIVATE && hk_slot_private(&out.slots[0]));
      send_ref(r, &out, data + PIECE, PIECE);
      await_drained(r, &out);
      world_close(r, &out);
    } else if (r->env.rank == p && r->world->peers[p].process != r->world->peers[0].process) {
      world_open(r, 0, HK_LINK_RECV, 0, &in);
      await_recv(r, &in);
      MUST(hk_link_fetch(&in, hk_link_recv_slot(&in), data) == HK_OK);
      hk_link_release(&in);
      await_recv(r, &in);
      const void *copy = hk_link_recv_data(&in);
      MUST(copy);
      memcpy(data + PIECE, copy, PIECE);
      hk_link_release(&in);
      world_close(r, &in);
      for (int i = 0; i < 2 * PIECE; i++) MUST(data[i] == (unsigned char)(i % 251));
    }
  }
  world_barrier(r);
  free(data);
}
TEST_LOOP(private_memory, 2) {
  setenv("HOCKET_CMA", "1", 1);
  world *w = world_new(&hk_transport_shm, _i ? 6 : 2, _i ? 3 : 2, peek);
  w->cores = 64;
  ck_assert_int_eq(world_run(w), 0);
}

static void no_peek(world_rank *r) {
  hk_link l;
  hk_ref ref;
  bool sends = r->env.rank == 0;
  char *data = calloc(1, PIECE);
  world_barrier(r);
  world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, 0, &l);
  if (sends) MUST(!r->transport->zero_copy->refer(r->state, &l, data, PIECE, &ref));
  MUST(r->transport->zero_copy->reads(r->state) == 0);
  world_close(r, &l);
  free(data);
}
static void wrong_pid(world_rank *r) { r->world->peers[r->env.rank].pid = getppid(); }
/* As in another pid namespace: the pid is that of a process like it, which has another word at that address. */
static void other_pid(world_rank *r) {
  if (r->env.rank) return;
  while (!*(volatile pid_t *)&r->world->peers[1].pid) usleep(100);
  r->world->peers[0].pid = r->world->peers[1].pid;
}
static void no_pid(world_rank *r) { r->world->peers[r->env.rank].pid = 0x7ffffff0; }
/* In place of libc's. What is not on the caller's stack is the word that others are to read. */
static bool is_not_random;
ssize_t getrandom(void *out, size_t bytes, unsigned flags) {
  const char *here = __builtin_frame_address(0), *at = out;
  bool on_stack = at > here && at < here + 4096;
  return is_not_random && !on_stack ? -1 : syscall(SYS_getrandom, out, bytes, flags);
}
/* ... and ASan leaves what is on the stack there. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void) {
  return "detect_stack_use_after_return=0";
}
static void no_word(world_rank *r) { is_not_random = r->env.rank == 0; }
static void cma_off(world_rank *r) {
  if (r->env.rank == 1) setenv("HOCKET_CMA", "0", 1);
}
/* A rank reads what is for it alone, by a multicast, too, and not what is for several: that goes through slots. */
static void peek_alone(world_rank *r) {
  enum { LEAST = 64 << 10 }; /* if it is not measured */
  hk_link pair, all;
  hk_ref ref;
  bool sends = r->env.rank == 0, paired = r->env.rank < 2;
  bool fits = r->world->slot_bytes >= LEAST; /* what is too short for a reference */
  char *data = calloc(1, PIECE);
  world_barrier(r);
  MUST((r->transport->zero_copy->reads(r->state) > 0) == fits);
  if (paired) world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, 0, &pair);
  world_open(r, 0, sends ? HK_LINK_MCAST_SEND : HK_LINK_MCAST_RECV, 0, &all);
  if (sends) {
    MUST(r->transport->zero_copy->refer(r->state, &pair, data, PIECE, &ref) && ref.region == HK_REGION_PRIVATE);
    MUST(r->transport->zero_copy->refer(r->state, &all, data, PIECE, &ref) == (r->env.nranks == 2));
    MUST(!r->transport->zero_copy->refer(r->state, &pair, data, LEAST - 1, &ref));
  }
  world_barrier(r);
  if (paired) world_close(r, &pair);
  world_close(r, &all);
  free(data);
}
TEST_LOOP(private_memory_for_one, 3) {
  setenv("HOCKET_CMA", "1", 1);
  const int ranks = _i == 2 ? 3 : 2;
  world *w = world_new(&hk_transport_shm, ranks, ranks, peek_alone);
  if (_i == 1) w->slot_bytes = PIECE;
  ck_assert_int_eq(world_run(w), 0);
}

TEST_LOOP(private_memory_unreadable, 10) {
  void (*const tampers[])(world_rank *) = {wrong_pid, cma_off, no_pid, no_word, other_pid};
  if (_i >= 5) setenv("HOCKET_CMA", "1", 1); /* it is not measured */
  world *w = world_new(&hk_transport_shm, 2, 2, no_peek);
  w->cores = 64;
  w->tamper = tampers[_i % 5];
  ck_assert_int_eq(world_run(w), 0);
}

/* Each rank sends to the next one: whether references or copies was measured, for all of the host, and the link whose
 * slots were used for that carries messages as a new one does. */
static void measured(world_rank *r) {
  enum { MESSAGES = 20 };
  int n = r->env.nranks, next = (r->env.rank + 1) % n, before = (r->env.rank + n - 1) % n;
  hk_link out, in;
  hk_ref ref;
  char *data = calloc(1, PIECE);
  world_barrier(r);
  world_open(r, next, HK_LINK_SEND, HK_CHANNEL_P2P, &out);
  world_open(r, before, HK_LINK_RECV, HK_CHANNEL_P2P, &in);
  atomic_store(&r->world->notes[r->env.rank], r->transport->zero_copy->refer(r->state, &out, data, PIECE, &ref));
  for (int i = 0; i < MESSAGES; i++) {
    await_send(r, &out);
    memcpy(hk_link_send_buffer(&out, sizeof i), &i, sizeof i);
    hk_link_publish(&out, sizeof i, 0, 0);
    await_recv(r, &in);
    MUST(hk_link_recv_slot(&in)->bytes == sizeof i && !memcmp(hk_link_recv_data(&in), &i, sizeof i));
    hk_link_release(&in);
  }
  world_barrier(r);
  for (int i = 0; i < n; i++) MUST(atomic_load(&r->world->notes[i]) == atomic_load(&r->world->notes[0]));
  world_close(r, &out);
  world_close(r, &in);
  free(data);
}
TEST_LOOP(private_memory_measured, 4) {
  world *w = world_new(&hk_transport_shm, _i ? 6 : 2, _i ? 3 : 2, measured);
  w->cores = _i == 3 ? 1 : 64;
  if (_i == 2) w->slot_bytes = 4096; /* too small to measure with */
  ck_assert_int_eq(world_run(w), 0);
}

static void private_owner_dies(world_rank *r) {
  hk_link l;
  bool owner = r->env.rank == 0;
  char *data = calloc(1, PIECE);
  world_barrier(r);
  world_open(r, owner, owner ? HK_LINK_SEND : HK_LINK_RECV, 0, &l);
  if (owner) {
    send_ref(r, &l, data, PIECE);
    atomic_store(&r->world->notes[0], getpid());
    for (;;) pause();
  }
  await_recv(r, &l);
  while (!atomic_load(&r->world->notes[0])) usleep(1000);
  kill(atomic_load(&r->world->notes[0]), SIGKILL);
  usleep(50000);
  MUST(hk_link_fetch(&l, hk_link_recv_slot(&l), data) == HK_ERR_REMOTE && strstr(hk_last_error(), "rank 0"));
  MUST(!hk_link_recv_data(&l));
  world_close(r, &l);
  free(data);
}
TEST(private_owner_killed) {
  setenv("HOCKET_CMA", "1", 1);
  world *w = world_new(&hk_transport_shm, 2, 2, private_owner_dies);
  w->cores = 64;
  ck_assert_int_eq(world_run(w), 1);
}

static void copies_only(world_rank *r) {
  hk_link l;
  hk_ref ref;
  bool sends = r->env.rank == 0;
  world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, 0, &l);
  MUST(l.by_ref == 0);
  if (sends) MUST(!r->transport->zero_copy->refer(r->state, &l, r, 8, &ref));
  world_close(r, &l);
}
TEST_LOOP(p2p_disabled, 2) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, _i ? 2 : 0, copies_only)), 0);
}

int main(void) { return suite_main("shm memory", .timeout = 60); }
