/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: the text is kept for ncclGetLastError, without any environment variable, and logged at WARN. */
#include "status.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "fork.h"
#include "log.h"

/* A thread reads its own newest error. A thread without one (a watchdog) reads the process's newest, as a copy of its
 * own, so that no text changes while it is read. */
static struct {
  pthread_mutex_t lock;
  char text[HK_ERROR_TEXT];
} newest = {.lock = PTHREAD_MUTEX_INITIALIZER, .text = ""};
HK_FORK_GUARD(newest.lock);
static _Thread_local struct {
  bool own; /* `text` is an error of this thread */
  char text[HK_ERROR_TEXT];
} mine;

static void status_record(const char *text) {
  snprintf(mine.text, sizeof mine.text, "%s", text);
  mine.own = true;
  pthread_mutex_lock(&newest.lock);
  snprintf(newest.text, sizeof newest.text, "%s", text);
  pthread_mutex_unlock(&newest.lock);
}

void hk_error_adopt(const char *text) {
  snprintf(mine.text, sizeof mine.text, "%s", text);
  mine.own = true;
}

const char *hk_last_error(void) {
  if (mine.own) return mine.text;
  pthread_mutex_lock(&newest.lock);
  snprintf(mine.text, sizeof mine.text, "%s", newest.text);
  pthread_mutex_unlock(&newest.lock);
  return mine.text;
}

static void status_report(const char *file, int line, const char *text) {
  status_record(text);
  if (hk_log_on(HK_LOG_WARN, ~0u)) hk_log_write(HK_LOG_WARN, ~0u, file, line, "%s", text);
}

hk_status hk_fail_at(hk_status code, const char *file, int line, const char *format, ...) {
  char text[HK_ERROR_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  status_report(file, line, text);
  return code;
}

hk_status hk_fail_errno_at(const char *file, int line, const char *format, ...) {
  int error = errno; /* before another call can change it */
  char text[HK_ERROR_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  size_t used = strlen(text);
  const char *name = strerrorname_np(error), *about = strerrordesc_np(error);
  snprintf(text + used, sizeof text - used, ": %s (%s)", about ? about : "unknown error", name ? name : "?");
  status_report(file, line, text);
  errno = error;
  return HK_ERR_SYSTEM;
}
