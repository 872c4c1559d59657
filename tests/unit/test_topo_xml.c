/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* NCCL's topology XML: recorded files, the same topology back from what is written, and a file over detection.
 * What broken files give is in test_topo_lint.c.  Runs in the root of the repository, where the files are. */
#include <locale.h>
#include <sys/stat.h>
#include "../../src/topo/expat_abi.h"
#include "../../src/topo/paths.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/xml.h"
#include "../../src/topo/xml_build.h" /* numbers */
#include "../support/scratch.h"
#include "../support/suite.h"

#if __has_include(<expat.h>)
/* Their line and column functions are marked as deprecated: the name alone is a warning. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <expat.h>
#define SAME(type, name, arguments)                                                                                    \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), type arguments), #name);
HK_EXPAT_CALLS(SAME)
_Static_assert((int)HK_XML_STATUS_OK == (int)XML_STATUS_OK, "XML_STATUS_OK");
#endif

static hk_topo *topos[64];
static char *texts[64];
static int ntopos, ntexts;

/* It goes when the test ends. */
static hk_topo *keep(hk_topo *t) {
  ck_assert_int_lt(ntopos, HK_ARRAY_LENGTH(topos));
  return topos[ntopos++] = t;
}
static void forget(void) {
  while (ntopos > 0) hk_topo_free(topos[--ntopos]);
  while (ntexts > 0) free(texts[--ntexts]);
}

static hk_topo *synthetic(const char *text) {
  hk_cluster *c;
  ck_assert_msg(hk_cluster_from_string(&c, text) == HK_OK, "\"%s\": %s", text, hk_last_error());
  hk_topo *t = c->kinds[0];
  c->nkinds = 0; /* the topology is ours now */
  hk_cluster_free(c);
  return keep(t);
}

static char *written(const hk_topo *t) {
  char *text;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  ck_assert_msg(hk_topo_write_xml(t, f) == HK_OK, "%s", hk_last_error());
  fclose(f);
  ck_assert_int_lt(ntexts, HK_ARRAY_LENGTH(texts));
  return texts[ntexts++] = text;
}

static void no_findings(void *arg, const hk_xml_finding *f) {
  ck_abort_msg("%s:%d:%d: %s", (const char *)arg, f->line, f->column, f->text);
}

static hk_topo *parsed(const char *text) {
  hk_topo *t;
  ck_assert_msg(hk_topo_parse_xml(&t, "text", text, strlen(text), NULL, NULL) == HK_OK, "%s", hk_last_error());
  return keep(t);
}
static hk_topo *reread(const char *text) {
  hk_topo *t;
  ck_assert_msg(hk_topo_parse_xml(&t, "text", text, strlen(text), no_findings, "text") == HK_OK, "%s", hk_last_error());
  return keep(t);
}

static void expect_same(const hk_topo *a, const hk_topo *b) {
  ck_assert_uint_eq(a->nnodes, b->nnodes);
  ck_assert_uint_eq(a->nedges, b->nedges);
  for (uint32_t i = 0; i < a->nedges; i++) {
    const hk_edge *x = &a->edges[i], *y = &b->edges[i];
    ck_assert(x->from == y->from && x->to == y->to && x->kind == y->kind && x->count == y->count && x->back == y->back);
    ck_assert_float_eq(x->gbps, y->gbps);
    ck_assert_float_eq(x->us, y->us);
  }
  ck_assert_str_eq(a->name, b->name);
  for (uint32_t i = 0; i < a->nnodes; i++) {
    const hk_node *x = &a->nodes[i], *y = &b->nodes[i];
    ck_assert_uint_eq(x->id, y->id);
    ck_assert_int_eq(x->numa, y->numa);
    if (x->kind == HK_NODE_NVS) continue; /* it has no element of its own */
    ck_assert_msg(!strcmp(x->name, y->name), "node %u: \"%s\" and \"%s\"", i, x->name, y->name);
    if (x->kind == HK_NODE_CPU) ck_assert_mem_eq(&x->cpu, &y->cpu, sizeof x->cpu);
    if (x->kind == HK_NODE_NET) ck_assert_uint_eq(x->net.guid, y->net.guid);
    if (x->kind == HK_NODE_PCI || x->kind == HK_NODE_GPU || x->kind == HK_NODE_NIC)
      ck_assert_mem_eq(&x->pci, &y->pci, sizeof x->pci);
  }
  ck_assert_uint_eq(a->hash, b->hash);
}

