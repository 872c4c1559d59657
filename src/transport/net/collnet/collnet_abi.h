/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ABI of NCCL's CollNet plugins, versions 8 to 12: networks that reduce. A net plugin's library may also export
 * structs ncclCollNetPlugin_v8 to _v12. As for net plugins (plugin_abi.h), one struct describes all versions:
 *
 *   v8   the oldest one here: 17 members
 *   v9   iallreduce's count is a size_t; makeVDevice
 *   v11  a context for each communicator, made by init and ended by finalize
 *
 * Properties are those of the net plugin of the same version. iallgather and ireducescatter may be absent. They move a
 * window of n blocks of equal length; block m belongs to number m. Here the window always covers all blocks, and there
 * is one part, because known plugins support no more.
 */
#pragma once
#include "../plugin/plugin_abi.h"

enum { COLLNET_OLDEST = 8 };

/* v8 has 32 bits of size and 32 unused bits: the same layout on little-endian machines. */
typedef struct collnet_part {
  void *registration, *address;
  size_t size;
} collnet_part;

typedef struct collnet_v {
  const char *name;
  union {
    int (*v8)(hk_plugin_logger log);
    int (*v11)(void **context, uint64_t comm, hk_plugin_logger log);
  } init;
  int (*devices)(int *n);
  int (*properties)(int device, void *properties); /* net_plugin_properties_v* */
  union {
    int (*v8)(int device, void *handle, void **listener);
    int (*v11)(void *context, int device, void *handle, void **listener);
  } listen;
  int (*connect)(void **handles, int n, int rank, void *listener, void **comm); /* returns when all have called it */
  int (*reduce_support)(int type, int op, int *supported);                      /* ncclDataType_t, ncclRedOp_t */
  int (*reg)(void *comm, void *data, size_t bytes, int type, void **registration);
  int (*reg_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **registration);
  int (*dereg)(void *comm, void *registration);
  union { /* may leave the request NULL: then the call must be repeated later */
    int (*v8)(void *comm, void *data, void *sum, int count, int type, int op, void *data_registration,
              void *sum_registration, void **request);
    int (*v9)(void *comm, void *data, void *sum, size_t count, int type, int op, void *data_registration,
              void *sum_registration, void **request);
  } iallreduce;
  int (*iallgather)(void *comm, void *data, int n, collnet_part *parts, size_t block_bytes, size_t window_at,
                    size_t window_bytes, void *data_registration, void **request);
  int (*ireducescatter)(void *comm, int n, collnet_part *parts, void *sum, size_t block_bytes, size_t window_at,
                        size_t window_bytes, int type, int op, void *sum_registration, void **request);
  int (*iflush)(void *comm, void *data, int bytes, void *registration, void **request);
  int (*test)(void *request, int *done, int *bytes);
  int (*close)(void *comm);
  int (*close_listen)(void *listener);
  /* v9 and newer */
  int (*make_virtual_device)(int *device, void *devices);
  /* v11 */
  int (*finalize)(void *context);
} collnet_v;
_Static_assert(offsetof(collnet_v, make_virtual_device) == 136, "v8's struct is 136 bytes");
_Static_assert(offsetof(collnet_v, finalize) == 144, "those of v9 and v10 are 144 bytes");
_Static_assert(sizeof(collnet_v) == 152, "v11's struct is 152 bytes");
