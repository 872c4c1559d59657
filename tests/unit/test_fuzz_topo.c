/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Random machine strings and damaged XML.  Whatever is taken is a finished topology that is written and read back the
 * same; whatever is not gets a message.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include <string.h>
#include "../../src/topo/synth.h"
#include "../../src/topo/xml.h"
#include "../support/fuzz.h"
#include "../support/scratch.h"
#include "../support/suite.h"

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
  static const char *const heads[] = {"dgx-h100",    "nvl72",         "mi300x",      "8xh100",  "4xl40s:pcie2",
                                      "8xv100:cube", "3xa100:mesh",   "2xcpu",       "5xgb200", "1xl4",
                                      "16xv100",     "7xmi300x:mesh", "6xh100:pairs"};
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
  if (!rnd(4)) n += (size_t)snprintf(out + n, size - n, " fabric=rail,fattree,oversub=%u,spines=%u", rnd(5), rnd(9));
  for (uint32_t k = rnd(3) ? 0 : rnd(6); k && n; k--) out[rnd((uint32_t)n)] = (char)(1 + rnd(255));
}

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

START_TEST(damaged_graphs) {
  static const char good[] =
      "<graphs version=\"1\">\n <graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"2\" speedintra=\"12\" "
      "speedinter=\"12\" typeintra=\"PIX\" typeinter=\"PHB\" samechannels=\"0\">\n"
      "  <channel>\n<net dev=\"0\"/>\n<gpu dev=\"0\"/>\n<gpu dev=\"1\"/>\n<gpu dev=\"2\"/>\n<net dev=\"0\"/>\n"
      "</channel>\n"
      "  <channel>\n<gpu dev=\"2\"/>\n<gpu dev=\"1\"/>\n<gpu dev=\"0\"/>\n</channel>\n </graph>\n</graphs>\n";
  hk_cluster *c;
  uint32_t nodes[3];
  fuzz_begin();
  scratch_make();
  ck_assert_int_eq(hk_cluster_from_string(&c, "3xl4 nic=1x100"), HK_OK);
  for (uint32_t i = 0; i < 3; i++) nodes[i] = c->kinds[0]->first_of[HK_NODE_GPU] + i;
  hk_search what = {.nodes = nodes, .nranks = 3};
  do {
    char *text = strdup(good);
    size_t size = strlen(good);
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
  tcase_add_test(t, machine_strings);
  tcase_add_test(t, damaged_xml);
  tcase_add_test(t, damaged_file_over_detection);
  tcase_add_test(t, damaged_graphs);
  return suite_run_one("fuzz_topo", t);
}
