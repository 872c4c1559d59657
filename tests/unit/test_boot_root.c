/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Roots of unique ids: whom they accept, what each rank gets, and what happens at which time. The ranks' connections
 * are socket pairs, and the test holds the listener's lock, so that it alone gives the root hellos and the time. */
#include <sys/socket.h>
#include "../../src/base/log.h"
#include "../../src/boot/root.h"
#include "../support/leftovers.h"
#include "../support/process.h"
#include "../support/scratch.h"
#include "../support/suite.h"

#define S HK_SECOND_NS
enum { MOST = 16 };
static const uint8_t other_secret[HK_SECRET_BYTES] = {1};
static hk_boot_id id = {.secret = "of a unique id", .n = 1};
static hk_listener *l;

/* One rank's connection: what it says, and the end that the test has. */
typedef struct guest {
  hk_hello h;
  int fd;
  hk_connection *c;
  bool plain, on_spare;
  const uint8_t *secret; /* NULL: the right one */
  const char *text;      /* after the hello */
} guest;

static void setup(void) {
  leftovers_ignore(); /* the roots' ranks do not end */
  scratch_make();
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("HOCKET_STATUS", "0", 1); /* descriptors are counted here, and another job's `hocket ps` would be one more */
  hk_log_reset();
  id.at[0].sa.sa_family = AF_INET;
  ck_assert_int_eq(hk_listener_get(&l), HK_OK);
}

static void teardown(void) {
  hk_listener_unlock();
  hk_listener_put(l);
  scratch_remove();
}

/* With the settings of the test case, which has changed them since the listener was made. */
static hk_status new_root_at(int socket_fd) {
  hk_listener_lock();
  l->settings = hk_settings_now();
  hk_listener_unlock();
  return hk_root_new(l, &id, socket_fd);
}

static hk_root *new_root(void) {
  ck_assert_int_eq(new_root_at(-1), HK_OK);
  hk_listener_lock();
  return l->roots;
}

/* Rank `from` of n with root `tag` of `roots`, from process `process`. */
static guest a_guest(hk_hello_kind kind, int from, int n, int roots, int tag) {
  guest g = {.h = {.kind = kind, .from = from, .to = n, .round = (uint32_t)roots, .tag = (uint64_t)tag}, .fd = -1};
  hk_contact c = {.process = 1000 + (uint64_t)from, .pid = 7, .n = 1, .at[0].sa.sa_family = AF_INET};
  hk_addr_set_port(&c.at[0], 5000 + (unsigned)from);
  hk_contact_encode(g.h.contact, &c);
  g.h.key = hk_boot_id_key(&id);
  g.h.nonce[0] = (uint8_t)(from + 1);
  g.h.nonce[1] = (uint8_t)kind;
  return g;
}

static void come(guest *g) {
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  g->fd = pair[1];
  hk_connection *c = g->c = calloc(1, sizeof *c);
  *c = (hk_connection){.listener = l, .prev = l->pending_last, .fd = pair[0], .since_ns = hk_now_ns(), .ready = true};
  c->plain = g->plain, c->on_spare = g->on_spare;
  *(l->pending_last ? &l->pending_last->next : &l->pending) = c;
  l->pending_last = c;
  l->npending++;
  hk_hello_encode(c->in, &g->h, g->secret ? g->secret : id.secret);
  if (g->text) ck_assert_int_eq(send(g->fd, g->text, strlen(g->text), 0), strlen(g->text));
  hk_root_hello(l, c, &g->h);
}

