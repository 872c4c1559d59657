/* SPDX-License-Identifier: Apache-2.0 */
/* What the socket provider writes and reads on fixed schedules, compared with a file: trace.h. Both ranks are of this
 * thread, and the streams between them are the test's: each call moves as many bytes as the schedule says.
 * check: notsan */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include "../../src/base/iface.h"
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_streams.h"
#include "../support/suite.h"
#include "../support/trace.h"

#define TRACE_FILE "tests/golden/socket_trace.txt"
enum { SLOTS = 4, SLOT = 262144, STREAM = 100000, WIRES = 16 };

/* ---- streams ---- */

typedef struct wire {
  int fd, rank, number;
  char bytes[STREAM]; /* that have come and were not read */
  size_t n;
  struct wire *peer;
  bool ended, watched, news_in, news_out;
  int in_due, out_due; /* turns until there is news, after a call that moved less than it could */
  void *tag;           /* epoll's */
} wire;
static wire wires[2 * WIRES];
static int nwires;
static unsigned most, moment; /* bytes that a call moves; 0: all */
static struct { int rank, sends, err; /* the next call of this kind fails so */ } fault = {.rank = -1};

static wire *wire_of(int fd) {
  for (int i = 0; i < nwires; i++)
    if (wires[i].fd == fd) return &wires[i];
  return NULL;
}
/* So many bytes may be moved now. */
static size_t allowed(size_t asked) {
  if (!most) return asked;
  const uint32_t h = mix(moment++);
  const size_t n = h % 5 == 0 ? 0 : 1 + h % most;
  return n < asked ? n : asked;
}
static bool fails(const wire *w, int sends) {
  if (fault.rank != w->rank || fault.sends != sends) return false;
  fault.rank = -1;
  errno = fault.err;
  trace_say("rank %d, %d: %s fails with %d", w->rank, w->number, sends ? "sends" : "receives", fault.err);
  return true;
}
static const char *lengths(const struct iovec *v, int n) {
  static char text[400];
  size_t used = 0;
  for (int i = 0; i < n; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%zu", i ? "+" : "", v[i].iov_len);
  return text;
}
static ssize_t put(wire *w, const struct iovec *v, int n) {
  size_t asked = 0, capacity = STREAM - w->peer->n, done = 0;
  for (int i = 0; i < n; i++) asked += v[i].iov_len;
  if (fails(w, 1)) return -1;
  size_t take = allowed(asked < capacity ? asked : capacity);
  for (int i = 0; done < take; i++) {
    const size_t part = v[i].iov_len < take - done ? v[i].iov_len : take - done;
    memcpy(w->peer->bytes + w->peer->n, v[i].iov_base, part);
    w->peer->n += part;
    done += part;
  }
  trace_say("rank %d, %d: sends %s: %zu", w->rank, w->number, lengths(v, n), take);
  if (take < asked) w->out_due = 4;
  if (take) w->peer->news_in = true;
  if (take) return (ssize_t)take;
  errno = EAGAIN;
  return -1;
}
static ssize_t take(wire *w, const struct iovec *v, int n) {
  size_t asked = 0, done = 0;
  for (int i = 0; i < n; i++) asked += v[i].iov_len;
  if (fails(w, 0)) return -1;
  size_t got = allowed(asked < w->n ? asked : w->n);
  for (int i = 0; done < got; i++) {
    const size_t part = v[i].iov_len < got - done ? v[i].iov_len : got - done;
    memcpy(v[i].iov_base, w->bytes + done, part);
    done += part;
  }
  trace_say("rank %d, %d: receives %s: %zu", w->rank, w->number, lengths(v, n), got);
  if (got < asked && w->n > got) w->in_due = 4;
  w->n -= got;
  memmove(w->bytes, w->bytes + got, w->n);
  if (got || (!w->n && w->ended)) return (ssize_t)got;
  errno = EAGAIN;
  return -1;
}

/* In place of the kernel's, for these streams. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  wire *w = wire_of(fd);
  return w ? put(w, m->msg_iov, (int)m->msg_iovlen) : syscall(SYS_sendmsg, fd, m, flags);
}
ssize_t send(int fd, const void *data, size_t bytes, int flags) {
  wire *w = wire_of(fd);
  const struct iovec v = {(void *)(uintptr_t)data, bytes};
  return w ? put(w, &v, 1) : syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0);
}
ssize_t readv(int fd, const struct iovec *v, int n) {
  wire *w = wire_of(fd);
  return w ? take(w, v, n) : syscall(SYS_readv, fd, v, n);
}
ssize_t recv(int fd, void *data, size_t bytes, int flags) {
  wire *w = wire_of(fd);
  const struct iovec v = {data, bytes};
  return w ? take(w, &v, 1) : syscall(SYS_recvfrom, fd, data, bytes, flags, NULL, NULL);
}
int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes) {
  const wire *w = wire_of(fd);
  if (!w) return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
  static const char *const names[] = {
      [TCP_NODELAY] = "nodelay",          [TCP_KEEPIDLE] = "keepidle",        [TCP_KEEPINTVL] = "keepintvl",
      [TCP_KEEPCNT] = "keepcnt",          [TCP_CONGESTION] = "congestion of", [TCP_QUICKACK] = "quickack",
      [44] = "longest wait to send again"};
  int number = (int)bytes;
  if (bytes == sizeof number && name != TCP_CONGESTION) memcpy(&number, value, sizeof number);
  trace_say("rank %d, %d: %s %d", w->rank, w->number, level == SOL_SOCKET ? "keepalive" : names[name], number);
  return 0;
}
static struct tcp_info kernel; /* what it says of each stream; without probes: nothing */
int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
  if (!wire_of(fd) || !kernel.tcpi_probes) return (int)syscall(SYS_getsockopt, fd, level, name, value, bytes);
  memcpy(value, &kernel, *bytes < sizeof kernel ? *bytes : sizeof kernel);
  return 0;
}
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *e) {
  wire *w = wire_of(fd);
  if (!w) return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, e);
  trace_say("rank %d, %d: watched for %#x", w->rank, w->number, e->events);
  w->watched = w->news_in = w->news_out = true;
  w->tag = e->data.ptr;
  return 0;
}
static int asking; /* the rank that makes progress */
int epoll_wait(int epoll, struct epoll_event *events, int capacity, int patience_ms) {
  int n = 0;
  (void)epoll;
  for (int i = 0; i < nwires && n < capacity; i++) {
    wire *w = &wires[i];
    if (w->rank != asking || !w->watched) continue;
    const uint32_t in = w->news_in && (w->n || w->ended) ? EPOLLIN : 0,
                   out = w->news_out && w->peer->n < STREAM ? EPOLLOUT : 0;
    w->news_in = w->news_out = false;
    if (w->peer->n == STREAM) w->out_due = 4;
    if (in || out) events[n++] = (struct epoll_event){.events = in | out, .data.ptr = w->tag};
  }
  trace_say("rank %d: asks for %d ms: %d", asking, patience_ms, n);
  return n;
}

