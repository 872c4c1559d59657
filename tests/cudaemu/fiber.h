/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that switch among each other on one thread. */
#ifndef HK_CUDAEMU_FIBER_H
#define HK_CUDAEMU_FIBER_H
#include <stddef.h>
#if !defined(__x86_64__)
#define EMU_UCONTEXT
#include <ucontext.h>
#endif

typedef struct emu_fiber {
#ifdef EMU_UCONTEXT
  ucontext_t context;
#else
  void *sp;
#endif
  void (*entry)(void *);
  void *arg;
  struct emu_fiber *from; /* who switched to it first */
  const void *bottom;     /* of the stack, for AddressSanitizer */
  size_t bytes;
  void *fake;
} emu_fiber;

/* entry never returns: it switches away for good. */
void emu_fiber_make(emu_fiber *f, void *stack, size_t bytes, void (*entry)(void *), void *arg);
/* From the running fiber (for a thread's first: any zeroed one) to another; last: `from` never runs again. */
void emu_fiber_switch(emu_fiber *from, emu_fiber *to, int last);
#endif
