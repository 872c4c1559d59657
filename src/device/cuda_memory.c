/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's memory: classic and virtual allocations, pinned host memory, sharing with other processes. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../base/log.h"
#include "cuda.h"
#include "host.h"

static CUdeviceptr cuda_memory_address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }
static void *cuda_memory_pointer(CUdeviceptr p) { return (void *)(uintptr_t)p; }

CUmemAllocationProp hk_cuda_host_properties(const hk_cuda *d) {
  const int node = d->base.limits.host_numa;
  return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node < 0 ? 0 : node}};
}

static CUmemAllocationProp cuda_memory_properties(const hk_cuda *d) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, d->device}};
  prop.allocFlags.gpuDirectRDMACapable = d->base.limits.gdr;
  return prop;
}

size_t hk_cuda_granule(hk_cuda *d) {
  size_t granule = 0;
  CUmemAllocationProp prop = cuda_memory_properties(d);
  if (!hk_cu.MemGetAllocationGranularity || !hk_cu.MemExportToShareableHandle ||
      hk_cu.MemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    return 0;
  return granule;
}

/* Maps physical memory at new addresses. */
hk_status hk_cuda_map(hk_cuda *d, CUmemGenericAllocationHandle handle, size_t bytes, bool for_peers, CUdeviceptr *out) {
  hk_status rc = HK_OK;
  int ordinal = d->base.limits.ordinal;
  CUdeviceptr at = 0;
  HK_CUDA_OR_RETURN(hk_cu.MemAddressReserve(&at, bytes, d->granule, 0, 0), "device %d: addresses for %zu bytes",
                    ordinal, bytes);
  HK_TRY(hk_cuda_map_at(d, at, handle, bytes, for_peers), undo);
  *out = at;
  return HK_OK;
undo:
  hk_cu.MemAddressFree(at, bytes);
  return rc;
}

/* *doing: the step that failed. */
static CUresult cuda_memory_alloc_host_vmm(const hk_cuda *d, size_t bytes, hk_memory *out, const char **doing) {
  const CUmemAllocationProp prop = hk_cuda_host_properties(d);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at = 0;
  *doing = "allocating it";
  CUresult code = hk_cu.MemCreate(&handle, bytes, &prop, 0);
  if (code != CUDA_SUCCESS) return code;
  *doing = "addresses for it";
  code = hk_cu.MemAddressReserve(&at, bytes, d->granule, 0, 0);
  if (code == CUDA_SUCCESS) {
    *doing = "access of the host and the devices to it";
    code = hk_cuda_map_host_at(d, at, handle, bytes);
    if (code != CUDA_SUCCESS) hk_cu.MemAddressFree(at, bytes);
  }
  if (code != CUDA_SUCCESS) {
    hk_cu.MemRelease(handle);
    return code;
  }
  memset(cuda_memory_pointer(at), 0, bytes);
  *out = (hk_memory){.base = cuda_memory_pointer(at),
                     .host = cuda_memory_pointer(at),
                     .bytes = bytes,
                     .handle = handle,
                     .kind = HK_MEMORY_VMM};
  return CUDA_SUCCESS;
}

static hk_status cuda_memory_alloc_vmm(hk_cuda *d, size_t bytes, hk_memory *out) {
  hk_status rc = HK_OK;
  CUmemAllocationProp prop = cuda_memory_properties(d);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at = 0;
  size_t whole = (bytes + d->granule - 1) / d->granule * d->granule;
  HK_CUDA_OR_RETURN(hk_cu.MemCreate(&handle, whole, &prop, 0), "device %d: %zu bytes", d->base.limits.ordinal, whole);
  HK_TRY(hk_cuda_map(d, handle, whole, true, &at), undo);
  *out = (hk_memory){.base = cuda_memory_pointer(at), .bytes = whole, .handle = handle, .kind = HK_MEMORY_VMM};
  return HK_OK;
undo:
  hk_cu.MemRelease(handle);
  return rc;
}

static hk_status cuda_memory_zero(hk_cuda *d, CUdeviceptr at, size_t bytes) {
  hk_status rc = HK_OK;
  hk_queue q = d->base.own;
  /* A stream for each allocation would take the hardware queues that kernels need (docs/gpu.md). */
  if (!q) HK_OR_RETURN(hk_cuda_queue_new(&d->base, &q));
  HK_CUDA_TRY(hk_cu.MemsetD8Async(at, 0, bytes, q), undo, "device %d: zeroing %zu bytes", d->base.limits.ordinal,
              bytes);
  rc = hk_cuda_wait(&d->base, q);
undo:
  if (q != d->base.own) hk_cu.StreamDestroy(q);
  return rc;
}

static hk_status cuda_memory_alloc_classic(const hk_cuda *d, size_t bytes, hk_memory *out) {
  CUdeviceptr at;
  HK_CUDA_OR_RETURN(hk_cu.MemAlloc(&at, bytes), "device %d: %zu bytes", d->base.limits.ordinal, bytes);
  *out = (hk_memory){.base = cuda_memory_pointer(at), .bytes = bytes, .kind = HK_MEMORY_CLASSIC};
  return HK_OK;
}

/* Zeroes the first `bytes` of new memory, or frees it. */
static hk_status cuda_memory_zeroed_or_freed(hk_cuda *d, size_t bytes, hk_memory *m) {
  hk_status rc = bytes ? cuda_memory_zero(d, cuda_memory_address(m->base), bytes) : HK_OK;
  if (rc != HK_OK) (void)hk_cuda_release(&d->base, m); /* the first failure is reported */
  return rc;
}

hk_status hk_cuda_alloc_mapped(hk_cuda *d, size_t bytes, size_t zeroed, hk_memory *out) {
  HK_OR_RETURN(cuda_memory_alloc_vmm(d, bytes, out));
  return cuda_memory_zeroed_or_freed(d, zeroed, out);
}

/* Small pieces are classic memory, so that they do not waste a granule of 2 MiB. */
static hk_status memory_alloc(hk_device *base, size_t bytes, hk_memory *out) {
  hk_cuda *d = (hk_cuda *)base;
  memset(out, 0, sizeof *out);
  if (bytes == 0) bytes = 1;
  if (bytes > SIZE_MAX / 2) return HK_FAIL(HK_ERR_ARGUMENT, "cannot allocate %zu bytes", bytes);
  HK_CUDA_ENTER_RELAXED(base);
  HK_OR_RETURN(d->granule && bytes >= d->granule / 2 ? cuda_memory_alloc_vmm(d, bytes, out)
                                                     : cuda_memory_alloc_classic(d, bytes, out));
  return cuda_memory_zeroed_or_freed(d, out->bytes, out);
}

/* Classic memory: with mappings, each peer would need an access of its own. */
static hk_status memory_alloc_open(hk_device *base, size_t bytes, size_t zeroed, hk_memory *out) {
  hk_cuda *d = (hk_cuda *)base;
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  HK_OR_RETURN(cuda_memory_alloc_classic(d, bytes, out));
  return cuda_memory_zeroed_or_freed(d, zeroed, out);
}

static hk_status memory_alloc_shared(hk_device *base, size_t bytes, size_t zeroed, bool by_fd, hk_memory *out) {
  if (!by_fd || !base->limits.fd_handles) return memory_alloc_open(base, bytes, zeroed, out);
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  return hk_cuda_alloc_mapped((hk_cuda *)base, bytes, zeroed, out);
}

static hk_status memory_pin(hk_device *base, void *host, size_t bytes, hk_memory *out) {
  hk_status rc;
  CUdeviceptr at;
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemHostRegister(host, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                    "pinning %zu bytes at %p (ulimit -l says how much a process may have)", bytes, host);
  HK_CUDA_TRY(hk_cu.MemHostGetDevicePointer(&at, host, 0), undo, "device %d: the address of pinned memory",
              base->limits.ordinal);
  *out = (hk_memory){.base = cuda_memory_pointer(at), .host = host, .bytes = bytes, .kind = HK_MEMORY_REGISTERED};
  return HK_OK;
undo:
  hk_cu.MemHostUnregister(host);
  return rc;
}

/* Pages of the device's NUMA node, which cuMemHostAlloc does not promise. */
static hk_status memory_alloc_host(hk_device *base, size_t bytes, hk_memory *out) {
  hk_status rc = HK_OK;
  size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
  memset(out, 0, sizeof *out);
  void *host = hk_host_map(whole, base->limits.host_numa);
  if (!host) return HK_FAIL_ERRNO("no memory for %zu bytes to pin", whole);
  HK_TRY(memory_pin(base, host, whole, out), undo); /* pinning touches the pages, which are zeros */
  out->bytes = bytes;
  out->kind = HK_MEMORY_PINNED;
  return HK_OK;
undo:
  munmap(host, whole);
  return rc;
}

static hk_status memory_alloc_host_late(hk_device *base, size_t bytes, hk_memory *out) {
  const hk_cuda *d = (hk_cuda *)base;
  const char *doing;
  if (!base->limits.late_host) return memory_alloc_host(base, bytes, out);
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  CUresult code = cuda_memory_alloc_host_vmm(d, (bytes + d->granule - 1) / d->granule * d->granule, out, &doing);
  if (code == CUDA_SUCCESS) return HK_OK;
  /* The process is not allowed to use that node's memory, or the driver cannot map it for a device. */
  HK_INFO_ONCE(
      HK_SUB_ALLOC,
      "device %d: no virtual memory of the host on node %d (%s: error %d of the driver): it is pinned, which may "
      "wait for kernels",
      base->limits.ordinal, hk_cuda_host_properties(d).location.id, doing, code);
  return memory_alloc_host(base, bytes, out);
}

static size_t cuda_memory_whole_pages(const hk_memory *m) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (m->bytes + page - 1) / page * page;
}
static void cuda_memory_unmap_pages(const hk_memory *m) { munmap(m->host, cuda_memory_whole_pages(m)); }

