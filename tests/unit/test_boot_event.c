/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the bootstrap: which ones are new, which one breaks it, to whom they are passed on, what they look like on
 * the wire. A bootstrap without a network: its links are socket pairs. */
#include <sys/socket.h>
#include "../../src/boot/internal.h"
#include "../support/boot_ranks.h"

enum { RANKS = 130, ROUNDS = 2, LINKS = 2 * ROUNDS, SELF = 100, A_PROCESS = 4 /* ranks */ };

static struct hk_bootstrap boot;
static hk_listener listener;
static hk_overlay_link links[LINKS];
static int other_end[LINKS];
static rank_state state; /* the events that on_event got */

static void setup(void) {
  uint8_t *contacts = calloc(RANKS, HK_CONTACT_BYTES);
  size_t words = HK_EVENT_KINDS * (RANKS / 64 + 1);
  for (int r = 0; r < RANKS; r++) {
    hk_contact c = {.process = 1000 + (uint64_t)(r / A_PROCESS), .n = 1, .at[0].sa.sa_family = AF_INET};
    hk_contact_encode(contacts + r * HK_CONTACT_BYTES, &c);
    if (r == SELF) listener.contact = c;
  }
  boot = (struct hk_bootstrap){.rank = SELF,
                               .nranks = RANKS,
                               .rounds = ROUNDS,
                               .o = {.on_event = record_event, .arg = &state},
                               .listener = &listener,
                               .contacts = contacts,
                               .links = links,
                               .events_end = &boot.events,
                               .event_work = {.fn = hk_event_work, .arg = &boot},
                               .failures.seen = calloc(words, sizeof *boot.failures.seen),
                               .failures.dead = calloc(RANKS / 64 + 1, sizeof *boot.failures.dead),
                               .failures.shrinks = calloc(RANKS, sizeof *boot.failures.shrinks)};
  pthread_mutex_init(&boot.lock, NULL);
  pthread_cond_init(&boot.change, NULL);
  ck_assert_int_eq(hk_service_new(&boot.o.service, "test"), HK_OK);
  for (int i = 0; i < LINKS; i++) {
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    other_end[i] = pair[1];
    links[i] = (hk_overlay_link){
        .b = &boot, .rank = i, .round = (uint8_t)(i / 2), .next = i % 2 == 0, .end = HK_END_OPEN, .fd = pair[0]};
  }
}

static void teardown(void) {
  hk_service_free(boot.o.service);
  for (int i = 0; i < LINKS; i++) close(links[i].fd), close(other_end[i]);
  free(boot.contacts), free(boot.failures.seen), free(boot.failures.dead), free(boot.failures.shrinks);
}

static hk_event an_event(int kind, int rank, int from, int code) {
  hk_event e = {.kind = kind, .rank = rank, .from = from, .code = code};
  snprintf(e.text, sizeof e.text, "kind %d of %d", kind, rank);
  return e;
}

/* ---- which are new, and which one counts ---- */

