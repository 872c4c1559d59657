/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host device.  Each allocation is a separate memfd, so that it can be passed to other processes. */
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/fork.h"
#include "../base/log.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* since Linux 6.3 */
#endif

enum { HUGE = 2 * 1024 * 1024 };

typedef struct region {
  uint64_t id;
  char *base;
  size_t bytes;
  int fd; /* -1: private memory, cannot be shared */
  pid_t owner;
} region;

/* The regions of this process, sorted by address.  Global, because ncclMemAlloc has no communicator, and several
 * communicators may use the memory. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static region *regions;
static size_t nregions, capacity;
static uint64_t last_id;

/* Files of other memory that processes request in the same way: hk_host_lend. */
typedef struct lent {
  uint64_t id;
  size_t bytes;
  int fd;
  bool once;
  struct lent *next;
} lent;
static lent *lendings;
_Atomic uint64_t hk_host_generation = 1;

/* The index of the first region that ends after `p`. */
static size_t host_place_of(uintptr_t p) {
  size_t low = 0, high = nregions;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if ((uintptr_t)regions[middle].base + regions[middle].bytes <= p)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void host_changed(void) {
  /* release: a thread that sees the new generation also sees the changed table.  A thread can see stale data only for
   * an address that another thread allocates or frees without synchronisation, which is the user's race. */
  atomic_fetch_add_explicit(&hk_host_generation, 1, memory_order_release);
}

static bool host_insert(const region *r) {
  if (!HK_RESERVE(regions, capacity, nregions + 1)) return false;
  size_t at = host_place_of((uintptr_t)r->base);
  memmove(&regions[at + 1], &regions[at], (nregions - at) * sizeof *r);
  regions[at] = *r;
  regions[at].id = ++last_id;
  nregions++;
  host_changed();
  return true;
}

int hk_host_memfd(const char *name, size_t bytes) {
  struct rlimit limit;
  /* A file longer than RLIMIT_FSIZE would end the process with SIGXFSZ. */
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    errno = EFBIG;
    return -1;
  }
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  /* Sealed against shrinking: if a peer shrank it, this process's next access would end in SIGBUS. */
  if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    int e = errno;
    close(fd);
    errno = e;
    return -1;
  }
  return fd;
}

/* Maps `bytes` of fd, or private memory if fd is -1, at a multiple of `align`. */
static char *host_map_aligned(int fd, size_t bytes, size_t align) {
  char *reserved = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char *at = (char *)(((uintptr_t)reserved + align - 1) & ~(uintptr_t)(align - 1));
  int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  char *m = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (m == MAP_FAILED) {
    int e = errno;
    munmap(reserved, bytes + align);
    errno = e;
    return MAP_FAILED;
  }
  if (at > reserved) munmap(reserved, (size_t)(at - reserved));
  size_t after = align - (size_t)(at - reserved);
  if (after) munmap(at + bytes, after);
  return m;
}

/* Calls mbind by its number: the only wrapper is in libnuma, which few machines have. */
void hk_host_place(void *base, size_t bytes, int node) {
  enum { PREFERRED = 1, NODES = 1024, BITS = 8 * sizeof(unsigned long) };
  unsigned long mask[NODES / BITS] = {0};
  if (node < 0 || node >= NODES) return;
  mask[node / BITS] = 1ul << node % BITS;
  if (syscall(SYS_mbind, base, bytes, PREFERRED, mask, NODES + 1, 0) != 0)
    HK_INFO(HK_SUB_ALLOC, "%zu bytes cannot be placed on NUMA node %d (mbind: %s)", bytes, node, strerror(errno));
}

void *hk_host_map(size_t bytes, int node) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  /* Pages shared with a forked child would be copied at the next write, and the device would still use the old ones. */
  madvise(p, bytes, MADV_DONTFORK);
  hk_host_place(p, bytes, node);
  return p;
}