/* --- Recorded files --- */

typedef struct counter {
  int errors, remarks;
} counter;
static void count(void *arg, const hk_xml_finding *f) {
  counter *c = arg;
  ck_assert_int_gt(f->line, 0);
  ck_assert_int_gt(f->column, 0);
  if (f->error)
    c->errors++;
  else
    c->remarks++;
}

TEST(recorded) {
  static const struct {
    const char *name;
    unsigned counts[HK_NODE_KINDS]; /* CPU PCI GPU NVS NIC NET */
    int remarks;
  } files[] = {{"ndv2-topo.xml", {2, 0, 8, 0, 1, 0}, 9},
               {"ndv4-topo.xml", {4, 4, 8, 0, 8, 0}, 16},
               {"p4d-24xl-topo.xml", {2, 4, 8, 0, 4, 0}, 12},
               {"g5.48xl-topo.xml", {2, 9, 0, 0, 0, 0}, 9}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(files); i++) {
    char path[100];
    counter c = {0};
    hk_topo *t;
    snprintf(path, sizeof path, "tests/topologies/%s", files[i].name);
    ck_assert_msg(hk_topo_read_xml(&t, path, count, &c) == HK_OK, "%s", hk_last_error());
    keep(t);
    ck_assert_str_eq(t->name, files[i].name);
    for (int k = 0; k < HK_NODE_KINDS; k++) ck_assert_uint_eq(hk_topo_count(t, (hk_node_kind)k), files[i].counts[k]);
    ck_assert_int_eq(c.errors, 0);
    ck_assert_int_eq(c.remarks, files[i].remarks);
    char *text = written(t);
    hk_topo *again = parsed(text);
    ck_assert_uint_eq(again->hash, t->hash);
  }
}

TEST(recorded_details) {
  hk_topo *t;
  hk_paths *p;
  ck_assert_int_eq(hk_topo_read_xml(&t, "tests/topologies/ndv4-topo.xml", NULL, NULL), HK_OK);
  const hk_node *cpu = &t->nodes[1];
  ck_assert_str_eq(cpu->cpu.vendor, "AuthenticAMD");
  ck_assert_int_eq(cpu->cpu.cores, 24);
  ck_assert_uint_eq(cpu->cpu.mask[0], 0x0000ffffff000000u);
  uint32_t gpu = hk_topo_find(t, HK_NODE_GPU, (uint64_t)0xb << 20);
  ck_assert_uint_ne(gpu, UINT32_MAX);
  ck_assert_int_eq(t->nodes[gpu].numa, 3);
  ck_assert_int_eq(t->nodes[gpu].gpu.dev, 4);
  ck_assert_float_eq(t->nodes[gpu].pci.gts, 16);
  /* Neighbours on one switch, and across sockets. */
  ck_assert_int_eq(hk_paths_new(&p, t, NULL), HK_OK);
  uint32_t first = t->first_of[HK_NODE_GPU];
  ck_assert_int_eq(hk_path_between(p, first, first + 1)->cls, HK_PATH_PIX);
  ck_assert_int_eq(hk_path_between(p, first, first + 7)->cls, HK_PATH_SYS);
  hk_paths_free(p);
  hk_topo_free(t);
}

/* --- Written and read --- */

static const char *const machines[] = {"dgx-v100",
                                       "dgx-2",
                                       "dgx-a100",
                                       "dgx-h100",
                                       "dgx-b200",
                                       "nvl72",
                                       "p4d",
                                       "pcie-1s",
                                       "pcie-2s",
                                       "pcie-direct",
                                       "mi300x",
                                       "cpu-1s",
                                       "cpu-2s",
                                       "2xgh200 nic=2x400",
                                       "8xh100:pairs numa=3 pci=1 gdr=0 nic=3x56.5 net=eth",
                                       "1xl4 cpu=1xmilan",
                                       "4xh100 links=0-1*5,1-2*7,2-3 nvlink=3"};

