/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a kernel: the threads of all its blocks are fibers of the caller's thread, visited in turn.  A fiber gives way
 * at barriers and in hk_relax() only.  With CUDAEMU_SEED the order changes from visit to visit. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "emu.h"
#include "fiber.h"

enum {
  STACK = 128 << 10, /* touched pages only cost memory */
  SHARED = 232 << 10,
  BUFFERED = 8, /* stores of a thread that may wait */
  GARBAGE = 0xa5
};
_Static_assert(CUDAEMU_VIEWS == (int)EMU_DEVICES, "as many devices");
typedef enum state { READY, AT_BARRIER, AT_WARP, ENDED } state;

typedef struct warp {
  unsigned live, arrived, turn;
  uint64_t value[2][CUDAEMU_WARP]; /* of this meeting and of the next */
  struct {
    char *at; /* NULL: takes no part */
    void *value;
  } piece[CUDAEMU_WARP]; /* of lines that all write or read now */
  int writes;
} warp;
typedef struct store {
  void *at;
  char value[16];
} store;
typedef struct block block;
typedef struct thread {
  cudaemu_thread self; /* first: what kernels see */
  emu_fiber fiber;
  block *b;
  warp *w;
  size_t shared; /* bytes of the block's variables passed so far */
  unsigned nstores;
  store stores[BUFFERED];
} thread;
struct block {
  unsigned live, arrived;
  int any, result; /* of the barrier */
  thread *threads;
  warp *warps;
  unsigned char *state;
  char *shared;
  size_t filled;    /* bytes of `shared` that hold garbage or variables */
  ptx_visit of_ptx; /* where the kernel is PTX: the others are not in use */
};
typedef struct runner {
  ptx_grid *ptx; /* of a kernel in PTX, which has no fibers */
  emu_fiber home;
  const emu_grid *grid;
  block *blocks;
  uint32_t random;
  void *memory;
  size_t bytes;
  int device;
  unsigned admitted; /* blocks that run, or have run */
  unsigned steps, waits;
  struct runner *next; /* that waits for room on the device */
} runner;

static _Thread_local runner *running;
static _Thread_local thread *current;

uint64_t emu_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t random_next(runner *r) { /* xorshift */
  r->random ^= r->random << 13;
  r->random ^= r->random >> 17;
  return r->random ^= r->random << 5;
}

static void give_way(thread *t, state s) {
  t->b->state[t->self.thread] = (unsigned char)s;
  emu_fiber_switch(&t->fiber, &running->home, s == ENDED);
}

/* ---- what kernels call ---- */

static const cudaemu_thread *self(void) { return &current->self; }

static void *shared(size_t bytes, size_t align) {
  thread *t = current;
  block *b = t->b;
  size_t at = (t->shared + align - 1) / align * align;
  t->shared = at + bytes;
  if (t->shared > SHARED) {
    fprintf(stderr, "cudaemu: kernel %s wants %zu bytes of shared memory, more than %d\n", running->grid->name,
            t->shared, SHARED);
    abort();
  }
  if (t->shared > b->filled) {
    memset(b->shared + b->filled, GARBAGE, t->shared - b->filled);
    b->filled = t->shared;
  }
  return b->shared + at;
}

static void flush_one(thread *t, unsigned i) {
  memcpy(t->stores[i].at, t->stores[i].value, 16);
  memmove(&t->stores[i], &t->stores[i + 1], sizeof *t->stores * (--t->nstores - i));
}
static void fence(void) {
  while (current->nstores) flush_one(current, 0);
}
/* Overlapping stores keep their order, others leave the buffer in any. */
static void flush_over(thread *t, const void *p) {
  for (unsigned i = 0; i < t->nstores;)
    if ((uintptr_t)t->stores[i].at - (uintptr_t)p + 15 < 31)
      flush_one(t, i);
    else
      i++;
}
static void store16(void *p, const void *value) {
  thread *t = current;
  flush_over(t, p);
  if (t->nstores == BUFFERED) flush_one(t, random_next(running) % BUFFERED);
  t->stores[t->nstores].at = p;
  memcpy(t->stores[t->nstores++].value, value, 16);
}
static void load16(void *value, const void *p) {
  flush_over(current, p);
  memcpy(value, p, 16);
}