static hk_status make_wires(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  net_rank *r = arg;
  net_world *w = r->world;
  int both[2];
  (void)at;
  net_pair(false, both);
  ck_assert_int_lt(nwires + 2, 2 * WIRES);
  for (int i = 0; i < 2; i++)
    wires[nwires + i] =
        (wire){.fd = both[i], .rank = i ? peer : r->rank, .number = nwires / 2, .peer = &wires[nwires + !i]};
  nwires += 2;
  w->mail[w->nmail].from = r->rank;
  w->mail[w->nmail].to = peer;
  w->mail[w->nmail].fd = both[1];
  w->mail[w->nmail++].tag = tag;
  *fd = both[0];
  trace_say("rank %d: dials %d for %c %llu", r->rank, peer, (int)(tag >> 56), (unsigned long long)(tag & 0xffffff));
  return HK_OK;
}

/* ---- rules ---- What must be so between any two calls, whatever the schedule. */

static void check_end(const hk_net_end *e, bool sends) {
  static uint64_t before[2][2];
  const hk_link *l = e->link;
  const uint64_t head = atomic_load(&l->heads->value);
  ck_assert_uint_ge(e->next, before[e->key.peer][sends]);
  before[e->key.peer][sends] = e->next;
  /* Sent: given back; received: read. There are SLOTS of them. */
  if (sends)
    ck_assert(head == e->next && head <= l->done && l->done - head <= SLOTS);
  else
    ck_assert(head <= e->next && e->next - head <= SLOTS);
}
static void check_conn(const hk_socket_conn *c) {
  const hk_socket_rx *r = &c->rx;
  ck_assert(c->nconnected <= c->nsockets && r->head_got <= sizeof r->head);
  ck_assert(r->ahead_at <= r->ahead_end && r->ahead_end <= r->ahead_capacity);
  ck_assert(!r->begun || (r->head_got == sizeof r->head && r->head.bytes <= SLOT));
  if (c->send) check_end(c->send, true);
  if (c->recv) check_end(c->recv, false);
  for (int i = 0; i < c->nsockets; i++) {
    const hk_socket_wire *w = &c->wires[i];
    ck_assert(!r->begun || w->got <= r->head.bytes);
    if (!c->send) continue;
    ck_assert(w->slot >= c->send->next && w->slot <= c->send->link->done);
    ck_assert(w->offset <= sizeof(hk_wire_header) + SLOT);
    ck_assert(!w->offset || w->slot < c->send->link->done);
  }
}
/* All messages have come: nothing of any is left in a stream or in the connection. */
static void check_settled(const hk_socket_conn *c) {
  for (int i = 0; i < nwires; i++) ck_assert_uint_eq(wires[i].n, 0);
  ck_assert(!c->failed && !c->rx.head_got && c->rx.ahead_at == c->rx.ahead_end);
  for (int i = 0; i < c->nsockets; i++)
    ck_assert(!c->wires[i].offset && (!c->send || c->wires[i].slot == c->send->next));
}

