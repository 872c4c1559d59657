/* SPDX-License-Identifier: Apache-2.0 */
/* The example CollNet plugin, next to the net plugin in one library; VERSION is 8 to 12. It really adds up: a group's
 * first rank gets all parts over TCP on 127.0.0.1 and sends the sum to all, or what is gathered, or to each its part of
 * the sum; v9 does not gather and scatter. It is strict where real ones are: memory
 * must be registered, 8 requests at most, `connect` returns when all of the group have called it. Unlike a switch, it
 * adds in the order of ranks, and it does not notice that the ranks of a group ask for different sums.
 *
 * It adds integers, float, double and bfloat16, the last one not by prod. HOCKET_TEST_COLLNET says what it does wrong:
 *   init, none (no device), refuse (reduceSupport says no to all), connect, iallreduce, iallgather, ireducescatter,
 *     test: fails there
 *   slow: the first sum never comes */
#include "net.h"

enum { TYPES = 12, SUMS, GATHERS, SCATTERS };
static const unsigned char type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

typedef struct sum_request {
  struct sum_comm *comm;
  char *data, *sum;         /* in, out; `sum` of a gather: all parts */
  char *parts, *total;      /* the first rank's: of all others one after another; the sum that is to be scattered */
  size_t bytes, result;     /* of data and sum */
  int kind, type, op, busy; /* kind: SUMS, GATHERS, SCATTERS */
  uint64_t number;
} sum_request;

typedef struct sum_peer {
  int fd;
  uint64_t sent, got; /* whole messages; then bytes of the next one */
  size_t sent_bytes, got_bytes;
} sum_peer;

typedef struct sum_region {
  char *at;
  size_t bytes;
} sum_region;

typedef struct sum_comm {
  int n, me, npeers, regions;
  sum_peer *peers; /* of the first rank: all others; of another rank: the first one */
  uint64_t posted, added;
  sum_request requests[REQUESTS];
} sum_comm;

static int sums_begun;

static int sum_wrong(const char *what) {
  const char *mode = getenv("HOCKET_TEST_COLLNET");
  return mode && !strcmp(mode, what);
}

static ncclResult_t sum_begin(logger log) {
  say = log;
  sums_begun++;
  say(INFO, NET, __FILE__, __LINE__, "example collnet: init %d of v%d", sums_begun, VERSION);
  return sum_wrong("init") ? ncclSystemError : ncclSuccess;
}

static ncclResult_t sum_devices(int *n) {
  *n = sum_wrong("none") ? 0 : 2;
  return ncclSuccess;
}

static ncclResult_t sum_connect(void **handles, int n, int me, void *listener, void **out) {
  sum_comm *c = calloc(1, sizeof *c);
  if (!c || sum_wrong("connect")) {
    free(c);
    return ncclRemoteError;
  }
  const handle *first = handles[0];
  c->n = n;
  c->me = me;
  c->npeers = me ? 1 : n - 1;
  c->peers = calloc((size_t)c->npeers, sizeof *c->peers);
  if (!c->peers || first->magic != 4711) abort();
  if (me) {
    int fd = c->peers[0].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&first->at, sizeof first->at)) return ncclSystemError;
    if (send(fd, &me, sizeof me, MSG_NOSIGNAL) != sizeof me) return ncclSystemError;
  }
  int listens = ((comm *)listener)->fd;
  fcntl(listens, F_SETFL, 0); /* waits */
  for (int i = 0; !me && i < n - 1; i++) {
    int rank, fd = accept4(listens, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank) return ncclSystemError;
    c->peers[rank - 1].fd = fd;
  }
  *out = c;
  return ncclSuccess;
}

static ncclResult_t sum_supports(int type, int op, int *yes) {
  int bfloat = type == ncclBfloat16, small = type == ncclFloat16 || type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
  *yes = !sum_wrong("refuse") && type < TYPES && op <= ncclMin && !small && !(bfloat && op == ncclProd);
  return ncclSuccess;
}

static ncclResult_t sum_reg(void *of, void *data, size_t bytes, int type, void **registration) {
  sum_region *r = calloc(1, sizeof *r);
  if (!r || type != 1) abort();
  *r = (sum_region){.at = data, .bytes = bytes};
  ((sum_comm *)of)->regions++;
  *registration = r;
  return ncclSuccess;
}

static ncclResult_t sum_dereg(void *of, void *registration) {
  ((sum_comm *)of)->regions--;
  free(registration);
  return ncclSuccess;
}

/* ---- sums ---- */