/* What the root has sent since: an ack, or -1. */
static int ack_of(const guest *g) {
  uint8_t in[HK_ACK_BYTES];
  hk_ack ack;
  if (recv(g->fd, in, sizeof in, 0) != HK_ACK_BYTES) return -1;
  ck_assert(hk_ack_decode(&ack, in, g->h.nonce, id.secret));
  return (int)ack;
}
/* It comes, and is acknowledged. */
static void join(guest *g) {
  come(g);
  ck_assert_int_eq(ack_of(g), HK_ACK_OK);
}
static const hk_reply *reply_of(const guest *g) {
  static hk_reply r;
  uint8_t in[HK_REPLY_BYTES];
  if (recv(g->fd, in, sizeof in, 0) != HK_REPLY_BYTES) return NULL;
  ck_assert(hk_reply_decode(&r, in, g->h.nonce, id.secret));
  return &r;
}
static ssize_t peek(const guest *g) {
  char byte;
  return recv(g->fd, &byte, 1, MSG_PEEK);
}
static bool is_open(const guest *g) { return peek(g) < 0 && errno == EAGAIN; }
static bool is_closed(const guest *g) { return peek(g) == 0; }
static void expect_error(const guest *g, hk_status status, const char *words) {
  const hk_reply *r = reply_of(g);
  ck_assert(r && r->status == status);
  ck_assert_msg(strstr(r->text, words), "%s", r->text);
}
static void expect_next(const guest *g, const guest *next) {
  const hk_reply *r = reply_of(g);
  ck_assert(r && r->status == HK_OK && !r->other_job);
  ck_assert_mem_eq(r->next, next->h.contact, HK_CONTACT_BYTES);
}
static void leave(guest *g, int n) {
  for (int i = 0; i < n; i++) close(g[i].fd);
}

/* ---- who belongs to a root ---- */

/* For all numbers of ranks and roots: each rank learns the next one, also of the next root. */
TEST(everyone_learns_the_next) {
  int fds = open_fds();
  hk_listener_lock();
  for (int n = 1; n <= 7; n++)
    for (int k = 1; k <= n; k++) {
      for (int root = 0, low = 0, high; root < k; root++, low = high) {
        guest g[MOST], first = a_guest(HK_HELLO_CONTACT, 0, n, k, root);
        high = (root + 1) * n / k;
        hk_listener_unlock();
        hk_root *r = new_root();
        unsigned users = l->users;
        if (k > 1) {
          first = a_guest(HK_HELLO_CONTACT, high % n, n, k, root);
          come(&first);
          ck_assert(ack_of(&first) == HK_ACK_OK && is_closed(&first));
          close(first.fd);
        }
        for (int i = low; i < high; i++) {
          ck_assert_int_eq(r->state, HK_ROOT_GATHERING);
          if (i > low) ck_assert(is_open(&g[low]));
          g[i] = a_guest(HK_HELLO_JOIN, i, n, k, root);
          join(&g[i]);
        }
        ck_assert(r->state == HK_ROOT_DONE && r->entries == high - low + (k > 1));
        for (int i = low; i < high; i++) expect_next(&g[i], i + 1 < high ? &g[i + 1] : k > 1 ? &first : &g[low]);
        hk_roots_sweep(l);
        ck_assert(!l->roots && l->users == users - 1);
        for (int i = low; i < high; i++) ck_assert(is_closed(&g[i]));
        leave(g + low, high - low);
      }
    }
  ck_assert(!l->pending && !l->npending);
  ck_assert_int_eq(open_fds(), fds);
}

/* Without the secret, or with impossible numbers, a connection is closed without a byte. */
TEST(strangers_get_no_byte) {
  static const struct {
    int from, n, roots, tag;
  } rows[] = {{0, 0, 1, 0},  {0, (1 << 20) + 1, 1, 0},
              {0, 4, 0, 0},  {0, 4, 5, 0},
              {0, 4, 1, 1},  {0, 4, 2, 2},
              {-1, 4, 1, 0}, {0, 4, 1, 0},
              {0, 4, 1, 0},  {0, 4, 1, 0}};
  hk_root *r = new_root();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    guest g = a_guest(HK_HELLO_JOIN, rows[i].from, rows[i].n, rows[i].roots, rows[i].tag);
    if (i == 7) g.secret = other_secret;
    if (i == 8) g.h.key++;
    if (i == 9) g.h.contact[10] = 0; /* no address */
    come(&g);
    ck_assert_msg(is_closed(&g), "row %zu", i);
    close(g.fd);
  }
  ck_assert(r->state == HK_ROOT_GATHERING && !r->nranks && !l->pending);
}

