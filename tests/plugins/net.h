/* SPDX-License-Identifier: Apache-2.0 */
/* The example net plugin, over TCP on 127.0.0.1; the file that includes this one defines VERSION, 6 to 12.  It is
 * strict where real ones are: memory must be registered, a connection has 8 requests, connect and accept need several
 * calls, at most one message is moved by a call of test.  HOCKET_TEST_NET says what it does wrong:
 *   init, devices, none (no device), listen, connect, accept, isend, irecv, test: fails there
 *   blocks in listen, blocks in isend, blocks in closeRecv: the call does not return before net_released is set
 *   half: connect never ends; short: the fifth message of a connection comes out too short
 *   shared: connections whose listen, or first connect, a thread has called share an endpoint, and closing a receiver
 *     with receives under way aborts it (as aws-ofi-nccl does since 1.16)
 *
 * HOCKET_TEST_NET_GPU lets it take memory of GPUs, as many words as are needed: dmabuf, address (what a peer memory
 * module does; only where the CPU gets at that memory), none (it says that it does, and refuses), late (a GPU sees
 * what was received only after iflush), force (v9: it says that iflush must be called). */
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUESTS = 8, INFO = 3, NET = 16, ROOM = 1 << 30 };
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#define EXPORT __attribute__((visibility("default"))) extern

/* What a test may ask: registrations of GPU memory, and how many are taken (0: all); messages from and to such
 * memory. */
typedef struct net_example_state {
  _Atomic(int) dmabufs, addresses, most, from_gpu, to_gpu, flushes;
} net_example_state;
EXPORT net_example_state net_example;
net_example_state net_example;
EXPORT _Atomic(int) net_released, net_blocked; /* net_blocked: calls that do not return */
_Atomic(int) net_released, net_blocked;

typedef struct request {
  struct comm *comm;
  char *data;
  uint32_t size; /* SEND: of the message; receive: the room, then what came */
  uint64_t moved;
  int busy, over, flush;
  void *event; /* the profiler's */
} request;

/* Registered memory: `at` is what callers call it, `host` where the CPU finds it, `shown` where a GPU does. */
typedef struct region {
  struct comm *comm;
  char *at, *host, *shown;
  size_t bytes;
  int gpu, mapped;
} region;

typedef struct comm {
  int fd, sends;
  int *aborted; /* the endpoint's */
  uint64_t posted, finished, seen;
  request requests[REQUESTS], flushes[REQUESTS];
  region *memory;
} comm;

typedef struct handle {
  uint64_t magic;
  struct sockaddr_in at;
  int calls;    /* a plugin may keep in the handle how far its connect has come */
  int *aborted; /* and the sender's endpoint */
} handle;

static logger say;
/* v10 and newer: for a profiler, what happens to a send; 0 starts, 3 updates and stops. */
static ncclResult_t (*report)(void **event, int type, void *parent, int64_t id, void *data);

static int wrong(const char *what) {
  const char *mode = getenv("HOCKET_TEST_NET");
  return mode && !strcmp(mode, what);
}

static void may_block(const char *how) {
  if (!wrong(how) || net_released) return;
  net_blocked++;
  while (!net_released) poll(NULL, 0, 1);
}

static int gpus(const char *how) {
  const char *modes = getenv("HOCKET_TEST_NET_GPU");
  return modes && strstr(modes, how);
}

static ncclResult_t begin(logger log) {
  say = log;
  say(INFO, NET, __FILE__, __LINE__, "example net: init of v%d", VERSION);
  return wrong("init") ? ncclSystemError : ncclSuccess;
}

static ncclResult_t devices(int *n) {
  *n = wrong("none") ? 0 : 2;
  return wrong("devices") ? ncclInternalError : ncclSuccess;
}