static float from_bfloat(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t to_bfloat(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* nearest, ties to even; no NaN here */
}

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define COMBINE(type)                                                                                                  \
  for (size_t i = 0; i < n; i++) {                                                                                     \
    type *s = (type *)sum + i, x = ((const type *)part)[i];                                                            \
    *s = (type)(op == ncclSum ? *s + x : op == ncclProd ? *s * x : op == ncclMax ? LARGER(*s, x) : SMALLER(*s, x));    \
  }
static void combine(void *sum, const void *part, size_t n, int type, int op) {
  switch (type) {
    case ncclInt8: COMBINE(int8_t) break;
    case ncclUint8: COMBINE(uint8_t) break;
    case ncclInt32:
    case ncclUint32:
      if (type == ncclUint32 || op < ncclMax) {
        COMBINE(uint32_t)
      } else {
        COMBINE(int32_t)
      }
      break;
    case ncclInt64:
    case ncclUint64:
      if (type == ncclUint64 || op < ncclMax) {
        COMBINE(uint64_t)
      } else {
        COMBINE(int64_t)
      }
      break;
    case ncclFloat32: COMBINE(float) break;
    case ncclFloat64: COMBINE(double) break;
    default:
      for (size_t i = 0; i < n; i++) {
        float s = from_bfloat(((uint16_t *)sum)[i]), x = from_bfloat(((const uint16_t *)part)[i]);
        ((uint16_t *)sum)[i] = to_bfloat(op == ncclSum ? s + x : op == ncclMax ? LARGER(s, x) : SMALLER(s, x));
      }
  }
}

/* Moves what can be moved to and from a peer. -1: the connection has ended. */
static int sum_move(sum_comm *c, int i) {
  sum_peer *p = &c->peers[i];
  ssize_t n = 1;
  while (p->sent < (c->me ? c->posted : c->added) && n > 0) {
    const sum_request *r = &c->requests[p->sent % REQUESTS];
    const char *from = c->me ? r->data : r->total ? r->total + (size_t)(i + 1) * r->result : r->sum;
    size_t bytes = c->me ? r->bytes : r->result;
    n = send(p->fd, from + p->sent_bytes, bytes - p->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && (p->sent_bytes += (size_t)n) == bytes) p->sent++, p->sent_bytes = 0;
  }
  if (n < 0 && errno != EAGAIN) return -1;
  for (n = 1; p->got < c->posted && n > 0;) {
    const sum_request *r = &c->requests[p->got % REQUESTS];
    char *to = c->me ? r->sum : r->parts + (size_t)i * r->bytes;
    size_t bytes = c->me ? r->result : r->bytes;
    n = recv(p->fd, to + p->got_bytes, bytes - p->got_bytes, MSG_DONTWAIT);
    if (n > 0 && (p->got_bytes += (size_t)n) == bytes) p->got++, p->got_bytes = 0;
  }
  return n == 0 || (n < 0 && errno != EAGAIN) ? -1 : 0;
}

/* The first rank: adds up what all parts have come of. */
static void sum_add(sum_comm *c) {
  for (; !c->me && c->added < c->posted; c->added++) {
    sum_request *r = &c->requests[c->added % REQUESTS];
    for (int i = 0; i < c->npeers; i++)
      if (c->peers[i].got <= c->added) return;
    char *to = r->total ? r->total : r->sum;
    memcpy(to, r->data, r->bytes);
    for (int i = 0; i < c->npeers; i++) {
      const char *part = r->parts + (size_t)i * r->bytes;
      if (r->kind == GATHERS)
        memcpy(to + (size_t)(i + 1) * r->bytes, part, r->bytes);
      else
        combine(to, part, r->bytes / type_bytes[r->type], r->type, r->op);
    }
    if (r->total) memcpy(r->sum, r->total, r->result);
    free(r->parts);
    r->parts = NULL;
  }
}

static ncclResult_t sum_test(void *of, int *done, int *bytes) {
  sum_request *r = of;
  sum_comm *c = r->comm;
  *done = 0;
  if (!r->busy || sum_wrong("test")) return ncclInternalError;
  if (sum_wrong("slow")) return ncclSuccess;
  for (int i = 0; i < c->npeers; i++)
    if (sum_move(c, i)) return ncclRemoteError;
  sum_add(c);
  for (int i = 0; i < c->npeers; i++)
    if (c->peers[i].sent <= r->number || (c->me && c->peers[i].got <= r->number)) return ncclSuccess;
  *done = 1;
  *bytes = (int)r->result;
  r->busy = 0;
  free(r->total);
  r->total = NULL;
  return ncclSuccess;
}

static int in_region(const sum_region *m, const char *at, size_t bytes) {
  return m && at >= m->at && at + bytes <= m->at + m->bytes;
}

/* Puts a request in its place. */
static ncclResult_t sum_enter(sum_comm *c, sum_request want, void **out) {
  sum_request *r = &c->requests[c->posted % REQUESTS];
  if (r->busy) return ncclSuccess; /* no room */
  *r = want;
  r->comm = c;
  r->busy = 1;
  r->number = c->posted++;
  if (!c->me && !(r->parts = malloc(r->bytes * (size_t)c->npeers))) abort();
  if (!c->me && r->kind == SCATTERS && !(r->total = malloc(r->bytes))) abort();
  *out = r;
  return ncclSuccess;
}

#if VERSION >= 9
typedef size_t sum_count;
#else
typedef int sum_count;
#endif
static ncclResult_t sum_post(void *of, void *data, void *sum, sum_count count, int type, int op, void *from, void *to,
                             void **out) {
  sum_comm *c = of;
  int yes = 0;
  *out = NULL;
  sum_supports(type, op, &yes);
  size_t bytes = (size_t)count * (yes ? type_bytes[type] : 0);
  if (sum_wrong("iallreduce") && c->me == c->n - 1 && c->posted >= 2) return ncclSystemError;
  if (!bytes || !in_region(from, data, bytes) || !in_region(to, sum, bytes)) return ncclInvalidUsage;
  return sum_enter(
      c, (sum_request){.kind = SUMS, .data = data, .sum = sum, .bytes = bytes, .result = bytes, .type = type, .op = op},
      out);
}

#if VERSION != 9
typedef struct sum_part {
  void *registration;
  char *address;
#if VERSION >= 9
  size_t size;
#else
  uint32_t size;
#endif
} sum_part;

static ncclResult_t sum_gather(void *of, void *data, int n, sum_part *parts, size_t each, size_t at, size_t window,
                               void *from, void **out) {
  sum_comm *c = of;
  size_t all = (size_t)c->n * each;
  *out = NULL;
  if (sum_wrong("iallgather") && c->me == c->n - 1 && c->posted >= 2) return ncclSystemError;
  if (n != 1 || !each || at || window != all || parts->size != all || !in_region(from, data, each) ||
      !in_region(parts->registration, parts->address, all))
    return ncclInvalidUsage;
  return sum_enter(c, (sum_request){.kind = GATHERS, .data = data, .sum = parts->address, .bytes = each, .result = all},
                   out);
}

static ncclResult_t sum_scatter(void *of, int n, sum_part *parts, void *sum, size_t each, size_t at, size_t window,
                                int type, int op, void *to, void **out) {
  sum_comm *c = of;
  int yes = 0;
  size_t all = (size_t)c->n * each;
  *out = NULL;
  sum_supports(type, op, &yes);
  if (sum_wrong("ireducescatter") && c->me == c->n - 1 && c->posted >= 2) return ncclSystemError;
  if (!yes || n != 1 || !each || at || window != all || parts->size != all || !in_region(to, sum, each) ||
      !in_region(parts->registration, parts->address, all))
    return ncclInvalidUsage;
  return sum_enter(
      c,
      (sum_request){
          .kind = SCATTERS, .data = parts->address, .sum = sum, .bytes = all, .result = each, .type = type, .op = op},
      out);
}
#else
#define sum_gather NULL
#define sum_scatter NULL
#endif

static ncclResult_t sum_close(void *of) {
  sum_comm *c = of;
  say(INFO, NET, __FILE__, __LINE__, "example collnet: rank %d of %d asked for %llu sums, %d regions left", c->me, c->n,
      (unsigned long long)c->posted, c->regions);
  for (int i = 0; i < c->npeers; i++) close(c->peers[i].fd);
  for (int i = 0; i < REQUESTS; i++) {
    free(c->requests[i].parts);
    free(c->requests[i].total);
  }
  free(c->peers);
  free(c);
  return ncclSuccess;
}

/* ---- the struct of this version ---- */
#if VERSION >= 11
static int sum_contexts;
static ncclResult_t sum_begin_v(void **context, uint64_t id, logger log) {
  (void)id;
  *context = &sum_contexts;
  return sum_begin(log);
}
static ncclResult_t sum_end(void *context) { return context == &sum_contexts ? ncclSuccess : ncclInvalidArgument; }
static ncclResult_t sum_listen(void *context, int device, void *to, void **listener) {
  return context == &sum_contexts && device < 2 ? make_listener(to, listener) : ncclInvalidArgument;
}
#else
static ncclResult_t sum_begin_v(logger log) { return sums_begun ? ncclInvalidUsage : sum_begin(log); }
static ncclResult_t sum_listen(int device, void *to, void **listener) {
  return device < 2 ? make_listener(to, listener) : ncclInvalidArgument;
}
#endif

struct collnet_plugin {
  const char *name;
  void *calls[VERSION >= 11 ? 18 : VERSION >= 9 ? 17 : 16];
};
EXPORT const struct collnet_plugin JOIN(ncclCollNetPlugin_v, VERSION);
const struct collnet_plugin JOIN(ncclCollNetPlugin_v, VERSION) = {
    "Adder",
    {(void *)sum_begin_v, (void *)sum_devices, (void *)describe, (void *)sum_listen, (void *)sum_connect,
     (void *)sum_supports, (void *)sum_reg, NULL, (void *)sum_dereg, (void *)sum_post, (void *)sum_gather,
     (void *)sum_scatter, NULL, (void *)sum_test, (void *)sum_close, (void *)hang_up,
#if VERSION >= 9
     NULL,
#endif
#if VERSION >= 11
     (void *)sum_end
#endif
    }};