typedef struct wrong {
  int from, n, roots, tag;
  hk_hello_kind kind;
  const char *words;
  bool fails; /* all ranks get it */
} wrong;
/* At root 1 of 2, for ranks 2 to 4 of 5, and the contact of rank 0. */
static const wrong wrongs[] = {
    {5, 5, 2, 1, HK_HELLO_JOIN, "rank 5 is out of range: there are 5 ranks", false},
    {6, 5, 2, 1, HK_HELLO_JOIN, "rank 6 is out of range: there are 5 ranks", false},
    {3, 6, 2, 1, HK_HELLO_JOIN, "rank 3 gives 6 and 2, rank 4 gives 5 and 2;", true},
    {3, 5, 3, 1, HK_HELLO_JOIN, "rank 3 gives 5 and 3, rank 4 gives 5 and 2;", true},
    {3, 5, 2, 0, HK_HELLO_JOIN, "rank 3 joined root 0 of 2 with the id of another root", false},
    {1, 5, 2, 1, HK_HELLO_JOIN, "rank 1 joined root 1 of 2 with the id of another root", false},
    {0, 5, 2, 1, HK_HELLO_JOIN, "the id of another root", false},
    {1, 5, 2, 1, HK_HELLO_CONTACT, "the id of another root", false},
    {0, 5, 2, 0, HK_HELLO_CONTACT, "the id of another root", false},
    {0, 5, 1, 0, HK_HELLO_CONTACT, "the id of another root", false}, /* one root needs no contact */
    {4, 5, 2, 1, HK_HELLO_JOIN, "rank 4 of 5 has joined twice, both times from process 7 at 0.0.0.0<5004>: give", true},
};

TEST_LOOP(wrong_ones_get_the_cause, HK_ARRAY_LENGTH(wrongs)) {
  const wrong *w = &wrongs[_i];
  int roots = w->roots == 1 ? 1 : 2;
  guest first = a_guest(HK_HELLO_JOIN, 4, 5, roots, roots - 1), g = a_guest(w->kind, w->from, w->n, w->roots, w->tag);
  hk_root *r = new_root();
  come(&first);
  ck_assert(ack_of(&first) == HK_ACK_OK && r->joined == 1);
  g.h.nonce[5] = 9; /* another process's, or another attempt's */
  join(&g);
  expect_error(&g, HK_ERR_ARGUMENT, w->words);
  ck_assert(is_closed(&g) && r->state == (w->fails ? HK_ROOT_FAILED : HK_ROOT_GATHERING));
  if (w->fails) expect_error(&first, HK_ERR_ARGUMENT, w->words);
  if (!w->fails) ck_assert(is_open(&first) && r->joined == 1);
  close(g.fd);
  if (!w->fails) return;
  guest late = a_guest(HK_HELLO_JOIN, 2, 5, 2, 1); /* it gets the same */
  join(&late);
  expect_error(&late, HK_ERR_ARGUMENT, w->words);
  hk_roots_sweep(l);
  ck_assert(is_closed(&late) && is_closed(&first) && l->roots == r);
  leave(&late, 1);
  leave(&first, 1);
}

/* The first rank, whose numbers count, comes with the id of another root. */
TEST(first_is_wrong) {
  guest first = a_guest(HK_HELLO_JOIN, 0, 5, 2, 1), g = a_guest(HK_HELLO_JOIN, 3, 6, 2, 1);
  hk_root *r = new_root();
  join(&first);
  expect_error(&first, HK_ERR_ARGUMENT, "rank 0 joined root 1 of 2 with the id of another root");
  ck_assert(r->state == HK_ROOT_GATHERING && !r->joined);
  join(&g);
  expect_error(&g, HK_ERR_ARGUMENT, "rank 3 gives 6 and 2, rank 0 gives 5 and 2;");
  leave(&first, 1);
  leave(&g, 1);
}

