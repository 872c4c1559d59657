/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by xml_*.c: makes a topology from an XML tree, and finds nodes of topologies that are not finished. */
#pragma once
#include "topo.h"
#include "xml_tree.h"

enum { HK_XML_CPUS = 1024, HK_PCI_AMD = 0x1002 };
#define HK_CPU_AMD "AuthenticAMD"

/* An <nvlink>, <xgmi> or <c2c>: processed when all devices are known. */
struct hk_xml_link {
  const hk_xml_node *xml;
  uint32_t gpu, cpu; /* node indices */
  uint32_t peer;     /* node index; UINT32_MAX: nothing */
  uint32_t order;
  long count;
  uint64_t bus;   /* offset of the bus ids of its host */
  float gbps, us; /* hk_bw, hk_us; below 0: not given */
};

/* A <cpu> that has been read. */
typedef struct hk_xml_cpu {
  const hk_xml_node *xml;
  uint32_t node; /* index */
  int host;      /* hosts are numbered in the order of the file */
} hk_xml_cpu;

/* Offsets that make the numbers of a host unique. */
typedef struct hk_xml_host {
  int numa, dev, net;
  uint64_t bus;
} hk_xml_host;

typedef struct hk_xml_reader {
  hk_topo *t;
  hk_xml_report *r; /* for findings about the whole file */
  hk_status rc;     /* errors other than findings, such as no memory */
  struct hk_xml_link *rows;
  uint32_t nrows, cap, nvs; /* nvs: UINT32_MAX until there is one */
  uint64_t next_virtual;
  uint32_t ncpus;
  hk_xml_cpu cpu[HK_XML_CPUS];
  int nhosts;
  const char *hosts[HK_XML_CPUS]; /* their host_hash */
  int no_numa;                    /* the number of a CPU whose numaid is -1: one that no other has */
  bool several;                   /* numbers are unique in a host only */
  hk_xml_host step, add;          /* step: from host to host; add: for the host that is being read */
  bool mcast_given[HK_TOPO_NODES];
} hk_xml_reader;

void hk_xml_join(hk_xml_reader *b, uint32_t x, uint32_t y, hk_edge_kind kind, unsigned count, float gbps, float us);
/* Reads hk_bw and hk_us, which a link has if it differs from others of its kind. */
void hk_xml_own_figures(const hk_xml_node *xml, float *gbps, float *us);
void hk_xml_take_link(hk_xml_reader *b, const hk_xml_node *xml, uint32_t gpu, uint32_t cpu);
void hk_xml_join_links(hk_xml_reader *b);

hk_status hk_xml_build(hk_topo **out, const char *name, const hk_xml_tree *tree);
/* The tree of a topology: an error if XML cannot express it. */
hk_status hk_xml_of_topo(hk_xml_tree **out, const hk_topo *t);
/* The bandwidths that a reader concludes from the rest of the XML; a different bandwidth is written as hk_bw. */
float hk_xml_pci_gbps(const hk_pci_info *p);
float hk_xml_nvlink_gbps(int sm, unsigned count);
