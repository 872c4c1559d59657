/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as NVML reports them: NVLinks and their ends, C2C, fabric, and peer access. */
#include <stdio.h>
#include <string.h>
#include "../base/dl.h"
#include "../base/hash.h"
#include "../base/log.h"
#include "detect.h"
#include "detect_scan.h"

typedef struct nvml_device *device_t;
typedef struct nvml_pci {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
} nvml_pci;
_Static_assert(sizeof(nvml_pci) == 68, "NVML's ABI");
typedef struct nvml_field {
  unsigned id, scope;
  long long timestamp, latency_us;
  int type, result;
  union {
    double d;
    unsigned ui;
    unsigned long long ull;
  } value;
} nvml_field;
_Static_assert(sizeof(nvml_field) == 40, "NVML's ABI");
typedef struct nvml_fabric {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
} nvml_fabric;
_Static_assert(sizeof(nvml_fabric) == 36, "NVML's ABI");

enum {
  LINK_LIMIT = 36,
  CAP_P2P = 0, /* nvmlNvLinkCapability_t */
  FAR_GPU = 0,
  FAR_CPU = 1,
  FAR_SWITCH = 2,
  FIELD_C2C_COUNT = 170,
  FIELD_C2C_STATUS = 171,
  FIELD_C2C_MAX_MBPS = 172,
  TYPE_UNSIGNED = 1,
  FABRIC_COMPLETED = 3,
  P2P_READ = 0,
  MIG_ENABLED = 1
};

#define NVML_CALLS(NEED, MAY)                                                                                          \
  NEED(int, init, (void), "nvmlInit_v2", "nvmlInit")                                                                   \
  MAY(int, shutdown, (void), "nvmlShutdown")                                                                           \
  NEED(int, count, (unsigned *), "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")                                        \
  NEED(int, by_index, (unsigned, device_t *), "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")           \
  NEED(int, by_bus_id, (const char *, device_t *), "nvmlDeviceGetHandleByPciBusId_v2",                                 \
       "nvmlDeviceGetHandleByPciBusId")                                                                                \
  NEED(int, pci, (device_t, nvml_pci *), "nvmlDeviceGetPciInfo_v3")                                                    \
  MAY(int, name, (device_t, char *, unsigned bytes), "nvmlDeviceGetName")                                              \
  MAY(int, capability, (device_t, int *major, int *minor), "nvmlDeviceGetCudaComputeCapability")                       \
  MAY(int, link_state, (device_t, unsigned link, int *active), "nvmlDeviceGetNvLinkState")                             \
  MAY(int, link_version, (device_t, unsigned link, unsigned *), "nvmlDeviceGetNvLinkVersion")                          \
  MAY(int, link_capability, (device_t, unsigned link, int which, unsigned *), "nvmlDeviceGetNvLinkCapability")         \
  MAY(int, link_pci, (device_t, unsigned link, nvml_pci *), "nvmlDeviceGetNvLinkRemotePciInfo_v2")                     \
  MAY(int, link_far, (device_t, unsigned link, int *type), "nvmlDeviceGetNvLinkRemoteDeviceType")                      \
  MAY(int, fields, (device_t, int n, nvml_field *), "nvmlDeviceGetFieldValues")                                        \
  MAY(int, p2p, (device_t, device_t, int which, int *status), "nvmlDeviceGetP2PStatus")                                \
  MAY(int, fabric, (device_t, nvml_fabric *), "nvmlDeviceGetGpuFabricInfoV")                                           \
  MAY(int, driver, (char *, unsigned bytes), "nvmlSystemGetDriverVersion")                                             \
  MAY(int, ecc, (device_t, int kind, int counter, unsigned long long *), "nvmlDeviceGetTotalEccErrors")                \
  MAY(int, mig, (device_t, unsigned *now, unsigned *pending), "nvmlDeviceGetMigMode")
typedef struct api {
  NVML_CALLS(HK_DL_MEMBER, HK_DL_MEMBER)
} api;
static const hk_dl_symbol symbols[] = {NVML_CALLS(HK_DL_NEED, HK_DL_MAY)};
/* Global because the loaded library belongs to the process. */
static api nvml;
static hk_dl library =
    HK_DL_LIBRARY(nvml, symbols, HK_SUB_GRAPH, "NVLinks cannot be seen", "libnvidia-ml.so.1", "libnvidia-ml.so");

static void detect_nvml_add_far(hk_gpu_seen *g, hk_far_kind kind, uint64_t id) {
  int i = 0;
  while (i < g->nfars && (g->far[i].kind != kind || g->far[i].id != id)) i++;
  if (i == HK_GPU_FARS) return;
  if (i == g->nfars) g->far[g->nfars++] = (hk_gpu_link_end){.kind = kind, .id = id};
  g->far[i].links++;
}

