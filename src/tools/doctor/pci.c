/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of GPUs, NICs and the bridges between them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/sysfs.h"
#include "../../topo/topo.h"
#include "../../topo/xid.h"
#include "doctor.h"

static uint32_t pci_gpus(const hk_doctor *d) { return d->topo ? hk_topo_count(d->topo, HK_NODE_GPU) : 0; }

static int pci_rdma_devices(const hk_doctor *d) {
  int n = 0;
  char **names = hk_sysfs_list(d->root, "/sys/class/infiniband");
  while (names && names[n]) n++;
  free(names);
  return n;
}

void hk_doctor_topology(hk_doctor *d) {
  if (!d->topo) {
    hk_doctor_say(d, HK_DOC_PROBLEM, NULL, "the machine cannot be described: %s", hk_last_error());
    return;
  }
  int before = d->n;
  char *text = d->topo->remarks ? strdup(d->topo->remarks) : NULL;
  for (char *save = NULL, *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
    /* the check links reports these */
    if (!strstr(line, "below its best")) hk_doctor_say(d, HK_DOC_NOTE, NULL, "%s", line);
  free(text);
  if (d->n == before)
    hk_doctor_say(d, HK_DOC_OK, NULL, "all parts of the machine can be seen (hocket topo shows them)");
}

void hk_doctor_links(hk_doctor *d) {
  int looked = 0, before = d->n;
  for (uint32_t i = 0; d->topo && i < d->topo->nnodes; i++) {
    const hk_node *n = &d->topo->nodes[i];
    const hk_pci_info *p = &n->pci;
    char bus[24], fix[256];
    if (n->kind != HK_NODE_GPU && n->kind != HK_NODE_NIC && n->kind != HK_NODE_PCI) continue;
    if (p->width <= 0) continue;
    looked++;
    /* A GPU's link slows down while it is idle, so its present speed means nothing. */
    bool slow = n->kind != HK_NODE_GPU && p->gts > 0 && p->max_gts > p->gts;
    if (!slow && p->max_width <= p->width) continue;
    hk_bus_id_format(n->id, bus);
    hk_doctor_say(
        d, HK_DOC_PROBLEM,
        hk_doctor_fix(fix, "reseat the card, look at its slot, riser and the firmware's settings; lspci -vv -s %s",
                      bus),
        "%s %s: its link runs at %g GT/s x%d and could run at %g GT/s x%d", hk_node_kind_name((hk_node_kind)n->kind),
        bus, (double)p->gts, p->width, (double)p->max_gts, p->max_width);
  }
  if (looked && d->n == before) hk_doctor_say(d, HK_DOC_OK, NULL, "%d PCI links run at full speed", looked);
}

static bool pci_nvswitches(const hk_doctor *d) {
  bool found = false;
  char **names = hk_sysfs_list(d->root, "/sys/bus/pci/devices");
  for (char **name = names; name && *name && !found; name++) {
    long long class_code = 0, vendor = 0;
    hk_sysfs_number(d->root, &class_code, "/sys/bus/pci/devices/%s/class", *name);
    hk_sysfs_number(d->root, &vendor, "/sys/bus/pci/devices/%s/vendor", *name);
    found = vendor == 0x10de && class_code >> 8 == 0x0680;
  }
  free(names);
  return found;
}

/* True if CUDA or NVML identified a GPU. */
static bool pci_answered(const hk_doctor *d) {
  for (uint32_t i = 0; d->topo && i < d->topo->nnodes; i++)
    if (d->topo->nodes[i].kind == HK_NODE_GPU && d->topo->nodes[i].gpu.sm > 0) return true;
  return false;
}

void hk_doctor_gpu(hk_doctor *d) {
  char text[512] = "version unknown";
  bool loaded = hk_sysfs_text(d->root, text, sizeof text, "/proc/driver/nvidia/version");
  text[strcspn(text, "\n")] = '\0';
  if (!pci_gpus(d) && !loaded) {
    hk_doctor_say(d, HK_DOC_OK, NULL, "no GPU here: ranks use host memory");
  } else if (!pci_gpus(d)) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "docker run --gpus all (with the NVIDIA container toolkit); nvidia-smi",
                  "the NVIDIA driver is loaded, but no GPU can be seen");
  } else if (d->live && !pci_answered(d)) {
    hk_doctor_say(
        d, HK_DOC_PROBLEM,
        loaded ? "nvidia-smi; in a container: docker run --gpus all; else reinstall the driver's libraries"
               : "modprobe nvidia; dmesg | grep -i nvidia",
        "%u GPU%s, but %s", pci_gpus(d), pci_gpus(d) > 1 ? "s are there" : " is there",
        loaded ? "the driver's libraries do not answer (libcuda.so.1, libnvidia-ml.so.1)" : "no driver is loaded");
  } else if (d->live && pci_nvswitches(d) && hk_topo_count(d->topo, HK_NODE_NVS) == 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "systemctl restart nvidia-fabricmanager; nvidia-smi nvlink --status",
                  "NVSwitches are there, but no NVLink leads to them");
  } else {
    hk_doctor_say(d, HK_DOC_OK, NULL, "%u GPU%s; driver: %.200s", pci_gpus(d), pci_gpus(d) > 1 ? "s" : "",
                  loaded ? text : "version unknown");
  }
}