static void open_barrier(block *b) {
  b->result = b->any;
  b->any = 0;
  b->arrived = 0;
  for (unsigned i = 0; i < current->self.threads; i++)
    if (b->state[i] == AT_BARRIER) b->state[i] = READY;
}
static int barrier(int x) {
  thread *t = current;
  block *b = t->b;
  fence();
  b->any |= x;
  if (++b->arrived == b->live)
    open_barrier(b);
  else
    give_way(t, AT_BARRIER);
  return b->result; /* no thread passes the next barrier before this thread gets there */
}

static void open_warp(block *b, warp *w) {
  unsigned first = (unsigned)(w - b->warps) * CUDAEMU_WARP;
  w->arrived = 0;
  w->turn ^= 1;
  memset(w->value[w->turn], 0, sizeof w->value[0]);
  for (unsigned i = first; i < first + CUDAEMU_WARP && i < current->self.threads; i++)
    if (b->state[i] == AT_WARP) b->state[i] = READY;
}
static void meet_warp(uint64_t mine, uint64_t all[CUDAEMU_WARP]) {
  thread *t = current;
  warp *w = t->w;
  unsigned turn = w->turn;
  fence();
  w->value[turn][t->self.thread % CUDAEMU_WARP] = mine;
  if (++w->arrived == w->live)
    open_warp(t->b, w);
  else
    give_way(t, AT_WARP);
  memcpy(all, w->value[turn], sizeof w->value[0]);
}

/* One line of eight pieces.  The flag is its last word: a reader elsewhere that looks at that first, and sees a new
 * one, then sees all of the line new. */
static void move_line(warp *w, unsigned first) {
  char *line = w->piece[first].at;
  bool whole = ((uintptr_t)line & 127) == 0;
  for (unsigned i = 0; i < 8; i++) whole = whole && w->piece[first + i].at == (line ? line + (ptrdiff_t)16 * i : NULL);
  if (!whole) {
    fprintf(stderr,
            "cudaemu: kernel %s: eight threads' pieces at %p are not one line of 128 bytes: nothing keeps it whole\n",
            running->grid->name, (void *)line);
    abort();
  }
  if (!line) return;
  uint64_t *last = (uint64_t *)(void *)(line + 120), word;
  char bytes[128];
  if (w->writes) {
    for (unsigned i = 0; i < 8; i++) memcpy(bytes + (size_t)16 * i, w->piece[first + i].value, 16);
    memcpy(line, bytes, 120);
    memcpy(&word, bytes + 120, 8);
    __atomic_store_n(last, word, __ATOMIC_RELEASE); /* release: after the line's data, for the acquire below */
  } else {
    word = __atomic_load_n(last, __ATOMIC_ACQUIRE);
    memcpy(bytes, line, 120);
    memcpy(bytes + 120, &word, 8);
    for (unsigned i = 0; i < 8; i++) memcpy(w->piece[first + i].value, bytes + (size_t)16 * i, 16);
  }
}
static void line(void *at, void *value, int on, int write) {
  thread *t = current;
  warp *w = t->w;
  unsigned lane = t->self.thread % CUDAEMU_WARP;
  if (w->arrived && w->writes != write) {
    fprintf(stderr, "cudaemu: kernel %s: some threads of a warp write lines while others read\n", running->grid->name);
    abort();
  }
  w->writes = write;
  w->piece[lane].at = on ? at : NULL;
  w->piece[lane].value = value;
  if (++w->arrived < w->live) {
    give_way(t, AT_WARP);
    return;
  }
  for (unsigned i = 0; i < CUDAEMU_WARP; i += 8) move_line(w, i);
  memset(w->piece, 0, sizeof w->piece);
  open_warp(t->b, w);
}

