/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Waits inside the bootstrap: which message and which failure ends one, when it is reported, and which ranks the report
 * names. Reports run on a clock of the test. */
#include "../support/boot_bench.h"

static int warnings(void) {
  int n = 0;
  for (const char *p = scratch_read("log"); (p = strstr(p, " has waited ")); p++) n++;
  return n;
}

/* ---- when ---- */

/* Seconds after the begin of the wait. */
static const struct {
  bool bounded;
  const char *timeout, *watchdog, *abort;
  unsigned own;        /* deadline of the caller; 0: none */
  unsigned reports[6]; /* 0: no more */
  unsigned error;      /* 0: never */
  const char *words;
} times[] = {
    {true, "45", "60", "0", 0, {10, 20, 40}, 45, "; it gave up (HOCKET_BOOTSTRAP_TIMEOUT)"},
    {true, "45", "10", "0", 0, {10, 20, 40}, 45, "has waited 45 s in the init of communicator \"dp\" 0xc0 for"},
    {true, "45", "4", "0", 0, {4, 8, 16, 32}, 45, ""},
    {true, "45", "0", "0", 0, {0}, 45, "rank 1 of 4 has waited 45 s"},
    {true, "45", "60", "0", 15, {10}, 15, "it gave up"},
    {true, "45", "60", "0", 50, {10, 20, 40}, 45, "it gave up"},
    {true, "45", "60", "1", 0, {10, 20, 40}, 45, "HOCKET_BOOTSTRAP_TIMEOUT"},
    {false, "45", "60", "0", 0, {60, 90, 120, 150, 180}, 0, ""},
    {false, "45", "5", "0", 0, {5, 10, 20, 40, 70, 100}, 0, ""},
    {false, "45", "0", "0", 0, {0}, 0, ""},
    {false, "45", "0", "1", 0, {0}, 0, ""},
    {false, "45", "25", "1", 0, {0}, 25, ": it gave up (HOCKET_WATCHDOG_ABORT=1)"},
    {false, "45", "60", "0", 20, {0}, 20, "it gave up"},
};

TEST_LOOP(reports_in_time, HK_ARRAY_LENGTH(times)) {
  unsigned at = 0, last = times[_i].error ? times[_i].error : 110;
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", times[_i].timeout);
  set_param("HOCKET_WATCHDOG", times[_i].watchdog);
  set_param("HOCKET_WATCHDOG_ABORT", times[_i].abort);
  make_ranks(4);
  const uint64_t begin = clock_ns = hk_now_ns() + 1000 * S;
  wait_env.deadline_ns = times[_i].own ? begin + times[_i].own * S : 0;
  me->o.name = "dp";
  hk_bootstrap_begin(me, times[_i].bounded ? HK_PHASE_INIT : HK_PHASE_SPLIT, "the init");
  hk_wait_env env = hk_report_begin(me, times[_i].bounded);
  ck_assert(env.check == hk_report_check && env.arg == me && !env.deadline_ns && env.failure == &failure);
  for (unsigned s = 1; s <= last; s++) {
    clock_ns = begin + s * S - 1;
    ck_assert_msg(hk_report_check(me, 0) == HK_OK && warnings() == (int)at, "before %u s", s);
    clock_ns = begin + s * S;
    if (at < 6 && times[_i].reports[at] == s) at++;
    if (s == times[_i].error) me->call.dialing = true; /* a connection that is being made ends by itself */
    if (s == times[_i].error && times[_i].bounded) ck_assert_int_eq(hk_report_check(me, 0), HK_OK);
    me->call.dialing = false;
    ck_assert_msg(hk_report_check(me, 0) == (s == times[_i].error ? HK_ERR_REMOTE : HK_OK), "at %u s", s);
    if (s != times[_i].error) ck_assert_msg(warnings() == (int)at, "%u s: %d warnings", s, warnings());
  }
  if (times[_i].error) expect_error(times[_i].words);
}

