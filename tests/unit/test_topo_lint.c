/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What is said about topology and graph XML that is broken or hostile: the words, the line, the column; in bounded
 * time and memory, and never a crash. */
#include "../../src/topo/paths.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../../src/topo/xml.h"
#include "../../src/topo/xml_tree.h" /* the bounds */
#include "../support/scratch.h"
#include "../support/suite.h"

typedef struct finding_list {
  hk_xml_finding at[8];
  int n, errors;
} finding_list;
static void keep(void *arg, const hk_xml_finding *f) {
  finding_list *l = arg;
  if (l->n < (int)HK_ARRAY_LENGTH(l->at)) l->at[l->n] = *f;
  l->n++;
  l->errors += f->error;
}

static hk_status lint(const char *text, size_t bytes, finding_list *l) {
  hk_topo *t;
  *l = (finding_list){0};
  hk_status rc = hk_topo_parse_xml(&t, "some/file.xml", text, bytes, keep, l);
  ck_assert_int_eq(rc == HK_OK, t != NULL);
  ck_assert_int_eq(rc == HK_OK, l->errors == 0);
  hk_topo_free(t);
  return rc;
}

#define CPU(inside) "<system version=\"1\">\n<cpu numaid=\"0\">\n" inside "\n</cpu>\n</system>\n"
#define GPU(bus, inside)                                                                                               \
  "<pci busid=\"" bus "\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">" inside "</pci>"
#define SWITCHED(dev, count)                                                                                           \
  "<gpu dev=\"" dev "\" sm=\"90\"><nvlink target=\"9:0.0\" count=\"" count "\" tclass=\"0x068000\"/></gpu>"
#define NET(attrs)                                                                                                     \
  "<pci busid=\"0:1.0\" class=\"0x020000\" link_speed=\"16 GT/s\" link_width=\"16\"><nic>\n<net " attrs "/></nic></pci>"

