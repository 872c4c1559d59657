/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Random machine strings and damaged XML.  Whatever is taken is a finished topology that is written and read back the
 * same; whatever is not gets a message.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh.  What becomes
 * of some of them, always the same ones, is in tests/golden/topologies.txt, messages included. */
#include <string.h>
#include "../../src/topo/join.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/xml.h"
#include "../support/fuzz.h"
#include "../support/golden.h"
#include "../support/scratch.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/topologies.txt"
#define SEED (unsigned long long)fuzz_seed

static const char *pick(const char *const *list, size_t n) { return list[rnd((uint32_t)n)]; }
#define PICK(list) pick(list, sizeof(list) / sizeof *(list))

static char *written(const hk_topo *t, size_t *size) {
  char *text;
  FILE *f = open_memstream(&text, size);
  hk_status rc = hk_topo_write_xml(t, f);
  fclose(f);
  if (rc == HK_OK) return text;
  free(text);
  return NULL;
}

/* The first thing in which they differ. */
static void difference(const hk_topo *a, const hk_topo *b, char *out, size_t size) {
  snprintf(out, size, "%u nodes, %u edges; %u nodes, %u edges", a->nnodes, a->nedges, b->nnodes, b->nedges);
  for (uint32_t i = 0; i < a->nnodes && a->nnodes == b->nnodes; i++) {
    char label[HK_NODE_LABEL];
    const hk_node *x = &a->nodes[i], *y = &b->nodes[i];
    hk_node_label(x, label);
    if (x->kind != y->kind || x->id != y->id || x->numa != y->numa || memcmp(&x->cpu, &y->cpu, sizeof x->cpu))
      snprintf(out, size, "%s", label);
  }
  for (uint32_t i = 0; i < a->nedges && a->nedges == b->nedges; i++) {
    const hk_edge *x = &a->edges[i], *y = &b->edges[i];
    if (x->from != y->from || x->to != y->to || x->kind != y->kind || x->count != y->count || x->gbps != y->gbps ||
        x->us != y->us)
      snprintf(out, size, "edge %u: %u-%u %d x%u %.9g %.9g; %u-%u %d x%u %.9g %.9g", i, x->from, x->to, x->kind,
               x->count, (double)x->gbps, (double)x->us, y->from, y->to, y->kind, y->count, (double)y->gbps,
               (double)y->us);
  }
}

/* Written and read, the same. */
static void check_topology(const hk_topo *t, const char *from) {
  size_t size;
  hk_topo *again;
  ck_assert_msg(t->hash, "seed %llu: %.2000s: not finished", SEED, from);
  char *text = written(t, &size);
  ck_assert_msg(text, "seed %llu: %.2000s: %s", SEED, from, hk_last_error());
  ck_assert_msg(hk_topo_parse_xml(&again, "again", text, size, NULL, NULL) == HK_OK, "seed %llu: %.2000s: %s", SEED,
                from, hk_last_error());
  char what[200];
  difference(t, again, what, sizeof what);
  if (again->hash != t->hash) fprintf(stderr, "%s\n----\n%s\n", from, text);
  ck_assert_msg(again->hash == t->hash, "seed %llu: another machine after writing: %s\n%.3000s", SEED, what, from);
  hk_topo_free(again);
  free(text);
}

/* --- Strings --- */

static void any_machine(char *out, size_t size) {
  static const char *const heads[] = {"dgx-h100",
                                      "nvl72",
                                      "mi300x",
                                      "8xh100",
                                      "4xl40s:pcie2",
                                      "8xv100:cube",
                                      "3xa100:mesh",
                                      "2xcpu",
                                      "5xgb200",
                                      "1xl4",
                                      "16xv100",
                                      "7xmi300x:mesh",
                                      "6xh100:pairs",
                                      "tests/topologies/ndv2-topo.xml",
                                      "tests/topologies/synthetic/pcie-2s.xml",
                                      "tests/topologies/p4d-24xl-topo.xml as 8xa100:nvswitch6",
                                      "tests/topologies/ndv4-topo.xml as 8xa100 nic=8x200",
                                      "tests/topologies/none.xml"};
  static const char *const options[] = {"cpu=2xgenoa", "cpu=grace",  "numa=2",    "cores=300",   "pci=3",
                                        "switch=0",    "switch=5",   "nic=4x400", "nic=0",       "net=eth",
                                        "gdr=0",       "nvlink=9",   "trays=2",   "links=0-1*3", "nic=9x12.5",
                                        "numa=7",      "cpu=5xmilan"};
  static const char *const words[] = {"and", "nodes=3", "of",        "fabric=rail,fattree", "fabric=oversub=3",
                                      "x",   "=",       "nodes=2 of"};
  size_t n = 0;
  out[0] = 0;
  if (!rnd(4)) n += (size_t)snprintf(out + n, size - n, "nodes=%u of ", rnd(5));
  n += (size_t)snprintf(out + n, size - n, "%s", PICK(heads));
  for (uint32_t k = rnd(5); k; k--)
    n += (size_t)snprintf(out + n, size - n, " %s", rnd(12) ? PICK(options) : PICK(words));
  uint32_t oversub = rnd(5), spines = rnd(9);
  if (!rnd(4)) n += (size_t)snprintf(out + n, size - n, " fabric=rail,fattree,oversub=%u,spines=%u", oversub, spines);
  for (uint32_t k = rnd(3) ? 0 : rnd(6); k && n; k--) {
    char *at = &out[rnd((uint32_t)n)];
    *at = (char)(1 + rnd(255));
  }
}

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