typedef struct step {
  int kind, rank, from, code;
  bool new;
  int counts; /* the step whose event breaks the bootstrap so far; -1: none */
} step;
typedef struct scene {
  const char *of;
  step steps[9];
} scene;
static const scene scenes[] = {
    {"notices break nothing",
     {{HK_EVENT_REVOKE, 1, 2, 0, true, -1},
      {HK_EVENT_SHRINK, 1, 1, 2, true, -1},
      {HK_EVENT_ABORT, 5, 5, HK_ERR_REMOTE, true, -1},
      {HK_EVENT_ABORT, 5, 5, HK_ERR_REMOTE, false, -1},
      {HK_EVENT_REVOKE, 1, 3, 0, false, -1},
      {HK_EVENT_ABORT, 6, 6, HK_OK, true, 5},
      {HK_EVENT_DEAD, 7, 5, 0, true, 5}}},
    {"newer shrinks are new",
     {{HK_EVENT_SHRINK, 1, 1, 2, true, -1},
      {HK_EVENT_SHRINK, 1, 1, 2, false, -1},
      {HK_EVENT_SHRINK, 1, 1, 1, false, -1},
      {HK_EVENT_SHRINK, 1, 1, 3, true, -1},
      {HK_EVENT_SHRINK, 2, 2, 1, true, -1},
      {HK_EVENT_SHRINK, 1, 1, 3, false, -1}}},
    {"of lost links the lowest pair counts, until there is more than a lost link",
     {{HK_EVENT_LINK, 5, 9, 0, true, 0},
      {HK_EVENT_LINK, 5, 9, 0, false, 0},
      {HK_EVENT_LINK, 6, 7, 0, false, 0},
      {HK_EVENT_LINK, 5, 10, 0, false, 0},
      {HK_EVENT_LINK, 5, 8, 0, true, 4},
      {HK_EVENT_LINK, 4, 99, 0, true, 5},
      {HK_EVENT_DEAD, 64, 3, 0, true, 6},
      {HK_EVENT_LINK, 1, 2, 0, true, 6},
      {HK_EVENT_ERROR, 3, 3, HK_ERR_SYSTEM, true, 6}}},
    {"a revoke does not replace a lost link",
     {{HK_EVENT_LINK, 5, 9, 0, true, 0},
      {HK_EVENT_REVOKE, 1, 2, 0, true, 0},
      {HK_EVENT_SUSPECT, 3, 2, 0, true, 2},
      {HK_EVENT_DEAD, 3, 2, 0, true, 2}}},
    {"a verdict of each rank",
     {{HK_EVENT_VERDICT, 2, 3, HK_ERR_USAGE, true, 0},
      {HK_EVENT_VERDICT, 9, 3, HK_ERR_USAGE, false, 0},
      {HK_EVENT_VERDICT, 2, 4, HK_ERR_USAGE, true, 0},
      {HK_EVENT_ERROR, 2, 3, HK_ERR_USAGE, true, 0},
      {HK_EVENT_ERROR, 2, 4, HK_ERR_USAGE, false, 0}}},
    {"ranks of other words",
     {{HK_EVENT_SUSPECT, 0, 3, 0, true, 0},
      {HK_EVENT_SUSPECT, 64, 3, 0, true, 0},
      {HK_EVENT_SUSPECT, 128, 3, 0, true, 0},
      {HK_EVENT_SUSPECT, 0, 3, 0, false, 0},
      {HK_EVENT_SUSPECT, 64, 3, 0, false, 0},
      {HK_EVENT_DEAD, 65, 3, 0, true, 0},
      {HK_EVENT_DEAD, 65, 4, 0, false, 0},
      {HK_EVENT_ABORT, 129, 4, 0, true, 0}}},
};

TEST_LOOP(new_ones, HK_ARRAY_LENGTH(scenes)) {
  const scene *s = &scenes[_i];
  for (size_t i = 0; i < HK_ARRAY_LENGTH(s->steps) && s->steps[i].from; i++) {
    const step *now = &s->steps[i], *counts = &s->steps[now->counts < 0 ? 0 : now->counts];
    hk_event e = an_event(now->kind, now->rank, now->from, now->code);
    int before = state.nevents;
    hk_event_received(&boot, &e, NULL);
    ck_assert_msg(state.nevents - before == now->new, "%s: step %zu", s->of, i);
    ck_assert_msg(boot.failures.broken == (now->counts >= 0), "%s: step %zu", s->of, i);
    if (now->new) ck_assert_str_eq(state.events[before].text, e.text);
    if (now->counts < 0) continue;
    hk_event want = an_event(counts->kind, counts->rank, counts->from, counts->code);
    ck_assert_msg(boot.failures.first_event.kind == want.kind && boot.failures.first_event.rank == want.rank &&
                      boot.failures.first_event.from == want.from && !strcmp(boot.failures.first_event.text, want.text),
                  "%s: after step %zu \"%s\" counts", s->of, i, boot.failures.first_event.text);
  }
  for (int r = 0; r < RANKS; r++) {
    ck_assert_int_eq(hk_event_dead(&boot, r), was_reported(&state, HK_EVENT_DEAD, r));
    ck_assert_int_eq(hk_event_aborted(&boot, r), was_reported(&state, HK_EVENT_ABORT, r));
  }
}

