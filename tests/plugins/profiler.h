/* SPDX-License-Identifier: Apache-2.0 */
/* The example profiler; the file that includes this one defines VERSION, 2 to 7.  It writes what it is called with to
 * the file that HOCKET_TEST_TRACE names, followed by the process's id: "start ID KIND PARENT rank R ...", "state ID
 * NUMBER", "stop ID".  HOCKET_TEST_PROFILER=refuse: init fails; idle: init succeeds, but
 * wants no events and makes no context; fail: startEvent fails; a number: the mask of types. */
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#if VERSION >= 5
typedef uint64_t type_bits;
#else
typedef uint8_t type_bits;
#endif
typedef struct description {
  type_bits type;
  void *parent;
  int rank;
  union {
#if VERSION >= 5
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
      uint64_t tag;
    } coll_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      void *stream;
      bool captured;
      uint64_t tag;
    } p2p_api;
    struct {
      void *stream;
    } launch;
#endif
    struct {
#if VERSION < 4
      const char *name;
      uint64_t comm;
#endif
      uint64_t sequence;
      const char *function;
      const void *in;
      void *out;
      size_t count;
      int root;
      const char *type;
#if VERSION == 2
      size_t traffic;
#endif
      uint8_t channels, warps;
      const char *algorithm, *protocol;
#if VERSION >= 5
      void *group;
#endif
#if VERSION >= 7
      const char *variant;
      bool symmetric;
      uint64_t tag;
#endif
    } coll;
    struct {
#if VERSION < 4
      const char *name;
      uint64_t comm;
#endif
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
    } p2p;
    struct {
      uint8_t channel;
      uint64_t timer;
    } kernel;
    struct {
      int64_t id;
      void *data;
    } net;
#if VERSION >= 6
    struct {
      uint64_t sequence;
      const char *function;
      const void *in;
      void *out;
      size_t count;
      int root;
      const char *type, *sync;
      bool batch_sync;
      uint32_t batch, batches, number;
      void *stream;
#if VERSION >= 7
      uint64_t tag;
#endif
    } copies;
    struct {
      bool complete;
      int ranks;
    } copy_sync;
    struct {
      int operations;
      size_t bytes;
      bool sync;
    } copy_batch;
#endif
#if VERSION >= 7
    struct {
      uint8_t channel, phase;
      const char *name;
      uint64_t timer;
    } kernel_phase;
#endif
  };
} description;
#if VERSION == 7
_Static_assert(sizeof(description) == 136, "as NCCL lays it out");
#elif VERSION >= 5
_Static_assert(sizeof(description) == 112, "as NCCL lays it out");
#endif

typedef struct event {
  long id;
  uint64_t began; /* of a phase */
  bool syncs;     /* it is phase 0 */
  struct event *next;
} event;

static FILE *trace;
static long events;
static event *all; /* an event may be a parent for as long as a communicator lives */
static int users;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ncclResult_t begin(void **context, int *mask) {
  const char *mode = getenv("HOCKET_TEST_PROFILER"), *path = getenv("HOCKET_TEST_TRACE");
  char name[512];
  if (mode && !strcmp(mode, "refuse")) return ncclInternalError;
  if (mode && !strcmp(mode, "idle")) return ncclSuccess;
  pthread_mutex_lock(&lock);
  if (!trace && path) {
    snprintf(name, sizeof name, "%s.%d", path, (int)getpid());
    trace = fopen(name, "a");
  }
  users += trace != NULL;
  pthread_mutex_unlock(&lock);
  *mask = mode && atoi(mode) ? atoi(mode) : VERSION >= 7 ? 0xffff : VERSION == 6 ? 0x7fff : 0xfff;
  *context = &events;
  return trace ? ncclSuccess : ncclSystemError;
}

/* What is usually 0 is written only if it is not. */
static void describe_more(int root, void *stream) {
  if (root) fprintf(trace, " root %d", root);
  if (stream) fprintf(trace, " stream %p", stream);
}

