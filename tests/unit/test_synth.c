/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Machines from strings: what the presets have, the grammar's parts, and what is said about words that are wrong. */
#include "../../src/topo/facts.h"
#include "../../src/topo/synth.h"
#include "../support/suite.h"

static hk_cluster *made[32];
static int nmade;

/* It goes when the test ends. */
static hk_cluster *make(const char *text) {
  hk_cluster *c;
  ck_assert_int_lt(nmade, HK_ARRAY_LENGTH(made));
  ck_assert_msg(hk_cluster_from_string(&c, text) == HK_OK, "\"%s\": %s", text, hk_last_error());
  ck_assert_msg(c->kinds[0]->hash, "\"%s\" is not finished", text);
  return made[nmade++] = c;
}
static void forget(void) {
  while (nmade > 0) hk_cluster_free(made[--nmade]);
}

static float gbps_between(const hk_topo *t, uint32_t a, uint32_t b) {
  for (uint32_t e = t->nodes[a].first_edge; e < t->nodes[a].first_edge + t->nodes[a].nedges; e++)
    if (t->edges[e].to == b) return t->edges[e].gbps;
  return 0;
}

/* All NVLinks at one GPU. */
static unsigned links_at(const hk_topo *t, uint32_t gpu) {
  unsigned n = 0;
  for (uint32_t e = t->nodes[gpu].first_edge; e < t->nodes[gpu].first_edge + t->nodes[gpu].nedges; e++)
    if (t->edges[e].kind == HK_EDGE_NVLINK) n += t->edges[e].count;
  return n;
}

static const struct {
  const char *name;
  unsigned cpus, pcis, gpus, nvs, nics, links;
  float mbps;
} presets[] = {
    {"dgx-v100", 2, 4, 8, 0, 4, 6, 100000},    {"dgx-2", 2, 8, 16, 1, 8, 6, 100000},
    {"dgx-a100", 8, 4, 8, 1, 8, 12, 200000},   {"dgx-h100", 2, 8, 8, 1, 8, 18, 400000},
    {"dgx-h200", 2, 8, 8, 1, 8, 18, 400000},   {"dgx-b200", 2, 8, 8, 1, 8, 18, 400000},
    {"nvl72", 36, 0, 72, 1, 72, 18, 400000},   {"p4d", 2, 4, 8, 1, 4, 12, 100000},
    {"pcie-1s", 1, 2, 4, 0, 2, 0, 200000},     {"pcie-2s", 2, 2, 8, 0, 2, 0, 200000},
    {"pcie-direct", 2, 0, 8, 0, 1, 0, 100000}, {"mi300x", 2, 8, 8, 0, 8, 7, 400000},
    {"cpu-1s", 1, 0, 0, 0, 1, 0, 100000},      {"cpu-2s", 2, 0, 0, 0, 1, 0, 100000},
    {"mi250x", 4, 0, 8, 0, 4, 6, 200000},      {"mi355x", 2, 8, 8, 0, 8, 7, 400000},
    {"dgx-b300", 2, 8, 8, 1, 8, 18, 800000},
};

TEST(preset_machines) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(presets); i++) {
    hk_cluster *c = make(presets[i].name);
    const hk_topo *t = c->kinds[0];
    const unsigned want[HK_NODE_KINDS] = {presets[i].cpus, presets[i].pcis, presets[i].gpus,
                                          presets[i].nvs,  presets[i].nics, presets[i].nics};
    for (int k = 0; k < HK_NODE_KINDS; k++)
      ck_assert_msg(hk_topo_count(t, (hk_node_kind)k) == want[k], "%s has %u %s", presets[i].name,
                    hk_topo_count(t, (hk_node_kind)k), hk_node_kind_name((hk_node_kind)k));
    for (uint32_t g = 0; g < presets[i].gpus; g++)
      ck_assert_uint_eq(links_at(t, t->first_of[HK_NODE_GPU] + g), presets[i].links);
    ck_assert_float_eq(t->nodes[t->first_of[HK_NODE_NET]].net.mbps, presets[i].mbps);
    ck_assert_str_eq(t->name, presets[i].name);
  }
}

