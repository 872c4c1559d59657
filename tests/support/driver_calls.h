/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the library's calls of the CUDA driver, each function for itself: every pointer of its table becomes a few
 * instructions that count and go on to the function, whatever its parameters are. */
#ifndef HK_TESTS_DRIVER_CALLS_H
#define HK_TESTS_DRIVER_CALLS_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "../../src/device/cuda.h"

enum {
#define NUMBER(member, symbol, params) CALL_##member,
  HK_CUDA_CALLS(NUMBER, NUMBER)
#undef NUMBER
      DRIVER_CALLS
};
static uint64_t driver_calls[DRIVER_CALLS];
static const char *const driver_names[] = {
#define NAME(member, symbol, params) #symbol,
    HK_CUDA_CALLS(NAME, NAME)
#undef NAME
};
enum { THUNK_BYTES = 64 };

/* False on machines whose instructions are not known here. */
static inline bool driver_thunk(char *at, const void *function, const uint64_t *counter) {
  const uint64_t target = (uintptr_t)function, count = (uintptr_t)counter;
#if defined __x86_64__ /* mov r11, counter; lock inc qword [r11]; mov r11, function; jmp r11 */
  memcpy(at, "\x49\xbb........\xf0\x49\xff\x03\x49\xbb........\x41\xff\xe3", 27);
  memcpy(at + 2, &count, 8);
  memcpy(at + 16, &target, 8);
  return true;
#elif defined                                                                                                          \
    __aarch64__ /* ldr x16, counter; ldr x17, [x16]; add x17, x17, 1; str x17, [x16]; ldr x16, function; br x16 */
  static const uint32_t code[] = {0x580000d0, 0xf9400211, 0x91000631, 0xf9000211, 0x58000090, 0xd61f0200};
  memcpy(at, code, sizeof code);
  memcpy(at + 24, &count, 8);
  memcpy(at + 32, &target, 8);
  return true;
#else
  (void)at, (void)target, (void)count;
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
    can = driver_thunk(at, table[i], &driver_calls[i]);
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
