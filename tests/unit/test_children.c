/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Failures in making a child: which of the notices of other ranks counts, when the parent's own failure does, and which
 * of the lists of excluded ranks differs. */
#include "../../src/base/status.h"
#include "../../src/boot/internal.h"
#include "../../src/comm/children_internal.h"
#include "../../src/failure/failure.h"
#include "../../src/failure/watch.h"
#include "../support/suite.h"

static struct ncclComm parent, child; /* what these functions read of them; all else is 0 */
static int members[] = {0, 2, 3}, excluded[] = {3};
static hk_init how;
static hk_children_watch watch;

static void setup(void) {
  static hk_event causes[2];
  parent.health.cause = &causes[0];
  child.health.cause = &causes[1];
  pthread_mutex_init(&parent.health.lock, NULL);
  pthread_mutex_init(&child.health.lock, NULL);
  child.nranks = 3;
  how.parent = &parent;
  watch = (hk_children_watch){.c = &child, .how = &how, .key = "split 1", .members = members};
}

static void keep(int rank, const char *text) {
  hk_event e = {.rank = rank};
  snprintf(e.text, sizeof e.text, "#%s", text);
  hk_children_keep_failure(&parent, &e);
}

/* Notices in the order of their arrival: the key, whose failure it is (o: the rank's own), if the members were known
 * (a). */
static const struct {
  bool members, shrinks;
  struct {
    int rank;
    const char *text;
  } notices[3];
  const char *words; /* NULL: none counts */
} rows[] = {
    {true, false, {{2, "split 1 oafull"}}, "full"},
    {true, false, {{2, "split 1 cabroken"}}, "broken"},
    {true, false, {{2, "split 1 cabroken"}, {3, "split 1 oafull"}}, "full"},
    {true, false, {{3, "split 1 oafull"}, {2, "split 1 cabroken"}}, "full"},
    {true, false, {{2, "split 1 oafirst"}, {3, "split 1 oasecond"}}, "first"},
    {true, false, {{3, "split 1 oasecond"}, {2, "split 1 oafirst"}}, "first"},
    {true, false, {{3, "split 1 casecond"}, {0, "split 1 cafirst"}}, "first"},
    {true, false, {{2, "split 12 oafull"}}, NULL},
    {true, false, {{2, "split 2 oafull"}}, NULL},
    {true, false, {{1, "split 1 oafull"}}, NULL}, /* no member */
    {true, false, {{1, "split 1 obfull"}}, "full"},
    {false, false, {{2, "split 1 oafull"}}, NULL},
    {false, false, {{2, "split 1 obfull"}}, "full"},
    {false, true, {{3, "split 1 obfull"}}, NULL}, /* it is excluded */
    {false, true, {{1, "split 1 obfull"}}, "full"},
};

TEST_LOOP(strongest, HK_ARRAY_LENGTH(rows)) {
  if (!rows[_i].members) watch.members = NULL;
  if (rows[_i].shrinks) how.exclude = excluded, how.nexclude = 1;
  for (int i = 0; i < 3 && rows[_i].notices[i].text; i++) keep(rows[_i].notices[i].rank, rows[_i].notices[i].text);
  watch.heard_ns = 1; /* long ago */
  ck_assert_int_eq(hk_children_check_failures(&watch), rows[_i].words ? HK_ERR_REMOTE : HK_OK);
  if (rows[_i].words) ck_assert_str_eq(hk_last_error(), rows[_i].words);
  hk_children_free_failures(&parent);
  ck_assert_ptr_null(parent.order.failures);
}

/* A failure that another rank caused is taken a little later: that rank's own notice may be under way. */
TEST(collects) {
  keep(2, "split 1 cabroken");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_OK);
  ck_assert_uint_ne(watch.heard_ns, 0);
  keep(3, "split 1 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_ERR_REMOTE);
  ck_assert_str_eq(hk_last_error(), "full");
  hk_children_free_failures(&parent);
}

