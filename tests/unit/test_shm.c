/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks come to share an arena, and what happens where they cannot.
 * check: root */
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "../../src/base/addr.h"
#include "../../src/transport/registry.h"
#include "../../src/transport/shm/shm_socket.h"
#include "../../src/transport/transport.h"
#include "../support/process.h"
#include "../support/shm_world.h"
#include "../support/status_page.h"
#include "../support/suite.h"

static int count_maps(void) {
  int n = 0;
  int c;
  FILE *f = fopen("/proc/self/maps", "r");
  while ((c = getc(f)) != EOF) n += c == '\n';
  fclose(f);
  return n;
}

static bool same_process(const world_rank *r, int peer) {
  return r->world->peers[peer].process == r->world->peers[r->env.rank].process;
}

/* A word from every rank to every other that it reaches. */
static void talk(world_rank *r, bool across) {
  int n = r->env.nranks, me = r->env.rank;
  char why[160];
  hk_link out, in;
  for (int p = 0; p < n; p++) {
    if (p == me) continue;
    bool near = same_process(r, p) || across;
    why[0] = 0;
    MUST(r->transport->reachable(r->state, p, why, sizeof why) == near);
    MUST(near || why[0]);
    if (!near) continue;
    world_open(r, p, HK_LINK_SEND, 0, &out);
    await_send(r, &out);
    *(int *)hk_link_send_buffer(&out, 4) = me * 1000 + p;
    hk_link_publish(&out, 4, 0, 0);
    world_close(r, &out);
  }
  for (int p = 0; p < n; p++) {
    if (p == me || !(same_process(r, p) || across)) continue;
    world_open(r, p, HK_LINK_RECV, 0, &in);
    await_recv(r, &in);
    MUST(*(const int *)hk_link_recv_data(&in) == p * 1000 + me);
    hk_link_release(&in);
    world_close(r, &in);
  }
}

/* Whether the process still answers others: not if there are none, or none may ask. */
static bool answers(const world_rank *r) { return ((const hk_shm_state *)r->state)->process->socket >= 0; }

/* Links that there are not. */
static void refuses_links(world_rank *r, int peer) {
  hk_link l;
  const hk_link_key other = {.peer = peer, .kind = HK_LINK_SEND, .channel = HK_CHANNEL_COUNT};
  const hk_link_key self = {.peer = r->env.rank, .kind = HK_LINK_RECV};
  MUST(r->transport->open(r->state, &other, &l) == HK_ERR_INTERNAL);
  MUST(r->transport->open(r->state, &self, &l) == HK_ERR_INTERNAL);
  world_open(r, peer, HK_LINK_SEND, HK_CHANNEL_COUNT - 1, &l);
  world_close(r, &l);
}

static void together(world_rank *r) {
  MUST(answers(r) == (r->world->nprocs > 0));
  refuses_links(r, (r->env.rank + 1) % r->env.nranks);
  if (r->env.rank == 0 && r->env.nranks == 64)
    printf("64 processes have joined in %.1f ms\n", (double)r->join_ns * 1e-6);
  talk(r, true);
  /* The failure word is one for all. */
  _Atomic(int) *failure = r->transport->host->failure_word(r->state);
  MUST(failure);
  world_barrier(r);
  if (r->env.rank == r->env.nranks - 1) atomic_store(failure, HK_ERR_REMOTE);
  r->wait.shared_failure = failure;
  hk_waiter w;
  hk_status rc = HK_OK;
  hk_wait_begin(&w, &r->wait);
  while (rc == HK_OK) rc = hk_wait_pause(&w);
  MUST(rc == HK_ERR_REMOTE);
  /* So is the board. */
  hk_status_page_op op = {.sequence = (uint64_t)r->env.rank + 1, .count = 77, .root = r->env.rank, .coll = 3}, seen;
  MUST(r->transport->host->status_page(r->state, r->env.rank));
  status_page_publish(r->transport->host->status_page(r->state, r->env.rank), &op);
  world_barrier(r);
  for (int p = 0; p < r->env.nranks; p++)
    MUST(hk_status_page_read(r->transport->host->status_page(r->state, p), &seen) && seen.root == p &&
         seen.sequence == (uint64_t)p + 1 && seen.count == 77 && seen.coll == 3);
}