/* Waits for shared memory and networks: in the init they end as the bootstrap's own. */
TEST_LOOP(other_waits, 3) {
  static const hk_phase phases[] = {HK_PHASE_INIT, HK_PHASE_SPLIT, HK_PHASE_IDLE};
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  make_ranks(4);
  const uint64_t begin = clock_ns = hk_now_ns() + 1000 * S;
  hk_bootstrap_begin(me, phases[_i], "the call");
  ck_assert_int_eq(hk_bootstrap_check(me), HK_OK);
  clock_ns = begin + 45 * S;
  ck_assert_int_eq(hk_bootstrap_check(me), _i == 0 ? HK_ERR_REMOTE : HK_OK);
  /* No rank could connect to this process for more than five seconds. */
  hk_bootstrap_begin(me, phases[_i], "the call");
  listener.refused_errno = EMFILE;
  listener.refusing_since_ns = clock_ns - 5 * S;
  ck_assert(hk_bootstrap_check(me) == HK_OK && hk_bootstrap_check_listener(me) == HK_OK);
  listener.refusing_since_ns--;
  ck_assert_int_eq(hk_bootstrap_check(me), HK_ERR_SYSTEM);
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_SYSTEM);
  ck_assert_int_eq(hk_bootstrap_check_listener(me), HK_ERR_SYSTEM);
  expect_error("Too many open files; raise the limit");
}

/* Which collectives have an end of their own: those of calls that all ranks have begun. */
TEST(bounded_calls) {
  make_ranks(4);
  for (int phase = HK_PHASE_IDLE; phase < HK_PHASE_COUNT; phase++)
    for (int child = 0; child < 2; child++) {
      hk_bootstrap_begin(me, (hk_phase)phase, "a call");
      me->parent = child ? &parent : NULL;
      ck_assert_int_eq(hk_report_bounded(me), phase == HK_PHASE_INIT || (child && phase == HK_PHASE_SPLIT));
    }
}

static hk_status give_code(void *code) { return *(hk_status *)code; }
static hk_status give_waited(void *waited, uint64_t ns) { return *(uint64_t *)waited == ns ? HK_OK : HK_ERR_INTERNAL; }

TEST(checks_of_the_caller) {
  hk_status code = HK_ERR_USAGE;
  uint64_t waited = 17;
  make_ranks(4);
  hk_report_begin(me, false);
  hk_bootstrap_also(me, give_code, &code);
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_USAGE);
  hk_bootstrap_also(me, NULL, NULL);
  wait_env.check = give_waited;
  wait_env.arg = &waited;
  ck_assert(hk_report_check(me, 17) == HK_OK && hk_report_check(me, 18) == HK_ERR_INTERNAL);
}

/* ---- whom ---- */

typedef struct other {
  char state; /* '-': in no call; i, s, o: in the init, a split, an operation; G: gone; L: has left; ?: not known */
  int waits_for;
} other;
static const struct {
  char call;         /* this rank's */
  other others[5];   /* ranks 0, 2, 3, 4, 5; fewer ranks: 0 */
  const char *words; /* after "for " */
  bool ends;         /* the init ends at the first report */
} scenes[] = {
    {'i', {{'i', -1}, {'-', -1}, {'i', 0}}, "rank 0; rank 0 is in the init of the communicator$", false},
    {'i', {{'-', -1}, {'o', 2}, {'-', 3}}, "other ranks$", false},
    {'i', {{'i', -1}, {'i', -1}, {'G', -1}}, "rank 3; rank 3 is gone", true},
    {'i',
     {{'i', -1}, {'L', -1}, {'G', -1}},
     "ranks 2 and 3; rank 2 has left the communicator (ncclCommDestroy); rank 3 is gone",
     true},
    {'i', {{'?', -1}, {'i', 0}, {'i', -1}}, "rank 3; rank 3 is in the init of the communicator$", false},
    {'s', {{'s', -1}, {'s', 0}, {'-', -1}}, "ranks 0 and 3; rank 0 is in ncclCommSplit; rank 3 runs outside of", false},
    {'s',
     {{'i', -1}, {'i', 0}, {'o', 0}},
     "ranks 0 and 3; rank 0 is in the init of the communicator; rank 3 is in no operation, and waits for rank 0 "
     "itself$",
     false},
    {'s',
     {{'-', -1}, {'s', -1}, {'G', -1}},
     "ranks 3, 0 and 2; rank 3 is gone: its process has ended; see its output; rank 0 runs outside of this "
     "communicator's calls, and has begun no operation of it yet; rank 2 is in ncclCommSplit$",
     false},
    {'s',
     {{'-', -1}, {'G', -1}, {'s', -1}, {'L', -1}, {'s', -1}},
     "ranks 2, 4, 0, 3 and 5; rank 2 is gone: its process has ended; see its output; rank 4 has left the "
     "communicator (ncclCommDestroy); rank 0 runs",
     false},
    {'s', {{'s', -1}, {'s', -1}, {'s', -1}}, "ranks 0, 2 and 3; rank 0 is in ncclCommSplit; rank 2 is", false},
};