TEST(round_trip) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(machines); i++) {
    hk_topo *t = synthetic(machines[i]), *again;
    char *text = written(t);
    again = reread(text);
    expect_same(t, again);
    char *twice = written(again);
    ck_assert_str_eq(text, twice);
  }
}

/* Whatever NCCL's attributes cannot say. */
TEST(round_trip_of_odd_figures) {
  hk_topo *t, *again;
  uint32_t cpu[3], gpu, sw, nic, net, nvs;
  ck_assert_int_eq(hk_topo_new(&t, "odd <\"&\"> machine"), HK_OK);
  keep(t);
  for (int i = 0; i < 3; i++) {
    hk_topo_add(t, HK_NODE_CPU, (uint64_t)i * 3, &cpu[i]);
    t->nodes[cpu[i]].numa = (int16_t)(i * 3);
  }
  t->nodes[cpu[2]].cpu.mask[13] = 1ull << 63;
  t->nodes[cpu[2]].cpu.cores = 5;
  hk_topo_link(t, cpu[0], cpu[1], HK_EDGE_SYS, 1, 12.5f, 0.7f); /* in a row, not all to all */
  hk_topo_link(t, cpu[1], cpu[2], HK_EDGE_SYS, 1, 0.1f, 0.0f);
  hk_topo_add(t, HK_NODE_PCI, 0x1000, &sw);
  hk_topo_add(t, HK_NODE_GPU, 0xfffffff0, &gpu);
  hk_topo_add(t, HK_NODE_NIC, 0x2000, &nic);
  hk_topo_add(t, HK_NODE_NET, 7, &net);
  hk_topo_add(t, HK_NODE_NVS, 0, &nvs);
  t->nodes[sw].numa = t->nodes[gpu].numa = 0;
  t->nodes[nic].numa = t->nodes[net].numa = 6;
  t->nodes[gpu].pci = (hk_pci_info){.class_code = 0x030000, .gts = 2.5f, .width = 8, .max_gts = 32, .max_width = 16};
  t->nodes[gpu].gpu = (hk_gpu_info){.dev = 3, .sm = 90, .memory_gbps = 1234.5678f};
  t->nodes[nic].pci =
      (hk_pci_info){.class_code = 0x020700, .vendor = 0x15b3, .device = 1, .subvendor = 2, .subdevice = 3};
  t->nodes[net].net = (hk_net_info){
      .dev = 7, .port = 2, .mbps = 123.456f, .latency_us = 0.3f, .guid = UINT64_MAX, .ethernet = true, .rail = -1};
  hk_topo_link(t, cpu[0], sw, HK_EDGE_PCI, 1, 3.14159265f, 0.1f);
  hk_topo_link(t, sw, gpu, HK_EDGE_PCI, 1, 2.0f, 9.0f);
  hk_topo_link(t, cpu[2], nic, HK_EDGE_PCI, 1, 1e-3f, 0.25f);
  hk_topo_link(t, nic, net, HK_EDGE_PORT, 1, 77, 3);
  hk_topo_link(t, gpu, nvs, HK_EDGE_NVLINK, 5, 99.9f, 0.01f);
  hk_topo_link(t, gpu, cpu[0], HK_EDGE_C2C, 3, 1e-3f / 3, 1); /* less than bw can say */
  ck_assert_msg(hk_topo_finish(t) == HK_OK, "%s", hk_last_error());
  char *text = written(t);
  again = reread(text);
  expect_same(t, again);
}