static const struct {
  const char *text;
  int line, column;
  const char *words;
  bool good; /* a remark */
} cases[] = {
    {"", 1, 1, "no element found", false},
    {"   \n ", 2, 2, "no element found", false},
    {"system", 1, 1, "syntax error", false},
    {"<system version=\"1\">", 1, 21, "no element found", false},
    {"<system version=\"1\">\n <cpu numaid=\"0\">\n</system>", 3, 3, "mismatched tag", false},
    {"<system version=\"1\" version=\"1\"/>", 1, 21, "duplicate attribute", false},
    {"<system version=1/>", 1, 17, "not well-formed", false},
    {"<!DOCTYPE x>\n<system version=\"1\"/>", 1, 12, "DOCTYPE", false},
    {"<!-- c -->\n<graphs version=\"1\"/>", 2, 1, "NCCL_GRAPH_FILE", false},
    {"<topology/>", 1, 1, "begins with <system>", false},
    {"<system/>", 1, 1, "needs the attribute version", false},
    {"<system version=\"3\"><cpu numaid=\"0\"/></system>", 1, 1, "only NCCL's 1 and RCCL's 2", false},
    {"<system version=\"one\"><cpu numaid=\"0\"/></system>", 1, 1, "version=\"one\"", false},
    {"<system version=\"1\"></system>", 1, 1, "without a <cpu>", false},
    {"<system version=\"1\"><cpu/></system>", 1, 21, "needs the attribute numaid", false},
    {"<system version=\"1\">\n<cpu numaid=\"0\"/>\n  <cpu numaid=\"0\"/></system>", 3, 3, "with the same", false},
    {"<system version=\"1\"><cpu numaid=\"99999\"/></system>", 1, 21, "numaid=\"99999\"", false},
    {"<system version=\"1\"><cpu numaid=\"32768\"/></system>", 1, 21, "numaid=\"32768\"", false},
    {"<system version=\"1\"><cpu numaid=\"0\" affinity=\"xyz\"/></system>", 1, 21, "affinity=\"xyz\"", false},
    {"<system version=\"1\"><cpu numaid=\"0\" affinity=\"123456789\"/></system>", 1, 21, "8 hexadecimal digits", false},
    {"<system version=\"1\"><cpu numaid=\"0\" host_hash=\"0x1\"/><cpu numaid=\"1\" host_hash=\"0x2\"/></system>", 1, 1,
     "no links lead from CPU 0 to CPU 1", false},
    {CPU("<pci/>"), 3, 1, "needs the attribute busid", false},
    {CPU("<pci busid=\"zz:00.0\"/>"), 3, 1, "busid=\"zz:00.0\"", false},
    {CPU("<pci busid=\"1:2.0\">\n <pci busid=\"0000:01:02.0\"/></pci>"), 4, 2, "with the same", false}, /* a cycle */
    {CPU("<pci busid=\"1:2.0\" link_speed=\"fast\"/>"), 3, 1, "link_speed=\"fast\"", false},
    {CPU("<pci busid=\"1:2.0\" link_speed=\"-8 GT/s\"/>"), 3, 1, "link_speed=\"-8", false},
    {CPU("<pci busid=\"1:2.0\" link_speed=\"nan GT/s\"/>"), 3, 1, "link_speed=\"nan", false},
    {CPU("<pci busid=\"1:2.0\" link_width=\"-1\"/>"), 3, 1, "link_width=\"-1\"", false},
    {CPU("<pci busid=\"1:2.0\" class=\"bridge\"/>"), 3, 1, "class=\"bridge\"", false},
    {CPU("<pci busid=\"1:2.0\" class=\"-1\"/>"), 3, 1, "class=\"-1\"", false},
    {CPU("<pci busid=\"1:2.0\" hk_bw=\"0\"/>"), 3, 1, "hk_bw=\"0\"", false},
    {CPU("<pci busid=\"1:2.0\" hk_bw=\"1e999\"/>"), 3, 1, "hk_bw=\"1e999\"", false},
    {CPU(GPU("1:0.0", "<gpu/>")), 3, 74, "needs the attribute dev", false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\"/>") "\n" GPU("2:0.0", "<gpu dev=\"0\"/>")), 4, 74, "a second GPU with dev=\"0\"",
     false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" gdr=\"yes\"/>")), 3, 74, "gdr=\"yes\"", false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink/></gpu>")), 3, 95, "needs the attribute count", false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"1:0.0\" count=\"2\"/></gpu>")), 3, 95, "to itself",
     true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"9:0.0\" count=\"-2\"/></gpu>")), 3, 95, "count=\"-2\"",
     false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"up\" count=\"2\"/></gpu>")), 3, 95, "needs a target",
     false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><c2c bw=\"0\" count=\"2\"/></gpu>")), 3, 95, "bw=\"0\"", false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><c2c count=\"2\"/></gpu>")), 3, 95, "needs the attribute bw", false},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><c2c bw=\"9\" count=\"0\"/></gpu>")), 3, 95, "count=\"0\"", false},
    {CPU(NET("name=\"a\"")), 4, 1, "needs the attribute dev", false},
    {CPU(NET("dev=\"0\" speed=\"-1\"")), 4, 1, "speed=\"-1\"", false},
    {CPU(NET("dev=\"0\" speed=\"NaN\"")), 4, 1, "speed=\"NaN\"", false},
    {CPU(NET("dev=\"0\" speed=\"inf\"")), 4, 1, "speed=\"inf\"", false},
    {CPU(NET("dev=\"0\" speed=\"1\" guid=\"0x11112222333344445\"")), 4, 1, "guid=", false},
    {CPU("<pci busid=\"\x1b[2J\"/>"), 3, 13, "not well-formed", false},
    {CPU("<pci busid=\"\xff\"/>"), 3, 13, "not well-formed", false},
    /* Usable, but worth a word. */
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"9:0.0\" count=\"2\" tclass=\"0x030200\"/></gpu>")), 3,
     95, "which is not in this file", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"9:0.0\" count=\"2\"/></gpu>")), 3, 95,
     "without tclass", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"2:0.0\" count=\"2\" tclass=\"0x030200\"/></gpu>")
             GPU("2:0.0", "<gpu dev=\"1\" sm=\"90\"/>")),
     3, 95, "GPU 0 lists 2 links to GPU 1, which lists 0 back", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"100\"/><gpu dev=\"1\" sm=\"100\" mlopart=\"1\"/>")), 3, 74,
     "1 more <gpu> in this <pci>", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" gcn=\"21943\"/>")), 3, 74, "gcn=\"21943\" is no GPU of AMD that is known", true},
    {"<system version=\"1\"><cpu numaid=\"0\" affinity=\"ffff\"/>\n<cpu numaid=\"1\" affinity=\"ff00\"/></system>", 2,
     1, "CPUs 0 and 1 list the same cores", true},
    {CPU(GPU("1:0.0", SWITCHED("0", "18")) GPU("2:0.0", SWITCHED("1", "18")) GPU("3:0.0", SWITCHED("2", "17"))), 1, 1,
     "GPU 2 has 17 links to the NVSwitch, and others have 18", true},
    {CPU(GPU("1:0.0", SWITCHED("0", "18")) GPU("2:0.0", "<gpu dev=\"1\" sm=\"90\"/>")), 1, 1,
     "GPU 1 has 0 links to the NVSwitch, and others have 18", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\"><nvlink target=\"9:0.0\" count=\"2\" tclass=\"0x068000\"/></gpu>")), 3, 87,
     "20 GB/s each", true},
    {CPU(GPU("1:0.0", "")), 3, 1, "left to detection", true},
    {CPU("<pci busid=\"1:2.0\" linkspeed=\"8 GT/s\" link_speed=\"8 GT/s\" link_width=\"4\"/>"), 3, 1,
     "did you mean link_speed?", true},
    {CPU("<pic busid=\"1:2.0\"/>"), 3, 1, "did you mean pci?", true},
    {CPU("<pci busid=\"1:2.0\"/>"), 3, 1, "counts as 8 GT/s", true},
    {CPU(NET("dev=\"0\"")), 4, 1, "10000 Mb/s", true},
    {CPU(GPU("1:0.0", "<gpu dev=\"0\" sm=\"90\"/><pci busid=\"2:0.0\"/>")), 3, 96, "which is no bridge", false},
    {CPU("text"), 3, 1, "NCCL refuses", true},
    {CPU("<nic hk_busid=\"here\"><net dev=\"0\" speed=\"1\"/></nic>"), 3, 1, "hk_busid=\"here\" is not a PCI", false},
};

