/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the provider of net plugins, without a plugin's library: requests of a lane, how an end is closed, what is
 * judged of a failed call, the plugin's thread, and the properties of a device in each version.
 * check: notsan */
#include <sys/socket.h>
#include "../../src/transport/net/plugin/plugin.h"
#include "../support/process.h"
#include "../support/suite.h"

#define MS UINT64_C(1000000)
enum { WINDOW = HK_PLUGIN_WINDOW };

/* ---- a plugin of version 6 that the test plays ---- */

static int next_code, posts, tests, capacity = 100, complete; /* complete: so many tests say that it is done */
static int take(void **request) {
  posts++;
  if (next_code) return next_code;
  *request = capacity-- > 0 ? &posts : NULL;
  return 0;
}
static int fake_send(void *comm, void *data, int bytes, int tag, void *registration, void **request) {
  (void)comm, (void)data, (void)bytes, (void)tag, (void)registration;
  return take(request);
}
static int fake_receive(void *comm, int n, void **data, int *bytes, int *tags, void **registrations, void **request) {
  (void)comm, (void)n, (void)data, (void)bytes, (void)tags, (void)registrations;
  return take(request);
}
static int fake_test(void *request, int *done, int *bytes) {
  (void)request;
  tests++;
  *done = complete-- > 0;
  *bytes = 100 + tests;
  return next_code;
}
static const net_plugin_v calls = {.isend.v6 = fake_send, .irecv.v6 = fake_receive, .test = fake_test};
static const hk_net_plugin_lib lib = {.calls = &calls, .version = 6, .name = "fake", .file = "lib.so"};

static hk_wait_env wait_env;
static hk_transport_env env = {.rank = 2, .wait = &wait_env};
static hk_link net_link = {.peer = 5};
static hk_net_end net_end = {.link = &net_link, .key = {.peer = 5, .channel = 3}};
static const hk_net_device device = {.name = "card"};
static hk_plugin_ctx ctx;
static hk_plugin_end e, other;
static int peer_fd;

static void make_end(hk_plugin_end *out, bool sends, int fd) {
  *out = (hk_plugin_end){
      .ctx = &ctx, .end = &net_end, .sends = sends, .step = HK_PLUGIN_READY, .fd = fd, .device = &device};
}

static void make(bool sends) {
  static hk_plugin_end *ends[2] = {&e, &other};
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  peer_fd = pair[1];
  setenv("NCCL_DEBUG", "NONE", 1);
  env.settings = hk_settings_now();
  ctx = (hk_plugin_ctx){.env = &env, .plugin.lib = &lib, .ends = ends, .nends = 2};
  make_end(&e, sends, pair[0]);
  make_end(&other, true, -1);
}

static void unmake(void) {
  close(e.fd);
  close(peer_fd);
}

/* ---- requests ---- */

TEST_LOOP(posts_in_the_window, 2) {
  bool begun = false, moved = false;
  char data;
  make(_i);
  hk_plugin_lane *l = &e.lane[1];
  for (int i = 0; i < WINDOW; i++)
    ck_assert(hk_plugin_post(&e, l, &data, 1, &begun, &moved) == HK_OK && begun && moved);
  moved = false;
  ck_assert(hk_plugin_post(&e, l, &data, 1, &begun, &moved) == HK_OK && !begun && !moved); /* it is full */
  ck_assert(posts == WINDOW && l->posted == WINDOW);
  complete = 2;
  ck_assert(hk_plugin_test(&e, l, &moved) == HK_OK && moved && l->done == 2 && tests == 3);
  ck_assert(l->sizes[0] == 101 && l->sizes[1] == 102);
  moved = false;
  ck_assert(hk_plugin_test(&e, l, &moved) == HK_OK && !moved && l->done == 2);
  ck_assert(hk_plugin_post(&e, l, &data, 1, &begun, &moved) == HK_OK && begun && l->posted == WINDOW + 1);
  capacity = 0; /* the plugin has none */
  moved = false;
  ck_assert(hk_plugin_post(&e, l, &data, 1, &begun, &moved) == HK_OK && !begun && !moved && l->posted == WINDOW + 1);
  next_code = 7; /* a sender's failure counts, a receiver's if a lane waits for more */
  ck_assert_int_eq(hk_plugin_post(&e, l, &data, 1, &begun, &moved), e.sends ? HK_ERR_SYSTEM : HK_OK);
  ck_assert(!begun && e.sends == (e.fault_in && !strcmp(e.fault_in, "isend")) && l->broken == (e.sends ? 0 : 7));
  if (!e.sends) ck_assert_str_eq(l->broke_in, "irecv");
  e.fault_in = NULL;
  l->broken = 0;
  ck_assert_int_eq(hk_plugin_test(&e, l, &moved), e.sends ? HK_ERR_SYSTEM : HK_OK);
  if (e.sends) ck_assert(!strcmp(e.fault_in, "test of a send") && e.fault == 7);
  if (!e.sends) ck_assert(!strcmp(l->broke_in, "test of a receive") && l->broken == 7 && !e.fault_in);
  const int before = tests + posts;
  l->broken = 7; /* from then on the plugin is left alone */
  ck_assert(hk_plugin_test(&e, l, &moved) == HK_OK && hk_plugin_post(&e, l, &data, 1, &begun, &moved) == HK_OK);
  ck_assert(!begun && tests + posts == before);
  unmake();
}

