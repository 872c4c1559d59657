/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ABI of NCCL's tuner plugins, versions 2 to 6: facts about the layout, in our words. A plugin exports one or
 * several of ncclTunerPlugin_v2 to _v6; the newest is used.
 *
 * v2  sets algorithm, protocol and channels (all preset to -1, -1, 0: not set)
 * v3  gets a table of microseconds, [algorithm][protocol], and may change it; -1 means "cannot run"
 * v4  also gets whether buffers are registered
 * v5  has the arguments of init in another order, with the NVLink domains and the library's constants
 * v6  may also change the chunk: the bytes of a block that one step moves
 */
#pragma once
#include <nccl.h>
#include <stdint.h>
#include "../base/plugin.h"

enum { TUNER_ALGORITHMS = 7, TUNER_PROTOCOLS = 3 };
enum tuner_protocol { TUNER_LL, TUNER_LL128, TUNER_SIMPLE };
enum tuner_function { TUNER_BROADCAST, TUNER_REDUCE, TUNER_ALLGATHER, TUNER_REDUCE_SCATTER, TUNER_ALLREDUCE };

typedef struct tuner_v2 {
  const char *name;
  ncclResult_t (*init)(size_t nranks, size_t nhosts, hk_plugin_logger log, void **context);
  ncclResult_t (*get)(void *context, int function, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                      int *protocol, int *channels);
  ncclResult_t (*destroy)(void *context);
} tuner_v2;

typedef struct tuner_v3 {
  const char *name;
  ncclResult_t (*init)(size_t nranks, size_t nhosts, hk_plugin_logger log, void **context);
  ncclResult_t (*get)(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                      int protocols, int *channels);
  ncclResult_t (*destroy)(void *context);
} tuner_v3;

typedef struct tuner_v4 {
  const char *name;
  ncclResult_t (*init)(size_t nranks, size_t nhosts, hk_plugin_logger log, void **context);
  ncclResult_t (*get)(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                      int protocols, int registered, int *channels);
  ncclResult_t (*destroy)(void *context);
} tuner_v4;

typedef struct tuner_domains_v5 {
  int domains, least_ranks, most_ranks;
} tuner_domains_v5;

/* The constants of NCCL's own model, which a plugin may read and change. This library has others: the plugin gets
 * zeros, and what it writes is ignored. */
typedef struct tuner_constants_v5 {
  double base_latency[TUNER_ALGORITHMS][TUNER_PROTOCOLS];
  double link_latency[3][TUNER_ALGORITHMS][TUNER_PROTOCOLS];
  double bandwidth[5][4][3];
} tuner_constants_v5;

typedef struct tuner_v5 {
  const char *name;
  ncclResult_t (*init)(void **context, uint64_t comm, size_t nranks, size_t nhosts, hk_plugin_logger log,
                       tuner_domains_v5 *domains, tuner_constants_v5 *constants);
  ncclResult_t (*get)(void *context, int function, size_t bytes, int pipelined, float **table, int algorithms,
                      int protocols, int registered, int *channels);
  ncclResult_t (*finalize)(void *context);
} tuner_v5;

typedef struct tuner_v6 {
  tuner_v5 as_v5;
  /* May be NULL. */
  ncclResult_t (*chunk)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                        size_t *chunk);
} tuner_v6;

_Static_assert(sizeof(tuner_v6) == 40, "v6's struct is 40 bytes");
_Static_assert(sizeof(tuner_v2) == 32 && sizeof(tuner_v5) == 32, "the plugin's struct is 32 bytes");
_Static_assert(sizeof(tuner_constants_v5) == 8 * (21 + 63 + 60), "as NCCL lays it out");
