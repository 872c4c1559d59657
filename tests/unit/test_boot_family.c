/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What comes to a process's listener for its ranks: before they have joined, for them, and after they have left; the
 * admission queue; the addresses that a process gives. Connections are socket pairs, and the test holds the
 * listener's lock. */
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "../../src/base/iface.h"
#include "../../src/boot/internal.h"
#include "../support/boot_ranks.h"

#define S UINT64_C(1000000000)
enum { RANKS = 4, SELF = 1, COMM = 0xc0, GONE = 64 /* ranks that are remembered */ };

static const uint8_t secret[HK_SECRET_BYTES] = {1}, other_secret[HK_SECRET_BYTES] = {2};
static hk_listener *l;
static hk_family *family;
static struct hk_bootstrap boot;
static int fds_before;

static void make(struct hk_bootstrap *b, uint64_t comm, int rank) {
  *b = (struct hk_bootstrap){.rank = rank, .nranks = RANKS, .rounds = 2, .comm = comm, .listener = l, .family = family};
  pthread_mutex_init(&b->lock, NULL);
  hk_cond_init(&b->change);
  b->inbox_end = &b->inbox;
  b->events_end = &b->events;
  b->deliveries_end = &b->deliveries;
  b->o.service = boot.o.service;
  b->o.settings = hk_settings_now();
  ck_assert_int_eq(hk_overlay_init(b), HK_OK);
}

static void setup(void) {
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "20");
  fds_before = open_fds();
  ck_assert_int_eq(hk_listener_get(&l), HK_OK);
  ck_assert_int_eq(hk_family_get(&family, l, secret), HK_OK);
  ck_assert_int_eq(hk_service_new(&boot.o.service, "test"), HK_OK);
  hk_service *service = boot.o.service;
  make(&boot, COMM, SELF);
  boot.o.service = service;
  boot.failures.seen = calloc(HK_EVENT_KINDS, sizeof *boot.failures.seen); /* for the ends of its links */
  boot.failures.dead = calloc(1, sizeof *boot.failures.dead);
}

/* All descriptors are given back: with the family what came for ranks that never joined. */
static void teardown(void) {
  hk_service *service = boot.o.service;
  if (boot.member) hk_member_leave(&boot);
  for (int i = 0; i < 4; i++)
    if (boot.links[i].fd >= 0) hk_service_remove(service, boot.links[i].fd);
  hk_overlay_free(&boot);
  hk_service_free(service);
  free(boot.failures.seen), free(boot.failures.dead);
  hk_family_put(l, family);
  hk_listener_put(l);
  ck_assert_int_eq(open_fds(), fds_before);
}

/* ---- families ---- */

TEST(one_for_each_secret) {
  hk_family *same, *other;
  ck_assert_int_eq(hk_family_get(&same, l, secret), HK_OK);
  ck_assert_int_eq(hk_family_get(&other, l, other_secret), HK_OK);
  ck_assert(same == family && other != family && family->users == 2 && l->families == other);
  hk_family_put(l, same);
  ck_assert(family->users == 1 && other->next == family);
  hk_family_put(l, family); /* not the first of the list */
  ck_assert(l->families == other && !other->next);
  ck_assert_int_eq(hk_family_get(&family, l, secret), HK_OK);
  hk_family_put(l, other);
  ck_assert(l->families == family && !family->next && !family->early);
}

static hk_message *message(int from, hk_frame_type type, uint64_t seq) {
  hk_message *m = calloc(1, sizeof *m);
  m->frame = (hk_frame){.type = (uint16_t)type, .seq = seq};
  m->from = from;
  return m;
}