static const struct {
  int ranks, procs;
} shapes[] = {{2, 0}, {5, 0}, {40, 0}, {2, 2}, {5, 5}, {9, 2}, {12, 5}, {64, 64}};

TEST_LOOP(sharing, sizeof shapes / sizeof shapes[0]) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, shapes[_i].ranks, shapes[_i].procs, together)), 0);
}

/* ---- several processes that cannot share ---- */

static void apart(world_rank *r) {
  const hk_link_key key = {.peer = ((r->env.rank + 1) % r->env.nranks), .kind = HK_LINK_SEND};
  hk_link l;
  MUST(!answers(r));
  MUST(r->transport->open(r->state, &key, &l) == HK_ERR_INTERNAL);
  MUST(!r->transport->host->status_page(r->state, key.peer) && !r->transport->multicast(r->state));
  talk(r, false);
}
static void apart_for(world_rank *r) {
  char why[160];
  for (int p = 0; p < r->env.nranks; p++)
    if (!same_process(r, p)) {
      MUST(!r->transport->reachable(r->state, p, why, sizeof why));
      if (!strstr(why, (const char *)r->world->arg)) fprintf(stderr, "why: %s\n", why);
      MUST(strstr(why, (const char *)r->world->arg));
    }
  talk(r, false);
}

static void run_apart(void (*tamper)(world_rank *), const char *reason) {
  world *w = world_new(&hk_transport_shm, 6, 3, reason ? apart_for : apart);
  w->tamper = tamper;
  w->arg = (void *)reason;
  ck_assert_int_eq(world_run(w), 0);
}

static void disable_in_one(world_rank *r) {
  if (r->env.rank % 3 == 1) setenv("NCCL_SHM_DISABLE", "1", 1);
}
TEST(disabled) { run_apart(disable_in_one, "rank 1 shares none between processes: NCCL_SHM_DISABLE is 1"); }

static void other_slots(world_rank *r) {
  if (r->env.rank % 3 == 2) r->env.nslots *= 2;
}
TEST(slots_differ) { run_apart(other_slots, "HOCKET_SLOTS"); }

static void limit_files(world_rank *r) {
  struct rlimit none = {4096, 4096};
  if (r->env.rank == 0) setrlimit(RLIMIT_FSIZE, &none);
}
TEST(leader_has_no_memory) { run_apart(limit_files, "shared memory (memfd_create: File too large)"); }

/* The last process has address space for its own ranks only. */
static void limit_address_space(world_rank *r) {
  struct rlimit little = {2ull << 30, 2ull << 30};
  r->env.slot_bytes = 1 << 20;
  r->env.nslots = 8;
  if (r->env.rank % 3 == 2) setrlimit(RLIMIT_AS, &little);
}
TEST(member_cannot_map) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their own address space is beyond the limit */
  run_apart(limit_address_space, "rank 2 cannot map");
#else
  (void)limit_address_space;
  puts("SKIP: limits of address space leave none to sanitizers");
#endif
}

/* A listener stands for the communicator's data connections. */
static int listener;
static struct sockaddr_in listening;
static hk_status fake_dial(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd) {
  (void)at, (void)tag, (void)arg;
  MUST(peer == 0);
  *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  MUST(connect(*fd, (struct sockaddr *)&listening, sizeof listening) == 0);
  return HK_OK;
}
static int fake_take(void *arg, int peer, uint64_t tag) {
  (void)arg, (void)tag;
  return peer == 1 ? accept(listener, NULL, NULL) : -1;
}
static void give_connections(world_rank *r) {
  r->env.dial = fake_dial;
  r->env.take = fake_take;
}
/* As in another network namespace: a process finds no socket of the leader's name. It may be the leader itself, which
 * has no descriptor left. */
