/* SPDX-License-Identifier: Apache-2.0 */
/* An NVML that shows invented GPUs with their NVLinks.  Some of its functions have only their oldest names. */
#include "gpus.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT extern fake_machine fake_gpus;
fake_machine fake_gpus;
__attribute__((constructor)) static void begin(void) { fake_from_environment(&fake_gpus); }

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6 };
typedef struct pci_info {
  char legacy[16];
  unsigned numbers[5];
  char bus_id[32];
} pci_info;
typedef struct field_value {
  unsigned id, scope;
  long long times[2];
  int type, result;
  unsigned long long value;
} field_value;
typedef struct fabric_info {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
} fabric_info;

EXPORT int nvmlInit(void);
EXPORT int nvmlDeviceGetCount(unsigned *n);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, fake_gpu **out);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, fake_gpu **out);
EXPORT int nvmlDeviceGetPciInfo_v3(fake_gpu *g, pci_info *out);
EXPORT int nvmlDeviceGetCudaComputeCapability(fake_gpu *g, int *major, int *minor);
EXPORT int nvmlDeviceGetNvLinkState(fake_gpu *g, unsigned link, int *active);
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(fake_gpu *g, unsigned link, pci_info *out);
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(fake_gpu *g, unsigned link, int *type);
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned bytes);
EXPORT int nvmlDeviceGetTotalEccErrors(fake_gpu *g, int kind, int counter, unsigned long long *n);
EXPORT int nvmlDeviceGetFieldValues(fake_gpu *g, int n, field_value *f);
EXPORT int nvmlDeviceGetP2PStatus(fake_gpu *a, fake_gpu *b, int which, int *status);
EXPORT int nvmlDeviceGetGpuFabricInfoV(fake_gpu *g, fabric_info *f);

int nvmlInit(void) { return fake_gpus.fails; }
int nvmlDeviceGetCount(unsigned *n) {
  *n = (unsigned)fake_gpus.ngpus;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, fake_gpu **out) {
  if (i >= (unsigned)fake_gpus.ngpus) return NOT_FOUND;
  *out = &fake_gpus.gpu[i];
  return 0;
}
/* Domains of four digits and of eight mean the same. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, fake_gpu **out) {
  unsigned want[4], have[4];
  if (sscanf(bus, "%x:%x:%x.%x", &want[0], &want[1], &want[2], &want[3]) != 4) return 2;
  for (int i = 0; i < fake_gpus.ngpus; i++)
    if (sscanf(fake_gpus.gpu[i].bus, "%x:%x:%x.%x", &have[0], &have[1], &have[2], &have[3]) == 4 &&
        memcmp(want, have, sizeof want) == 0) {
      *out = &fake_gpus.gpu[i];
      return 0;
    }
  return NOT_FOUND;
}
int nvmlDeviceGetPciInfo_v3(fake_gpu *g, pci_info *out) {
  snprintf(out->bus_id, sizeof out->bus_id, "%s", g->bus);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(fake_gpu *g, int *major, int *minor) {
  *major = g->sm / 10;
  *minor = g->sm % 10;
  return 0;
}
int nvmlDeviceGetNvLinkState(fake_gpu *g, unsigned link, int *active) {
  if (link >= (unsigned)g->nlinks) return NOT_SUPPORTED;
  *active = link >= (unsigned)g->down;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(fake_gpu *g, unsigned link, pci_info *out) {
  const char *far = g->far[link];
  if (!strcmp(far, "hidden")) far = "fffffff:ff:ff.0";
  if (!strcmp(far, "switch")) far = "00000000:C1:00.0";
  if (!strcmp(far, "cpu")) return NOT_SUPPORTED;
  snprintf(out->bus_id, sizeof out->bus_id, "%s", far);
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(fake_gpu *g, unsigned link, int *type) {
  const char *far = g->far[link];
  *type = !strcmp(far, "switch") ? 2 : !strcmp(far, "cpu") ? 1 : 0;
  if (!strcmp(far, "hidden")) *type = 255;
  return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned bytes) {
  snprintf(text, bytes, "580.65.06");
  return 0;
}
int nvmlDeviceGetTotalEccErrors(fake_gpu *g, int kind, int counter, unsigned long long *n) {
  if (counter != 0 || (kind != 0 && kind != 1)) return NOT_SUPPORTED;
  *n = g->errors[kind];
  return 0;
}
int nvmlDeviceGetFieldValues(fake_gpu *g, int n, field_value *f) {
  for (int i = 0; i < n; i++) {
    f[i].type = 1;
    f[i].result = 0;
    f[i].value = f[i].id == 170 ? g->c2c_links : f[i].id == 171 ? 1 : g->c2c_mbps;
  }
  return 0;
}
int nvmlDeviceGetP2PStatus(fake_gpu *a, fake_gpu *b, int which, int *status) {
  *status = a == b || which != 0 ? 0 : fake_gpus.no_peers;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(fake_gpu *g, fabric_info *f) {
  if (f->version != (sizeof *f | 2u << 24)) return 2;
  memcpy(f->cluster, g->cluster, sizeof f->cluster);
  f->clique = g->clique;
  f->status = 0;
  f->state = 3;
  return 0;
}