/* Messages for a rank that has not joined wait for it in their order, those for others stay. */
TEST(early_messages) {
  static const int to[] = {SELF, 2, SELF, 3, SELF};
  struct hk_bootstrap from;
  make(&from, COMM, 0);
  for (int i = 0; i < 5; i++) ck_assert(hk_member_send(&from, to[i], message(0, HK_FRAME_BARRIER, (uint64_t)i)));
  from.comm++;
  ck_assert(hk_member_send(&from, SELF, message(0, HK_FRAME_BARRIER, 9))); /* of another communicator */
  from.comm--;
  hk_member_join(&boot);
  ck_assert(boot.member && l->nmembers == 1);
  uint64_t seq = 0;
  for (hk_message *m = boot.inbox; m; m = m->next, seq += 2) ck_assert_uint_eq(m->frame.seq, seq);
  ck_assert_uint_eq(seq, 6);
  ck_assert(hk_member_send(&from, SELF, message(0, HK_FRAME_BARRIER, seq)));
  ck_assert(*boot.inbox_end == NULL && boot.inbox->next->next->next->frame.seq == seq);
  ck_assert(hk_member_send(&from, 2, message(0, HK_FRAME_BARRIER, 4))); /* the end of the list is known */
  int left = 0;
  for (hk_early *p = family->early; p; p = p->next) left++;
  ck_assert(left == 4 && *family->early_end == NULL);
  ck_assert(hk_member_send(&from, SELF, message(0, HK_FRAME_OPEN, 0)));
  ck_assert(boot.links[0].local && boot.links[0].end == HK_END_OPEN && !boot.links[1].local);
  ck_assert(hk_member_send(&from, SELF, message(0, HK_FRAME_GOODBYE, 0)));
  ck_assert_int_eq(boot.links[0].end, HK_END_LEFT);
  hk_member_leave(&boot);
  ck_assert(!boot.member && !l->nmembers);
  ck_assert(!hk_member_send(&from, SELF, message(0, HK_FRAME_BARRIER, 1)));
  hk_overlay_free(&from);
}

/* Each rank of a process needs descriptors: the soft limit is raised when they are no longer enough. */
TEST(room_for_descriptors) {
  struct rlimit r;
  struct hk_bootstrap other;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &r), 0);
  r.rlim_cur = 256 + 2 * 16 - 1;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
  hk_member_join(&boot);
  ck_assert(getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur == 256 + 2 * 16 - 1);
  make(&other, COMM + 1, SELF);
  hk_member_join(&other);
  ck_assert(getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur == 2 * (256 + 2 * 16 - 1));
  hk_member_leave(&other);
  hk_overlay_free(&other);
}

/* The last 64 ranks that left are known; others count as ranks that have not joined yet. */
TEST(those_that_left) {
  static struct hk_bootstrap ranks[GONE + 1];
  hk_activity a;
  for (int i = 0; i <= GONE; i++) {
    make(&ranks[i], COMM + (uint64_t)i, SELF);
    hk_member_join(&ranks[i]);
  }
  hk_listener_lock();
  for (int i = 0; i <= GONE; i++) ck_assert_int_eq(hk_member_activity(l, family, ranks[i].comm, SELF, &a), HK_ACK_OK);
  hk_listener_unlock();
  for (int i = 0; i <= GONE; i++) {
    hk_member_leave(&ranks[i]);
    hk_listener_lock();
    for (int k = 0; k <= GONE; k++)
      ck_assert_int_eq(hk_member_activity(l, family, ranks[k].comm, SELF, &a), k > i           ? HK_ACK_OK
                                                                               : k + GONE <= i ? HK_ACK_UNKNOWN
                                                                                               : HK_ACK_GONE);
    ck_assert_int_eq(hk_member_activity(l, family, ranks[i].comm, SELF + 1, &a), HK_ACK_UNKNOWN);
    hk_listener_unlock();
    hk_overlay_free(&ranks[i]);
  }
}

/* ---- connections ---- */

typedef struct guest {
  hk_hello h;
  int fd;
  bool plain, on_spare;
  const uint8_t *secret; /* NULL: the right one */
} guest;

static guest a_guest(hk_hello_kind kind, int from, int to) {
  guest g = {.h = {.kind = kind, .from = from, .to = to, .comm = COMM, .key = family->key, .tag = 70}, .fd = -1};
  g.h.process = l->contact.process;
  g.h.nonce[0] = 3;
  return g;
}

/* Under the lock. */
static void come(guest *g) {
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  g->fd = pair[1];
  hk_connection *c = calloc(1, sizeof *c);
  *c = (hk_connection){.listener = l, .prev = l->pending_last, .fd = pair[0], .since_ns = hk_now_ns(), .ready = true};
  c->plain = g->plain;
  c->on_spare = g->on_spare;
  *(l->pending_last ? &l->pending_last->next : &l->pending) = c;
  l->pending_last = c;
  l->npending++;
  hk_hello_encode(c->in, &g->h, g->secret ? g->secret : secret);
  hk_family_hello(l, c, &g->h);
}