static int without;
static hk_status join_without_leader(hk_transport_state *s, const hk_facts *facts) {
  if (s->env->rank % 3 != without) return hk_transport_shm.join(s, facts);
  char(*copy)[HK_FACT_BYTES] = malloc((size_t)s->env->nranks * HK_FACT_BYTES);
  memcpy(copy, facts->first, (size_t)s->env->nranks * HK_FACT_BYTES);
  ((hk_shm_fact *)copy[0])->name[12] ^= 1;
  hk_status rc = hk_transport_shm.join(s, &(hk_facts){copy, HK_FACT_BYTES});
  free(copy);
  return rc;
}
TEST_LOOP(leader_unreachable, 2) {
  socklen_t n = sizeof listening;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  listening = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  ck_assert(!bind(listener, (struct sockaddr *)&listening, n) && !listen(listener, 8));
  getsockname(listener, (struct sockaddr *)&listening, &n);
  hk_transport lost = hk_transport_shm;
  lost.join = join_without_leader;
  world *w = world_new(&lost, 6, 3, apart_for);
  w->tamper = give_connections;
  without = _i;
  w->arg = (void *)(_i ? "rank 1 cannot reach rank 0's unix socket" : "rank 0 cannot reach rank 0's unix socket");
  ck_assert_int_eq(world_run(w), 0);
  close(listener);
}

static void become_nobody(world_rank *r) {
  if (r->env.rank == 4) MUST(setresuid(65534, 65534, 65534) == 0); /* with rank 1, whose process this is */
}
TEST(other_user) {
  if (getuid() != 0) {
    puts("SKIP: only root can have ranks of several users");
    return;
  }
  run_apart(become_nobody, "different users");
}

static void both_off(world_rank *r) {
  char why[160];
  MUST(!r->transport->reachable(r->state, !r->env.rank, why, sizeof why) && strstr(why, "NCCL_P2P_DISABLE"));
  MUST(!r->transport->host->failure_word(r->state) && !r->transport->host->status_page(r->state, r->env.rank) &&
       !r->transport->multicast(r->state));
}
TEST(all_disabled) {
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, 0, both_off)), 0);
}

/* ---- deaths ---- */

static hk_status die_in_join(hk_transport_state *s, const hk_facts *facts) {
  if (s->env->rank == 0) raise(SIGKILL);
  usleep(30000);
  hk_status rc = hk_transport_shm.join(s, facts);
  MUST(rc != HK_OK);
  _exit(0);
}
/* Without a way to tell a dead leader from one in another network namespace, the communicator's connections must. */
static hk_status dial_the_dead(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd) {
  (void)at, (void)tag, (void)arg, (void)fd;
  return HK_FAIL(HK_ERR_REMOTE, "rank %d is dead", peer);
}
static void only_the_dead(world_rank *r) { r->env.dial = dial_the_dead; }
TEST(leader_killed_in_join) {
  hk_transport dying = hk_transport_shm;
  dying.join = die_in_join;
  world *w = world_new(&dying, 3, 3, apart);
  w->tamper = only_the_dead;
  ck_assert_int_eq(world_run(w), 1);
}

/* A member that never maps: the leader and the others wait until the failure word tells them. */
static hk_status never_join(hk_transport_state *s, const hk_facts *facts) {
  world_rank *r = (world_rank *)((char *)s->env - offsetof(world_rank, env));
  if (s->env->rank == 2) _exit(1);
  r->wait.deadline_ns = hk_now_ns() + 300 * 1000000ull; /* in its stead, a deadline */
  MUST(hk_transport_shm.join(s, facts) == HK_ERR_REMOTE);
  _exit(0);
}
TEST(member_killed_in_join) {
  hk_transport dying = hk_transport_shm;
  dying.join = never_join;
  ck_assert_int_eq(world_run(world_new(&dying, 3, 3, apart)), 1);
}

