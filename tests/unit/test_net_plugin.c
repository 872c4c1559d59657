/* SPDX-License-Identifier: Apache-2.0 */
/* The net transport over example net plugins: messages between ranks that are threads, and peers that go.
 * check: waits long=asan,tsan */
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <poll.h>
#include "../support/net_world.h"
#include "../support/suite.h"

/* An example that was built next to this program. */
static void use_plugin(const char *name, const char *version) {
  char self[3800] = "", path[4096];
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../plugins/%s", dirname(self), name);
  setenv("NCCL_NET_PLUGIN", path, 1);
  setenv("HOCKET_NET_PLUGIN_VERSION", version, 1);
  hk_param_reload();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOT = 20000, ROUNDS = 10 }; /* plugins take as long as they take, and do in ten rounds what they do in thirty */
#else
enum { SLOT = 20000, ROUNDS = 30 };
#endif

static uint32_t size_of(unsigned i) {
  static const uint32_t sizes[] = {8, 0, 48, 49, 4080, 4081, SLOT, 12345, 4096, 1};
  return sizes[i % HK_ARRAY_LENGTH(sizes)];
}

typedef struct side {
  net_rank *rank;
  hk_status rc;
  char text[512];
} side;

/* Both ways at once: every message's size and bytes follow from its number. */
static hk_status exchange(net_rank *r, hk_link *send, hk_link *recv) {
  hk_status rc = HK_OK;
  unsigned char *out = malloc(SLOT), *in = malloc(SLOT);
  hk_waiter w;
  hk_wait_begin(&w, &r->wait);
  for (unsigned sent = 0, got = 0; sent < ROUNDS || got < ROUNDS || !hk_link_drained(send);) {
    bool moved = false, wire, direct;
    uint32_t bytes, signature;
    memset(out, (int)sent, size_of(sent));
    if (sent < ROUNDS && net_try_send(send, out, size_of(sent), 1000 + sent, false)) sent++, moved = true;
    if (got < ROUNDS && net_try_recv(recv, in, SLOT, got % 2, &bytes, &signature, &direct)) {
      ck_assert_uint_eq(signature, 1000 + got);
      ck_assert_uint_eq(bytes, size_of(got));
      for (uint32_t i = 0; i < bytes; i++) ck_assert_uint_eq(in[i], got & 255);
      got++;
      moved = true;
    }
    if ((rc = net_progress(r, &wire)) != HK_OK) break;
    if (moved || wire)
      hk_wait_progress(&w);
    else if ((rc = hk_wait_pause(&w)) != HK_OK)
      break;
  }
  free(out);
  free(in);
  return rc;
}

static void *run_side(void *arg) {
  side *s = arg;
  net_rank *r = s->rank;
  hk_link *send = net_link(r, 1 - r->rank, HK_LINK_SEND, 0), *recv = net_link(r, 1 - r->rank, HK_LINK_RECV, 0);
  s->rc = exchange(r, send, recv);
  if (s->rc != HK_OK) snprintf(s->text, sizeof s->text, "%s", hk_last_error());
  net_unlink(send);
  net_unlink(recv);
  return NULL;
}

static const struct {
  const char *name, *version;
  uint32_t nslots;
} ways[] = {{"libnccl-net-eleven.so", "11", 8}, {"libnccl-net-seven.so", "11", 2}, {"libnccl-net-nine.so", "11", 32}};

TEST_LOOP(carries_messages, HK_ARRAY_LENGTH(ways)) {
  pthread_t threads[2];
  side sides[2] = {0};
  use_plugin(ways[_i].name, ways[_i].version);
  net_world *w = net_world_new(2, ways[_i].nslots, SLOT);
  for (int i = 0; i < 2; i++) {
    w->ranks[i].wait = (hk_wait_env){.spins = 0, .deadline_ns = hk_now_ns() + 60000000000u};
    sides[i].rank = &w->ranks[i];
    ck_assert_int_eq(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; i++) ck_assert_msg(sides[i].rc == HK_OK, "rank %d: %s", i, sides[i].text);
}

static bool ready(const hk_link *l) { return atomic_load(&l->state) == HK_LINK_READY; }

/* A connected pair of ends, by hand. */
static net_world *connected(hk_link **send, hk_link **recv) {
  net_world *w = net_world_new(2, 4, SLOT);
  *recv = net_link(&w->ranks[1], 0, HK_LINK_RECV, 0);
  *send = net_link(&w->ranks[0], 1, HK_LINK_SEND, 0);
  for (uint64_t until = hk_now_ns() + 20000000000u; !ready(*send) || !ready(*recv);) {
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
    ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_OK);
    ck_assert(hk_now_ns() < until);
  }
  return w;
}

/* A rank of two communicators: the first one ends, the other goes on. */
typedef struct two {
  net_rank *ranks[2];
  hk_status rc;
  char text[512];
} two;

static void *run_two(void *arg) {
  two *t = arg;
  hk_link *send[2], *recv[2];
  for (int w = 0; w < 2; w++) {
    send[w] = net_link(t->ranks[w], 1 - t->ranks[w]->rank, HK_LINK_SEND, 0);
    recv[w] = net_link(t->ranks[w], 1 - t->ranks[w]->rank, HK_LINK_RECV, 0);
  }
  for (int w = 0; w < 2 && t->rc == HK_OK; w++) t->rc = exchange(t->ranks[w], send[w], recv[w]);
  bool sender_first = t->ranks[0]->rank == 0;
  net_unlink(sender_first ? send[0] : recv[0]);
  net_unlink(sender_first ? recv[0] : send[0]);
  if (t->rc == HK_OK) t->rc = exchange(t->ranks[1], send[1], recv[1]);
  if (t->rc != HK_OK) snprintf(t->text, sizeof t->text, "%s", hk_last_error());
  net_unlink(send[1]);
  net_unlink(recv[1]);
  return NULL;
}

