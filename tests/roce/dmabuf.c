/* SPDX-License-Identifier: Apache-2.0 */
/* dmabuf DEVICE: in the guest: a true dma-buf, made by the kernel (udmabuf or vgem), is given to an RDMA device as a
 * GPU's memory would be.  A device that takes none must say so in words, and what comes next must be tried.  77: there
 * is no dma-buf. */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/transport/net/ib/ib_gdr.h"

enum { BYTES = 1 << 20 };

/* What is needed of the kernel's DRM interface: Debian has its headers in a package of their own. */
typedef struct drm_version {
  int major, minor, patch;
  size_t name_bytes;
  char *name;
  size_t date_bytes;
  char *date;
  size_t text_bytes;
  char *text;
} drm_version;
typedef struct drm_dumb {
  uint32_t height, width, bits, flags, handle, pitch;
  uint64_t bytes;
} drm_dumb;
typedef struct drm_prime {
  uint32_t handle, flags;
  int32_t fd;
} drm_prime;
#define DRM_VERSION _IOWR('d', 0x00, drm_version)
#define DRM_CREATE_DUMB _IOWR('d', 0xb2, drm_dumb)
#define DRM_TO_FD _IOWR('d', 0x2d, drm_prime)

/* Each makes a dma-buf of BYTES; -1 with the reason in `why`. */
static int from_udmabuf(char *why, size_t why_bytes) {
  int at = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), file = -1, fd = -1;
  if (at < 0) {
    snprintf(why, why_bytes, "/dev/udmabuf: %s", strerror(errno));
    return -1;
  }
  file = memfd_create("hocket", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, BYTES) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    struct udmabuf_create make = {.memfd = (__u32)file, .flags = UDMABUF_FLAGS_CLOEXEC, .size = BYTES};
    fd = ioctl(at, UDMABUF_CREATE, &make);
  }
  if (fd < 0) snprintf(why, why_bytes, "udmabuf: %s", strerror(errno));
  if (file >= 0) close(file);
  close(at);
  return fd;
}

/* The DRM device of vgem, among those of the machine. */
static int open_vgem(void) {
  for (int i = 0; i < 8; i++) {
    char path[32], name[32] = "";
    drm_version version = {.name = name, .name_bytes = sizeof name - 1};
    snprintf(path, sizeof path, "/dev/dri/card%d", i);
    int at = open(path, O_RDWR | O_CLOEXEC);
    if (at < 0) continue;
    if (ioctl(at, DRM_VERSION, &version) == 0 && strcmp(name, "vgem") == 0) return at;
    close(at);
  }
  errno = ENODEV;
  return -1;
}

static int from_vgem(char *why, size_t why_bytes) {
  int at = open_vgem();
  drm_dumb make = {.width = 1024, .height = BYTES / 4096, .bits = 32};
  drm_prime prime = {.flags = O_CLOEXEC | O_RDWR, .fd = -1};
  if (at >= 0 && ioctl(at, DRM_CREATE_DUMB, &make) == 0) {
    prime.handle = make.handle;
    (void)ioctl(at, DRM_TO_FD, &prime);
  }
  if (prime.fd < 0) snprintf(why, why_bytes, "vgem: %s", strerror(errno));
  if (at >= 0) close(at); /* the dma-buf holds what it needs */
  return prime.fd;
}

/* A GPU whose memory it is. */
static int memory_fd = -1;
static hk_status give(hk_device *d, const void *p, size_t bytes, bool pci, int *fd) {
  (void)d;
  (void)pci;
  (void)p;
  (void)bytes;
  *fd = fcntl(memory_fd, F_DUPFD_CLOEXEC, 0);
  return *fd >= 0 ? HK_OK : HK_FAIL_ERRNO("the dma-buf's descriptor");
}

static int wrong(const char *what, const hk_ib_gpu_memory *m) {
  printf("%s: way %s, says: %s\n", what, hk_gdr_method_name(m->method), m->why);
  return 1;
}

static int judge(const hk_ib_gpu_memory *m, const char *maker, const char *device) {
  printf("a dma-buf of %s and %s: by %s%s%s\n", maker, device, hk_gdr_method_name(m->method), *m->why ? "; " : "",
         m->why);
  if (m->method == HK_GDR_DMABUF) return m->mr && !*m->why ? 0 : wrong("taken, with a cause", m);
  if (!strstr(m->why, "dma-buf: the card's driver refuses it (")) return wrong("no word of the refusal", m);
  if (m->method == HK_GDR_STAGED && !strstr(m->why, "nvidia-peermem: ")) return wrong("nothing else was tried", m);
  return (m->method == HK_GDR_STAGED) == (m->mr == NULL) ? 0 : wrong("a region without a way", m);
}

int main(int argc, char **argv) {
  static const hk_device_card_ops card_ops = {.dmabuf = give};
  static const hk_device_ops ops = {.name = "dma-buf", .card = &card_ops};
  hk_device gpu = {.ops = &ops, .limits = {.dmabuf = true}};
  char why[160], udmabuf[80], vgem[80];
  const char *maker = "udmabuf", *name = argc > 1 ? argv[1] : "rxe0";
  hk_ib_gpu_memory m;
  hk_ibv_context *card = NULL;
  int n = 0;
  memory_fd = from_udmabuf(udmabuf, sizeof udmabuf);
  if (memory_fd < 0) memory_fd = from_vgem(vgem, sizeof vgem), maker = "vgem";
  if (memory_fd < 0) {
    printf("SKIP: this kernel makes no dma-buf: %s; %s\n", udmabuf, vgem);
    return 77;
  }
  char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  if (p == MAP_FAILED || !api) {
    printf("%s\n", api ? "the dma-buf cannot be mapped" : why);
    return 1;
  }
  memset(p, 1, BYTES);
  hk_ibv_device **list = api->get_device_list(&n);
  for (int i = 0; i < n && !card; i++)
    if (strcmp(list[i]->name, name) == 0) card = api->open_device(list[i]);
  hk_ibv_pd *pd = card ? api->alloc_pd(card) : NULL;
  if (!pd) {
    printf("%s cannot be used\n", name);
    return 1;
  }
  hk_ib_gpu_register(hk_settings_now(), api, pd, &gpu, p, BYTES, &m);
  int code = judge(&m, maker, name);
  if (m.mr) api->dereg_mr(m.mr);
  api->dealloc_pd(pd);
  api->close_device(card);
  api->free_device_list(list);
  munmap(p, BYTES);
  close(memory_fd);
  return code;
}
