/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels' images and launches.  An image is a shared object (its bytes), the text "cudaemu:PATH", PTX, a fatbin with
 * PTX, or anything else for a real device: in its place kernels.so next to this library is loaded, or what
 * CUDAEMU_KERNELS names. */
#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "memory.h"

struct CUfunc_st {
  cudaemu_entry entry;
  ptx_fn *ptx; /* in place of entry */
  char name[128];
  int max_dynamic, local_bytes;
  CUfunction next;
};
struct CUmod_st {
  ptx_module *ptx; /* in place of library */
  void *library;
  int fd; /* of an image in memory; open as long as it is loaded, for its name is the loader's key */
  CUfunction functions;
};
/* For those who have no image for a device: it stands for the default. */
EXPORT extern const char cudaemu_image[];
const char cudaemu_image[] = "cudaemu:";

static void default_path(char *path, size_t bytes) {
  Dl_info here;
  const char *named = getenv("CUDAEMU_KERNELS");
  path[0] = '\0';
  if (named && *named) {
    snprintf(path, bytes, "%s", named);
  } else if (dladdr((void *)(uintptr_t)cuInit, &here)) {
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(path, bytes, "%.*skernels.so", slash ? (int)(slash - here.dli_fname) + 1 : 0, here.dli_fname);
  }
}
static void *open_bytes(const Elf64_Ehdr *elf, int *keep) {
  char path[64];
  size_t bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
  int fd = memfd_create("cudaemu-kernels", MFD_CLOEXEC);
  if (fd < 0 || write(fd, elf, bytes) != (ssize_t)bytes) return NULL;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  *keep = fd;
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
static void *open_image(const char *image, int *fd) {
  char path[PATH_MAX];
  Elf64_Ehdr elf;
  void *library;
  default_path(path, sizeof path);
  if (memcmp(image, "\177ELF", 4) == 0) {
    memcpy(&elf, image, sizeof elf);
    library = elf.e_machine == EM_CUDA ? dlopen(path, RTLD_NOW | RTLD_LOCAL)
                                       : open_bytes((const Elf64_Ehdr *)image, fd);
  } else {
    if (strncmp(image, "cudaemu:", 8) == 0 && image[8]) snprintf(path, sizeof path, "%s", image + 8);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) fprintf(stderr, "cudaemu: the kernels cannot be loaded: %s\n", dlerror());
  return library;
}

/* ---- PTX: an image that is PTX, and, with CUDAEMU_PTX, what is next to the objects that are asked for ---- */

static char *read_text(const char *path) {
  FILE *f = fopen(path, "r");
  long bytes = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
  char *text = bytes > 0 ? malloc((size_t)bytes + 1) : NULL;
  if (text) {
    rewind(f);
    text[fread(text, 1, (size_t)bytes, f)] = '\0';
  }
  if (f) fclose(f);
  return text;
}
/* With CUDAEMU_PTX, in place of the object X.so: X.ptx in that folder, or next to X.so (1), or that file. */
static char *text_beside(const char *image) {
  char so[PATH_MAX], path[PATH_MAX + 300];
  const char *named = getenv("CUDAEMU_PTX");
  if (!named || !*named || strcmp(named, "0") == 0) return NULL;
  default_path(so, sizeof so);
  if (strncmp(image, "cudaemu:", 8) == 0 && image[8]) snprintf(so, sizeof so, "%s", image + 8);
  const size_t stem = strlen(so) > 3 ? strlen(so) - 3 : 0;
  const char *slash = strrchr(so, '/'), *name = slash ? slash + 1 : so;
  struct stat s;
  if (strcmp(named, "1") == 0)
    snprintf(path, sizeof path, "%.*s.ptx", (int)stem, so);
  else if (stat(named, &s) == 0 && S_ISDIR(s.st_mode))
    snprintf(path, sizeof path, "%s/%.*s.ptx", named, (int)(so + stem - name), name);
  else
    return read_text(named);
  return read_text(path);
}
/* NULL: it is to be an object.  So is a library's own fatbin of Hocket's kernels: compiled they are quicker. */
static char *text_of(const char *image) {
  char why[200];
  char *text = ptx_of_image(image, emu.sm, why, sizeof why);
  if (!text) return text_beside(image);
  if (strchr(" \t\n/.", *image) || getenv("CUDAEMU_PTX") || !strstr(text, ".entry hk_run_batch(")) return text;
  free(text);
  return NULL;
}
static ptx_module *open_ptx(const char *image) {
  char why[200], *text = text_of(image);
  if (!text) return NULL;
  ptx_module *m = ptx_module_load(text, strlen(text), why, sizeof why);
  if (!m) fprintf(stderr, "cudaemu: %s\n", why);
  free(text);
  return m;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  CUresult code = CUDA_SUCCESS;
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  pthread_mutex_unlock(&emu_lock);
  if (!ctx) return code;
  ptx_module *ptx = open_ptx(image);
  if (ptx) {
    *module = calloc(1, sizeof **module);
    if (!*module) abort();
    (*module)->ptx = ptx;
    (*module)->fd = -1;
    emu_hold(CUDAEMU_MODULES, 1);
    return CUDA_SUCCESS;
  }
  int fd = -1;
  void *library = open_image(image, &fd);
  const cudaemu_driver_calls **table = library ? (const cudaemu_driver_calls **)dlsym(library, "cudaemu_driver") : NULL;
  if (!table) {
    if (library) dlclose(library);
    if (fd >= 0) close(fd);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  CUmodule m = calloc(1, sizeof *m);
  if (!m) abort();
  m->library = library;
  m->fd = fd;
  pthread_mutex_lock(&emu_lock);
  *table = emu_kernel_table();
  *module = m;
  emu_hold(CUDAEMU_MODULES, 1);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuModuleUnload(CUmodule module) {
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  emu_await_all();
  pthread_mutex_unlock(&emu_lock);
  while (module->functions) {
    CUfunction f = module->functions;
    module->functions = f->next;
    free(f);
  }
  if (module->library) dlclose(module->library);
  if (module->ptx) ptx_module_drop(module->ptx);
  if (module->fd >= 0) close(module->fd);
  free(module);
  emu_hold(CUDAEMU_MODULES, -1);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  if (!function || !module || !name) return CUDA_ERROR_INVALID_VALUE;
  ptx_fn *ptx = module->ptx ? ptx_module_kernel(module->ptx, name) : NULL;
  void *entry = module->ptx ? NULL : dlsym(module->library, name);
  if ((!entry && !ptx) || strlen(name) >= sizeof(*function)->name) return CUDA_ERROR_NOT_FOUND;
  CUfunction f = calloc(1, sizeof *f);
  if (!f) abort();
  f->entry = (cudaemu_entry)(uintptr_t)entry;
  f->ptx = ptx;
  snprintf(f->name, sizeof f->name, "%s", name);
  f->max_dynamic = 48 << 10;
  f->local_bytes = emu.local_bytes;
  pthread_mutex_lock(&emu_lock);
  for (CUfunction other = module->functions; other && emu.local_bytes; other = other->next) f->local_bytes += 16;
  f->next = module->functions;
  module->functions = f;
  pthread_mutex_unlock(&emu_lock);
  *function = f;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name) {
  size_t n;
  if (!module || !name) return CUDA_ERROR_INVALID_VALUE;
  const void *variable = module->ptx ? ptx_module_variable(module->ptx, name, &n) : NULL;
  if (!variable) return CUDA_ERROR_NOT_FOUND;
  if (at) *at = (CUdeviceptr)(uintptr_t)variable;
  if (bytes) *bytes = n;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, int which, CUfunction function) {
  if (!value || !function) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = emu.max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 8 << 10; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = function->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->max_dynamic; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, int which, int value) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic = value;
  }
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
  if (!blocks || !function || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  int n = EMU_SM_THREADS / threads;
  *blocks = shared > 227 << 10 || threads > 1024 ? 0 : n < 1 ? 1 : n;
  return CUDA_SUCCESS;
}

/* ---- launches ---- */

static CUresult run_grid(void *data, CUcontext ctx) {
  pthread_mutex_lock(&emu_lock);
  bool fault = emu_fails(&emu.fail_kernel);
  pthread_mutex_unlock(&emu_lock);
  if (fault) return CUDA_ERROR_LAUNCH_FAILED;
  emu_memory_open();
  bool ok = emu_grid_run(data, ctx->device);
  emu_memory_close();
  return ok ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}
static void drop_grid(void *data) { free(((emu_grid *)data)->params); }

/* How long the parameters are only the kernel knows: what can be read of the longest is taken. */
static bool take_params(char *to, const void *from) {
  struct iovec local = {to, CUDAEMU_PARAM_BYTES}, remote = {(void *)(uintptr_t)from, CUDAEMU_PARAM_BYTES};
  if (syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0) > 0) return true;
  int fd = memfd_create("cudaemu-params", MFD_CLOEXEC); /* where that call is not allowed */
  long got = fd < 0 ? -1 : syscall(SYS_pwrite64, fd, from, CUDAEMU_PARAM_BYTES, 0);
  if (got > 0) got = syscall(SYS_pread64, fd, to, got, 0);
  if (fd >= 0) close(fd);
  return got > 0;
}

/* The other way to pass parameters: as so many bytes.  What the kernel finds after them is garbage. */
static bool take_extra(char *to, void **extra) {
  const void *from = NULL;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      from = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      bytes = *(const size_t *)extra[1];
    else
      return false;
  }
  if (!from || !bytes || bytes > CUDAEMU_PARAM_BYTES) return false;
  memset(to, 0xa5, CUDAEMU_PARAM_BYTES);
  memcpy(to, from, bytes);
  return true;
}
static bool take_ptx_params(char *to, const ptx_fn *f, void **params, void **extra) {
  size_t at, bytes;
  if (!params && extra) { /* as so many bytes: from the emulator's own copy, whose end is garbage */
    char all[CUDAEMU_PARAM_BYTES];
    if (ptx_kernel_param_bytes(f) > sizeof all || !take_extra(all, extra)) return false;
    memcpy(to, all, ptx_kernel_param_bytes(f));
    return true;
  }
  for (unsigned n = 0; ptx_kernel_param(f, n, &at, &bytes); n++) {
    if (!params) return false;
    memcpy(to + at, params[n], bytes);
  }
  return true;
}