static void describe(const description *d) {
  switch (d->type) {
    case 1: fprintf(trace, "group"); return;
    case 2:
      fprintf(trace, "coll %s sequence %llu count %zu type %s channels %d algorithm %s protocol %s", d->coll.function,
              (unsigned long long)d->coll.sequence, d->coll.count, d->coll.type, d->coll.channels, d->coll.algorithm,
              d->coll.protocol);
      describe_more(d->coll.root, NULL);
#if VERSION >= 7
      fprintf(trace, " tag %llu%s", (unsigned long long)d->coll.tag, d->coll.symmetric ? " symmetric" : "");
#endif
      return;
    case 4:
      fprintf(trace, "p2p %s count %zu type %s peer %d", d->p2p.function, d->p2p.count, d->p2p.type, d->p2p.peer);
      if ((uintptr_t)d->p2p.buffer < 4096) fprintf(trace, " buffer %p", d->p2p.buffer); /* one that a test invented */
      return;
    case 64:
      fprintf(trace, "kernel channel %d%s", d->kernel.channel, VERSION >= 4 && !d->kernel.timer ? " wrong" : "");
      return;
    case 128: fprintf(trace, "net id %lld", (long long)d->net.id); return;
#if VERSION >= 5
    case 256: fprintf(trace, "groupapi depth %d", d->group_api.depth); return;
    case 512:
      fprintf(trace, "collapi %s count %zu type %s", d->coll_api.function, d->coll_api.count, d->coll_api.type);
      describe_more(d->coll_api.root, d->coll_api.stream);
#if VERSION >= 7
      fprintf(trace, " tag %llu", (unsigned long long)d->coll_api.tag);
#endif
      return;
    case 1024:
      fprintf(trace, "p2papi %s count %zu type %s", d->p2p_api.function, d->p2p_api.count, d->p2p_api.type);
      describe_more(0, d->p2p_api.stream);
#if VERSION >= 7
      fprintf(trace, " tag %llu", (unsigned long long)d->p2p_api.tag);
#endif
      return;
    case 2048:
      fprintf(trace, "launch");
      describe_more(0, d->launch.stream);
      return;
#endif
#if VERSION >= 6
    case 4096:
      fprintf(trace, "copies %s sequence %llu count %zu root %d type %s sync %s batch %u in %u number %u stream %p",
              d->copies.function, (unsigned long long)d->copies.sequence, d->copies.count, d->copies.root,
              d->copies.type, d->copies.sync, d->copies.batch, d->copies.batches, d->copies.number, d->copies.stream);
#if VERSION >= 7
      fprintf(trace, " tag %llu", (unsigned long long)d->copies.tag);
#endif
      return;
    case 8192:
      fprintf(trace, "copysync %s ranks %d", d->copy_sync.complete ? "end" : "begin", d->copy_sync.ranks);
      return;
    case 16384: fprintf(trace, "copybatch of %d, %zu bytes", d->copy_batch.operations, d->copy_batch.bytes); return;
#endif
#if VERSION >= 7
    case 32768:
      fprintf(trace, "phase %d %s channel %d%s", d->kernel_phase.phase, d->kernel_phase.name, d->kernel_phase.channel,
              d->kernel_phase.timer ? "" : " wrong");
      return;
#endif
    default: fprintf(trace, "unknown %d", (int)d->type);
  }
}

static ncclResult_t start(void *context, void **out, void *of) {
  const description *d = of;
  const char *mode = getenv("HOCKET_TEST_PROFILER");
  if (context != &events || (mode && !strcmp(mode, "fail"))) return ncclInternalError;
  event *e = malloc(sizeof *e);
  if (!e) return ncclSystemError;
  pthread_mutex_lock(&lock);
  e->id = ++events;
#if VERSION >= 7
  e->began = d->type == 32768 ? d->kernel_phase.timer : 0;
  e->syncs = d->type == 32768 && d->kernel_phase.phase == 0;
#endif
  e->next = all;
  all = e;
  fprintf(trace, "start %ld parent %ld rank %d ", e->id, d->parent ? ((event *)d->parent)->id : 0, d->rank);
  describe(d);
  fputc('\n', trace);
  pthread_mutex_unlock(&lock);
  *out = e;
  return ncclSuccess;
}

static ncclResult_t stop(void *of) {
  fprintf(trace, "stop %ld\n", ((event *)of)->id);
  return ncclSuccess;
}

static ncclResult_t record(void *of, int state, void *arguments) {
  const event *e = of;
  bool wrong = (state == 22 && !*(uint64_t *)arguments) || (state == 31 && *(uint64_t *)arguments <= e->began);
  fprintf(trace, "state %ld %d%s", e->id, state, wrong ? " wrong" : "");
#if VERSION >= 7
  if (e->syncs) fprintf(trace, " synced %llu", (unsigned long long)(*(uint64_t *)arguments - e->began));
#endif
  fputc('\n', trace);
  return ncclSuccess;
}

static ncclResult_t finish(void *context) {
  (void)context;
  pthread_mutex_lock(&lock);
  fprintf(trace, "finalize\n");
  if (--users == 0) {
    fclose(trace);
    trace = NULL;
    for (event *e = all, *next; e; e = next) {
      next = e->next;
      free(e);
    }
    all = NULL;
  }
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

#if VERSION >= 5
static ncclResult_t begin_v(void **context, uint64_t comm, int *mask, const char *name, int hosts, int ranks, int rank,
                            logger log) {
  log(3, 1, __FILE__, __LINE__, "example profiler: %s, %d hosts, rank %d of %d%s", name ? name : "no name", hosts, rank,
      ranks, comm ? "" : ", no id");
  return begin(context, mask);
}
#elif VERSION == 4
static ncclResult_t begin_v(void **context, int *mask, const char *name, uint64_t comm, int hosts, int ranks, int rank,
                            logger log) {
  log(3, 1, __FILE__, __LINE__, "example profiler: %s, %d hosts, rank %d of %d%s", name ? name : "no name", hosts, rank,
      ranks, comm ? "" : ", no id");
  return begin(context, mask);
}
#else
static ncclResult_t begin_v(void **context, int *mask) { return begin(context, mask); }
#endif

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
struct profiler {
  const char *name;
  void *calls[5];
};
__attribute__((visibility("default"))) extern const struct profiler JOIN(ncclProfiler_v, VERSION);
const struct profiler JOIN(ncclProfiler_v, VERSION) = {
    "Example", {(void *)begin_v, (void *)start, (void *)stop, (void *)record, (void *)finish}};
