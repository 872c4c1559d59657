/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the CUDA driver: their errors, and the thread's context and capture mode around them. */
#include <stdarg.h>
#include <stdio.h>
#include "cuda.h"

/* Global: the loader loads the driver once for the process. */
hk_cuda_calls hk_cu;

hk_status hk_cuda_fail(CUresult code, const char *file, int line, const char *format, ...) {
  char what[320];
  const char *name = NULL, *text = NULL;
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  if (!hk_cu.GetErrorName || hk_cu.GetErrorName(code, &name) != CUDA_SUCCESS) name = NULL;
  if (!hk_cu.GetErrorString || hk_cu.GetErrorString(code, &text) != CUDA_SUCCESS) text = NULL;
  return hk_fail_at(HK_ERR_CUDA, file, line, "%s: the CUDA driver says %s (%d): %s", what, name ? name : "an error",
                    code, text ? text : "it has no words for it");
}

int hk_cuda_attribute(CUdevice device, int which) {
  int value = 0;
  return hk_cu.DeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

bool hk_cuda_is_current(const hk_device *base) {
  CUcontext current = NULL;
  return hk_cu.CtxGetCurrent(&current) == CUDA_SUCCESS && current == ((const hk_cuda *)base)->context;
}

hk_status hk_cuda_enter(hk_device *base, bool *entered) {
  if (hk_cuda_is_current(base)) return HK_OK; /* this saves a second driver call */
  HK_CUDA_OR_RETURN(hk_cu.CtxPushCurrent(((hk_cuda *)base)->context), "entering device %d", base->limits.ordinal);
  *entered = true;
  return HK_OK;
}

void hk_cuda_leave(const bool *entered) {
  CUcontext old;
  if (*entered) hk_cu.CtxPopCurrent(&old); /* hk_cuda_enter has pushed the context, so it cannot fail */
}

void hk_cuda_set_capture_mode(int *mode) {
  hk_cu.ThreadExchangeStreamCaptureMode(mode); /* fails only for a mode that does not exist */
}
