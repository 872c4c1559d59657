/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Failures in making a child: which of the notices of other ranks counts, and when the parent's own failure does. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include "../../src/base/status.h"
#include "../../src/runtime/children_internal.h"
#include "../support/suite.h"

static struct ncclComm parent, child; /* what these functions read of them; all else is 0 */
static int members[] = {0, 2, 3}, excluded[] = {3};
static hk_init how;
static hk_children_watch watch;

static void setup(void) {
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

START_TEST(strongest) {
  if (!rows[_i].members) watch.members = NULL;
  if (rows[_i].shrinks) how.exclude = excluded, how.nexclude = 1;
  for (int i = 0; i < 3 && rows[_i].notices[i].text; i++) keep(rows[_i].notices[i].rank, rows[_i].notices[i].text);
  watch.heard_ns = 1; /* long ago */
  ck_assert_int_eq(hk_children_check_failures(&watch), rows[_i].words ? HK_ERR_REMOTE : HK_OK);
  if (rows[_i].words) ck_assert_str_eq(hk_last_error(), rows[_i].words);
  hk_children_free_failures(&parent);
  ck_assert_ptr_null(parent.order.failures);
}
END_TEST

/* A failure that another rank caused is taken a little later: that rank's own notice may be under way. */
START_TEST(collects) {
  keep(2, "split 1 cabroken");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_OK);
  ck_assert_uint_ne(watch.heard_ns, 0);
  keep(3, "split 1 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_ERR_REMOTE);
  ck_assert_str_eq(hk_last_error(), "full");
  hk_children_free_failures(&parent);
}
END_TEST

/* The newest notices are kept, and not more and more of them. */
START_TEST(forgets) {
  keep(2, "split 1 oafull");
  for (int i = 0; i < 63; i++) keep(2, "split 2 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_ERR_REMOTE);
  keep(2, "split 2 oafull");
  ck_assert_int_eq(hk_children_check_failures(&watch), HK_OK);
  hk_children_free_failures(&parent);
}
END_TEST

/* The parent has ended, too: by a member that has its result and aborts the parent, or by another failure, which is
 * then what this rank reports. */
START_TEST(parent_ends) {
  hk_event e = {.kind = _i ? HK_EVENT_ABORT : HK_EVENT_DEAD, .rank = 1, .from = 1};
  keep(2, "split 1 oafull");
  hk_comm_hear(&parent, &e);
  HK_FAIL(HK_ERR_REMOTE, "the exchange ended");
  ck_assert_int_eq(hk_children_settle_failure(&watch, HK_ERR_REMOTE), HK_ERR_REMOTE);
  ck_assert_int_eq(watch.settled, _i);
  if (_i) ck_assert_str_eq(hk_last_error(), "full");
  hk_children_free_failures(&parent);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("children");
  tcase_add_checked_fixture(t, setup, NULL);
  tcase_add_loop_test(t, strongest, 0, HK_ARRAY_LENGTH(rows));
  tcase_add_test(t, collects);
  tcase_add_test(t, forgets);
  tcase_add_loop_test(t, parent_ends, 0, 2);
  return suite_run_one("children", t);
}