static unsigned views(const void *at, size_t bytes, char *places[CUDAEMU_VIEWS]) {
  unsigned n = emu_multicast_views(at, bytes, places);
  if (n) return n;
  fprintf(stderr, "cudaemu: kernel %s: %p is no multicast address with memory on all its devices\n",
          running->grid->name, at);
  abort();
}

static void relax(void) { give_way(current, READY); }

static cudaemu_driver_calls calls = {
    CUDAEMU_KERNEL_ABI, 0, self, shared, barrier, meet_warp, relax, fence, store16, load16, emu_now_ns, line, views};
cudaemu_driver_calls *emu_kernel_table(void) {
  calls.weak = emu.weak;
  return &calls;
}

/* ---- fibers ---- */

static void run_thread(void *arg) {
  thread *t = arg;
  running->grid->entry(running->grid->params);
  fence();
  t->w->live--;
  t->b->live--;
  /* Those who wait at a barrier no longer wait for this thread. */
  if (t->b->live && t->b->arrived == t->b->live) open_barrier(t->b);
  if (t->w->live && t->w->arrived == t->w->live) open_warp(t->b, t->w);
  give_way(t, ENDED);
}

/* Memory of past launches, for the next one: the pages are there already. */
static struct cached {
  void *memory;
  size_t bytes;
} cache[64];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
void *emu_take_pages(size_t *bytes) {
  void *found = NULL;
  pthread_mutex_lock(&cache_lock);
  for (int i = 0; i < 64 && !found; i++)
    if (cache[i].memory && cache[i].bytes >= *bytes && cache[i].bytes <= 2 * *bytes) {
      found = cache[i].memory;
      *bytes = cache[i].bytes;
      cache[i].memory = NULL;
    }
  pthread_mutex_unlock(&cache_lock);
  if (found) return found;
  found = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}
void emu_give_pages(void *memory, size_t bytes) {
  pthread_mutex_lock(&cache_lock);
  for (int i = 0; i < 64 && memory; i++)
    if (!cache[i].memory) {
      cache[i] = (struct cached){memory, bytes};
      memory = NULL;
    }
  pthread_mutex_unlock(&cache_lock);
  if (memory) munmap(memory, bytes);
}

static void make_block(runner *r, unsigned index, char *stacks) {
  block *b = &r->blocks[index];
  unsigned n = r->grid->threads;
  b->live = n;
  for (unsigned i = 0; i < n; i++) {
    thread *t = &b->threads[i];
    t->self = (cudaemu_thread){i, n, index, r->grid->blocks};
    t->b = b;
    t->w = &b->warps[i / CUDAEMU_WARP];
    t->w->live++;
    t->shared = (r->grid->dynamic_shared + 127) & ~(size_t)127;
    /* Tops of different stacks fall into different lines of the cache. */
    emu_fiber_make(&t->fiber, stacks + (size_t)i * STACK, STACK - (i + index) % 24 * 320, run_thread, t);
  }
}