/* A preset that this test does not know must be looked at too. */
TEST(every_preset_is_tested) {
  char *text;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  hk_synth_presets(f);
  fclose(f);
  unsigned lines = 0;
  for (const char *at = text; *at; at++) lines += *at == '\n';
  ck_assert_uint_eq(lines, HK_ARRAY_LENGTH(presets));
  free(text);
}

TEST(hybrid_cube_mesh) {
  /* What `nvidia-smi topo -m` shows on a DGX-1: NV1, NV2 or none. */
  static const int want[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
                                 {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                 {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
  hk_cluster *c = make("dgx-v100");
  const hk_topo *t = c->kinds[0];
  uint32_t first = t->first_of[HK_NODE_GPU];
  for (uint32_t a = 0; a < 8; a++)
    for (uint32_t b = 0; b < 8; b++)
      ck_assert_float_eq(gbps_between(t, first + a, first + b), (float)want[a][b] * hk_nvlink_gbps(70));
}

TEST(parts_and_options) {
  hk_cluster *c = make("8xh100:nvswitch4 nic=8x400");
  const hk_topo *t = c->kinds[0];
  uint32_t gpu = t->first_of[HK_NODE_GPU], nvs = t->first_of[HK_NODE_NVS];
  ck_assert_str_eq(t->nodes[nvs].name, "4 NVSwitches");
  ck_assert_float_eq(gbps_between(t, gpu, nvs), 18 * hk_nvlink_gbps(90));
  ck_assert(t->nodes[gpu].gpu.mcast && t->nodes[gpu].gpu.sm == 90 && t->nodes[gpu].gpu.gdr);

  c = make("8xa100:pcie2");
  t = c->kinds[0];
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 0);
  ck_assert_float_eq(gbps_between(t, t->first_of[HK_NODE_PCI], t->first_of[HK_NODE_GPU]), hk_pci_gbps(16, 16));

  c = make("2xcpu cores=32 nic=1x100");
  t = c->kinds[0];
  ck_assert_int_eq(t->nodes[0].cpu.cores, 32);
  ck_assert_uint_eq(t->nodes[1].cpu.mask[0], 0xffffffff00000000u);
  ck_assert_float_eq(gbps_between(t, 0, 1), hk_cpu_link_gbps(&t->nodes[0].cpu));

  c = make("4xV100 links=0-1*2,1-2,2-3*3 gdr=0 nic=0 cpu=1xmilan numa=4 pci=2");
  t = c->kinds[0];
  gpu = t->first_of[HK_NODE_GPU];
  ck_assert_uint_eq(links_at(t, gpu + 1), 3);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 4);
  ck_assert_int_eq(t->nodes[gpu + 3].numa, 3);
  ck_assert(!t->nodes[gpu].gpu.gdr);
  ck_assert_float_eq(t->nodes[gpu].pci.gts, 5);
}

TEST(racks) {
  hk_cluster *c = make("nvl72");
  const hk_topo *t = c->kinds[0];
  uint32_t gpu = t->first_of[HK_NODE_GPU];
  ck_assert(gbps_between(t, 0, 1) > 0);    /* two CPUs of a tray */
  ck_assert(!(gbps_between(t, 1, 2) > 0)); /* of two trays */
  ck_assert_int_eq(t->nodes[gpu + 71].numa, 35);
  ck_assert_float_eq(gbps_between(t, 0, t->first_of[HK_NODE_GPU] + 1),
                     hk_pci_gbps(32, 1)); /* the first of two edges; the other is C2C */
  ck_assert_int_eq(t->nodes[t->first_of[HK_NODE_NET] + 71].net.rail, 3);
}

TEST(clusters) {
  hk_cluster *c = make("nodes=2048 of dgx-h100 fabric=rail,fattree,oversub=2");
  ck_assert_int_eq(c->nhosts, 2048);
  ck_assert_int_eq(c->nkinds, 1);
  ck_assert(c->fabric.rail && !c->fabric.adaptive);
  ck_assert_int_eq(c->fabric.hosts_per_leaf, 32);
  ck_assert_int_eq(c->fabric.spines, 16);
  ck_assert_float_eq(c->fabric.oversub, 2);

  c = make("nodes=3 of dgx-h100 nic=4x200 fabric=fattree,leaf=2,spines=5,adaptive,hop=0.5,base=3.25");
  ck_assert_uint_eq(hk_topo_count(c->kinds[0], HK_NODE_NET), 4);
  ck_assert_int_eq(c->fabric.hosts_per_leaf, 2);
  ck_assert_int_eq(c->fabric.spines, 5);
  ck_assert(c->fabric.adaptive && !c->fabric.rail);
  ck_assert_float_eq(c->fabric.hop_us, 0.5f);
  ck_assert_float_eq(c->fabric.base_us, 3.25f);

  c = make(" nodes=2 of  dgx-a100 and dgx-h100\tand nodes=3 of dgx-a100 ");
  ck_assert_int_eq(c->nhosts, 6);
  ck_assert_str_eq(hk_cluster_host(c, 1)->name, "dgx-a100");
  ck_assert_str_eq(hk_cluster_host(c, 2)->name, "dgx-h100");
  ck_assert_str_eq(hk_cluster_host(c, 5)->name, "dgx-a100");
}

TEST(equal_strings_equal_machines) {
  hk_cluster *a = make("dgx-h100"), *b = make("DGX-H100"), *c = make("dgx-h100 nic=4x400");
  ck_assert_uint_eq(a->kinds[0]->hash, b->kinds[0]->hash);
  ck_assert_uint_ne(a->kinds[0]->hash, c->kinds[0]->hash);
}

TEST(what_is_said_about_errors) {
  static const struct {
    const char *text, *word, *hint;
    int position; /* 0: none is told */
  } wrong[] = {
      {"", "the text ends at position 1", "8xh100:nvswitch4", 0},
      {"dgx-h10", "\"dgx-h10\"", "did you mean dgx-h100?", 1},
      {"8xh10:pcie", "\"h10\"", "h100", 3},
      {"8xh100:nvswich", "\"nvswich\"", "did you mean nvswitch?", 8},
      {"8xh100:mesh3", "\"mesh3\"", "mesh", 8},
      {"8xh100:pcie0", "\"0\"", "how many", 12},
      {"0xh100", "\"0xh100\"", "1 to 576", 1},
      {"9999999999999999999999xh100", "\"999999", "1 to 576", 1},
      {"dgx-h100 nic=8y400", "\"y400\"", "8x400", 15},
      {"dgx-h100 nic=8x-400", "\"-400\"", "Gb/s", 16},
      {"dgx-h100 nic=8xnan", "\"nan\"", "Gb/s", 16},
      {"dgx-h100 nc=3", "\"nc=3\"", "did you mean nic=?", 10},
      {"dgx-h100 cpu=2xsaphirerapids", "\"saphirerapids\"", "did you mean sapphirerapids?", 16},
      {"dgx-h100 pci=7", "\"7\"", "1 to 6", 14},
      {"dgx-h100 net=tcp", "\"tcp\"", "ib, eth", 14},
      {"8xv100 links=0-0", "\"0-0\"", "two different GPUs", 14},
      {"8xv100 links=0-1;", "\";\"", "a comma", 17},
      {"8xv100 links=0-1,7-9", "link 7-9", "0 to 7", 0},
      {"8xl4:nvswitch", "no NVLinks at l4", "nvlink=", 0},
      {"12xmi300x:mesh", "needs 11 links", "nvlink=", 0},
      {"4xv100:cube", "8 GPUs, not 4", "", 0},
      {"8xv100:cube links=0-1", "\"links=0-1\"", "joined by the word after", 13},
      {"8xl4 trays=2", "nvswitch", "nodes=2", 0},
      {"8xh100 trays=3", "trays=3", "evenly", 0},
      {"576xl4 cpu=1xgenoa", "255 PCI devices", "cpu=", 0},
      {"nodes=0 of dgx-h100", "\"0\"", "1 to 1048576", 7},
      {"nodes=2 dgx-h100", "\"dgx-h100\"", "of", 9},
      {"nodes=2 of", "the text ends at position 11", "dgx-h100", 0},
      {"nodes=2 of 8xh100", "no NICs", "nic=8x400", 0},
      {"dgx-h100 and", "the text ends at position 13", "dgx-h100", 0},
      {"dgx-h100 fabric=rails", "\"rails\"", "did you mean rail?", 17},
      {"dgx-h100 fabric=rail,oversub=0.5", "\"0.5\"", "1 to 64", 30},
      {"dgx-h100 fabric=rail,,ecmp", "expected: rail, fattree", "adaptive", 0},
      {"dgx-h100 fabric=rail nic=2x100", "\"nic=2x100\"", "the end of the text", 22},
  };
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(wrong); i++) {
    hk_cluster *c;
    char position[40] = "";
    ck_assert_msg(hk_cluster_from_string(&c, wrong[i].text) == HK_ERR_ARGUMENT, "\"%s\" was taken", wrong[i].text);
    ck_assert_ptr_null(c);
    if (wrong[i].position) snprintf(position, sizeof position, "at position %d;", wrong[i].position);
    const char *said = hk_last_error();
    ck_assert_msg(strstr(said, wrong[i].word) && strstr(said, wrong[i].hint) && strstr(said, position),
                  "\"%s\" gave: %s", wrong[i].text, said);
  }
  hk_cluster *c;
  ck_assert_int_eq(hk_cluster_from_string(&c, NULL), HK_ERR_ARGUMENT);
  char *long_text = malloc(100001);
  memset(long_text, 'x', 100000);
  long_text[100000] = 0;
  ck_assert_int_eq(hk_cluster_from_string(&c, long_text), HK_ERR_ARGUMENT);
  long_text[3000] = 0;
  ck_assert_int_eq(hk_cluster_from_string(&c, long_text), HK_ERR_ARGUMENT);
  free(long_text);
}

