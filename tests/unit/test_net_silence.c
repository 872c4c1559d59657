/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that is only slow is no error, whatever the state of the window; a host that is gone is one, in bounded time.
 * check: waits notsan noasan root */
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_world.h"
#include "../support/silence.h"
#include "../support/suite.h"

enum { SLOT = 131072, LIMIT_S = 2, SLOW_S = 12, BOUND_S = 40 };

/* Rank 0 with one end open; the test is rank 1, with a bare socket that reads nothing. */
typedef struct bench {
  const char *what;
  net_world *w;
  hk_link *link, *asks; /* `asks`: for a message after the cut */
  int fd;
  bool fills; /* sends until the window is closed; else it waits for a message */
  bool flight, to_cut;
  uint64_t cut_ns, ended_ns;
  hk_status rc;
  char text[512];
} bench;

static void begin(bench *b) {
  b->w = net_world_new(2, 8, SLOT);
  b->link = net_link(&b->w->ranks[0], 1, b->fills ? HK_LINK_SEND : HK_LINK_RECV, 2);
  if (b->flight) b->asks = net_link(&b->w->ranks[0], 1, HK_LINK_SEND, 2);
  b->fd = net_take(&b->w->ranks[1], 0, b->w->mail[0].tag);
  ck_assert_int_ge(b->fd, 0);
}

static int own_fd(const bench *b) { return ((hk_socket_conn *)((hk_net_end *)b->link->priv)->priv)->wires[0].fd; }

/* Nothing that comes in reaches either socket any more, as when the cable is out. */
static void cut(bench *b) {
  b->cut_ns = hk_now_ns(); /* first: on a busy machine this thread may rest between the cut and here */
  silence(b->fd, true);
  silence(own_fd(b), true);
}

static void step(bench *b, uint64_t began_ns) {
  static char data[SLOT];
  if (b->rc != HK_OK) return;
  if (b->to_cut && !b->cut_ns && hk_now_ns() - began_ns > 1500000000u) {
    cut(b);
    if (b->flight) net_try_send(b->asks, data, 100, 1, false);
  }
  uint32_t bytes, signature;
  bool direct;
  if (b->fills)
    net_try_send(b->link, data, SLOT, 1, true);
  else
    net_try_recv(b->link, data, SLOT, true, &bytes, &signature, &direct);
  b->rc = net_progress_and_nap(&b->w->ranks[0]); /* nothing moves for longer than net_progress allows */
  if (b->rc == HK_OK) return;
  b->ended_ns = hk_now_ns();
  snprintf(b->text, sizeof b->text, "%s", hk_last_error());
}

static void end(bench *b) {
  net_unlink(b->link);
  if (b->asks) net_unlink(b->asks);
  close(b->fd);
  net_world_free(b->w);
}

TEST(tells_slow_peers_from_lost_hosts) {
  if (!silence_is_allowed()) return;
  bench all[] = {
      {.what = "a slow reader", .fills = true},
      {.what = "a slow writer"},
      {.what = "a cut under a closed window", .fills = true, .to_cut = true},
      {.what = "a cut with data in flight", .flight = true, .to_cut = true},
      {.what = "a cut while idle", .to_cut = true},
  };
  char limit[16];
  snprintf(limit, sizeof limit, "%d", LIMIT_S);
  setenv("HOCKET_PEER_TIMEOUT", limit, 1);
  hk_param_reload();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) begin(&all[i]);
  uint64_t began = hk_now_ns();
  for (bool done = false; !done && hk_now_ns() - began < BOUND_S * 1000000000ull; usleep(500)) {
    done = hk_now_ns() - began > SLOW_S * 1000000000ull;
    for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) {
      step(&all[i], began);
      if (all[i].to_cut) done = done && all[i].rc != HK_OK;
    }
  }
  for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) {
    bench *b = &all[i];
    double took = b->ended_ns ? (double)(b->ended_ns - (b->to_cut ? b->cut_ns : began)) * 1e-9 : -1;
    printf("%s: %s after %.1f s: %s\n", b->what, b->rc == HK_OK ? "no error" : "an error", took, b->text);
  }
  fflush(stdout);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) {
    bench *b = &all[i];
    if (!b->to_cut) {
      ck_assert_msg(b->rc == HK_OK, "%s: %s", b->what, b->text);
    } else {
      ck_assert_msg(b->rc == HK_ERR_REMOTE, "%s: no error after %d s", b->what, BOUND_S);
      /* 3/4 of the limit (silence.h), less some ticks of the kernel's clock */
      ck_assert_msg(b->ended_ns - b->cut_ns > LIMIT_S * 700000000ull, "%s: too early: %s", b->what, b->text);
      /* By a check, or by the kernel's own end of the connection, if this thread is late. */
      ck_assert_msg(strstr(b->text, "rank 1 (") && strstr(b->text, "its host does not answer"), "%s: %s", b->what,
                    b->text);
    }
    end(b);
  }
}

int main(void) { return suite_main("net_silence", .timeout = 100); }