hk_status hk_host_alloc(void **out, size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  *out = NULL;
  if (bytes > SIZE_MAX / 2) return HK_FAIL(HK_ERR_ARGUMENT, "cannot allocate %zu bytes", bytes);
  region r = {.bytes = bytes ? (bytes + page - 1) / page * page : page, .owner = getpid()};
  r.fd = hk_host_memfd("hocket", r.bytes);
  if (r.fd < 0)
    HK_INFO(HK_SUB_ALLOC, "%zu bytes cannot be shared with other processes (memfd_create: %s); they are private",
            r.bytes, strerror(errno));
  r.base = host_map_aligned(r.fd, r.bytes, r.bytes >= HUGE ? HUGE : page);
  if (r.base == MAP_FAILED) {
    hk_status rc = HK_FAIL_ERRNO("cannot allocate %zu bytes", bytes);
    if (r.fd >= 0) close(r.fd);
    return rc;
  }
  /* Best effort: files in memory get huge pages only if the administrator allows it (shmem_enabled). */
  if (r.bytes >= HUGE) madvise(r.base, r.bytes, MADV_HUGEPAGE);
  pthread_mutex_lock(&lock);
  bool stored = host_insert(&r);
  pthread_mutex_unlock(&lock);
  if (!stored) {
    munmap(r.base, r.bytes);
    if (r.fd >= 0) close(r.fd);
    return HK_FAIL(HK_ERR_SYSTEM, "out of memory");
  }
  *out = r.base;
  return HK_OK;
}

hk_status hk_host_free(void *p) {
  if (!p) return HK_OK;
  region r = {0};
  pthread_mutex_lock(&lock);
  size_t at = host_place_of((uintptr_t)p);
  if (at < nregions && regions[at].base == p) {
    r = regions[at];
    memmove(&regions[at], &regions[at + 1], (--nregions - at) * sizeof r);
    host_changed();
  }
  pthread_mutex_unlock(&lock);
  if (!r.base) return HK_FAIL(HK_ERR_ARGUMENT, "%p is not memory that ncclMemAlloc gave, or it has been freed", p);
  munmap(r.base, r.bytes);
  if (r.fd >= 0) {
    /* Peers that have the region mapped must not keep its pages alive. A forked child only gives up its own mapping:
     * the pages are its parent's. */
    if (r.owner == getpid()) (void)fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)r.bytes);
    close(r.fd);
  }
  return HK_OK;
}

hk_host_span hk_host_find(const void *p) {
  uintptr_t a = (uintptr_t)p;
  hk_host_span span = {0, UINTPTR_MAX, 0};
  pthread_mutex_lock(&lock);
  size_t at = host_place_of(a);
  if (at > 0) span.begin = (uintptr_t)regions[at - 1].base + regions[at - 1].bytes;
  if (at < nregions) {
    uintptr_t base = (uintptr_t)regions[at].base;
    span.end = base;
    if (a >= base) span = (hk_host_span){base, base + regions[at].bytes, regions[at].fd < 0 ? 0 : regions[at].id};
  }
  pthread_mutex_unlock(&lock);
  return span;
}

/* Under the lock.  Rare: a region is looked up by its id once for each communicator and peer. */
static const region *host_by_id(uint64_t id) {
  for (size_t i = 0; i < nregions; i++)
    if (regions[i].id == id) return &regions[i];
  return NULL;
}

bool hk_host_locate(uint64_t id, char **base, size_t *bytes) {
  pthread_mutex_lock(&lock);
  const region *r = host_by_id(id);
  if (r) {
    *base = r->base;
    *bytes = r->bytes;
  }
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

hk_status hk_host_lend(int fd, size_t bytes, bool once, uint64_t *out) {
  lent *l = malloc(sizeof *l);
  *out = 0;
  if (!l) {
    close(fd);
    return HK_FAIL(HK_ERR_SYSTEM, "out of memory");
  }
  pthread_mutex_lock(&lock);
  *l = (lent){.id = ++last_id, .bytes = bytes, .fd = fd, .once = once, .next = lendings};
  lendings = l;
  *out = l->id;
  pthread_mutex_unlock(&lock);
  return HK_OK;
}

/* Under the lock: a descriptor of the file, or -1 if it is not in the table. `take`: removes it from the table. */
static int host_find_lent(uint64_t id, bool take, size_t *bytes) {
  lent **at = &lendings;
  while (*at && (*at)->id != id) at = &(*at)->next;
  lent *l = *at;
  if (!l) return -1;
  *bytes = l->bytes;
  int fd = l->fd;
  if (!take && !l->once) return fcntl(fd, F_DUPFD_CLOEXEC, 0);
  *at = l->next;
  free(l);
  return fd;
}

void hk_host_take_back(uint64_t id) {
  size_t bytes;
  pthread_mutex_lock(&lock);
  int fd = id ? host_find_lent(id, true, &bytes) : -1;
  pthread_mutex_unlock(&lock);
  if (fd >= 0) close(fd);
}

int hk_host_export(uint64_t id, size_t *bytes) {
  pthread_mutex_lock(&lock);
  int fd = host_find_lent(id, false, bytes);
  const region *r = host_by_id(id);
  if (fd < 0 && r && r->fd >= 0) {
    *bytes = r->bytes;
    fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
  }
  pthread_mutex_unlock(&lock);
  return fd;
}