/* True if this machine is refused with these words; NULL: for any reason. */
static bool refused_for(const char *text, const char *words) {
  hk_cluster *c;
  hk_status rc = hk_cluster_from_string(&c, text);
  hk_cluster_free(c);
  return rc != HK_OK && (!words || strstr(hk_last_error(), words));
}

/* Whole numbers: a value beyond the limits is refused with the limits, one inside may at most not fit the machine. */
TEST(limits_of_numbers) {
  static const struct {
    const char *before, *after;
    int min, max;
  } rows[] = {{"2xh100:pcie sm=", "", 30, 1999},
              {"2xh100:pcie memory=", "", 1, 1000000},
              {"2xcpu numa=", "", 1, 64},
              {"2xcpu cores=", "", 1, 1024},
              {"2xh100:pcie pci=", "", 1, 6},
              {"2xh100:pcie switch=", "", 0, 576},
              {"2xh100:pcie gdr=", "", 0, 1},
              {"2xh100:nvswitch trays=", "", 1, 576},
              {"nodes=", " of 2xcpu nic=1x100", 1, 1048576},
              {"2xcpu fabric=leaf=", "", 1, 65536},
              {"2xcpu fabric=spines=", "", 1, 65536}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    int values[] = {rows[i].min - 1, rows[i].min, rows[i].max, rows[i].max + 1};
    for (int k = 0; k < 4; k++) {
      char text[120], words[60];
      snprintf(text, sizeof text, "%s%d%s", rows[i].before, values[k], rows[i].after);
      snprintf(words, sizeof words, "a number from %d to %d", rows[i].min, rows[i].max);
      ck_assert_msg(refused_for(text, words) == (k == 0 || k == 3), "%s: %s", text, hk_last_error());
    }
  }
  ck_assert(refused_for("nodes=1048576 of 2xcpu nic=1x100 and nodes=1 of 2xcpu nic=1x100", "from 1 to 0"));
  ck_assert(!refused_for("nodes=1048575 of 2xcpu nic=1x100 and nodes=1 of 2xcpu nic=1x100", NULL));
}