static bool make_ptx(runner *r) {
  const emu_grid *g = r->grid;
  ptx_launch l = g->launch;
  l.params = g->params;
  l.device = r->device;
  l.sms = (unsigned)emu.sms;
  l.seed = emu.seed;
  l.weak = emu.weak;
  l.aliases = emu.aliases;
  l.apart = emu.apart;
  r->ptx = ptx_grid_new(&l);
  r->blocks = r->ptx ? calloc(g->blocks, sizeof *r->blocks) : NULL;
  for (unsigned i = 0; r->blocks && i < g->blocks; i++) r->blocks[i].live = g->threads;
  return r->blocks != NULL;
}
static bool make_blocks(runner *r) {
  if (r->grid->launch.kernel) return make_ptx(r);
  unsigned n = r->grid->threads, nwarps = (n + CUDAEMU_WARP - 1) / CUDAEMU_WARP;
  r->bytes = (size_t)r->grid->blocks * (SHARED + (size_t)n * STACK);
  r->memory = emu_take_pages(&r->bytes);
  r->blocks = calloc(r->grid->blocks, sizeof *r->blocks);
  if (!r->memory || !r->blocks) return false;
  char *memory = r->memory;
  for (unsigned i = 0; i < r->grid->blocks; i++) {
    block *b = &r->blocks[i];
    b->threads = calloc(n, sizeof *b->threads);
    b->warps = calloc(nwarps, sizeof *b->warps);
    b->state = calloc(n, 1);
    if (!b->threads || !b->warps || !b->state) return false;
    b->shared = memory;
    make_block(r, i, memory + SHARED);
    memory += SHARED + (size_t)n * STACK;
  }
  return true;
}
static void drop_blocks(runner *r) {
  if (r->ptx) ptx_grid_drop(r->ptx);
  for (unsigned i = 0; r->blocks && i < r->grid->blocks; i++) {
    free(r->blocks[i].threads);
    free(r->blocks[i].warps);
    free(r->blocks[i].state);
  }
  free(r->blocks);
  if (r->memory) emu_give_pages(r->memory, r->bytes);
}

/* ---- the visits ---- */

typedef struct seen {
  bool ready, progress, failed;
} seen;

static void visit_ptx(runner *r, block *b, seen *s) {
  ptx_visit *v = &b->of_ptx;
  ptx_grid_visit(r->ptx, (unsigned)(b - r->blocks), v);
  b->live = v->live;
  s->ready |= v->ready;
  s->progress |= v->progress;
  s->failed |= v->failed;
}
static void visit_block(runner *r, block *b, seen *s) {
  if (r->ptx) {
    visit_ptx(r, b, s);
    return;
  }
  unsigned n = r->grid->threads, first = emu.seed ? random_next(r) % n : 0;
  bool down = emu.seed && (random_next(r) & 1);
  for (unsigned k = 0; k < n && b->live; k++) {
    unsigned i = (first + (down ? n - k : k)) % n;
    if (b->state[i] != READY) continue;
    s->ready = true;
    current = &b->threads[i];
    emu_fiber_switch(&r->home, &current->fiber, 0);
    if (b->state[i] != READY) s->progress = true;
  }
}

static void report_stuck(const runner *r, const char *what) {
  fprintf(stderr, "cudaemu: kernel %s (%u blocks of %u threads) %s\n", r->grid->name, r->grid->blocks, r->grid->threads,
          what);
  for (unsigned i = 0; i < r->grid->blocks; i++) {
    unsigned count[4] = {0};
    const block *b = &r->blocks[i];
    for (unsigned k = 0; k < r->grid->threads && !r->ptx; k++) count[b->state[k]]++;
    if (r->ptx) {
      count[AT_BARRIER] = b->of_ptx.at_barrier;
      count[AT_WARP] = b->of_ptx.at_warp;
      count[ENDED] = r->grid->threads - b->live;
      count[READY] = b->live - count[AT_BARRIER] - count[AT_WARP];
    }
    fprintf(stderr, "cudaemu:   block %u: %u threads run, %u at the block's barrier, %u at a warp's, %u ended\n", i,
            count[READY], count[AT_BARRIER], count[AT_WARP], count[ENDED]);
  }
  if (r->ptx) ptx_grid_describe(r->ptx);
}

/* Nothing but waiting: first the core, then a little time is left to others. */
static void idle(unsigned passes) {
  if (passes < 16) {
    sched_yield();
  } else {
    struct timespec t = {0, passes < 64 ? 20000 : 100000};
    nanosleep(&t, NULL);
  }
}

