/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory. There are streams only if the library under test has Hocket's (hocketStreamCreate). */
#include <hocket.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "mem.h"

/* Other libraries have no host streams. */
#pragma weak hocketStreamCreate
#pragma weak hocketStreamSynchronize
#pragma weak hocketStreamQuery
#pragma weak hocketStreamDestroy

enum { PAGE = 4096 };

static int host_device_count(void) { return 1 << 20; /* any number of ranks share the machine */ }

static int host_use(int device) {
  (void)device;
  return 0;
}

static void host_describe(int device, char *text, size_t capacity) {
  (void)device;
  char line[256], name[128] = "CPU";
  FILE *f = fopen("/proc/cpuinfo", "r");
  while (f && fgets(line, sizeof line, f)) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) || !colon) continue;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    break;
  }
  if (f) fclose(f);
  snprintf(text, capacity, "[0000:00:00] %s", name);
}

/* What the system reports as available without swapping. */
static size_t host_capacity(int device) {
  (void)device;
  char line[256];
  unsigned long long kib = 0;
  FILE *f = fopen("/proc/meminfo", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
  if (f) fclose(f);
  return kib ? (size_t)kib * 1024 : SIZE_MAX;
}

static size_t host_used(int device) {
  (void)device;
  unsigned long long total, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%llu %llu", &total, &resident) != 2) resident = 0;
  if (f) fclose(f);
  return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void *host_alloc(size_t bytes) {
  bytes = (bytes + PAGE - 1) / PAGE * PAGE + (bytes == 0) * PAGE;
  void *p = aligned_alloc(PAGE, bytes);
  if (p) memset(p, 0, bytes); /* by the thread that uses it, so that pages are on its node */
  return p;
}

static int host_zero(void *p, size_t bytes) {
  memset(p, 0, bytes);
  return 0;
}

static int host_put(void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  return 0;
}

static hocketStream_t host_stream(cudaStream_t s) { return (hocketStream_t)(void *)s; }

static int host_stream_create(cudaStream_t *s) {
  hocketStream_t stream;
  if (!hocketStreamCreate || hocketStreamCreate(&stream) != ncclSuccess) return -1;
  *s = hocketStreamAsCuda(stream);
  return 0;
}

static int host_stream_done(cudaStream_t s) {
  ncclResult_t r = hocketStreamQuery(host_stream(s));
  return r == ncclSuccess ? 1 : r == ncclInProgress ? 0 : -1;
}

static void host_stream_destroy(cudaStream_t s) { hocketStreamDestroy(host_stream(s)); }

static int host_copy(void *to, const void *from, size_t bytes, cudaStream_t s) {
  /* The stream's work must be complete before the memory is freed. */
  if (s && hocketStreamSynchronize(host_stream(s)) != ncclSuccess) return -1;
  memcpy(to, from, bytes);
  return 0;
}

const perf_mem perf_mem_host = {
    .name = "host",
    .usage_title = "Host memory usage",
    .direct = true,
    .device_count = host_device_count,
    .use = host_use,
    .describe = host_describe,
    .capacity = host_capacity,
    .used = host_used,
    .alloc = host_alloc,
    .free = free,
    .zero = host_zero,
    .put = host_put,
    .get = host_put,
    .copy = host_copy,
    .stream_create = host_stream_create,
    .stream_done = host_stream_done,
    .stream_destroy = host_stream_destroy,
};
