/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) and graph XML (NCCL_GRAPH_FILE, NCCL_GRAPH_DUMP_FILE).
 * docs/topology.md has the schema. Files are not trusted: entities are refused, depth, size and counts are bounded, and
 * every finding has file, line and column.
 */
#pragma once
#include <stdio.h>
#include "search.h"

struct hk_topo; /* topo.h */

typedef struct hk_xml_finding {
  int line, column;
  bool error; /* else a remark: the file is usable */
  char text[200];
} hk_xml_finding;
typedef void hk_xml_sink(void *arg, const hk_xml_finding *finding);

/* False: expat is not installed, and all functions that read XML fail and say so. */
bool hk_xml_available(void);

/* Reads a topology. The first error is the status's message ("file:line: what; what to do"). All findings go to `sink`
 * (may be NULL); the linter uses only that. The result is a finished topology. */
hk_status hk_topo_read_xml(struct hk_topo **out, const char *path, hk_xml_sink *sink, void *arg);
hk_status hk_topo_parse_xml(struct hk_topo **out, const char *name, const char *text, size_t bytes, hk_xml_sink *sink,
                            void *arg);
hk_status hk_topo_write_xml(const struct hk_topo *t, FILE *to);
/* NCCL's rule for NCCL_TOPO_FILE: the file's attributes and its PCI tree have priority, `detected` gives the values
 * that the file lacks. Devices that only the file has are left out, because this machine does not have them. */
hk_status hk_topo_read_xml_over(struct hk_topo **out, const char *path, const struct hk_topo *detected,
                                hk_xml_sink *sink, void *arg);

/* Reads the channels of this pattern. *out is NULL if the file has none; the search then decides. `what` has the nodes
 * of the ranks. */
hk_status hk_channels_read_xml(hk_channels **out, const char *path, hk_pattern pattern, const struct hk_topo *t,
                               const hk_search *what);
hk_status hk_channels_write_xml(const hk_channels *const *graphs, int n, const struct hk_topo *t, const hk_search *what,
                                FILE *to);
