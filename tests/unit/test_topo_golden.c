/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* What becomes of machines in words, of damaged files and of files over detection is in tests/golden/topologies.txt,
 * messages included: a line of length and hash for each. test_fuzz_topo asks what holds of all of them. */
#include "../../src/topo/join.h"
#include "../../src/topo/paths.h"
#include "../support/golden.h"
#include "../support/scratch.h"
#include "../support/suite.h"
#include "../support/topo_damage.h"

#define GOLDEN "tests/golden/topologies.txt"

/* --- Machines in words --- */

/* All that follows from a topology alone. */
static void print_topology(FILE *out, const hk_topo *t) {
  fprintf(out, "%s %016llx\n", t->name, (unsigned long long)t->hash);
  if (hk_topo_write_xml(t, out) != HK_OK) fprintf(out, "%s\n", hk_last_error());
  for (uint32_t i = 0; i < t->nnodes; i++)
    fprintf(out, "%u: %u %u %.6g\n", i, t->nodes[i].first_edge, t->nodes[i].nedges, (double)t->nodes[i].pci.max_gts);
  for (uint32_t i = 0; i < t->nedges; i++) fprintf(out, "%u-%u ", t->edges[i].to, t->edges[i].back);
  fputs(t->remarks ? t->remarks : "", out);
}

static void print_channels(FILE *out, const hk_topo *t, const uint32_t *nodes, int n, bool network) {
  hk_channels *c[HK_PATTERNS];
  hk_paths *p;
  hk_search what = {.nodes = nodes, .nranks = n, .network = network, .max_channels = 5};
  ck_assert_int_eq(hk_paths_new(&p, t, NULL), HK_OK);
  for (int i = 0; i < HK_PATTERNS; i++) {
    what.pattern = (hk_pattern)i;
    ck_assert_int_eq(hk_search_channels(&c[i], p, &what), HK_OK);
  }
  hk_channels_write_xml((const hk_channels *const *)c, HK_PATTERNS, t, &what, out);
  for (int i = 0; i < HK_PATTERNS; i++) hk_channels_free(c[i]);
  hk_paths_free(p);
}

static void print_joined(FILE *out, const hk_cluster *c, const hk_placement *placements, int n, hk_pattern pattern) {
  hk_joined *j;
  hk_search what = {.pattern = pattern, .max_channels = 3};
  ck_assert_int_eq(hk_join_cluster(&j, c, placements, n, &what, NULL), HK_OK);
  fprintf(out, "joined %d %d %d %d %d %.5g %.5g %d %d %d %016llx\n", j->nranks, j->nhosts, j->nchannels, j->intra_cls,
          j->inter_cls, (double)j->intra_gbps, (double)j->inter_gbps, j->split_host, j->split_rank[0], j->split_rank[1],
          (unsigned long long)j->hash);
  for (int i = 0; i < n; i++) fprintf(out, "%d ", j->host[i]);
  for (int i = 0; i < j->nchannels * n; i++) fprintf(out, "%d/%d ", j->order[i], j->up ? j->up[i] : -2);
  hk_joined_free(j);
}

static void print_cluster(FILE *out, const hk_cluster *c) {
  const hk_fabric *f = &c->fabric;
  hk_placement *placements;
  int n;
  fprintf(out, "%s: %d hosts of %d kinds, %d %d %d %d %.5g %.5g %.5g\n", c->name, c->nhosts, c->nkinds, f->rail,
          f->hosts_per_leaf, f->spines, f->adaptive, (double)f->oversub, (double)f->hop_us, (double)f->base_us);
  for (int i = 0; c->kind_of && i < c->nhosts; i++) fprintf(out, "%d ", c->kind_of[i]);
  for (int k = 0; k < c->nkinds; k++) print_topology(out, c->kinds[k]);
  for (int per_host = 0; per_host < 4; per_host += 3) {
    if (hk_cluster_placements(c, per_host, &placements, &n) != HK_OK) {
      fprintf(out, "%s\n", hk_last_error());
      continue;
    }
    uint32_t nodes[8];
    for (int i = 0; i < n && i < 8; i++) nodes[i] = placements[i].node;
    for (int i = 0; i < n; i++) fprintf(out, "%d.%u ", placements[i].host, placements[i].node);
    if (n / c->nhosts <= 6) {
      int first = 0;
      while (first < n && !placements[first].host) first++;
      print_channels(out, hk_cluster_host(c, 0), nodes, first, c->nhosts > 1);
      for (int i = 0; i < HK_PATTERNS && c->nhosts < 9; i++) print_joined(out, c, placements, n, (hk_pattern)i);
    }
    free(placements);
  }
}

