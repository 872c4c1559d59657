/* SPDX-License-Identifier: Apache-2.0 */
/**
 * GPUDirect RDMA for all networks: the methods by which a GPU's memory is registered with network cards, the settings
 * that forbid it, and texts for causes. The registration itself is in ib_gdr.c (verbs) and plugin_gpu.c (net plugins).
 */
#pragma once
#include "../../device/device.h"
#include "../../topo/paths.h"

struct hk_settings; /* base/param.h */
struct hk_topo;     /* topo/topo.h */

/* How a card reaches a GPU's memory: by a dma-buf if driver and card support it, otherwise by its address with a peer
 * memory module, otherwise not (STAGED: data passes through host memory). */
typedef enum hk_gdr_method { HK_GDR_STAGED, HK_GDR_DMABUF, HK_GDR_PEERMEM } hk_gdr_method;
const char *hk_gdr_method_name(hk_gdr_method method); /* "dma-buf" */

/* The machine and the paths in it that begin at the GPU itself; NULL, with a message, if they cannot be found. */
void hk_gdr_look(const struct hk_settings *settings, struct hk_topo **t, hk_paths **paths, int rank);
void hk_gdr_forget(struct hk_topo *t, hk_paths *paths); /* frees both; NULL is fine */
/* The class of the path between GPU number `gpu` and a card, which is found by its name or by its PCI address (may be
 * NULL). HK_PATH_DIS if the topology does not have both; `paths` may be NULL. */
hk_path_class hk_gdr_distance(const hk_paths *paths, int gpu, const char *card, const char *pci);
/* Returns true if the settings forbid GPUDirect RDMA over this distance; `why` names the setting. An unknown distance
 * (HK_PATH_DIS) is allowed. */
bool hk_gdr_too_far(const struct hk_settings *set, hk_path_class cls, char *why, size_t why_bytes);
/* Returns true if a card at this distance writes to the GPU by PCI, and its completions, which are in the CPU's memory,
 * reach the GPU by C2C: then the GPU's order of writes says nothing. */
bool hk_gdr_is_split(const hk_paths *paths, int gpu, hk_path_class card);
/* Returns true if a flush is needed before the GPU sees what a card has written to its memory and reported as
 * complete. `split`: hk_gdr_is_split. */
bool hk_gdr_needs_flush(const struct hk_settings *set, const hk_device *gpu, bool split);

enum { HK_GDR_WHY = 256 };
/* Appends a cause to those in `why`. */
__attribute__((format(printf, 2, 3))) void hk_gdr_add_cause(char why[HK_GDR_WHY], const char *format, ...);
/* Makes a dma-buf of whole pages of the GPU's memory; the caller closes it. `pci`: for a card that accesses the GPU
 * over PCI, if the driver makes a difference. Returns -1 with the cause appended to `why`. */
int hk_gdr_dmabuf(const struct hk_settings *set, hk_device *gpu, const void *p, size_t bytes, bool pci,
                  char why[HK_GDR_WHY]);