static CUresult cuda_memory_release_mapping(const hk_memory *m) {
  CUdeviceptr at = cuda_memory_address(m->base);
  if (m->parked) return hk_cu.MemAddressFree(at, m->bytes);
  CUresult code = hk_cuda_unmap(at, m->bytes);
  CUresult next = m->kind == HK_MEMORY_PLACED ? CUDA_SUCCESS : hk_cu.MemAddressFree(at, m->bytes);
  if (code == CUDA_SUCCESS) code = next;
  next = hk_cu.MemRelease(m->handle);
  return code == CUDA_SUCCESS ? next : code;
}

hk_status hk_cuda_release(hk_device *base, hk_memory *m) {
  const void *at = m->base;
  CUresult code = CUDA_SUCCESS;
  if (!at) return HK_OK;
  HK_CUDA_ENTER_RELAXED(base);
  switch (m->kind) {
    case HK_MEMORY_NONE: break;
    case HK_MEMORY_CLASSIC: code = hk_cu.MemFree(cuda_memory_address(m->base)); break;
    case HK_MEMORY_VMM:
    case HK_MEMORY_MAPPED:
    case HK_MEMORY_PLACED: code = cuda_memory_release_mapping(m); break;
    case HK_MEMORY_MULTICAST: code = hk_cuda_multicast_leave((hk_cuda *)base, m); break;
    case HK_MEMORY_PINNED:
      if (!m->parked) code = hk_cu.MemHostUnregister(m->host);
      if (code == CUDA_SUCCESS) cuda_memory_unmap_pages(m);
      break;
    case HK_MEMORY_REGISTERED:
      if (!m->parked) code = hk_cu.MemHostUnregister(m->host);
      break;
    case HK_MEMORY_OPENED: code = hk_cu.IpcCloseMemHandle(cuda_memory_address(m->base)); break;
  }
  memset(m, 0, sizeof *m);
  HK_CUDA_OR_RETURN(code, "device %d: freeing %p", base->limits.ordinal, at);
  return HK_OK;
}

