/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of links two GPUs get, and what it can do, for everything that ranks can find out about each other. */
/* check: notsan */
#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "../../src/transport/cuda/share.h"
#include "../../src/transport/device_links.h"
#include "../../src/transport/transport.h"
#include "../support/suite.h"

static const struct {
  hk_device_peer peer;
  const char *name;
  unsigned can;
} cases[] = {
    {{HK_REACH_NVLINK, true, true, true}, "same", HK_DEVICE_LINES | HK_DEVICE_READS | HK_DEVICE_LOCAL},
    {{HK_REACH_MEMORY, true, true, false}, "same", HK_DEVICE_LINES | HK_DEVICE_READS | HK_DEVICE_LOCAL},
    {{HK_REACH_NVLINK, false, true, true}, "p2p", HK_DEVICE_LINES | HK_DEVICE_READS},
    {{HK_REACH_MEMORY, false, true, false}, "p2p", HK_DEVICE_READS},
    {{HK_REACH_MEMORY, false, false, false}, "p2p", HK_DEVICE_READS}, /* NCCL_SHM_DISABLE */
    {{HK_REACH_NO_FILE, false, true, false}, "staged", HK_DEVICE_CREDITS},
    {{HK_REACH_NONE, false, true, true}, "staged", HK_DEVICE_CREDITS},
    {{HK_REACH_NONE, true, true, false}, "staged", HK_DEVICE_CREDITS}, /* NCCL_P2P_DISABLE */
    {{HK_REACH_NO_FILE, false, false, false}, "proxied", HK_DEVICE_PROXIED},
    {{HK_REACH_NONE, true, false, false}, "proxied", HK_DEVICE_PROXIED},
};

TEST_LOOP(choice, (int)(sizeof cases / sizeof *cases)) {
  const hk_device_peer peers[2] = {{.reach = HK_REACH_NONE}, cases[_i].peer};
  const hk_device_env e = {.peers = peers};
  char why[480];
  const hk_device_links *l = hk_device_links_to(&e, 1, why, sizeof why);
  ck_assert_ptr_nonnull(l);
  ck_assert_str_eq(l->name, cases[_i].name);
  ck_assert_uint_eq(l->properties(&e, 1), cases[_i].can);
}

/* `why` has the reason of each kind that was passed over. */
TEST(reasons) {
  const hk_device_peer peers[2] = {{.reach = HK_REACH_NONE}, {.reach = HK_REACH_NONE}};
  const hk_device_env e = {.peers = peers};
  char why[480], little[24];
  hk_device_links_to(&e, 1, why, sizeof why);
  ck_assert_str_eq(why,
                   "same (rank 1 is on another GPU), p2p (the GPUs do not reach each other's memory), staged (rank 1 "
                   "shares no host memory)");
  hk_device_links_to(&e, 1, little, sizeof little); /* what fits */
  ck_assert_int_eq(strncmp(little, why, sizeof little - 1), 0);
}

/* The slots that the contract has together. */
TEST(contract) {
  for (int i = 0; i < HK_DEVICE_LINKS_COUNT; i++) {
    const hk_device_peer peers[2] = {{.reach = HK_REACH_NONE}, {.reach = HK_REACH_NVLINK}};
    const hk_device_env e = {.peers = peers};
    const hk_device_links *l = hk_device_links_all[i];
    bool proxied = l->properties(&e, 1) & HK_DEVICE_PROXIED;
    ck_assert(l->name && l->reachable);
    ck_assert_int_eq(!l->alloc, proxied);
    ck_assert_int_eq(!l->make, proxied);
    ck_assert_int_eq(!l->open, proxied);
    for (int k = 0; k < i; k++) ck_assert_str_ne(l->name, hk_device_links_all[k]->name);
  }
}

/* ---- offers ---- */

static int pair[2];
static int take(void *arg, int peer, uint64_t tag) {
  (void)arg;
  return peer == 1 && tag ? pair[0] : -1;
}

static void *send_in_pieces(void *offer) {
  const size_t pieces[] = {1, 7, sizeof(hk_share_offer) - 8};
  const char *at = offer;
  for (int i = 0; i < 3; at += pieces[i++]) {
    if (send(pair[1], at, pieces[i], 0) != (ssize_t)pieces[i]) abort();
    for (int left = 1; left;) /* until the other end has taken it */
      if (ioctl(pair[1], SIOCOUTQ, &left)) abort();
  }
  return NULL;
}

/* An offer may come in pieces, and its connection may end before it is complete. */
TEST(offers) {
  hk_wait_env wait = {.spins = 0};
  const hk_transport_env env = {.settings = hk_settings_now(), .wait = &wait, .take = take};
  const hk_device_env e = {.env = &env};
  hk_share_offer sent, got;
  pthread_t thread;
  memset(&sent, 0x5a, sizeof sent);
  memset(&got, 0, sizeof got);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, send_in_pieces, &sent), 0);
  ck_assert_int_eq(hk_share_receive(&e, 1, 0, &got), HK_OK);
  pthread_join(thread, NULL);
  ck_assert_mem_eq(&got, &sent, sizeof sent);
  close(pair[1]);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  ck_assert_int_eq(send(pair[1], &sent, 8, 0), 8);
  close(pair[1]);
  ck_assert_int_eq(hk_share_receive(&e, 1, 0, &got), HK_ERR_REMOTE);
  ck_assert_str_eq(hk_last_error(), "rank 1 closed a connection before it offered a link's memory");
}

int main(void) { return suite_main("device_links"); }
