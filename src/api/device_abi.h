/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of NCCL's device API that nccl.h only declares. Programs that were compiled with NVIDIA's nccl_device.h
 * exchange them with the library. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ncclDevResourceRequirements_t: a request for a part of the resource buffer, which each rank of the LSA team has. */
typedef struct hk_resource_request {
  struct hk_resource_request *next;
  size_t bytes, align;
  uint32_t *handle; /* gets the offset, in units of 128 bytes; may be NULL */
  int32_t gin_signals, gin_counters;
  uint32_t *first_signal, *first_counter;
} hk_resource_request;
_Static_assert(sizeof(hk_resource_request) == 56 && offsetof(hk_resource_request, first_signal) == 40, "NCCL's layout");

/* ncclTeamRequirements_t */
typedef struct hk_team_request {
  struct hk_team_request *next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t *handle; /* may be NULL */
} hk_team_request;
_Static_assert(sizeof(hk_team_request) == 32 && offsetof(hk_team_request, multimem) == 20, "NCCL's layout");

/* ncclDevCommRequirements_t since 2.29; older versions have its beginning. */
typedef struct hk_requirements {
  size_t size;
  unsigned magic, version;
  hk_resource_request *resources;
  hk_team_request *teams;
  bool lsa_multimem;
  int32_t barriers, lsa_barriers, rail_gin_barriers, ll_blocks, ll_slots;
  bool gin;
  int32_t gin_contexts, gin_signals, gin_counters, gin_connection;
  bool gin_exclusive;
  int32_t gin_depth, gin_traffic_class, world_gin_barriers;
  bool gin_strong_signals, gin_va_signals;
  int32_t gin_stride, gin_type;
  bool runtime_version;
  int32_t cft_caps, cft_barriers;
} hk_requirements;
_Static_assert(offsetof(hk_requirements, lsa_multimem) == 32 && offsetof(hk_requirements, gin_signals) == 64 &&
                   offsetof(hk_requirements, world_gin_barriers) == 88 &&
                   offsetof(hk_requirements, runtime_version) == 104 && sizeof(hk_requirements) == 120,
               "NCCL's layout");

/* The same in 2.28, without a size and a version. */
typedef struct hk_requirements_2_28 {
  hk_resource_request *resources;
  hk_team_request *teams;
  bool lsa_multimem;
  int32_t barriers, lsa_barriers, rail_gin_barriers, ll_blocks, ll_slots;
  bool gin;
  int32_t gin_contexts, gin_signals, gin_counters;
} hk_requirements_2_28;
_Static_assert(sizeof(hk_requirements_2_28) == 56 && offsetof(hk_requirements_2_28, gin) == 40, "NCCL's layout");

/* Every version of ncclDevComm has these fields one after another. */
typedef struct hk_device_comm_head {
  int32_t rank, nranks;
  uint32_t nranks_rcp; /* hk_reciprocal */
  int32_t lsa_rank, lsa_ranks;
  uint32_t lsa_ranks_rcp;
  void *table;
  ncclWindow_t resources;
} hk_device_comm_head;
_Static_assert(sizeof(hk_device_comm_head) == 40, "NCCL's layout");

/* The offsets of the other nonzero fields, for a range of versions. */
typedef struct hk_device_comm_layout {
  unsigned from, to; /* versions of requirements */
  size_t bytes, head, multimem, barrier;
  /* flat of the resource buffer's hk_device_window; if `window` is 0, stride_4g and multicast_4k follow */
  size_t flat;
  size_t window; /* bytes of that window, which begins at flat - 8 */
  size_t cft;    /* offset of the CFT fields (rank, ranks, ...); 0: the version has none */
} hk_device_comm_layout;
enum { HK_DEVICE_COMM_CFT_WORDS = 7 };

/* ncclLsaBarrierHandle, ncclLLA2AHandle, ncclGinBarrierHandle: the offset in the buffer or of the signals, and their
 * number. */
typedef struct hk_device_handle {
  uint32_t place;
  int32_t count;
} hk_device_handle;
_Static_assert(sizeof(hk_device_handle) == 8, "NCCL's layout");

/* The factor by which device code multiplies to divide by x. */
static inline uint32_t hk_reciprocal(uint32_t x) { return UINT32_MAX / x + ((x & (x - 1)) == 0); }
/* Bytes of n barriers of a team of t ranks. Words of each barrier: its epoch over multicast memory, its epoch over
 * single stores, an inbox to which the switch adds, and an inbox for each rank. */
static inline size_t hk_barrier_bytes(int n, int t) { return sizeof(uint32_t) * (size_t)n * (3 + (size_t)t); }