static hk_phase phase_of(char letter) {
  return letter == 'i'   ? HK_PHASE_INIT
         : letter == 's' ? HK_PHASE_SPLIT
         : letter == 'o' ? HK_PHASE_OPERATION
                         : HK_PHASE_IDLE;
}

/* The words are in the error; $: at its end. */
static void expect_for(const char *words) {
  char want[400];
  const char *text = strstr(hk_last_error(), " for ");
  size_t n = strlen(words);
  bool ends = words[n - 1] == '$';
  snprintf(want, sizeof want, "%.*s%s", (int)(n - ends), words,
           !ends                  ? ""
           : me->call.deadline_ns ? "; it gave up"
                                  : ": it gave up");
  ck_assert_msg(text && strstr(text, want), "%s: not %s", hk_last_error(), want);
}

TEST_LOOP(names_the_right_ones, HK_ARRAY_LENGTH(scenes)) {
  int n = 2;
  while (n < 6 && scenes[_i].others[n - 1].state) n++;
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  set_param("HOCKET_WATCHDOG", "20");
  set_param("HOCKET_WATCHDOG_ABORT", "1");
  make_ranks(n);
  clock_ns = hk_now_ns() + 1000 * S;
  for (int i = 0, r = 0; r < n; r++) {
    if (r == ME) continue;
    const other *o = &scenes[_i].others[i++];
    hk_bootstrap *b = &ranks[r];
    if (o->state == 'G') me->failures.dead[0] |= (uint64_t)1 << r;
    if (o->state == 'L') hk_member_leave(b);
    if (o->state == '?') hk_contact_of(me, r)[10] = 0;
    does[r] = (hk_activity){.phase = (uint8_t)phase_of(o->state), .waits_for = o->waits_for};
  }
  hk_bootstrap_begin(me, phase_of(scenes[_i].call), "a call");
  hk_report_begin(me, hk_report_bounded(me));
  clock_ns += 10 * S;
  ck_assert_int_eq(hk_report_check(me, 0), scenes[_i].ends ? HK_ERR_REMOTE : HK_OK);
  if (!scenes[_i].ends) {
    clock_ns += 35 * S;
    ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
    expect_for(scenes[_i].words);
  } else {
    expect_error(scenes[_i].words);
    ck_assert_ptr_null(strstr(hk_last_error(), "gave up"));
    ck_assert_ptr_null(strstr(hk_last_error(), "rank 0 "));
  }
}

/* In a large communicator the chain of waits is followed to its end: a rank that waits for none, for this one, for
 * itself, or for no rank, or that is gone. */
