/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Machines from a short string, as hwloc has.  Words are separated by spaces; docs/topology.md says what each means.
 *
 *   cluster := [part "and"]... part [fabric=LIST]     hosts of several kinds, in this order
 *   part    := ["nodes=N" "of"] (machine | FILE ["as" machine])     NCCL's XML: a word with "/" or ending in ".xml"
 *   machine := (PRESET | NxGPU[:JOIN] | Nxcpu) option...
 *   JOIN    := nvswitch[CHIPS] | pcie[SWITCHES] | mesh | cube | pairs
 *   option  := cpu=[Nx]CPU | numa=N | cores=N | pci=GENERATION | switch=N | nic=NxGBIT | net=ib|eth | gdr=0|1 |
 *              nvlink=LINKS[xGBPS] | links=A-B[*COUNT],... | trays=N | sm=N | memory=GBPS
 *   LIST    := comma-separated: rail, fattree, leaf=HOSTS, oversub=X, spines=N, ecmp, adaptive, hop=US, base=US
 *
 *   dgx-h100
 *   8xh100:nvswitch4 nic=8x400
 *   8xa100:pcie2
 *   nvl72
 *   2xcpu cores=32 nic=1x100
 *   nodes=2048 of dgx-h100 fabric=rail,fattree,oversub=2
 *   nodes=4 of ndv4-topo.xml as 8xa100:nvswitch6 nic=8x200
 */
#pragma once
#include <stdio.h>
#include "../base/status.h"

struct hk_cluster; /* topo.h */

/* HK_ERR_ARGUMENT quotes the wrong word, its position (the first character is 1) and the words that are possible
 * there. */
hk_status hk_cluster_from_string(struct hk_cluster **out, const char *text);
/* The grammar with all words, for `hocket help machine`. */
void hk_synth_help(FILE *to);
/* A table of the presets with one line about each, for --help. */
void hk_synth_presets(FILE *to);