/* The same rank once more: the same attempt by another address, a contact of the same process, or after its end. Each
 * time the root waits for the others, and counts it once. */
TEST_LOOP(again, 4) {
  enum { SAME_ATTEMPT, SAME_PROCESS, OTHER_PROCESS, AFTER_ITS_END };
  bool contact = _i == SAME_PROCESS || _i == OTHER_PROCESS;
  guest first = a_guest(contact ? HK_HELLO_CONTACT : HK_HELLO_JOIN, contact ? 2 : 0, 4, 2, 0), more = first;
  guest rest[2] = {a_guest(HK_HELLO_JOIN, 1, 4, 2, 0),
                   a_guest(contact ? HK_HELLO_JOIN : HK_HELLO_CONTACT, contact ? 0 : 2, 4, 2, 0)};
  hk_root *r = new_root();
  come(&first);
  ck_assert(ack_of(&first) == HK_ACK_OK && r->joined == 1);
  if (_i != SAME_ATTEMPT) more.h.nonce[5] = 9;
  if (_i == OTHER_PROCESS) more.h.contact[0]++;
  if (_i == AFTER_ITS_END) close(first.fd);
  join(&more);
  ck_assert_int_eq(r->state, _i == OTHER_PROCESS ? HK_ROOT_FAILED : HK_ROOT_GATHERING);
  if (_i == OTHER_PROCESS)
    expect_error(&more, HK_ERR_ARGUMENT, "rank 2 of 4 has joined twice, from process 7 at 0.0.0.0<5002> and from");
  if (_i != OTHER_PROCESS) {
    ck_assert_int_eq(r->joined, 1);
    for (int i = 0; i < 2; i++) come(&rest[i]), (void)ack_of(&rest[i]);
    ck_assert_int_eq(r->state, HK_ROOT_DONE);
    expect_next(&rest[0], contact ? &more : &rest[1]);
    leave(rest, 2);
  }
  if (_i == SAME_ATTEMPT) expect_next(&first, &rest[0]); /* over both connections */
  if (!contact) expect_next(&more, &rest[0]);
  hk_roots_sweep(l);
  ck_assert(is_closed(&more));
  leave(&more, 1);
  if (_i != AFTER_ITS_END) leave(&first, 1);
}

/* A hello that is repeated without end takes four connections, and the rank's own, the first, stays. */
TEST(repeated) {
  enum { TIMES = 9, MOST_OF_ONE = 4 };
  guest g[TIMES], last = a_guest(HK_HELLO_JOIN, 1, 2, 1, 0);
  hk_root *r = new_root();
  for (int i = 0; i < TIMES; i++) {
    g[i] = a_guest(HK_HELLO_JOIN, 0, 2, 1, 0);
    join(&g[i]);
    ck_assert(i < MOST_OF_ONE ? is_open(&g[i]) : is_closed(&g[i]));
  }
  ck_assert(r->joined == 1 && r->state == HK_ROOT_GATHERING);
  join(&last);
  for (int i = 0; i < MOST_OF_ONE; i++) expect_next(&g[i], &last);
  expect_next(&last, &g[0]);
  leave(g, TIMES);
  leave(&last, 1);
}

/* ---- connections that end, and times ---- */