TEST_LOOP(follows_the_chain, 6) {
  static const struct {
    int chain[5]; /* from the awaited rank on; what the last one waits for ends it */
    const char *words;
  } rows[] = {
      {{3, 7, 9, -1}, "rank 9; rank 9 is in ncclCommSplit; rank 3 is in ncclCommSplit, and waits for rank 7 itself;"},
      {{3, -1}, "rank 3; rank 3 is in ncclCommSplit$"},
      {{3, 7, ME},
       "circle; rank 3 is in ncclCommSplit, and waits for rank 7 itself; rank 7 is in ncclCommSplit, "
       "and waits for rank 1 itself$"},
      {{3, 7, 7}, "other ranks, which wait in a circle; rank 3 is in"},
      {{3, 7, 39, -1}, "rank 39; rank 39 is in ncclCommSplit; rank 3 is in"},
      {{3, 0, 40}, "rank 0 is in ncclCommSplit, and waits for rank 40 itself$"}};
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  make_ranks(MOST);
  clock_ns = hk_now_ns() + 1000 * S;
  for (int r = 0; r < MOST; r++) does[r] = (hk_activity){.phase = HK_PHASE_SPLIT, .waits_for = -1};
  for (int i = 0, at = rows[_i].chain[0]; at >= 0 && at < MOST && at != ME; at = rows[_i].chain[++i]) {
    does[at].waits_for = rows[_i].chain[i + 1];
    if (rows[_i].chain[i + 1] == at) break;
  }
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "a call");
  hk_report_begin(me, true);
  atomic_store(&me->call.awaited, rows[_i].chain[0]);
  clock_ns += 45 * S;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_for(rows[_i].words);
  atomic_store(&me->call.awaited, -1); /* it is not known for whom */
  clock_ns += S;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_for("other ranks$");
}

/* A chain is followed for so many ranks, and only if not all are asked. */
TEST_LOOP(follows_it_so_far, 5) {
  static const struct {
    int n, begin, end; /* each rank of the chain waits for the next one */
    const char *words;
  } rows[] = {{MOST, 3, 34, "rank 34; rank 34 is in ncclCommSplit; rank 3 is in"},
              {MOST, 2, 33, "; and 26 more ranks$"},
              {MOST, 2, 34, "rank 33; rank 33 is in ncclCommSplit, and waits for rank 34 itself; rank 2 is in"},
              {32, 2, 7, "ranks 0, 7, 8, 9, 10, 11, 12, 13 and 18 more; rank 0 is in ncclCommSplit; rank 7 is in"},
              {33, 2, 7, "rank 7; rank 7 is in ncclCommSplit; rank 2 is in"}};
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  make_ranks(rows[_i].n);
  clock_ns = hk_now_ns() + 1000 * S;
  for (int r = 0; r < rows[_i].n; r++)
    does[r] = (hk_activity){.phase = HK_PHASE_SPLIT, .waits_for = r >= rows[_i].begin && r < rows[_i].end ? r + 1 : -1};
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "a call");
  hk_report_begin(me, true);
  atomic_store(&me->call.awaited, rows[_i].begin);
  clock_ns += 45 * S;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_for(rows[_i].words);
}

/* A rank that is gone ends the chain, whatever it waited for. */
TEST(ends_with_the_gone) {
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  make_ranks(MOST);
  clock_ns = hk_now_ns() + 1000 * S;
  for (int r = 0; r < MOST; r++) does[r] = (hk_activity){.phase = HK_PHASE_SPLIT, .waits_for = r == 3 ? 7 : 9};
  me->failures.dead[0] |= 1 << 7;
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "a call");
  hk_report_begin(me, true);
  atomic_store(&me->call.awaited, 3);
  clock_ns += 45 * S;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_for("rank 7; rank 7 is gone: its process has ended; see its output; rank 3 is in");
}

