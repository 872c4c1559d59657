/* SPDX-License-Identifier: Apache-2.0 */
/* A tuner of version 6: as one of version 5, and it asks for chunks of 4 KiB. */
#include <stdio.h>
#include "tuner.h"

static ncclResult_t begin_six(void **context, uint64_t comm, size_t ranks, size_t hosts, logger log, int *domains,
                              double *constants) {
  (void)comm;
  constants[143] = 1; /* the struct's last field */
  return domains ? begin(ranks, hosts, log, context) : ncclInvalidArgument;
}

static ncclResult_t get(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                        int protocols, int registered, int *channels) {
  (void)function, (void)pipelined, (void)registered;
  return change(context, bytes, table, algorithms, protocols, channels);
}

static ncclResult_t chunk(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *size) {
  const tuner_state *s = context;
  s->log(INFO, TUNING, __FILE__, __LINE__, "example tuner: chunk of function %d, %zu bytes, %d/%d, %d channels: %zu",
         function, bytes, algorithm, protocol, channels, *size);
  if (asked("chunk")) *size = 4096 + 1;
  if (asked("tiny chunk") || asked("no chunk")) *size = 1;
  return asked("no chunk") ? ncclInternalError : ncclSuccess;
}

typedef struct tuner {
  const char *name;
  ncclResult_t (*init)(void **, uint64_t, size_t, size_t, logger, int *, double *);
  ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);
  ncclResult_t (*finalize)(void *);
  ncclResult_t (*chunk)(void *, int, size_t, int, int, int, size_t *);
} tuner;
__attribute__((visibility("default"))) extern const tuner ncclTunerPlugin_v6;
const tuner ncclTunerPlugin_v6 = {"six", begin_six, get, end, chunk};
