/* SPDX-License-Identifier: Apache-2.0 */
/* Identifiers of this host and process. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct hk_settings; /* base/param.h */

enum { HK_CPU_WORDS = 16 }; /* 1024 processors */

/* Equal for processes that can share memory: same boot, same network namespace (through which descriptors are
 * passed), same host name. NCCL_HOSTID replaces all of these. */
uint64_t hk_host_id(const struct hk_settings *settings);
/* Differs between processes, also after a fork and between hosts. */
uint64_t hk_process_id(void);
/* The namespace of this process's pid; 0: unknown. */
uint32_t hk_process_space(void);
/* The processors that this thread may run on. */
void hk_host_cpus(uint64_t mask[HK_CPU_WORDS]);