/* As few digits as give the number again, of any number. */
TEST(shortest_numbers) {
  uint32_t bits = 1;
  int longest = 0;
  for (int i = 0; i < 20000; i++) {
    float value, again;
    char text[HK_XML_NUMBER], shorter[320]; /* any number of digits, for the compiler */
    bits = bits * 1664525u + 1013904223u;
    uint32_t positive = bits >> 1;
    memcpy(&value, &positive, sizeof value);
    if (!(value < 1e30f)) continue;
    again = strtof(hk_xml_number(value, text), NULL);
    ck_assert_msg(again == value, "%a is %s", (double)value, text);
    int digits = 9;
    while (digits > 6 &&
           (snprintf(shorter, sizeof shorter, "%.*g", digits - 1, (double)value), strtof(shorter, NULL) == value))
      digits--;
    snprintf(shorter, sizeof shorter, "%.*g", digits, (double)value);
    ck_assert_str_eq(text, shorter);
    if (digits > longest) longest = digits;
  }
  ck_assert_int_eq(longest, 9);
}

/* A NIC without a PCI function stands under its CPU, as in NCCL's files. */
TEST(virtual_nics) {
  hk_topo *t =
      parsed("<system version=\"1\"><cpu numaid=\"-1\"><nic><net name=\"eth0\" dev=\"0\" speed=\"25000\"/></nic>"
             "<nic><net name=\"eth1\" dev=\"1\"/></nic></cpu></system>");
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), 2);
  uint32_t net = t->first_of[HK_NODE_NET];
  ck_assert_str_eq(t->nodes[net].name, "eth0");
  ck_assert_float_eq(t->nodes[net].net.mbps, 25000);
  ck_assert_float_eq(t->nodes[net + 1].net.mbps, 10000);
  char *text = written(t);
  hk_topo *again = parsed(text);
  ck_assert_uint_eq(t->hash, again->hash);
}

/* What NCCL writes of a rack: the files of its hosts in one, with numbers that are unique in a host only. */
TEST(hosts_in_one_file) {
  hk_topo *host = synthetic("4xgb200:nvswitch nic=4x400"), *again;
  char *one = written(host), *both;
  size_t size;
  FILE *f = open_memstream(&both, &size);
  fputs("<system version=\"1\">\n", f);
  for (int h = 0; h < 2; h++) {
    char *copy = strdup(one);
    for (char *save, *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
      if (strstr(line, "system")) continue;
      if (!strncmp(line, "  <cpu ", 7))
        fprintf(f, "<cpu host_hash=\"0x%x\" %s\n", 0xabc + h, line + 7);
      else if (strstr(line, " guid=\"0x4")) /* another host's */
        *strstr(line, " guid=\"0x4") = 0, fprintf(f, "%s guid=\"0x%d%s\n", line, h + 1, line + strlen(line) + 10);
      else
        fprintf(f, "%s\n", line);
    }
    free(copy);
  }
  fputs("</system>\n", f);
  fclose(f);
  hk_topo *t = parsed(both);
  static const unsigned counts[HK_NODE_KINDS] = {4, 0, 8, 1, 8, 8};
  for (int k = 0; k < HK_NODE_KINDS; k++) ck_assert_uint_eq(hk_topo_count(t, (hk_node_kind)k), counts[k]);
  const hk_node *gpus = &t->nodes[t->first_of[HK_NODE_GPU]], *nets = &t->nodes[t->first_of[HK_NODE_NET]];
  for (int i = 0; i < 8; i++) {
    ck_assert_int_eq(gpus[i].gpu.dev, i);
    ck_assert_int_eq(gpus[i].numa, i / 2);
    ck_assert_int_eq(nets[i].net.rail, i % 4);
  }
  ck_assert_uint_eq(gpus[4].id, gpus[0].id + (1ull << 36)); /* a PCI domain beyond those that machines have */
  char *text = written(t);
  again = parsed(text);
  expect_same(t, again);
  free(both);
}

TEST(numbers_do_not_depend_on_the_locale) {
  hk_topo *t = synthetic("p4d");
  char *plain = written(t), *comma;
  if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) {
    printf("SKIP: no locale with a decimal comma is here\n");
  } else {
    comma = written(t);
    hk_topo *again = parsed(comma);
    ck_assert_str_eq(plain, comma);
    ck_assert_uint_eq(again->hash, t->hash);
  }
}

static char *contents(const char *path) {
  char *text = NULL;
  size_t capacity = 0;
  FILE *f = fopen(path, "re");
  ck_assert_msg(f && getdelim(&text, &capacity, 0, f) > 0, "%s", path);
  fclose(f);
  return text;
}