/* ---- residency (CUDAEMU_RESIDENT) ---- A device has room for so many threads.  Kernels take it in the order in which
 * they begin, each for all of its blocks before the next one gets any, and a block gives its room back when it ends. */
static struct {
  unsigned used; /* threads */
  runner *first, *last;
} devices[EMU_DEVICES];
static pthread_mutex_t room_lock = PTHREAD_MUTEX_INITIALIZER;

/* As many blocks of a multiprocessor as cuOccupancyMaxActiveBlocksPerMultiprocessor says. */
static unsigned room_of(const emu_grid *g) {
  unsigned fit = EMU_SM_THREADS / g->threads;
  return EMU_SM_THREADS / (fit ? fit : 1);
}
static void queue_up(runner *r) {
  r->admitted = emu.resident ? 0 : r->grid->blocks;
  if (!emu.resident) return;
  pthread_mutex_lock(&room_lock);
  if (devices[r->device].first)
    devices[r->device].last->next = r;
  else
    devices[r->device].first = r;
  devices[r->device].last = r;
  pthread_mutex_unlock(&room_lock);
}
static void admit(runner *r) {
  const unsigned all = (unsigned)emu.sms * EMU_SM_THREADS, each = room_of(r->grid);
  if (r->admitted == r->grid->blocks) return;
  pthread_mutex_lock(&room_lock);
  while (devices[r->device].first == r && devices[r->device].used + each <= all) {
    devices[r->device].used += each;
    if (++r->admitted == r->grid->blocks) devices[r->device].first = r->next;
  }
  pthread_mutex_unlock(&room_lock);
}
static void give_room(runner *r, unsigned blocks) {
  if (!emu.resident || !blocks) return;
  pthread_mutex_lock(&room_lock);
  devices[r->device].used -= blocks * room_of(r->grid);
  pthread_mutex_unlock(&room_lock);
}
/* A kernel that failed. */
static void leave_room(runner *r) {
  unsigned live = 0;
  for (unsigned i = 0; r->blocks && i < r->admitted; i++) live += r->blocks[i].live > 0;
  give_room(r, live);
  if (!emu.resident || r->admitted == r->grid->blocks) return;
  pthread_mutex_lock(&room_lock);
  runner **at = &devices[r->device].first, *before = NULL;
  for (; *at != r; at = &(*at)->next) before = *at;
  *at = r->next;
  if (devices[r->device].last == r) devices[r->device].last = before;
  pthread_mutex_unlock(&room_lock);
}

/* ---- time slices (CUDAEMU_SLICE_US) ---- Of the processes that share a device one at a time runs its kernels, as on
 * a GPU without MPS.  They take turns by the lock of a byte of a file. */
static struct {
  pthread_mutex_t lock;
  unsigned kernels;
  uint64_t begin_ns;
} slices[EMU_DEVICES];
static int slice_file = -1; /* open for writing alone, as the log: tests look at what a process keeps open */