static int ack_of(const guest *g) {
  uint8_t in[HK_ACK_BYTES];
  hk_ack ack;
  if (recv(g->fd, in, sizeof in, 0) != HK_ACK_BYTES) return -1;
  ck_assert(hk_ack_decode(&ack, in, g->h.nonce, secret));
  return (int)ack;
}
static bool is_closed(const guest *g) {
  char byte;
  return recv(g->fd, &byte, 1, MSG_PEEK) == 0;
}

typedef struct row {
  hk_hello_kind kind;
  enum { PLAIN = 1, SPARE, FORGED, OTHER_KEY, OTHER_PROCESS, LEFT, WRONG_FROM } how;
  bool joined;
  int ack; /* -1: not a byte */
  bool kept;
} row;
static const row rows[] = {
    {HK_HELLO_DATA, 0, true, HK_ACK_OK, true},
    {HK_HELLO_DATA, 0, false, HK_ACK_OK, true},
    {HK_HELLO_OVERLAY, 0, true, HK_ACK_OK, true},
    {HK_HELLO_OVERLAY, 0, false, HK_ACK_OK, true},
    {HK_HELLO_OVERLAY, WRONG_FROM, true, HK_ACK_OK, false},
    {HK_HELLO_OVERLAY, WRONG_FROM, false, HK_ACK_OK, false},
    {HK_HELLO_DATA, PLAIN, true, -1, false},
    {HK_HELLO_DATA, FORGED, true, -1, false},
    {HK_HELLO_DATA, OTHER_KEY, true, -1, false},
    {HK_HELLO_DATA, OTHER_PROCESS, true, -1, false},
    {HK_HELLO_DATA, OTHER_PROCESS, false, -1, false},
    {HK_HELLO_OVERLAY, OTHER_PROCESS, false, -1, false},
    {HK_HELLO_ASK, OTHER_PROCESS, true, -1, false},
    {HK_HELLO_DATA, SPARE, true, HK_ACK_NO_ROOM, false},
    {HK_HELLO_DATA, SPARE, false, HK_ACK_NO_ROOM, false},
    {HK_HELLO_DATA, LEFT, true, HK_ACK_GONE, false},
};

TEST_LOOP(connections_for_ranks, HK_ARRAY_LENGTH(rows)) {
  const row *r = &rows[_i];
  guest g = a_guest(r->kind, 0, SELF);
  g.plain = r->how == PLAIN;
  g.on_spare = r->how == SPARE;
  if (r->how == FORGED) g.secret = other_secret;
  if (r->how == OTHER_KEY) g.h.key++;
  if (r->how == OTHER_PROCESS) g.h.process++;
  if (r->how == WRONG_FROM) g.h.from = 2;
  if (r->joined) hk_member_join(&boot);
  if (r->how == LEFT) hk_member_leave(&boot);
  hk_listener_lock();
  come(&g);
  ck_assert(!l->pending && !l->npending);
  ck_assert_int_eq(ack_of(&g), r->ack);
  ck_assert_int_eq(l->refused_errno, r->how == SPARE ? EMFILE : 0);
  hk_listener_unlock();
  if (!r->joined) {
    ck_assert_int_eq(is_closed(&g), r->ack != HK_ACK_OK);
    ck_assert_int_eq(family->early != NULL, r->ack == HK_ACK_OK);
    hk_member_join(&boot);
    ck_assert_ptr_null(family->early);
  }
  ck_assert_int_eq(is_closed(&g), !r->kept);
  int fd = hk_bootstrap_take(&boot, 0, 70);
  ck_assert_int_eq(fd >= 0, r->kept && r->kind == HK_HELLO_DATA);
  if (fd >= 0) close(fd);
  ck_assert_int_eq(hk_link_to(&boot, false, 0)->end, r->kept && fd < 0 ? HK_END_OPEN : HK_END_CLOSED);
  close(g.fd);
}

