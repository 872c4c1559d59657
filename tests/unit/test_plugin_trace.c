/* SPDX-License-Identifier: Apache-2.0 */
/* What the provider of net plugins calls and sends on fixed schedules, compared with a file: trace.h. The test plays
 * the plugin, in each version, and both ranks are of this thread.
 * check: notsan */
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include "../../src/base/array.h"
#include "../../src/device/device.h"
#include "../../src/transport/net/plugin/plugin.h"
#include "../support/net_streams.h"
#include "../support/suite.h"
#include "../support/trace.h"

#define TRACE_FILE "tests/golden/plugin_trace.txt"
enum { SLOTS = 4, SLOT = 16384, COMMS = 16, REGIONS = 16, ROOM = 8 };

/* ---- the plugin ---- */

typedef struct wire_request {
  char *data;
  size_t bytes; /* of the message, or of the room; then of what came */
  bool over, busy;
} wire_request;
typedef struct comm {
  int number, side; /* side 0: sends */
  struct comm *peer;
  wire_request requests[ROOM];
  unsigned posted, ended, tested; /* ended: carried out; tested: the test has told so */
} comm;
static comm comms[COMMS];
static int ncomms, version, delay; /* delay: tests before a request is over */
typedef struct region {
  char *at;
  size_t bytes;
} region;
static region regions[REGIONS];
static int nregions;
static struct {
  const char *call;
  int code, after; /* so many calls that go well */
} fault;

static int outcome(const char *call) {
  if (!fault.call || strcmp(call, fault.call) || fault.after-- > 0) return 0;
  trace_say("  fails with %d", fault.code);
  return fault.code;
}

static int p_listen(int device, void *handle, void **listener) {
  comm *c = &comms[ncomms];
  *c = (comm){.number = ncomms++, .side = 1};
  memset(handle, 0, NET_PLUGIN_HANDLE);
  memcpy(handle, &c->number, sizeof c->number);
  trace_say("plugin: listen on %d: %d", device, c->number);
  *listener = c;
  return outcome("listen");
}
static int p_connect(int device, void *handle, void **out) {
  int number;
  char *calls = (char *)handle + sizeof number;
  memcpy(&number, handle, sizeof number);
  trace_say("plugin: connect by %d to %d", device, number);
  *out = NULL;
  const int code = outcome("connect");
  if (code || (*calls)++ < 1) return code;
  comm *c = &comms[ncomms];
  *c = (comm){.number = ncomms++, .peer = &comms[number]};
  comms[number].peer = c;
  *out = c;
  return 0;
}
static int p_accept(void *listener, void **out) {
  comm *l = listener;
  trace_say("plugin: accept on %d: %s", l->number, l->peer ? "there" : "not yet");
  *out = l->peer ? l : NULL;
  return outcome("accept");
}
static int p_reg(void *c, void *data, size_t bytes, int type, void **registration) {
  ck_assert_int_lt(nregions, REGIONS);
  trace_say("plugin: regMr %d of %zu bytes, type %d, for %d", nregions, bytes, type, ((comm *)c)->number);
  regions[nregions].at = data;
  regions[nregions].bytes = bytes;
  *registration = &regions[nregions++];
  return outcome("regMr");
}
static int p_dereg(void *c, void *registration) {
  trace_say("plugin: deregMr %td for %d", (region *)registration - regions, ((comm *)c)->number);
  return 0;
}
static int post(comm *c, const char *call, void *data, size_t bytes, int tag, void *registration, void **request) {
  const region *in = registration;
  ck_assert((char *)data >= in->at && (char *)data + bytes <= in->at + in->bytes);
  const bool capacity = c->posted - c->tested < ROOM;
  trace_say("plugin: %s %u of %d: %zu bytes at %td+%td, tag %d%s", call, c->posted, c->number, bytes, in - regions,
            (char *)data - in->at, tag, capacity ? "" : ", no room");
  *request = NULL;
  const int code = outcome(call);
  if (code || !capacity) return code;
  wire_request *r = &c->requests[c->posted++ % ROOM];
  ck_assert(!r->busy);
  *r = (wire_request){.data = data, .bytes = bytes, .busy = true};
  *request = r;
  return 0;
}
static wire_request flushed; /* a flush's */
static void carry(comm *c) {
  comm *from = c->side ? c->peer : c, *to = c->side ? c : c->peer;
  if (from->ended == from->posted || to->ended == to->posted) return;
  wire_request *s = &from->requests[from->ended++ % ROOM], *r = &to->requests[to->ended++ % ROOM];
  ck_assert_uint_le(s->bytes, r->bytes);
  memcpy(r->data, s->data, s->bytes);
  r->bytes = s->bytes;
  s->over = r->over = true;
}
static int p_test(void *request, int *done, int *bytes) {
  if (request == &flushed) {
    trace_say("plugin: test of a flush");
    *done = 1;
    return 0;
  }
  for (int i = 0; i < ncomms; i++) {
    comm *c = &comms[i];
    wire_request *r = request;
    if (r < c->requests || r >= c->requests + ROOM) continue;
    ck_assert_msg(r == &c->requests[c->tested % ROOM] && r->busy, "a request is tested out of order, or after its end");
    static int waits;
    if (waits++ % (delay + 1) == delay) carry(c);
    *done = r->over;
    if (r->over) {
      if (bytes) *bytes = (int)r->bytes;
      r->busy = false;
      trace_say("plugin: test of %u of %d: %zu bytes", c->tested++, c->number, r->bytes);
    }
    return outcome("test");
  }
  ck_abort_msg("no request");
}
static int close_it(void *c, const char *call) {
  trace_say("plugin: %s of %d", call, ((comm *)c)->number);
  return 0;
}
static int p_close_send(void *c) { return close_it(c, "closeSend"); }
static int p_close_recv(void *c) { return close_it(c, "closeRecv"); }
static int p_close_listen(void *c) { return close_it(c, "closeListen"); }
static int p_finalize(void *context) {
  trace_say("plugin: finalize %s", context == &version ? "its context" : "another context");
  return 0;
}