static void print_joined(FILE *out, const hk_cluster *c, const hk_seat *seats, int n, hk_pattern pattern) {
  hk_joined *j;
  hk_search what = {.pattern = pattern, .max_channels = 3};
  ck_assert_int_eq(hk_join_cluster(&j, c, seats, n, &what, NULL), HK_OK);
  fprintf(out, "joined %d %d %d %d %d %.5g %.5g %d %d %d %016llx\n", j->nranks, j->nhosts, j->nchannels, j->intra_cls,
          j->inter_cls, (double)j->intra_gbps, (double)j->inter_gbps, j->split_host, j->split_rank[0], j->split_rank[1],
          (unsigned long long)j->hash);
  for (int i = 0; i < n; i++) fprintf(out, "%d ", j->host[i]);
  for (int i = 0; i < j->nchannels * n; i++) fprintf(out, "%d/%d ", j->order[i], j->up ? j->up[i] : -2);
  hk_joined_free(j);
}

static void print_cluster(FILE *out, const hk_cluster *c) {
  const hk_fabric *f = &c->fabric;
  hk_seat *seats;
  int n;
  fprintf(out, "%s: %d hosts of %d kinds, %d %d %d %d %.5g %.5g %.5g\n", c->name, c->nhosts, c->nkinds, f->rail,
          f->hosts_per_leaf, f->spines, f->adaptive, (double)f->oversub, (double)f->hop_us, (double)f->base_us);
  for (int i = 0; c->kind_of && i < c->nhosts; i++) fprintf(out, "%d ", c->kind_of[i]);
  for (int k = 0; k < c->nkinds; k++) print_topology(out, c->kinds[k]);
  for (int per_host = 0; per_host < 4; per_host += 3) {
    if (hk_cluster_seats(c, per_host, &seats, &n) != HK_OK) {
      fprintf(out, "%s\n", hk_last_error());
      continue;
    }
    uint32_t nodes[8];
    for (int i = 0; i < n && i < 8; i++) nodes[i] = seats[i].node;
    for (int i = 0; i < n; i++) fprintf(out, "%d.%u ", seats[i].host, seats[i].node);
    if (n / c->nhosts <= 6) {
      int first = 0;
      while (first < n && !seats[first].host) first++;
      print_channels(out, hk_cluster_host(c, 0), nodes, first, c->nhosts > 1);
      for (int i = 0; i < HK_PATTERNS && c->nhosts < 9; i++) print_joined(out, c, seats, n, (hk_pattern)i);
    }
    free(seats);
  }
}

START_TEST(machine_strings_as_before) {
  golden g = golden_open(GOLDEN, "strings");
  fuzz_begin_at(1);
  for (int i = 0; i < 40; i++) {
    char name[20], *all;
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
    snprintf(name, sizeof name, "strings %d", i);
    golden_text(&g, name, all, size);
  }
  fclose(g.file);
}
END_TEST

START_TEST(machine_strings) {
  fuzz_begin();
  unsigned good = 0, all = 0;
  do {
    char text[400];
    hk_cluster *c;
    any_machine(text, sizeof text);
    all++;
    if (hk_cluster_from_string(&c, text) != HK_OK) {
      ck_assert_msg(!c && hk_last_error()[0], "seed %llu: \"%s\"", SEED, text);
      continue;
    }
    good++;
    for (int k = 0; k < c->nkinds; k++) check_topology(c->kinds[k], text);
    ck_assert_msg(c->nhosts > 0 && c->fabric.oversub >= 1 && c->fabric.spines >= 1, "seed %llu: \"%s\"", SEED, text);
    hk_cluster_free(c);
  } while (fuzz_goes_on());
  printf("%u of %u strings are machines\n", good, all);
}
END_TEST

