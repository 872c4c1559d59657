/* SPDX-License-Identifier: Apache-2.0 */
/* Writes down what communicators on emulated GPUs put on streams, and what is in their kernels' parameters: the calls
 * of the device by the thread that begins the trace, in their order.  Kernels, and words that streams wait for, are
 * noted and not run: a scene needs no data.  A golden file has a hash for each step of a scene.  HOCKET_TEST_TRACE=FILE
 * appends the notes themselves to a file: two of them show what a change does. */
#ifndef HK_TESTS_GPU_TRACE_H
#define HK_TESTS_GPU_TRACE_H
#include <pthread.h>
#include "../../src/device/device.h"
#include "../../src/gpu/buffer.h"
#include "../../src/gpu/code.h"
#include "../../src/gpu/order.h"
#include "../../src/gpu/process_group.h"
#include "../../src/kernels/cuda/work.h"
#include "golden.h"
#include "gpu.h"

enum { TRACE_PLACES = 64, TRACE_PLANS = 1024 };
static struct {
  FILE *to, *steps;
  char *text, *list;
  size_t size, list_size;
  pthread_t thread;
  const gpu_ranks *g;
  const hk_device_ops *real;
  hk_device_ops mine;
  hk_device_memory_ops memory;
  hk_device_share_ops share;
  hk_device_stream_ops stream;
  hk_device_order_ops order;
  hk_device_graph_ops graph;
  hk_device_word_ops word;
  hk_device_kernel_ops kernel;
  CUstream reader[GPU_RANKS];
  const void *plans[TRACE_PLANS]; /* whose links and program are noted already */
  struct {
    char name[32];
    uintptr_t at;
    size_t bytes;
  } places[TRACE_PLACES];
  unsigned nplans, nplaces;
} trace;

static inline void trace_place(const char *name, int rank, const void *at, size_t bytes) {
  ck_assert_uint_lt(trace.nplaces, TRACE_PLACES);
  snprintf(trace.places[trace.nplaces].name, sizeof trace.places->name, "%s%d", name, rank);
  trace.places[trace.nplaces].at = (uintptr_t)at;
  trace.places[trace.nplaces++].bytes = bytes;
}
/* "in0+64"; "-": NULL; "?": the library's own. */
static inline const char *trace_name(const void *p) {
  static char text[4][64];
  static unsigned turn;
  char *out = text[turn++ % 4];
  const uintptr_t at = (uintptr_t)p;
  for (unsigned i = 0; i < trace.nplaces; i++)
    if (at >= trace.places[i].at && at < trace.places[i].at + trace.places[i].bytes) {
      snprintf(out, sizeof text[0], "%s+%zu", trace.places[i].name, (size_t)(at - trace.places[i].at));
      return out;
    }
  for (int r = 0; r < trace.g->n; r++)
    for (const hk_gpu_buffer *v = trace.g->comm[r] ? hk_gpu_of(trace.g->comm[r])->buffers->first : NULL; v; v = v->next)
      for (int k = 0; v->theirs && k < trace.g->n; k++)
        if (at >= v->theirs[k] && at < v->theirs[k] + (v->end - v->begin)) {
          snprintf(out, sizeof text[0], "view%d of %d+%zu", r, k, (size_t)(at - v->theirs[k]));
          return out;
        }
  return p ? "?" : "-";
}
static inline const char *trace_queue(hk_queue q) {
  static char text[2][32];
  static unsigned turn;
  char *out = text[turn++ % 2];
  for (int r = 0; r < trace.g->n; r++) {
    if (q && q == (hk_queue)trace.g->stream[r]) return snprintf(out, sizeof text[0], "stream%d", r), out;
    if (trace.g->comm[r] && q == hk_gpu_of(trace.g->comm[r])->queue)
      return snprintf(out, sizeof text[0], "own%d", r), out;
  }
  return q ? "a stream" : "no stream";
}
static inline const char *trace_order(const hk_queue_order *o) {
  static char text[32];
  for (int r = 0; r < trace.g->n; r++) {
    if (!trace.g->comm[r]) continue; /* another process's */
    const hk_gpu *g = hk_gpu_of(trace.g->comm[r]);
    snprintf(text, sizeof text, "%s%d", o == &g->order->plain ? "order" : "captured", r);
    if (o == &g->order->plain || o == &g->order->captured) return text;
    if (o == &g->code->order || o == &g->code->captured) return o == &g->code->order ? "all" : "all captured";
  }
  return "a table";
}