/* ---- the end of an end ---- */

static char message[1 + 8 * HK_PLUGIN_LANES];
static void tell(char what, uint64_t first, uint64_t second) {
  const uint64_t counts[] = {first, second};
  message[0] = what;
  memcpy(message + 1, counts, sizeof counts);
}

/* Beats, the news that the peer is ready, and counts, which come in any pieces. */
TEST_LOOP(hears_the_peer, 2) {
  make(_i);
  hk_plugin_drain_state *d = &e.drain;
  ck_assert(!hk_plugin_peer_gone(&e) && !e.joining.heard_ns && !e.joining.peer_ready);
  ck_assert_int_eq(send(peer_fd, "BBR", 3, 0), 3);
  ck_assert(!hk_plugin_peer_gone(&e) && e.joining.heard_ns && e.joining.peer_ready);
  e.joining.peer_ready = false;
  ck_assert_int_eq(send(peer_fd, _i ? "E" : "P", 1, 0), 1); /* what only the other kind of end hears */
  ck_assert(!hk_plugin_peer_gone(&e) && !d->got);
  tell(_i ? 'P' : 'E', 0x5252525252525252, 'R'); /* counts are no words */
  for (size_t i = 0; i < sizeof message; i++) {
    ck_assert(!d->asked && !d->ending);
    ck_assert_int_eq(send(peer_fd, message + i, 1, 0), 1);
    ck_assert(!hk_plugin_peer_gone(&e) && !e.joining.peer_ready && d->got == i + 1);
  }
  ck_assert(d->asked == _i && d->ending == !_i);
  ck_assert(d->counts[0] == 0x5252525252525252 && d->counts[1] == 'R');
  ck_assert_int_eq(send(peer_fd, "R", 1, 0), 1); /* words again */
  ck_assert(!hk_plugin_peer_gone(&e) && e.joining.peer_ready && d->counts[1] == 'R');
  shutdown(peer_fd, SHUT_WR);
  ck_assert(hk_plugin_peer_gone(&e));
  close(e.fd);
  e.fd = -1; /* there is none */
  ck_assert(!hk_plugin_peer_gone(&e));
  close(peer_fd);
}

static const struct {
  bool sends, heard; /* heard: POSTED, or ENDING */
  uint64_t posted[2], done[2], counts[2];
  int broken;
  bool gone, over; /* over: nothing is waited for */
} drains[] = {
    {true, true, {3, 2}, {3, 2}, {3, 2}, 0, false, true},   {true, true, {3, 2}, {3, 2}, {1, 0}, 0, false, true},
    {true, false, {3, 2}, {3, 2}, {0, 0}, 0, false, false}, {true, true, {3, 2}, {2, 2}, {3, 2}, 0, false, false},
    {true, true, {3, 2}, {3, 1}, {3, 2}, 0, false, false},  {true, true, {3, 2}, {3, 2}, {4, 2}, 0, false, false},
    {true, true, {3, 2}, {3, 2}, {3, 3}, 0, false, false},  {true, true, {3, 2}, {2, 2}, {3, 2}, 5, false, true},
    {true, false, {3, 2}, {2, 2}, {0, 0}, 0, true, true},   {false, false, {3, 2}, {3, 2}, {0, 0}, 0, false, true},
    {false, true, {3, 2}, {3, 2}, {4, 2}, 0, false, true},  {false, true, {3, 2}, {3, 1}, {3, 2}, 0, false, false},
    {false, false, {3, 2}, {2, 2}, {0, 0}, 0, false, false}};

