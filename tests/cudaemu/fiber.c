/* SPDX-License-Identifier: Apache-2.0 */
#include "fiber.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

static void arrive(emu_fiber *f) {
  (void)f;
#ifdef EMU_ASAN
  /* The thread's own stack becomes known when it is first left. */
  __sanitizer_finish_switch_fiber(f->fake, f->from->bottom ? NULL : &f->from->bottom,
                                  f->from->bottom ? NULL : &f->from->bytes);
#endif
}

__attribute__((noreturn)) static void begin(emu_fiber *f) {
  arrive(f);
  f->entry(f->arg);
  abort();
}

#ifdef EMU_UCONTEXT
static void begin_halves(unsigned low, unsigned high) { begin((emu_fiber *)((uintptr_t)high << 32 | low)); }
void emu_fiber_make(emu_fiber *f, void *stack, size_t bytes, void (*entry)(void *), void *arg) {
  *f = (emu_fiber){.entry = entry, .arg = arg, .bottom = stack, .bytes = bytes};
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = stack;
  f->context.uc_stack.ss_size = bytes;
  makecontext(&f->context, (void (*)(void))begin_halves, 2, (unsigned)(uintptr_t)f, (unsigned)((uintptr_t)f >> 32));
#else
/* The callee-saved registers lie on the stack that is left. */
void emu_switch_stacks(void **left, void *to) __attribute__((visibility("hidden")));
void emu_first(void) __attribute__((visibility("hidden")));
void emu_begin(emu_fiber *f) __attribute__((visibility("hidden")));
void emu_begin(emu_fiber *f) { begin(f); }
__asm__(".text\n"
        ".type emu_switch_stacks, @function\n"
        "emu_switch_stacks:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n"
        "  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n"
        ".size emu_switch_stacks, . - emu_switch_stacks\n"
        ".type emu_first, @function\n"
        "emu_first:\n"
        "  mov %rbx, %rdi\n"
        "  xor %ebp, %ebp\n"
        "  call emu_begin\n"
        ".size emu_first, . - emu_first\n");
void emu_fiber_make(emu_fiber *f, void *stack, size_t bytes, void (*entry)(void *), void *arg) {
  *f = (emu_fiber){.entry = entry, .arg = arg, .bottom = stack, .bytes = bytes};
  void **sp = (void **)(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
  *--sp = NULL; /* so that emu_first's call finds the stack aligned */
  *--sp = NULL;
  *--sp = (void *)(uintptr_t)emu_first;
  *--sp = NULL; /* rbp */
  *--sp = f;    /* rbx */
  for (int i = 0; i < 4; i++) *--sp = NULL;
  f->sp = sp;
#endif
#ifdef EMU_ASAN
  __asan_unpoison_memory_region(stack, bytes); /* the fiber that had it before may have left in the middle */
#endif
}

void emu_fiber_switch(emu_fiber *from, emu_fiber *to, int last) {
  (void)last;
  if (!to->from) to->from = from;
#ifdef EMU_ASAN
  __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->bottom, to->bytes);
#endif
#ifdef EMU_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  emu_switch_stacks(&from->sp, to->sp);
#endif
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}
