/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Topology files in the forms that other libraries and clouds write: RCCL's, NCCL's dumps, Azure's. The files here were
 * written for the tests. */
#include "../../src/topo/facts.h"
#include "../../src/topo/xml.h"
#include "../support/suite.h"

typedef struct seen {
  int errors, remarks;
  char last[200];
} seen;
static void look(void *arg, const hk_xml_finding *f) {
  seen *s = arg;
  if (f->error)
    s->errors++;
  else
    s->remarks++;
  snprintf(s->last, sizeof s->last, "%s", f->text);
}

static hk_topo *read_text(const char *text, seen *s) {
  hk_topo *t;
  *s = (seen){0};
  ck_assert_msg(hk_topo_parse_xml(&t, "text", text, strlen(text), look, s) == HK_OK, "%s", hk_last_error());
  return t;
}

static const hk_node *gpu_of(const hk_topo *t, unsigned i) { return &t->nodes[t->first_of[HK_NODE_GPU] + i]; }

static float link_of(const hk_topo *t, unsigned gpu) {
  const hk_node *n = gpu_of(t, gpu);
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++)
    if (t->edges[e].kind == HK_EDGE_NVLINK) return t->edges[e].gbps;
  return 0;
}

/* Two GPUs that are linked once. */
#define AMD_PAIR(device, gcn)                                                                                          \
  "<system version=\"2\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"191\" modelid=\"2\">"    \
  "<pci busid=\"0000:08:00.0\" class=\"0x120000\" vendor=\"0x1002\"" device                                            \
  " link_speed=\"32 GT/s\" link_width=\"16\">"                                                                         \
  "<gpu dev=\"0\" sm=\"304\"" gcn " arch=\"38911\" rank=\"0\" gdr=\"1\">"                                              \
  "<xgmi target=\"0000:18:00.0\" count=\"1\" tclass=\"0x120000\"/></gpu></pci>"                                        \
  "<pci busid=\"0000:18:00.0\" class=\"0x120000\" vendor=\"0x1002\"" device                                            \
  " link_speed=\"32 GT/s\" link_width=\"16\">"                                                                         \
  "<gpu dev=\"1\" sm=\"304\"" gcn " arch=\"38911\" rank=\"1\" gdr=\"1\">"                                              \
  "<xgmi target=\"0000:08:00.0\" count=\"1\" tclass=\"0x120000\"/></gpu></pci></cpu></system>"

/* Version 2, sm in compute units, the generation in gcn: a number, a name, or the PCI device alone. */
TEST(rccl_dumps) {
  static const struct {
    const char *text;
    int sm;
    float link, memory;
  } cases[] = {{AMD_PAIR("", " gcn=\"942\""), 942, 48, 5300},
               {AMD_PAIR("", " gcn=\"gfx942:sramecc+:xnack-\""), 942, 48, 5300},
               {AMD_PAIR(" device=\"0x74a5\"", " gcn=\"gfx942\""), 942, 48, 6000},
               {AMD_PAIR("", " gcn=\"gfx90a\""), 910, 36, 1638},
               {AMD_PAIR("", " gcn=\"910\""), 910, 36, 1638},
               {AMD_PAIR("", " gcn=\"906\""), 906, 24, 0},
               {AMD_PAIR(" device=\"0x75a0\"", ""), 950, 57.6f, 8000}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    seen s;
    hk_topo *t = read_text(cases[i].text, &s);
    ck_assert_msg(!s.errors && !s.remarks, "%s", s.last);
    ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 2);
    ck_assert_int_eq(gpu_of(t, 1)->gpu.sm, cases[i].sm);
    ck_assert_float_eq_tol(link_of(t, 0), cases[i].link, 0.01f);
    ck_assert_float_eq(gpu_of(t, 0)->gpu.memory_gbps, cases[i].memory);
    ck_assert_int_eq(t->nodes[0].cpu.family, 26);
    hk_topo_free(t);
  }
  hk_topo *t;
  static const char wrong[] = AMD_PAIR("", " gcn=\"hopper\"");
  ck_assert_int_eq(hk_topo_parse_xml(&t, "text", wrong, sizeof wrong - 1, NULL, NULL), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "gcn=\"hopper\""));
}

