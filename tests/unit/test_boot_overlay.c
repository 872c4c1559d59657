/* SPDX-License-Identifier: Apache-2.0 */
/* The links of the overlay: frames in pieces, payloads that a socket does not accept at once, ends of all kinds. One
 * bootstrap, whose peers are the other ends of socket pairs. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include "../../src/boot/internal.h"
#include "../support/boot_ranks.h"

enum { RANKS = 7, ROUNDS = 3, LINKS = 2 * ROUNDS, SELF = 5, LARGE = 3 << 20 };

static struct hk_bootstrap *b;
static hk_listener listener;
static hk_family family;
static hk_wait_env wait_env;
static rank_state state; /* the events that on_event got */
static int peer[LINKS];  /* the other ends; -1: closed */
static int fds_before;

static void open_links(void) {
  for (int i = 0; i < LINKS; i++) {
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    peer[i] = pair[1];
    ck_assert_int_eq(hk_overlay_open(&b->links[i], pair[0]), HK_OK);
  }
}

static void setup(void) {
  fds_before = open_fds();
  b = calloc(1, sizeof *b);
  *b = (struct hk_bootstrap){.rank = SELF, .nranks = RANKS, .rounds = ROUNDS, .listener = &listener, .family = &family};
  b->o =
      (hk_bootstrap_options){.settings = hk_settings_now(), .on_event = record_event, .arg = &state, .wait = &wait_env};
  pthread_mutex_init(&b->lock, NULL);
  hk_cond_init(&b->change);
  b->inbox_end = &b->inbox;
  b->events_end = &b->events;
  b->deliveries_end = &b->deliveries;
  b->event_work = (hk_service_work){.fn = hk_event_work, .arg = b};
  b->contacts = calloc(RANKS, HK_CONTACT_BYTES);
  b->failures.seen = calloc(HK_EVENT_KINDS, sizeof *b->failures.seen);
  b->failures.dead = calloc(1, sizeof *b->failures.dead);
  b->failures.shrinks = calloc(RANKS, sizeof *b->failures.shrinks);
  ck_assert_int_eq(hk_service_new(&b->o.service, "test"), HK_OK);
  ck_assert_int_eq(hk_overlay_init(b), HK_OK);
  for (int i = 0; i < LINKS; i++) peer[i] = -1;
}

/* All that a bootstrap has taken is given back, however its links have ended. */
static void teardown(void) {
  hk_service *service = b->o.service;
  for (int i = 0; i < LINKS; i++)
    if (peer[i] >= 0) close(peer[i]);
  hk_overlay_leave(b);
  hk_overlay_free(b);
  hk_service_free(service);
  free(b->contacts), free(b->failures.seen), free(b->failures.dead), free(b->failures.shrinks), free(b);
  ck_assert_int_eq(open_fds(), fds_before);
}

static void send_all(int fd, const void *bytes, size_t n) { ck_assert_int_eq(send(fd, bytes, n, MSG_NOSIGNAL), n); }

/* Sends a frame to the link; `piece`: bytes at a time. */
static void say(int link, hk_frame_type type, uint64_t seq, const void *data, size_t n, size_t piece) {
  uint8_t out[HK_FRAME_BYTES + 2048];
  hk_frame f = {.type = (uint16_t)type, .round = (uint16_t)(link / 2), .bytes = (uint32_t)n, .seq = seq};
  hk_frame_encode(out, &f);
  if (n) memcpy(out + HK_FRAME_BYTES, data, n);
  for (size_t at = 0; at < HK_FRAME_BYTES + n; at += piece) {
    size_t left = HK_FRAME_BYTES + n - at;
    send_all(peer[link], out + at, left < piece ? left : piece);
  }
}

