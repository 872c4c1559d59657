/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a link costs between two processes on two cores, compared with what the machine allows: a cache line that goes
 * to and fro, copies, process_vm_readv.  Takes a few seconds.
 *
 *   make build/gcc/bench/link && build/gcc/bench/link [-a]
 *
 * -a adds other geometries of the FIFO.  On a machine with other work, run it under chrt -f 1.
 */
#include <sched.h>
#include <sys/uio.h>
#include "../src/device/host.h"
#include "../src/kernels/reduce.h"
#include "../src/transport/registry.h"
#include "../tests/support/shm_world.h"

enum { WARM = 1000, TURNS = 20000, STREAM = 64 << 20, REPEATS = 7 };

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *v, int n) {
  qsort(v, (size_t)n, sizeof *v, by_value);
  return v[n / 2];
}

/* ---- the raw line ---- */

static double raw_line(world_rank *r) {
  /* A slot of a channel that has no other use. */
  hk_link l;
  bool first = r->env.rank == 0;
  world_open(r, first, first ? HK_LINK_SEND : HK_LINK_RECV, 7, &l);
  _Atomic uint32_t *line = &l.slots[0].seq;
  uint64_t begin = 0;
  for (uint32_t k = 0; k < WARM + TURNS; k++) {
    if (k == WARM) begin = hk_now_ns();
    if (first) {
      atomic_store_explicit(line, 2 * k + 1, memory_order_release);
      while (atomic_load_explicit(line, memory_order_acquire) != 2 * k + 2) hk_cpu_relax();
    } else {
      while (atomic_load_explicit(line, memory_order_acquire) != 2 * k + 1) hk_cpu_relax();
      atomic_store_explicit(line, 2 * k + 2, memory_order_release);
    }
  }
  double ns = (double)(hk_now_ns() - begin) / TURNS / 2;
  world_close(r, &l);
  return ns;
}

/* ---- latency ---- */

static void send_copy(world_rank *r, hk_link *l, const void *data, size_t bytes) {
  await_send(r, l);
  hk_copy(hk_link_send_buffer(l, bytes), data, bytes, 0);
  hk_link_publish(l, (uint32_t)bytes, 0, 0);
}
static void recv_copy(world_rank *r, hk_link *l, void *data) {
  await_recv(r, l);
  hk_copy(data, hk_link_recv_data(l), hk_link_recv_slot(l)->bytes, 0);
  hk_link_release(l);
}

static double ping_pong(world_rank *r, hk_link *out, hk_link *in, size_t bytes) {
  static char data[1 << 20];
  int turns = bytes > 4096 ? TURNS / 10 : TURNS;
  uint64_t begin = 0;
  bool first = r->env.rank == 0;
  for (int k = 0; k < WARM + turns; k++) {
    if (k == WARM) begin = hk_now_ns();
    if (first) send_copy(r, out, data, bytes);
    recv_copy(r, in, data);
    if (!first) send_copy(r, out, data, bytes);
  }
  return (double)(hk_now_ns() - begin) / turns / 2;
}

/* ---- bandwidth ---- */

/* One direction: rank 0 copies in, rank 1 copies out; both ways at once where `duplex`. */
static double stream(world_rank *r, hk_link *out, hk_link *in, char *data, size_t chunk, bool duplex) {
  bool sends = duplex || r->env.rank == 0, receives = duplex || r->env.rank == 1;
  world_barrier(r);
  uint64_t begin = hk_now_ns();
  size_t sent = 0, got = 0;
  while ((sends && sent < STREAM / 2) || (receives && got < STREAM / 2)) {
    if (sends && sent < STREAM / 2 && hk_link_can_send(out, SIZE_MAX)) {
      hk_copy(hk_link_send_buffer(out, chunk), data + sent, chunk, 0);
      hk_link_publish(out, (uint32_t)chunk, 0, 0);
      sent += chunk;
    }
    if (receives && got < STREAM / 2 && hk_link_can_recv(in)) {
      hk_copy(data + STREAM / 2 + got, hk_link_recv_data(in), chunk, HK_MOVE_STREAM);
      hk_link_release(in);
      got += chunk;
    }
    hk_cpu_relax();
  }
  world_barrier(r);
  return (double)STREAM / 2 / (double)(hk_now_ns() - begin);
}

/* The same by reference: the receiver copies once. */
static double stream_ref(world_rank *r, hk_link *out, hk_link *in, char *data, size_t chunk, bool duplex) {
  bool sends = duplex || r->env.rank == 0, receives = duplex || r->env.rank == 1;
  world_barrier(r);
  uint64_t begin = hk_now_ns();
  size_t sent = 0, got = 0;
  while ((sends && sent < STREAM / 2) || (receives && got < STREAM / 2)) {
    if (sends && sent < STREAM / 2 && hk_link_can_send(out, SIZE_MAX)) {
      MUST(hk_link_refer(out, data + sent, chunk, &out->slots[out->done & out->mask].ref));
      hk_link_publish(out, (uint32_t)chunk, 0, HK_SLOT_REF);
      sent += chunk;
    }
    if (receives && got < STREAM / 2 && hk_link_can_recv(in)) {
      hk_copy(data + STREAM / 2 + got, hk_link_recv_data(in), chunk, HK_MOVE_STREAM);
      hk_link_release(in);
      got += chunk;
    }
    hk_cpu_relax();
  }
  world_barrier(r);
  return (double)STREAM / 2 / (double)(hk_now_ns() - begin);
}

