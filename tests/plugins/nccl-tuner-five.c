/* SPDX-License-Identifier: Apache-2.0 */
/* A tuner of version 5, and of version 2 for older libraries: the newer one must be taken. */
#include "tuner.h"

typedef struct domains {
  int domains, least, most;
} domains;

static ncclResult_t begin_five(void **context, uint64_t comm, size_t ranks, size_t hosts, logger log, domains *d,
                               double *constants) {
  (void)comm;
  constants[143] = 1; /* the struct's last field */
  if (!d || d->domains != (int)hosts || (size_t)d->least * hosts > ranks || (size_t)d->most * hosts < ranks)
    return ncclInvalidArgument;
  return begin(ranks, hosts, log, context);
}

static ncclResult_t get(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                        int protocols, int registered, int *channels) {
  (void)function, (void)pipelined, (void)registered;
  return change(context, bytes, table, algorithms, protocols, channels);
}

typedef struct tuner {
  const char *name;
  ncclResult_t (*init)(void **, uint64_t, size_t, size_t, logger, domains *, double *);
  ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);
  ncclResult_t (*finalize)(void *);
} tuner;
typedef struct old_tuner {
  const char *name;
  void *functions[3];
} old_tuner;

__attribute__((visibility("default"))) extern const tuner ncclTunerPlugin_v5;
__attribute__((visibility("default"))) extern const old_tuner ncclTunerPlugin_v2;
const tuner ncclTunerPlugin_v5 = {"five", begin_five, get, end};
const old_tuner ncclTunerPlugin_v2 = {"too old", {NULL, NULL, NULL}};