/* ---- parked memory ---- */

static bool cuda_memory_is_pinned(const hk_memory *m) {
  return m->kind == HK_MEMORY_PINNED || m->kind == HK_MEMORY_REGISTERED;
}

static hk_status memory_park(hk_device *base, hk_memory *m) {
  HK_CUDA_ENTER_RELAXED(base);
  if (m->kind == HK_MEMORY_MULTICAST) {
    HK_CUDA_OR_RETURN(hk_cuda_multicast_park((hk_cuda *)base, m), "device %d: leaving a multicast object",
                      base->limits.ordinal);
    return HK_OK;
  }
  if (cuda_memory_is_pinned(m)) {
    HK_CUDA_OR_RETURN(hk_cu.MemHostUnregister(m->host), "device %d: unpinning %p", base->limits.ordinal, m->host);
    if (m->kind == HK_MEMORY_PINNED || madvise(m->host, cuda_memory_whole_pages(m), MADV_REMOVE) != 0)
      (void)madvise(m->host, cuda_memory_whole_pages(m), MADV_DONTNEED); /* a private mapping */
    m->parked = true;
    return HK_OK;
  }
  HK_CUDA_OR_RETURN(hk_cuda_unmap(cuda_memory_address(m->base), m->bytes), "device %d: unmapping %p",
                    base->limits.ordinal, m->base);
  m->parked = true;
  HK_CUDA_OR_RETURN(hk_cu.MemRelease(m->handle), "device %d: giving back %zu bytes", base->limits.ordinal, m->bytes);
  return HK_OK;
}