/* A context begins with LOCAL bytes of local memory for each thread that the device runs. For a kernel that needs more
 * it gets new memory, when nothing uses the old one any more. */
static void need_local(CUstream handle, const struct CUfunc_st *f) {
  enum { LOCAL = 1024 };
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(handle, &code);
  CUcontext ctx = s && !s->capture ? s->ctx : NULL;
  if (ctx && !ctx->local_bytes) ctx->local_bytes = LOCAL;
  if (ctx && f->local_bytes > ctx->local_bytes) {
    emu_drain(ctx);
    ctx->local_bytes = f->local_bytes;
  }
  pthread_mutex_unlock(&emu_lock);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  if (!config || !function || (params && extra)) return CUDA_ERROR_INVALID_VALUE;
  const CUlaunchConfig *c = config;
  if (emu_foreign(c->hStream)) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned blocks = c->gridDimX * c->gridDimY * c->gridDimZ, threads = c->blockDimX * c->blockDimY * c->blockDimZ;
  if (!blocks || !threads || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (!function->ptx && (blocks != c->gridDimX || threads != c->blockDimX))
    return CUDA_ERROR_INVALID_VALUE; /* objects have x alone */
  if (c->sharedMemBytes > (unsigned)function->max_dynamic) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute *a = &c->attrs[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && a->value.cooperative && c->gridDimX > (unsigned)emu.sms)
      return 720; /* too large to be resident together */
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
        (emu.sm < 90 || !a->value.clusterDim.x || c->gridDimX % a->value.clusterDim.x))
      return CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_lock(&emu_lock);
  bool fault = emu_fails(&emu.fail_launch);
  pthread_mutex_unlock(&emu_lock);
  if (fault) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (function->local_bytes) need_local(c->hStream, function);
  emu_grid *g = calloc(1, sizeof *g);
  if (!g) abort();
  *g = (emu_grid){function->entry, function->name, blocks, threads, c->sharedMemBytes, NULL, {0}};
  if (function->ptx)
    g->launch = (ptx_launch){.kernel = function->ptx,
                             .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                             .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                             .dynamic_shared = c->sharedMemBytes};
  g->params =
      aligned_alloc(64, function->ptx ? (ptx_kernel_param_bytes(function->ptx) + 127) / 64 * 64 : CUDAEMU_PARAM_BYTES);
  if (!g->params) abort();
  if (function->ptx         ? !take_ptx_params(g->params, function->ptx, params, extra)
      : params && params[0] ? !take_params(g->params, params[0])
                            : extra && !take_extra(g->params, extra)) {
    free(g->params);
    free(g);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return emu_submit(c->hStream, emu_work_new(run_grid, g, drop_grid));
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared_bytes, CUstream stream, void **params, void **extra) {
  CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared_bytes, stream, NULL, 0};
  return cuLaunchKernelEx(&c, function, params, extra);
}
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                          unsigned bz, unsigned shared_bytes, CUstream stream, void **params);
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared_bytes, CUstream stream, void **params) {
  CUlaunchAttribute a = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared_bytes, stream, &a, 1};
  return cuLaunchKernelEx(&c, f, params, NULL);
}

/* ---- libraries: modules by another name ---- */

EXPORT CUresult cuLibraryLoadData(CUmodule *library, const void *image, int *jit, void **jit_values, unsigned njit,
                                  int *options, void **values, unsigned n);
CUresult cuLibraryLoadData(CUmodule *library, const void *image, int *jit, void **jit_values, unsigned njit,
                           int *options, void **values, unsigned n) {
  (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
  return cuModuleLoadData(library, image);
}
EXPORT CUresult cuLibraryUnload(CUmodule library);
CUresult cuLibraryUnload(CUmodule library) { return cuModuleUnload(library); }
EXPORT CUresult cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name);
CUresult cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel);
CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel) {
  *function = kernel;
  return CUDA_SUCCESS;
}
