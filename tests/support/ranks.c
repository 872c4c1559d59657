/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../src/core/comm.h"
#include "../../src/transport/status_page.h"

int rank_check_at(ncclResult_t result, const char *call, const char *file, int line) {
  if (result == ncclSuccess) return 0;
  fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, ncclGetErrorString(result), ncclGetLastError(NULL));
  return 1;
}

int rank_is_at(int fine, const char *what, const char *file, int line) {
  if (!fine) fprintf(stderr, "%s:%d: not so: %s (%s)\n", file, line, what, ncclGetLastError(NULL));
  return !fine;
}

void ranks_reach_by(const char *how) {
  if (strcmp(how, "direct"))
    setenv("NCCL_P2P_DISABLE", "1", 1);
  else
    setenv("HOCKET_CMA", "1", 1); /* whether or not that is faster here */
  if (!strcmp(how, "net")) setenv("NCCL_SHM_DISABLE", "1", 1);
}

int rank_works(ncclComm_t c, int n) {
  float x = 1;
  const int faults = RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  return faults ? faults : RANK_IS(x == (float)n);
}

int ranks_work(const ncclComm_t *c, int n) {
  float *x = calloc((size_t)n, sizeof *x);
  int faults = RANK_CHECK(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    x[r] = 1;
    faults += RANK_CHECK(ncclAllReduce(&x[r], &x[r], 1, ncclFloat32, ncclSum, c[r], NULL));
  }
  faults += RANK_CHECK(ncclGroupEnd());
  for (int r = 0; r < n && !faults; r++) faults += RANK_IS(x[r] == (float)n);
  free(x);
  return faults;
}

int rank_left_work(ncclComm_t c) {
  const hk_health *h = &c->health;
  const hk_comm_order *o = &c->order;
  if (atomic_load(&h->failure) || atomic_load(&h->progress) != HK_OK) return 0; /* what is left does not matter */
  if (atomic_load(&o->issued) != atomic_load(&o->served)) return 0;             /* a stream runs */
  const struct {
    const char *what;
    uint64_t is, should_be;
  } all[] = {{"calls", (uint64_t)atomic_load(&h->inside), 0},
             {"a thread in a call", atomic_load(&h->calling), 0},
             {"calls that wait in groups", (uint64_t)atomic_load(&h->queued), 0},
             {"the call under way", (uintptr_t)o->current, 0},
             {"its execution", (uintptr_t)o->exec, 0},
             {"children that are made", o->children, atomic_load(&o->children_over)},
             {"the operation that is over", atomic_load(&o->page->over), o->sequence},
             {"the transfer under way", atomic_load(&o->page->transfer) & 7, 0}};
  int faults = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i].is == all[i].should_be) continue;
    fprintf(stderr, "rank %d of %d is at its end, but %s: %llu, not %llu\n", c->rank, c->nranks, all[i].what,
            (unsigned long long)all[i].is, (unsigned long long)all[i].should_be);
    faults++;
  }
  return faults;
}

typedef struct rank_thread {
  pthread_t thread;
  ncclUniqueId id;
  int rank, nranks, faults;
  rank_body body;
  void *arg;
} rank_thread;

static void *run_rank(void *p) {
  rank_thread *t = p;
  ncclComm_t comm = NULL;
  t->faults = RANK_CHECK(ncclCommInitRank(&comm, t->nranks, t->id, t->rank));
  if (t->faults) return NULL;
  t->faults = t->body(comm, t->rank, t->nranks, t->arg);
  t->faults += rank_left_work(comm);
  t->faults += RANK_CHECK(ncclCommDestroy(comm));
  return NULL;
}

/* Ranks first .. first + n - 1 of total, as threads. */
static int run_threads(const ncclUniqueId *id, int first, int n, int total, rank_body body, void *arg) {
  rank_thread *t = calloc((size_t)n, sizeof *t);
  int faults = 0;
  for (int i = 0; i < n; i++) {
    t[i] = (rank_thread){.id = *id, .rank = first + i, .nranks = total, .body = body, .arg = arg};
    if (pthread_create(&t[i].thread, NULL, run_rank, &t[i])) {
      perror("pthread_create");
      abort();
    }
  }
  for (int i = 0; i < n; i++) {
    pthread_join(t[i].thread, NULL);
    faults += t[i].faults;
  }
  free(t);
  return faults;
}

int ranks_as_threads(int n, rank_body body, void *arg) {
  ncclUniqueId id;
  if (RANK_CHECK(ncclGetUniqueId(&id))) return 1;
  return run_threads(&id, 0, n, n, body, arg);
}