/* As NCCL 2.29 to 2.32 write them: a CPU without a number next to others, and the attributes of new plugins' kinds. */
TEST(newer_dumps) {
  seen s;
  hk_topo *t = read_text(
      "<system version=\"1\"><cpu numaid=\"-1\"><pci busid=\"3:0.0\" class=\"0x020000\" link_speed=\"16 GT/s\" "
      "link_width=\"16\"><nic><net name=\"a\" dev=\"0\" speed=\"200000\" net=\"1\" gin=\"1\" rma=\"1\" rail=\"4\" "
      "plane=\"0\"/><net name=\"a\" dev=\"0\" speed=\"200000\" net=\"0\" coll=\"1\"/></nic></pci></cpu>"
      "<cpu numaid=\"0\"><pci busid=\"1:0.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">"
      "<gpu dev=\"0\" sm=\"100\" mlopart=\"0\"/></pci></cpu><cpu numaid=\"1\"/></system>",
      &s);
  ck_assert_msg(!s.errors && !s.remarks, "%s", s.last);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 3);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 1);
  const hk_node *net = &t->nodes[t->first_of[HK_NODE_NET]];
  ck_assert(net->numa == 2 && net->net.rail == 4);
  hk_topo_free(t);
}

#define NVIDIA(bus, device, inside)                                                                                    \
  "<pci busid=\"" bus "\" class=\"0x030200\" vendor=\"0x10de\" device=\"" device                                       \
  "\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">" inside "</pci>"
#define CPU(numa, family, model, inside)                                                                               \
  "<cpu numaid=\"" numa "\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"" family "\" modelid=\"" model          \
  "\">" inside "</cpu>"

/* What the dump does not say, but its ids do: memory of GPUs and CPUs, AMD's family as NCCL adds it up. */
TEST(nccl_dumps) {
  seen s;
  hk_topo *t = read_text("<system version=\"1\">" CPU(
                             "0", "175", "17",
                             NVIDIA("0000:07:00.0", "0x20b2", "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/>") NVIDIA(
                                 "0000:0f:00.0", "0x20b0", "<gpu dev=\"1\" sm=\"80\" rank=\"1\" gdr=\"1\"/>")
                                 NVIDIA("0000:17:00.0", "0xffff", "<gpu dev=\"2\" sm=\"90\" rank=\"2\" gdr=\"1\"/>"))
                             CPU("1", "175", "17", "") "</system>",
                         &s);
  ck_assert_msg(!s.errors && !s.remarks, "%s", s.last);
  ck_assert_float_eq(gpu_of(t, 0)->gpu.memory_gbps, 2039);
  ck_assert_float_eq(gpu_of(t, 1)->gpu.memory_gbps, 1555);
  ck_assert_float_eq(gpu_of(t, 2)->gpu.memory_gbps, 3350); /* as the first part with sm 90 */
  ck_assert_str_eq(gpu_of(t, 0)->name, "a100");
  ck_assert_int_eq(t->nodes[0].cpu.family, 25);
  ck_assert_float_eq_tol(t->nodes[0].cpu.memory_gbps, 460.8f, 0.1f);
  ck_assert_float_eq(hk_cpu_link_gbps(&t->nodes[0].cpu), hk_cpu_part_find("genoa")->link_gbps);
  char *text;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  ck_assert_int_eq(hk_topo_write_xml(t, f), HK_OK);
  fclose(f);
  ck_assert_ptr_nonnull(strstr(text, "familyid=\"175\"")); /* NCCL's way back */
  free(text);
  hk_topo_free(t);
}

/* Azure's file for NC A100 v4 has the pairs' NVLinks as links of each GPU to itself. */
TEST(links_to_itself) {
  seen s;
  hk_topo *t =
      read_text("<system version=\"1\">" CPU(
                    "0", "175", "1",
                    NVIDIA("0001:00:00.0", "0x20b5",
                           "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\">"
                           "<nvlink target=\"0001:00:00.0\" count=\"12\" tclass=\"0x030200\"/></gpu>")) "</system>",
                &s);
  ck_assert(!s.errors && s.remarks == 1);
  ck_assert_ptr_nonnull(strstr(s.last, "to itself: left out"));
  ck_assert_float_eq(link_of(t, 0), 0);
  ck_assert_float_eq(gpu_of(t, 0)->gpu.memory_gbps, 1935);
  hk_topo_free(t);
}

/* A file for NCCL_TOPO_FILE names no GPUs: the PCI device says which they are, if it is known. */
TEST(nameless_gpus) {
  seen s;
  hk_topo *t = read_text(
      "<system version=\"1\">" CPU(
          "0", "175", "1", NVIDIA("0001:00:00.0", "0x20b2", "") NVIDIA("0002:00:00.0", "0xffff", "")) "</system>",
      &s);
  ck_assert(!s.errors && s.remarks == 2);
  ck_assert_ptr_nonnull(strstr(s.last, "left to detection"));
  ck_assert_str_eq(gpu_of(t, 0)->name, "a100");
  ck_assert_str_eq(gpu_of(t, 1)->name, "");
  ck_assert(gpu_of(t, 0)->gpu.sm == 80 && gpu_of(t, 0)->gpu.memory_gbps == 2039 && gpu_of(t, 0)->gpu.gdr);
  hk_topo_free(t);
}

int main(void) { return suite_main("topo_files"); }