/* Which ends wait for the peer, and what they say. */
TEST_LOOP(drains_what_is_posted, HK_ARRAY_LENGTH(drains)) {
  char got[64];
  make(drains[_i].sends);
  capacity = complete = 0; /* nothing more happens */
  for (int i = 0; i < 2; i++) {
    e.lane[i].posted = drains[_i].posted[i];
    e.lane[i].done = drains[_i].done[i];
    e.drain.counts[i] = drains[_i].counts[i];
  }
  *(drains[_i].sends ? &e.drain.asked : &e.drain.ending) = drains[_i].heard;
  e.lane[0].broken = drains[_i].broken;
  e.drain.gone = drains[_i].gone;
  other.drain.asked = true; /* it is looked at whenever this end waits */
  other.lane[0].posted = 1;
  ctx.drain_ns = hk_now_ns() + 20 * MS;
  hk_plugin_drain(&e);
  ck_assert_int_eq(tests == 0, drains[_i].over);
  if (!drains[_i].over) ck_assert(hk_now_ns() >= ctx.drain_ns && !e.drain.gone && !other.drain.gone);
  tell(drains[_i].sends ? 'E' : 'P', 3, 2);
  ck_assert_int_eq(recv(peer_fd, got, sizeof got, 0), sizeof message);
  ck_assert_mem_eq(got, message, sizeof message);
  ck_assert_int_eq(e.drain.reported, !drains[_i].sends);
  unmake();
}

/* A new time begins long after the last one; within it all ends of the communicator share what is left. */
TEST(shares_the_time) {
  make(true);
  e.drain.gone = true;
  const uint64_t now = hk_now_ns(), near = ctx.drain_ns = now - 5 * 1000 * MS;
  hk_plugin_drain(&e);
  ck_assert_uint_eq(ctx.drain_ns, near);
  ctx.drain_ns = now - 11 * 1000 * MS;
  hk_plugin_drain(&e);
  ck_assert_uint_ge(ctx.drain_ns, now + 2000 * MS);
  const uint64_t then = ctx.drain_ns;
  e.step = HK_PLUGIN_FAILED; /* it says nothing */
  while (recv(peer_fd, message, sizeof message, 0) > 0) continue;
  hk_plugin_drain(&e);
  ck_assert(recv(peer_fd, message, sizeof message, 0) < 0 && ctx.drain_ns == then);
  unmake();
}

/* The steps of an end whose peer closes: a receiver reports once that all receives are posted, a sender sends what
 * they still need. */
TEST(helps_a_peer_that_closes) {
  char got[64];
  make(false);
  e.lane[0].posted = 3;
  e.lane[1].posted = 1;
  complete = 0;
  ck_assert(hk_plugin_drain_step(&e) == HK_OK && recv(peer_fd, got, sizeof got, 0) < 0 && !tests);
  tell('E', 3, 2);
  ck_assert_int_eq(send(peer_fd, message, sizeof message, 0), sizeof message);
  ck_assert(hk_plugin_drain_step(&e) == HK_OK && recv(peer_fd, got, sizeof got, 0) < 0); /* one is missing */
  e.lane[1].posted = 2;
  for (int i = 0; i < 2; i++) ck_assert_int_eq(hk_plugin_drain_step(&e), HK_OK);
  tell('P', 3, 2);
  ck_assert_int_eq(recv(peer_fd, got, sizeof got, 0), sizeof message);
  ck_assert_mem_eq(got, message, sizeof message);
  ck_assert_int_eq(tests, 4); /* of both lanes, twice */
  make_end(&e, true, e.fd);
  e.step = HK_PLUGIN_CONNECTING;
  e.drain.asked = true;
  e.drain.counts[0] = 2;
  e.drain.counts[1] = 3;
  ck_assert(hk_plugin_drain_step(&e) == HK_OK && !posts);
  e.step = HK_PLUGIN_READY;
  e.lane[1].posted = e.lane[1].done = 1;
  complete = 100;
  ck_assert_int_eq(hk_plugin_drain_step(&e), HK_OK);
  ck_assert(posts == 4 && e.lane[0].posted == 2 && e.lane[1].posted == 3);
  ck_assert(e.lane[0].done == 2 && e.lane[1].done == 3 && !e.drain.gone);
  shutdown(peer_fd, SHUT_WR);
  ck_assert(hk_plugin_drain_step(&e) == HK_OK && e.drain.gone && posts == 4);
  unmake();
}