/* With a process all its ranks die, but for those that have left, and for those of this process: another rank lost the
 * connection to us. */
TEST(deaths) {
  hk_event far = an_event(HK_EVENT_DEAD, 9, 3, 0), again = an_event(HK_EVENT_DEAD, 10, 3, 0);
  hk_event early = an_event(HK_EVENT_DEAD, 13, 3, 0), own = an_event(HK_EVENT_DEAD, SELF + 1, 3, 0);
  hk_event_received(&boot, &early, NULL); /* before the contacts are known */
  ck_assert_int_eq(state.nevents, 1);
  boot.known = true;
  links[1].rank = 11;
  links[1].end = HK_END_LEFT;
  links[2].rank = 8; /* open */
  hk_event_received(&boot, &far, NULL);
  ck_assert_int_eq(state.nevents, 4);
  ck_assert(was_reported(&state, HK_EVENT_DEAD, 8) && was_reported(&state, HK_EVENT_DEAD, 9));
  ck_assert(was_reported(&state, HK_EVENT_DEAD, 10) && hk_event_dead(&boot, 10) && !hk_event_dead(&boot, 11));
  ck_assert_str_eq(state.events[2].text, far.text);
  hk_event_received(&boot, &again, NULL);
  ck_assert_int_eq(state.nevents, 4);
  hk_event_received(&boot, &own, NULL);
  ck_assert_int_eq(state.nevents, 5);
  far = an_event(HK_EVENT_ERROR, 20, 20, HK_ERR_SYSTEM);
  hk_event_received(&boot, &far, NULL);
  ck_assert_int_eq(state.nevents, 6);
}

/* ---- to whom ---- */

/* The event on a link's other end is this one; `e` NULL: nothing has come. */
static bool has_come(int link, const hk_event *e) {
  uint8_t in[HK_FRAME_BYTES + HK_EVENT_BYTES + HK_EVENT_TEXT];
  ssize_t n = recv(other_end[link], in, sizeof in, 0);
  hk_frame f;
  hk_event got;
  if (!e || n < HK_FRAME_BYTES) return !e && n < 0;
  return hk_frame_decode(&f, in, links[link].round) && f.type == HK_FRAME_EVENT &&
         n == HK_FRAME_BYTES + (ssize_t)f.bytes && hk_event_decode(&got, in + HK_FRAME_BYTES, f.bytes, RANKS) &&
         got.kind == e->kind && got.rank == e->rank && got.from == e->from && got.code == e->code &&
         !strcmp(got.text, e->text);
}
/* It has come on all open links but `except` (-1: on all). */
static void all_get(const hk_event *e, int except) {
  for (int i = 0; i < LINKS; i++)
    ck_assert_msg(has_come(i, i == except || links[i].end != HK_END_OPEN ? NULL : e), "link %d", i);
}

TEST(passed_on) {
  hk_event e = an_event(HK_EVENT_SUSPECT, 7, 3, 2);
  hk_event_repeat(&boot); /* there is nothing to repeat */
  all_get(NULL, -1);
  hk_event_received(&boot, &e, &links[1]);
  all_get(&e, 1);
  hk_event_received(&boot, &e, &links[2]);
  all_get(NULL, -1);
  links[0].end = HK_END_LEFT;
  hk_event_repeat(&boot);
  all_get(&e, -1);
  memset(e.text, 'x', sizeof e.text - 1); /* as long as it may be */
  e.rank = 8;
  hk_event_received(&boot, &e, NULL);
  all_get(&e, -1);
}