/* What versions have in other places. */
static int listen_11(void *context, int device, void *handle, void **listener) {
  ck_assert(context == &version);
  return p_listen(device, handle, listener);
}
static int connect_7(int device, void *handle, void **out, net_plugin_device_handle **gpu) {
  ck_assert(!*gpu);
  return p_connect(device, handle, out);
}
static int connect_10(int device, net_plugin_config *config, void *handle, void **out, net_plugin_device_handle **gpu) {
  ck_assert_int_eq(config->traffic_class, 77);
  return connect_7(device, handle, out, gpu);
}
static int connect_11(void *context, int device, void *handle, void **out, net_plugin_device_handle **gpu) {
  ck_assert(context == &version);
  return connect_7(device, handle, out, gpu);
}
static int accept_7(void *listener, void **out, net_plugin_device_handle **gpu) {
  ck_assert(!*gpu);
  return p_accept(listener, out);
}
static int reg_6(void *c, void *data, int bytes, int type, void **registration) {
  return p_reg(c, data, (size_t)bytes, type, registration);
}
static int isend_6(void *c, void *data, int bytes, int tag, void *registration, void **request) {
  return post(c, "isend", data, (size_t)bytes, tag, registration, request);
}
static int isend_9(void *c, void *data, size_t bytes, int tag, void *registration, void **request) {
  return post(c, "isend", data, bytes, tag, registration, request);
}
static int isend_10(void *c, void *data, size_t bytes, int tag, void *registration, void *event, void **request) {
  ck_assert(event == &ncomms);
  return post(c, "isend", data, bytes, tag, registration, request);
}
static int irecv_6(void *c, int n, void **data, int *bytes, int *tags, void **registrations, void **request) {
  ck_assert_int_eq(n, 1);
  return post(c, "irecv", *data, (size_t)*bytes, *tags, *registrations, request);
}
static int irecv_9(void *c, int n, void **data, size_t *bytes, int *tags, void **registrations, void **request) {
  ck_assert_int_eq(n, 1);
  return post(c, "irecv", *data, *bytes, *tags, *registrations, request);
}
static int irecv_10(void *c, int n, void **data, size_t *bytes, int *tags, void **registrations, void **events,
                    void **request) {
  ck_assert(*events == &ncomms);
  return irecv_9(c, n, data, bytes, tags, registrations, request);
}