/* ---- judgements ---- */

/* A failed call is the peer's fault if it has gone, or the plugin says so; else, after two seconds, the plugin's. */
TEST_LOOP(judges_failures, 4) {
  make(true);
  ck_assert(hk_plugin_judge(&e, HK_OK) == HK_OK && hk_plugin_judge(&e, HK_ERR_SYSTEM) == HK_ERR_SYSTEM);
  ck_assert_int_eq(e.step, HK_PLUGIN_READY);
  ck_assert_int_eq(hk_plugin_failed(&e, "isend", _i == 1 ? HK_ERR_REMOTE : 3), HK_ERR_SYSTEM);
  ck_assert_int_eq(hk_plugin_failed(&e, "test", 4), HK_ERR_SYSTEM); /* the first one counts */
  ck_assert(!strcmp(e.fault_in, "isend") && e.fault != 4 && hk_plugin_judge(&e, HK_OK) == HK_OK);
  if (_i == 0) shutdown(peer_fd, SHUT_WR);
  if (_i == 3) e.fault_ns -= 2000 * MS;
  static const struct {
    hk_status rc;
    hk_plugin_step step;
    const char *words;
  } rows[] = {{HK_ERR_REMOTE, HK_PLUGIN_FAILED,
               "rank 2 lost rank 5 while sending to it by net plugin fake, device "
               "card, channel 3 (isend failed with code 3)"},
              {HK_ERR_REMOTE, HK_PLUGIN_FAILED, "fails in isend with code 6"},
              {HK_OK, HK_PLUGIN_FAULTY, NULL},
              {HK_ERR_SYSTEM, HK_PLUGIN_FAILED, "fails in isend with code 3"}};
  ck_assert_int_eq(hk_plugin_judge(&e, HK_ERR_SYSTEM), rows[_i].rc);
  ck_assert_int_eq(e.step, rows[_i].step);
  ck_assert_int_eq(e.failed, rows[_i].rc);
  ck_assert_int_eq(atomic_load(&net_link.state) == HK_LINK_FAILED, rows[_i].rc != HK_OK);
  if (rows[_i].words) ck_assert_msg(strstr(hk_last_error(), rows[_i].words), "%s", hk_last_error());
  unmake();
}

/* A peer that closes before the connections are made. */
TEST_LOOP(notes_that_it_is_not_connected, 2) {
  make(_i == 1);
  e.step = HK_PLUGIN_EXCHANGING;
  close(peer_fd);
  ck_assert_int_eq(hk_plugin_connect(&e), HK_ERR_REMOTE);
  ck_assert(e.step == HK_PLUGIN_FAILED && e.failed == HK_ERR_REMOTE && atomic_load(&net_link.state) == HK_LINK_FAILED);
  ck_assert_msg(strstr(hk_last_error(), "the peer closed it before it was made"), "%s", hk_last_error());
  ck_assert_int_eq(hk_plugin_connect(&e), HK_OK); /* nothing more */
  peer_fd = dup(e.fd);
  unmake();
}

/* ---- the thread ---- */

static _Atomic(int) order[8], norder, released, forgotten;
static pthread_t caller;
static void note_call(void *arg) {
  caller = pthread_self();
  order[atomic_fetch_add(&norder, 1)] = (int)(intptr_t)arg;
}
static void block(void *arg) {
  while (!atomic_load(&released)) usleep(500);
  note_call(arg);
}
static void forget(void *owner) {
  ck_assert_ptr_eq(owner, &ctx);
  atomic_store(&forgotten, atomic_load(&norder));
}
static hk_plugin_job job(void (*call)(void *arg), int number) {
  return (hk_plugin_job){.call = call, .arg = (void *)(intptr_t)number};
}