TEST(announced) {
  hk_event e = an_event(HK_EVENT_ERROR, RANKS - 1, 3, HK_ERR_SYSTEM);
  hk_bootstrap_announce(&boot, &e);
  e.from = SELF;
  all_get(&e, -1);
  hk_bootstrap_announce(&boot, &e);
  e.rank = RANKS;
  hk_bootstrap_announce(&boot, &e);
  e.rank = -1;
  hk_bootstrap_announce(&boot, &e);
  all_get(NULL, -1);
  e.rank = 0;
  hk_bootstrap_announce(&boot, &e);
  all_get(&e, -1);
  ck_assert_int_eq(state.nevents, 0); /* this rank knows */
}

/* The event as a message of the link's other rank, or of this one if it is about this one. */
static hk_message *message_of(const hk_overlay_link *l, const hk_event *e) {
  const size_t text = strlen(e->text);
  hk_message *m = malloc(sizeof *m + HK_EVENT_BYTES + text);
  *m = (hk_message){.frame = {.type = HK_FRAME_EVENT, .round = l->round, .bytes = (uint32_t)(HK_EVENT_BYTES + text)},
                    .from = e->rank == SELF ? SELF : l->rank,
                    .towards_next = !l->next};
  hk_event_encode(m->data, e);
  memcpy(m->data + HK_EVENT_BYTES, e->text, text);
  return m;
}

/* From a rank of this process: not back to it, but to all if it is about this rank. */
TEST(posted) {
  hk_event e[] = {an_event(HK_EVENT_DEAD, 7, 7, 0), an_event(HK_EVENT_ERROR, SELF, SELF, HK_ERR_SYSTEM),
                  an_event(HK_EVENT_REVOKE, 8, 8, 0)};
  int by[] = {1, 2, 0};
  memset(e[2].text, 'x', sizeof e[2].text - 1);
  for (int i = 0; i < 3; i++) {
    hk_overlay_deliver(&boot, message_of(&links[by[i]], &e[i]));
    ck_assert(await_count(&state.nevents, i + 1));
    ck_assert_str_eq(state.events[i].text, e[i].text);
    all_get(&e[i], e[i].rank == SELF ? -1 : by[i]);
  }
}

/* ---- on the wire ---- */

TEST(decoded) {
  static const struct {
    int kind, rank, from, text; /* bytes of text; -1: and one byte of the event is missing */
    bool valid;
  } rows[] = {
      {HK_EVENT_DEAD, 0, 0, 0, true},
      {HK_EVENT_LINK, RANKS - 1, RANKS - 1, 5, true},
      {HK_EVENT_ERROR, 1, 2, HK_EVENT_TEXT - 1, true},
      {HK_EVENT_ERROR, 1, 2, HK_EVENT_TEXT, false},
      {HK_EVENT_ERROR, 1, 2, -1, false},
      {HK_EVENT_DEAD - 1, 1, 2, 5, false},
      {HK_EVENT_KINDS, 1, 2, 5, false},
      {HK_EVENT_ERROR, -1, 2, 5, false},
      {HK_EVENT_ERROR, RANKS, 2, 5, false},
      {HK_EVENT_ERROR, 1, -1, 5, false},
      {HK_EVENT_ERROR, 1, RANKS, 5, false},
  };
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    uint8_t in[HK_EVENT_BYTES + HK_EVENT_TEXT];
    hk_event e = {.kind = rows[i].kind, .rank = rows[i].rank, .from = rows[i].from, .code = -3}, got;
    hk_event_encode(in, &e);
    memset(in + HK_EVENT_BYTES, 't', HK_EVENT_TEXT);
    memset(got.text, 'u', sizeof got.text);
    bool valid = hk_event_decode(&got, in, (size_t)(HK_EVENT_BYTES + rows[i].text), RANKS);
    ck_assert_msg(valid == rows[i].valid, "row %zu", i);
    if (!valid) continue;
    ck_assert_int_eq(got.code, -3);
    ck_assert_uint_eq(strnlen(got.text, sizeof got.text), rows[i].text);
  }
}

int main(void) { return suite_main("events of the bootstrap", .setup = setup, .teardown = teardown); }
