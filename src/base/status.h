/* SPDX-License-Identifier: Apache-2.0 */
/* The form of error handling: a status code; HK_TRY with a visible jump to one `out:` label, which undoes in reverse
 * order; HK_OR_RETURN if there is nothing to undo. */
#pragma once
#include <stddef.h>

/* The values are ncclResult_t's (asserted in api/api_coll.c), so no translation is needed. */
typedef enum hk_status {
  HK_OK = 0,
  HK_ERR_CUDA = 1,
  HK_ERR_SYSTEM = 2,
  HK_ERR_INTERNAL = 3,
  HK_ERR_ARGUMENT = 4,
  HK_ERR_USAGE = 5,
  HK_ERR_REMOTE = 6,
  HK_IN_PROGRESS = 7
} hk_status;

/* Bytes of the longest message with its end. Buffers that hold or pass on a message have this size, so none is cut. */
enum { HK_ERROR_TEXT = 2048 };

/* Records the message as the last error and logs it at WARN, once, at the place of detection; returns `code`. The
 * message says cause, peer, place and what to do. */
#define HK_FAIL(code, ...) hk_fail_at((code), __FILE__, __LINE__, __VA_ARGS__)
hk_status hk_fail_at(hk_status code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

/* As HK_FAIL(HK_ERR_SYSTEM, ...) with errno's name and text appended. */
#define HK_FAIL_ERRNO(...) hk_fail_errno_at(__FILE__, __LINE__, __VA_ARGS__)
hk_status hk_fail_errno_at(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Runs `call`; unless it returns HK_OK, jumps to `label` with the code in the local `rc`. */
#define HK_TRY(call, label)                                                                                            \
  do {                                                                                                                 \
    rc = (call);                                                                                                       \
    if (__builtin_expect(rc != HK_OK, 0)) goto label;                                                                  \
  } while (0)

/* Jumps to `label` with the code of `failure`, an HK_FAIL, in the local `rc`. */
#define HK_GIVE_UP(failure, label)                                                                                     \
  do {                                                                                                                 \
    rc = (failure);                                                                                                    \
    goto label;                                                                                                        \
  } while (0)

/* Runs `call`; unless it returns HK_OK, returns the code from the function. For functions that have nothing to undo. */
#define HK_OR_RETURN(call)                                                                                             \
  do {                                                                                                                 \
    const hk_status hk_failed_with = (call);                                                                           \
    if (__builtin_expect(hk_failed_with != HK_OK, 0)) return hk_failed_with;                                           \
  } while (0)

/* The text of this thread's newest error, or of the process's newest if this thread had none; never NULL. Valid until
 * the thread's next error or end. */
const char *hk_last_error(void);

/* Makes `text`, which is in the log already, this thread's newest error: the thread then reports that failure to its
 * caller. */
void hk_error_adopt(const char *text);

#define HK_ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))
/* The smallest multiple of `unit` that is at least n. */
static inline size_t hk_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