/* A child in the making is reported in the parent's numbers, and its ranks may have died in the parent. */
TEST(in_the_parents_numbers) {
  static const int members[] = {4, 2, 6};
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "45");
  make_ranks(3);
  make(&parent, 2, 7);
  clock_ns = hk_now_ns() + 1000 * S;
  me->parent = &parent;
  me->members = members;
  does[2] = (hk_activity){.phase = HK_PHASE_SPLIT, .waits_for = 1};
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "ncclCommSplit number 3");
  hk_report_begin(me, true);
  clock_ns += 45 * S;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_error("rank 2 of 7 has waited 45 s in ncclCommSplit number 3 of communicator 0xc0 for rank 4; rank 4 ");
  ck_assert_ptr_null(strstr(hk_last_error(), "rank 6 "));
  does[2] = (hk_activity){.phase = HK_PHASE_OPERATION, .waits_for = 1};
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_error("; rank 6 is in no operation, and waits for rank 2 itself");
  hk_report_begin(me, true);
  atomic_store(&me->call.awaited, 2);
  parent.failures.dead[0] = 1 << 4;
  ck_assert_int_eq(hk_report_check(me, 0), HK_OK);
  parent.failures.dead[0] = 1 << 6;
  ck_assert_int_eq(hk_report_check(me, 0), HK_ERR_REMOTE);
  expect_error("rank 2 of 3, which is rank 6 of the parent communicator, has died");
  atomic_store(&me->call.awaited, -1);
  ck_assert_int_eq(hk_report_check(me, 0), HK_OK);
}

/* ---- which failure ends a wait ---- */

static void put(hk_frame_type type, int round, bool towards_next, uint64_t seq) {
  hk_message *m = calloc(1, sizeof *m);
  *m = (hk_message){.frame = {.type = (uint16_t)type, .round = (uint16_t)round, .seq = seq},
                    .towards_next = towards_next};
  *me->inbox_end = m;
  me->inbox_end = &m->next;
}
static hk_status await(bool next, int round, uint64_t seq) {
  hk_message *m = NULL;
  hk_status rc = hk_overlay_await(hk_link_to(me, next, round), HK_FRAME_GATHER, seq, &wait_env, &m);
  free(m);
  ck_assert_int_eq(m != NULL, rc == HK_OK);
  return rc;
}

/* A wait takes the frame that fits, and drops older ones of the kind: collectives that were given up. */
TEST(takes_the_frame) {
  make_ranks(4);
  put(HK_FRAME_GATHER, 1, false, 4);  /* old */
  put(HK_FRAME_BARRIER, 1, false, 4); /* another kind */
  put(HK_FRAME_GATHER, 0, false, 4);  /* of another link */
  put(HK_FRAME_GATHER, 1, true, 4);   /* of another link */
  put(HK_FRAME_GATHER, 1, false, 6);  /* a later one */
  put(HK_FRAME_GATHER, 1, false, 5);
  atomic_store(&failure, HK_ERR_USAGE); /* looked at only if nothing is there */
  atomic_store(&me->call.gave_up_ns, 1);
  ck_assert_int_eq(await(true, 1, 5), HK_OK);
  ck_assert(atomic_load(&me->call.awaited) == -1 && !atomic_load(&me->call.gave_up_ns));
  int left = 0;
  for (hk_message *m = me->inbox; m; m = m->next, left++)
    ck_assert(m->frame.type == HK_FRAME_BARRIER || m->frame.seq != 5);
  ck_assert_int_eq(left, 4);
  ck_assert_int_eq(await(true, 1, 6), HK_OK); /* the last of the list */
  put(HK_FRAME_GATHER, 1, false, 7);
  ck_assert_int_eq(await(true, 1, 7), HK_OK);
  ck_assert_int_eq(await(true, 0, 4), HK_OK);
  ck_assert_int_eq(await(false, 1, 4), HK_OK);
  hk_bootstrap_begin(me, HK_PHASE_SPLIT, "a call");
  ck_assert_int_eq(await(false, 1, 4), HK_ERR_USAGE);
  ck_assert(atomic_load(&me->call.awaited) == 3 && atomic_load(&me->call.gave_up_ns) &&
            atomic_load(&me->call.gave_up_in) == HK_PHASE_SPLIT);
  ck_assert(me->inbox && !me->inbox->next && me->inbox->frame.type == HK_FRAME_BARRIER);
}

