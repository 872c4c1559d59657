/* SPDX-License-Identifier: Apache-2.0 */
/* How fast one core moves and reduces, compared with memcpy: gigabytes of result a second, by where the operands
 * lie together.  A reduction of n sources reads n times that.
 *
 *   kernels [-l level] [-t type] [-a]      -a: every type with every operator (default: sum of every type, all of
 *   float)
 */
#include "../src/kernels/host/kernels.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "../src/kernels/reduce.h"

enum { MAX_SRC = 8, PLACES = 4 };
static char *area; /* all operands, one after another */
static size_t area_bytes;

/* Working sets: half of L2, four times L2 (a core's share of L3 is seldom less), beyond L3; and the last one again with
 * streaming stores. */
static const char *const place_names[PLACES] = {"L2", "L3", "DRAM", "DRAM stream"};
static size_t place_bytes[PLACES];

/* The thread's own time: what others run on the core does not count, though what they do to caches and memory does. */
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct job {
  const hk_reducer *r; /* NULL: memcpy */
  unsigned nsrc, ndst;
  int fresh;
  bool in_place; /* the destination is the first source */
  unsigned flags;
} job;

/* GB/s of result for operands that take `total` bytes together; the best of several batches. */
static double measure(const job *j, size_t total) {
  unsigned operands = j->nsrc + j->ndst - j->in_place;
  size_t bytes = total / operands & ~(size_t)4095;
  const void *src[MAX_SRC];
  void *dst[MAX_SRC];
  char *p = area;
  for (unsigned i = 0; i < j->nsrc; i++, p += bytes) src[i] = p;
  for (unsigned i = 0; i < j->ndst; i++) {
    dst[i] = j->in_place && i == 0 ? area : p;
    if (dst[i] == p) p += bytes;
  }
  unsigned repeats = (unsigned)(4e6 / (double)bytes) + 1;
  double best = 0, start = now();
  for (int batch = 0; batch < 3 || (batch < 20 && now() - start < 0.02); batch++) {
    double t = now();
    for (unsigned k = 0; k < repeats; k++) {
      if (j->r)
        hk_move(j->r, dst, j->ndst, src, j->nsrc, j->fresh, bytes, j->flags);
      else if (j->flags)
        hk_copy(dst[0], src[0], bytes, j->flags);
      else
        memcpy(dst[0], src[0], bytes);
    }
    double rate = 1e-9 * (double)bytes * repeats / (now() - t);
    if (rate > best) best = rate;
  }
  return best;
}

static void line(const char *name, job j) {
  printf("%-34s", name);
  for (int p = 0; p < PLACES; p++) {
    j.flags = p == PLACES - 1 ? HK_MOVE_STREAM | HK_MOVE_AHEAD | (j.flags & HK_MOVE_FINAL) : j.flags;
    printf(" %11.2f", measure(&j, place_bytes[p]));
  }
  printf("\n");
  fflush(stdout);
}

/* Small moves: nanoseconds a call. */
static void small(void) {
  static _Alignas(64) char a[256], b[256], c[256];
  hk_reducer r;
  if (hk_reducer_init(&r, HK_F32, HK_SUM, 2, NULL)) return;
  printf("\nnanoseconds a call, float sum of 2 (copy)\n");
  for (size_t bytes = 4; bytes <= 128; bytes = bytes == 32 ? 48 : bytes == 48 ? 64 : bytes * 2) {
    const void *src[2] = {a, b};
    void *dst[1] = {c};
    double best[2] = {1e9, 1e9};
    for (int batch = 0; batch < 20; batch++)
      for (unsigned k = 0; k < 2; k++) {
        double t = now();
        for (int i = 0; i < 20000; i++) {
          hk_move(&r, dst, 1, src, 2 - k, -1, bytes, 0);
          __asm__ volatile("" ::: "memory");
        }
        t = (now() - t) / 20000 * 1e9;
        if (t < best[k]) best[k] = t;
      }
    printf("%5zu bytes %6.1f (%.1f)\n", bytes, best[0], best[1]);
  }
}

static void set_places(void) {
  long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (l2 <= 0) l2 = 1 << 20;
  if (l3 <= 0) l3 = 32 << 20;
  place_bytes[0] = (size_t)l2 / 2;
  place_bytes[1] = 4 * (size_t)l2 < (size_t)l3 ? 4 * (size_t)l2 : (size_t)l3 / 2;
  place_bytes[2] = 2 * (size_t)l3 > (256u << 20) ? 2 * (size_t)l3 : 256u << 20;
  place_bytes[3] = place_bytes[2];
  area_bytes = place_bytes[2];
  area = mmap(NULL, area_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  memset(area, 1, area_bytes); /* any bits: no operator's speed depends on them, subnormals aside */
}

static void lines_of(hk_dtype t, hk_redop op) {
  static const unsigned nsrcs[] = {2, 4, 8};
  uint64_t one = 0x0101010101010101u;
  hk_reducer r;
  if (hk_reducer_init(&r, t, op, 3, &one)) return;
  for (size_t n = 0; n < 3; n++) {
    char name[64];
    snprintf(name, sizeof name, "%s %s of %u", hk_dtype_name(t), hk_redop_name(op), nsrcs[n]);
    line(name, (job){&r, nsrcs[n], 1, 1, false, HK_MOVE_FINAL});
  }
}

int main(int argc, char **argv) {
  const char *type = NULL;
  bool all = false;
  for (int opt; (opt = getopt(argc, argv, "l:t:a")) != -1;) {
    if (opt == 'l' && !hk_simd_select(optarg)) {
      fprintf(stderr, "kernels: no vector level %s here\n", optarg);
      return 2;
    }
    if (opt == 't') type = optarg;
    if (opt == 'a') all = true;
    if (opt == '?') return 2;
  }
  set_places();
  printf("level %s; GB/s of result; operands together: %zu, %zu and %zu KiB\n%-34s", hk_simd_name(),
         place_bytes[0] >> 10, place_bytes[1] >> 10, place_bytes[2] >> 10, "");
  for (int p = 0; p < PLACES; p++) printf(" %11s", place_names[p]);
  printf("\n");
  hk_reducer f;
  if (hk_reducer_init(&f, HK_F32, HK_SUM, 2, NULL)) return 1;
  line("memcpy (stream: hk_copy)", (job){NULL, 1, 1, -1, false, 0});
  line("copy to 2", (job){&f, 1, 2, -1, false, 0});
  line("float sum of 2 in place", (job){&f, 2, 1, -1, true, 0});
  line("float sum of 2 to 2", (job){&f, 2, 2, -1, false, 0});
  for (int t = 0; t < HK_DTYPE_COUNT; t++) {
    if (type && strcmp(type, hk_dtype_name((hk_dtype)t)) != 0) continue;
    for (int op = 0; op < HK_REDOP_COUNT; op++)
      if (all || type || op == HK_SUM || t == HK_F32) lines_of((hk_dtype)t, (hk_redop)op);
  }
  small();
  return 0;
}