TEST(limits_of_words) {
  static const struct {
    const char *text, *words; /* NULL: it is a machine */
  } rows[] = {{"2xcpu nic=8x0.1", NULL},
              {"2xcpu nic=576x1", "255 PCI devices at one CPU"},
              {"2xcpu nic=577x1", "NxGBIT"},
              {"2xcpu nic=0", NULL},
              {"2xcpu nic=1", "\"x\" and Gb/s"},
              {"2xcpu nic=1x0.09", "from 0.1 to"},
              {"2xcpu nic=1x100000", NULL},
              {"2xcpu nic=1x100001", "from 0.1 to 100000"},
              {"2xcpu nic=1x5.", NULL},
              {"2xcpu nic=1x.5", NULL},
              {"2xcpu nic=1x.", "from 0.1"},
              {"2xcpu nic=1x", "the text ends"},
              {"2xcpu nic=1x5e3", "from 0.1"},
              {"2xcpu net=eth", NULL},
              {"1xcpu cpu=576xgenoa", "more than 65536 links"},
              {"1xcpu cpu=577xgenoa", "\"577xgenoa\""},
              {"1xcpu cpu=0xgenoa", "\"0xgenoa\""},
              {"1xcpu cpu=1xgenoa", NULL},
              {"2xv100 links=0-1*64", NULL},
              {"2xv100 links=0-1*65", "1 to 64"},
              {"2xv100 links=0-1*0", "1 to 64"},
              {"2xv100 links=0-1*1", NULL},
              {"2xv100 links=1-0", NULL},
              {"2xv100 links=0-2", "0 to 1"},
              {"2xv100 links=0-576", "A-B"},
              {"2xv100 links=576-0", "A-B"},
              {"2xv100 links=0-575", "0 to 1"},
              {"2xv100 links=575-0", "0 to 1"},
              {"2xv100 links=0-1 links=0-1", NULL}, /* the last one counts */
              {"2xv100:nvswitch nvlink=0", "1 to 64"},
              {"2xv100:nvswitch nvlink=1", NULL},
              {"2xv100:nvswitch nvlink=64", NULL},
              {"2xv100:nvswitch nvlink=65", "1 to 64"},
              {"2xv100:nvswitch nvlink=2x0.1", NULL},
              {"2xv100:nvswitch nvlink=2x0.09", "1 to 64"},
              {"2xv100:nvswitch nvlink=2x10000", NULL},
              {"2xv100:nvswitch nvlink=2x10001", "1 to 64"},
              {"2xv100:nvswitch nvlink=2x", "1 to 64"},
              {"2xv100:nvswitch nvlink=2y", "1 to 64"},
              {"2xv100:nvswitch1", NULL},
              {"2xv100:nvswitch576", NULL},
              {"2xv100:nvswitch577", "how many"},
              {"2xv100:nvswitch1a", "how many"},
              {"2xv100:pcie1", NULL},
              {"8xv100:cube2", "nvswitch[CHIPS]"},
              {"2xv100:pairs1", "nvswitch[CHIPS]"},
              {"2xv100:mesh1", "nvswitch[CHIPS]"},
              {"576xcpu", "more than 65536 links"},
              {"577xcpu", "from 1 to 576"},
              {"2xcpu:pcie", "\"cpu\""},
              {"2xcpu fabric=oversub=1", NULL},
              {"2xcpu fabric=oversub=0.99", "1 to 64"},
              {"2xcpu fabric=oversub=64", NULL},
              {"2xcpu fabric=oversub=64.1", "1 to 64"},
              {"2xcpu fabric=hop=0", NULL},
              {"2xcpu fabric=hop=1000", NULL},
              {"2xcpu fabric=hop=1000.1", "0 to 1000"},
              {"2xcpu fabric=hop=1x", "0 to 1000"},
              {"2xcpu fabric=base=100000", NULL},
              {"2xcpu fabric=base=100001", "0 to 100000"},
              {".xml", "\".xml\""},
              {"x.xml", "x.xml"},
              {"no/such", "no/such"}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    ck_assert_msg(refused_for(rows[i].text, NULL) == (rows[i].words != NULL), "%s: %s", rows[i].text, hk_last_error());
    if (rows[i].words) ck_assert_msg(refused_for(rows[i].text, rows[i].words), "%s: %s", rows[i].text, hk_last_error());
  }
  ck_assert(refused_for(".xml", "machine:") && !refused_for("x.xml", "machine:") &&
            !refused_for("no/such", "machine:"));
}