static const struct {
  int kind;
  const char *text, *words;
} causes[] = {{HK_EVENT_DEAD, "killed", "rank 2 of 4 is gone: killed"},
              {HK_EVENT_DEAD, "", "rank 2 of 4 is gone"},
              {HK_EVENT_ABORT, "", "rank 2 of 4 aborted"},
              {HK_EVENT_ERROR, "no memory", "rank 2 of 4 failed: no memory"},
              {HK_EVENT_VERDICT, "another count", "rank 2 of 4 disagrees with the others: another count"},
              {HK_EVENT_SUSPECT, "it is slow", "it is slow"},
              {HK_EVENT_SUSPECT, "", "rank 2 of 4 cannot go on"},
              {HK_EVENT_LINK, "the link of 2 and 3", "the link of 2 and 3"}};

TEST_LOOP(events_end_it, HK_ARRAY_LENGTH(causes)) {
  make_ranks(4);
  hk_event e = {.kind = causes[_i].kind, .rank = 2, .from = 3};
  snprintf(e.text, sizeof e.text, "%s", causes[_i].text);
  uint64_t begin = hk_now_ns();
  hk_event_received(me, &e, NULL);
  ck_assert_int_eq(await(true, 1, 1), HK_ERR_REMOTE);
  ck_assert_str_eq(hk_last_error(), causes[_i].words);
  /* Another lost link, which all ranks report, may be under way. */
  if (e.kind == HK_EVENT_LINK) ck_assert_uint_ge(hk_now_ns() - begin, 200000000);
}

/* A child that is being made: what happens in the parent. */
static void lose_parent(int kind, uint64_t ago_ns) {
  parent.failures.broken = true;
  parent.failures.first_event = (hk_event){.kind = kind, .rank = 5};
  snprintf(parent.failures.first_event.text, sizeof parent.failures.first_event.text, "bad");
  if (ago_ns) parent.failures.lost_ns = hk_now_ns() - ago_ns;
}
static void after_failure(void) { lose_parent(HK_EVENT_ERROR, S), me->after_failure = true; }
static void link_lost(void) { lose_parent(HK_EVENT_LINK, S); }
static void link_and_death(void) { lose_parent(HK_EVENT_DEAD, S); }
static void parent_failed(void) { lose_parent(HK_EVENT_ERROR, 0); }
static void parent_died(void) { lose_parent(HK_EVENT_DEAD, 0); }
static void dead_there(void) { parent.failures.dead[0] = 1 << 6; }
static void another_dead(void) { parent.failures.dead[0] = 1 << 4; }
static void aborted(int rank, uint64_t ago_ns) {
  parent.failures.seen[HK_EVENT_ABORT] = (uint64_t)1 << rank;
  me->failures.gone_ns = hk_now_ns() - ago_ns;
}
static void aborted_there(void) { aborted(6, S + 1); }
static void just_aborted(void) { aborted(6, S / 2); }
static void another_aborted(void) { aborted(4, 2 * S); }
static void left_there(void) {
  hk_link_to(&parent, true, 2)->end = HK_END_LEFT, me->failures.gone_ns = hk_now_ns() - 2 * S;
}
static void aborted_but_open(void) { aborted(6, 2 * S), hk_link_to(me, false, 1)->end = HK_END_OPEN; }
static void left_the_child(void) { hk_link_to(me, false, 1)->end = HK_END_LEFT; }

static const struct {
  void (*happens)(void);
  const char *words; /* NULL: the wait goes on */
} in_parent[] = {{after_failure, NULL},
                 {link_lost, "bad"},
                 {link_and_death, "a control connection of the parent was lost"},
                 {parent_failed, "rank 5 of the parent communicator failed: bad"},
                 {parent_died, NULL},
                 {dead_there, "rank 3 of 4, which is rank 6 of the parent communicator, is gone"},
                 {another_dead, NULL},
                 {aborted_there, "rank 6 of the parent communicator, which was to become rank 3 of 4, has aborted"},
                 {just_aborted, NULL},
                 {another_aborted, NULL},
                 {left_there, "rank 6 of the parent communicator, which was to become rank 3 of 4, has aborted"},
                 {aborted_but_open, NULL},
                 {left_the_child, "rank 3 of 4 has left the communicator (ncclCommDestroy) while others wait"}};