/* The newest notices are kept, and not more and more of them. */
TEST(forgets) {
  keep(2, "split 1 oafull");
  for (int i = 0; i < 63; i++) keep(2, "split 2 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_ERR_REMOTE);
  keep(2, "split 2 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_OK);
  hk_children_free_failures(&parent);
}

/* The parent has ended, too: by a member that has its result and aborts the parent, or by another failure, which is
 * then what this rank reports. */
TEST_LOOP(parent_ends, 2) {
  hk_event e = {.kind = _i ? HK_EVENT_ABORT : HK_EVENT_DEAD, .rank = 1, .from = 1};
  keep(2, "split 1 oafull");
  hk_failure_record(&parent, &e);
  HK_FAIL(HK_ERR_REMOTE, "the exchange ended");
  ck_assert_int_eq(hk_children_settle_failure(&watch, HK_ERR_REMOTE), HK_ERR_REMOTE);
  ck_assert_int_eq(watch.settled, _i);
  if (_i) ck_assert_str_eq(hk_last_error(), "full");
  hk_children_free_failures(&parent);
}

/* ---- waits ---- */

static struct hk_bootstrap no_overlay; /* has no ranks, so nothing is sent */

/* The waits of a child that is being made look at its parent, too; afterwards they are its own. */
TEST_LOOP(waits_of_its_own, 2) {
  static int itself;
  child.wait = (hk_wait_env){.check = hk_watch, .arg = &itself};
  parent.bootstrap = &no_overlay;
  parent.nranks = 5;
  how.split = 7;
  if (_i) how.exclude = excluded, how.nexclude = 1;
  hk_children_watch_begin(&watch, &child, &how);
  ck_assert(child.wait.check != hk_watch && child.wait.arg == &watch);
  ck_assert(watch.c == &child && watch.how == &how && watch.attempt == (uint32_t)_i);
  ck_assert(_i ? watch.key[0] == 'x' : !strcmp(watch.key, "s7"));
  watch.exchanging = true;
  ck_assert_int_eq(child.wait.check(child.wait.arg, 0), HK_OK);
  atomic_store(&parent.health.closing, HK_CLOSING_DESTROY);
  ck_assert_int_eq(child.wait.check(child.wait.arg, 0), HK_OK);
  atomic_store(&parent.health.closing, HK_CLOSING_ABORT);
  ck_assert_int_eq(child.wait.check(child.wait.arg, 0), HK_ERR_REMOTE);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "ncclCommAbort of the parent"));
  atomic_store(&parent.health.closing, HK_CLOSING_NO);
  ck_assert_int_eq(hk_children_watch_end(&watch, HK_OK), HK_OK);
  ck_assert(child.wait.check == hk_watch && child.wait.arg == &child);
  hk_children_free(&parent);

  how.parent = NULL; /* no child */
  child.wait.arg = &itself;
  hk_children_watch_begin(&watch, &child, &how);
  ck_assert_int_eq(hk_children_watch_end(&watch, HK_ERR_SYSTEM), HK_ERR_SYSTEM);
  ck_assert(child.wait.check == hk_watch && child.wait.arg == &itself && !watch.key[0]);
}

/* Children of a parent have their turns in the order of the calls; a split has a number among the splits. */
TEST(turns) {
  hk_init inits[4] = {0};
  for (int i = 0; i < 4; i++) {
    inits[i].parent = &parent;
    if (i == 1) inits[i].exclude = excluded, inits[i].nexclude = 1;
    hk_children_enter(&inits[i]);
    ck_assert_uint_eq(inits[i].turn, (uint64_t)i + 1);
    ck_assert_int_eq(atomic_load(&parent.health.inside), i + 1);
  }
  ck_assert(inits[0].split == 1 && inits[1].split == 0 && inits[2].split == 2 && inits[3].split == 3);
  for (int i = 0; i < 4; i++) {
    atomic_store(&parent.health.closing, HK_CLOSING_ABORT);
    for (int k = i; k < 4; k++) /* the others' turns have not come: they end with the parent */
      ck_assert_int_eq(hk_children_turn(&inits[k]), k == i ? HK_OK : HK_ERR_REMOTE);
    atomic_store(&parent.health.closing, HK_CLOSING_NO);
    hk_children_leave(&parent);
    ck_assert_int_eq(atomic_load(&parent.health.inside), 3 - i);
  }
  hk_init alone = {0};
  hk_children_enter(&alone);
  hk_children_leave(NULL);
  ck_assert_uint_eq(alone.turn, 0);
}