/* No receive is under way when a connection is closed: it would end those of other communicators. */
TEST(leaves_other_communicators_alone) {
  pthread_t threads[2];
  net_world *w[2];
  two t[2] = {0};
  use_plugin("libnccl-net-eleven.so", "11");
  setenv("HOCKET_TEST_NET", "shared", 1);
  for (int k = 0; k < 2; k++) w[k] = net_world_new(2, 8, SLOT);
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 2; k++) {
      w[k]->ranks[i].wait = (hk_wait_env){.spins = 0, .deadline_ns = hk_now_ns() + 60000000000u};
      t[i].ranks[k] = &w[k]->ranks[i];
    }
    ck_assert_int_eq(pthread_create(&threads[i], NULL, run_two, &t[i]), 0);
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; i++) ck_assert_msg(t[i].rc == HK_OK, "rank %d: %s", i, t[i].text);
}

/* The same if the peer takes no part in closing: receives are then under way, but the other communicator has
 * connections of an endpoint of its own. */
TEST(is_not_ended_by_another_communicator) {
  hk_link *send[2], *recv[2];
  net_world *w[2];
  use_plugin("libnccl-net-twelve.so", "12");
  setenv("HOCKET_TEST_NET", "shared", 1);
  for (int k = 0; k < 2; k++) w[k] = connected(&send[k], &recv[k]);
  net_unlink(recv[0]);
  net_unlink(send[0]);
  for (unsigned got = 0, sent = 0; got < 3;) { /* on this thread alone */
    unsigned char in[64] = {0};
    uint32_t bytes, signature;
    bool direct;
    sent += net_try_send(send[1], in, sizeof in, sent, false);
    got += net_try_recv(recv[1], in, sizeof in, false, &bytes, &signature, &direct);
    for (int r = 0; r < 2; r++)
      ck_assert_msg(net_progress(&w[1]->ranks[r], NULL) == HK_OK, "rank %d: %s", r, hk_last_error());
  }
}

/* ---- calls that do not return ---- */

static _Atomic(int) *released_by_plugin(void) {
  void *lib = dlopen(getenv("NCCL_NET_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
  ck_assert_ptr_nonnull(lib);
  _Atomic(int) *released = dlsym(lib, "net_released");
  ck_assert_ptr_nonnull(released);
  return released;
}

static int plugin_threads(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/task");
  ck_assert_ptr_nonnull(d);
  for (const struct dirent *e; (e = readdir(d));) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
    FILE *f = fopen(path, "re");
    if (f && fgets(name, sizeof name, f)) n += strncmp(name, "hocket-plugin", 13) == 0;
    if (f) fclose(f);
  }
  closedir(d);
  return n;
}

/* The communicator has ended in time without the plugin's thread, which ends when its call returns. */
static void expect_left(uint64_t begin, _Atomic(int) *released) {
  ck_assert_uint_lt(hk_now_ns() - begin, 10000000000u);
  ck_assert_int_eq(plugin_threads(), 1);
  atomic_store(released, 1);
  for (uint64_t until = hk_now_ns() + 20000000000u; plugin_threads();) ck_assert(hk_now_ns() < until);
}

static void *fail_later(void *failure) {
  poll(NULL, 0, 300);
  atomic_store((_Atomic(int) *)failure, HK_ERR_REMOTE);
  return NULL;
}

/* listen does not return: an abort ends the wait for it, and the end of the communicator is bounded. What the call uses
 * is freed when it returns. */
TEST(leaves_a_listen_that_blocks) {
  pthread_t thread;
  _Atomic(int) failure = 0;
  use_plugin("libnccl-net-twelve.so", "12");
  setenv("HOCKET_TEST_NET", "blocks in listen", 1);
  setenv("HOCKET_LEAVE_TIMEOUT", "1", 1);
  hk_param_reload();
  net_world *w = net_world_new(2, 4, SLOT);
  w->ranks[1].wait.failure = &failure;
  for (int channel = 0; channel < 2; channel++) (void)net_link(&w->ranks[1], 0, HK_LINK_RECV, channel);
  ck_assert_int_eq(pthread_create(&thread, NULL, fail_later, &failure), 0);
  ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_ERR_REMOTE);
  pthread_join(thread, NULL);
  uint64_t begin = hk_now_ns();
  _Atomic(int) *released = released_by_plugin();
  net_world_free(w);
  expect_left(begin, released);
}

/* The same for the call that closes a connection. */
TEST(leaves_a_close_that_blocks) {
  hk_link *send, *recv;
  use_plugin("libnccl-net-nine.so", "9");
  setenv("HOCKET_LEAVE_TIMEOUT", "1", 1);
  hk_param_reload();
  net_world *w = connected(&send, &recv);
  _Atomic(int) *released = released_by_plugin();
  setenv("HOCKET_TEST_NET", "blocks in closeRecv", 1);
  uint64_t begin = hk_now_ns();
  net_world_free(w);
  expect_left(begin, released);
}

int main(void) { return net_main("net_plugin", .timeout = 120); }