TEST_LOOP(the_parent_ends_it, HK_ARRAY_LENGTH(in_parent)) {
  static const int members[] = {4, 2, 3, 6};
  make_ranks(4);
  make(&parent, 2, 7);
  me->parent = &parent;
  me->members = members;
  in_parent[_i].happens();
  atomic_store(&failure, HK_ERR_USAGE);
  ck_assert_int_eq(await(false, 1, 1), in_parent[_i].words ? HK_ERR_REMOTE : HK_ERR_USAGE);
  if (in_parent[_i].words) expect_error(in_parent[_i].words);
  ck_assert_int_eq(atomic_load(&parent.call.awaited), 6);
}

/* Which members a child may have. */
TEST_LOOP(members_of_a_child, 9) {
  static const struct {
    int rank, n, members[4];
    hk_status status;
    const char *words;
  } rows[] = {{0, 0, {2}, HK_ERR_ARGUMENT, "rank 0 of 0 is out of range in a child: the parent has 7 ranks"},
              {0, 8, {2}, HK_ERR_ARGUMENT, "rank 0 of 8 is out of range"},
              {-1, 3, {2, 3, 4}, HK_ERR_ARGUMENT, "rank -1 of 3 is out of range"},
              {3, 3, {1, 3, 4, 2}, HK_ERR_ARGUMENT, "rank 3 of 3 is out of range"},
              {1, 3, {2, 3, 4}, HK_ERR_INTERNAL, "rank 2 of the parent joins its child as member 1, which is rank 3"},
              {0, 3, {2, 3, -1}, HK_ERR_ARGUMENT, "member 2 of the child is rank -1: the parent has 7 ranks"},
              {0, 3, {2, 7, 3}, HK_ERR_ARGUMENT, "member 1 of the child is rank 7"},
              {0, 3, {2, 6, 5}, HK_ERR_REMOTE, "rank 5 has aborted the communicator"},
              {0, 3, {2, 6, 4}, HK_ERR_REMOTE, "rank 4 has died"}};
  hk_bootstrap *child = me;
  make(&parent, 2, 7);
  parent.failures.seen[HK_EVENT_ABORT] = 1 << 5;
  parent.failures.dead[0] = 1 << 4;
  hk_bootstrap_options o = {
      .settings = hk_settings_now(), .rank = rows[_i].rank, .nranks = rows[_i].n, .wait = &wait_env};
  ck_assert_int_eq(hk_bootstrap_join_child(&child, &parent, rows[_i].members, 1, &o), rows[_i].status);
  ck_assert_ptr_null(child);
  expect_error(rows[_i].words);
}

/* Connections to ranks that there are not, or that are dead. */
TEST(no_such_peers) {
  static _Atomic(int) stop;
  int fd = 5;
  bool gone = false;
  make_ranks(4);
  me->failures.dead[0] = 1 << 3;
  ck_assert_int_eq(hk_bootstrap_dial(me, -1, NULL, 1, &fd), HK_ERR_INTERNAL);
  ck_assert_int_eq(hk_bootstrap_dial(me, 4, NULL, 1, &fd), HK_ERR_INTERNAL);
  ck_assert_int_eq(hk_bootstrap_dial(me, 3, NULL, 1, &fd), HK_ERR_REMOTE);
  expect_error("rank 3 of 4 has died");
  ck_assert_int_eq(fd, -1);
  ck_assert(hk_bootstrap_redial(me, 3, 1, &stop, &fd, &gone) == HK_ERR_REMOTE && gone);
}

int main(void) { return suite_main("waits and reports of the bootstrap", .setup = setup, .teardown = teardown); }