/* The files of tests/topologies/synthetic/. */
TEST(dumps) {
  static const char *const names[] = {"dgx-v100", "dgx-a100", "dgx-h100", "pcie-2s", "mi300x", "nvl72"};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(names); i++) {
    char path[100];
    hk_topo *t = synthetic(names[i]), *again;
    char *text = written(t);
    snprintf(path, sizeof path, "tests/topologies/synthetic/%s.xml", names[i]);
    if (getenv("HOCKET_TEST_WRITE")) {
      ck_assert(!mkdir("tests/topologies/synthetic", 0777) || errno == EEXIST);
      FILE *f = fopen(path, "we");
      ck_assert_ptr_nonnull(f);
      fputs(text, f);
      fclose(f);
    }
    ck_assert_msg(hk_topo_read_xml(&again, path, no_findings, path) == HK_OK, "%s", hk_last_error());
    keep(again);
    char *file = contents(path);
    ck_assert_msg(again->hash == t->hash && !strcmp(file, text),
                  "%s is not what is written today; see tests/topologies/README.md", path);
    free(file);
  }
}

/* NCCL's own reader is plain: no prologue, one space between attributes, double quotes, at most 16 attributes of at
 * most 255 characters, and it wants version, target, count, tclass, dev and speed. */
TEST(nccl_can_read_it) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(machines); i++) {
    hk_topo *t = synthetic(machines[i]);
    char *text = written(t);
    ck_assert(!strncmp(text, "<system version=\"1\"", 19));
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
      int attrs = 0;
      line += strspn(line, " ");
      ck_assert_msg(*line == '<' && line[strlen(line) - 1] == '>' && !strpbrk(line, "\t'&"), "%s", line);
      ck_assert_ptr_null(strstr(line + 1, "  "));
      for (const char *c = line; (c = strstr(c, "=\"")); attrs++) {
        const char *end = strchr(c + 2, '"');
        ck_assert_msg(end && end - c - 2 < 255, "%s", line);
        c = end;
      }
      ck_assert_int_le(attrs, 16);
    }
  }
}

/* --- A file over detection --- */

static hk_topo *over(const char *file, const char *detected) {
  hk_topo *d = parsed(detected), *t;
  scratch_make();
  scratch_write("topo.xml", file);
  ck_assert_msg(hk_topo_read_xml_over(&t, scratch_path("topo.xml"), d, NULL, NULL) == HK_OK, "%s", hk_last_error());
  scratch_remove();
  return keep(t);
}

/* A virtual machine: all devices on one bus, no speeds. */
static const char flat[] =
    "<system version=\"1\" name=\"host\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"23\" "
    "modelid=\"49\" affinity=\"ffffffff\">"
    "<pci busid=\"0000:00:1b.0\" class=\"0x030200\"><gpu dev=\"0\" sm=\"86\" gdr=\"0\"/></pci>"
    "<pci busid=\"0000:00:1c.0\" class=\"0x030200\"><gpu dev=\"1\" sm=\"86\" gdr=\"0\">"
    "<nvlink target=\"0000:00:1b.0\" count=\"2\" tclass=\"0x030200\"/></gpu></pci>"
    "<pci busid=\"0000:00:05.0\" class=\"0x020000\"><nic><net name=\"eth0\" dev=\"0\" speed=\"100000\"/></nic></pci>"
    "<nic><net name=\"veth\" dev=\"1\" speed=\"10000\"/></nic>"
    "</cpu></system>";