TEST(machine_strings_as_before) {
  golden g = golden_open(GOLDEN, "strings");
  fuzz_begin_at(1);
  for (int i = 0; i < 40; i++) {
    char name[20], group[20], *all;
    size_t size;
    FILE *out = open_memstream(&all, &size);
    for (int k = 0; k < 10; k++) {
      char text[400];
      hk_cluster *c;
      any_machine(text, sizeof text);
      fprintf(out, "\n\"%s\"\n", text);
      if (hk_cluster_from_string(&c, text) == HK_OK)
        print_cluster(out, c);
      else
        fprintf(out, "%s\n", hk_last_error());
      hk_cluster_free(c);
    }
    fclose(out);
    snprintf(group, sizeof group, "strings %d", i / 10);
    snprintf(name, sizeof name, "%d", i);
    golden_text(&g, group, name, all, size);
  }
  golden_close(&g);
}

/* --- Files --- */

/* Every attribute that there is. */
static const char full[] =
    "<system version='1' name='full' hk_cpu_links='1'>\n"
    "<cpu numaid='0' host_hash='0x1' affinity='0000000f,ffff0000' arch='x86_64' vendor='GenuineIntel' familyid='6' "
    "modelid='143' hk_cores='8' hk_memory='300'>\n"
    "<hk_link numaid='1' hk_bw='40' hk_us='0.5'/>\n"
    "<pci busid='0000:10:00.0' class='0x060400' vendor='0x1000' device='0xc010' subsystem_vendor='0x1000' "
    "subsystem_device='0xa096' link_speed='16.0 GT/s PCIe' link_width='16' hk_max_speed='32.0 GT/s PCIe' "
    "hk_max_width='16' hk_bw='20' hk_us='0.3'>\n"
    "<pcilink target='0000:20:00.0'/>\n"
    "<pci busid='0000:11:00.0' class='0x030200' vendor='0x10de' device='0x2330' link_speed='32 GT/s' "
    "link_width='16'>\n"
    "<gpu dev='0' sm='90' rank='0' gdr='1' hk_name='H100' hk_memory='3000' hk_mcast='1'>\n"
    "<nvlink target='0000:12:00.0' count='4' tclass='0x030200' hk_bw='80' hk_us='0.7'/>\n"
    "<nvlink target='0000:12:00.0' count='2' tclass='0x030200' hk_bw='30'/>\n"
    "<nvlink target='0000:80:00.0' count='3' tclass='0x068000'/>\n"
    "<c2c bw='1000' count='9' hk_bw='7' hk_us='0.2'/>\n"
    "</gpu></pci>\n"
    "<pci busid='0000:12:00.0' class='0x030000' vendor='0x10de' device='0x1111' link_speed='8 GT/s' link_width='8'>\n"
    "<gpu dev='1' sm='80' gdr='0'>\n"
    "<nvlink target='0000:11:00.0' count='6' tclass='0x030200'/><c2c bw='2000' count='3'/></gpu></pci>\n"
    "<pci busid='0000:13:00.0' class='0x120000' vendor='0x1002' device='0x740f' link_speed='16 GT/s' "
    "link_width='16'>\n"
    "<gpu dev='2' sm='110' gcn='gfx90a:x' arch='910' keep='1'>\n"
    "<xgmi target='0000:14:00.0' count='2' tclass='0x120000' hk_bw='70' hk_us='0.9'/></gpu></pci>\n"
    "<pci busid='0000:14:00.0' class='0x120000' vendor='0x1002' device='0x740f'>\n"
    "<gpu dev='3' gcn='942'><xgmi target='0000:13:00.0' count='1'/></gpu></pci>\n"
    "<pci busid='0000:15:00.0' class='0x020700' vendor='0x15b3' device='0x1021' link_speed='32 GT/s' "
    "link_width='16'>\n"
    "<nic hk_name='mlx5_0'>"
    "<net name='mlx5_0' dev='0' speed='400000' port='1' latency='1.5' guid='0xabc' maxconn='9' gdr='1' coll='0' "
    "keep='1' hk_rail='2' hk_ethernet='1' hk_bw='44' hk_us='0.4'/></nic></pci>\n"
    "</pci>\n"
    "</cpu>\n"
    "<cpu numaid='1' host_hash='0x1' arch='x86_64' vendor='AuthenticAMD' familyid='175' modelid='17'>\n"
    "<pci busid='0000:20:00.0' class='0x030200' vendor='0x10de'/>\n"
    "<nic hk_busid='0000:30:00.0' hk_name='eth' hk_bw='3' hk_us='2'><net name='eth0' dev='1' guid='0xdef'/></nic>\n"
    "</cpu>\n"
    "</system>\n";