static net_plugin_v calls_of(int v) {
  net_plugin_v c = {.dereg = p_dereg,
                    .test = p_test,
                    .close_send = p_close_send,
                    .close_recv = p_close_recv,
                    .close_listen = p_close_listen};
  c.listen.v6 = p_listen;
  if (v >= 11) c.listen.v11 = listen_11;
  c.connect.v6 = p_connect;
  if (v >= 7) c.connect.v7 = connect_7;
  if (v >= 10) c.connect.v10 = connect_10;
  if (v >= 11) c.connect.v11 = connect_11;
  c.accept.v6 = p_accept;
  if (v >= 7) c.accept.v7 = accept_7;
  c.reg.v6 = reg_6;
  if (v >= 8) c.reg.v8 = p_reg;
  c.isend.v6 = isend_6;
  if (v >= 9) c.isend.v9 = isend_9;
  if (v >= 10) c.isend.v10 = isend_10;
  c.irecv.v6 = irecv_6;
  if (v >= 9) c.irecv.v9 = irecv_9;
  if (v >= 10) c.irecv.v10 = irecv_10;
  if (v >= 11) c.finalize = p_finalize;
  return c;
}

/* ---- a GPU whose memory is the host's ---- */

static int p_iflush(void *c, int n, void **data, int *bytes, void **registrations, void **request) {
  const region *in = *registrations;
  trace_say("plugin: iflush of %d for %d: %d bytes at %td+%td", n, ((comm *)c)->number, *bytes, in - regions,
            (char *)*data - in->at);
  *request = *bytes % 2 ? &flushed : NULL;
  return outcome("iflush");
}
static int p_reg_dmabuf(void *c, void *data, size_t bytes, int type, uint64_t offset, int fd, void **registration) {
  trace_say("plugin: regMrDmaBuf at %llu%s", (unsigned long long)offset, fcntl(fd, F_GETFD) < 0 ? ", closed" : "");
  const int code = outcome("regMrDmaBuf");
  return code ? code : p_reg(c, data, bytes, type, registration);
}
static hk_status gpu_dmabuf(hk_device *d, const void *p, size_t bytes, bool pci, int *fd) {
  (void)d, (void)p;
  trace_say("GPU: a dma-buf of %zu bytes%s", bytes, pci ? " for PCI" : "");
  *fd = dup(0);
  return HK_OK;
}
static hk_status gpu_flush(hk_device *d) {
  (void)d;
  trace_say("GPU: flush");
  return HK_OK;
}
static const hk_device_card_ops gpu_card = {.dmabuf = gpu_dmabuf, .flush = gpu_flush};
static const hk_device_ops gpu_ops = {.card = &gpu_card};
static hk_device gpu = {.ops = &gpu_ops};

/* ---- ranks ---- */

typedef struct side {
  hk_transport_env env;
  hk_wait_env wait;
  void *ctx; /* of hk_net_plugins */
  hk_net_end end;
  hk_link link;
  char *memory;
  unsigned number; /* messages sent, or come */
  hk_status rc;
  bool ended;
} side;
static side sides[2]; /* rank 0 sends, rank 1 receives */
static net_plugin_v calls;
static hk_net_plugin_lib lib;
static int mail, wires[2]; /* rank 1 dials: the end for rank 0, and the test's ends between the two */