TEST(each_fault_has_its_place) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    finding_list l;
    char where[80];
    lint(cases[i].text, strlen(cases[i].text), &l);
    ck_assert_msg(l.n > 0, "nothing is said about\n%s", cases[i].text);
    const hk_xml_finding *f = &l.at[0];
    for (int k = 0; k < l.n && !cases[i].good && !f->error; k++) f = &l.at[k]; /* the first error */
    ck_assert_msg(f->line == cases[i].line && f->column == cases[i].column && strstr(f->text, cases[i].words) &&
                      f->error == !cases[i].good,
                  "%d:%d: %s is said about\n%s", f->line, f->column, f->text, cases[i].text);
    if (cases[i].good) continue;
    snprintf(where, sizeof where, "some/file.xml:%d:%d: ", f->line, f->column);
    ck_assert_msg(strstr(hk_last_error(), where) || strstr(hk_last_error(), f->text), "%s", hk_last_error());
  }
}

TEST(all_findings_in_order) {
  static const char text[] =
      "<system version=\"1\">\n<cpu numaid=\"0\" archs=\"x\">\n<pci busid=\"x\"/>\n<pci busid=\"1:0.0\" "
      "link_speed=\"8 GT/s\" link_width=\"99\"/>\n</cpu>\n<cpu/>\n</system>";
  finding_list l;
  ck_assert_int_eq(lint(text, sizeof text - 1, &l), HK_ERR_ARGUMENT);
  ck_assert_int_eq(l.errors, 3);
  ck_assert_int_ge(l.n, 4);
  ck_assert_str_eq(l.at[0].text, "the attribute archs of <cpu> is not known and ignored; did you mean arch?");
  ck_assert(!l.at[0].error && l.at[1].error && l.at[1].line == 3 && l.at[2].line == 4);
  ck_assert(strstr(hk_last_error(), "some/file.xml:3:1: busid=\"x\""));
}

/* --- Hostile files --- */

TEST(billion_laughs) {
  static const char text[] =
      "<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [\n<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">"
      "<!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;\"><!ENTITY d SYSTEM \"/etc/passwd\">]>\n"
      "<system version=\"1\" name=\"&c;&d;\"><cpu numaid=\"0\"/></system>";
  finding_list l;
  ck_assert_int_eq(lint(text, sizeof text - 1, &l), HK_ERR_ARGUMENT);
  ck_assert_int_eq(l.n, 1);
  ck_assert(l.at[0].line == 2 && strstr(l.at[0].text, "DOCTYPE"));
  /* An entity that nobody defined. */
  static const char undefined[] = "<system version=\"1\" name=\"&c;\"><cpu numaid=\"0\"/></system>";
  ck_assert_int_eq(lint(undefined, sizeof undefined - 1, &l), HK_ERR_ARGUMENT);
  ck_assert(strstr(l.at[0].text, "undefined entity"));
}