/* The other end of a link. A switch may be invisible, in a virtual machine or because it is in another tray of the
 * rack. Then NVML returns an invalid address, or fails. */
static void detect_nvml_look_behind(const hk_detect_scan *s, device_t d, hk_gpu_seen *g, unsigned link) {
  nvml_pci far;
  int type = -1;
  uint64_t id = 0;
  memset(&far, 0, sizeof far);
  bool known = nvml.link_pci && nvml.link_pci(d, link, &far) == 0;
  far.bus_id[sizeof far.bus_id - 1] = '\0';
  known = known && hk_bus_id_parse(far.bus_id, &id);
  if (nvml.link_far && nvml.link_far(d, link, &type) != 0) type = -1;
  if (type != FAR_GPU && type != FAR_CPU && type != FAR_SWITCH) {
    int at = known ? hk_scan_pci_find(s, id) : -1;
    type = at >= 0 && s->pci[at].class_code >> 16 == 0x03 ? FAR_GPU : FAR_SWITCH;
  }
  if (type != FAR_GPU)
    detect_nvml_add_far(g, type == FAR_CPU ? HK_FAR_CPU : HK_FAR_SWITCH, 0);
  else if (known)
    detect_nvml_add_far(g, HK_FAR_GPU, id);
}

static void detect_nvml_count_links(const hk_detect_scan *s, device_t d, hk_gpu_seen *g) {
  for (unsigned link = 0; nvml.link_state && link < LINK_LIMIT; link++) {
    int active = 0;
    unsigned can = 1;
    if (nvml.link_state(d, link, &active) != 0 || !active) continue;
    if (nvml.link_capability && nvml.link_capability(d, link, CAP_P2P, &can) == 0 && !can) continue;
    detect_nvml_look_behind(s, d, g, link);
    /* Versions 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0 count from 1. They give the generation if CUDA did not. */
    static const int generation[] = {0, 60, 70, 70, 80, 80, 90, 100, 100};
    unsigned version;
    if (g->sm == 0 && nvml.link_version && nvml.link_version(d, link, &version) == 0 &&
        version < HK_ARRAY_LENGTH(generation))
      g->sm = generation[version];
  }
}

static unsigned detect_nvml_field(device_t d, unsigned id, unsigned scope) {
  nvml_field f;
  memset(&f, 0, sizeof f);
  f.id = id;
  f.scope = scope;
  if (!nvml.fields || nvml.fields(d, 1, &f) != 0 || f.result != 0) return 0;
  return f.type == TYPE_UNSIGNED ? f.value.ui : (unsigned)f.value.ull;
}

static float detect_nvml_c2c_rate(device_t d) {
  float mbps = 0;
  unsigned count = detect_nvml_field(d, FIELD_C2C_COUNT, 0);
  for (unsigned link = 0; link < count && link < 64; link++)
    if (detect_nvml_field(d, FIELD_C2C_STATUS, link)) mbps += (float)detect_nvml_field(d, FIELD_C2C_MAX_MBPS, link);
  return mbps / 1000;
}

/* Hosts of a rack whose GPUs share NVLinks have the same cluster and clique. */
static uint64_t detect_nvml_fabric_of(device_t d) {
  nvml_fabric f;
  memset(&f, 0, sizeof f);
  f.version = (unsigned)sizeof f | 2u << 24;
  if (!nvml.fabric || nvml.fabric(d, &f) != 0 || f.state != FABRIC_COMPLETED || f.status != 0) return 0;
  uint64_t words[2];
  memcpy(words, f.cluster, sizeof words);
  if (!words[0] && !words[1]) return 0; /* NVLinks end in this host */
  uint64_t h = hk_hash_mix(hk_hash_mix(hk_hash_mix(1, words[0]), words[1]), f.clique);
  return h ? h : 1;
}

static void detect_nvml_describe(const hk_detect_scan *s, device_t d, hk_gpu_seen *g) {
  int major, minor;
  unsigned now, pending;
  if (!g->name[0] && nvml.name && nvml.name(d, g->name, (unsigned)sizeof g->name) != 0) g->name[0] = '\0';
  g->name[sizeof g->name - 1] = '\0';
  if (g->sm == 0 && nvml.capability && nvml.capability(d, &major, &minor) == 0) g->sm = 10 * major + minor;
  g->nfars = 0;
  detect_nvml_count_links(s, d, g);
  g->c2c_gbps = detect_nvml_c2c_rate(d);
  g->fabric = detect_nvml_fabric_of(d);
  g->mig = nvml.mig && nvml.mig(d, &now, &pending) == 0 && now == MIG_ENABLED;
}