TEST_LOOP(calls_on_its_thread, 2) {
  hk_plugin_thread t = {.made = false};
  hk_plugin_job jobs[] = {job(note_call, 1), job(note_call, 2), job(block, 3), job(note_call, 4)};
  static _Atomic(int) failure;
  hk_plugin_thread_init(&t);
  wait_env.deadline_ns = hk_now_ns() + 10000 * MS;                                       /* of a broken test */
  if (_i) ck_assert(hk_plugin_thread_end(&t, forget, &ctx) && !atomic_load(&forgotten)); /* none was needed */
  if (_i) return;
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(hk_plugin_thread_call(&t, &wait_env, &jobs[i]), HK_OK);
    ck_assert(jobs[i].over && !pthread_equal(caller, pthread_self()) && pthread_equal(caller, t.id));
  }
  char name[16] = "";
  ck_assert(!pthread_getname_np(t.id, name, sizeof name) && !strcmp(name, "hocket-plugin"));
  hk_wait_env ends = {.failure = &failure};
  atomic_store(&failure, HK_ERR_REMOTE); /* what ends the wait does not end the call */
  ck_assert(hk_plugin_thread_call(&t, &ends, &jobs[2]) == HK_ERR_REMOTE && !jobs[2].over);
  atomic_store(&released, 1);
  ck_assert_int_eq(hk_plugin_thread_call(&t, &wait_env, &jobs[3]), HK_OK);
  ck_assert(jobs[2].over && jobs[3].over && atomic_load(&norder) == 4);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(order[i], i + 1);
  ck_assert(hk_plugin_thread_end(&t, forget, &ctx) && !atomic_load(&forgotten));
}

/* A call at the end that does not return: nothing waits any more, and the thread frees what its calls use. */
TEST(is_left_alone) {
  static hk_plugin_thread t;
  static hk_plugin_job jobs[4];
  const hk_plugin_job these[] = {job(note_call, 1), job(block, 2), job(note_call, 3), job(note_call, 4)};
  memcpy(jobs, these, sizeof jobs);
  setenv("NCCL_DEBUG", "NONE", 1);
  hk_plugin_thread_init(&t);
  ck_assert(hk_plugin_thread_close(&t, &jobs[0], 1, "it") && jobs[0].over && !t.alone);
  for (int i = 1; i < 4; i++) ck_assert(!hk_plugin_thread_close(&t, &jobs[i], 1, "it") && t.alone && !jobs[i].over);
  ck_assert(!hk_plugin_thread_end(&t, forget, &ctx) && !atomic_load(&forgotten));
  atomic_store(&released, 1);
  for (uint64_t until = hk_now_ns() + 20000 * MS; !atomic_load(&forgotten) && hk_now_ns() < until;) usleep(500);
  ck_assert_int_eq(atomic_load(&forgotten), 4);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(order[i], i + 1);
}

/* ---- properties ---- */

static int version, code;
static int fill(int i, void *properties) {
  net_plugin_properties_v6 *p6 = properties;
  net_plugin_properties_v7 *p7 = properties;
  net_plugin_properties_v8 *p8 = properties;
  net_plugin_properties_v9 *p9 = properties;
  net_plugin_properties_v12 *p12 = properties;
  p6->name = i ? "name" : NULL;
  p6->pci_path = i ? "/sys/x" : NULL;
  p6->memory = 3;
  if (version <= 7) p6->speed = 100;
  if (version == 7) p7->gpu_type = 1;
  if (version == 8) p8->speed = 100, p8->gpu_type = 1;
  if (version >= 9) p9->speed = 100, p9->gpu_type = 1, p9->force_flush = i;
  if (version >= 9 && version < 12 && i) p9->max_message = 4000, p9->max_collective = 5000;
  if (version == 12 && i) p12->max_message = 4000, p12->max_collective = 5000;
  return code;
}

TEST_LOOP(reads_properties, 1 + NET_PLUGIN_NEWEST - NET_PLUGIN_OLDEST) {
  hk_net_device d;
  version = NET_PLUGIN_OLDEST + _i;
  ck_assert_int_eq(hk_plugin_properties(fill, version, 7, &d), 0);
  ck_assert(d.index == 7 && d.speed == 100 && d.memory == 3 && d.gpu_type == (version > 6));
  ck_assert(!strcmp(d.name, "name") && !strcmp(d.pci, "/sys/x") && d.force_flush == (version >= 9));
  ck_assert_uint_eq(d.max_message, version >= 9 ? 4000 : HK_NET_MESSAGE_MAX);
  ck_assert_uint_eq(d.max_collective, version >= 9 ? 5000 : 0);
  ck_assert_int_eq(hk_plugin_properties(fill, version, 0, &d), 0);
  ck_assert(!strcmp(d.name, "?") && !d.pci[0] && !d.force_flush && d.max_message == HK_NET_MESSAGE_MAX);
  code = 3;
  ck_assert_int_eq(hk_plugin_properties(fill, version, 0, &d), 3);
}

int main(void) { return suite_main("plugin_parts"); }