/* Host memory must have the same address for host and device. */
static hk_status cuda_memory_pin_again(hk_cuda *d, hk_memory *m) {
  hk_status rc = HK_OK;
  CUdeviceptr at = 0;
  HK_CUDA_OR_RETURN(hk_cu.MemHostRegister(m->host, cuda_memory_whole_pages(m),
                                          CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                    "pinning %zu bytes at %p again", m->bytes, m->host);
  HK_CUDA_TRY(hk_cu.MemHostGetDevicePointer(&at, m->host, 0), undo, "device %d: the address of pinned memory",
              d->base.limits.ordinal);
  if (cuda_memory_pointer(at) == m->base) return HK_OK;
  rc = HK_FAIL(HK_ERR_CUDA, "device %d: pinned memory is at %p now, not at %p", d->base.limits.ordinal,
               cuda_memory_pointer(at), m->base);
undo:
  hk_cu.MemHostUnregister(m->host); /* it stays parked */
  return rc;
}

static hk_status memory_unpark(hk_device *base, hk_memory *m, const hk_memory_share *s, size_t zeroed, hk_queue q) {
  hk_status rc = HK_OK;
  hk_cuda *d = (hk_cuda *)base;
  const CUmemAllocationProp prop = m->host ? hk_cuda_host_properties(d) : cuda_memory_properties(d);
  CUmemGenericAllocationHandle handle;
  int ordinal = base->limits.ordinal;
  HK_CUDA_ENTER_RELAXED(base);
  if (cuda_memory_is_pinned(m)) {
    HK_OR_RETURN(cuda_memory_pin_again(d, m)); /* new pages are zeros */
    m->parked = false;
    return HK_OK;
  }
  if (s)
    HK_CUDA_OR_RETURN(
        hk_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)s->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "device %d: a peer's memory of %zu bytes", ordinal, m->bytes);
  else
    HK_CUDA_OR_RETURN(hk_cu.MemCreate(&handle, m->bytes, &prop, 0), "device %d: %zu bytes that were given back",
                      ordinal, m->bytes);
  if (m->host)
    HK_CUDA_TRY(hk_cuda_map_host_at(d, cuda_memory_address(m->base), handle, m->bytes), undo,
                "device %d: mapping %zu bytes of the host again", ordinal, m->bytes);
  else
    HK_TRY(hk_cuda_map_at(d, cuda_memory_address(m->base), handle, m->bytes, !s), undo);
  m->handle = handle;
  m->parked = false;
  if (zeroed)
    HK_CUDA_OR_RETURN(hk_cu.MemsetD8Async(cuda_memory_address(m->base), 0, zeroed, q), "device %d: zeroing %zu bytes",
                      ordinal, zeroed);
  return HK_OK;
undo:
  hk_cu.MemRelease(handle);
  return rc;
}

hk_status hk_cuda_finish(hk_device *base) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.CtxSynchronize(), "device %d: waiting for all its work", base->limits.ordinal);
  return HK_OK;
}

/* ---- other processes ---- */

