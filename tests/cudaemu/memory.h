/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory of the emulated devices: pages of memory files, mapped into one range of addresses in which nothing else lies.
 * Classic allocations are parts of the process's heap file, at the offset of their address in the range; physical
 * allocations (cuMemCreate) have a file each.  A process that gets the file, by descriptor or through /proc, has the
 * memory.
 */
#ifndef HK_CUDAEMU_MEMORY_H
#define HK_CUDAEMU_MEMORY_H
#include "emu.h"

typedef struct emu_multicast emu_multicast;
typedef struct emu_phys {      /* what a CUmemGenericAllocationHandle means */
  int refs, fd, device, types; /* types: handles that may be exported */
  size_t bytes;
  emu_multicast *multicast; /* it is no memory but one of these */
  bool host;                /* the host's memory: device is -1 */
} emu_phys;
void emu_phys_unref(emu_phys *p);
emu_multicast *emu_multicast_open(int fd, size_t *bytes); /* of an object's file; NULL: it cannot be mapped */
void emu_multicast_drop(emu_multicast *m);
bool emu_multicast_has(const emu_multicast *m, int device);
typedef enum emu_kind { EMU_BLOCK, EMU_SPACE, EMU_MAP, EMU_IMPORT, EMU_HOST, EMU_REGISTERED } emu_kind;
typedef struct emu_area {
  emu_kind kind;
  uint64_t at; /* what the caller knows */
  size_t bytes;
  uint64_t page; /* pages mapped or reserved: with the guard after them */
  size_t pages;
  int device, refs;
  uint64_t id;
  emu_phys *phys;           /* EMU_MAP */
  size_t offset;            /* in the file */
  bool accessible, by_host; /* by_host: the CPU may access it, too (memory of the host's) */
  unsigned access;          /* bit d: device d may; of EMU_MAP */
  char key[64];             /* EMU_IMPORT: the handle */
  struct emu_area *next;
} emu_area;

extern emu_area *emu_areas;
emu_area *emu_area_of(uint64_t at);             /* not EMU_SPACE, unless nothing is mapped there */
emu_area *emu_area_at(uint64_t at, emu_kind k); /* that begins there */
emu_area *emu_area_add(emu_kind kind, uint64_t at, size_t bytes);
void emu_area_drop(emu_area *a);
/* Free addresses, with a gap after them; 0: none.  wish: taken if it is free. */
uint64_t emu_find_room(size_t bytes, size_t align, uint64_t wish);
bool emu_area_map(emu_area *a, int fd); /* a's pages from its offset in the file, as accessible as they may be now */
void emu_area_unmap(emu_area *a);
void emu_area_protect(emu_area *a);
bool emu_take(int device, size_t bytes); /* of its memory; false: none left, or a fault is injected */
void emu_give(int device, size_t bytes);
int emu_heap_fd(void);
CUresult emu_await_all(void); /* freeing waits for all work, as the driver's does */
#endif