/* A rank that closed its connection has half a second to come again, one whose connection broke five seconds. */
TEST_LOOP(lost_ranks, 2) {
  static const uint64_t patience[] = {S / 2, 5 * S};
  guest g[3];
  hk_root *r = new_root();
  for (int i = 0; i < 2; i++) {
    g[i] = a_guest(HK_HELLO_JOIN, i, 3, 1, 0);
    join(&g[i]);
  }
  if (_i == 0) close(g[1].fd);
  hk_root_connection_ended(g[1].c);
  ck_assert(r->joined == 1 && r->entry[1].state == HK_ROOT_ENTRY_LOST);
  ck_assert(hk_roots_expire(l, r->entry[1].lost_ns + patience[_i] - 1) && r->state == HK_ROOT_GATHERING);
  ck_assert(hk_roots_expire(l, r->entry[1].lost_ns + patience[_i]) && r->state == HK_ROOT_FAILED);
  ck_assert_int_eq(r->joined, 1);
  expect_error(&g[0], HK_ERR_REMOTE, "rank 1 of 3 joined and then died");
  leave(g, _i ? 2 : 1);
}

/* It comes again in time, with one of two connections left, or both gone. */
TEST_LOOP(lost_and_back, 2) {
  guest g[3], twin, back = a_guest(HK_HELLO_JOIN, 1, 3, 1, 0);
  hk_root *r = new_root();
  for (int i = 0; i < 2; i++) g[i] = a_guest(HK_HELLO_JOIN, i, 3, 1, 0), come(&g[i]);
  twin = a_guest(HK_HELLO_JOIN, 1, 3, 1, 0);
  come(&twin);
  hk_root_connection_ended(_i ? twin.c : g[1].c);
  ck_assert(r->joined == 2 && r->entry[1].state == HK_ROOT_ENTRY_JOINED);
  ck_assert_ptr_eq(r->entry[1].connection, _i ? g[1].c : twin.c);
  hk_root_connection_ended(_i ? g[1].c : twin.c);
  ck_assert(r->joined == 1 && r->entry[1].state == HK_ROOT_ENTRY_LOST && !r->entry[1].connection);
  back.h.nonce[5] = 3;
  come(&back);
  ck_assert(r->joined == 2 && ack_of(&back) == HK_ACK_OK);
  ck_assert(hk_roots_expire(l, hk_now_ns() + 6 * S) && r->state == HK_ROOT_GATHERING);
  g[2] = a_guest(HK_HELLO_JOIN, 2, 3, 1, 0);
  come(&g[2]);
  expect_next(&back, &g[2]);
  hk_roots_sweep(l);
  leave(g, 3);
  leave(&twin, 1);
  leave(&back, 1);
}

/* The ranks that are missing, in words: with gaps, across the wrap of the numbers, and more than fit. */
static const struct {
  int n, roots, tag;
  const char *come; /* which ranks, by their places in the share; or of a large communicator each third */
  const char *words[3];
} gaps[] = {
    {6, 1, 0, "x..x..", {"ranks 1-2, 4-5 of 6 have not joined after 40 s, 2 have; each must", "", ""}},
    {6, 1, 0, ".xxxxx", {"rank 0 of 6 has not joined after 40 s, 5 have; each must be started", "", ""}},
    {6, 1, 0, ".....x", {"ranks 0-4 of 6 have not joined after 40 s, 1 has; only rank 5 has come", "", ""}},
    {6, 2, 1, "x..", {"ranks 4-5, 0 of 6 have not joined after 40 s, 1 has; only rank 3 has come", "", ""}},
    {6, 2, 1, "xx.", {"ranks 5, 0 of 6 have not joined after 40 s, 2 have; each", "", ""}},
    {600, 1, 0, "/", {"ranks 1-2, 4-5, 7-8, ", " more of 600 have not joined after 40 s, 200 have", " and "}},
};

