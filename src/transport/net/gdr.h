/* SPDX-License-Identifier: Apache-2.0 */
/**
 * GPUDirect RDMA, whatever the network: by which ways a GPU's memory may be given to cards, which settings forbid it, and what
 * is said of causes.  What a network does with it is its own: ib_gdr.c by verbs, plugin_gpu.c by net plugins.
 */
#ifndef HK_TRANSPORT_NET_GDR_H
#define HK_TRANSPORT_NET_GDR_H
#include "../../device/device.h"
#include "../../topo/paths.h"

/* Through a dma-buf where driver and card can, else by its address with a peer memory module, else not at all. */
typedef enum hk_gdr_method { HK_GDR_STAGED, HK_GDR_DMABUF, HK_GDR_PEERMEM } hk_gdr_method;
const char *hk_gdr_method_name(hk_gdr_method method); /* "dma-buf" */

/* The class of the way between a GPU and a card, which is known by its name or by its PCI address (NULL: not);
 * HK_PATH_DIS where the topology (may be NULL) does not show both. */
hk_path_class hk_gdr_distance(const hk_paths *paths, int gpu, const char *card, const char *pci);
/* Do the settings forbid this way?  `why` tells by which.  One that is not known counts as near. */
bool hk_gdr_too_far(hk_path_class cls, char *why, size_t why_bytes);
/* Must a GPU be made to see what a card has written to its memory and reported? */
bool hk_gdr_needs_flush(const hk_device *gpu);

enum { HK_GDR_WHY = 256 };
/* Appends one cause more to those that stand in `why`. */
__attribute__((format(printf, 2, 3))) void hk_gdr_add_cause(char why[HK_GDR_WHY], const char *format, ...);
/* A dma-buf of whole pages of the GPU's memory, the caller's to close; -1 with the cause appended to `why`. */
int hk_gdr_dmabuf(hk_device *gpu, const void *p, size_t bytes, char why[HK_GDR_WHY]);
#endif
