/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what the flight recorder has, as a file (flight.h). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../base/json.h"
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "failure.h"
#include "flight.h"
#include "flight_ring.h"

enum { FLIGHT_PATH = 4096 };

/* A copy of an entry. */
typedef struct flight_copy {
  uint64_t number, sequence, count, kind, apart, begin, end, extra;
} flight_copy;

/* False: it has been replaced, or is being replaced. */
static bool flight_read(const hk_flight *f, uint64_t number, flight_copy *out) {
  const hk_flight_entry *e = &f->ring[number & f->mask];
  /* acquire, for all: with the writer's release stores, words of a later operation show a changed number below */
  out->number = atomic_load_explicit(&e->number, memory_order_acquire);
  out->sequence = atomic_load_explicit(&e->sequence, memory_order_acquire);
  out->count = atomic_load_explicit(&e->count, memory_order_acquire);
  out->kind = atomic_load_explicit(&e->kind, memory_order_acquire);
  out->apart = atomic_load_explicit(&e->apart, memory_order_acquire);
  out->begin = atomic_load_explicit(&e->begin, memory_order_acquire);
  out->end = atomic_load_explicit(&e->end, memory_order_acquire);
  out->extra = atomic_load_explicit(&e->extra, memory_order_acquire);
  /* relaxed: it follows the acquire loads */
  return out->number == number && atomic_load_explicit(&e->number, memory_order_relaxed) == number;
}

/* The number of the newest entry. The writer's own count is not read, because it is no atomic. */
static uint64_t flight_newest(const hk_flight *f) {
  uint64_t newest = 0;
  for (uint64_t i = 0; i <= f->mask; i++) {
    /* relaxed: flight_read checks the entry */
    const uint64_t n = atomic_load_explicit(&f->ring[i].number, memory_order_relaxed);
    if (n > newest) newest = n;
  }
  return newest;
}

/* Converts ticks into nanoseconds since 1970. */
typedef struct flight_clock {
  uint64_t ticks;
  int64_t real_ns;
  double ns_per_tick;
} flight_clock;

static int64_t flight_real_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static flight_clock flight_clock_now(const hk_flight *f) {
  flight_clock k = {.ticks = hk_flight_ticks(), .real_ns = flight_real_ns()};
  const uint64_t now = hk_now_ns();
  if (k.ticks > f->ticks0) k.ns_per_tick = (double)(now - f->now0) / (double)(k.ticks - f->ticks0);
  return k;
}

static long long flight_time(const flight_clock *k, uint64_t ticks) {
  return k->real_ns - (long long)((double)(int64_t)(k->ticks - ticks) * k->ns_per_tick);
}

/* The call of an entry, in the form that hk_operation_describe takes. */
static hk_operation flight_operation(const flight_copy *e) {
  const hk_call call = {.kind = e->kind};
  return (hk_operation){.count = e->count,
                        .root = call.root,
                        .coll = call.coll,
                        .p2p = call.p2p,
                        .dtype = call.dtype,
                        .redop = call.redop};
}

static bool flight_in_place(ncclComm_t c, const flight_copy *e, const hk_operation *o) {
  const bool in_each = hk_coll_in_set(HK_COLLS_IN_EACH, (hk_coll)o->coll),
             out_each = hk_coll_in_set(HK_COLLS_OUT_EACH, (hk_coll)o->coll);
  if (o->coll == HK_SENDRECV) return false;
  if (in_each == out_each || hk_coll_uneven((hk_coll)o->coll)) return e->apart == 0;
  const uint64_t at = (uint64_t)c->rank * o->count * hk_dtype_size((hk_dtype)o->dtype);
  return e->apart == (in_each ? at : -at);
}

static void flight_write_operation(hk_json *w, ncclComm_t c, const flight_clock *k, const flight_copy *e,
                                   uint64_t begin) {
  const hk_operation o = flight_operation(e);
  const bool enqueued = e->extra & HK_FLIGHT_ENQUEUED;
  const char *state = e->end != HK_FLIGHT_OPEN ? "over" : enqueued ? "enqueued" : "begun";
  const uint32_t name = (uint32_t)(e->extra >> 8);
  char text[160];
  hk_operation_describe(&o, text, sizeof text);
  if (e->end == HK_FLIGHT_OPEN && !enqueued && atomic_load(&c->health.failure)) state = "failed";
  hk_json_open(w, '{');
  hk_json_put_integer(w, "number", (long long)e->number);
  if (e->sequence) hk_json_put_integer(w, "collective", (long long)e->sequence);
  hk_json_put_text(w, "call", text);
  hk_json_put_text(w, "kind", o.coll == HK_SENDRECV ? hk_p2p_name((hk_p2p)o.p2p) : hk_coll_name((hk_coll)o.coll));
  hk_json_put_integer(w, "count", (long long)o.count);
  hk_json_put_text(w, "type", hk_dtype_name((hk_dtype)o.dtype));
  if (hk_coll_reduces((hk_coll)o.coll))
    hk_json_put_text(w, "operator", hk_redop_name((hk_redop)(o.redop & ~HK_REDOP_FLAGS)));
  if (hk_coll_has_root((hk_coll)o.coll)) hk_json_put_integer(w, "root", o.root);
  if (o.coll == HK_SENDRECV) hk_json_put_integer(w, "peer", o.root);
  /* acquire: pairs with the writer's release, so that the name is complete */
  if (name && name <= atomic_load_explicit(&c->flight->nnames, memory_order_acquire))
    hk_json_put_text(w, "algorithm", c->flight->names[name - 1]);
  hk_json_put_boolean(w, "in_place", flight_in_place(c, e, &o));
  hk_json_put_text(w, "state", state);
  hk_json_put_integer(w, "begin_ns", flight_time(k, begin));
  if (!e->begin) hk_json_put_boolean(w, "begin_known", false);
  if (e->end > HK_FLIGHT_UNTIMED) hk_json_put_integer(w, "end_ns", flight_time(k, e->end));
  hk_json_close(w);
  fputc('\n', w->f);
}

