/* SPDX-License-Identifier: Apache-2.0 */
/* Which machine a command is about, and the names of its parts in the output. */
#pragma once
#include "../decide/machine.h"
#include "../decide/overrides.h"
#include "../decide/select.h"
#include "tools.h"

struct hk_channels;  /* topo/search.h */
struct hk_cluster;   /* topo/topo.h */
struct hk_pci_info;  /* topo/topo.h */
struct hk_placement; /* topo/topo.h */
struct hk_topo;      /* topo/topo.h */
struct hk_simulator; /* sim/sim.h */
struct hk_layout;    /* program/layout.h */

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

/* The user's overrides and programs (HOCKET_PROGRAMS), as a communicator here has them. Clear them in any case. */
hk_status hk_tool_overrides(hk_overrides *o);

/* All inputs of a choice, as a communicator on that machine has them. */
typedef struct hk_inputs {
  struct hk_cluster *cluster;
  struct hk_placement *placements;
  int nranks;
  struct hk_channels *rings; /* the first host's */
  struct hk_layout *layout;
  hk_machine machine;
  hk_overrides overrides; /* from the environment and configuration */
  hk_filter filter;       /* the same */
  struct hk_tuner *tuner; /* NULL: none */
} hk_inputs;
/* The machine as for hk_tool_machine; nranks 0: one for each GPU or core. Returns an exit code, after printing the
 * error; close it in any case. */
int hk_inputs_open(hk_inputs *w, const char *words, const char *file, int nranks);
void hk_inputs_close(hk_inputs *w);
/* A simulator of its ranks; returns an exit code, after printing the error. */
int hk_inputs_simulator(struct hk_simulator **out, const hk_inputs *w);
/* The choice of a communicator on that machine. */
hk_status hk_inputs_choose(const hk_inputs *w, hk_coll coll, size_t bytes, hk_decision *out);

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
