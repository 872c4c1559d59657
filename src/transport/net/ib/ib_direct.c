/* SPDX-License-Identifier: Apache-2.0 */
/* Data-direct functions of cards, by libmlx5: see ib_direct.h. */
#include "ib_direct.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/dl.h"
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "ib_port.h"

/* Declared as in mlx5dv.h of rdma-core 56. */
static struct mlx5 {
  bool (*is_supported)(hk_ibv_device *device);
  int (*get_data_direct_sysfs_path)(hk_ibv_context *context, char *path, size_t bytes);
  hk_ibv_mr *(*reg_dmabuf_mr)(hk_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access,
                              int mlx5_access);
} functions;
enum { MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT = 1 };

#define SYMBOL(member) HK_DL_SYMBOL(struct mlx5, member, "mlx5dv_" #member)
static const hk_dl_symbol symbols[] = {SYMBOL(is_supported), SYMBOL(get_data_direct_sysfs_path), SYMBOL(reg_dmabuf_mr)};
static hk_dl library = HK_DL_LIBRARY(functions, symbols, HK_SUB_NET, "data-direct functions of cards are not used",
                                     "libmlx5.so.1", "libmlx5.so");

bool hk_ib_direct_is_possible(const hk_settings *set) { return set->IB_DATA_DIRECT != 0 && hk_dl_load(&library); }

bool hk_ib_direct_function(const hk_settings *set, hk_ibv_context *card, char path[HK_SYSFS_PATH]) {
  if (!hk_ib_direct_is_possible(set) || !functions.is_supported(card->device)) return false;
  char below[HK_SYSFS_PATH - 8] = "";
  if (functions.get_data_direct_sysfs_path(card, below, sizeof below) != 0) return false;
  snprintf(path, HK_SYSFS_PATH, "/sys%s%s", below[0] == '/' ? "" : "/", below);
  return true;
}

hk_path_class hk_ib_direct_distance(const char *function, const hk_device *gpu, hk_path_class otherwise) {
  char path[HK_SYSFS_PATH], bus[sizeof gpu->limits.bus_id];
  size_t n = strlen(gpu->limits.bus_id);
  for (size_t i = 0; i <= n; i++) bus[i] = (char)tolower((unsigned char)gpu->limits.bus_id[i]); /* as in /sys */
  return hk_sysfs_real(hk_ib_root(), path, "/sys/bus/pci/devices/%s", bus) ? hk_ib_pci_class(function, path)
                                                                           : otherwise;
}

hk_ibv_mr *hk_ib_direct_register(hk_ibv_pd *pd, size_t bytes, uint64_t iova, int fd, int access) {
  return functions.reg_dmabuf_mr(pd, 0, bytes, iova, fd, access, MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT);
}