/* As each version lays it out. */
typedef struct properties {
  char *name, *pci;
  uint64_t guid;
  int memory;
#if VERSION >= 8
  int global;
#endif
#if VERSION >= 9
  int flush;
#endif
  int speed, port;
  float latency;
  int comms, receives;
#if VERSION >= 7
  int gpu_type, gpu_version;
#endif
#if VERSION >= 9
  int ndevices, devices[VERSION >= 12 ? 8 : 4];
  size_t most, most_collective;
#endif
#if VERSION >= 11
  int most_requests;
#endif
#if VERSION >= 12
  int16_t rail, plane;
#endif
} properties;

static ncclResult_t describe(int device, void *to) {
  static char names[2][8] = {"lo-0", "lo-1"};
  properties p;
  memset(&p, 0, sizeof p);
  p.name = names[device];
  p.memory = wrong("gpu-only") ? 2 : 1 | (gpus("address") || gpus("none") ? 2 : 0) | (gpus("dmabuf") ? 4 : 0);
  p.speed = 10000;
  p.latency = 1;
  p.comms = 1024;
  p.receives = 1;
#if VERSION >= 9
  p.flush = gpus("force");
  p.ndevices = 1;
  p.devices[0] = device;
  p.most = p.most_collective = ROOM;
#endif
  memcpy(to, &p, sizeof p);
  return ncclSuccess;
}

/* The calling thread's. */
static int *endpoint(void) {
  static int aborted[1 << 16];
  return &aborted[gettid() & 0xffff];
}

static comm *new_comm(int fd, int sends, int *aborted) {
  comm *c = calloc(1, sizeof *c);
  if (!c) abort();
  c->fd = fd;
  c->sends = sends;
  c->aborted = aborted;
  return c;
}

static ncclResult_t make_listener(void *to, void **listener) {
  handle h;
  socklen_t n = sizeof h.at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  may_block("blocks in listen");
  memset(&h, 0, sizeof h);
  h.magic = 4711;
  h.at.sin_family = AF_INET;
  h.at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (wrong("listen") || fd < 0 || bind(fd, (struct sockaddr *)&h.at, sizeof h.at) || listen(fd, 4) ||
      getsockname(fd, (struct sockaddr *)&h.at, &n))
    return ncclSystemError;
  memcpy(to, &h, sizeof h);
  *listener = new_comm(fd, 0, endpoint());
  return ncclSuccess;
}

static ncclResult_t call_listener(void *from, void **out) {
  handle *h = from;
  *out = NULL;
  if (wrong("connect")) return ncclRemoteError;
  if (h->magic != 4711) return ncclInvalidArgument;
  if (!h->aborted) h->aborted = endpoint();
  if (wrong("half") || h->calls++ < 2) return ncclSuccess; /* not yet */
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&h->at, sizeof h->at)) return ncclSystemError;
  *out = new_comm(fd, 1, h->aborted);
  return ncclSuccess;
}

static ncclResult_t answer(void *listener, void **out) {
  int fd = accept4(((comm *)listener)->fd, NULL, NULL, SOCK_CLOEXEC);
  *out = NULL;
  if (wrong("accept")) return ncclInternalError;
  if (fd < 0) return errno == EAGAIN ? ncclSuccess : ncclSystemError;
  *out = new_comm(fd, 0, ((comm *)listener)->aborted);
  return ncclSuccess;
}

/* ---- memory ---- */

/* Cards report what they have written before a GPU sees it, if that is to be so. */
static ncclResult_t add_region(comm *c, region want, void **registration) {
  region *r = calloc(1, sizeof *r);
  if (!r || c->memory) abort();
  *r = want;
  r->comm = c;
  r->shown = r->host;
  if (r->gpu && !c->sends && gpus("late") && !(r->host = calloc(1, r->bytes))) abort();
  *registration = c->memory = r;
  return ncclSuccess;
}
/* Counted before it is done, as several connections may ask at once. */
static int takes_more(_Atomic(int) *count) {
  if (atomic_fetch_add(count, 1) < net_example.most || !net_example.most) return 1;
  atomic_fetch_sub(count, 1);
  return 0;
}