/* Reads a frame that the link sends; `data` has room for it. */
static hk_frame hear(int link, void *data) {
  uint8_t in[HK_FRAME_BYTES];
  struct pollfd p = {.fd = peer[link], .events = POLLIN};
  hk_frame f = {.type = 0};
  size_t have = 0, want = sizeof in;
  while (have < want && poll(&p, 1, 20000) == 1) {
    uint8_t *to = have < sizeof in ? in + have : (uint8_t *)data + have - sizeof in;
    ssize_t n = recv(peer[link], to, have < sizeof in ? sizeof in - have : want - have, 0);
    if (n <= 0) break;
    have += (size_t)n;
    if (have == sizeof in) {
      ck_assert(hk_frame_decode(&f, in, (uint32_t)link / 2));
      want += f.bytes;
    }
  }
  ck_assert_uint_eq(have, want);
  return f;
}
static bool is_silent(int link) {
  char byte;
  return recv(peer[link], &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}
/* Waits: the link's side is closed for writing. */
static bool has_ended(int link) {
  char byte;
  struct pollfd p = {.fd = peer[link], .events = POLLIN};
  return poll(&p, 1, 20000) == 1 && recv(peer[link], &byte, 1, MSG_PEEK) == 0;
}
/* What the service's thread does, too. */
static hk_link_end end_of(const hk_overlay_link *l) {
  pthread_mutex_lock(&b->lock);
  hk_link_end end = (hk_link_end)l->end;
  pthread_mutex_unlock(&b->lock);
  return end;
}
static void set_end(hk_overlay_link *l, hk_link_end end) {
  pthread_mutex_lock(&b->lock);
  l->end = (uint8_t)end;
  pthread_mutex_unlock(&b->lock);
}
static bool has_unsent(const hk_overlay_link *l) {
  pthread_mutex_lock(&b->lock);
  bool unsent = l->unsent;
  pthread_mutex_unlock(&b->lock);
  return unsent;
}
static bool ends_as(int link, hk_link_end end) {
  for (uint64_t until = hk_now_ns() + 20000000000u; hk_now_ns() < until; usleep(500))
    if (end_of(&b->links[link]) == end) return true;
  return false;
}

/* ---- receiving ---- */

TEST(neighbours) {
  for (int k = 0; k < ROUNDS; k++) {
    ck_assert_int_eq(hk_link_to(b, true, k)->rank, (SELF + (1 << k)) % RANKS);
    ck_assert_int_eq(hk_link_to(b, false, k)->rank, (SELF + RANKS - (1 << k)) % RANKS);
    ck_assert(hk_link_to(b, true, k)->next && !hk_link_to(b, false, k)->next && hk_link_to(b, false, k)->round == k);
    ck_assert(hk_link_to(b, true, k)->fd == -1 && hk_link_to(b, true, k)->end == HK_END_CLOSED);
  }
}

/* Frames arrive whole, in their order, and say by which link, however they were cut. */
TEST_LOOP(frames_in_pieces, 5) {
  static const size_t pieces[] = {1, 7, 16, 17, 1000};
  uint8_t row[300], contact[HK_CONTACT_BYTES];
  for (size_t i = 0; i < sizeof row; i++) row[i] = (uint8_t)(i * 7 + 1);
  memset(contact, 9, sizeof contact);
  open_links();
  for (int i = 0; i < LINKS; i++) {
    hk_overlay_link *l = &b->links[i];
    say(i, HK_FRAME_BARRIER, 1, NULL, 0, pieces[_i]);
    say(i, HK_FRAME_GATHER, 2, row, sizeof row, pieces[_i]);
    say(i, HK_FRAME_GATHER, 3, row, 0, pieces[_i]);
    say(i, HK_FRAME_CONTACT, 0, contact, sizeof contact, pieces[_i]);
    hk_frame_type types[] = {HK_FRAME_CONTACT, HK_FRAME_GATHER, HK_FRAME_BARRIER, HK_FRAME_GATHER};
    uint64_t seqs[] = {0, 2, 1, 3};
    for (int k = 0; k < 4; k++) {
      hk_message *m;
      hk_wait_env env = {.deadline_ns = hk_now_ns() + 20000000000u};
      ck_assert_int_eq(hk_overlay_await(l, types[k], seqs[k], &env, &m), HK_OK);
      ck_assert(m->from == l->rank && m->towards_next == !l->next && m->frame.round == l->round);
      ck_assert_uint_eq(m->frame.bytes, k == 0 ? sizeof contact : k == 1 ? sizeof row : 0);
      if (k == 1) ck_assert_mem_eq(m->data, row, sizeof row);
      if (k == 0) ck_assert_mem_eq(m->data, contact, sizeof contact);
      free(m);
    }
    ck_assert_ptr_null(b->inbox);
  }
  ck_assert_int_eq(state.nevents, 0);
}

/* An event is passed on, with a text of the greatest length, to all but the link that brought it. */
TEST(events_in_pieces) {
  uint8_t data[HK_EVENT_BYTES + HK_EVENT_TEXT - 1], got[HK_EVENT_BYTES + HK_EVENT_TEXT];
  hk_event e = {.kind = HK_EVENT_SUSPECT, .rank = 2, .from = 3, .code = HK_ERR_REMOTE};
  open_links();
  hk_event_encode(data, &e);
  memset(e.text, 'x', sizeof e.text - 1);
  memcpy(data + HK_EVENT_BYTES, e.text, sizeof e.text - 1);
  say(4, HK_FRAME_EVENT, 0, data, sizeof data, 5);
  ck_assert(await_count(&state.nevents, 1));
  ck_assert_str_eq(state.events[0].text, e.text);
  for (int i = 0; i < LINKS; i++) {
    if (i == 4) continue;
    hk_frame f = hear(i, got);
    ck_assert(f.type == HK_FRAME_EVENT && f.bytes == sizeof data);
    ck_assert_mem_eq(got, data, sizeof data);
  }
  ck_assert(is_silent(4));
}

/* A child of fork keeps the other ends alone, which are the test's. */
TEST(children_keep_no_link) {
  int before = sockets_of_a_child();
  hk_on_fork(NULL); /* as the listener does */
  open_links();
  ck_assert_int_eq(sockets_of_a_child(), before + LINKS);
}

/* ---- ends ---- */

typedef enum ending { BY_GOODBYE, BY_CLOSE, IN_A_FRAME, WRONG_FRAME, BY_TIMEOUT, NOT_KNOWN_WHY, WAYS } ending;
static const struct {
  hk_link_end end;
  const char *words; /* of the death; NULL: it has left */
} endings[WAYS] = {{HK_END_LEFT, NULL},
                   {HK_END_DEAD, "its control connection ended without ncclCommDestroy"},
                   {HK_END_DEAD, "its control connection ended without ncclCommDestroy"},
                   {HK_END_DEAD, "this version of the library does not know"},
                   {HK_END_DEAD, "its host or the network to it became silent (Connection timed out)"},
                   {HK_END_DEAD, "its control connection ended without ncclCommDestroy"}};

static void end_by(ending how, int link) {
  static const int codes[] = {[BY_TIMEOUT] = ETIMEDOUT, [NOT_KNOWN_WHY] = ENOTCONN};
  switch (how) {
    case BY_GOODBYE: say(link, HK_FRAME_GOODBYE, 0, NULL, 0, 100); return;
    case IN_A_FRAME: { /* after its header and some of its payload */
      uint8_t out[HK_FRAME_BYTES + 5] = {0};
      hk_frame f = {.type = HK_FRAME_GATHER, .round = (uint16_t)(link / 2), .bytes = 9};
      hk_frame_encode(out, &f);
      send_all(peer[link], out, sizeof out);
    } /* fall through */
    case BY_CLOSE: shutdown(peer[link], SHUT_WR); return;
    case WRONG_FRAME: say(link, HK_FRAME_GOODBYE + 1, 0, NULL, 0, 100); return;
    default: hk_overlay_died(&b->links[link], codes[how], NULL);
  }
}

TEST_LOOP(ends, WAYS) {
  uint8_t got[HK_EVENT_BYTES + HK_EVENT_TEXT];
  int by = 3;
  open_links();
  end_by((ending)_i, by);
  ck_assert(ends_as(by, endings[_i].end));
  ck_assert_int_eq(hk_bootstrap_left(b, b->links[by].rank), endings[_i].end == HK_END_LEFT);
  ck_assert_int_eq(hk_overlay_send(&b->links[by], HK_FRAME_BARRIER, 9, NULL, 0, NULL, 0), HK_OK); /* dropped */
  if (!endings[_i].words) {
    ck_assert(has_ended(by)); /* the answer */
    ck_assert_int_eq(state.nevents, 0);
    return;
  }
  ck_assert(await_count(&state.nevents, 1));
  ck_assert(state.events[0].kind == HK_EVENT_DEAD && state.events[0].rank == b->links[by].rank);
  ck_assert(state.events[0].from == SELF && state.events[0].code == HK_ERR_REMOTE);
  ck_assert_msg(strstr(state.events[0].text, endings[_i].words), "%s", state.events[0].text);
  for (int i = 0; i < LINKS; i++)
    if (i != by) ck_assert(hear(i, got).type == HK_FRAME_EVENT);
}

/* A link has ended without a goodbye: is the peer's process still there? Its first address says so; the others count
 * if that one cannot be reached. */
static const struct {
  uint32_t addresses, listens; /* how many there are; at which one a process listens */
  bool known;                  /* all ranks have joined, or those of the parent are known */
  hk_event_kind kind;
  int closes; /* that many connections, as a process does that is ending */
} asked[] = {{2, 1, true, HK_EVENT_DEAD, 0},  {2, 0, true, HK_EVENT_LINK, 0}, {1, 1, true, HK_EVENT_DEAD, 0},
             {1, 0, false, HK_EVENT_DEAD, 0}, {1, 0, true, HK_EVENT_DEAD, 1}, {1, 0, true, HK_EVENT_DEAD, INT_MAX}};

TEST_LOOP(asks_why, HK_ARRAY_LENGTH(asked)) {
  static const char *const both[] = {"between rank 3 and rank 5 was lost", "between rank 5 and rank 6 was lost"};
  hk_contact c = {.n = asked[_i].addresses, .process = 77};
  for (uint32_t i = 0; i < 2; i++)
    c.at[i].v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)};
  int fd, by = _i % 2 ? 3 : 0;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &c.at[asked[_i].listens], 5, &fd), HK_OK);
  hk_addr_set_port(&c.at[!asked[_i].listens], hk_addr_port(&c.at[asked[_i].listens]));
  hk_contact_encode(hk_contact_of(b, b->links[by].rank), &c);
  b->known = asked[_i].known;
  open_links();
  end_by(BY_CLOSE, by);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  for (int closed = 0; closed < asked[_i].closes && !atomic_load(&state.nevents);)
    if (poll(&p, 1, 10) == 1) closed += close(accept(fd, NULL, NULL)) == 0;
  ck_assert(await_count(&state.nevents, 1));
  const hk_event *e = &state.events[0];
  ck_assert_msg(e->kind == (int32_t)asked[_i].kind, "%d: %s", e->kind, e->text);
  if (e->kind == HK_EVENT_LINK) ck_assert_msg(strstr(e->text, both[by == 0]), "%s", e->text);
  if (e->kind == HK_EVENT_DEAD) ck_assert(e->rank == b->links[by].rank && e->from == SELF);
  pthread_mutex_lock(&b->lock);
  b->known = false; /* the goodbyes take less time */
  pthread_mutex_unlock(&b->lock);
  close(fd);
}

