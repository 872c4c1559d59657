/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Between the emulated CUDA driver and kernels compiled for it.  An emulated "fatbin" is a shared object; its kernels
 * are symbols that take a pointer to their parameters, and call the driver through the table that it puts into
 * `cudaemu_driver` when it loads the object.  Kernels see this through shim.h.
 */
#ifndef HK_CUDAEMU_KERNEL_H
#define HK_CUDAEMU_KERNEL_H
#include <stddef.h>
#include <stdint.h>

enum { CUDAEMU_KERNEL_ABI = 3, CUDAEMU_WARP = 32, CUDAEMU_PARAM_BYTES = 4096, CUDAEMU_VIEWS = 16 };

typedef struct cudaemu_thread {
  unsigned thread, threads; /* of the block, along x */
  unsigned block, blocks;   /* of the grid, along x */
} cudaemu_thread;

typedef struct cudaemu_driver_calls {
  unsigned abi;
  int weak; /* stores of data wait in a buffer of the thread until something orders them */
  const cudaemu_thread *(*self)(void);
  void *(*shared)(size_t bytes, size_t align); /* the block's next variable */
  int (*barrier)(int x);                       /* gives the or of all threads' x */
  /* All threads of the warp that still run meet; all[i] becomes lane i's value (0 where it has ended). */
  void (*warp)(uint64_t mine, uint64_t all[CUDAEMU_WARP]);
  void (*relax)(void); /* lets others run */
  void (*fence)(void); /* the thread's buffered stores become visible */
  void (*store16)(void *p, const void *value);
  void (*load16)(void *value, const void *p);
  uint64_t (*clock_ns)(void);
  /* All threads of the warp meet; those with `on`, eight neighbours together, write or read an aligned line of 128
   * bytes in 16-byte pieces, whole. */
  void (*line)(void *at, void *value, int on, int write);
  /* Where the bytes at a multicast address lie on each device; gives how many those are. */
  unsigned (*views)(const void *at, size_t bytes, char *views[CUDAEMU_VIEWS]);
} cudaemu_driver_calls;

/* The parameters as the kernel gets them: by their address. */
typedef void (*cudaemu_entry)(const void *params);
#endif