static hk_status dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  int near[2], far[2];
  (void)arg, (void)at;
  net_pair(false, near);
  net_pair(false, far);
  trace_say("rank 1: dials %d for %c %llu", peer, (int)(tag >> 56), (unsigned long long)(tag & 0xffffff));
  *fd = near[0];
  wires[1] = near[1];
  wires[0] = far[0];
  mail = far[1];
  return HK_OK;
}
static int take(void *arg, int peer, uint64_t tag) {
  const int fd = mail;
  (void)arg, (void)peer, (void)tag;
  mail = -1;
  return fd;
}
static void pass_wires(void) {
  for (int i = 0; i < 2; i++) {
    char bytes[1024];
    ssize_t n;
    while (wires[i] >= 0 && (n = recv(wires[i], bytes, sizeof bytes, MSG_DONTWAIT)) >= 0) {
      if (n == 0) {
        (void)shutdown(wires[!i], SHUT_WR);
        break;
      }
      if (n > 1)
        trace_say("rank %d: %zd bytes for the other", i, n);
      else
        trace_say("rank %d: %c for the other", i, bytes[0]);
      (void)!send(wires[!i], bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

/* What must be so between any two calls, whatever the schedule. */
static void check_lane(const hk_plugin_lane *l) {
  ck_assert(l->done <= l->posted && l->posted - l->done <= SLOTS);
  ck_assert(!l->posted || (l->comm && l->registration));
}
static void check_end(int rank) {
  static uint64_t next[2];
  const hk_plugin_end *e = sides[rank].end.priv;
  const hk_plugin_ctx *x = sides[rank].ctx;
  const hk_link *l = &sides[rank].link;
  const uint64_t head = atomic_load(&l->heads->value);
  ck_assert_int_eq(x->nends, e != NULL);
  ck_assert_uint_ge(sides[rank].end.next, next[rank]);
  next[rank] = sides[rank].end.next;
  if (!e) return;
  ck_assert(e->step != HK_PLUGIN_FAILED || e->failed);
  ck_assert(e->step != HK_PLUGIN_READY || (atomic_load(&l->state) == HK_LINK_READY && e->lane[0].comm));
  for (int i = 0; i < HK_PLUGIN_LANES; i++) check_lane(&e->lane[i]);
  if (e->sends) {
    ck_assert(head == next[rank] && e->posted >= head && e->posted - head <= SLOTS && l->done - head <= SLOTS);
    return;
  }
  ck_assert(head <= next[rank] && next[rank] - head <= SLOTS && e->large <= e->lane[1].done);
  for (int i = 0; i < SLOTS; i++) ck_assert_uint_le(e->owner[i], next[rank]);
}

static uint64_t step_ns = 10 * MS;
static void turn(int rank) {
  side *s = &sides[rank];
  bool moved = false;
  pass_wires();
  if (s->rc == HK_OK && s->end.priv) s->rc = hk_net_plugins.progress(s->ctx, &moved);
  trace_log();
  if (s->rc != HK_OK && !s->ended) trace_failure(rank, s->rc);
  s->ended = s->rc != HK_OK;
  check_end(rank);
  trace_now += step_ns;
}
static void turns(int n) {
  for (int i = 0; i < 2 * n; i++) turn(i % 2);
}

/* While a rank naps, the other one makes progress. */
static int napping = -1;
int poll(struct pollfd *fds, nfds_t n, int ms) {
  const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  return (int)syscall(SYS_ppoll, fds, n, ms < 0 ? NULL : &wait, NULL, 0);
}
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *wait, const sigset_t *signals) {
  const int rank = napping;
  (void)signals;
  if (rank < 0) return (int)syscall(SYS_ppoll, fds, n, wait, NULL, 0);
  napping = -1;
  turn(!rank);
  pass_wires();
  napping = rank;
  return 0;
}

static bool on_gpu;
static int gpu_modes; /* NET_PLUGIN_* */
static void open_sides(const char *name, int v) {
  scratch_make();
  trace_start(name);
  version = v;
  calls = calls_of(v);
  lib = (hk_net_plugin_lib){.calls = &calls, .version = v, .name = "played", .file = "played.so"};
  ncomms = nregions = 0;
  mail = wires[0] = wires[1] = -1;
  for (int i = 0; i < 2; i++) {
    side *s = &sides[i];
    hk_plugin_ctx *x = calloc(1, sizeof *x);
    s->wait = (hk_wait_env){.spins = 50};
    s->env = (hk_transport_env){.settings = hk_settings_now(),
                                .rank = i,
                                .nranks = 2,
                                .wait = &s->wait,
                                .dial = dial,
                                .take = take,
                                .nslots = SLOTS,
                                .slot_bytes = SLOT};
    *x = (hk_plugin_ctx){.env = &s->env, .timeout_ns = 60 * SECOND};
    x->plugin = (hk_net_plugin){
        .lib = &lib, .context = &version, .config.traffic_class = 77, .profiler = &ncomms, .ndevices = 2};
    for (int d = 0; d < 2; d++)
      x->plugin.devices[d] = (hk_net_device){.name = "card", .index = 4 + d, .memory = 1 | gpu_modes};
    x->gpu_known = x->gpu_direct = on_gpu;
    hk_plugin_thread_init(&x->thread);
    s->ctx = x;
    s->memory = mmap(NULL, 2 * SLOTS * SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(s->memory != MAP_FAILED);
    s->link = (hk_link){.slots = (hk_slot *)(void *)s->memory,
                        .heads = (hk_head *)(void *)(s->memory + 8192),
                        .payload = s->memory + SLOTS * SLOT,
                        .mask = SLOTS - 1,
                        .area_mask = SLOTS - 1,
                        .limit = i ? 0 : SLOTS,
                        .slot_bytes = SLOT,
                        .nheads = 1,
                        .proxied = 1,
                        .priv = &s->end,
                        .gpu = on_gpu ? &gpu : NULL};
    s->end =
        (hk_net_end){.link = &s->link, .key = {.peer = (1 - i), .kind = i ? HK_LINK_RECV : HK_LINK_SEND, .channel = 3}};
    ck_assert_int_eq(hk_net_plugins.open(x, &s->end), HK_OK);
  }
}
static void close_sides(int first) {
  trace_step = 10 * MS;
  for (int i = 0; i < 2; i++) {
    const int rank = i ^ first;
    trace_say("rank %d closes", rank);
    napping = i ? -1 : rank;
    if (sides[rank].end.priv) hk_net_plugins.close(sides[rank].ctx, &sides[rank].end);
    napping = -1;
    sides[rank].end.priv = NULL;
    pass_wires();
    check_end(rank);
  }
  for (int i = 0; i < 2; i++) {
    hk_net_plugins.fini(sides[i].ctx);
    munmap(sides[i].memory, 2 * SLOTS * SLOT);
    if (wires[i] >= 0) close(wires[i]);
  }
  if (mail >= 0) close(mail);
  trace_compare(TRACE_FILE);
  scratch_remove();
}

static const uint32_t sizes[] = {0, 1, 48, 49, 4080, 4081, 8, 16384, 100};
static void send_one(uint32_t bytes) {
  side *s = &sides[0];
  static unsigned char data[SLOT];
  if (!hk_link_can_send(&s->link, bytes)) return;
  if (on_gpu) { /* as a kernel does */
    fill((unsigned char *)hk_net_payload(&s->end, s->number), bytes, s->number);
    hk_link_publish(&s->link, bytes, 1000 + s->number++, 0);
    return;
  }
  fill(data, bytes, s->number);
  ck_assert(net_try_send(&s->link, data, bytes, 1000 + s->number, false));
  s->number++;
}
static void receive_one(void) {
  side *s = &sides[1];
  static unsigned char data[SLOT];
  uint32_t bytes, signature;
  if (!hk_link_can_recv(&s->link)) {
    hk_link_set_waiting(&s->link, HK_LINK_WAITS);
    return;
  }
  /* It may refer to memory of the provider. */
  const hk_slot *slot = hk_link_recv_slot(&s->link);
  const void *from = on_gpu                      ? hk_net_payload(&s->end, s->number)
                     : slot->flags & HK_SLOT_REF ? (const void *)(uintptr_t)slot->ref.offset
                                                 : (const void *)slot->small;
  bytes = slot->bytes;
  signature = slot->signature;
  memcpy(data, from, bytes);
  hk_link_release(&s->link);
  ck_assert_uint_eq(signature, 1000 + s->number);
  ck_assert(filled(data, bytes, s->number));
  trace_say("rank 1: got %u of %u bytes%s", s->number++, bytes, slot->flags & HK_SLOT_REF ? ", by reference" : "");
}
static void exchange(unsigned n) {
  const unsigned begin = sides[0].number;
  for (int step = 0; step < 600 && (sides[1].number < begin + n) && !sides[0].ended && !sides[1].ended; step++) {
    while (sides[0].number < begin + n && hk_link_can_send(&sides[0].link, 0))
      send_one(sizes[sides[0].number % HK_ARRAY_LENGTH(sizes)]);
    if (mix((uint32_t)step) % 3) receive_one();
    turn(step % 2);
  }
}

/* ---- scenes ---- */

TEST_LOOP(carries_messages, 7) {
  static const int versions[] = {6, 7, 8, 9, 10, 11, 12};
  char name[40];
  snprintf(name, sizeof name, "version %d", versions[_i]);
  delay = _i % 3;
  open_sides(name, versions[_i]);
  turns(10);
  exchange(_i == 6 ? 20 : 7);
  turns(3);
  close_sides(_i % 2);
}

/* Payloads in a GPU's memory: by which registration, and how they become visible there. */
static const struct {
  const char *name;
  int modes;
  bool flushes, ordered, forced;
  const char *fails;
} on_gpus[] = {{"GPU by address, iflush", NET_PLUGIN_CUDA_MEMORY, true, false, false, NULL},
               {"GPU by address, driver", NET_PLUGIN_CUDA_MEMORY, false, false, false, NULL},
               {"GPU by dma-buf, ordered", NET_PLUGIN_CUDA_MEMORY | NET_PLUGIN_DMABUF, true, true, false, NULL},
               {"GPU by dma-buf, forced", NET_PLUGIN_DMABUF, true, true, true, NULL},
               {"GPU, no dma-buf", NET_PLUGIN_CUDA_MEMORY | NET_PLUGIN_DMABUF, true, false, false, "regMrDmaBuf"},
               {"GPU, no iflush", NET_PLUGIN_CUDA_MEMORY, true, false, false, "iflush"}};
TEST_LOOP(carries_from_gpu_to_gpu, HK_ARRAY_LENGTH(on_gpus)) {
  on_gpu = true;
  gpu_modes = on_gpus[_i].modes;
  gpu.limits.dmabuf = true;
  gpu.limits.rdma_ordered = on_gpus[_i].ordered;
  fault.call = on_gpus[_i].fails;
  fault.code = 3;
  open_sides(on_gpus[_i].name, 12);
  for (int i = 0; i < 2; i++)
    for (int d = 0; d < 2; d++) ((hk_plugin_ctx *)sides[i].ctx)->plugin.devices[d].force_flush = on_gpus[_i].forced;
  calls.reg_dmabuf = p_reg_dmabuf;
  calls.iflush = on_gpus[_i].flushes ? p_iflush : NULL;
  turns(10);
  exchange(9);
  step_ns = SECOND;
  turns(3);
  fault.call = NULL;
  close_sides(0);
}

/* A call fails while the peer is there, or goes, or the plugin says that it is the cause. */
static const struct {
  const char *call;
  int code, after;
  bool goes;
} faults[] = {{"listen", 3, 0, false}, {"connect", 3, 1, false}, {"connect", 6, 0, false}, {"accept", 2, 1, false},
              {"regMr", 2, 1, false},  {"isend", 3, 2, false},   {"isend", 3, 2, true},    {"irecv", 6, 9, false},
              {"test", 3, 3, false},   {"test", 2, 8, true}};
TEST_LOOP(reports_faults, HK_ARRAY_LENGTH(faults)) {
  char name[40];
  snprintf(name, sizeof name, "%s fails (%d)", faults[_i].call, _i);
  fault.call = faults[_i].call;
  fault.code = faults[_i].code;
  fault.after = faults[_i].after;
  open_sides(name, 12);
  turns(10);
  exchange(4);
  step_ns = 100 * MS;
  if (faults[_i].goes)
    for (int i = 0; i < 2; i++) (void)shutdown(wires[i], SHUT_RDWR);
  turns(25);
  fault.call = NULL;
  close_sides(0);
}

/* A rank goes while the other one waits, and a lane waits for more or not. */
TEST_LOOP(reports_peers_that_go, 3) {
  char name[40];
  snprintf(name, sizeof name, "peer goes %d", _i);
  open_sides(name, 12);
  turns(_i < 2 ? 10 : 0);
  if (_i < 2) exchange(3);
  if (_i == 0) hk_link_set_waiting(&sides[1].link, HK_LINK_WAITS);
  if (_i == 2) turn(1), turn(0);
  for (int i = 0; i < 2; i++)
    if (wires[i] >= 0) (void)shutdown(wires[i], SHUT_RDWR);
  step_ns = 100 * MS;
  turns(15);
  if (_i == 1) send_one(100);
  turns(15);
  close_sides(1);
}

/* A peer that never connects, and one that says nothing any more. */
TEST_LOOP(limits_the_time_to_connect, 2) {
  char name[40];
  snprintf(name, sizeof name, "never connects %d", _i);
  open_sides(name, 8);
  for (int i = 0; i < 2; i++) ((hk_plugin_ctx *)sides[i].ctx)->timeout_ns = 2 * SECOND;
  step_ns = 100 * MS;
  for (int i = 0; i < 40; i++) { /* the handle of the first lane is never valid long enough */
    hk_plugin_end *e = sides[0].end.priv;
    e->wire.handles[0][sizeof(int)] = 0;
    turn(1);
    if (_i == 0) turn(0);
    if (_i == 1 && i < 4) turn(0);
  }
  close_sides(0);
}

int main(void) {
  golden_clear(TRACE_FILE);
  return suite_main("plugin_trace");
}
