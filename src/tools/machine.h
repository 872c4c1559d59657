/* SPDX-License-Identifier: Apache-2.0 */
/* Which machine a command is about, and the names of its parts in the output. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct hk_cluster;  /* topo/topo.h */
struct hk_pci_info; /* topo/topo.h */
struct hk_topo;     /* topo/topo.h */

/* A machine in words (synth.h), or NCCL's XML in a file, or (both NULL) this machine. Returns HK_EXIT_OK, or the exit
 * code after printing the error. */
int hk_tool_machine(struct hk_cluster **out, const char *words, const char *file);
/* The remarks about a machine, after a heading; nothing if there are none. */
void hk_tool_remarks(const struct hk_topo *t, FILE *to);
/* One sentence or two: whether the constants of simulated times (or prices) were measured, and how near published times
 * are to those of sizes from first to last. text needs HK_ACCURACY_TEXT bytes and is returned. */
enum { HK_ACCURACY_TEXT = 512 };
const char *hk_tool_accuracy(char *text, const struct hk_cluster *c, size_t first, size_t last, bool prices);
/* For options' tables: --machine's and --file's rows. */
const char *hk_tool_preset_word(int i);
#define HK_ROW_MACHINE(member)                                                                                         \
  HK_ROW_TEXT(member, "machine", "STRING",                                                                             \
              "a machine in words, as dgx-h100 or "                                                                    \
              "'nodes=4 of 8xa100:nvswitch6 nic=8x200'; without it and --file: the machine at hand",                   \
              .letter = 'm', .words = hk_tool_preset_word)
#define HK_ROW_XML(member)                                                                                             \
  HK_ROW_FILE(member, "file", "FILE",                                                                                  \
              "a machine in NCCL's topology XML, or a folder that scripts/record-machine.sh made", .letter = 'f')

enum { HK_LABEL = 64 };
/* "GPU3", "NET0", "CPU1", "NVS", "0000:1b:00.0"; text needs HK_LABEL bytes and is returned. */
const char *hk_label(const struct hk_topo *t, uint32_t node, char *text);
/* "gen5 x16"; "" if it is unknown. */
const char *hk_pci_label(const struct hk_pci_info *p, char *text);
bool hk_pci_downgraded(const struct hk_pci_info *p);
/* "400 Gb/s" */
const char *hk_port_label(float mbps, char *text);
/* "8 H100, NVSwitch, 8 NICs of 400 Gb/s, 2 CPUs"; text needs 256 bytes. */
const char *hk_topo_summary(const struct hk_topo *t, char *text);