/* --- XML --- */

static char *a_machine(size_t *size) {
  static const char *const names[] = {"dgx-v100", "dgx-a100", "pcie-2s", "cpu-2s", "mi300x", "4xgb200 nic=2x400"};
  hk_cluster *c;
  ck_assert_msg(hk_cluster_from_string(&c, PICK(names)) == HK_OK, "%s", hk_last_error());
  char *text = written(c->kinds[0], size);
  hk_cluster_free(c);
  return text;
}

/* Values that numbers, addresses and names are not. */
static const char *const values[] = {"",     "-1",    "nan",
                                     "inf",  "1e39",  "99999999999999999999",
                                     "0x",   "0",     "fffffff:ff:ff.0",
                                     "ff:0", "1:2.3", "0.5",
                                     "&lt;", "&#10;", "1 GT/s",
                                     "-0",   "1e-9",  "0x030200"};

/* Replaces [at, at + n) by `with`. */
static void splice(char **text, size_t *size, size_t at, size_t n, const char *with, size_t more) {
  char *out = malloc(*size - n + more + 1);
  memcpy(out, *text, at);
  memcpy(out + at, with, more);
  memcpy(out + at + more, *text + at + n, *size - at - n);
  *size = *size - n + more;
  out[*size] = 0;
  free(*text);
  *text = out;
}

static void damage(char **text, size_t *size) {
  size_t at = rnd((uint32_t)*size), to = at;
  switch (rnd(6)) {
    case 0: (*text)[at] = (char)rnd(256); break;
    case 1: /* another value */
    case 2:
      while (at < *size && (*text)[at] != '"') at++;
      for (to = at + 1; to < *size && (*text)[to] != '"';) to++;
      if (to < *size) {
        const char *value = PICK(values);
        splice(text, size, at + 1, to - at - 1, value, strlen(value));
      }
      break;
    case 3: /* a line goes, or comes twice, or comes elsewhere */
    case 4: {
      while (at > 0 && (*text)[at - 1] != '\n') at--;
      while (to < *size && (*text)[to] != '\n') to++;
      char *line = strndup(*text + at, to - at);
      if (rnd(2)) splice(text, size, at, to - at, "", 0);
      if (rnd(2)) at = rnd((uint32_t)*size);
      while (at > 0 && (*text)[at - 1] != '\n') at--;
      splice(text, size, at, 0, line, strlen(line));
      free(line);
      break;
    }
    default: /* an attribute's name */
      while (at < *size && (*text)[at] != '=') at++;
      if (at > 0 && at < *size) (*text)[at - 1] = (char)('a' + rnd(26));
  }
}

typedef struct told {
  int errors, all;
} told;
static void tell(void *arg, const hk_xml_finding *f) {
  told *t = arg;
  ck_assert_msg(f->line >= 0 && f->column >= 0 && f->text[0], "seed %llu", SEED);
  t->errors += f->error;
  t->all++;
}

START_TEST(damaged_xml) {
  fuzz_begin();
  unsigned good = 0, all = 0;
  do {
    size_t size;
    char *text = a_machine(&size);
    told said = {0};
    hk_topo *t;
    for (uint32_t k = 1 + rnd(5); k && size; k--) damage(&text, &size);
    hk_status rc = hk_topo_parse_xml(&t, "damaged", text, size, tell, &said);
    ck_assert_msg((rc == HK_OK) == (said.errors == 0) && (rc == HK_OK) == (t != NULL), "seed %llu: %s\n%s", SEED,
                  hk_last_error(), text);
    if (rc == HK_OK) check_topology(t, text);
    hk_topo_free(t);
    free(text);
    good += rc == HK_OK;
    all++;
  } while (fuzz_goes_on());
  printf("%u of %u damaged files are taken\n", good, all);
}
END_TEST

START_TEST(damaged_file_over_detection) {
  fuzz_begin();
  scratch_make();
  do {
    size_t size, n;
    char *text = a_machine(&size), *other = a_machine(&n);
    hk_topo *seen, *t;
    for (uint32_t k = rnd(5); k && size; k--) damage(&text, &size);
    ck_assert_int_eq(hk_topo_parse_xml(&seen, "seen", other, n, NULL, NULL), HK_OK);
    FILE *f = fopen(scratch_path("topo.xml"), "we");
    fwrite(text, 1, size, f);
    fclose(f);
    hk_status rc = hk_topo_read_xml_over(&t, scratch_path("topo.xml"), seen, NULL, NULL);
    ck_assert_msg((rc == HK_OK) == (t != NULL), "seed %llu", SEED);
    if (t) check_topology(t, text);
    hk_topo_free(t);
    hk_topo_free(seen);
    free(text);
    free(other);
  } while (fuzz_goes_on());
  scratch_remove();
}
END_TEST

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