/* The next connection of a rank that was refused for five seconds ends this rank's waits. */
TEST(refused_for_long) {
  guest g = a_guest(HK_HELLO_DATA, 0, SELF);
  g.on_spare = true;
  hk_listener_lock();
  come(&g);
  ck_assert_int_ne(l->refusing_since_ns, 0);
  uint64_t since = l->refusing_since_ns -= 4 * S;
  close(g.fd);
  come(&g);
  ck_assert_uint_eq(l->refusing_since_ns, since); /* the first one counts */
  hk_listener_unlock();
  ck_assert_int_eq(hk_listener_check(l), HK_OK);
  hk_listener_lock();
  l->refusing_since_ns -= 1 * S;
  hk_listener_unlock();
  ck_assert_int_eq(hk_listener_check(l), HK_ERR_SYSTEM);
  close(g.fd);
}

/* Questions are answered for each rank, joined or not, whatever else there is no room for. */
TEST_LOOP(questions, 3) {
  static const int acks[] = {HK_ACK_OK, HK_ACK_UNKNOWN, HK_ACK_GONE};
  guest g = a_guest(HK_HELLO_ASK, 0, SELF);
  uint8_t in[HK_ACTIVITY_BYTES];
  hk_activity a;
  g.on_spare = _i == 0;
  if (_i != 1) hk_member_join(&boot);
  if (_i == 2) hk_member_leave(&boot);
  atomic_store(&boot.call.awaited, _i == 0 ? 3 : -1);
  hk_listener_lock();
  come(&g);
  ck_assert_int_eq(ack_of(&g), acks[_i]);
  ck_assert_int_eq(recv(g.fd, in, sizeof in, 0), HK_ACTIVITY_BYTES);
  ck_assert(hk_activity_decode(&a, in, g.h.nonce, secret));
  ck_assert(a.waits_for == (_i == 0 ? 3 : -1) && a.phase == HK_PHASE_IDLE);
  ck_assert(is_closed(&g) && !family->early && !l->refused_errno);
  hk_listener_unlock();
  close(g.fd);
}

/* What waits for a rank that has not joined goes only if it is dead and the init's time is over. */
TEST(early_connections_expire) {
  guest g[3];
  struct hk_bootstrap from;
  make(&from, COMM, 0);
  hk_listener_lock();
  for (int i = 0; i < 3; i++) g[i] = a_guest(HK_HELLO_DATA, 0, 3), come(&g[i]), (void)ack_of(&g[i]);
  hk_listener_unlock();
  ck_assert(hk_member_send(&from, 3, message(0, HK_FRAME_BARRIER, 1)));
  close(g[0].fd);
  close(g[2].fd);
  hk_listener_lock();
  hk_early *p[4] = {family->early};
  for (int i = 1; i < 4; i++) p[i] = p[i - 1]->next;
  for (int i = 0; i < 4; i++) p[i]->since_ns = p[0]->since_ns;
  uint64_t end = p[0]->since_ns + 20 * S;
  ck_assert(hk_families_expire(l, end) && family->early == p[0] && p[0]->next == p[1]);
  ck_assert(hk_families_expire(l, end + 1) && family->early == p[1] && p[1]->next == p[3] && !p[3]->next);
  ck_assert_ptr_eq(family->early_end, &p[3]->next);
  close(g[1].fd);
  ck_assert(hk_families_expire(l, end + 1) && family->early == p[3]);
  hk_listener_unlock();
  struct hk_bootstrap to;
  make(&to, COMM, 3);
  hk_member_join(&to);
  hk_listener_lock();
  ck_assert(!hk_families_expire(l, end + 1) && to.inbox && family->early_end == &family->early);
  hk_listener_unlock();
  hk_member_leave(&to);
  hk_overlay_free(&to);
  hk_overlay_free(&from);
}

/* ---- the admission queue ---- */