void hk_doctor_gdr(hk_doctor *d) {
  char text[512];
  if (!pci_gpus(d) || pci_rdma_devices(d) == 0) return;
  if (hk_sysfs_has(d->root, "/sys/module/nvidia_peermem") || hk_sysfs_has(d->root, "/sys/module/nv_peer_mem")) {
    hk_doctor_say(d, HK_DOC_OK, NULL, "NICs reach GPU memory (nvidia-peermem is loaded)");
    return;
  }
  for (uint32_t i = 0; i < d->topo->nnodes; i++)
    if (d->topo->nodes[i].kind == HK_NODE_NET && d->topo->nodes[i].net.gdr) {
      hk_doctor_say(d, HK_DOC_OK, NULL, "NICs reach GPU memory (dma-buf)");
      return;
    }
  hk_sysfs_text(d->root, text, sizeof text, "/proc/driver/nvidia/version");
  bool open = strstr(text, "Open Kernel Module") != NULL;
  hk_doctor_say(d, HK_DOC_PROBLEM, "modprobe nvidia-peermem (and put nvidia-peermem into /etc/modules-load.d/)",
                "NICs do not reach GPU memory: nvidia-peermem is not loaded%s; all traffic goes through host memory",
                open ? "" : ", and dma-buf needs the driver's open kernel modules");
}

void hk_doctor_xid(hk_doctor *d) {
  hk_xid found[HK_XIDS];
  char fix[256];
  if (pci_gpus(d) == 0) return;
  const int n = hk_xid_read(d->root, found);
  if (n < 0 && errno == ENOENT) return; /* a container, or a machine that was recorded without it */
  if (n < 0)
    hk_doctor_say(d, HK_DOC_NOTE, "sudo hocket doctor xid",
                  "the kernel's log, where drivers report errors of GPUs, cannot be read: %s", strerror(errno));
  if (n == 0) hk_doctor_say(d, HK_DOC_OK, NULL, "the kernel's log has no error of a GPU");
  for (int i = 0; i < n; i++) {
    const hk_xid *x = &found[i];
    const char *device = x->nvswitch ? "NVSwitch" : "GPU";
    hk_doctor_say(d, x->program ? HK_DOC_NOTE : HK_DOC_PROBLEM,
                  x->program ? "look for the fault in that program; compute-sanitizer finds most"
                  : x->nvswitch
                      ? "look the SXid up in the manual of NVIDIA's Fabric Manager; take the host out of use"
                      : hk_doctor_fix(fix,
                                      "take the host out of use; nvidia-smi -q -i %s; reset the GPU, and look "
                                      "the Xid up in NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors)",
                                      x->bus),
                  "%s %s: %s %d, %d time%s, last %lld minutes ago: %s%s", device, x->bus, x->nvswitch ? "SXid" : "Xid",
                  x->number, x->times, x->times > 1 ? "s" : "", (long long)x->age_s / 60, x->text,
                  x->program ? " (usually a fault of the program that used it)" : "");
  }
}

/* ---- ACS ---- */

enum { EXTENDED = 0x100, CONFIG_BYTES = 4096, CAP_ACS = 0x0d, ACS_CONTROL = 6, REDIRECTS = 0x1c };

