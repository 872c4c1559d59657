/* SPDX-License-Identifier: Apache-2.0 */
/* What the example tuners share.  Each is the least that a plugin of its version can be: it prefers a ring (for
 * broadcast and reduce that is a chain here) above 4 KiB and a tree below, logs its calls, and fails where
 * HOCKET_TEST_TUNER says so. */
#ifndef HK_TESTS_TUNER_H
#define HK_TESTS_TUNER_H
#include <nccl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TREE = 0, RING = 1, ALGORITHMS = 7, PROTOCOLS = 3, SIMPLE = 2, INFO = 3, TUNING = 64 };
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct tuner_state {
  logger log;
  size_t ranks, hosts;
  int calls;
} tuner_state;

static inline int asked(const char *what) {
  const char *mode = getenv("HOCKET_TEST_TUNER");
  return mode && !strcmp(mode, what);
}

static inline ncclResult_t begin(size_t ranks, size_t hosts, logger log, void **context) {
  if (asked("refuse")) return ncclInternalError;
  tuner_state *s = calloc(1, sizeof *s);
  if (!s) return ncclSystemError;
  *s = (tuner_state){log, ranks, hosts, 0};
  log(INFO, TUNING, __FILE__, __LINE__, "example tuner: %zu ranks, %zu hosts", ranks, hosts);
  *context = s;
  return ncclSuccess;
}

static inline ncclResult_t end(void *context) {
  tuner_state *s = context;
  s->log(INFO, TUNING, __FILE__, __LINE__, "example tuner: asked %d times", s->calls);
  free(s);
  return ncclSuccess;
}

static inline int prefer(size_t bytes) { return bytes > 4096 ? RING : TREE; }

/* Takes what it prefers for nothing, where the table offers it. */
static inline ncclResult_t change(void *context, size_t bytes, float **prices, int algorithms, int protocols,
                                  int *channels) {
  tuner_state *s = context;
  float(*table)[PROTOCOLS] = (float(*)[PROTOCOLS])(void *)prices;
  s->calls++;
  if (asked("fail") || algorithms != ALGORITHMS || protocols != PROTOCOLS) return ncclInvalidUsage;
  if (asked("silent")) return ncclSuccess;
  for (int a = 0; a < ALGORITHMS && asked("dear"); a++) /* the others cost more */
    for (int p = 0; p < PROTOCOLS && a != prefer(bytes); p++) table[a][p] *= table[a][p] > 0 ? 1000 : 1;
  if (asked("dear")) return ncclSuccess;
  if (table[prefer(bytes)][SIMPLE] >= 0) table[prefer(bytes)][SIMPLE] = 0;
  if (asked("channels")) *channels = 2;
  return ncclSuccess;
}
#endif