static const char graphs[] =
    "<graphs version='1'>\n"
    "<graph id='0' pattern='4' crossnic='0' nchannels='2' speedintra='12' speedinter='11' latencyinter='0' "
    "typeintra='PIX' typeinter='PHB' samechannels='0' hk_us='0.5'>\n"
    "<channel><net dev='0'/><gpu dev='0'/><gpu dev='1'/><gpu dev='2'/><net dev='1'/></channel>\n"
    "<channel><gpu dev='2'/><gpu dev='1'/><gpu dev='0'/></channel>\n"
    "</graph>\n"
    "<graph id='1' pattern='2' nchannels='1'><channel><net dev='1'/><gpu dev='1'/><gpu dev='0'/><gpu dev='2'/>"
    "</channel></graph>\n"
    "<graph id='3' pattern='5' nchannels='1'><channel><gpu dev='1'/></channel></graph>\n"
    "</graphs>\n";

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
  scratch_make();
  for (const char *at = file; (at = strstr(at, "='")) != NULL; at += 2) {
    size_t begin = (size_t)(at - file) + 2, end = begin + strcspn(file + begin, "'"), size;
    char name[80], *all;
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
    snprintf(name, sizeof name, "%s %zu %.*s", what, begin, (int)(at - word), word);
    golden_text(&g, name, all, size);
  }
  scratch_remove();
  fclose(g.file);
}

START_TEST(attributes_as_before) { each_attribute("attribute", full, 1, print_parsed); }
END_TEST
START_TEST(merged_as_before) { each_attribute("merged", full, 4, print_merged); }
END_TEST
START_TEST(graphs_as_before) { each_attribute("graph", graphs, 1, print_graphs); }
END_TEST

/* What becomes of files with several faults. */
START_TEST(damage_as_before) {
  golden g = golden_open(GOLDEN, "damage");
  fuzz_begin_at(2);
  scratch_make();
  for (int i = 0; i < 60; i++) {
    char name[20], *all;
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
    snprintf(name, sizeof name, "damage %d", i);
    golden_text(&g, name, all, n);
  }
  scratch_remove();
  fclose(g.file);
}
END_TEST

START_TEST(damaged_graphs) {
  hk_cluster *c;
  uint32_t nodes[3];
  fuzz_begin();
  scratch_make();
  ck_assert_int_eq(hk_cluster_from_string(&c, "3xl4 nic=2x100"), HK_OK);
  for (uint32_t i = 0; i < 3; i++) nodes[i] = c->kinds[0]->first_of[HK_NODE_GPU] + i;
  hk_search what = {.nodes = nodes, .nranks = 3};
  do {
    char *text = strdup(graphs);
    size_t size = strlen(graphs);
    for (size_t i = 0; i < size; i++) text[i] = text[i] == '\'' ? '"' : text[i];
    hk_channels *channels;
    for (uint32_t k = rnd(5); k && size; k--) damage(&text, &size);
    FILE *f = fopen(scratch_path("graph.xml"), "we");
    fwrite(text, 1, size, f);
    fclose(f);
    if (hk_channels_read_xml(&channels, scratch_path("graph.xml"), (hk_pattern)rnd(3), c->kinds[0], &what) == HK_OK)
      for (int i = 0; channels && i < channels->nchannels; i++) { /* each rank once */
        unsigned seen = 0;
        for (int k = 0; k < 3; k++) seen |= 1u << channels->at[i].order[k];
        ck_assert_msg(seen == 7, "seed %llu:\n%s", SEED, text);
      }
    hk_channels_free(channels);
    free(text);
  } while (fuzz_goes_on());
  hk_cluster_free(c);
  scratch_remove();
}
END_TEST

int main(void) {
  if (!hk_xml_available()) {
    puts("SKIP: the library is built without expat and reads no XML");
    return 77;
  }
  setenv("NCCL_DEBUG", "NONE", 0);
  TCase *t = tcase_create("fuzz_topo");
  golden_clear(GOLDEN);
  tcase_set_timeout(t, 60);
  tcase_add_test(t, machine_strings_as_before);
  tcase_add_test(t, attributes_as_before);
  tcase_add_test(t, merged_as_before);
  tcase_add_test(t, graphs_as_before);
  tcase_add_test(t, damage_as_before);
  tcase_add_test(t, machine_strings);
  tcase_add_test(t, damaged_xml);
  tcase_add_test(t, damaged_file_over_detection);
  tcase_add_test(t, damaged_graphs);
  return suite_run_one("fuzz_topo", t);
}