static inline bool trace_on(void) { return trace.to && pthread_equal(pthread_self(), trace.thread); }
#define NOTE(...)                                                                                                      \
  do {                                                                                                                 \
    if (trace_on()) fprintf(trace.to, __VA_ARGS__);                                                                    \
  } while (0)

/* Reads device memory, apart from all streams. */
static inline void trace_read(int device, void *to, const void *from, size_t bytes) {
  CUcontext before = NULL;
  OK(CtxGetCurrent(&before));
  emu_use(device);
  if (!trace.reader[device]) trace.reader[device] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, trace.reader[device]));
  OK(StreamSynchronize(trace.reader[device]));
  OK(CtxSetCurrent(before));
}

/* How far they lie apart in a mapping, or in two, which begin at multiples of a granule; pinned memory: of a page. */
static size_t trace_unit;
static inline size_t trace_apart(const void *a, const void *b) {
  return a ? ((uintptr_t)a - (uintptr_t)b) % trace_unit : 0;
}
static inline void trace_links(int device, const hk_gpu_work *w) {
  const unsigned n = w->nlinks * w->channels;
  hk_gpu_link *l = malloc(n * sizeof *l);
  trace_read(device, l, w->links, n * sizeof *l);
  for (unsigned i = 0; i < n; i++) {
    trace_unit = l[i].proxied ? 4096 : HK_DEVICE_GRANULE;
    NOTE("  %u: %s %u, %u slots of %u, lines of %u, refs %u, proxied %u, multi %u of %u", i, l[i].sends ? "to" : "from",
         l[i].peer, l[i].nslots, l[i].slot_bytes, l[i].wide_bytes, l[i].refs, l[i].proxied, l[i].multi, l[i].others);
    NOTE(", data %zx lines %zx wide %zx own %zx small %zx from the words", trace_apart(l[i].data, l[i].word),
         trace_apart(l[i].lines, l[i].word), trace_apart(l[i].wide, l[i].word), trace_apart(l[i].own, l[i].word),
         trace_apart(l[i].small, l[i].word));
    NOTE(", done at %zx%s\n", trace_apart(l[i].done, l[i].sends ? l[i].head : l[i].word), l[i].head ? "" : ", no head");
  }
  free(l);
}
static inline void trace_programs(int device, const hk_gpu_work *w) {
  const size_t bytes = w->program_bytes * (size_t)w->orders;
  char *image = malloc(bytes), *text = NULL;
  size_t size;
  trace_read(device, image, w->program, bytes);
  FILE *f = open_memstream(&text, &size);
  for (unsigned k = 0; k < w->orders; k++)
    hk_program_dump((const hk_program *)(const void *)(image + k * w->program_bytes), f);
  fclose(f);
  NOTE("  programs %08x: %.*s\n", golden_hash(1, text, size), (int)strcspn(text, "\n"), text);
  free(text);
  free(image);
}

