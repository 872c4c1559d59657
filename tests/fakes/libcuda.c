/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver that shows invented GPUs and can do nothing with them. */
#include "gpus.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT extern fake_machine fake_gpus;
fake_machine fake_gpus;
__attribute__((constructor)) static void begin(void) { fake_from_environment(&fake_gpus); }

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *n);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetName(char *name, int bytes, int device);
EXPORT int cuDeviceGetAttribute(int *value, int which, int device);
EXPORT int cuDeviceGetPCIBusId(char *text, int bytes, int device);
EXPORT int cuPointerGetAttribute(void *value, int which, unsigned long long at);

/* The ordinal-th GPU that is not hidden; devices are numbered by their place in the list, ordinals are not. */
int cuDeviceGet(int *device, int ordinal) {
  for (int i = 0; i < fake_gpus.ngpus; i++)
    if (!fake_gpus.gpu[i].hidden && ordinal-- == 0) {
      *device = i;
      return 0;
    }
  return 101;
}
int cuInit(unsigned flags) { return flags ? 1 : fake_gpus.fails; }
int cuDeviceGetCount(int *n) {
  *n = 0;
  for (int i = 0; i < fake_gpus.ngpus; i++) *n += !fake_gpus.gpu[i].hidden;
  return 0;
}
int cuDeviceGetName(char *name, int bytes, int device) {
  snprintf(name, (size_t)bytes, "Fake GPU %d", device);
  return 0;
}
int cuDeviceGetPCIBusId(char *text, int bytes, int device) {
  snprintf(text, (size_t)bytes, "%s", fake_gpus.gpu[device].bus);
  return 0;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
  int sm = fake_gpus.gpu[device].sm;
  switch (which) {
    case 36: *value = 2619000; return 0; /* kHz of the memory */
    case 37: *value = 5120; return 0;    /* bits of its bus */
    case 75: *value = sm / 10; return 0;
    case 76: *value = sm % 10; return 0;
    case 116: *value = 1; return 0; /* GPUDirect RDMA */
    case 124: *value = fake_gpus.gpu[device].dmabuf; return 0;
    case 132: *value = sm >= 90; return 0; /* multicast */
    default: return 1;                     /* as an older driver would */
  }
}
int cuPointerGetAttribute(void *value, int which, unsigned long long at) {
  unsigned long long begin = (unsigned long long)(unsigned long)fake_gpus.memory;
  int words[] = {[2] = 2, [8] = 0, [9] = 1}; /* memory type: device; managed: no; ordinal */
  if (at < begin || at >= begin + fake_gpus.memory_bytes) return 1;
  if (which != 2 && which != 8 && which != 9) return 1;
  memcpy(value, &words[which], sizeof words[which]);
  return 0;
}