static void flight_write_failure(hk_json *w, ncclComm_t c) {
  char text[sizeof c->health.text] = "";
  int rank = -1;
  const hk_status code = hk_failure_settled(c);
  if (code == HK_OK) return;
  pthread_mutex_lock(&c->health.lock);
  if (c->health.settle_ns) rank = c->health.cause->rank;
  snprintf(text, sizeof text, "%s", c->health.text);
  pthread_mutex_unlock(&c->health.lock);
  hk_json_begin(w, "failure", '{');
  hk_json_put_integer(w, "code", (int)code);
  if (rank >= 0) hk_json_put_integer(w, "rank", rank);
  hk_json_put_text(w, "text", text);
  hk_json_close(w);
}

static void flight_write_json(ncclComm_t c, FILE *to) {
  hk_flight *f = c->flight;
  hk_json w = {.f = to};
  hk_activity a;
  char host[256] = "", id[24], text[512] = "is not recorded (HOCKET_FLIGHT_RECORDS)";
  if (f) {
    f->report(c, &a);
    hk_activity_describe(&a, HK_PRESENCE_ANSWERS, text, sizeof text);
  }
  (void)gethostname(host, sizeof host - 1);
  snprintf(id, sizeof id, "0x%llx", c->bootstrap ? (unsigned long long)hk_bootstrap_comm_id(c->bootstrap) : 0);
  const uint64_t newest = f ? flight_newest(f) : 0;
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "hocket_flight", 1);
  hk_json_put_text(&w, "communicator", id);
  hk_json_put_text(&w, "name", c->options.name);
  hk_json_put_integer(&w, "rank", c->rank);
  hk_json_put_integer(&w, "ranks", c->nranks);
  hk_json_put_text(&w, "host", host);
  hk_json_put_integer(&w, "pid", (long long)getpid());
  hk_json_put_integer(&w, "device", c->device);
  hk_json_put_integer(&w, "written_ns", flight_real_ns());
  hk_json_put_text(&w, "times", c->device >= 0 ? "when an operation was put on its stream" : "when it began and ended");
  hk_json_put_text(&w, "does", text);
  flight_write_failure(&w, c);
  hk_json_begin(&w, "operations", '[');
  if (f) {
    const flight_clock k = flight_clock_now(f);
    flight_copy e;
    uint64_t begin = f->ticks0; /* the latest that is known */
    fputc('\n', to);
    for (uint64_t n = newest > f->records ? newest - f->records + 1 : 1; n <= newest; n++) {
      if (!flight_read(f, n, &e)) continue;
      if (e.begin) begin = e.begin;
      flight_write_operation(&w, c, &k, &e, begin);
    }
  }
  hk_json_close(&w);
  hk_json_close(&w);
  fputc('\n', to);
}

static hk_status flight_write(ncclComm_t c, const char *path) {
  hk_status rc = HK_OK;
  char part[FLIGHT_PATH + 64];
  snprintf(part, sizeof part, "%s.%d.%lx", path, (int)getpid(), (unsigned long)pthread_self());
  const int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  FILE *to = fd < 0 ? NULL : fdopen(fd, "w");
  if (!to) {
    rc = HK_FAIL_ERRNO("the flight record %s cannot be written; is its folder (HOCKET_FLIGHT_DIR) there and writable?",
                       part);
    if (fd >= 0) close(fd);
    return rc;
  }
  flight_write_json(c, to);
  const bool bad = ferror(to) != 0;
  if (fclose(to) || bad || rename(part, path)) {
    rc = HK_FAIL_ERRNO("the flight record %s cannot be written; is there room on the disk?", path);
    (void)unlink(part);
  }
  return rc;
}

hk_status hk_flight_dump(ncclComm_t c, const char *path) {
  char own[FLIGHT_PATH];
  const char *folder = c->settings->FLIGHT_DIR;
  int n;
  if (path)
    n = snprintf(own, sizeof own, "%s", path);
  else
    n = snprintf(own, sizeof own, "%s/hocket-flight-%llx-%d-of-%d.json", folder && folder[0] ? folder : ".",
                 c->bootstrap ? (unsigned long long)hk_bootstrap_comm_id(c->bootstrap) : 0, c->rank, c->nranks);
  if (n >= (int)sizeof own)
    return HK_FAIL(HK_ERR_ARGUMENT, "the path of a flight record has %d bytes, which is too long", n);
  return flight_write(c, own);
}