static inline void trace_reducer(const hk_gpu_reducer *r) {
  NOTE(" reducer %u %u %u %u %u %u / %lld", r->dtype, r->op, r->elem_bytes, r->pre, r->post, r->reduces,
       (long long)r->divisor);
  if (r->by_address)
    NOTE(" at %s", trace_name((const void *)(uintptr_t)r->scalar));
  else
    NOTE(" %llx", (unsigned long long)r->scalar);
}
static inline void trace_work(int device, const hk_gpu_work *w) {
  const hk_sizes *s = &w->sizes;
  NOTE(" %s -> %s scratch %llu%s, %llu in blocks of %llu up to %llu by %llu%s,", trace_name(w->in), trace_name(w->out),
       (unsigned long long)w->scratch_bytes, w->scratch ? "" : " none", (unsigned long long)s->total,
       (unsigned long long)s->block_bytes, (unsigned long long)s->longest, (unsigned long long)s->chunk,
       s->table ? " in a table" : "");
  trace_reducer(&w->reducer);
  NOTE(" %s%s%08x %u bytes %u x %u links %u orders %u lanes proto %u%s next %u\n", w->seen_in ? "seen in, " : "",
       w->seen_out ? "seen out, " : "", w->signature, w->program_bytes, w->channels, w->nlinks, w->orders, w->lanes,
       w->proto, w->many ? " many" : "", w->next);
  for (unsigned i = 0; i < trace.nplans; i++)
    if (trace.plans[i] == w->links) return;
  ck_assert_uint_lt(trace.nplans, TRACE_PLANS);
  trace.plans[trace.nplans++] = w->links;
  if (w->channels * w->lanes > 1) trace_programs(device, w);
  trace_links(device, w);
}

static inline void trace_batch(int device, const hk_gpu_batch *b, size_t bytes) {
  for (unsigned i = 0; i < (bytes - offsetof(hk_gpu_batch, work)) / sizeof *b->work; i++) {
    NOTE(i < b->works ? " until %u:" : " then:", i < b->works ? b->end[i] : 0);
    trace_work(device, &b->work[i]);
  }
}
static inline void trace_transfers(int device, const hk_gpu_transfers *t, unsigned blocks) {
  hk_gpu_work w;
  for (unsigned i = 0, n = blocks; i < n; i++) {
    if (t->work)
      trace_read(device, &w, t->work + i, sizeof w);
    else
      w = t->own[i];
    if (w.next >= n) n = w.next + 1;
    NOTE(i < blocks ? " block:" : " then:");
    trace_work(device, &w);
  }
}
static inline void trace_small(const hk_gpu_small_batch *b, unsigned blocks) {
  for (unsigned i = 0; i < blocks; i++) {
    const hk_gpu_small *s = &b->block[i];
    NOTE(" small: %s -> %s", trace_name(s->in), trace_name(s->out));
    trace_reducer(&s->reducer);
    NOTE(" %u bytes %08x %u slots ends %x sources %u first %u\n", s->bytes, s->signature, s->nslots, s->ends,
         s->sources, s->first);
  }
}

/* Of what is noted: in a capture it is done, too. Nothing runs there, and the graph has its node. */
static inline bool trace_passes(hk_device *d, hk_queue q) {
  hk_queue_state s;
  return !trace_on() || (trace.real->stream->state(d, q, &s) == HK_OK && s.capturing);
}

static inline hk_status trace_launch(hk_device *d, const hk_kernel_launch *l, hk_queue q) {
  const hk_gpu_code *k = NULL;
  if (!trace_on()) return trace.real->kernel->launch(d, l, q);
  for (int r = 0; r < trace.g->n; r++)
    if (trace.g->comm[r] && trace.g->device[r] == d->limits.ordinal) k = hk_gpu_of(trace.g->comm[r])->code;
  NOTE("launch on %s: %s %u x %u shared %u cluster %u priority %d %d %d, %zu bytes\n", trace_queue(q),
       l->function == k->batch   ? "batch"
       : l->function == k->small ? "small"
                                 : "transfers",
       l->blocks, l->threads, l->shared_bytes, l->cluster, l->priority, l->remote_domain, l->here, l->param_bytes);
  if (l->function == k->batch) trace_batch(d->limits.ordinal, l->param, l->param_bytes);
  if (l->function == k->small) trace_small(l->param, l->blocks);
  if (l->function == k->transfers) trace_transfers(d->limits.ordinal, l->param, l->blocks);
  return trace_passes(d, q) ? trace.real->kernel->launch(d, l, q) : HK_OK;
}
static inline hk_status trace_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  NOTE("copy %zu bytes to %s from %s on %s\n", bytes, trace_name(to), trace_name(from), trace_queue(q));
  return trace.real->copy(d, to, from, bytes, q);
}
static inline hk_status trace_wait(hk_device *d, hk_queue q) {
  NOTE("wait for %s\n", trace_queue(q));
  return trace.real->wait(d, q);
}
#define TRACE_WORD(name, slot)                                                                                         \
  static inline hk_status trace_##name(hk_device *d, void *at, uint32_t value, hk_queue q) {                           \
    NOTE("%s %s %zx %u on %s\n", #name, trace_name(at), (size_t)((uintptr_t)at % 4096), value, trace_queue(q));        \
    return trace_passes(d, q) ? trace.real->word->slot(d, at, value, q) : HK_OK;                                       \
  }