/* ---- scenes ---- */

typedef struct scene {
  net_world *w;
  hk_link *send[2], *recv[2];
  unsigned sent[2], got[2];
  bool by_ref, want;
  hk_status rc[2];
  bool ended[2];
} scene;

static hk_socket_conn *conn_of(const scene *s, int rank) {
  const hk_link *l = s->send[rank] ? s->send[rank] : s->recv[rank];
  return ((hk_net_end *)l->priv)->priv;
}

static void turn(scene *s, int me) {
  asking = me;
  bool moved = false;
  if (s->rc[me] == HK_OK) s->rc[me] = net_progress(&s->w->ranks[me], &moved);
  if (s->rc[me] == HK_OK && !moved) hk_transport_net.proxied->sleep(s->w->ranks[me].state);
  trace_log();
  if (s->rc[me] != HK_OK && !s->ended[me]) trace_failure(me, s->rc[me]);
  s->ended[me] = s->rc[me] != HK_OK;
  check_conn(conn_of(s, me));
  for (int i = 0; i < nwires; i++) {
    if (wires[i].in_due && !--wires[i].in_due) wires[i].news_in = true;
    if (wires[i].out_due && !--wires[i].out_due) wires[i].news_out = true;
  }
  trace_now += MS;
}
static void turns(scene *s, int n) {
  for (int i = 0; i < 2 * n; i++) turn(s, i % 2);
}

static scene open_scene(const char *name, const char *sockets, bool near, bool both, bool quiet) {
  scene s = {.w = NULL};
  scratch_make();
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_NSOCKS_PERTHREAD", sockets, 1);
  trace.blocked = true; /* what it says of the host's interfaces */
  trace_start(name);
  s.w = net_world_new(2, SLOTS, SLOT);
  if (!near) s.w->peers[1].host++;
  trace_log();
  trace.blocked = quiet;
  for (int i = 0; i < 2; i++) {
    s.w->ranks[i].env.dial = make_wires;
    if (!i || both) s.send[i] = net_link(&s.w->ranks[i], 1 - i, HK_LINK_SEND, 3);
    if (i || both) s.recv[i] = net_link(&s.w->ranks[i], 1 - i, HK_LINK_RECV, 3);
    conn_of(&s, i)->lead_max = 131072;
  }
  turns(&s, 2);
  trace.blocked = false;
  return s;
}
static void close_scene(scene *s) {
  for (int i = 0; i < 2; i++) {
    if (s->send[i]) net_unlink(s->send[i]);
    if (s->recv[i]) net_unlink(s->recv[i]);
  }
  net_world_free(s->w);
  nwires = 0;
  trace_compare(TRACE_FILE);
  scratch_remove();
}