/* While this rank leaves, the end of a connection is the answer to its goodbye. */
TEST_LOOP(ends_while_leaving, WAYS) {
  open_links();
  pthread_mutex_lock(&b->lock);
  b->leaving = true;
  pthread_mutex_unlock(&b->lock);
  end_by((ending)_i, 2);
  ck_assert(ends_as(2, HK_END_LEFT));
  ck_assert_int_eq(state.nevents, 0);
}

/* A rank that leaves says goodbye on each link, and waits for the answers, of ranks that still join 0.3 s at most. */
TEST(leaves) {
  uint8_t none[1];
  open_links();
  set_end(&b->links[1], HK_END_LEFT); /* it is gone */
  uint64_t begin = hk_now_ns();
  hk_overlay_leave(b);
  uint64_t took = hk_now_ns() - begin;
  ck_assert(took >= 300000000 && took < 1900000000);
  for (int i = 0; i < LINKS; i++)
    if (i != 1) ck_assert(hear(i, none).type == HK_FRAME_GOODBYE);
  ck_assert(is_silent(1));
  ck_assert_int_eq(state.nevents, 0);
}

/* ---- sending ---- */

/* What the socket does not accept at once is sent later, in order, from two pieces of any length. */
TEST_LOOP(sends_in_parts, 5) {
  static const size_t firsts[] = {0, 1, LARGE / 2, LARGE - 1, LARGE};
  uint8_t *data = malloc(LARGE), *got = malloc(LARGE);
  hk_overlay_link *l = &b->links[2];
  size_t first = firsts[_i];
  for (size_t i = 0; i < LARGE; i++) data[i] = (uint8_t)(i ^ i >> 8 ^ i >> 16);
  open_links();
  ck_assert_int_eq(hk_overlay_send(l, HK_FRAME_GATHER, 1, data, first, data + first, LARGE - first), HK_OK);
  ck_assert_int_eq(hk_overlay_send(l, HK_FRAME_BARRIER, 2, NULL, 0, NULL, 0), HK_OK);
  ck_assert_int_eq(hk_overlay_send(l, HK_FRAME_GATHER, 3, data, 5, data + 7, 3), HK_OK);
  ck_assert(has_unsent(l) && !has_unsent(&b->links[3])); /* else this tests nothing */
  hk_frame f = hear(2, got);
  ck_assert(f.type == HK_FRAME_GATHER && f.seq == 1 && f.bytes == LARGE);
  ck_assert_int_eq(memcmp(got, data, LARGE), 0);
  f = hear(2, got);
  ck_assert(f.type == HK_FRAME_BARRIER && f.seq == 2 && f.bytes == 0);
  f = hear(2, got);
  ck_assert(f.seq == 3 && f.bytes == 8 && !memcmp(got, data, 5) && !memcmp(got + 5, data + 7, 3));
  ck_assert_int_eq(hk_overlay_send(l, HK_FRAME_BARRIER, 4, NULL, 0, NULL, 0), HK_OK);
  ck_assert_uint_eq(hear(2, got).seq, 4);
  for (uint64_t until = hk_now_ns() + 20000000000u; has_unsent(l) && hk_now_ns() < until;) usleep(500);
  ck_assert(!has_unsent(l));
  free(data), free(got);
}