TRACE_WORD(word_write, write)
TRACE_WORD(word_wait, wait)
TRACE_WORD(word_reach, reach)
#define TRACE_ORDER(name, group, slot)                                                                                 \
  static inline hk_status trace_##name(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s) {         \
    NOTE("%s of %s on %s%s\n", #name, trace_order(o), trace_queue(q), s->capturing ? " captured" : "");                \
    return trace.real->group->slot(d, o, q, s);                                                                        \
  }
TRACE_ORDER(order_begin, order, begin)
TRACE_ORDER(order_end, order, end)
TRACE_ORDER(replay_begin, graph, begin)
TRACE_ORDER(replay_end, graph, end)
static inline hk_status trace_record(hk_device *d, void *event, hk_queue q, const hk_queue_state *s) {
  NOTE("record on %s%s\n", trace_queue(q), s->capturing ? " captured" : "");
  return trace.real->stream->record(d, event, q, s);
}
#define TRACE_ALLOC(name)                                                                                              \
  static inline hk_status trace_##name(hk_device *d, size_t bytes, hk_memory *out) {                                   \
    NOTE("%s %zu\n", #name, bytes);                                                                                    \
    return trace.real->memory->name(d, bytes, out);                                                                    \
  }
TRACE_ALLOC(alloc)
TRACE_ALLOC(alloc_host)
TRACE_ALLOC(alloc_host_late)
static inline hk_status trace_alloc_open(hk_device *d, size_t bytes, size_t zeroed, hk_memory *out) {
  NOTE("alloc_open %zu, zeroed %zu\n", bytes, zeroed);
  return trace.real->memory->alloc_open(d, bytes, zeroed, out);
}
static inline hk_status trace_alloc_shared(hk_device *d, size_t bytes, size_t zeroed, bool by_fd, hk_memory *out) {
  NOTE("alloc_shared %zu, zeroed %zu%s\n", bytes, zeroed, by_fd ? " by descriptor" : "");
  return trace.real->memory->alloc_shared(d, bytes, zeroed, by_fd, out);
}
static inline hk_status trace_pin(hk_device *d, void *host, size_t bytes, hk_memory *out) {
  NOTE("pin %zu\n", bytes);
  return trace.real->memory->pin(d, host, bytes, out);
}
static inline hk_status trace_release(hk_device *d, hk_memory *m) {
  if (m->base) NOTE("release %zu of kind %d%s\n", m->bytes, (int)m->kind, m->parked ? " parked" : "");
  return trace.real->memory->release(d, m);
}
static inline hk_status trace_park(hk_device *d, hk_memory *m) {
  NOTE("park %zu of kind %d\n", m->bytes, (int)m->kind);
  return trace.real->memory->park(d, m);
}
static inline hk_status trace_unpark(hk_device *d, hk_memory *m, const hk_memory_share *s, size_t zeroed, hk_queue q) {
  NOTE("unpark %zu of kind %d%s, zeroed %zu on %s\n", m->bytes, (int)m->kind, s ? " shared" : "", zeroed,
       trace_queue(q));
  return trace.real->memory->unpark(d, m, s, zeroed, q);
}
static inline hk_status trace_open(hk_device *d, const hk_memory_share *s, hk_memory *out) {
  NOTE("open %zu of kind %u\n", (size_t)s->bytes, s->kind);
  return trace.real->share->open(d, s, out);
}
static inline hk_status trace_pointer(hk_device *d, const void *p, hk_pointer *out) {
  NOTE("whose is %s\n", trace_name(p));
  return trace.real->memory->pointer(d, p, out);
}
static inline hk_status trace_graph_keep(hk_device *d, const hk_queue_state *s, void (*done)(void *), void *arg) {
  NOTE("keep for the graph\n");
  return trace.real->graph->keep(d, s, done, arg);
}