/* The leader is killed at work: the others' links go on, the arena is still there. */
static void survive(world_rank *r) {
  hk_link out, in;
  int me = r->env.rank;
  if (me == 0) {
    atomic_store(&r->world->notes[0], getpid());
    for (;;) pause();
  }
  while (!atomic_load(&r->world->notes[0])) usleep(1000);
  if (me == 1) {
    kill(atomic_load(&r->world->notes[0]), SIGKILL);
    usleep(20000);
  }
  world_open(r, 3 - me, HK_LINK_SEND, 0, &out);
  world_open(r, 3 - me, HK_LINK_RECV, 0, &in);
  for (int k = 0; k < 100; k++) {
    await_send(r, &out);
    *(int *)hk_link_send_buffer(&out, 4000) = k;
    hk_link_publish(&out, 4000, 0, 0);
    await_recv(r, &in);
    MUST(*(const int *)hk_link_recv_data(&in) == k);
    hk_link_release(&in);
  }
  world_close(r, &out);
  world_close(r, &in);
}
TEST(leader_killed) { ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 3, 3, survive)), 1); }

/* ---- leaks ---- */

enum { LIVES = 100 };
static void nothing(world_rank *r) {
  int n = r->env.nranks;
  world_barrier(r); /* all have joined */
  /* One rank counts: who counts has the folder open himself. */
  bool counts = r->env.rank == 0;
  int fds = counts ? open_fds() : 0, maps = counts ? count_maps() : 0;
  world_barrier(r);
  /* A second communicator, again and again, while the first exists. */
  for (int i = 0; i < LIVES; i++) {
    hk_transport_env env = r->env;
    hk_transport_state *s;
    char why[160];
    env.comm_id += 1000000u + (unsigned)i;
    MUST(r->transport->attach(&env, &s, r->world->facts[env.rank]) == HK_OK);
    world_barrier(r);
    MUST(r->transport->join(s, &(hk_facts){r->world->facts, HK_FACT_BYTES}) == HK_OK);
    MUST(r->transport->reachable(s, (env.rank + 1) % n, why, sizeof why));
    world_barrier(r);
    r->transport->detach(s);
  }
  world_barrier(r);
  if (counts) MUST(open_fds() <= fds);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (counts) printf("SKIP: %d mapped areas before: sanitizers keep maps of their own\n", maps);
#else
  if (counts) MUST(count_maps() <= maps + 8);
#endif
  world_barrier(r);
}
TEST_LOOP(no_leaks, 2) { ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, _i ? 2 : 0, nothing)), 0); }

/* ---- memory ---- */