/* A parent that was revoked can have children; one that failed has none. */
TEST(failed_parents) {
  ck_assert(!hk_children_parent_failed(&parent));
  atomic_store(&parent.health.failure, HK_ERR_REMOTE);
  ck_assert(hk_children_parent_failed(&parent));
  atomic_store(&parent.health.revoked, HK_REVOKED_ELSEWHERE);
  ck_assert(!hk_children_parent_failed(&parent));
}

/* ---- lists of excluded ranks ---- */

static void shrinks(void) {
  parent.bootstrap = &no_overlay;
  parent.nranks = 5;
  how.exclude = excluded;
  how.nexclude = 1;
  watch.attempt = 1;
  watch.differ_ns = 1; /* long ago */
  snprintf(watch.hash, sizeof watch.hash, "%s", "aaaaaaaaaaaaaaaa");
}
/* A rank is in a shrink with the list of which all digits are `digit`; 0: in none. */
static void give_list(int rank, char digit) {
  hk_event e = {.rank = rank};
  if (digit) memset(e.text, digit, 16), snprintf(e.text + 16, sizeof e.text - 16, ":00000001 list %c", digit);
  hk_children_heard(&parent, &e);
}

/* Lists in the order of their arrival; the rank that differs from most is named first. Rank 3 is not a member. */
static const struct {
  const char *lists; /* a digit for the rank, a letter for its list */
  const char *verdict;
} list_rows[] = {
    {"0a1a2a", NULL},
    {"0a", NULL},
    {"0a3b", NULL},
    {"0a1b", "bbbbbbbbbbbbbbbb:00000001 |rank 1 excludes list b, but rank 0 excludes list a"},
    {"1b0a", "bbbbbbbbbbbbbbbb:00000001 |rank 1 excludes list b, but rank 0 excludes list a"},
    {"0a1a2b", "bbbbbbbbbbbbbbbb:00000001 |rank 2 excludes list b, but rank 0 excludes list a"},
    {"2b0a1a", "bbbbbbbbbbbbbbbb:00000001 |rank 2 excludes list b, but rank 0 excludes list a"},
    {"0b1a2a", "bbbbbbbbbbbbbbbb:00000001 |rank 0 excludes list b, but rank 1 excludes list a"},
    {"0a1b3b", "bbbbbbbbbbbbbbbb:00000001 |rank 0 excludes list a, but rank 1 excludes list b"},
    {"0a1b3c", "bbbbbbbbbbbbbbbb:00000001 |rank 1 excludes list b, but rank 0 excludes list a"},
    {"4b2a1c0a",
     "cccccccccccccccc:00000001 bbbbbbbbbbbbbbbb:00000001 |rank 1 excludes list c, but rank 0 excludes list a"},
};

TEST_LOOP(differing_lists, HK_ARRAY_LENGTH(list_rows)) {
  shrinks();
  for (const char *at = list_rows[_i].lists; *at; at += 2) give_list(at[0] - '0', at[1]);
  ck_assert_int_eq(hk_children_compare_lists(&watch), list_rows[_i].verdict ? HK_ERR_USAGE : HK_OK);
  if (list_rows[_i].verdict) {
    ck_assert_ptr_nonnull(strstr(hk_last_error(), strchr(list_rows[_i].verdict, '|') + 1));
    ck_assert_int_eq(strncmp(watch.verdict, "!aaaaaaaaaaaaaaaa:00000001 ", 27), 0);
    ck_assert_str_eq(watch.verdict + 27, list_rows[_i].verdict);
    ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE); /* and it stays */
  }
  hk_children_free(&parent);
  ck_assert(!parent.order.notices && !parent.order.attempts);
}

