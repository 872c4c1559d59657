/* SPDX-License-Identifier: Apache-2.0 */
/* Data direct: some of NVIDIA's cards have a second PCI function, next to a GPU, by which they access the GPU's memory
 * over PCI alone, although the card itself is attached to the CPU. libmlx5 registers memory for it, in newer versions
 * of rdma-core: 56 has it, 50 has not. */
#pragma once
#include "../../../base/sysfs.h"
#include "../gdr.h"
#include "ib_verbs.h"

struct hk_settings; /* base/param.h */

/* Returns true if NCCL_IB_DATA_DIRECT allows it and libmlx5 is there and new enough. */
bool hk_ib_direct_is_possible(const struct hk_settings *set);
/* The path in /sys of the card's data-direct function; false: it has none, or it is not to be used. */
bool hk_ib_direct_function(const struct hk_settings *set, hk_ibv_context *card, char path[HK_SYSFS_PATH]);
/* The class of the path between the function and the GPU, by PCI; `otherwise` if the GPU is not found in /sys. */
hk_path_class hk_ib_direct_distance(const char *function, const hk_device *gpu, hk_path_class otherwise);
hk_path_class hk_ib_pci_class(const char *a, const char *b); /* of two PCI functions, by their paths; ib_merge.c */
/* As ibv_reg_dmabuf_mr from offset 0 on, for access by the data-direct function; NULL with errno. Only if the card has
 * one. */
hk_ibv_mr *hk_ib_direct_register(hk_ibv_pd *pd, size_t bytes, uint64_t iova, int fd, int access);
