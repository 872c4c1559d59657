/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's start, what the environment asks for, devices and contexts. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "emu.h"

emu_config emu;
pthread_mutex_t emu_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static struct CUctx_st primaries[EMU_DEVICES];

bool emu_started(void) { return started; }

static long held[CUDAEMU_HELD];
void emu_hold(int kind, int by) { __atomic_add_fetch(&held[kind], by, __ATOMIC_RELAXED); }
EXPORT void cudaemu_held(long out[CUDAEMU_HELD]);
void cudaemu_held(long out[CUDAEMU_HELD]) {
  for (int i = 0; i < CUDAEMU_HELD; i++) out[i] = __atomic_load_n(&held[i], __ATOMIC_RELAXED);
}

bool emu_fails(long *left) { return *left > 0 && --*left == 0; }

/* ---- the environment ---- */

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  char *end;
  if (!text || !*text) return otherwise;
  long x = strtol(text, &end, 0);
  if (*end) {
    fprintf(stderr, "cudaemu: %s=%s is not a number\n", name, text);
    abort();
  }
  return x;
}
/* CUDAEMU_PEER: 0, 1 (default), or a row of digits for each device: "011,101,110". */
static void read_peers(void) {
  const char *text = getenv("CUDAEMU_PEER");
  bool all = !text || strcmp(text, "1") == 0, rows = text && strchr(text, ',');
  for (int i = 0; i < EMU_DEVICES; i++) {
    for (int k = 0; k < EMU_DEVICES; k++) {
      emu.peer[i][k] = i == k || (rows ? *text == '1' : all);
      if (rows && (*text == '0' || *text == '1')) text++;
    }
    if (rows && *text == ',') text++;
  }
}
/* 0: each stream has a hardware queue of its own.  Else so many for each context, if the user does not ask for another
 * number as with the real driver, which takes 1 to 32. */
static unsigned connections(void) {
  const long of_device = number("CUDAEMU_CONNECTIONS", 0);
  const long n = of_device > 0 ? number("CUDA_DEVICE_MAX_CONNECTIONS", of_device) : 0;
  return n < 0 ? 0 : n > EMU_QUEUES ? EMU_QUEUES : (unsigned)n;
}
static void configure(void) {
  long n = number("CUDAEMU_DEVICES", 2);
  emu.ndevices = n < 0 ? 0 : n > EMU_DEVICES ? EMU_DEVICES : (int)n;
  emu.sm = (int)number("CUDAEMU_SM", 90);
  emu.sms = (int)number("CUDAEMU_SMS", 32);
  emu.max_threads = (int)number("CUDAEMU_THREADS", 128);
  emu.memory = (size_t)number("CUDAEMU_MEMORY_MB", 4096) << 20;
  emu.strict = number("CUDAEMU_STRICT", 0) != 0;
  emu.weak = number("CUDAEMU_WEAK", 0) != 0;
  emu.mig = number("CUDAEMU_MIG", 0) != 0;
  emu.sync_alloc = number("CUDAEMU_SYNC_ALLOC", 0) != 0;
  emu.one_context = number("CUDAEMU_ONE_CONTEXT", 0) != 0;
  emu.slice_us = (unsigned)number("CUDAEMU_SLICE_US", 0);
  emu.resident = number("CUDAEMU_RESIDENT", 0) != 0;
  emu.vmm = number("CUDAEMU_VMM", 1) != 0;
  emu.late_host = emu.vmm && number("CUDAEMU_HOST_VMM", 1) != 0;
  emu.import = number("CUDAEMU_IMPORT", 1) != 0;
  emu.captured_words = number("CUDAEMU_CAPTURED_WORDS", 1) != 0;
  emu.ipc = number("CUDAEMU_IPC", 1) != 0;
  emu.dmabuf = number("CUDAEMU_DMABUF", 0) != 0;
  emu.dmabuf_pci = number("CUDAEMU_DMABUF_PCI", 1) != 0;
  emu.dmabuf_vmm = number("CUDAEMU_DMABUF", 0) > 1;
  emu.rdma_flush = (int)number("CUDAEMU_RDMA_FLUSH", 1);
  emu.rdma_order = (int)number("CUDAEMU_RDMA_ORDER", CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  emu.multicast = emu.vmm && number("CUDAEMU_MULTICAST", 0) != 0;
  emu.multicast_granule = (size_t)number("CUDAEMU_MULTICAST_MB", 2) << 20;
  emu.corrupt_peer = number("CUDAEMU_CORRUPT_PEER", 0) != 0;
  emu.seed = (unsigned)number("CUDAEMU_SEED", 0);
  emu.slow_us = (unsigned)number("CUDAEMU_SLOW_US", 0);
  emu.watchdog = (unsigned)number("CUDAEMU_WATCHDOG", 0);
  emu.aliases = number("CUDAEMU_WEAK", 0) == 2;
  emu.apart = number("CUDAEMU_APART", 0) != 0;
  emu.patience = (unsigned)number("CUDAEMU_PATIENCE", 0);
  emu.connections = connections();
  emu.busy = (int)number("CUDAEMU_BUSY", -1);
  emu.queue = (unsigned)number("CUDAEMU_QUEUE", 1000);
  emu.local_bytes = (int)number("CUDAEMU_LOCAL_BYTES", 0);
  emu.fail_alloc = number("CUDAEMU_FAIL_ALLOC", 0);
  emu.fail_launch = number("CUDAEMU_FAIL_LAUNCH", 0);
  emu.fail_multicast = number("CUDAEMU_FAIL_MULTICAST", 0);
  emu.fail_kernel = number("CUDAEMU_FAIL_KERNEL", 0);
  read_peers();
}

CUresult cuInit(unsigned flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  if (!started) {
    struct rlimit files;
    configure();
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
      files.rlim_cur = files.rlim_max;
      setrlimit(RLIMIT_NOFILE, &files); /* a file for each physical allocation */
    }
    if (emu.ndevices) emu_memory_start();
    started = true;
  }
  return emu_unlock(emu.ndevices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
}
CUresult cuDriverGetVersion(int *version) {
  *version = 12080;
  return CUDA_SUCCESS;
}

/* ---- errors ---- */

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
};
static CUresult describe(CUresult code, const char **name, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) {
      if (name) *name = errors[i].name;
      if (text) *text = errors[i].text;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult code, const char **name) { return describe(code, name, NULL); }