static hk_status cuda_memory_share_offer(hk_device *base, const hk_memory *m, hk_memory_share *out) {
  CUipcMemHandle handle;
  memset(out, 0, sizeof *out);
  *out = (hk_memory_share){.bytes = m->bytes, .kind = m->kind, .fd = -1};
  HK_CUDA_ENTER(base);
  if (m->kind == HK_MEMORY_VMM) {
    HK_CUDA_OR_RETURN(
        hk_cu.MemExportToShareableHandle(&out->fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "device %d: a file descriptor of %zu bytes", base->limits.ordinal, m->bytes);
  } else if (m->kind == HK_MEMORY_CLASSIC) {
    HK_CUDA_OR_RETURN(hk_cu.IpcGetMemHandle(&handle, cuda_memory_address(m->base)), "device %d: a handle of %zu bytes",
                      base->limits.ordinal, m->bytes);
    memcpy(out->handle, handle.reserved, sizeof out->handle);
  } else {
    return HK_FAIL(HK_ERR_INTERNAL, "device %d: memory of kind %d cannot be shared", base->limits.ordinal,
                   (int)m->kind);
  }
  return HK_OK;
}

static hk_status cuda_memory_share_offer_address(hk_device *base, const void *p, hk_memory_share *out,
                                                 uintptr_t *begin) {
  hk_cuda *d = (hk_cuda *)base;
  int classic = 0;
  CUdeviceptr first = 0;
  CUmemGenericAllocationHandle physical = 0;
  hk_memory m = {.kind = HK_MEMORY_CLASSIC};
  memset(out, 0, sizeof *out);
  out->fd = -1;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemGetAddressRange(&first, &m.bytes, cuda_memory_address(p)), "device %d: whose memory %p is",
                    base->limits.ordinal, p);
  m.base = cuda_memory_pointer(first);
  *begin = (uintptr_t)m.base;
  if (d->granule && hk_cu.MemRetainAllocationHandle &&
      hk_cu.PointerGetAttribute(&classic, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, first) == CUDA_SUCCESS &&
      !(classic & 0xff)) {
    HK_CUDA_OR_RETURN(hk_cu.MemRetainAllocationHandle(&physical, m.base), "device %d: the physical memory of %p",
                      base->limits.ordinal, p);
    m.kind = HK_MEMORY_VMM;
    m.handle = physical;
  }
  hk_status rc = cuda_memory_share_offer(base, &m, out);
  if (m.kind == HK_MEMORY_VMM) hk_cu.MemRelease(physical);
  return rc;
}

static hk_status cuda_memory_open_fd(hk_cuda *d, const hk_memory_share *s, hk_memory *out) {
  hk_status rc = HK_OK;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at;
  HK_CUDA_OR_RETURN(
      hk_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)s->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "device %d: a peer's memory of %llu bytes", d->base.limits.ordinal, (unsigned long long)s->bytes);
  HK_TRY(hk_cuda_map(d, handle, s->bytes, false, &at), undo);
  *out = (hk_memory){.base = cuda_memory_pointer(at), .bytes = s->bytes, .handle = handle, .kind = HK_MEMORY_MAPPED};
  return HK_OK;
undo:
  hk_cu.MemRelease(handle);
  return rc;
}

static hk_status cuda_memory_share_open(hk_device *base, const hk_memory_share *s, hk_memory *out) {
  hk_cuda *d = (hk_cuda *)base;
  CUipcMemHandle handle;
  CUdeviceptr at;
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  if (s->kind == HK_MEMORY_VMM) {
    if (d->granule) return cuda_memory_open_fd(d, s, out);
    return HK_FAIL(HK_ERR_CUDA, "device %d: a peer's memory comes by file descriptor, which the device cannot open",
                   base->limits.ordinal);
  } else if (s->kind == HK_MEMORY_CLASSIC) {
    memcpy(handle.reserved, s->handle, sizeof handle.reserved);
    HK_CUDA_OR_RETURN(
        hk_cu.IpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "device %d: a peer's memory of %llu bytes (a container without a shared IPC namespace forbids it)",
        base->limits.ordinal, (unsigned long long)s->bytes);
    *out = (hk_memory){.base = cuda_memory_pointer(at), .bytes = s->bytes, .kind = HK_MEMORY_OPENED};
  } else {
    return HK_FAIL(HK_ERR_INTERNAL, "device %d: a peer shares memory of kind %u", base->limits.ordinal, s->kind);
  }
  return HK_OK;
}