/* Words, texts and lists of the greatest lengths, and one more. */
TEST(limits_of_lengths) {
  static char text[10000];
  for (int more = 0; more < 2; more++) {
    memset(text, 'x', 1023 + (size_t)more);
    text[1023 + more] = 0;
    ck_assert_int_eq(refused_for(text, "at most 1023 are possible"), more);
    memset(text, ' ', 8191 + (size_t)more);
    memcpy(text, "2xcpu", 5);
    text[8191 + more] = 0;
    ck_assert_int_eq(refused_for(text, "longer than 8191 characters"), more);
    ck_assert_int_eq(refused_for(text, NULL), more);
    strcpy(text, "1xcpu nic=1x100");
    for (int i = 1; i < 64 + more; i++) strcat(text, " and 1xcpu nic=1x100");
    ck_assert_int_eq(refused_for(text, "there are 64 kinds of hosts already"), more);
    ck_assert_int_eq(refused_for(text, NULL), more);
  }
  for (int n = 512; n <= 513; n++) { /* in words of at most 1023 bytes: two short numbers are 4 bytes */
    strcpy(text, "2xv100 links=");
    for (int i = 0; i < n; i++) strcat(text, i ? ",0-1" : "0-1");
    ck_assert(refused_for(text, "at most 1023"));
  }
}