static void note(void *arg, const hk_xml_finding *f) {
  fprintf(arg, "%d:%d: %d %s\n", f->line, f->column, f->error, f->text);
}

static void print_parsed(FILE *out, const char *text, size_t size) {
  hk_topo *t;
  if (hk_topo_parse_xml(&t, "folder/a file", text, size, note, out) == HK_OK)
    print_topology(out, t);
  else
    fprintf(out, "%s\n", hk_last_error());
  hk_topo_free(t);
}

static hk_topo *parsed(const char *text, size_t size) {
  hk_topo *t;
  ck_assert_msg(hk_topo_parse_xml(&t, "seen", text, size, NULL, NULL) == HK_OK, "%s", hk_last_error());
  return t;
}

static void write_file(const char *text, size_t size) {
  FILE *f = fopen(scratch_path("file.xml"), "we");
  fwrite(text, 1, size, f);
  fclose(f);
}
/* The last message, without the folder of this run. */
static void print_error(FILE *out) {
  const char *text = hk_last_error(), *at = strstr(text, scratch_folder);
  fprintf(out, "%.*s%s\n", at ? (int)(at - text) : 0, text, at ? at + strlen(scratch_folder) : text);
}

/* Over what detection saw: this same machine, with other figures and one device less. */
static void print_merged(FILE *out, const char *text, size_t size) {
  static hk_topo *seen;
  hk_topo *t;
  if (!seen) {
    char *other = strdup(full);
    for (char *at = other; (at = strstr(at, "'0000:1")) != NULL; at++)
      if (at[8] == '2' || at[8] == '5') memcpy(at, "'0000:4", 7);
    seen = parsed(other, strlen(other));
    free(other);
  }
  write_file(text, size);
  if (hk_topo_read_xml_over(&t, scratch_path("file.xml"), seen, note, out) == HK_OK)
    print_topology(out, t);
  else
    print_error(out);
  hk_topo_free(t);
}

static void print_graphs(FILE *out, const char *text, size_t size) {
  hk_cluster *c;
  uint32_t nodes[3];
  ck_assert_int_eq(hk_cluster_from_string(&c, "3xl4 nic=2x100"), HK_OK);
  for (uint32_t i = 0; i < 3; i++) nodes[i] = c->kinds[0]->first_of[HK_NODE_GPU] + i;
  hk_search what = {.nodes = nodes, .nranks = 3};
  write_file(text, size);
  for (int p = 0; p < HK_PATTERNS; p++) {
    hk_channels *channels;
    hk_status rc = hk_channels_read_xml(&channels, scratch_path("file.xml"), (hk_pattern)p, c->kinds[0], &what);
    if (rc != HK_OK) print_error(out);
    if (channels) fprintf(out, "%016llx %.5g\n", (unsigned long long)channels->hash, (double)channels->us);
    if (channels) hk_channels_write_xml((const hk_channels *const[]){channels}, 1, c->kinds[0], &what, out);
    hk_channels_free(channels);
  }
  hk_cluster_free(c);
}

