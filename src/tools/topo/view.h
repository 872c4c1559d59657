/* SPDX-License-Identifier: Apache-2.0 */
/* The views of `hocket topo`. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "../../base/status.h"

struct hk_cluster; /* topo/topo.h */
struct hk_json;    /* base/json.h */
struct hk_paths;   /* topo/paths.h */
struct hk_topo;    /* topo/topo.h */

/* The paths from every end to every end: their class, or their bandwidth. */
void hk_view_matrix(const struct hk_topo *t, const struct hk_paths *p, bool gbps, FILE *to);
/* The number of paths of each class between each two kinds of ends. */
void hk_view_classes(const struct hk_topo *t, const struct hk_paths *p, FILE *to);
/* GPUs, ports and CPUs with the ends that are nearest to them. */
void hk_view_parts(const struct hk_topo *t, const struct hk_paths *p, FILE *to);
/* The meaning of the classes that occur. */
void hk_view_legend(const struct hk_paths *p, FILE *to);
/* The channels of all GPUs (or CPUs), as text or as NCCL's graph XML; `network`: of a host that is one of several. */
hk_status hk_view_channels(const struct hk_topo *t, const struct hk_paths *p, bool network, bool xml, FILE *to);
void hk_view_dot(const struct hk_cluster *c, FILE *to);
/* Returns the exit code; w NULL: text. */
int hk_topo_lint(const char *path, struct hk_json *w);
void hk_view_json(const struct hk_cluster *c, struct hk_json *w);
