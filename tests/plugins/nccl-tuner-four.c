/* SPDX-License-Identifier: Apache-2.0 */
/* A tuner of version 4: as 3, and it learns whether buffers are registered. */
#include "tuner.h"

static ncclResult_t get(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                        int protocols, int registered, int *channels) {
  (void)function, (void)pipelined, (void)registered;
  return change(context, bytes, table, algorithms, protocols, channels);
}

typedef struct tuner {
  const char *name;
  ncclResult_t (*init)(size_t, size_t, logger, void **);
  ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);
  ncclResult_t (*destroy)(void *);
} tuner;

__attribute__((visibility("default"))) extern const tuner ncclTunerPlugin_v4;
const tuner ncclTunerPlugin_v4 = {"four", begin, get, end};