static hk_status cuda_memory_share_peer(hk_device *base, int other, char *why, size_t why_bytes) {
  hk_cuda *d = (hk_cuda *)base;
  CUdevice peer;
  CUcontext context;
  int can = 0;
  why[0] = 0;
  if (other == base->limits.ordinal) return HK_OK;
  HK_CUDA_OR_RETURN(hk_cu.DeviceGet(&peer, other), "device %d", other);
  HK_CUDA_OR_RETURN(hk_cu.DeviceCanAccessPeer(&can, d->device, peer), "devices %d and %d", base->limits.ordinal, other);
  if (!can) {
    snprintf(why, why_bytes, "the driver says that device %d cannot reach the memory of device %d",
             base->limits.ordinal, other);
    return HK_ERR_CUDA;
  }
  /* The peer's primary context stays retained: mappings into it must not outlive it. */
  HK_CUDA_OR_RETURN(hk_cu.DevicePrimaryCtxRetain(&context, peer), "the primary context of device %d", other);
  HK_CUDA_ENTER(base);
  CUresult code = hk_cu.CtxEnablePeerAccess(context, 0);
  if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    HK_CUDA_OR_RETURN(code, "peer access from device %d to %d", base->limits.ordinal, other);
  return HK_OK;
}

/* ---- addresses ---- */

static hk_status memory_pointer(hk_device *base, const void *p, hk_pointer *out) {
  int type = 0, managed = 0, device = -1;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  uint64_t id = 0;
  int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                 CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void *values[] = {&type, &managed, &device, &begin, &bytes, &id};
  *out = (hk_pointer){.kind = HK_POINTER_HOST, .device = -1};
  HK_CUDA_ENTER(base);
  /* Unlike for a single attribute, memory that CUDA does not know is no error: all values are then 0. */
  HK_CUDA_OR_RETURN(hk_cu.PointerGetAttributes((unsigned)HK_ARRAY_LENGTH(which), which, values, cuda_memory_address(p)),
                    "device %d: whose memory %p is", base->limits.ordinal, p);
  if (type == 0) return HK_OK;
  *out = (hk_pointer){.kind = managed                        ? HK_POINTER_MANAGED
                              : type == CU_MEMORYTYPE_DEVICE ? HK_POINTER_DEVICE
                                                             : HK_POINTER_PINNED,
                      .device = device,
                      .base = (uintptr_t)begin,
                      .bytes = bytes,
                      .id = id};
  return HK_OK;
}

static hk_status cuda_memory_card_dmabuf(hk_device *base, const void *p, size_t bytes, bool pci, int *fd) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  *fd = -1;
  if (!base->limits.dmabuf)
    return HK_FAIL(HK_ERR_CUDA, "device %d: the driver gives no dma-buf (it needs the open kernel modules)",
                   base->limits.ordinal);
  if (((uintptr_t)p | bytes) & (page - 1))
    return HK_FAIL(HK_ERR_INTERNAL, "device %d: a dma-buf of %zu bytes at %p: not whole pages", base->limits.ordinal,
                   bytes, p);
  HK_CUDA_ENTER_RELAXED(base); /* a proxy may call this while other threads capture */
  /* Drivers before CUDA 12.8 refuse the flag. */
  if (pci && hk_cu.MemGetHandleForAddressRange(fd, cuda_memory_address(p), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                               CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) == CUDA_SUCCESS)
    return HK_OK;
  HK_CUDA_OR_RETURN(
      hk_cu.MemGetHandleForAddressRange(fd, cuda_memory_address(p), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      "device %d: a dma-buf of %zu bytes at %p", base->limits.ordinal, bytes, p);
  return HK_OK;
}

static hk_status cuda_memory_card_flush(hk_device *base) {
  if (!base->limits.rdma_flush)
    return HK_FAIL(HK_ERR_CUDA, "device %d: the driver has no call that waits for what cards write to its memory",
                   base->limits.ordinal);
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.FlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                   CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
                    "device %d: waiting for what a network card has written to its memory", base->limits.ordinal);
  return HK_OK;
}

const hk_device_memory_ops hk_cuda_memory = {.alloc = memory_alloc,
                                             .alloc_open = memory_alloc_open,
                                             .alloc_shared = memory_alloc_shared,
                                             .alloc_host = memory_alloc_host,
                                             .alloc_host_late = memory_alloc_host_late,
                                             .pin = memory_pin,
                                             .release = hk_cuda_release,
                                             .park = memory_park,
                                             .unpark = memory_unpark,
                                             .pointer = memory_pointer};

const hk_device_share_ops hk_cuda_share = {.offer = cuda_memory_share_offer,
                                           .offer_address = cuda_memory_share_offer_address,
                                           .open = cuda_memory_share_open,
                                           .peer = cuda_memory_share_peer};

const hk_device_card_ops hk_cuda_card = {.dmabuf = cuda_memory_card_dmabuf, .flush = cuda_memory_card_flush};
