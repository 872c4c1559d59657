/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with RDMA devices: fake_rdma.h. */
#include "fake_rdma.h"

/* In place of libc's: a test may not be allowed to raise its limit. Sanitizers call it before their memory is
 * ready. */
bool rdma_plenty, rdma_scarce;
__attribute__((no_sanitize("address", "undefined", "thread"))) int getrlimit(__rlimit_resource_t resource,
                                                                             struct rlimit *limit) {
  if (resource != RLIMIT_MEMLOCK || !(rdma_plenty || rdma_scarce)) return prlimit(0, resource, NULL, limit);
  *limit = rdma_scarce ? (struct rlimit){1 << 23, 1 << 23} : (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
  return 0;
}

bool rdma_lock(bool has) {
  const uint32_t lock = 1u << 14;
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  ck_assert_int_eq(syscall(SYS_capget, &head, data), 0);
  data[0].effective = has ? data[0].effective | lock : data[0].effective & ~lock;
  return syscall(SYS_capset, &head, data) == 0;
}

void rdma_param(const char *name, const char *value) {
  setenv(name, value, 1);
  hk_param_reload();
}

void rdma_port(int device) {
  static const char *const kinds[] = {"IB/RoCE v1", "RoCE v2"};
  char path[160];
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/gids/%d", device, i);
    if (i < 2)
      fm_file(path, "fe80:0000:0000:0000:0000:0000:0000:00%02x\n", device + 1);
    else
      fm_file(path, "0000:0000:0000:0000:0000:ffff:0a00:00%02x\n", device + 1);
    snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/gid_attrs/types/%d", device, i);
    fm_file(path, "%s\n", kinds[i % 2]);
  }
  snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/state", device);
  fm_file(path, "4: ACTIVE\n");
  snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/link_layer", device);
  fm_file(path, "Ethernet\n");
}

void *rdma_fake(const char *file, const char *symbol) {
  char self[512], path[640];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  ck_assert_int_gt(n, 0);
  self[n] = '\0';
  snprintf(path, sizeof path, "%s/../fakes/%s", dirname(self), file);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(lib != NULL, "%s", dlerror());
  void *found = dlsym(lib, symbol);
  ck_assert_ptr_nonnull(found);
  return found;
}

fake_verbs_state *rdma_begin(int devices) {
  fake_verbs_state *v = rdma_fake("libibverbs.so.1", "fake_verbs");
  rdma_fake("libmlx5.so.1", "mlx5dv_is_supported");
  scratch_make();
  ck_assert(rdma_lock(false)); /* root has it, and then no limit counts */
  v->ndevices = devices;
  v->addressed = 1;
  for (int i = 0; i < devices; i++) {
    snprintf(v->device[i].name, sizeof v->device[i].name, "fake%d", i);
    rdma_port(i);
  }
  setenv("NCCL_DEBUG", "WARN", 0);
  rdma_param("HOCKET_IB_ROOT", scratch_folder);
  return v;
}

void rdma_end(const fake_verbs_state *v) {
  ck_assert_int_eq(v->nqps, 0);
  ck_assert_int_eq(v->nmrs, 0);
  ck_assert_int_eq(v->ncqs, 0);
  ck_assert_int_eq(v->nchannels, 0);
  ck_assert_int_eq(v->npds, 0);
  ck_assert_int_eq(v->ncontexts, 0);
  ck_assert_int_eq(v->nlists, 0);
  ck_assert_uint_eq(v->starved, 0);
  ck_assert_uint_eq(v->locked, 0);
  scratch_remove();
}