static ncclResult_t reg(void *of, void *data, size_t bytes, int type, void **registration) {
  comm *c = of;
  if ((type != 1 && type != 2) || c->memory) return ncclInvalidUsage;
  if (type == 2 && !(gpus("address") && takes_more(&net_example.addresses))) return ncclSystemError;
  return add_region(c, (region){.at = data, .host = data, .bytes = bytes, .gpu = type == 2}, registration);
}
/* The emulated CUDA driver's buffers begin at their file's position. */
static ncclResult_t reg_dmabuf(void *of, void *data, size_t bytes, int type, uint64_t offset, int fd, void **out) {
  comm *c = of;
  if (type != 2 || c->memory) return ncclInvalidUsage;
  if (!gpus("dmabuf") || !takes_more(&net_example.dmabufs)) return ncclSystemError;
  off_t begin = lseek(fd, 0, SEEK_CUR) + (off_t)offset;
  char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
  if (map == MAP_FAILED) return ncclSystemError;
  return add_region(c, (region){.at = data, .host = map, .bytes = bytes, .gpu = 1, .mapped = 1}, out);
}

static ncclResult_t dereg(void *of, void *registration) {
  comm *c = of;
  region *r = registration;
  if (!r || c->memory != r) return ncclInvalidUsage;
  c->memory = NULL;
  if (r->host != r->shown) free(r->host);
  if (r->mapped) munmap(r->shown, r->bytes);
  free(r);
  return ncclSuccess;
}

static int lies_in(const region *r, const char *at, size_t bytes) {
  return at >= r->at && at + bytes <= r->at + r->bytes;
}

/* The end of a flush. */
static void show(request *q) {
  const region *r = q->comm->memory;
  size_t at = (size_t)(q->data - r->at);
  if (r->host != r->shown) memcpy(r->shown + at, r->host + at, q->size);
  q->busy = 0;
}

static __attribute__((unused)) ncclResult_t flush(void *of, int n, void **data, int *bytes, void **registrations,
                                                  void **out) {
  comm *c = of;
  region *r = registrations[0];
  *out = NULL;
  if (n != 1 || c->sends || r != c->memory || bytes[0] < 1 || !lies_in(r, data[0], (size_t)bytes[0]))
    return ncclInvalidUsage;
  size_t at = (size_t)((char *)data[0] - r->at);
  request *q = c->flushes;
  while (q < c->flushes + REQUESTS && q->busy) q++;
  if (q == c->flushes + REQUESTS) return ncclInternalError;
  net_example.flushes++;
  *q = (request){.comm = c, .data = data[0], .size = (uint32_t)bytes[0], .busy = 1, .flush = 2};
  if (at % 3 == 0) /* at once: nothing to wait for */
    show(q);
  else
    *out = q;
  return ncclSuccess;
}

static ncclResult_t post(comm *c, void *data, size_t bytes, void *registration, void **out) {
  char *at = data;
  region *m = registration;
  int open = 0;
  *out = NULL;
  if (c->sends) may_block("blocks in isend");
  if (*c->aborted) return ncclSystemError;
  if (!m || m != c->memory || !lies_in(m, at, bytes)) return ncclInvalidUsage;
  request *r = &c->requests[c->posted % REQUESTS];
  for (int i = 0; i < REQUESTS; i++) open += c->requests[i].busy + c->flushes[i].busy;
  if (r->busy) return ncclSuccess;                /* no room */
  if (open >= REQUESTS) return ncclInternalError; /* what is flushed counts, too */
  *r = (request){.comm = c, .data = m->host + (at - m->at), .size = (uint32_t)bytes, .busy = 1};
  if (m->gpu) (*(c->sends ? &net_example.from_gpu : &net_example.to_gpu))++;
  c->posted++;
  *out = r;
  return ncclSuccess;
}