/* `head`, `n` times `part` with its numbers, `tail`. */
static void expect_refused(const char *head, const char *part, int n, const char *tail, const char *words) {
  char *text;
  size_t size;
  finding_list l;
  FILE *f = open_memstream(&text, &size);
  fputs(head, f);
  for (int i = 0; i < n; i++)
    for (const char *c = part; *c; c++) {
      if (*c != '@')
        fputc(*c, f);
      else
        fprintf(f, "%x:%02x:%02x.0", i >> 10, i >> 5 & 31, i & 31);
    }
  fputs(tail, f);
  fclose(f);
  ck_assert_msg(lint(text, size, &l) != HK_OK, "%d times %s was taken", n, part);
  ck_assert_int_le(l.n, 2 * (HK_XML_FINDINGS + 1));
  bool said = strstr(hk_last_error(), words);
  for (int i = 0; i < l.n && i < (int)HK_ARRAY_LENGTH(l.at); i++) said |= strstr(l.at[i].text, words) != NULL;
  ck_assert_msg(said, "%s", hk_last_error());
  free(text);
}

/* Elements may be as deep as that: the file is refused for what they are only. */
TEST(as_deep_as_may_be) {
  for (int depth = HK_XML_DEPTH; depth <= HK_XML_DEPTH + 1; depth++) {
    char text[2000] = "<system version=\"1\"><cpu numaid=\"0\">";
    for (int i = 2; i < depth; i++) strcat(text, "<a>");
    for (int i = 2; i < depth; i++) strcat(text, "</a>");
    strcat(text, "</cpu></system>");
    finding_list l;
    ck_assert_int_eq(lint(text, strlen(text), &l), depth > HK_XML_DEPTH ? HK_ERR_ARGUMENT : HK_OK);
  }
}

TEST(too_much) {
  static const char head[] = "<system version=\"1\"><cpu numaid=\"0\">", tail[] = "</cpu></system>";
  expect_refused("<system version=\"1\">", "<cpu numaid=\"0\">", 1000, "", "deeper than 64");
  expect_refused(head, "<pci busid=\"@\">", 1000, "", "deeper than 64");
  expect_refused("", "<a>", 1000000, "", "deeper than 64");
  expect_refused(head, "<pci busid=\"@\"/>", 5000, tail, "more than 4096 devices");
  expect_refused(head, "<pci busid=\"@\"/>", 300000, tail, "more than 262144 elements");
  expect_refused("<system version=\"1\">", "<cpu numaid=\"0\"/>", 30000, "</system>", "with the same");
  expect_refused("<system ", "a@=\"1\" ", 3000, "/>", "");
  expect_refused("<system name=\"", "0123456789", 100000, "\"/>", "more than 4096 characters");
  expect_refused("<!-- ", "0123456789abcdef", 1100000, " -->", "16 MiB");
  /* Each GPU's row names the same target: many rows, one link. */
  expect_refused("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"9:0.0\"><gpu dev=\"0\">",
                 "<nvlink target=\"@\" count=\"1\" tclass=\"0x030200\"/>", 32000, "</gpu></pci></cpu>",
                 "no element found");
}

/* 1000 CPUs that are all linked are more links than a machine has. */
TEST(too_many_links) {
  char *text;
  size_t size;
  hk_topo *t;
  FILE *f = open_memstream(&text, &size);
  fputs("<system version=\"1\">", f);
  for (int i = 0; i < 1000; i++) fprintf(f, "<cpu numaid=\"%d\"/>", i);
  fputs("</system>", f);
  fclose(f);
  ck_assert_int_eq(hk_topo_parse_xml(&t, "many", text, size, NULL, NULL), HK_ERR_ARGUMENT);
  ck_assert(strstr(hk_last_error(), "65536 links"));
  free(text);
}

/* As many GPUs and NVLinks as there may be are still read in a moment. */
TEST(many_links) {
  char *text;
  size_t size;
  hk_topo *t;
  FILE *f = open_memstream(&text, &size);
  fputs("<system version=\"1\"><cpu numaid=\"0\">", f);
  for (int i = 0; i < 4000; i++) {
    fprintf(f, "<pci busid=\"%x:0:0.0\"><gpu dev=\"%d\" sm=\"90\">", i, i);
    for (int k = 0; k < 6; k++)
      fprintf(f, "<nvlink target=\"%x:0:0.0\" count=\"1\" tclass=\"0x030200\"/>", (i + k * 577 + 1) % 8000);
    fputs("</gpu></pci>", f);
  }
  fputs("</cpu></system>", f);
  fclose(f);
  ck_assert_msg(hk_topo_parse_xml(&t, "many", text, size, NULL, NULL) == HK_OK, "%s", hk_last_error());
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 4000);
  hk_topo_free(t);
  free(text);
}