TEST(leaves_and_spines) {
  static const struct {
    const char *text;
    int leaf, spines;
  } rows[] = {{"2xcpu nic=8x100 fabric=rail", 0, 1},
              {"2xcpu nic=1x100 fabric=fattree", 32, 32},
              {"2xcpu nic=32x100 fabric=fattree", 1, 32},
              {"2xcpu nic=33x100 fabric=fattree", 1, 33},
              {"2xcpu nic=5x100 fabric=fattree", 6, 30},
              {"2xcpu nic=5x100 fabric=fattree,oversub=4", 6, 8},
              {"2xcpu nic=8x100 fabric=rail,fattree", 32, 32},
              {"2xcpu nic=8x100 fabric=rail,leaf=7,oversub=2", 7, 4},
              {"2xcpu nic=8x100 fabric=leaf=3", 3, 24},
              {"2xcpu nic=8x100 fabric=spines=5", 4, 5},
              {"2xcpu nic=0 fabric=fattree", 1, 1},
              {"2xcpu nic=0 fabric=leaf=9", 9, 9}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    hk_cluster *c = make(rows[i].text);
    ck_assert_msg(c->fabric.hosts_per_leaf == rows[i].leaf && c->fabric.spines == rows[i].spines, "%s: %d, %d",
                  rows[i].text, c->fabric.hosts_per_leaf, c->fabric.spines);
  }
}