TEST(file_over_detection) {
  hk_topo *t =
      over("<system version=\"1\"><cpu numaid=\"0\"/><cpu numaid=\"1\" arch=\"arm64\">"
           "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16 GT/s\" link_width=\"16\">"
           "<pci busid=\"0000:00:1B.0\" link_speed=\"32 GT/s\" link_width=\"8\"/>"
           "<pci busid=\"0000:00:1c.0\"><gpu dev=\"7\" sm=\"90\"/></pci>"
           "<pci busid=\"0000:00:1d.0\" class=\"0x030200\"/></pci>"
           "<pci busid=\"ffff:ff:02.0\" class=\"0x060400\"><pci busid=\"0000:00:1e.0\" class=\"0x030200\"/></pci>"
           "</cpu></system>",
           flat);
  ck_assert_str_eq(t->name, "host");
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 1); /* the bridge without devices has gone */
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 2); /* 1d and 1e are not here */
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  ck_assert_str_eq(t->nodes[0].cpu.vendor, "AuthenticAMD");
  ck_assert_int_eq(t->nodes[0].cpu.cores, 32);
  ck_assert_str_eq(t->nodes[1].cpu.arch, "arm64");
  const hk_node *gpu = &t->nodes[t->first_of[HK_NODE_GPU]];
  ck_assert_int_eq(gpu->numa, 1);       /* the file's place */
  ck_assert_float_eq(gpu->pci.gts, 32); /* and speed */
  ck_assert_int_eq(gpu->gpu.sm, 86);    /* detection's */
  ck_assert_int_eq(gpu[1].gpu.sm, 90);  /* the file's */
  ck_assert_int_eq(gpu[1].gpu.dev, 1);  /* the machine's, always */
  unsigned links = 0;
  for (uint32_t e = gpu->first_edge; e < gpu->first_edge + gpu->nedges; e++)
    if (t->edges[e].kind == HK_EDGE_NVLINK) links += t->edges[e].count;
  ck_assert_uint_eq(links, 2);
}

TEST(file_keeps_what_it_says_to_keep) {
  hk_topo *t =
      over("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:00:1d.0\" class=\"0x030200\">"
           "<gpu dev=\"5\" keep=\"1\"/></pci><pci busid=\"0000:00:05.0\"><nic>"
           "<net name=\"eth0\" dev=\"3\" speed=\"5\"/><net name=\"eth9\" dev=\"4\"/></nic></pci></cpu></system>",
           flat);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 3);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  uint32_t net = hk_topo_find(t, HK_NODE_NET, 0); /* the number is the machine's, the speed the file's */
  ck_assert_float_eq(t->nodes[net].net.mbps, 5);
}

/* CPUs that only detection sees are of the same host, and a NIC that is no PCI device is known by its port's name. */
TEST(file_with_less) {
  hk_topo *t = over("<system version=\"1\"><cpu numaid=\"0\" host_hash=\"0x77\"><nic><net name=\"veth\" dev=\"4\" "
                    "speed=\"1234\"/></nic></cpu></system>",
                    "<system version=\"1\"><cpu numaid=\"0\"/><cpu numaid=\"1\"><nic><net name=\"veth\" dev=\"0\" "
                    "speed=\"10000\"/></nic><nic><net name=\"eth7\" dev=\"1\" speed=\"10000\"/></nic></cpu></system>");
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  const hk_node *net = &t->nodes[t->first_of[HK_NODE_NET]];
  ck_assert_float_eq(net->net.mbps, 1234);
  ck_assert_int_eq(net->numa, 0);
  ck_assert_int_eq(net[1].numa, 1);
}

/* On a machine without GPUs a file for another one leaves the CPUs. */
TEST(recorded_file_over_another_machine) {
  hk_topo *d = synthetic("cpu-2s"), *t;
  ck_assert_msg(hk_topo_read_xml_over(&t, "tests/topologies/ndv4-topo.xml", d, NULL, NULL) == HK_OK, "%s",
                hk_last_error());
  keep(t);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 4);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 1);
}

/* Detection over its own dump is the same machine. */
TEST(dump_over_itself) {
  scratch_make();
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(machines); i++) {
    hk_topo *d = synthetic(machines[i]), *t;
    char *text = written(d);
    scratch_write("topo.xml", text);
    ck_assert_msg(hk_topo_read_xml_over(&t, scratch_path("topo.xml"), d, NULL, NULL) == HK_OK, "%s", hk_last_error());
    keep(t);
    expect_same(d, t);
  }
  scratch_remove();
}

int main(void) {
  if (!hk_xml_available()) {
    puts("SKIP: expat is not installed (libexpat1), so that no XML is read");
    return 77;
  }
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("topo_xml", .teardown = forget);
}
