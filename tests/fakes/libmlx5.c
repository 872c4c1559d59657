/* SPDX-License-Identifier: Apache-2.0 */
/* The part of libmlx5 that knows data-direct functions: those of the fake libibverbs.so.1's devices that have one. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include "verbs_parts.h"

EXPORT _Bool mlx5dv_is_supported(hk_ibv_device *d);
EXPORT int mlx5dv_get_data_direct_sysfs_path(hk_ibv_context *c, char *path, size_t bytes);
EXPORT hk_ibv_mr *mlx5dv_reg_dmabuf_mr(hk_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access,
                                       int mlx5_access);

/* A symbol of the library whose devices they are; it is loaded already. */
static void *verbs(const char *name) {
  void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = lib ? dlsym(lib, name) : NULL;
  must(found != NULL, "libmlx5 is used without libibverbs");
  dlclose(lib);
  return found;
}
static fake_verbs_device *device_of(const hk_ibv_device *d) {
  return &((fake_verbs_state *)verbs("fake_verbs"))->device[((const device *)(const void *)d)->index];
}

_Bool mlx5dv_is_supported(hk_ibv_device *d) { return device_of(d)->mlx5 != 0; }

int mlx5dv_get_data_direct_sysfs_path(hk_ibv_context *c, char *path, size_t bytes) {
  const fake_verbs_device *d = device_of(c->device);
  must(d->mlx5, "libmlx5 is asked about a card of another maker");
  if (!d->second) return ENODEV;
  if (strlen(d->second) >= bytes) return ENOSPC;
  strcpy(path, d->second);
  return 0;
}

hk_ibv_mr *mlx5dv_reg_dmabuf_mr(hk_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access,
                                int mlx5_access) {
  fake_verbs_device *d = device_of(pd->context->device);
  hk_ibv_mr *(*take)(hk_ibv_pd *, uint64_t, size_t, uint64_t, int, int);
  must(d->mlx5 && d->second && mlx5_access == 1, "memory for a data-direct function that is not there");
  *(void **)&take = verbs("ibv_reg_dmabuf_mr");
  errno = d->no_direct;
  hk_ibv_mr *mr = errno ? NULL : take(pd, offset, bytes, iova, fd, access);
  if (mr) __atomic_fetch_add(&d->directs, 1, __ATOMIC_RELAXED); /* relaxed: only a count */
  return mr;
}