/* Moves bytes of a message: its length, four bytes, and its data.  1: all of them, 0: not yet, -1: the end. */
static int move(request *r) {
  comm *c = r->comm;
  uint32_t length = r->size;
  for (;;) {
    int head = r->moved < 4;
    char *at = head ? (char *)&length + r->moved : r->data + (r->moved - 4);
    size_t left = head ? 4 - r->moved : r->size + 4 - r->moved;
    if (!head && left == 0) return 1;
    ssize_t n = c->sends ? send(c->fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                         : recv(c->fd, at, left, MSG_DONTWAIT | (head ? MSG_PEEK : 0));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
    if (n < 0 || (!c->sends && head && n < 4)) return 0;
    if (!c->sends && head) {
      if (length > r->size || recv(c->fd, &length, 4, 0) != 4) return -1;
      r->size = length;
    }
    r->moved += (uint64_t)n;
  }
}

static ncclResult_t test(void *of, int *done, int *sizes) {
  request *r = of;
  comm *c = r->comm;
  *done = 0;
  if (*c->aborted) return ncclSystemError;
  if (!r->busy) return ncclInvalidUsage;
  if (r->flush) {
    *done = --r->flush == 0;
    if (*done) show(r);
    return ncclSuccess;
  }
  if (wrong("test") && c->finished >= 3) return ncclInternalError;
  request *next = &c->requests[c->finished % REQUESTS];
  if (c->finished < c->posted && !next->over) {
    int moved = move(next);
    if (moved < 0) return ncclRemoteError;
    next->over = moved;
    c->finished += (uint64_t)next->over;
  }
  if (!r->over) return ncclSuccess;
  *done = 1;
  if (report && r->event) report(&r->event, 3, NULL, 4711, r);
  if (sizes) sizes[0] = c->seen++ == 4 && wrong("short") ? 3 : (int)r->size;
  r->busy = 0;
  return ncclSuccess;
}

static ncclResult_t hang_up(void *of) {
  comm *c = of;
  if (!c->sends) may_block("blocks in closeRecv");
  for (int i = 0; i < REQUESTS && !c->sends; i++) *c->aborted |= c->requests[i].busy && wrong("shared");
  close(c->fd);
  free(c);
  return ncclSuccess;
}

/* ---- the struct of this version ---- */
#if VERSION >= 8
typedef size_t reg_bytes;
#else
typedef int reg_bytes;
#endif
#if VERSION >= 9
typedef size_t io_bytes;
#else
typedef int io_bytes;
#endif
#if VERSION >= 7
#define GPU , void **gpu
#define GPU_UNUSED (void)gpu
#else
#define GPU
#define GPU_UNUSED (void)0
#endif
#if VERSION >= 10
#define EVENT void *event,
#define EVENTS void **events,
#define TELL_EVENT                                                                                                     \
  if (rc == ncclSuccess && *out && report) report(&((request *)*out)->event, 0, event, 4711, NULL)
#define EVENTS_UNUSED (void)events
#else
#define EVENT
#define EVENTS
#define TELL_EVENT (void)0
#define EVENTS_UNUSED (void)0
#endif

#if VERSION >= 11
static int contexts;
static ncclResult_t begin_v(void **context, uint64_t id, int *traffic_class, logger log, void *profiler) {
  (void)id, (void)traffic_class;
  memcpy(&report, &profiler, sizeof report);
  *context = &contexts;
  contexts++;
  return begin(log);
}
static ncclResult_t end_v(void *context) {
  if (context != &contexts) return ncclInvalidArgument;
  say(INFO, NET, __FILE__, __LINE__, "example net: context %d ends", contexts--);
  return ncclSuccess;
}
static ncclResult_t listen_v(void *context, int device, void *to, void **listener) {
  (void)device;
  return context == &contexts ? make_listener(to, listener) : ncclInvalidArgument;
}
static ncclResult_t connect_v(void *context, int device, void *from, void **out GPU) {
  (void)device, GPU_UNUSED;
  return context == &contexts ? call_listener(from, out) : ncclInvalidArgument;
}
#else
#if VERSION >= 10
static ncclResult_t begin_v(logger log, void *profiler) {
  memcpy(&report, &profiler, sizeof report);
  return begin(log);
}
static ncclResult_t connect_v(int device, int *traffic_class, void *from, void **out GPU) {
  (void)device, GPU_UNUSED;
  return *traffic_class == -1 ? call_listener(from, out) : ncclInvalidArgument;
}
#else
static ncclResult_t begin_v(logger log) { return begin(log); }
static ncclResult_t connect_v(int device, void *from, void **out GPU) {
  (void)device, GPU_UNUSED;
  return call_listener(from, out);
}
#endif
static ncclResult_t listen_v(int device, void *to, void **listener) {
  (void)device;
  return make_listener(to, listener);
}
#endif
static ncclResult_t accept_v(void *listener, void **out GPU) {
  GPU_UNUSED;
  return answer(listener, out);
}
static ncclResult_t reg_v(void *c, void *data, reg_bytes bytes, int type, void **registration) {
  return reg(c, data, (size_t)bytes, type, registration);
}
static ncclResult_t isend_v(void *c, void *data, io_bytes bytes, int tag, void *registration, EVENT void **out) {
  if (tag || !((comm *)c)->sends || wrong("isend")) return ncclInternalError;
  ncclResult_t rc = post(c, data, (size_t)bytes, registration, out);
  TELL_EVENT;
  return rc;
}
static __attribute__((unused)) ncclResult_t irecv_v(void *c, int n, void **data, io_bytes *bytes, int *tags,
                                                    void **registrations, EVENTS void **out) {
  EVENTS_UNUSED;
  if (n != 1 || tags[0] || ((comm *)c)->sends || wrong("irecv")) return ncclInternalError;
  return post(c, data[0], (size_t)bytes[0], registrations[0], out);
}

/* A plugin may lack what it must have. */
#ifdef WITHOUT_IRECV
#define IRECV NULL
#else
#define IRECV (void *)irecv_v
#endif

#ifdef WITHOUT_IFLUSH
#define IFLUSH NULL
#else
#define IFLUSH (void *)flush
#endif

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
struct net_plugin {
  const char *name;
  void *calls[VERSION >= 11 ? 21 : VERSION >= 9 ? 19 : 18];
};
#if VERSION >= 11
#define MORE NULL, NULL, NULL, (void *)end_v
#else
#define MORE NULL
#endif
#define WHOLE                                                                                                          \
  {                                                                                                                    \
    "Example", {                                                                                                       \
      (void *)begin_v, (void *)devices, (void *)describe, (void *)listen_v, (void *)connect_v, (void *)accept_v,       \
          (void *)reg_v, (void *)reg_dmabuf, (void *)dereg, (void *)isend_v, IRECV, IFLUSH, (void *)test,              \
          (void *)hang_up, (void *)hang_up, (void *)hang_up, MORE                                                      \
    }                                                                                                                  \
  }

#ifdef LATE
/* With init alone, which fills the rest in, as nccl-rdma-sharp-plugins has it. */
static ncclResult_t begin_late(logger log);
EXPORT struct net_plugin JOIN(ncclNetPlugin_v, VERSION);
struct net_plugin JOIN(ncclNetPlugin_v, VERSION) = {"Late example", {(void *)begin_late}};
static ncclResult_t begin_late(logger log) {
  JOIN(ncclNetPlugin_v, VERSION) = (struct net_plugin)WHOLE;
  return begin_v(log);
}
#else
EXPORT const struct net_plugin JOIN(ncclNetPlugin_v, VERSION);
const struct net_plugin JOIN(ncclNetPlugin_v, VERSION) = WHOLE;
#endif