/* A good file cut anywhere, or with one byte changed: an error or a topology, and a place. */
TEST(damaged_files) {
  hk_cluster *c;
  char *text;
  size_t size;
  finding_list l;
  ck_assert_int_eq(hk_cluster_from_string(&c, "4xv100:mesh nvlink=3 nic=2x100 switch=2"), HK_OK);
  FILE *f = open_memstream(&text, &size);
  ck_assert_int_eq(hk_topo_write_xml(c->kinds[0], f), HK_OK);
  fclose(f);
  for (size_t n = 0; n < size - 10; n++) {
    char *cut = malloc(n + 1);
    memcpy(cut, text, n);
    ck_assert_int_ne(lint(cut, n, &l), HK_OK);
    free(cut);
  }
  for (size_t n = 0; n < size; n++) {
    char had = text[n];
    text[n] = (char)(had ^ (1 << n % 7));
    lint(text, size, &l);
    text[n] = 0;
    lint(text, size, &l);
    text[n] = had;
  }
  hk_cluster_free(c);
  free(text);
}

TEST(files_that_are_none) {
  hk_topo *t;
  scratch_make();
  ck_assert_int_eq(hk_topo_read_xml(&t, scratch_path("nothing.xml"), NULL, NULL), HK_ERR_ARGUMENT);
  ck_assert(strstr(hk_last_error(), "nothing.xml"));
  ck_assert_int_ne(hk_topo_read_xml(&t, scratch_folder, NULL, NULL), HK_OK); /* a folder */
  ck_assert_int_ne(hk_topo_read_xml(&t, "/dev/zero", NULL, NULL), HK_OK);
  ck_assert(strstr(hk_last_error(), "16 MiB"));
  ck_assert_int_ne(hk_topo_read_xml(&t, "/dev/null", NULL, NULL), HK_OK);
  ck_assert_ptr_null(t);
  scratch_remove();
}

/* --- Graphs --- */

static hk_cluster *cluster;
static hk_paths *paths;
static uint32_t nodes[64];

static hk_search search_for(hk_pattern pattern, const char *machine, bool network) {
  hk_placement *placements;
  int n;
  ck_assert_msg(hk_cluster_from_string(&cluster, machine) == HK_OK, "%s", hk_last_error());
  ck_assert_int_eq(hk_paths_new(&paths, cluster->kinds[0], NULL), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(cluster, 4, &placements, &n), HK_OK);
  for (int i = 0; i < n; i++) nodes[i] = placements[i].node;
  free(placements);
  return (hk_search){.pattern = pattern, .nodes = nodes, .nranks = n, .network = network};
}
static void done(void) {
  hk_paths_free(paths);
  hk_cluster_free(cluster);
}

TEST(graphs_written_and_read) {
  static const struct {
    const char *machine;
    bool network;
  } on[] = {{"dgx-v100", false}, {"dgx-a100", true}, {"dgx-h100", true},
            {"pcie-2s", true},   {"mi300x", false},  {"cpu-2s", true}};
  scratch_make();
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(on); i++) {
    hk_search what = search_for(HK_PATTERN_RING, on[i].machine, on[i].network);
    const hk_topo *t = cluster->kinds[0];
    hk_channels *found[3], *read;
    for (int p = 0; p < 3; p++) {
      what.pattern = (hk_pattern)p;
      ck_assert_msg(hk_search_channels(&found[p], paths, &what) == HK_OK, "%s", hk_last_error());
    }
    FILE *f = fopen(scratch_path("graph.xml"), "we");
    ck_assert_int_eq(hk_channels_write_xml((const hk_channels *const *)found, 3, t, &what, f), HK_OK);
    fclose(f);
    for (int p = 0; p < 3; p++) {
      ck_assert_msg(hk_channels_read_xml(&read, scratch_path("graph.xml"), (hk_pattern)p, t, &what) == HK_OK, "%s",
                    hk_last_error());
      ck_assert_int_eq(read != NULL, found[p]->nchannels > 0);
      if (read) ck_assert_uint_eq(read->hash, found[p]->hash);
      hk_channels_free(read);
      hk_channels_free(found[p]);
    }
    done();
  }
  scratch_remove();
}