/* All parts are listed, in lines that are as full as they may be. */
TEST(help) {
  char *text = NULL, *line, *next;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  hk_synth_help(f);
  fclose(f);
  for (unsigned i = 0; i < hk_gpu_part_count + hk_cpu_part_count; i++) {
    char name[40];
    snprintf(name, sizeof name, " %s",
             i < hk_gpu_part_count ? hk_gpu_parts[i].name : hk_cpu_parts[i - hk_gpu_part_count].name);
    const char *at = strstr(text, name);
    while (at && !strchr(",\n", at[strlen(name)])) at = strstr(at + 1, name);
    ck_assert_msg(at, "%s", name);
  }
  for (line = strstr(text, "\nGPU:") + 1; *line != '\n' && line[1] != ' '; line = next + 1) {
    next = strchr(line, '\n');
    size_t n = (size_t)(next - line), word = strcspn(next + 2, " \n");
    ck_assert_msg(n <= 98, "%.*s", (int)n, line);
    if (next[-1] == ',') ck_assert_msg(n + word > 96, "%.*s", (int)n, line);
    if (next[-1] != ',') break;
  }
  free(text);
}

TEST(parts_table) {
  for (unsigned i = 0; i < hk_gpu_part_count; i++) {
    const hk_gpu_part *p = &hk_gpu_parts[i];
    ck_assert_ptr_eq(hk_gpu_part_find(p->name), p);
    if (!strcmp(p->name, "gpu")) continue; /* any */
    ck_assert_msg(p->memory_gbps > 0 && hk_pci_gbps(hk_pci_gts(p->pci_gen), p->pci_width) > 0, "%s", p->name);
    ck_assert_msg(!p->links || hk_nvlink_gbps(p->sm) > 0, "%s", p->name);
  }
  for (unsigned i = 0; i < hk_cpu_part_count; i++) {
    const hk_cpu_part *p = &hk_cpu_parts[i];
    hk_cpu_info info = {.family = p->family, .model = p->model};
    snprintf(info.arch, sizeof info.arch, "%s", p->arch);
    snprintf(info.vendor, sizeof info.vendor, "%s", p->vendor);
    ck_assert_float_eq(hk_cpu_link_gbps(&info), p->link_gbps);
  }
  ck_assert(hk_cpu_link_gbps(&(hk_cpu_info){0}) > 0);
  ck_assert_ptr_null(hk_gpu_part_find("h1000"));
}

/* A file's own rates stay; PCI links without one are as usual for the GPU in words, and nothing else is guessed. */
TEST(files_in_words) {
  static const char text[] =
      "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">"
      "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"8\">"
      "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/></pci>"
      "<pci busid=\"0000:02:00.0\" class=\"0x030200\"><gpu dev=\"1\" sm=\"80\" rank=\"1\" gdr=\"1\"/></pci>"
      "<nic><net name=\"veth0\" dev=\"0\" speed=\"50000\" port=\"0\" guid=\"0x1\" gdr=\"0\"/></nic></cpu></system>";
  char path[] = "/tmp/hocket-synth-XXXXXX.xml", words[100];
  int fd = mkstemps(path, 4);
  ck_assert_int_eq(write(fd, text, sizeof text - 1), sizeof text - 1);
  close(fd);
  for (int pci = 4; pci <= 5; pci++) {
    snprintf(words, sizeof words, "%s as 2xa100:pairs pci=%d", path, pci);
    hk_cluster *c = make(words);
    const hk_topo *t = c->kinds[0];
    const uint32_t cpu = t->first_of[HK_NODE_CPU], gpu = t->first_of[HK_NODE_GPU], nic = t->first_of[HK_NODE_NIC];
    ck_assert_float_eq(gbps_between(t, cpu, gpu), hk_pci_gbps(16, 8));
    ck_assert_float_eq(gbps_between(t, cpu, gpu + 1), hk_pci_gbps(hk_pci_gts(pci), 16));
    ck_assert_float_eq(gbps_between(t, cpu, nic), HK_NIC_VIRTUAL_GBPS);
    ck_assert_float_eq(gbps_between(t, nic, t->first_of[HK_NODE_NET]), hk_port_gbps(50000));
    ck_assert_uint_eq(links_at(t, gpu), 12);
  }
  unlink(path);
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("synth", .teardown = forget);
}