/* What becomes of a file when one of its attributes has another value, or another name. */
static void each_attribute(const char *what, const char *file, size_t step,
                           void (*print)(FILE *out, const char *text, size_t size)) {
  static const char *const more[] = {"1",          "2",        "-2",           "3",        "63",     "64",
                                     "65",         "1024",     "1025",         "65535",    "65536",  "0x1ffff",
                                     "1000000",    "1000001",  "0000:11:00.0", "0:12:0.0", "gfx942", "gfx899",
                                     "1999:y",     "2000",     "AuthenticAMD", "8 GT/s",   "1024",   "1025 GT/s",
                                     "Unknown",    "aarch64",  "1,00000000",   "0x068001", "NVL",    "a<b",
                                     "&quot;&gt;", "0x068000", "0000:99:00.0", "0.000001", "5",      "4"};
  golden g = golden_open(GOLDEN, what);
  int number = 0;
  scratch_make();
  for (const char *at = file; (at = strstr(at, "='")) != NULL; at += 2) {
    size_t begin = (size_t)(at - file) + 2, end = begin + strcspn(file + begin, "'"), size;
    char name[80], group[40], *all;
    FILE *out = open_memstream(&all, &size);
    for (size_t i = begin % step; i <= HK_ARRAY_LENGTH(values) + HK_ARRAY_LENGTH(more); i += step) {
      size_t k = i - HK_ARRAY_LENGTH(values), n = strlen(file);
      const char *value = i < HK_ARRAY_LENGTH(values) ? values[i] : k < HK_ARRAY_LENGTH(more) ? more[k] : NULL;
      char *text = strdup(file);
      if (value)
        splice(&text, &n, begin, end - begin, value, strlen(value));
      else
        text[begin - 3] = 'z';
      fprintf(out, "%s:\n", value ? value : "no such name");
      print(out, text, n);
      free(text);
    }
    fclose(out);
    const char *word = at;
    while (word[-1] != ' ') word--;
    snprintf(name, sizeof name, "%zu %.*s", begin, (int)(at - word), word);
    snprintf(group, sizeof group, "%s %d", what, number++ / 12);
    golden_text(&g, group, name, all, size);
  }
  scratch_remove();
  golden_close(&g);
}

TEST(attributes_as_before) { each_attribute("attribute", full, 1, print_parsed); }
TEST(merged_as_before) { each_attribute("merged", full, 4, print_merged); }
TEST(graphs_as_before) { each_attribute("graph", graphs, 1, print_graphs); }

/* What becomes of files with several faults. */
TEST(damage_as_before) {
  golden g = golden_open(GOLDEN, "damage");
  fuzz_begin_at(2);
  scratch_make();
  for (int i = 0; i < 60; i++) {
    char name[20], group[20], *all;
    size_t n;
    FILE *out = open_memstream(&all, &n);
    for (int k = 0; k < 12; k++) {
      void (*const print[])(FILE *, const char *, size_t) = {print_parsed, print_merged, print_graphs};
      size_t size = strlen(i % 3 == 2 ? graphs : full);
      char *text = i % 3 || i % 2 ? strdup(i % 3 == 2 ? graphs : full) : a_machine(&size);
      for (size_t c = 0; c < size; c++) text[c] = text[c] == '\'' ? '"' : text[c];
      for (uint32_t more = 1 + rnd(2); more && size; more--) damage(&text, &size);
      print[i % 3](out, text, size);
      free(text);
    }
    fclose(out);
    snprintf(group, sizeof group, "damage %d", i / 12);
    snprintf(name, sizeof name, "%d", i);
    golden_text(&g, group, name, all, n);
  }
  scratch_remove();
  golden_close(&g);
}

int main(void) {
  if (!hk_xml_available()) {
    puts("SKIP: expat is not installed (libexpat1), so that no XML is read");
    return 77;
  }
  setenv("NCCL_DEBUG", "NONE", 0);
  golden_clear(GOLDEN);
  return suite_main("topologies as before", .timeout = 60);
}