static void slice_lock(int device, short type) {
  struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = device, .l_len = 1};
  while (fcntl(slice_file, F_OFD_SETLKW, &l) < 0 && errno == EINTR) {}
}
static void slice_enter(int device) {
  char path[256];
  if (!emu.slice_us) return;
  pthread_mutex_lock(&room_lock);
  if (slice_file < 0) {
    const char *named = getenv("CUDAEMU_SLICE_FILE");
    snprintf(path, sizeof path, "/tmp/cudaemu-slices-%u", (unsigned)getuid());
    slice_file = open(named ? named : path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (slice_file < 0) abort();
  }
  pthread_mutex_unlock(&room_lock);
  pthread_mutex_lock(&slices[device].lock);
  if (slices[device].kernels++ == 0) {
    slice_lock(device, F_WRLCK);
    slices[device].begin_ns = emu_now_ns();
  }
  pthread_mutex_unlock(&slices[device].lock);
}
static void slice_leave(int device) {
  if (!emu.slice_us) return;
  pthread_mutex_lock(&slices[device].lock);
  if (--slices[device].kernels == 0) slice_lock(device, F_UNLCK);
  pthread_mutex_unlock(&slices[device].lock);
}
/* At the end of the slice the process's other kernels stop here, too, until it is its turn again. */
static void slice_turn(int device) {
  const uint64_t slice_ns = (uint64_t)emu.slice_us * 1000;
  const struct timespec others = {0, 50000}; /* else this process could take the lock again before one that waits */
  if (!emu.slice_us) return;
  pthread_mutex_lock(&slices[device].lock);
  if (emu_now_ns() - slices[device].begin_ns > slice_ns) {
    slice_lock(device, F_UNLCK);
    nanosleep(&others, NULL);
    slice_lock(device, F_WRLCK);
    slices[device].begin_ns = emu_now_ns();
  }
  pthread_mutex_unlock(&slices[device].lock);
}

/* So many visits without a step of any kernel of the process (CUDAEMU_PATIENCE). */
static bool waits_for_nothing(runner *r, bool progress) {
  static unsigned steps;
  if (progress) __atomic_add_fetch(&steps, 1, __ATOMIC_RELAXED); /* relaxed: a number, no more */
  const unsigned now = __atomic_load_n(&steps, __ATOMIC_RELAXED);
  r->waits = now != r->steps ? 0 : r->waits + 1;
  r->steps = now;
  return r->waits > emu.patience;
}

/* How often kernels have let each of their threads run as far as it could, so far, all kernels together: of one that
 * waits, so often it has looked. */
EXPORT unsigned long cudaemu_passes(void);
static unsigned long all_passes;
unsigned long cudaemu_passes(void) {
  return __atomic_load_n(&all_passes, __ATOMIC_RELAXED); /* relaxed: a number, no more */
}

bool emu_grid_run(const emu_grid *g, int device) {
  static unsigned launches;
  runner r = {.grid = g, .device = device};
  r.random = (emu.seed + 1) * 2654435761u ^ (__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) * 40503u) ^ 1u << 31;
  bool ok = make_blocks(&r), reported = false;
  unsigned idles = 0;
  uint64_t begin = emu_now_ns();
  running = &r;
  slice_enter(device);
  queue_up(&r);
  if (!ok && !g->launch.kernel)
    fprintf(stderr, "cudaemu: no memory for %u blocks of %u threads\n", g->blocks, g->threads);
  while (ok) {
    seen s = {false, false, false};
    unsigned live = 0, here = 0, first = emu.seed ? random_next(&r) % g->blocks : 0;
    __atomic_add_fetch(&all_passes, 1, __ATOMIC_RELAXED); /* relaxed: likewise */
    slice_turn(device);
    admit(&r);
    for (unsigned k = 0; k < g->blocks; k++) {
      const unsigned i = (first + k) % g->blocks;
      block *b = &r.blocks[i];
      if (b->live && i < r.admitted) {
        visit_block(&r, b, &s);
        here += b->live;
        if (!b->live) give_room(&r, 1);
      }
      live += b->live;
    }
    if (s.failed) ok = false;
    if (!live || !ok) break;
    if (here && !s.ready) {
      report_stuck(&r, "is stuck: every thread waits at a barrier that some do not reach");
      ok = false;
    }
    idles = s.progress ? 0 : idles + 1;
    if (emu.patience && waits_for_nothing(&r, s.progress)) {
      report_stuck(&r, "waits, and no other kernel does anything");
      ok = false;
    }
    if (idles) idle(idles);
    if (emu.watchdog && !reported && idles && emu_now_ns() - begin > emu.watchdog * 1000000000ull) {
      report_stuck(&r, "still runs");
      reported = true;
    }
  }
  running = NULL;
  current = NULL;
  leave_room(&r);
  slice_leave(device);
  drop_blocks(&r);
  return ok;
}