/* Of the ranks' communicators, which are open. */
static inline void trace_begin(const gpu_ranks *g) {
  trace.g = g;
  trace.thread = pthread_self();
  trace.real = NULL;
  for (int r = 0; r < g->n && !trace.real; r++)
    if (g->comm[r]) trace.real = hk_gpu_of(g->comm[r])->device->ops;
  trace.mine = *trace.real;
#define TRACE_GROUP(name) trace.name = *trace.real->name, trace.mine.name = &trace.name
  TRACE_GROUP(memory), TRACE_GROUP(share), TRACE_GROUP(stream), TRACE_GROUP(order), TRACE_GROUP(graph);
  TRACE_GROUP(word), TRACE_GROUP(kernel);
#undef TRACE_GROUP
  trace.mine.copy = trace_copy;
  trace.mine.wait = trace_wait;
  trace.stream.record = trace_record;
  trace.share.open = trace_open;
  trace.order.begin = trace_order_begin;
  trace.order.end = trace_order_end;
  trace.graph.begin = trace_replay_begin;
  trace.graph.end = trace_replay_end;
  trace.graph.keep = trace_graph_keep;
  trace.word.write = trace_word_write;
  trace.word.wait = trace_word_wait;
  trace.word.reach = trace_word_reach;
  trace.kernel.launch = trace_launch;
#define TRACE(name) trace.memory.name = trace_##name
  TRACE(alloc), TRACE(alloc_host), TRACE(alloc_host_late), TRACE(alloc_open), TRACE(alloc_shared), TRACE(pointer);
  TRACE(pin), TRACE(release), TRACE(park), TRACE(unpark);
#undef TRACE
  for (int r = 0; r < g->n; r++) {
    if (!g->comm[r]) continue;
    hk_gpu_of(g->comm[r])->device->ops = &trace.mine;
    trace_place("in", r, (const void *)(uintptr_t)g->in[r], g->capacity);
    trace_place("out", r, (const void *)(uintptr_t)g->out[r], g->capacity);
  }
  trace.steps = open_memstream(&trace.list, &trace.list_size);
  trace.to = open_memstream(&trace.text, &trace.size);
}
/* What was noted since the last step. */
static inline void trace_step(const char *name, size_t number) {
  const char *path = getenv("HOCKET_TEST_TRACE");
  FILE *full = path ? fopen(path, "ae") : NULL;
  fclose(trace.to);
  fprintf(trace.steps, "%s %zu: %08x\n", name, number, golden_hash(1, trace.text, trace.size));
  if (full) fprintf(full, "== %s %zu\n%s", name, number, trace.text);
  if (full) fclose(full);
  free(trace.text);
  trace.to = open_memstream(&trace.text, &trace.size);
}
static inline void trace_stop(void) {
  trace_step("the rest", 0);
  fclose(trace.to);
  fclose(trace.steps);
  trace.to = NULL;
  free(trace.text);
  for (int r = 0; r < trace.g->n; r++)
    if (trace.g->comm[r]) hk_gpu_of(trace.g->comm[r])->device->ops = trace.real;
  for (int d = 0; d < GPU_RANKS; d++)
    if (trace.reader[d]) {
      emu_use(d);
      OK(StreamDestroy(trace.reader[d]));
    }
}
/* After the stop: compares the steps with the file's lines that begin with the scene's name. */
static inline void trace_compare(const char *file, const char *scene) {
  golden g = golden_open(file, scene);
  for (char *line = trace.list, *end; (end = strchr(line, '\n')); line = end + 1) {
    *end = 0;
    char *hash = strrchr(line, ':');
    ck_assert_ptr_nonnull(hash);
    *hash = 0;
    golden_word(&g, scene, line, hash + 2, "");
  }
  golden_close(&g);
  free(trace.list);
}
#undef NOTE
#endif