static void send_one(scene *s, int me, uint32_t bytes) {
  static unsigned char data[2][SLOTS + 1][SLOT];
  unsigned char *from = data[me][s->sent[me] % (SLOTS + 1)];
  fill(from, bytes, s->sent[me]);
  trace_say("rank %d: message %u of %u bytes", me, s->sent[me], bytes);
  ck_assert(net_try_send(s->send[me], from, bytes, 1000 + s->sent[me], s->by_ref));
  s->sent[me]++;
}
static void receive_one(scene *s, int me, uint32_t expected) {
  static unsigned char data[2][SLOT];
  uint32_t bytes, signature;
  bool direct;
  if (!net_try_recv(s->recv[me], data[me], expected, s->want, &bytes, &signature, &direct)) return;
  ck_assert_uint_eq(bytes, expected);
  ck_assert_uint_eq(signature, 1000 + s->got[me]);
  ck_assert(filled(data[me], bytes, s->got[me]));
  trace_say("rank %d: got %u of %u bytes%s", me, s->got[me]++, bytes, direct ? ", in place" : "");
}

/* n messages each way, of these sizes in turn. A rank does what `when` says: it sends if it may, receives, or makes
 * progress. */
static void exchange(scene *s, const uint32_t *sizes, unsigned nsizes, unsigned n) {
  const unsigned begin[2] = {s->sent[0], s->sent[1]};
  for (unsigned step = 0; step < 20000; step++) {
    const int me = (int)(step % 2);
    bool over = true;
    if (s->send[me] && s->rc[me] == HK_OK && s->sent[me] - begin[me] < n && hk_link_can_send(s->send[me], 0))
      send_one(s, me, sizes[(s->sent[me] + (unsigned)me) % nsizes]);
    if (s->recv[me] && s->rc[me] == HK_OK && s->got[me] - begin[1 - me] < n && mix(step) % 3)
      receive_one(s, me, sizes[(s->got[me] + (unsigned)(1 - me)) % nsizes]);
    turn(s, me);
    for (int i = 0; i < 2; i++)
      if (s->recv[i] && s->got[i] - begin[1 - i] < n && s->rc[i] == HK_OK) over = false;
    if (over) return;
  }
  trace_say("no end");
}

static const uint32_t small[] = {0, 1, 48, 49, 1000, 1024, 1025, 8},
                      large[] = {65535, 65536, 100, 200000, 262144, 98304};

static const struct {
  const char *name, *sockets;
  bool near, both, by_ref, want, is_small;
  unsigned most, count;
} ways[] = {{"near", "1", true, true, false, false, true, 0, 12},
            {"stream", "1", true, false, false, false, true, 0, 44},
            {"far", "1", false, true, true, true, false, 0, 8},
            {"pieces", "1", true, true, false, true, true, 300, 10},
            {"stripes", "3", false, true, true, true, false, 0, 8},
            {"many stripes", "6", true, false, true, false, false, 30000, 8},
            {"pieces of stripes", "2", false, true, false, true, false, 60000, 6}};
TEST_LOOP(carries_messages, HK_ARRAY_LENGTH(ways)) {
  scene s = open_scene(ways[_i].name, ways[_i].sockets, ways[_i].near, ways[_i].both, false);
  s.by_ref = ways[_i].by_ref;
  s.want = ways[_i].want;
  most = ways[_i].most;
  if (ways[_i].is_small)
    exchange(&s, small, HK_ARRAY_LENGTH(small), ways[_i].count);
  else
    exchange(&s, large, HK_ARRAY_LENGTH(large), ways[_i].count);
  turns(&s, 2);
  for (int i = 0; i < 2; i++) check_settled(conn_of(&s, i));
  close_scene(&s);
}