/* Reads the other rank's private memory through the kernel: rank 1, or both. */
static double stream_kernel(world_rank *r, char *data, size_t chunk, bool duplex) {
  static char *where[2]; /* addresses go by way of the notes, which have 32 bits */
  int me = r->env.rank;
  uint64_t at = (uintptr_t)data;
  r->world->notes[me] = getpid();
  r->world->notes[2 + 2 * me] = (int)(at >> 32);
  r->world->notes[3 + 2 * me] = (int)at;
  world_barrier(r);
  where[!me] = (char *)(uintptr_t)((uint64_t)(uint32_t)r->world->notes[2 + 2 * !me] << 32 |
                                   (uint32_t)r->world->notes[3 + 2 * !me]);
  world_barrier(r);
  uint64_t begin = hk_now_ns();
  if (duplex || me == 1)
    for (size_t done = 0; done < STREAM / 2; done += chunk) {
      struct iovec here = {data + STREAM / 2 + done, chunk}, there = {where[!me] + done, chunk};
      MUST(process_vm_readv(r->world->notes[!me], &here, 1, &there, 1, 0) == (ssize_t)chunk);
    }
  world_barrier(r);
  return (double)STREAM / 2 / (double)(hk_now_ns() - begin);
}

/* Both cores copy for themselves, without talking. */
static double plain_copy(world_rank *r, char *data, bool both) {
  world_barrier(r);
  uint64_t begin = hk_now_ns();
  if (both || r->env.rank == 1) hk_copy(data + STREAM / 2, data, STREAM / 2, HK_MOVE_STREAM);
  world_barrier(r);
  return (double)STREAM / 2 / (double)(hk_now_ns() - begin);
}

static void say(const world_rank *r, const char *what, size_t bytes, double value, const char *unit) {
  if (r->env.rank == 1) printf("%-44s %9zu B  %8.2f %s\n", what, bytes, value, unit);
  fflush(stdout);
}
#define MEDIAN(out, expression)                                                                                        \
  do {                                                                                                                 \
    double v_[REPEATS];                                                                                                \
    for (int i_ = 0; i_ < REPEATS; i_++) v_[i_] = (expression);                                                        \
    (out) = median(v_, REPEATS);                                                                                       \
  } while (0)

static void measure(world_rank *r) {
  hk_link out, in;
  double v;
  int me = r->env.rank;
  pin(me);
  world_open(r, !me, HK_LINK_SEND, 0, &out);
  world_open(r, !me, HK_LINK_RECV, 0, &in);
  if (r->world->arg == NULL) {
    static const size_t small[] = {8, 32, 48, 64, 256, 1024, 4096, 8192, 16384};
    v = raw_line(r);
    say(r, "raw cache line, one way", 64, v, "ns");
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
      MEDIAN(v, ping_pong(r, &out, &in, small[i]));
      say(r, "link, one way", small[i], v, "ns");
    }
    v = raw_line(r);
    say(r, "raw cache line, one way, again", 64, v, "ns");
  }
  char *data = mmap(NULL, STREAM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *shared;
  madvise(data, STREAM, MADV_HUGEPAGE);
  MUST(hk_host_alloc((void **)&shared, STREAM) == HK_OK);
  memset(data, 1, STREAM);
  memset(shared, 1, STREAM);
  if (r->world->arg == NULL) {
    MEDIAN(v, plain_copy(r, data, false));
    say(r, "copy, one core", STREAM / 2, v, "GB/s");
    MEDIAN(v, plain_copy(r, data, true));
    say(r, "copy, both cores, each", STREAM / 2, v, "GB/s");
    for (int both = 0; both < 2; both++) {
      MEDIAN(v, stream_kernel(r, data, r->env.slot_bytes, both));
      say(r, both ? "process_vm_readv, both ways, each" : "process_vm_readv, one way", r->env.slot_bytes, v, "GB/s");
      MEDIAN(v, stream_kernel(r, data, 1 << 20, both));
      say(r, both ? "process_vm_readv, both ways, each" : "process_vm_readv, one way", 1 << 20, v, "GB/s");
      MEDIAN(v, stream_ref(r, &out, &in, shared, r->env.slot_bytes, both));
      say(r, both ? "link by reference, both ways, each" : "link by reference, one way", r->env.slot_bytes, v, "GB/s");
    }
  }
  char text[64];
  snprintf(text, sizeof text, "link with %u slots, one way", r->env.nslots);
  MEDIAN(v, stream(r, &out, &in, data, r->env.slot_bytes, false));
  say(r, text, r->env.slot_bytes, v, "GB/s");
  snprintf(text, sizeof text, "link with %u slots, both ways, each", r->env.nslots);
  MEDIAN(v, stream(r, &out, &in, data, r->env.slot_bytes, true));
  say(r, text, r->env.slot_bytes, v, "GB/s");
  hk_host_free(shared);
  munmap(data, STREAM);
  world_close(r, &out);
  world_close(r, &in);
}

static void run(size_t slot_bytes, uint32_t nslots, bool only_stream) {
  world *w = world_new(&hk_transport_shm, 2, 2, measure);
  w->slot_bytes = slot_bytes;
  w->nslots = nslots;
  w->arg = only_stream ? w : NULL;
  if (world_run(w)) exit(1);
}

int main(int argc, char **argv) {
  run(128 << 10, 8, false);
  if (argc < 2 || strcmp(argv[1], "-a")) return 0;
  for (size_t kib = 16; kib <= 1024; kib *= 2) /* -a: other geometries too */
    for (uint32_t slots = 2; slots <= 8; slots *= 2)
      if (kib * slots <= 2048 && kib * slots >= 128) run(kib << 10, slots, true);
  return 0;
}
