/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, dumps and compares the machine's graph (topology.h). */
#include "topology.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/facts.h"
#include "../base/hash.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../core/comm.h"
#include "../topo/detect.h"
#include "../topo/topo.h"
#include "../topo/xml.h"

/* Returns the hash of a file's content. A file that cannot be read is reported by the parser. */
static uint64_t topology_hash_file(const char *path) {
  char block[4096];
  FILE *f = fopen(path, "re");
  uint64_t h = 0;
  size_t n;
  if (!f) return 0;
  for (h = 1; (n = fread(block, 1, sizeof block, f)) > 0;) h = hk_hash(h, block, n);
  fclose(f);
  return h;
}

/* A dump that fails is no reason to stop a job. */
static void topology_dump(const hk_topo *t, const char *path) {
  FILE *f = fopen(path, "we");
  bool bad = !f || hk_topo_write_xml(t, f) != HK_OK;
  if (f && fclose(f) != 0) bad = true;
  if (bad)
    HK_WARN("NCCL_TOPO_DUMP_FILE: cannot write %s: %s", path, strerror(errno));
  else
    HK_INFO(HK_SUB_GRAPH, "the machine's topology is in %s", path);
}

static void topology_report_remarks(const hk_topo *t) {
  char *text = t->remarks ? strdup(t->remarks) : NULL, *save = NULL;
  for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
    HK_INFO(HK_SUB_GRAPH, "topology: %s", line);
  free(text);
}

hk_status hk_topology_publish(ncclComm_t c, bool child, hk_topology_fact *out) {
  hk_status rc = HK_OK;
  hk_topo *t = NULL;
  const char *file = c->settings->TOPO_FILE, *to = c->settings->TOPO_DUMP_FILE;
  bool dumps = to && *to && !child && c->rank == c->settings->TOPO_DUMP_FILE_RANK;
  memset(out, 0, sizeof *out);
  if (file && *file) out->file = topology_hash_file(file);
  if ((!file || !*file || child) && !dumps) return HK_OK;
  HK_TRY(hk_topo_detect_with_file(c->settings, &t, 0), out);
  out->graph = t->hash;
  HK_INFO(HK_SUB_GRAPH, "topology of %s: %u CPUs, %u GPUs, %u network ports, hash %016llx", t->name,
          hk_topo_count(t, HK_NODE_CPU), hk_topo_count(t, HK_NODE_GPU), hk_topo_count(t, HK_NODE_NET),
          (unsigned long long)t->hash);
  topology_report_remarks(t);
  if (dumps) topology_dump(t, to);
out:
  hk_topo_free(t);
  return rc;
}

hk_status hk_topology_agree(ncclComm_t c, const hk_facts *facts) {
  const hk_topology_fact *mine = hk_fact_of(facts, c->rank);
  for (int r = 0; r < c->nranks; r++) {
    const hk_topology_fact *o = hk_fact_of(facts, r);
    if (!hk_wire_near(c, r)) continue;
    if (o->file != mine->file)
      return HK_FAIL(
          HK_ERR_USAGE,
          "rank %d and rank %d are on one host and have different topology files%s: set NCCL_TOPO_FILE equally "
          "on all ranks of a host",
          c->rank, r, o->file && mine->file ? "" : " (one has none)");
    /* Each rank's container may show another part of the host. No decision of ranks on host memory depends on it. */
    if (o->graph && mine->graph && o->graph != mine->graph)
      HK_INFO(HK_SUB_GRAPH, "rank %d sees another machine than rank %d of the same host (containers?)", r, c->rank);
  }
  return HK_OK;
}
