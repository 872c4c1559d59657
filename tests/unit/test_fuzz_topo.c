/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Random machine strings and damaged XML.  Whatever is taken is a finished topology that is written and read back the
 * same; whatever is not gets a message.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include "../support/scratch.h"
#include "../support/suite.h"
#include "../support/topo_damage.h"

#define SEED (unsigned long long)fuzz_seed

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

TEST(machine_strings) {
  fuzz_begin(3000);
  unsigned good = 0;
  do {
    char text[400];
    hk_cluster *c;
    any_machine(text, sizeof text);
    if (hk_cluster_from_string(&c, text) != HK_OK) {
      ck_assert_msg(!c && hk_last_error()[0], "seed %llu: \"%s\"", SEED, text);
      continue;
    }
    good++;
    for (int k = 0; k < c->nkinds; k++) check_topology(c->kinds[k], text);
    ck_assert_msg(c->nhosts > 0 && c->fabric.oversub >= 1 && c->fabric.spines >= 1, "seed %llu: \"%s\"", SEED, text);
    hk_cluster_free(c);
  } while (fuzz_goes_on());
  printf("%u strings are machines\n", good);
}

/* --- XML --- */

typedef struct told {
  int errors, all;
} told;
static void tell(void *arg, const hk_xml_finding *f) {
  told *t = arg;
  ck_assert_msg(f->line >= 0 && f->column >= 0 && f->text[0], "seed %llu", SEED);
  t->errors += f->error;
  t->all++;
}

TEST(damaged_xml) {
  fuzz_begin(3000);
  unsigned good = 0;
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
  } while (fuzz_goes_on());
  printf("%u damaged files are taken\n", good);
}

TEST(damaged_file_over_detection) {
  fuzz_begin(1200);
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

TEST(damaged_graphs) {
  hk_cluster *c;
  uint32_t nodes[3];
  fuzz_begin(7000);
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

int main(void) {
  if (!hk_xml_available()) {
    puts("SKIP: expat is not installed (libexpat1), so that no XML is read");
    return 77;
  }
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("fuzz_topo");
}