/* Lists must differ for a while: a rank's newer list may be under way. */
TEST(differ_for_a_while) {
  shrinks();
  watch.differ_ns = 0;
  give_list(0, 'a');
  give_list(1, 'b');
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_OK);
  ck_assert_uint_ne(watch.differ_ns, 0);
  give_list(1, 'a');
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_OK);
  ck_assert_uint_eq(watch.differ_ns, 0);
  give_list(1, 0);
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_OK);
  ck_assert_uint_eq(watch.differ_ns, 0);
  give_list(1, 'b');
  watch.attempt = 0; /* this rank is in no shrink */
  watch.differ_ns = 1;
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_OK);
  watch.attempt = 1;
  ck_assert_int_eq(hk_children_end_shrink(&watch, HK_OK), HK_OK); /* what went well is not looked at */
  give_list(0, 'a');
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE);
  hk_children_free(&parent);
}

/* Another member's verdict is this rank's if it is about this attempt, or a later one. */
TEST(verdicts_of_others) {
  static const struct {
    int rank;
    const char *text;
    bool taken;
  } verdicts[] = {
      {1, "!aaaaaaaaaaaaaaaa:00000002 bbbbbbbbbbbbbbbb:00000003 |theirs", true},
      {1, "!bbbbbbbbbbbbbbbb:00000003 aaaaaaaaaaaaaaaa:00000002 |theirs", true},
      {1, "!bbbbbbbbbbbbbbbb:00000003 aaaaaaaaaaaaaaaa:00000003 |theirs", true},
      {1, "!bbbbbbbbbbbbbbbb:00000003 aaaaaaaaaaaaaaaa:00000001 |theirs", false},
      {1, "!bbbbbbbbbbbbbbbb:00000003 cccccccccccccccc:00000002 |theirs", false},
      {1, "!bbbbbbbbbbbbbbbb:00000003 |rank 1 excludes aaaaaaaaaaaaaaaa:00000002", false},
      {1, "!aaaaaaaaaaaaaaaa:00000002 ", false},
      {3, "!aaaaaaaaaaaaaaaa:00000002 bbbbbbbbbbbbbbbb:00000003 |theirs", false}, /* no member */
  };
  for (size_t i = 0; i < HK_ARRAY_LENGTH(verdicts); i++) {
    hk_event e = {.rank = verdicts[i].rank};
    shrinks();
    watch.attempt = 2;
    watch.verdict[0] = 0;
    snprintf(e.text, sizeof e.text, "%s", verdicts[i].text);
    hk_children_heard(&parent, &e);
    const hk_status rc = hk_children_compare_lists(&watch);
    ck_assert_msg(rc == (verdicts[i].taken ? HK_ERR_USAGE : HK_OK), "%s", verdicts[i].text);
    if (verdicts[i].taken) ck_assert_ptr_nonnull(strstr(hk_last_error(), "ncclCommShrink: theirs: give the same list"));
    if (verdicts[i].taken) ck_assert_str_eq(watch.verdict, verdicts[i].text);
    hk_children_free(&parent);
  }
}