static const char *detect_nvml_p2p_reason(int status) {
  static const char *const reasons[] = {"",
                                        "the chipset does not support it",
                                        "the GPUs do not support it",
                                        "they are on different I/O hubs",
                                        "it is switched off in the driver",
                                        "it is not supported"};
  return status > 0 && status < (int)HK_ARRAY_LENGTH(reasons) ? reasons[status] : "for an unknown reason";
}

/* Pairs that cannot read each other's memory: one remark for all of them. */
static hk_status detect_nvml_check_peers(hk_detect_scan *s, const device_t *handle) {
  int pairs = 0, a = 0, b = 0, why = 0, status;
  for (int i = 0; i < s->ngpu; i++)
    for (int k = i + 1; k < s->ngpu; k++) {
      if (!nvml.p2p || !handle[i] || !handle[k] || nvml.p2p(handle[i], handle[k], P2P_READ, &status) != 0) continue;
      if (status == 0) continue;
      if (pairs++ == 0) a = i, b = k, why = status;
    }
  if (!pairs) return HK_OK;
  return hk_topo_remark(s->t,
                        "no direct access between the memories of GPUs at positions %d and %d (%d pair%s in all): %s",
                        a, b, pairs, pairs > 1 ? "s" : "", detect_nvml_p2p_reason(why));
}

/* Adds the GPUs that only NVML shows. */
static void detect_nvml_add_all(hk_detect_scan *s, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    device_t d;
    nvml_pci pci;
    uint64_t id;
    memset(&pci, 0, sizeof pci);
    if (nvml.by_index(i, &d) != 0 || nvml.pci(d, &pci) != 0) continue;
    pci.bus_id[sizeof pci.bus_id - 1] = '\0';
    if (hk_bus_id_parse(pci.bus_id, &id)) hk_scan_gpu_add(s, id);
  }
}

static hk_status detect_nvml_remark_cut(hk_detect_scan *s) {
  int cut = 0;
  for (int i = 0; i < s->ngpu; i++) cut += s->gpu[i].mig;
  if (!cut) return HK_OK;
  return hk_topo_remark(s->t, "%d GPU%s cut into MIG instances, which have no NVLinks and no peer access", cut,
                        cut > 1 ? "s are" : " is");
}

hk_status hk_scan_nvml(hk_detect_scan *s, bool *there) {
  hk_status rc = HK_OK;
  unsigned count = 0;
  device_t handle[HK_GPU_LIMIT] = {NULL};
  *there = false;
  if (!hk_dl_load(&library)) return HK_OK;
  int code = nvml.init();
  if (code != 0) {
    HK_INFO(HK_SUB_GRAPH, "NVML does not start: error %d", code);
    return HK_OK;
  }
  *there = true;
  if (s->ngpu == 0 && nvml.count(&count) == 0) detect_nvml_add_all(s, count);
  for (int i = 0; i < s->ngpu; i++) {
    char bus[24];
    hk_bus_id_format(s->pci[s->gpu[i].pci].id, bus);
    if (nvml.by_bus_id(bus, &handle[i]) == 0)
      detect_nvml_describe(s, handle[i], &s->gpu[i]);
    else
      handle[i] = NULL;
  }
  HK_TRY(detect_nvml_remark_cut(s), out);
  HK_TRY(detect_nvml_check_peers(s, handle), out);
out:
  if (nvml.shutdown) nvml.shutdown();
  return rc;
}

bool hk_nvml_look(const char *bus_id, hk_nvml_gpu *out) {
  enum { CORRECTED = 0, UNCORRECTED = 1, VOLATILE = 0 };
  device_t d;
  unsigned long long errors[2] = {0, 0};
  memset(out, 0, sizeof *out);
  if (!hk_dl_load(&library) || nvml.init() != 0) return false;
  const bool found = nvml.by_bus_id(bus_id, &d) == 0;
  if (found) {
    if (nvml.driver && nvml.driver(out->driver, sizeof out->driver) != 0) out->driver[0] = '\0';
    out->driver[sizeof out->driver - 1] = '\0';
    for (unsigned link = 0; nvml.link_state && link < LINK_LIMIT; link++) {
      int active = 0;
      if (nvml.link_state(d, link, &active) != 0) continue;
      out->links++;
      out->links_up += active != 0;
    }
    out->ecc_known = nvml.ecc && nvml.ecc(d, CORRECTED, VOLATILE, &errors[CORRECTED]) == 0 &&
                     nvml.ecc(d, UNCORRECTED, VOLATILE, &errors[UNCORRECTED]) == 0;
    if (out->ecc_known) out->corrected = errors[CORRECTED], out->uncorrected = errors[UNCORRECTED];
  }
  if (nvml.shutdown) nvml.shutdown();
  return found;
}