static long resident_kib(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  MUST(fscanf(f, "%*d %ld", &pages) == 1);
  fclose(f);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Many ranks in one process, driven by one thread: the transport's own memory, idle and after every pair has talked. */
TEST(many_ranks) {
  enum { N = WORLD_MAX };
  world *w = world_new(&hk_transport_shm, N, 0, NULL);
  world_rank *r = calloc(N, sizeof *r);
  hk_service *service;
  hk_link out, in;
  long before = resident_kib();
  ck_assert_int_eq(hk_service_new(&service, "test"), HK_OK);
  for (int i = 0; i < N; i++) {
    r[i].transport = &hk_transport_shm;
    r[i].env = (hk_transport_env){.settings = hk_settings_now(),
                                  .rank = i,
                                  .nranks = N,
                                  .comm_id = 1,
                                  .secret = w->secret,
                                  .peers = w->peers,
                                  .wait = &r[i].wait,
                                  .service = service,
                                  .slot_bytes = 131072,
                                  .nslots = 8};
    ck_assert_int_eq(hk_transport_shm.attach(&r[i].env, &r[i].state, w->facts[i]), HK_OK);
  }
  for (int i = 0; i < N; i++)
    ck_assert_int_eq(hk_transport_shm.join(r[i].state, &(hk_facts){w->facts, HK_FACT_BYTES}), HK_OK);
  long idle = resident_kib() - before;
  for (int i = 0; i < N; i++)
    for (int p = 0; p < N; p++) {
      if (p == i) continue;
      world_open(&r[i], p, HK_LINK_SEND, HK_CHANNEL_P2P, &out);
      world_open(&r[p], i, HK_LINK_RECV, HK_CHANNEL_P2P, &in);
      *(int *)hk_link_send_buffer(&out, 4) = i ^ p;
      hk_link_publish(&out, 4, 0, 0);
      ck_assert(hk_link_can_recv(&in) && *(const int *)hk_link_recv_data(&in) == (i ^ p));
      hk_link_release(&in);
    }
  long talked = resident_kib() - before;
  for (int i = 0; i < N; i++) hk_transport_shm.detach(r[i].state);
  hk_service_free(service);
  free(r);
  munmap(w, sizeof *w);
  printf("%d ranks of a process: %ld KiB each idle, %ld KiB each after all pairs have talked\n", N, idle / N,
         talked / N);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ck_assert_int_le(idle / N, 8);
  ck_assert_int_le(talked / N, 256);
#endif
}

/* ---- hostile datagrams ---- */

static void send_junk(const world_rank *r, int socket) {
  static unsigned seed;
  char junk[2 * sizeof(hk_shm_message)];
  hk_shm_message m = {.verb = seed++ % 12, .processes = 3, .region = 1};
  int fds[2] = {0, 1};
  union {
    struct cmsghdr header;
    char capacity[CMSG_SPACE(sizeof fds)];
  } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds)}};
  memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
  for (size_t i = 0; i < sizeof junk; i++) junk[i] = (char)(i * 7 + seed);
  struct iovec data = {junk, seed * 37 % sizeof junk};
  struct msghdr h = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.capacity, .msg_controllen = sizeof control.capacity};
  (void)!sendmsg(socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (seed % 2) memcpy(m.secret, r->env.secret, 15); /* all but the last byte */
  hk_shm_send(socket, NULL, &m, 0);
  usleep(100);
}

/* Who sent the junk has gone on, but this process's service may hold descriptors of it that it is about to close. */
static void await_closed(int most) {
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 20000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (open_fds() > most) MUST(hk_wait_pause(&w) == HK_OK);
}

static hk_status join_under_fire(hk_transport_state *s, const hk_facts *facts) {
  world_rank *r = (world_rank *)((char *)s->env - offsetof(world_rank, env));
  int fds = open_fds();
  int socket = hk_shm_dial(hk_shm_fact_of(facts, 0)->name);
  MUST(socket >= 0);
  for (int i = 0; i < 500; i++) send_junk(r, socket);
  world_barrier(r);
  await_closed(fds + 1);
  world_barrier(r);
  hk_status rc = hk_transport_shm.join(s, facts);
  for (int i = 0; i < 500; i++) send_junk(r, socket);
  close(socket);
  return rc;
}
TEST(hostile) {
  hk_transport target = hk_transport_shm;
  target.join = join_under_fire;
  ck_assert_int_eq(world_run(world_new(&target, 3, 3, together)), 0);
}

/* Descriptors that this process has got, each of which the kernel has installed. */
static _Atomic(int) rights;
ssize_t recvmsg(int socket, struct msghdr *h, int flags) {
  ssize_t n = syscall(SYS_recvmsg, socket, h, flags);
  for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
    rights += c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS;
  return n;
}

/* A descriptor of a process without the secret is not even installed: its close could take for ever. The kernel's
 * filter drops the message for the sender; without one (_i is 1) it is dropped when it is looked at. */