TEST_LOOP(missing_ranks, HK_ARRAY_LENGTH(gaps)) {
  char list[600];
  int n = gaps[_i].n, share = n / gaps[_i].roots, low = share * gaps[_i].tag, joined = 0;
  guest *g = calloc((size_t)n, sizeof *g);
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "40");
  hk_root *r = new_root();
  for (int i = 0; i < share; i++)
    if (*gaps[_i].come == '/' ? i % 3 == 0 : gaps[_i].come[i] == 'x') {
      g[joined] = a_guest(HK_HELLO_JOIN, low + i, n, gaps[_i].roots, gaps[_i].tag);
      come(&g[joined]);
      ck_assert_int_eq(ack_of(&g[joined++]), HK_ACK_OK);
    }
  ck_assert(hk_roots_expire(l, r->first_ns + 40 * S - 1) && r->state == HK_ROOT_GATHERING);
  ck_assert(hk_roots_expire(l, r->first_ns + 40 * S) && r->state == HK_ROOT_FAILED);
  for (int i = 0; i < 3; i++) ck_assert_msg(strstr(r->text, gaps[_i].words[i]), "%s", r->text);
  expect_error(&g[0], HK_ERR_REMOTE, gaps[_i].words[0]);
  if (n == 600) { /* those that are listed and those that are not are all */
    int listed = 0;
    snprintf(list, sizeof list, "%.500s", r->text);
    char *more = strstr(list, " and ");
    ck_assert_ptr_nonnull(more);
    for (const char *p = list; p < more; p++) listed += *p == '-' ? 2 : 0;
    ck_assert_int_eq(listed + atoi(more + 5), 400);
  }
  leave(g, joined);
  free(g);
}

/* A warning after 8 seconds, or sooner with a short HOCKET_WATCHDOG, again after twice the time, at most 30 s later. */
static int warnings(void) {
  int n = 0;
  for (const char *p = scratch_read("log"); (p = strstr(p, " missing: ")); p++) n++;
  return n;
}

TEST_LOOP(reports, 4) {
  static const struct {
    const char *watchdog;
    unsigned first; /* seconds; 0: never */
  } rows[] = {{"60", 8}, {"8", 8}, {"3", 3}, {"0", 0}};
  guest g = a_guest(HK_HELLO_JOIN, 0, 3, 1, 0);
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "300");
  set_param("HOCKET_WATCHDOG", rows[_i].watchdog);
  hk_root *r = new_root();
  come(&g);
  uint64_t first = rows[_i].first * S;
  if (!first) {
    hk_roots_expire(l, r->first_ns + 200 * S);
    ck_assert_int_eq(warnings(), 0);
    leave(&g, 1);
    return;
  }
  hk_roots_expire(l, r->first_ns + first - 1);
  ck_assert_int_eq(warnings(), 0);
  hk_roots_expire(l, r->first_ns + first);
  ck_assert_int_eq(warnings(), 1);
  ck_assert_msg(strstr(scratch_read("log"), " 1 of 3 ranks have joined, and ranks 1-2 are missing: only rank 0"), "%s",
                scratch_read("log"));
  for (uint64_t last = first, n = 1; n < 5; n++) {
    last += last < 30 * S ? last : 30 * S;
    hk_roots_expire(l, r->first_ns + last - 1);
    ck_assert_int_eq(warnings(), (int)n);
    hk_roots_expire(l, r->first_ns + last);
    ck_assert_int_eq(warnings(), (int)n + 1);
  }
  leave(&g, 1);
}

/* Several ids with one rank each: the ranks did not share one. */
TEST(an_id_for_each_rank) {
  guest g[2];
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "20");
  for (int i = 0; i < 2; i++) {
    id.secret[15] = (uint8_t)i;
    new_root();
    g[i] = a_guest(HK_HELLO_JOIN, i, 3, 1, 0);
    come(&g[i]);
    if (!i) hk_listener_unlock();
  }
  hk_roots_expire(l, l->roots->first_ns + 20 * S);
  ck_assert_msg(strstr(l->roots->text, "1 has; 2 unique ids of this process have one rank each"), "%s", l->roots->text);
  leave(g, 2);
}