/* The numbers of attempts: a verdict sets them alike on all members, and the next attempt counts on from there. */
TEST(attempts) {
  shrinks();
  for (uint32_t n = 1; n <= 3; n++) {
    hk_children_begin_shrink(&watch);
    ck_assert_uint_eq(watch.attempt, n);
    char key[40];
    snprintf(key, sizeof key, "x%s:%08x", watch.hash, n);
    ck_assert_str_eq(watch.key, key);
  }
  hk_event e = {.rank = 1};
  snprintf(e.text, sizeof e.text, "!%s:00000007 |words", watch.hash);
  hk_children_heard(&parent, &e);
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE);
  watch.verdict[0] = 0;
  hk_children_begin_shrink(&watch);
  ck_assert_uint_eq(watch.attempt, 8);
  /* The highest number of a list counts. */
  for (int i = 0; i < 2; i++) {
    snprintf(e.text, sizeof e.text, "!%s:00000008 bbbbbbbbbbbbbbbb:0000000%d |words", watch.hash, i ? 2 : 5);
    e.rank = 2;
    hk_children_heard(&parent, &e);
    watch.verdict[0] = 0;
    ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE);
  }
  e.text[0] = HK_CHILDREN_DIFFERENT;
  e.text[1] = 0; /* a verdict of nothing replaces the last one */
  hk_children_heard(&parent, &e);
  watch.verdict[0] = 0;
  watch.differ_ns = 1;
  give_list(0, 'a');
  give_list(1, 'b');
  ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(strstr(watch.verdict, "bbbbbbbbbbbbbbbb:00000006 "));
  watch.verdict[0] = 0;
  how.nexclude = 0; /* another list */
  hk_children_begin_shrink(&watch);
  ck_assert_uint_eq(watch.attempt, 1);
  hk_children_free(&parent);
}

/* A later attempt with the same list is one in which this rank comes late. */
TEST(later_attempts) {
  static const struct {
    const char *lists; /* a digit for the rank, a letter for its list, a digit for the attempt */
    bool later;
  } ahead[] = {{"0a2", false},        {"1b9", false},    {"0a3", true},
               {"1b9 0a3 2b9", true}, {"0a3 1a1", true}, {"1a1 0a3", true}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(ahead); i++) {
    shrinks();
    watch.attempt = 2;
    watch.behind_ns = 1; /* long ago */
    for (const char *at = ahead[i].lists; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
      hk_event e = {.rank = at[0] - '0'};
      memset(e.text, at[1], 16), snprintf(e.text + 16, sizeof e.text - 16, ":0000000%c list %c", at[2], at[1]);
      hk_children_heard(&parent, &e);
    }
    const hk_status rc = hk_children_check_attempt(&watch);
    ck_assert_msg(rc == (ahead[i].later ? HK_ERR_REMOTE : HK_OK), "%s", ahead[i].lists);
    hk_children_free(&parent);
  }
}

/* Lists in words, with a hash of all ranks in them, in any order. */
TEST(words_of_lists) {
  int many[600], few[4] = {7, 600, 0, 3} /* 600 is no rank */, same[3] = {3, 7, 0};
  char hash[3][17];
  shrinks();
  parent.nranks = 600;
  for (int i = 0; i < 600; i++) many[i] = i;
  for (int k = 0; k < 3; k++) {
    how.exclude = k == 0 ? few : k == 1 ? same : many;
    how.nexclude = k == 0 ? 4 : k == 1 ? 3 : 600;
    hk_children_begin_shrink(&watch);
    memcpy(hash[k], watch.hash, 17);
    /* What this rank has announced, it has heard, too: another list makes a verdict of it. */
    how.nexclude = 0;
    give_list(1, 'b');
    watch.differ_ns = 1;
    ck_assert_int_eq(hk_children_compare_lists(&watch), HK_ERR_USAGE);
    const char *words = strstr(watch.verdict, "rank 0 excludes ") + 16;
    if (k < 2) ck_assert_msg(!strncmp(words, "0, 3, 7, but", 12) || !strcmp(words, "0, 3, 7"), "%s", words);
    if (k == 2) ck_assert_int_eq(strncmp(words, "0, 1, 2, 3, 4, ", 15), 0);
    watch.verdict[0] = 0;
    give_list(1, 0);
  }
  ck_assert_str_eq(hash[0], hash[1]);
  ck_assert_str_ne(hash[0], hash[2]);
  hk_children_free(&parent);
}

int main(void) { return suite_main("children", .setup = setup); }
