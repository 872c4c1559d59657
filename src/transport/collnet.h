/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Links whose slots the network reduces (HK_LINK_SUM_*), by NCCL's CollNet plugins. This transport has only such
 * links. It reaches no peer, so it is not in registry.def, and the runtime creates it only if the user asks for it.
 *
 * A group is one rank of each host. All ranks listen and publish a fact; those of a group then connect together.
 *
 * Threads. All functions run on the thread of the init or of the communicator's lanes. The plugin's connect and its
 * calls at the end run on a thread of their own (net/plugin/plugin_thread.c).
 */
#pragma once
#include "../program/operation.h"
#include "transport.h"

enum {
  HK_COLLNET_HANDLE = 128,
  HK_COLLNET_ROUND_BYTES = 1 << 20, /* the most bytes of a round of gathers or scatters (HK_LINK_GATHER_SEND) */
  HK_COLLNET_ROUND_RANKS = 1024     /* and the most ranks of a group that has rounds */
};
/* Optional calls of plugins. */
enum { HK_COLLNET_GATHERS = 1, HK_COLLNET_SCATTERS = 2 };

/* What a rank publishes about its plugin; plugins with equal `name` and `version` are compatible. */
typedef struct hk_collnet_fact {
  uint8_t handle[HK_COLLNET_HANDLE];
  /* hk_collnet_sum bits: the reductions of the plugin; 0: it cannot be used, and `why` says why */
  uint64_t sums;
  int32_t version, calls; /* calls: HK_COLLNET_GATHERS, HK_COLLNET_SCATTERS */
  char name[32];
  char why[160];
} hk_collnet_fact;

/* The bit of a type and operator; 0 if no network knows the operator. avg and premulsum are sums here: hosts multiply
 * and divide. */
static inline uint64_t hk_collnet_sum(hk_dtype type, hk_redop op) {
  _Static_assert(HK_DTYPE_COUNT * (HK_MIN + 1) <= 64 && HK_SUM == 0 && HK_MIN == 3, "a bit for each of four operators");
  hk_redop by = op == HK_AVG || op == HK_PREMULSUM ? HK_SUM : op;
  return by <= HK_MIN ? (uint64_t)1 << ((unsigned)type * (HK_MIN + 1) + by) : 0;
}

extern const hk_transport hk_transport_collnet;
/* Finds a plugin and makes it listen. *out is NULL, with the reason in fact->why, if none works. */
hk_status hk_collnet_begin(const hk_transport_env *env, hk_transport_state **out, hk_collnet_fact *fact);
/* Joins a group of n ranks, as number `me` of them (program.h has the order); facts[r] is rank r's. Returns when all
 * ranks of the group have called it. False, with the reason in `why`, if the plugin fails, or after
 * HOCKET_PEER_TIMEOUT. */
bool hk_collnet_connect(hk_transport_state *s, const hk_collnet_fact *facts, const int *ranks, int n, int me, char *why,
                        size_t why_bytes);