/* ---- faults ---- */

/* Other scenes show this. */
static void begin_quietly(scene *s) {
  trace.blocked = true;
  exchange(s, small, 3, 3);
  trace.blocked = false;
}

/* Of a call with rank 1's first socket, after some messages; before or in a message of this many bytes. */
static const struct {
  int sends, err;
  uint32_t bytes;
} faults[] = {{1, EFAULT, 70000},  {1, ECONNRESET, 8}, {1, EPIPE, 70000},  {1, ENOMEM, 8},     {1, EHOSTUNREACH, 8},
              {1, EINTR, 70000},   {0, EFAULT, 8},     {0, EFAULT, 70000}, {0, ECONNRESET, 8}, {0, ETIMEDOUT, 70000},
              {0, ENOBUFS, 70000}, {0, EBADMSG, 8},    {0, EINTR, 70000},  {0, EIO, 8}};
TEST_LOOP(reports_faults, HK_ARRAY_LENGTH(faults)) {
  char name[40];
  snprintf(name, sizeof name, "fault %d", _i);
  scene s = open_scene(name, "2", true, true, true);
  begin_quietly(&s);
  send_one(&s, 0, faults[_i].bytes);
  send_one(&s, 1, faults[_i].bytes);
  hk_link_set_waiting(s.recv[1], HK_LINK_WAITS);
  turn(&s, 0);
  if (faults[_i].bytes > 48 && !faults[_i].sends) most = 20000; /* in the message */
  if (most) turn(&s, 1);
  fault.rank = 1;
  fault.sends = faults[_i].sends;
  fault.err = faults[_i].err;
  turns(&s, 4);
  ck_assert_int_eq(fault.rank, -1);
  close_scene(&s);
}

/* The peer ends: between two messages, of which a lane waits for the next or not, in a header, in a payload, in a part
 * of the second socket. */
static const struct {
  int wire;
  size_t bytes; /* that come before the end */
  hk_link_waiting waiting;
} closings[] = {{0, 0, HK_LINK_WAITS}, {0, 0, HK_LINK_TAKES},   {0, 0, HK_LINK_NO_WAIT},
                {0, 7, HK_LINK_WAITS}, {0, 116, HK_LINK_WAITS}, {1, 100, HK_LINK_WAITS}};
TEST_LOOP(reports_ends, HK_ARRAY_LENGTH(closings)) {
  char name[40];
  snprintf(name, sizeof name, "end %d", _i);
  scene s = open_scene(name, "2", true, true, true);
  begin_quietly(&s);
  if (closings[_i].bytes) {
    send_one(&s, 0, 70000);
    turn(&s, 0);
  }
  hk_link_set_waiting(s.recv[1], closings[_i].waiting);
  for (int i = 1; i < nwires; i += 2) {
    if (wires[i].number == closings[_i].wire && wires[i].n > closings[_i].bytes) wires[i].n = closings[_i].bytes;
    wires[i].ended = wires[i].news_in = wires[i].number == closings[_i].wire;
  }
  for (int i = 0; i < 5; i++) turn(&s, 1);
  close_scene(&s);
}

/* The peer's host answers no more, while a lane waits, while something is to be sent, or while nothing is done. */
TEST_LOOP(reports_silent_hosts, 3) {
  char name[40];
  snprintf(name, sizeof name, "silence %d", _i);
  scene s = open_scene(name, "2", true, true, true);
  begin_quietly(&s);
  kernel.tcpi_probes = 1;
  trace.blocked = true;
  if (_i == 0) hk_link_set_waiting(s.recv[1], HK_LINK_WAITS);
  for (uint32_t second = 1; second < 90; second++) {
    if (_i == 1 && second == 1)
      for (int k = 0; k < SLOTS; k++) send_one(&s, 1, SLOT);
    kernel.tcpi_last_ack_recv = kernel.tcpi_last_data_recv = second * 1000 + 500;
    trace_now += SECOND;
    for (int k = 0; k < 260; k++) {
      if (_i == 1) wires[0].n = wires[2].n = STREAM; /* nothing goes */
      if (s.rc[1] == HK_OK) s.rc[1] = net_progress(&s.w->ranks[1], NULL);
    }
    trace.blocked = s.rc[1] == HK_OK;
    if (!s.ended[1]) trace_say("after %u s", second);
    turn(&s, 1);
  }
  kernel.tcpi_probes = 0;
  close_scene(&s);
}