/* The ACS control word of a bridge. False if it has none; *hidden if only root can read it. */
static bool pci_acs_control(const hk_doctor *d, const char *name, unsigned *control, bool *hidden) {
  unsigned char config[CONFIG_BYTES];
  char path[HK_SYSFS_PATH];
  snprintf(path, sizeof path, "%.3000s/sys/bus/pci/devices/%.32s/config", d->root, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, config, sizeof config);
  if (fd >= 0) close(fd);
  *hidden = n > 0 && n <= EXTENDED; /* other users than root get the first 64 bytes */
  for (unsigned at = EXTENDED, turns = 0; n >= EXTENDED + 8 && at + 8 <= (unsigned)n && at >= EXTENDED && turns < 64;
       turns++) {
    unsigned id = config[at] | (unsigned)config[at + 1] << 8;
    if (id == CAP_ACS) {
      *control = config[at + ACS_CONTROL] | (unsigned)config[at + ACS_CONTROL + 1] << 8;
      return true;
    }
    at = (config[at + 2] >> 4 | (unsigned)config[at + 3] << 4) & 0xffc;
  }
  return false;
}

/* Only bridges between devices that communicate matter: those on the path down from a PCI node. */
void hk_doctor_acs(hk_doctor *d) {
  int on = 0, off = 0, unseen = 0;
  char first[64] = "", fix[256];
  if (!d->topo || hk_topo_count(d->topo, HK_NODE_PCI) == 0 || pci_gpus(d) == 0) return;
  char **names = hk_sysfs_list(d->root, "/sys/bus/pci/devices");
  for (char **name = names; name && *name; name++) {
    long long class_code = 0;
    unsigned control = 0;
    bool hidden = false;
    if (!hk_sysfs_number(d->root, &class_code, "/sys/bus/pci/devices/%s/class", *name) || class_code >> 8 != 0x0604)
      continue;
    if (!pci_acs_control(d, *name, &control, &hidden)) {
      unseen += hidden;
    } else if (control & REDIRECTS) {
      if (on++ == 0) snprintf(first, sizeof first, "%.60s", *name);
    } else {
      off++;
    }
  }
  free(names);
  if (on)
    hk_doctor_say(
        d, HK_DOC_PROBLEM,
        hk_doctor_fix(
            fix,
            "setpci -s %s ECAP_ACS+6.w=0000 for each of them (not on a host that gives devices to virtual machines), "
            "or switch ACS off in the firmware",
            first),
        "%d PCI bridge%s (%s%s) send%s traffic between devices up to the CPU (ACS): GPUs and NICs below one "
        "switch are slow, or hang",
        on, on > 1 ? "s" : "", first, on > 1 ? ", ..." : "", on > 1 ? "" : "s");
  else if (unseen)
    hk_doctor_say(d, HK_DOC_NOTE, "sudo hocket doctor acs",
                  "only root can see whether PCI switches redirect traffic (ACS)");
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "PCI switches pass traffic between devices directly (%d with ACS off)", off);
}

void hk_doctor_iommu(hk_doctor *d) {
  char type[64], bus[24], first[24] = "";
  int translated = 0, straight = 0;
  for (uint32_t i = 0; d->topo && i < d->topo->nnodes; i++) {
    const hk_node *n = &d->topo->nodes[i];
    if (n->kind != HK_NODE_GPU && n->kind != HK_NODE_NIC) continue;
    hk_bus_id_format(n->id, bus);
    if (!hk_sysfs_text(d->root, type, sizeof type, "/sys/bus/pci/devices/%s/iommu_group/type", bus)) continue;
    if (strncmp(type, "DMA", 3) == 0) {
      if (translated++ == 0) memcpy(first, bus, sizeof first);
    } else {
      straight++;
    }
  }
  if (translated && pci_gpus(d))
    hk_doctor_say(
        d, HK_DOC_PROBLEM,
        "put iommu=pt on the kernel's command line (/etc/default/grub, then update-grub and reboot), or switch "
        "the IOMMU off in the firmware",
        "the IOMMU translates the addresses of %d device%s (%s%s): traffic between GPUs and NICs is slow, or fails",
        translated, translated > 1 ? "s" : "", first, translated > 1 ? ", ..." : "");
  else if (translated)
    hk_doctor_say(d, HK_DOC_NOTE, "put iommu=pt on the kernel's command line",
                  "the IOMMU translates the addresses of %d NIC%s: small messages take longer", translated,
                  translated > 1 ? "s" : "");
  else if (straight)
    hk_doctor_say(d, HK_DOC_OK, NULL, "the IOMMU lets %d devices through untranslated", straight);
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "no IOMMU is between devices");
}
