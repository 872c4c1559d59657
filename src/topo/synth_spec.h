/* SPDX-License-Identifier: Apache-2.0 */
/* The specification that a machine in words gives: made by the parser (synth.c), read by the builder
 * (synth_build.c). */
#pragma once
#include "facts.h"

typedef enum hk_synth_join {
  HK_JOIN_DEFAULT, /* NVSwitch or mesh if the GPU has links */
  HK_JOIN_NVSWITCH,
  HK_JOIN_PCIE,
  HK_JOIN_CUBE,
  HK_JOIN_MESH,
  HK_JOIN_PAIRS,
  HK_JOIN_WIRES /* links= */
} hk_synth_join;

enum { HK_SYNTH_WIRES = 512, HK_SYNTH_GPUS = 576 };
typedef struct hk_synth_wire {
  uint16_t a, b, count;
} hk_synth_wire;

typedef struct hk_synth_spec {
  char name[64];
  const hk_gpu_part *gpu; /* NULL: none */
  const hk_cpu_part *cpu; /* NULL: one that fits the GPU */
  int ngpus, sockets;     /* sockets 0: the usual number for these GPUs */
  int join, chips;        /* hk_synth_join; NVSwitch chips, for the name only */
  int nvlink;             /* links per GPU; -1: the part's */
  int sm, memory;         /* as in hk_gpu_info; 0: the part's */
  float link_gbps;        /* of one link; 0: as usual for the sm */
  int numa, cores, trays; /* NUMA nodes per socket; cores per NUMA node, 0: the part's; hosts that share the domain */
  int pci, nswitch;       /* generation, 0: the GPU's; PCI switches, -1: none */
  int nnics;
  int gdr;
  bool ethernet, joined; /* joined: the words give the GPUs' interconnect */
  float gbit;
  uint32_t nwires;
  hk_synth_wire wires[HK_SYNTH_WIRES];
} hk_synth_spec;

/* *out is finished. Errors begin with the machine's name. */
hk_status hk_synth_build(hk_topo **out, const hk_synth_spec *s);
/* Completes the machine of a file with the GPUs and GPU links of `s`, and with ports for its NICs if it has none. */
hk_status hk_synth_complete(hk_topo **out, const hk_topo *file, const hk_synth_spec *s);