/* ---- threads ---- */

/* What a job comes to: all of its bytes, some of them, an error, the peer's end. */
static const struct {
  bool sends, closed, bad;
  size_t there, asked, moved;
  int err;
} jobs[] = {{false, false, false, 100, 100, 100, 0},
            {false, false, false, 40, 100, 40, EAGAIN},
            {false, true, false, 40, 100, 40, HK_JOB_CLOSED},
            {false, false, true, 0, 100, 0, EBADF},
            {true, false, false, 0, 100, 100, 0},
            {true, true, false, 0, 100, 0, EPIPE}};
TEST_LOOP(carries_out_jobs, HK_ARRAY_LENGTH(jobs)) {
  static const hk_wait_env wait = {.spins = 1};
  const hk_transport_env env = {.settings = hk_settings_now(), .wait = &wait};
  char bytes[100] = {0};
  int both[2];
  hk_socket_threads *p = hk_socket_threads_begin(&env, 2);
  hk_socket_job j = {.sends = jobs[_i].sends, .n = 1, .bytes = jobs[_i].asked, .moved = 77, .err = 77};
  j.iov[0] = (struct iovec){bytes, sizeof bytes};
  for (unsigned s = 0; s < 7; s++) ck_assert_int_eq(hk_socket_threads_have(p, s), s % 3 != 0);
  ck_assert(!hk_socket_threads_have(NULL, 1));
  net_pair(false, both);
  ck_assert_int_eq(send(both[1], bytes, jobs[_i].there, 0), (ssize_t)jobs[_i].there);
  if (jobs[_i].closed) close(both[1]);
  j.fd = jobs[_i].bad ? -1 : both[0];
  hk_socket_threads_post(p, 1, &j);
  while (atomic_load(&j.state) != HK_JOB_DONE) sched_yield();
  ck_assert_uint_eq(j.moved, jobs[_i].moved);
  ck_assert_int_eq(j.err, jobs[_i].err);
  hk_socket_threads_end(p);
  close(both[0]);
  if (!jobs[_i].closed) close(both[1]);
}

/* ---- interfaces ---- */

/* Whether the user has named them; each is in the log once. */
static const struct {
  const char *names;
  bool named;
} named[] = {{NULL, false}, {"", false}, {"lo", true}, {"=lo", true}, {"^nothing", false}};
TEST_LOOP(knows_its_interfaces, HK_ARRAY_LENGTH(named)) {
  hk_transport_env env = {.nranks = 1};
  hk_socket_fact mine;
  hk_iface ifaces[32];
  int n = 32, listed = 0;
  void *ctx;
  char line[300];
  scratch_make();
  if (named[_i].names) setenv("NCCL_SOCKET_IFNAME", named[_i].names, 1);
  env.settings = hk_settings_now();
  trace_start("interfaces");
  trace_now = 0;
  memset(&mine, 0xee, sizeof mine);
  ck_assert_int_eq(hk_net_socket.init(&env, &ctx, &mine), HK_OK);
  ck_assert_int_eq(mine.named, named[_i].named);
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), ifaces, &n, NULL), HK_OK);
  while (fgets(line, sizeof line, trace.log))
    if (strstr(line, "INFO interface ")) listed++;
  ck_assert_int_eq(listed, n);
  hk_net_socket.fini(ctx);
  fclose(trace.log);
  scratch_remove();
}

int main(void) {
  golden_clear(TRACE_FILE);
  return suite_main("socket_trace");
}