static int connect_here(void) {
  hk_addr at = l->contact.at[0];
  if (at.sa.sa_family == AF_INET) at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(at.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_eq(connect(fd, &at.sa, hk_addr_len(&at)), 0);
  return fd;
}
static bool pending_are(unsigned n) {
  bool are = false;
  for (uint64_t end = hk_now_ns() + 20 * S; !are && hk_now_ns() < end; usleep(500)) {
    hk_listener_lock();
    are = l->npending == n;
    hk_listener_unlock();
  }
  return are;
}
static bool ends_soon(int fd) {
  char byte;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 20000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

/* A connection that says nothing, or not all of a hello, is dropped after five seconds, and no younger one. */
TEST(silent_connections_go) {
  hk_hello h = a_guest(HK_HELLO_DATA, 0, SELF).h;
  uint8_t bytes[HK_HELLO_BYTES];
  int fd[3];
  hk_hello_encode(bytes, &h, secret);
  for (int i = 0; i < 3; i++) {
    fd[i] = connect_here();
    ck_assert(pending_are((unsigned)i + 1));
  }
  ck_assert_int_eq(send(fd[1], bytes, sizeof bytes - 1, 0), sizeof bytes - 1);
  hk_listener_lock();
  l->pending->since_ns -= 6 * S;
  l->pending->next->since_ns -= 6 * S;
  l->pending->next->next->since_ns -= 4 * S;
  hk_listener_unlock();
  ck_assert(ends_soon(fd[0]) && ends_soon(fd[1]) && pending_are(1));
  ck_assert_int_eq(send(fd[2], bytes, sizeof bytes, 0), sizeof bytes); /* its hello is as good as before */
  ck_assert(pending_are(0));
  uint8_t ack[HK_ACK_BYTES];
  ck_assert_int_eq(recv(fd[2], ack, sizeof ack, MSG_WAITALL), HK_ACK_BYTES);
  for (int i = 0; i < 3; i++) close(fd[i]);
}

/* Garbage goes at its first wrong byte, and the ends of a queue of any order leave it whole. */
TEST_LOOP(queue_of_connections, 4) {
  static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}};
  int fd[3];
  for (int i = 0; i < 3; i++) {
    fd[i] = connect_here();
    ck_assert(pending_are((unsigned)i + 1));
  }
  for (unsigned i = 0; i < 3; i++) {
    int at = orders[_i][i];
    if (i == 1)
      ck_assert_int_eq(send(fd[at], "\x89Hocked", 7, 0), 7);
    else
      shutdown(fd[at], SHUT_WR);
    ck_assert(ends_soon(fd[at]) && pending_are(2 - i));
    hk_listener_lock();
    const hk_connection *c = l->pending, *last = NULL;
    for (; c; last = c, c = c->next) ck_assert_ptr_eq(c->prev, last);
    ck_assert_ptr_eq(l->pending_last, last);
    hk_listener_unlock();
  }
  for (int i = 0; i < 3; i++) close(fd[i]);
}

/* ---- addresses ---- */

/* The ranks of a process ask at once for the way to one root: it is computed once in a second. */
TEST(contacts) {
  hk_contact c, again;
  hk_addr root = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}}, other = root;
  hk_addr_set_port(&root, 4000);
  hk_addr_set_port(&other, 4001);
  ck_assert_int_eq(hk_listener_contact(l, &c, NULL), HK_OK);
  ck_assert(c.process == hk_process_nonce() && c.pid == (uint32_t)getpid() && c.n >= 1 && !l->recent.since_ns);
  ck_assert_uint_ne(hk_addr_port(&c.at[0]), 0);
  ck_assert_int_eq(hk_listener_contact(l, &again, &root), HK_OK);
  ck_assert(again.process == c.process && again.pid == c.pid && hk_addr_is_loopback(&again.at[0]));
  for (uint32_t i = 0; i < again.n; i++) ck_assert_uint_eq(hk_addr_port(&again.at[i]), hk_addr_port(&c.at[0]));
  uint64_t since = l->recent.since_ns = hk_now_ns();
  ck_assert_int_eq(hk_listener_contact(l, &again, &root), HK_OK);
  ck_assert(l->recent.since_ns == since && hk_addr_is_loopback(&again.at[0]));
  ck_assert_int_eq(hk_listener_contact(l, &again, &other), HK_OK);
  ck_assert(l->recent.since_ns != since && hk_addr_equal(&l->recent.toward, &other));
  since = l->recent.since_ns -= S;
  ck_assert_int_eq(hk_listener_contact(l, &again, &other), HK_OK);
  ck_assert_uint_ne(l->recent.since_ns, since);
  set_param("NCCL_SOCKET_IFNAME", "nosuch");
  l->settings = hk_settings_now();
  ck_assert_int_eq(hk_listener_contact(l, &again, &root), HK_ERR_USAGE);
  ck_assert_int_eq(hk_listener_contact(l, &again, &other), HK_ERR_USAGE); /* what failed is not kept */
}

int main(void) { return suite_main("listener and families", .setup = setup, .teardown = teardown); }