TEST_LOOP(foreign_descriptor, 2) {
  char name[HK_SHM_NAME];
  const uint8_t *secret = (const uint8_t *)"sixteen letters.";
  int socket = hk_shm_listen(name, secret), dialed = hk_shm_dial(name), fd, off = 0;
  char byte;
  hk_shm_message m = {.verb = HK_SHM_PING}, got;
  hk_shm_address from;
  rights = 0;
  if (_i) ck_assert_int_eq(setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof off), 0);
  for (int i = 0; i < 40; i++) {
    memcpy(m.secret, secret, sizeof m.secret);
    const bool member = i % 4 == 3;
    if (!member) m.secret[i % 16] ^= 1;
    ck_assert(hk_shm_send(dialed, NULL, &m, i % 2 ? 0 : -1));
    ck_assert_int_eq(recv(socket, &byte, 1, MSG_PEEK) == 1, member || _i); /* else it is not even queued */
    ck_assert_int_eq(hk_shm_receive(socket, secret, &got, &from, &fd), member);
    ck_assert_int_eq(rights, (i + 1) / 4);
    ck_assert_int_eq(fd >= 0, member);
    if (member) close(fd);
  }
  ck_assert(!hk_shm_receive(socket, secret, &got, &from, &fd) && errno == EAGAIN);
  close(socket);
  close(dialed);
}

/* ---- a process that ends while another waits for its answer ---- */

typedef struct speaker {
  int socket;
  hk_shm_address to;
  hk_shm_message m;
  bool speaks;
} speaker;

/* Between two looks of the process that waits. */
static void end_speaker(void *arg) {
  speaker *s = arg;
  if (s->socket < 0) return;
  hk_shm_message stray = s->m;
  stray.secret[0] ^= 1;
  ck_assert(hk_shm_send(s->socket, &s->to, &stray, -1));
  if (s->speaks) ck_assert(hk_shm_send(s->socket, &s->to, &s->m, -1));
  close(s->socket);
  s->socket = -1;
}

TEST_LOOP(last_words, 3) {
  char name[HK_SHM_NAME];
  hk_wait_env wait = {.deadline_ns = hk_now_ns() + 10000000000u};
  hk_transport_env env = {
      .settings = hk_settings_now(), .rank = 1, .wait = &wait, .secret = (const uint8_t *)"sixteen letters."};
  speaker s = {
      .socket = hk_shm_listen(name, env.secret), .m = {.verb = HK_SHM_REFUSE, .reason = "enough"}, .speaks = _i};
  hk_shm_message m;
  int own = hk_shm_dial(name), fd;
  memcpy(s.m.secret, env.secret, sizeof s.m.secret);
  if (_i == 2) memset(s.m.reason, 'x', sizeof s.m.reason); /* without an end */
  ck_assert(hk_shm_send(own, NULL, &s.m, -1) && hk_shm_receive(s.socket, env.secret, &m, &s.to, &fd));
  hk_status rc = hk_shm_receive_wait(own, &env, 2, end_speaker, &s, &m, &fd);
  if (_i)
    ck_assert_msg(rc == HK_OK && m.verb == HK_SHM_REFUSE && !strncmp(m.reason, s.m.reason, sizeof m.reason - 1) &&
                      memchr(m.reason, 0, sizeof m.reason),
                  "%s", hk_last_error());
  else
    ck_assert_msg(rc == HK_ERR_REMOTE && strstr(hk_last_error(), "rank 2's process ended"), "%s", hk_last_error());
  close(own);
}

/* ---- the board alone: readers see whole entries however fast the writer is ---- */

static hk_status_page board;
static _Atomic int board_stop;
static void *post_board(void *arg) {
  (void)arg;
  for (uint64_t k = 1; !atomic_load(&board_stop); k++)
    status_page_publish(
        &board, &(hk_status_page_op){.sequence = k, .count = k * 3, .signature = (uint32_t)k * 5, .root = (int)k * 7});
  return NULL;
}
TEST(board_is_whole) {
  pthread_t t;
  hk_status_page_op op;
  uint64_t last = 0;
  ck_assert(!hk_status_page_read(&board, &op));
  pthread_create(&t, NULL, post_board, NULL);
  for (int i = 0; i < 100000; i++) {
    if (!hk_status_page_read(&board, &op)) continue;
    ck_assert(op.sequence >= last && op.count == op.sequence * 3 && op.signature == (uint32_t)op.sequence * 5 &&
              op.root == (int)op.sequence * 7);
    last = op.sequence;
  }
  atomic_store(&board_stop, 1);
  pthread_join(t, NULL);
}

int main(void) { return suite_main("shm", .timeout = 60); }
