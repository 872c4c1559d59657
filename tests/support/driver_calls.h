/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the library's calls of the CUDA driver, each function for itself: every pointer of its table becomes a few
 * instructions that count and go on to the function, whatever its parameters are.  They may also refuse a call. */
#ifndef HK_TESTS_DRIVER_CALLS_H
#define HK_TESTS_DRIVER_CALLS_H
#include <sys/mman.h>
#include "../../src/device/cuda.h"
#include "suite.h"

enum {
#define NUMBER(member, symbol, params) CALL_##member,
  HK_CUDA_CALLS(NUMBER, NUMBER)
#undef NUMBER
      DRIVER_CALLS
};
static uint64_t driver_calls[DRIVER_CALLS];
enum { DRIVER_REFUSES = 999 };
static int64_t driver_refuses[DRIVER_CALLS]; /* the n-th call from now on gets DRIVER_REFUSES; 0: none */
static const char *const driver_names[] = {
#define NAME(member, symbol, params) #symbol,
    HK_CUDA_CALLS(NAME, NAME)
#undef NAME
};
enum { THUNK_BYTES = 64 };

/* False on machines whose instructions are not known here. */
static inline bool driver_thunk(char *at, const void *function, const uint64_t *counter, const int64_t *refuses) {
  const uint64_t target = (uintptr_t)function, count = (uintptr_t)counter, left = (uintptr_t)refuses;
#if defined __x86_64__
  /* mov r11, counter; lock inc qword [r11]; mov r11, refuses; lock dec qword [r11]; mov r11, function; jz +3; jmp r11;
   * mov eax, DRIVER_REFUSES; ret */
  memcpy(at,
         "\x49\xbb........\xf0\x49\xff\x03\x49\xbb........\xf0\x49\xff\x0b"
         "\x49\xbb........\x74\x03\x41\xff\xe3\xb8\xe7\x03\x00\x00\xc3",
         49);
  memcpy(at + 2, &count, 8);
  memcpy(at + 16, &left, 8);
  memcpy(at + 30, &target, 8);
  return true;
#elif defined                                                                                                          \
    __aarch64__ /* ldr x16, counter; ldr x17, [x16]; add x17, x17, 1; str x17, [x16]; ldr x16, function; br x16 */
  static const uint32_t code[] = {0x580000d0, 0xf9400211, 0x91000631, 0xf9000211, 0x58000090, 0xd61f0200};
  memcpy(at, code, sizeof code);
  memcpy(at + 24, &count, 8);
  memcpy(at + 32, &target, 8);
  (void)left; /* nothing is refused */
  return true;
#else
  (void)at, (void)target, (void)count, (void)left;
  return false;
#endif
}

/* When the library has loaded the driver; once. */
static inline bool driver_calls_begin(void) {
  const size_t bytes = (size_t)DRIVER_CALLS * THUNK_BYTES;
  char *code = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void *table[DRIVER_CALLS];
  bool can = code != MAP_FAILED && sizeof hk_cu == sizeof table;
  memcpy(table, &hk_cu, sizeof table);
  for (int i = 0; can && i < DRIVER_CALLS; i++) {
    char *at = code + (size_t)i * THUNK_BYTES;
    if (!table[i]) continue;
    can = driver_thunk(at, table[i], &driver_calls[i], &driver_refuses[i]);
    table[i] = at;
  }
  if (can) can = mprotect(code, bytes, PROT_READ | PROT_EXEC) == 0;
  if (can) __builtin___clear_cache(code, code + bytes);
  if (can) memcpy(&hk_cu, table, sizeof table);
  return can;
}

/* All calls since the last driver_calls_forget, which `text` lists. */
static inline unsigned driver_calls_sum(char *text, size_t bytes) {
  unsigned sum = 0;
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < DRIVER_CALLS; i++) {
    sum += (unsigned)driver_calls[i];
    if (driver_calls[i] && used < bytes)
      used += (size_t)snprintf(text + used, bytes - used, " %s %u", driver_names[i], (unsigned)driver_calls[i]);
  }
  return sum;
}
static inline void driver_calls_forget(void) { memset(driver_calls, 0, sizeof driver_calls); }
static inline unsigned driver_launches(void) {
  return (unsigned)(driver_calls[CALL_LaunchKernel] + driver_calls[CALL_LaunchKernelEx]);
}
#endif