#define GRAPH(attrs, channel) "<graphs version=\"1\">\n<graph pattern=\"4\" " attrs ">\n" channel "</graph></graphs>"
#define FOUR "<gpu dev=\"0\"/><gpu dev=\"2\"/><gpu dev=\"1\"/><gpu dev=\"3\"/>"

TEST(graphs_that_are_wrong) {
  static const struct {
    const char *text, *words;
  } wrong[] = {
      {"", "no element found"},
      {"<system version=\"1\"/>", ":1:1: a file of channels begins with <graphs>"},
      {"<graphs/>", "needs the attribute version"},
      {"<graphs version=\"3\"/>", "only version 1"},
      {"<graphs version=\"1\"><graph/></graphs>", "needs the attribute pattern"},
      {GRAPH("", ""), ":2:1: a <graph> with 0 channels"},
      {GRAPH("", "<channel/>"), ":3:1: this channel passes 0 of 4 ranks"},
      {GRAPH("", "<channel><gpu dev=\"0\"/><gpu dev=\"0\"/></channel>"),
       ":3:24: this channel passes the same rank twice"},
      {GRAPH("", "<channel>" FOUR "<gpu dev=\"9\"/></channel>"), "has no such GPU"},
      {GRAPH("", "<channel>" FOUR "<gpu/></channel>"), "needs the attribute dev"},
      {GRAPH("", "<channel><net dev=\"7\"/>" FOUR "</channel>"), "has no such NET"},
      {GRAPH("", "<channel><net dev=\"0\"/>" FOUR "<net dev=\"0\"/><net dev=\"0\"/></channel>"), "at most two <net>"},
      {GRAPH("", "<channel>" FOUR "<hk_cpu numaid=\"0\"/></channel>"), "no rank is on this device"},
      {GRAPH("typeintra=\"FAST\"", "<channel>" FOUR "</channel>"), "typeintra=\"FAST\""},
      {GRAPH("speedintra=\"nan\"", "<channel>" FOUR "</channel>"), "speedintra=\"nan\""},
  };
  hk_search what = search_for(HK_PATTERN_RING, "4xl4 nic=1x100", true);
  hk_channels *c;
  scratch_make();
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(wrong); i++) {
    scratch_write("g.xml", wrong[i].text);
    ck_assert_msg(
        hk_channels_read_xml(&c, scratch_path("g.xml"), HK_PATTERN_RING, cluster->kinds[0], &what) == HK_ERR_ARGUMENT,
        "%s was taken", wrong[i].text);
    ck_assert_ptr_null(c);
    ck_assert_msg(strstr(hk_last_error(), wrong[i].words), "%s\n%s", hk_last_error(), wrong[i].text);
  }
  scratch_write("g.xml", GRAPH("nchannels=\"1\"", "<channel><net dev=\"0\"/>" FOUR "<net dev=\"0\"/></channel>"));
  ck_assert_int_eq(hk_channels_read_xml(&c, scratch_path("g.xml"), HK_PATTERN_TREE, cluster->kinds[0], &what), HK_OK);
  ck_assert_ptr_null(c); /* it has rings only */
  ck_assert_int_eq(hk_channels_read_xml(&c, scratch_path("g.xml"), HK_PATTERN_RING, cluster->kinds[0], &what), HK_OK);
  ck_assert_int_eq(c->at[0].order[1], 2);
  ck_assert_uint_eq(c->at[0].net_out, cluster->kinds[0]->first_of[HK_NODE_NET]);
  hk_channels_free(c);
  /* NCCL writes numbers in hexadecimal, and of a star the owner only. */
  scratch_write("g.xml",
                "<graphs version=\"1\"><graph pattern=\"5\"><channel><gpu dev=\"0x2\"/></channel></graph></graphs>");
  ck_assert_int_eq(hk_channels_read_xml(&c, scratch_path("g.xml"), HK_PATTERN_STAR, cluster->kinds[0], &what), HK_OK);
  static const uint16_t order[] = {2, 0, 1, 3};
  ck_assert_mem_eq(c->at[0].order, order, sizeof order);
  hk_channels_free(c);
  scratch_remove();
  done();
}

int main(void) {
  if (!hk_xml_available()) {
    puts("SKIP: expat is not installed (libexpat1), so that no XML is read");
    return 77;
  }
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("topo_lint");
}
