/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks know of each other's GPUs. */
#ifndef HK_GPU_FACTS_H
#define HK_GPU_FACTS_H
#include "../base/facts.h"
#include <stdint.h>

/* What a rank publishes about its GPU. */
typedef struct hk_gpu_fact {
  uint64_t id;     /* of the device: equal on ranks that share it */
  uint64_t blocks; /* blocks that the device runs at once */
  uint64_t sm;
  uint64_t bus;           /* its PCI address: hk_bus_id_parse */
  uint64_t window_stride; /* bytes of address space that a rank's windows need */
  uint8_t copies;         /* the rank requests copy engines and can use them */
  uint8_t by_fd;          /* its memory can go to other processes by file descriptor */
  uint32_t p2p_peers;     /* peers to which the rank sends at once, or from which it receives; 0: all */
  uint8_t multicast;      /* uses of multicast memory that the rank supports: HK_GPU_MULTICAST_* */
} hk_gpu_fact;
enum { HK_GPU_MULTICAST_SUMS = 1, HK_GPU_MULTICAST_WINDOWS = 2 };
static inline const hk_gpu_fact *hk_gpu_fact_of(const hk_facts *facts, int rank) { return hk_fact_of(facts, rank); }
#endif