/* The socket takes not even a byte: the frame waits. */
TEST(sends_into_a_full_socket) {
  uint8_t byte = 0, none[1];
  size_t filled = 0;
  open_links();
  while (send(b->links[0].fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) filled++;
  ck_assert_int_eq(errno, EAGAIN);
  ck_assert_int_eq(hk_overlay_send(&b->links[0], HK_FRAME_BARRIER, 7, NULL, 0, NULL, 0), HK_OK);
  ck_assert(has_unsent(&b->links[0]));
  for (; filled; filled--) ck_assert_int_eq(recv(peer[0], &byte, 1, 0), 1);
  hk_frame f = hear(0, none);
  ck_assert(f.type == HK_FRAME_BARRIER && f.seq == 7);
}

/* The peer ends with data on the way to it: that is dropped, and the end is reported once. */
TEST(ends_with_unsent_data) {
  uint8_t *data = calloc(1, LARGE);
  open_links();
  ck_assert_int_eq(hk_overlay_send(&b->links[2], HK_FRAME_GATHER, 1, data, LARGE, NULL, 0), HK_OK);
  ck_assert(has_unsent(&b->links[2]));
  close(peer[2]);
  peer[2] = -1;
  ck_assert(ends_as(2, HK_END_DEAD) && await_count(&state.nevents, 1));
  ck_assert(!has_unsent(&b->links[2]));
  ck_assert_int_eq(state.nevents, 1);
  free(data);
}

TEST(too_many_bytes) {
  open_links();
  ck_assert_int_eq(hk_overlay_send(&b->links[0], HK_FRAME_GATHER, 1, "", HK_FRAME_MAX, "", 1), HK_ERR_ARGUMENT);
  ck_assert(is_silent(0));
}

/* ---- opening ---- */

TEST_LOOP(accepts_what_it_expects, 6) {
  static const struct {
    hk_hello_kind kind;
    uint32_t round;
    int from; /* after the peer's rank */
    bool open, accepted;
  } rows[] = {{HK_HELLO_OVERLAY, 1, 0, false, true},  {HK_HELLO_OVERLAY, ROUNDS - 1, 0, false, true},
              {HK_HELLO_DATA, 1, 0, false, false},    {HK_HELLO_OVERLAY, ROUNDS, 0, false, false},
              {HK_HELLO_OVERLAY, 1, 1, false, false}, {HK_HELLO_OVERLAY, 1, 0, true, false}};
  int pair[2];
  hk_overlay_link *l = hk_link_to(b, false, rows[_i].round < ROUNDS ? (int)rows[_i].round : 0);
  hk_hello h = {.kind = rows[_i].kind, .round = rows[_i].round, .from = l->rank + rows[_i].from, .to = SELF};
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  if (rows[_i].open) set_end(l, HK_END_OPEN);
  ck_assert_int_eq(hk_overlay_accept(b, &h, pair[0]), rows[_i].accepted);
  ck_assert_int_eq(l->fd, rows[_i].accepted ? pair[0] : -1);
  ck_assert_int_eq(end_of(l), rows[_i].accepted || rows[_i].open ? HK_END_OPEN : HK_END_CLOSED);
  if (rows[_i].open) set_end(l, HK_END_CLOSED);
  if (!rows[_i].accepted) close(pair[0]);
  close(pair[1]);
}

static void no_callback(void *arg, int fd, uint32_t events) { (void)arg, (void)fd, (void)events; }

/* A service thread that is busy with something else. */
static void hold(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  while (atomic_load((_Atomic(int) *)arg)) usleep(1000);
}
/* A connection that this rank cannot use: the peer gets the cause and a goodbye, and the others the event. */
TEST(declines) {
  uint8_t got[HK_EVENT_BYTES + HK_EVENT_TEXT];
  hk_event e;
  int pair[2], at = 3;
  hk_overlay_link *l = &b->links[at];
  hk_hello h = {.kind = HK_HELLO_OVERLAY, .round = l->round, .from = l->rank, .to = SELF};
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  peer[at] = pair[1];
  ck_assert_int_eq(hk_service_add(b->o.service, pair[0], 0, no_callback, NULL), HK_OK); /* another one has it */
  _Atomic(int) busy = 1;
  hk_service_work work = {.fn = hold, .arg = &busy};
  hk_service_post(b->o.service, &work);
  ck_assert(!hk_overlay_accept(b, &h, pair[0]));
  ck_assert(b->failures.broken && b->failures.first_event.rank == SELF); /* the rank's own waits end at once */
  atomic_store(&busy, 0);
  ck_assert(l->fd == -1 && l->end == HK_END_CLOSED);
  hk_frame f = hear(at, got);
  ck_assert(f.type == HK_FRAME_EVENT && hk_event_decode(&e, got, f.bytes, RANKS));
  ck_assert(e.kind == HK_EVENT_ERROR && e.rank == SELF && e.from == SELF && e.code == HK_ERR_SYSTEM);
  ck_assert_msg(strstr(e.text, "rank 5 cannot use its connection with rank "), "%s", e.text);
  ck_assert_int_eq(hear(at, got).type, HK_FRAME_GOODBYE);
  ck_assert(await_count(&state.nevents, 1));
  ck_assert_str_eq(state.events[0].text, e.text);
  hk_service_remove(b->o.service, pair[0]);
  close(pair[0]);
}

/* How long the peer's host may be silent: the kernel sends a probe each quarter of HOCKET_PEER_TIMEOUT, and as many as
 * the time takes, of which it can count 127. */
TEST_LOOP(tolerates, 8) {
  static const struct {
    const char *timeout;
    unsigned seconds;
    int idle, probes;
  } rows[] = {{"40", 300, 10, 31}, {"40", 9, 10, 1},   {"43", 10, 10, 2},  {"3", 50, 1, 51},
              {"4", 126, 1, 127},  {"4", 127, 1, 127}, {"4", 125, 1, 126}, {"4", 5000, 1, 127}};
  socklen_t size = sizeof(int);
  set_param("HOCKET_PEER_TIMEOUT", rows[_i].timeout);
  b->o.settings = hk_settings_now();
  for (int i = 0; i < LINKS; i++) {
    b->links[i].fd = socket(AF_INET, SOCK_STREAM, 0);
    b->links[i].end = i == 1 ? HK_END_LEFT : HK_END_OPEN;
    b->links[i].local = i == 3;
    b->links[i].rank = i == 4 ? 2 : 1;
  }
  hk_bootstrap_tolerate(b, 1, rows[_i].seconds);
  for (int i = 0; i < LINKS; i++) {
    int idle = -1, probes = -1, on = -1;
    bool changed = i != 1 && i != 3 && i != 4;
    ck_assert_uint_eq(b->links[i].limit_s, changed ? rows[_i].seconds : 0);
    getsockopt(b->links[i].fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size);
    getsockopt(b->links[i].fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size);
    getsockopt(b->links[i].fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, &size);
    ck_assert_int_eq(on != 0, changed);
    if (changed) ck_assert_msg(idle == rows[_i].idle && probes == rows[_i].probes, "%d s, %d probes", idle, probes);
  }
  for (int i = 0; i < LINKS; i++) b->links[i].end = HK_END_CLOSED;
}

/* ---- opening ---- */

/* A listener that accepts no connection: the error names it, and not ranks that may be waited for; or this rank's own
 * failure, if there is one. */
TEST(dials_until_the_deadline) {
  hk_contact c = {.n = 1, .process = 77};
  int fd;
  c.at[0].v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  ck_assert_int_eq(hk_listen(hk_settings_now(), &c.at[0], 5, &fd), HK_OK);
  for (int r = 0; r < RANKS; r++) hk_contact_encode(b->contacts + r * HK_CONTACT_BYTES, &c);
  hk_wait_env env = {.check = hk_report_check, .arg = b};
  b->call.deadline_ns = hk_now_ns() + 250000000;
  ck_assert_int_eq(hk_overlay_connect(b, 0, &env), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "cannot reach rank 6 of 7"), "%s", hk_last_error());
  ck_assert_msg(strstr(hk_last_error(), "connected, but no answer"), "%s", hk_last_error());
  ck_assert(atomic_load(&b->call.gave_up_ns) && atomic_load(&b->call.awaited) == 6); /* for ranks that ask */
  const hk_event own = {
      .kind = HK_EVENT_ERROR, .rank = SELF, .from = SELF, .code = HK_ERR_SYSTEM, .text = "no descriptor is left"};
  ck_assert(hk_event_note(b, &own) && !hk_event_note(b, &own));
  b->call.deadline_ns = hk_now_ns() + 250000000;
  ck_assert_int_eq(hk_overlay_connect(b, 0, &env), HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), own.text), "%s", hk_last_error());
  close(fd);
}

