/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines as users of NCCL expect them: `host:pid:tid [dev] NCCL INFO text`, filtered by NCCL_DEBUG and
 * NCCL_DEBUG_SUBSYS, to stdout or NCCL_DEBUG_FILE (%h host, %p pid). */
#pragma once
#include <stdbool.h>

typedef enum { HK_LOG_NONE, HK_LOG_VERSION, HK_LOG_WARN, HK_LOG_INFO, HK_LOG_TRACE } hk_log_level;
/* Subsystem bits have NCCL's values, so that NCCL_DEBUG_SUBSYS=INIT,^NET means the same here. */
typedef enum {
  HK_SUB_INIT = 1,
  HK_SUB_COLL = 2,
  HK_SUB_P2P = 4,
  HK_SUB_SHM = 8,
  HK_SUB_NET = 16,
  HK_SUB_GRAPH = 32,
  HK_SUB_TUNING = 64,
  HK_SUB_ENV = 128,
  HK_SUB_ALLOC = 256,
  HK_SUB_CALL = 512,
  HK_SUB_PROXY = 1024,
  HK_SUB_NVLS = 2048,
  HK_SUB_BOOTSTRAP = 4096,
  HK_SUB_REG = 8192
} hk_log_subsystem;

bool hk_log_on(hk_log_level level, unsigned subsystems);
void hk_log_write(hk_log_level level, unsigned subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6), cold));
/* True the first time in a process for a line of the source. */
bool hk_log_first(const char *file, int line);
/* True once in a process, and only if NCCL_DEBUG was set to VERSION or more: the version must be printed. */
bool hk_log_version_due(void);
/* Reads the variables again at the next line (ncclResetDebugInit). */
void hk_log_reset(void);
/* For a command, whose output is on stdout: lines go to stderr, and only if NCCL_DEBUG is set. Call it before any
 * line. */
void hk_log_for_command(void);
/* For a program that links some of the library's sources and also loads the library. The program's copy writes only
 * warnings, to stderr, and leaves NCCL_DEBUG_FILE to the library. Call it before any line. */
void hk_log_for_second_copy(void);

#define HK_LOG_AT(level, sub, ...)                                                                                     \
  do {                                                                                                                 \
    if (__builtin_expect(hk_log_on((level), (sub)), 0)) hk_log_write((level), (sub), __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)
#define HK_INFO(sub, ...) HK_LOG_AT(HK_LOG_INFO, (sub), __VA_ARGS__)
/* The same, but once in a process, for any number of communicators. */
#define HK_LOG_ONCE(level, sub, ...)                                                                                   \
  do {                                                                                                                 \
    if (__builtin_expect(hk_log_on((level), (sub)), 0) && hk_log_first(__FILE__, __LINE__))                            \
      hk_log_write((level), (sub), __FILE__, __LINE__, __VA_ARGS__);                                                   \
  } while (0)
#define HK_INFO_ONCE(sub, ...) HK_LOG_ONCE(HK_LOG_INFO, (sub), __VA_ARGS__)
#define HK_WARN(...) HK_LOG_AT(HK_LOG_WARN, ~0u, __VA_ARGS__)
#define HK_WARN_ONCE(...) HK_LOG_ONCE(HK_LOG_WARN, ~0u, __VA_ARGS__)
#define HK_TRACE(sub, ...) HK_LOG_AT(HK_LOG_TRACE, (sub), __VA_ARGS__)