CUresult cuGetErrorString(CUresult code, const char **text) { return describe(code, NULL, text); }

/* ---- devices ---- */

static CUresult bad_device(CUdevice device) {
  if (!started) return CUDA_ERROR_NOT_INITIALIZED;
  return device < 0 || device >= emu.ndevices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
  if (!started) return CUDA_ERROR_NOT_INITIALIZED;
  *count = emu.ndevices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult code = bad_device(ordinal);
  if (!code) *device = ordinal;
  return code;
}
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  CUresult code = bad_device(device);
  if (!code) snprintf(name, (size_t)bytes, "Emulated GPU sm_%d", emu.sm);
  return code;
}
/* With CUDAEMU_MIG the devices are slices of one GPU, whose id the older call gives for all. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  CUresult code = cuDeviceGetUuid_v2(uuid, device);
  if (!code && emu.mig) uuid->bytes[15] = 0xff;
  return code;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  CUresult code = bad_device(device);
  if (code) return code;
  memset(uuid, 0, sizeof *uuid);
  memcpy(uuid->bytes, "cudaemu", 7);
  const char *host = getenv("NCCL_HOSTID"); /* pretended hosts have GPUs of their own */
  if (host) memcpy(uuid->bytes + 7, host, strnlen(host, 8));
  uuid->bytes[15] = (unsigned char)device;
  return code;
}
/* Where the fake libnvidia-ml.so.1 stands next to this (tests/fakes/gpus.h), the GPUs are the same. */
static int pci_domain(void) { return getenv("HOCKET_TEST_GPUS") ? 0xff : 0; }
static int pci_bus(int device) { return device + (getenv("HOCKET_TEST_GPUS") ? 1 : 0x10); }

CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device) {
  CUresult code = bad_device(device);
  if (!code) snprintf(text, (size_t)bytes, "%04X:%02X:00.0", pci_domain(), pci_bus(device));
  return code;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  CUresult code = bad_device(device);
  if (!code) *bytes = emu.memory;
  return code;
}
CUresult cuDeviceGetAttribute(int *value, int which, CUdevice device) {
  CUresult code = bad_device(device);
  if (code) return code;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = CUDAEMU_WARP; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = emu.sms; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = pci_bus(device); break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = pci_domain(); break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2619000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5120; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = emu.sm / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = emu.sm % 10; break;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *value = emu.sm >= 90; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = emu.vmm; break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = emu.late_host; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = emu.dmabuf; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = emu.dmabuf && emu.dmabuf_vmm; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: *value = emu.rdma_flush; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: *value = emu.rdma_order; break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = emu.multicast; break;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  CUresult code = bad_device(device) ? bad_device(device) : bad_device(peer);
  if (!code) *can = device != peer && emu.peer[device][peer];
  return code;
}

/* ---- contexts ---- */

enum { STACKED = 16 };
static _Thread_local CUcontext stack[STACKED];
static _Thread_local int depth;

CUcontext emu_primary(int device) {
  return device >= 0 && device < emu.ndevices && primaries[device].refs ? &primaries[device] : NULL;
}
CUcontext emu_context(CUresult *code) {
  CUcontext ctx = depth ? stack[depth - 1] : NULL;
  *code = !started ? CUDA_ERROR_NOT_INITIALIZED : !ctx || !ctx->refs ? CUDA_ERROR_INVALID_CONTEXT : ctx->error;
  return *code ? NULL : ctx;
}
/* A released primary context keeps its streams and memory here, so that a late release does no harm. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
  CUresult code = bad_device(device);
  if (code) return code;
  pthread_mutex_lock(&emu_lock);
  CUcontext c = &primaries[device];
  c->device = device;
  if (!c->legacy) {
    c->legacy = emu_stream_new(c, CU_STREAM_DEFAULT, 0);
    c->legacy->legacy = true;
  }
  c->refs++;
  *ctx = c;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult code = bad_device(device);
  if (code) return code;
  pthread_mutex_lock(&emu_lock);
  if (!primaries[device].refs) return emu_unlock(CUDA_ERROR_INVALID_CONTEXT);
  primaries[device].refs--;
  return emu_unlock(CUDA_SUCCESS);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  CUresult code = bad_device(device);
  if (code) return code;
  *flags = 0;
  *active = primaries[device].refs > 0;
  return code;
}
CUresult cuCtxGetCurrent(CUcontext *ctx) {
  if (!started) return CUDA_ERROR_NOT_INITIALIZED;
  *ctx = depth ? stack[depth - 1] : NULL;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext ctx) {
  if (!started) return CUDA_ERROR_NOT_INITIALIZED;
  if (!ctx) {
    if (depth) depth--;
    return CUDA_SUCCESS;
  }
  if (!depth) depth = 1;
  stack[depth - 1] = ctx;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  if (!started) return CUDA_ERROR_NOT_INITIALIZED;
  if (!ctx || depth == STACKED) return CUDA_ERROR_INVALID_CONTEXT;
  stack[depth++] = ctx;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  depth--;
  if (ctx) *ctx = stack[depth];
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
  CUresult code = CUDA_SUCCESS;
  CUcontext ctx = depth ? stack[depth - 1] : NULL;
  if (!ctx) code = started ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
  if (ctx) *device = ctx->device;
  return code;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  if (!peer || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (!ctx) return emu_unlock(code);
  if (ctx->device == peer->device || !emu.peer[ctx->device][peer->device])
    return emu_unlock(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  if (ctx->peers & 1u << peer->device) return emu_unlock(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  ctx->peers |= 1u << peer->device;
  return emu_unlock(CUDA_SUCCESS);
}
EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (!ctx || !peer) return emu_unlock(code ? code : CUDA_ERROR_INVALID_CONTEXT);
  bool was = ctx->peers & 1u << peer->device;
  ctx->peers &= ~(1u << peer->device);
  return emu_unlock(was ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

/* ---- functions by name: the newest version that is here ---- */

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v3", "_v2", ""};
  char full[128];
  (void)version;
  (void)flags;
  if (!name || !fn) return CUDA_ERROR_INVALID_VALUE;
  *fn = NULL;
  Dl_info here;
  void *library = dladdr((void *)(uintptr_t)cuInit, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
  for (int i = 0; i < 3 && !*fn && library; i++) {
    snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
    *fn = dlsym(library, full);
  }
  if (library) dlclose(library);
  if (status) *status = *fn ? 0 : 1;
  return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
EXPORT CUresult cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags);
CUresult cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, fn, version, flags, NULL);
}