/* Ids that no rank uses live for HOCKET_ID_LIFETIME; a root that has failed answers for 10 more seconds. */
TEST_LOOP(lifetimes, 2) {
  guest g = a_guest(HK_HELLO_FAILED, 1, 3, 1, 0);
  set_param("HOCKET_ID_LIFETIME", "60");
  hk_root *r = new_root();
  unsigned users = l->users;
  ck_assert(hk_roots_expire(l, r->born_ns - 1)); /* the clock was read, then the id made */
  if (_i) {
    come(&g);
    ck_assert(ack_of(&g) == HK_ACK_OK && r->state == HK_ROOT_FAILED && r->sweep);
    hk_roots_expire(l, r->ended_ns + 11 * S); /* not before it is swept */
    ck_assert_ptr_eq(l->roots, r);
    hk_roots_sweep(l);
    leave(&g, 1);
  }
  uint64_t end = _i ? r->ended_ns + 10 * S : r->born_ns + 60 * S;
  ck_assert(hk_roots_expire(l, end - 1) && l->roots == r && l->users == users);
  ck_assert(!hk_roots_expire(l, end) && !l->roots && l->users == users - 1);
}

/* ---- ranks that cannot join ---- */

TEST_LOOP(excuses, 4) {
  static const struct {
    const char *text, *words;
    int from;
    uint64_t job;
  } rows[] = {{"no memory", "rank 2 of 3 failed: no memory", 2, 5},
              {"", "rank 2 of 3 failed: see its output", 2, 5},
              {"no memory", NULL, 3, 5},
              {"no memory", NULL, 2, 6}};
  guest waits = a_guest(HK_HELLO_JOIN, 0, 3, 1, 0), g = a_guest(HK_HELLO_FAILED, rows[_i].from, 3, 1, 0);
  hk_root *r = new_root();
  r->job.token = waits.h.job = 5;
  g.h.job = rows[_i].job;
  g.text = rows[_i].text;
  join(&waits);
  come(&g);
  ck_assert(ack_of(&g) == HK_ACK_OK && is_closed(&g));
  ck_assert_int_eq(r->state, rows[_i].words ? HK_ROOT_FAILED : HK_ROOT_GATHERING);
  if (rows[_i].words) expect_error(&waits, HK_ERR_REMOTE, rows[_i].words);
  leave(&waits, 1);
  leave(&g, 1);
}

/* A rank of another job gets its name, whatever else is wrong with it, and harms no rank of this job. */
TEST(other_jobs) {
  guest g = a_guest(HK_HELLO_JOIN, 9, 1 << 20, 1, 0);
  hk_root *r = new_root();
  r->job.token = 5;
  snprintf(r->job.text, sizeof r->job.text, "JOB=17");
  g.h.job = 6;
  join(&g);
  const hk_reply *reply = reply_of(&g);
  ck_assert(reply && reply->other_job && reply->status == HK_ERR_USAGE && !strcmp(reply->text, "JOB=17"));
  ck_assert(r->state == HK_ROOT_GATHERING && !r->nranks);
  leave(&g, 1);
}

/* A rank without the encryption key, and ranks for which there is no descriptor: for five seconds they try again. */
TEST_LOOP(no_key_and_no_room, 3) {
  guest waits = a_guest(HK_HELLO_JOIN, 0, 3, 1, 0), g = a_guest(HK_HELLO_JOIN, 1, 3, 1, 0);
  hk_root *r = new_root();
  join(&waits);
  g.plain = _i == 0;
  g.on_spare = _i > 0;
  if (_i == 2) l->refusing_since_ns = hk_now_ns() - 5 * S; /* a moment ago was too soon */
  if (_i == 1) l->refusing_since_ns = hk_now_ns() - 4 * S;
  come(&g);
  ck_assert_int_eq(ack_of(&g), _i == 1 ? HK_ACK_NO_ROOM : HK_ACK_OK);
  ck_assert_int_eq(r->state, _i == 1 ? HK_ROOT_GATHERING : HK_ROOT_FAILED);
  if (_i == 0) expect_error(&waits, HK_ERR_USAGE, "rank 1 of 3 failed: its process has no encryption key");
  if (_i == 1) ck_assert(is_closed(&g) && is_open(&waits) && l->refused_errno == EMFILE && l->refused_last_ns);
  if (_i == 2) expect_error(&waits, HK_ERR_REMOTE, "has no descriptors left for more than 1 connections");
  if (_i == 2) expect_error(&g, HK_ERR_REMOTE, "has no descriptors left");
  if (_i == 2) { /* one that comes later need not try again */
    guest late = a_guest(HK_HELLO_JOIN, 2, 3, 1, 0);
    late.on_spare = true;
    l->refusing_since_ns = hk_now_ns();
    join(&late);
    expect_error(&late, HK_ERR_REMOTE, "has no descriptors left");
    leave(&late, 1);
  }
  leave(&waits, 1);
  leave(&g, 1);
}