/* ---- data connections ---- */

static int served[8], nserved;
static void serve(void *arg, int rank, int fd) {
  ck_assert_ptr_eq(arg, served);
  served[nserved++] = rank;
  close(fd);
}

TEST(deliveries) {
  int fd[6];
  for (int i = 0; i < 6; i++) fd[i] = dup(0);
  ck_assert_int_eq(hk_bootstrap_untaken(b, -1), -1);
  hk_overlay_keep(b, 3, 70, fd[0]);
  hk_overlay_keep(b, 0, 70, fd[1]);
  hk_overlay_keep(b, RANKS - 1, 71, fd[2]);
  ck_assert_int_eq(hk_bootstrap_untaken(b, -1), 0);
  ck_assert_int_eq(hk_bootstrap_untaken(b, 0), 3);
  ck_assert_int_eq(hk_bootstrap_untaken(b, 3), RANKS - 1);
  ck_assert_int_eq(hk_bootstrap_untaken(b, RANKS - 1), -1);
  hk_overlay_keep(b, -1, 70, fd[3]);
  hk_overlay_keep(b, RANKS, 70, fd[4]);
  ck_assert(fcntl(fd[3], F_GETFD) < 0 && fcntl(fd[4], F_GETFD) < 0); /* no rank: closed */
  ck_assert(hk_bootstrap_take(b, 3, 71) == -1 && hk_bootstrap_take(b, 2, 70) == -1);
  ck_assert_int_eq(hk_bootstrap_take(b, RANKS - 1, 71), fd[2]); /* the last one */
  hk_overlay_keep(b, 1, 71, fd[2]);
  ck_assert_int_eq(hk_bootstrap_take(b, 3, 70), fd[0]); /* the first one */
  ck_assert_int_eq(hk_bootstrap_take(b, 3, 70), -1);
  close(fd[0]);
  hk_bootstrap_serve(b, 70, serve, served);
  ck_assert(nserved == 1 && served[0] == 0);
  hk_bootstrap_serve(b, 71, serve, served);
  ck_assert(nserved == 2 && served[1] == 1 && !b->deliveries && b->deliveries_end == &b->deliveries);
  hk_overlay_keep(b, 2, 71, fd[5]);
  ck_assert(nserved == 3 && served[2] == 2);
  hk_bootstrap_serve(b, 72, NULL, NULL); /* nothing */
  hk_overlay_keep(b, 2, 70, dup(0));     /* that tag is still served, too */
  hk_bootstrap_serve(b, 70, NULL, NULL);
  hk_overlay_keep(b, 3, 71, dup(0)); /* and the other one goes on */
  ck_assert_int_eq(nserved, 5);
  hk_bootstrap_serve(b, 71, NULL, NULL);
  hk_overlay_keep(b, 2, 70, dup(0)); /* closed in the end */
  hk_overlay_keep(b, 2, 71, dup(0));
  ck_assert_int_eq(nserved, 5);
}

int main(void) { return suite_main("links of the overlay", .setup = setup, .teardown = teardown); }
