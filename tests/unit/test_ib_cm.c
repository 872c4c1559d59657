/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the kernel says of RDMA routes, by a fake librdmacm.so.1. */
#include <arpa/inet.h>
#include "../../src/transport/net/ib/ib_cm.h"
#include "../fakes/rdmacm.h"
#include "../support/fake_rdma.h"
#include "../support/suite.h"

static fake_cm_state *cm;
static char words[HK_IB_CM_WORDS];

static void load(void) { cm = rdma_fake("librdmacm.so.1", "fake_cm"); }

static _Atomic(int) failure;

static hk_ib_cm_answer ask_for(int ms, const char *from, const char *to) {
  const hk_wait_env wait = {.failure = &failure};
  hk_ibv_gid a, b;
  ck_assert_int_eq(inet_pton(AF_INET6, from, a.raw), 1);
  ck_assert_int_eq(inet_pton(AF_INET6, to, b.raw), 1);
  hk_ib_cm_answer answer = hk_ib_cm_ask(&wait, &a, &b, ms, words);
  ck_assert_int_eq(cm->open, 0);
  return answer;
}
static hk_ib_cm_answer ask(const char *from, const char *to) { return ask_for(50, from, to); }

TEST(resolves) {
  ck_assert_int_eq(ask("::ffff:10.0.0.1", "::ffff:10.0.0.2"), HK_IB_CM_ROUTE);
  ck_assert_str_eq(words, "cm0:1 resolves 10.0.0.2");
  ck_assert_str_eq(cm->from, "10.0.0.1");
  ck_assert_int_eq(ask("fd00::1", "fd00::2"), HK_IB_CM_ROUTE);
  ck_assert_str_eq(cm->to, "fd00::2");
  ck_assert_int_eq(ask("fe80::1", "fe80::2"), HK_IB_CM_NO_ANSWER);
  ck_assert_int_eq(cm->asked, 2);
}

static const struct {
  fake_cm_state state;
  hk_ib_cm_answer answer;
  const char *words;
} faults[] = {
    {{.no_device = ENODEV}, HK_IB_CM_NO_ANSWER, "rdma_ucm"},
    {{.refused = EADDRNOTAVAIL}, HK_IB_CM_NO_ROUTE, "no RDMA port of this host has the address 10.0.0.1"},
    {{.addr_error = ENODEV}, HK_IB_CM_NO_ROUTE, "no RDMA port of this host"},
    {{.addr_error = ENETUNREACH}, HK_IB_CM_NO_ROUTE, "there is no route from 10.0.0.1 to 10.0.0.2"},
    {{.addr_error = ETIMEDOUT}, HK_IB_CM_NO_ROUTE, "10.0.0.2 does not answer to neighbour discovery"},
    {{.route_error = EINVAL}, HK_IB_CM_NO_ROUTE, "Invalid argument"},
    {{.mute = 1}, HK_IB_CM_NO_ROUTE, "does not answer"},
};

TEST_LOOP(tells_why_not, HK_ARRAY_LENGTH(faults)) {
  *cm = faults[_i].state;
  ck_assert_int_eq(ask("::ffff:10.0.0.1", "::ffff:10.0.0.2"), faults[_i].answer);
  ck_assert_msg(strstr(words, faults[_i].words) != NULL, "%s", words);
}

/* Nobody waits for an answer on behalf of a communicator that has ended. */
TEST(ends_with_the_communicator) {
  cm->mute = 1;
  failure = HK_ERR_REMOTE;
  ck_assert_int_eq(ask_for(3600 * 1000, "::ffff:10.0.0.1", "::ffff:10.0.0.2"), HK_IB_CM_NO_ANSWER);
  ck_assert_msg(strstr(words, "aborted") != NULL, "%s", words);
  ck_assert_int_eq(cm->asked, 1);
}

int main(void) { return suite_main("ib_cm", .setup = load); }