/* An id that is given out again after its root has failed: the old root goes. */
TEST(gathers) {
  hk_root *r = new_root();
  hk_listener_unlock();
  ck_assert(hk_root_gathers(l, r->key) && !hk_root_gathers(l, r->key + 1));
  hk_listener_lock();
  hk_root_fail(r, HK_ERR_REMOTE, "failed");
  hk_roots_sweep(l);
  hk_listener_unlock();
  ck_assert(!hk_root_gathers(l, r->key));
  hk_listener_lock();
  ck_assert(!hk_roots_expire(l, hk_now_ns()));
}

static int connect_to(const hk_addr *at) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, &at->sa, hk_addr_len(at)) == 0) return fd;
  close(fd);
  return -1;
}

/* What the listener's thread does, which needs the lock. */
static void await_listener(bool (*done)(void)) {
  for (uint64_t end = hk_now_ns() + 20 * S; !done() && hk_now_ns() < end;) {
    hk_listener_unlock();
    usleep(1000);
    hk_listener_lock();
  }
  ck_assert(done());
}
static bool has_pending(void) { return l->npending == 1; }
static bool has_none_pending(void) { return !l->npending; }
static bool has_no_root(void) { return !l->roots; }

/* The socket of a root of NCCL_COMM_ID: it is closed with the root, and refuses from the answer on, so that no rank
 * finds the old root; one that has failed goes on to answer. */
TEST_LOOP(own_socket, 2) {
  hk_addr at = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  guest g[2] = {a_guest(HK_HELLO_JOIN, 0, 2, 1, 0), a_guest(HK_HELLO_JOIN, 1, 2, 1, 0)};
  int socket_fd, fds = open_fds(), client;
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "20");
  ck_assert_int_eq(hk_listen(hk_settings_now(), &at, 8, &socket_fd), HK_OK);
  ck_assert_int_eq(new_root_at(socket_fd), HK_OK);
  hk_listener_lock();
  hk_root *r = l->roots;
  hk_service_modify(l->service, socket_fd, 0); /* as after an accept that failed */
  ck_assert_int_ge(client = connect_to(&at), 0);
  hk_roots_accept_again(l);
  await_listener(has_pending);
  close(client);
  await_listener(has_none_pending);
  come(&g[0]);
  if (_i == 0) come(&g[1]);
  if (_i == 1) hk_roots_expire(l, r->first_ns + 20 * S);
  ck_assert_int_eq(r->state, _i ? HK_ROOT_FAILED : HK_ROOT_DONE);
  if (_i)
    ck_assert_msg(strstr(r->text, "the same address (NCCL_COMM_ID, MASTER_ADDR) and reach this host"), "%s", r->text);
  client = connect_to(&at);
  ck_assert_int_eq(client >= 0, _i);
  close(client);
  if (_i) {
    hk_listener_unlock();
    ck_assert(!hk_root_gathers(l, r->key) && connect_to(&at) < 0); /* the next tick frees it */
    hk_listener_lock();
  }
  await_listener(has_no_root);
  await_listener(has_none_pending);
  leave(g, 2 - _i);
  ck_assert_int_eq(open_fds(), fds);
}

int main(void) { return suite_main("roots", .setup = setup, .teardown = teardown); }
