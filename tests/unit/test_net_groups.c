/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of receives by the net plugin, as NCCL asks for them: a receive has up to maxRecvs buffers, each with a tag. A
 * message goes to a buffer with its tag, and is refused until it is the turn of that receive. If receives are single,
 * the same is done with equal tags. HOCKET_TEST_NET_PLUGIN names another plugin of v12 to be checked. */
#include "../support/net_host.h"

/* NCCL tests a receive all the time. Ours does without, but another plugin may only then tell the sender its tags. */
static void polls(void *receive, int *done, int *bytes) {
  if (is_other && receive && !*done) QUICK(v->test(receive, done, bytes));
}

/* Buffers of one request: their messages are told apart by tags, and may come in any order. */
START_TEST(groups_receives) {
  ends e;
  buffers b;
  load(_i);
  void *context = begin(1), *at[GROUP], *memory[GROUP], *events[GROUP] = {NULL}, *receive = NULL, *send[GROUP] = {NULL};
  size_t room[GROUP];
  int tags[GROUP], bytes[GROUP] = {0}, done = 0, sent = 0;
  uint64_t until = 0;
  int n = most_of_a_group();
  if (!is_other) ck_assert_int_eq(n, _i ? GROUP : 1);
  connects(context, &e);
  registers(&e, &b);
  for (int i = 0; i < n; i++) {
    at[i] = b.in + (size_t)i * LARGE;
    memory[i] = b.memory[1];
    room[i] = LARGE;
    tags[i] = 100 + i;
  }
  while (!receive) {
    QUICK(v->irecv.v10(e.comm[1], n, at, room, tags, memory, events, &receive));
    WAITS(&until);
  }
  for (int i = n - 1; i >= 0; i--)
    while (!send[i]) {
      post_send(&e, &b, i, tags[i], &send[i]);
      polls(receive, &done, bytes);
      WAITS(&until);
    }
  while (sent < n || !done) {
    if (!done) QUICK(v->test(receive, &done, bytes));
    for (int i = 0; i < n; i++) {
      int over = 0;
      if (!send[i]) continue;
      QUICK(v->test(send[i], &over, NULL));
      if (over) send[i] = NULL, sent++;
    }
    WAITS(&until);
  }
  for (int i = 0; i < n; i++) {
    ck_assert_int_eq(bytes[i], (int)sizes[i]);
    ck_assert_mem_eq(at[i], b.out + (size_t)i * LARGE, sizes[i]);
  }
  unregisters(&e, &b);
  closes(&e, 0);
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

/* Whether a send is taken, within a while, in which `receive` is not done. */
static bool is_taken(const ends *e, const buffers *b, int k, int tag, void **request, void *receive) {
  int done = 0, bytes[GROUP];
  for (int i = 0; i < 1000 && !*request; i++) {
    polls(receive, &done, bytes);
    post_send(e, b, k, tag, request);
  }
  ck_assert(!done);
  return *request;
}

/* A message waits for a buffer with its tag in the receive whose turn it is, and that has its turn until there is a
 * message for each of its buffers. */
START_TEST(receives_have_turns) {
  ends e;
  buffers b;
  load(_i);
  void *context = begin(1), *send[4] = {NULL}, *receive[2] = {NULL};
  const bool single = most_of_a_group() < 2;
  connects(context, &e);
  registers(&e, &b);
  void *at[] = {b.in, b.in + LARGE, b.in + 2 * LARGE}, *memory[] = {b.memory[1], b.memory[1], b.memory[1]};
  void *events[GROUP] = {NULL};
  size_t room[] = {LARGE, LARGE, LARGE};
  int tags[] = {7, 9, 7}, done = 0, left = 3, bytes[GROUP] = {0};
  uint64_t until = 0;
  if (!single) {
    ck_assert(!is_taken(&e, &b, 0, 7, &send[0], NULL));
    for (int i = 0; i < 2; i++)
      while (!receive[i]) {
        QUICK(v->irecv.v10(e.comm[1], i ? 1 : 2, at + 2 * i, room, tags + 2 * i, memory, events, &receive[i]));
        WAITS(&until);
      }
    ck_assert(!is_taken(&e, &b, 0, 8, &send[0], receive[0])); /* no buffer has this tag */
    ck_assert(is_taken(&e, &b, 0, 7, &send[0], receive[0]));
    ck_assert(!is_taken(&e, &b, 2, 7, &send[2], receive[0]));              /* the second receive's turn comes... */
    ck_assert(is_taken(&e, &b, 3, 9, &send[1], receive[0]));               /* ...when the first one has all */
    for (int i = 0; i < 10; i++) QUICK(v->test(receive[1], &done, bytes)); /* few slots: its tag is sent after others */
    ck_assert(!done && is_taken(&e, &b, 2, 7, &send[2], receive[1]));
    for (int i = 0; i < 2; i++, done = 0)
      while (!done) {
        QUICK(v->test(receive[i], &done, bytes + 2 * i));
        for (int k = 0, over = 0; k < 3; k++, over = 0) {
          if (send[k]) QUICK(v->test(send[k], &over, NULL));
          if (over) send[k] = NULL, left--;
        }
        WAITS(&until);
      }
    static const int messages[] = {0, 3, 2};
    for (int i = 0; i < 3; i++) {
      ck_assert_int_eq(bytes[i], (int)sizes[messages[i]]);
      ck_assert_mem_eq(at[i], b.out + (size_t)messages[i] * LARGE, sizes[messages[i]]);
    }
  }
  unregisters(&e, &b);
  closes(&e, 0);
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

/* ---- streams of groups, as proxies send them that share a connection ---- */

enum { GROUPS = 80, MESSAGES = GROUPS * GROUP, TAGS = 5, PIECE = 37500 };
typedef struct plan {
  int n, first[GROUPS + 1];                /* groups have the messages [first[g], first[g + 1]) */
  int tag[MESSAGES], next[TAGS];           /* next: the message that is sent next with this tag */
  void *sent[MESSAGES], *received[GROUPS]; /* requests */
  uint32_t random;
} plan;

static uint32_t draw(plan *p, uint32_t below) {
  p->random = p->random * 1664525 + 1013904223;
  return (p->random >> 8) % below;
}
static size_t size_of(int m) {
  static const size_t some[] = {1, 0, 8, 4096, PIECE, 48, 4097, 20000};
  return some[(m * 5 + m / 8) % 8];
}
static char *from(const buffers *b, int m) { return b->out + (size_t)m * 4099 % ((size_t)WINDOW * LARGE - PIECE); }
static char *to(const buffers *b, int m) { return b->in + (size_t)m % 64 * PIECE; }
static int after(const plan *p, int m, int tag) {
  while (m < p->n && p->tag[m] != tag) m++;
  return m;
}

static void make_plan(plan *p, int most, int seed) {
  memset(p, 0, sizeof *p);
  p->random = (uint32_t)seed;
  for (int g = 0; g < GROUPS; g++) {
    p->first[g + 1] = p->first[g] + 1 + (int)draw(p, (uint32_t)most);
    for (int m = p->first[g]; m < p->first[g + 1]; m++) p->tag[m] = most > 1 ? (int)draw(p, TAGS) : 0;
  }
  p->n = p->first[GROUPS];
  for (int t = 0; t < TAGS; t++) p->next[t] = after(p, 0, t);
}

static void posts_group(const ends *e, const buffers *b, plan *p, int g) {
  void *at[GROUP], *memory[GROUP], *events[GROUP] = {NULL};
  size_t room[GROUP];
  const int first = p->first[g], n = p->first[g + 1] - first;
  for (int i = 0; i < n; i++) {
    memory[i] = b->memory[1];
    at[i] = to(b, first + i);
    memset(at[i], 0, PIECE);
    room[i] = size_of(first + i) || is_other ? PIECE : 0;
    if (!room[i]) at[i] = NULL;
  }
  QUICK(v->irecv.v10(e->comm[1], n, at, room, p->tag + first, memory, events, &p->received[g]));
}

static void sends_one(const ends *e, const buffers *b, plan *p) {
  const int t = (int)draw(p, TAGS), m = p->next[t];
  if (m >= p->n) return;
  QUICK(v->isend.v10(e->comm[0], from(b, m), size_of(m), t, b->memory[0], NULL, &p->sent[m]));
  if (p->sent[m]) p->next[t] = after(p, m + 1, t);
}

static bool has_group(const buffers *b, plan *p, int g) {
  int done = 0, bytes[GROUP];
  QUICK(v->test(p->received[g], &done, bytes));
  for (int m = p->first[g]; done && m < p->first[g + 1]; m++) {
    MUST(bytes[m - p->first[g]] == (int)size_of(m), "message %d of tag %d has %d bytes", m, p->tag[m],
         bytes[m - p->first[g]]);
    MUST(memcmp(to(b, m), from(b, m), size_of(m)) == 0, "message %d is wrong", m);
    MUST(memcmp(to(b, m) + size_of(m), nothing, PIECE - size_of(m)) == 0, "message %d writes after its end", m);
  }
  return done;
}

START_TEST(streams_groups) {
  ends e;
  buffers b;
  static plan p;
  uint64_t until = 0;
  load(_i / 3);
  void *context = begin(1);
  make_plan(&p, most_of_a_group(), _i);
  connects(context, &e);
  registers(&e, &b);
  int posted = 0, got = 0, ended = 0;
  while (got < GROUPS || ended < p.n) {
    if (posted < GROUPS && posted < got + WINDOW && draw(&p, 2)) {
      posts_group(&e, &b, &p, posted);
      posted += p.received[posted] != NULL;
    }
    sends_one(&e, &b, &p);
    for (int m = 0; m < p.n; m++) {
      int over = 0;
      if (p.sent[m]) QUICK(v->test(p.sent[m], &over, NULL));
      if (over) p.sent[m] = NULL, ended++;
    }
    while (got < posted && has_group(&b, &p, got)) got++;
    MUST(goes_on(&until), "%d of %d groups came, %d of %d messages were sent", got, GROUPS, ended, p.n);
  }
  unregisters(&e, &b);
  closes(&e, _i & 1);
  ck_assert_int_eq(v->finalize(context), 0);
  unload();
}
END_TEST

int main(void) {
  TCase *t = tcase_create("groups");
  tcase_set_timeout(t, 120);
  tcase_add_loop_test(t, groups_receives, 0, BESIDE_RDMA + 1);
  tcase_add_loop_test(t, receives_have_turns, 0, KINDS);
  tcase_add_loop_test(t, streams_groups, 0, 3 * KINDS);
  return suite_run_one("net_groups", t);
}