int ranks_share_id(const int ends[2], int p, int n, ncclUniqueId *id) {
  if (p != 0) return read(ends[0], id, sizeof *id) != (ssize_t)sizeof *id;
  int faults = RANK_CHECK(ncclGetUniqueId(id));
  for (int i = 1; i < n; i++)
    faults += write(ends[1], id, sizeof *id) != (ssize_t)sizeof *id; /* short: all or nothing */
  return faults;
}

int ranks_mixed(int processes, int threads, rank_body body, void *arg) {
  ncclUniqueId id;
  int faults = 0, ends[2];
#ifdef __SANITIZE_THREAD__
  printf("SKIP: ranks as processes: ThreadSanitizer allows no threads after a fork\n");
  return (void)processes, (void)threads, (void)body, (void)arg, (void)id, (void)ends, faults;
#endif
  if (pipe(ends)) return 1;
  pid_t *pids = calloc((size_t)processes, sizeof *pids);
  fflush(NULL);
  for (int p = 0; p < processes; p++) {
    pids[p] = fork();
    if (pids[p] == 0) {
      if (ranks_share_id(ends, p, processes, &id)) _exit(1);
      int n = run_threads(&id, p * threads, threads, processes * threads, body, arg);
      fflush(NULL);
      _exit(n > 100 ? 100 : n);
    }
  }
  close(ends[0]);
  close(ends[1]);
  for (int p = 0; p < processes; p++) {
    int status;
    waitpid(pids[p], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    fprintf(stderr, "process %d ended with status 0x%x\n", p, status);
    faults++;
  }
  free(pids);
  return faults;
}

int ranks_as_processes(int n, rank_body body, void *arg) { return ranks_mixed(n, 1, body, arg); }

/* ---- data ---- */

uint64_t test_type_bytes(ncclDataType_t type) {
  static const unsigned char bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

/* Exponent and mantissa bits of the small floats. */
static void float_layout(ncclDataType_t type, int *exponent, int *mantissa) {
  *exponent = type == ncclFloat16 ? 5 : type == ncclBfloat16 ? 8 : type == ncclFloat8e4m3 ? 4 : 5;
  *mantissa = type == ncclFloat16 ? 10 : type == ncclBfloat16 ? 7 : type == ncclFloat8e4m3 ? 3 : 2;
}

/* Exact for values that the type can hold as normal numbers: all that the tests use. */
static uint16_t encode(ncclDataType_t type, double v) {
  int e, m, power;
  float_layout(type, &e, &m);
  if (v == 0) return 0;
  double f = frexp(fabs(v), &power); /* v = f * 2^power, f in [0.5, 1) */
  uint16_t bits = (uint16_t)((power - 1 + (1 << (e - 1)) - 1) << m);
  bits = (uint16_t)(bits + (uint16_t)lrint((f * 2 - 1) * (1 << m)));
  return (uint16_t)(bits | (v < 0 ? 1u << (e + m) : 0));
}

static double decode(ncclDataType_t type, uint16_t bits) {
  int e, m;
  float_layout(type, &e, &m);
  int exponent = (bits >> m) & ((1 << e) - 1), mantissa = bits & ((1 << m) - 1);
  double v = exponent ? ldexp(1 + (double)mantissa / (1 << m), exponent - (1 << (e - 1)) + 1)
                      : ldexp((double)mantissa / (1 << m), 2 - (1 << (e - 1)));
  return bits >> (e + m) & 1 ? -v : v;
}

void test_store(ncclDataType_t type, void *at, uint64_t i, double v) {
  char *p = (char *)at + i * test_type_bytes(type); /* any alignment */
  int64_t whole = (int64_t)v;
  float f = (float)v;
  uint16_t bits;
  switch (type) {
    case ncclFloat32: memcpy(p, &f, 4); break;
    case ncclFloat64: memcpy(p, &v, 8); break;
    case ncclFloat16:
    case ncclBfloat16:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      bits = encode(type, v);
      memcpy(p, &bits, test_type_bytes(type));
      break;
    default: memcpy(p, &whole, test_type_bytes(type)); /* little endian, as all machines here */
  }
}

double test_load(ncclDataType_t type, const void *at, uint64_t i) {
  const char *p = (const char *)at + i * test_type_bytes(type);
  float f;
  double d;
  uint16_t bits = 0;
  int8_t i8;
  int32_t i32;
  int64_t i64 = 0;
  switch (type) {
    case ncclFloat32: memcpy(&f, p, 4); return (double)f;
    case ncclFloat64: memcpy(&d, p, 8); return d;
    case ncclFloat16:
    case ncclBfloat16:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: memcpy(&bits, p, test_type_bytes(type)); return decode(type, bits);
    case ncclInt8: memcpy(&i8, p, 1); return i8;
    case ncclInt32: memcpy(&i32, p, 4); return i32;
    default: memcpy(&i64, p, test_type_bytes(type)); return (double)i64;
  }
}

/* What all ranks' values of an element are made of.  Divisions are few, and of 32 bits. */
typedef struct element_mix {
  uint32_t mix;
  int groups;      /* sums: about four ranks share a group, and only one group has values other than 0 */
  int group, a, b; /* the group; of products, the ranks that have a 2 */
} element_mix;

static element_mix mix_of(int nranks, uint64_t element, ncclRedOp_t op) {
  element %= TEST_PERIOD;
  element_mix m = {.mix = (uint32_t)(element * 2654435761u + (element >> 7)), .groups = 1};
  if (op == ncclProd) {
    m.a = (int)(m.mix % (unsigned)nranks);
    m.b = (int)((m.mix >> 3) % (unsigned)nranks);
  } else if (nranks > 4) {
    m.groups = (nranks + 3) / 4;
    m.group = (int)(m.mix % (unsigned)m.groups);
  }
  return m;
}

/* Small whole numbers: sums of at most 8 and products of at most 4 are exact in every type, in every order. */
static int value_of(const element_mix *m, int rank, ncclRedOp_t op) {
  if (op == ncclProd) return rank == m->a || rank == m->b ? 2 : 1;
  if (op == ncclMax || op == ncclMin) return (int)((m->mix + (unsigned)rank * 5) % 8);
  if (m->groups > 1 && rank % m->groups != m->group) return 0;
  return (int)(1 + ((m->mix >> 5) + (unsigned)rank) % 2);
}

double test_value(int rank, int nranks, uint64_t element, ncclRedOp_t op) {
  element_mix m = mix_of(nranks, element, op);
  return value_of(&m, rank, op);
}

double test_reduced(ncclDataType_t type, int nranks, uint64_t element, ncclRedOp_t op, double *tolerance) {
  element_mix mix = mix_of(nranks, element, op);
  double r = value_of(&mix, 0, op);
  *tolerance = 0;
  for (int k = 1; k < nranks; k++) {
    double v = value_of(&mix, k, op);
    switch ((int)op) {
      case ncclProd: r *= v; break;
      case ncclMax: r = v > r ? v : r; break;
      case ncclMin: r = v < r ? v : r; break;
      default: r += v;
    }
  }
  if ((int)op >= ncclNumOps) return 2 * r; /* the tests' premultiplied sums have the scalar 2 */
  if (op == ncclAvg) {
    r /= nranks;
    if (type <= ncclUint64) return trunc(r);
    int e, m;
    float_layout(type, &e, &m);
    /* Each input is rounded once when multiplied by 1/n, each step's sum once more. */
    *tolerance = type == ncclFloat64 ? 1e-14 : type == ncclFloat32 ? 1e-6 : ldexp(nranks > 2 ? 2.0 : 1.0, -m);
  }
  return r;
}

static double value_in(const test_block *b, size_t i, double *tolerance) {
  *tolerance = 0;
  if (b->rank == TEST_REDUCED) return test_reduced(b->type, b->nranks, b->first + i, b->op, tolerance);
  return test_value(b->rank, b->nranks, b->first + i, b->op);
}

static size_t computed(const test_block *b) { return b->count < TEST_PERIOD ? b->count : TEST_PERIOD; }

void test_fill(const test_block *b, void *at) {
  double tolerance;
  size_t unit = test_type_bytes(b->type), done = computed(b);
  for (size_t i = 0; i < done; i++) test_store(b->type, at, i, value_in(b, i, &tolerance));
  while (done < b->count) { /* `done` is a multiple of the period */
    size_t more = b->count - done < done ? b->count - done : done;
    memcpy((char *)at + done * unit, at, more * unit);
    done += more;
  }
}

size_t test_wrong(const test_block *b, const void *at, double *got, double *want) {
  size_t unit = test_type_bytes(b->type), n = computed(b);
  double wants[TEST_PERIOD], tolerance = 0;
  char exact[TEST_PERIOD * sizeof(double)];
  for (size_t i = 0; i < n; i++) {
    wants[i] = value_in(b, i, &tolerance);
    if (tolerance == 0) test_store(b->type, exact, i, wants[i]);
  }
  if (tolerance == 0 && !memcmp(at, exact, n * unit) &&
      !memcmp((const char *)at + n * unit, at, (b->count - n) * unit)) /* each period is as the one before it */
    return b->count;
  for (size_t i = 0; i < b->count; i++) {
    *want = wants[i % TEST_PERIOD], *got = test_load(b->type, at, i);
    if (!(fabs(*got - *want) <= tolerance * fabs(*want))) return i;
  }
  return b->count;
}
