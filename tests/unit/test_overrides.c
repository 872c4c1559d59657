/* SPDX-License-Identifier: Apache-2.0 */
/* The user's settings: tuning files, measured constants, channels, levels; what is wrong is said with its place. */
#include "../../src/base/param.h"
#include "../../src/decide/overrides.h"
#include "../../src/decide/rules.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/changed.h"
#include "../support/golden.h"
#include "../support/outlines.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/settings.txt"

static hk_machine host(int nranks) {
  hk_host_facts f = {.team.nranks = nranks,
                     .team.nhosts = 1,
                     .team.ranks_per_host = nranks,
                     .team.least_per_host = nranks,
                     .cores_per_host = 2,
                     .memory = true,
                     .team.multicast = true,
                     .slot_bytes = 131072};
  return with_outlines(hk_machine_of_hosts(&f, NULL));
}

static hk_decision decide(const hk_rules *r, const hk_machine *m, hk_coll coll, size_t bytes) {
  hk_filter w = {.rules = r};
  hk_decision d;
  ck_assert_int_eq(hk_select(m, &w, coll, bytes, &d), HK_OK);
  return d;
}

TEST(rules_in_order) {
  hk_rules *r;
  hk_machine m = host(8);
  ck_assert_int_eq(hk_rules_parse(&r, "file",
                                  "# comment\n"
                                  "allreduce, 0, 64K, 8, 1, tree, *, *   # first that fits\n"
                                  "\n"
                                  "AllReduce,0,*,4,*,ring,simple,*\r\n"
                                  "*,1M,*,*,*,ring,Simple,2\n"
                                  "*,*,*,*,*,flat,*,*",
                                  hk_algorithms),
                   HK_OK);
  ck_assert_int_eq(r->n, 4);
  ck_assert_str_eq(decide(r, &m, HK_ALLREDUCE, 64 << 10).algorithm->name, "tree");
  ck_assert_str_eq(decide(r, &m, HK_ALLREDUCE, (64 << 10) + 1).algorithm->name, "flat");
  hk_decision d = decide(r, &m, HK_ALLGATHER, 1 << 20);
  ck_assert_str_eq(d.algorithm->name, "ring");
  ck_assert_int_eq(d.channels, 2);
  ck_assert(d.ruled && strstr(d.note, "tuning file"));
  d = decide(r, &m, HK_BROADCAST, 1 << 20); /* neither ring nor flat can: the model decides */
  ck_assert(!d.ruled && !d.note);
  m = host(4);
  ck_assert_str_eq(decide(r, &m, HK_ALLREDUCE, 8).algorithm->name, "ring");
  hk_rules_free(r);
}

TEST(rules_wrong) {
  static const struct {
    const char *text, *said;
  } cases[] = {{"allreduce,0,1,2,3,ring,LL", "file:1: 7 fields"},
               {"\n\nallreduce,0,1,2,3,ring,LL,1,9", "file:3: 9 fields"},
               {"allredu,0,1,2,3,ring,LL,1", "file:1: field 1 (collective) is \"allredu\""},
               {"*,0,1,2,3,rign,LL,1", "field 6 (algorithm) is \"rign\""},
               {"*,0,1,2,3,ring,LLL,1", "field 7 (protocol)"},
               {"*,x,1,2,3,ring,LL,1", "field 2 (bytes from) is \"x\""},
               {"*,1,1Q,2,3,ring,LL,1", "field 3 (bytes to)"},
               {"*,-1,1,2,3,ring,LL,1", "field 2"},
               {"*,2M,1M,2,3,ring,LL,1", "less than the rule's first size"},
               {"*,0,99999999999G,2,3,ring,LL,1", "field 3"},
               {"*,0,1,0,3,ring,LL,1", "field 4 (ranks)"},
               {"*,0,1,2,524288,ring,LL,1", "field 5 (hosts)"},
               {"*,0,1,2,3,ring,LL,many", "field 8 (channels)"},
               {"broadcast,0,1,2,3,ring,LL,1", "no program for that collective"}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    hk_rules *r;
    ck_assert_int_eq(hk_rules_parse(&r, "file", cases[i].text, hk_algorithms), HK_ERR_ARGUMENT);
    ck_assert_ptr_null(r);
    ck_assert_msg(strstr(hk_last_error(), cases[i].said) != NULL, "\"%s\": %s", cases[i].text, hk_last_error());
  }
  hk_rules *r;
  ck_assert_int_eq(hk_rules_read(&r, "/no/such/file", hk_algorithms), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "HOCKET_TUNING_FILE: /no/such/file"));
}

static void put(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fputs(text, f);
  fclose(f);
}

TEST(constants) {
  char dir[] = "/tmp/hocket-test-XXXXXX", path[128];
  ck_assert_ptr_nonnull(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/tune.conf", dir);
  hk_constants k = hk_constants_default, back;
  k.memory_alpha_us = 0.4;
  k.tcp_us_per_b = 1.0 / 2500;
  k.copy_us_per_b = 1.0 / 12000;
  FILE *f = fopen(path, "w");
  ck_assert_int_eq(hk_constants_write(&k, f), HK_OK);
  fclose(f);
  ck_assert_int_eq(hk_constants_read(&back, path), HK_OK);
  ck_assert_double_eq_tol(back.memory_alpha_us, 0.4, 1e-9);
  ck_assert_double_eq_tol(back.copy_us_per_b * 12000, 1, 1e-5);
  ck_assert_double_eq_tol(back.tcp_us_per_b * 2500, 1, 1e-5);
  /* The network counts as measured if the file has it, whatever the values. */
  ck_assert(!back.net_measured);
  k.net_measured = 1;
  f = fopen(path, "w");
  ck_assert_int_eq(hk_constants_write(&k, f), HK_OK);
  fclose(f);
  ck_assert_int_eq(hk_constants_read(&back, path), HK_OK);
  ck_assert(back.net_measured);
  ck_assert_double_eq(back.net_us_per_b, hk_constants_default.net_us_per_b);
  put(path, "switch_us = 3\n");
  ck_assert_int_eq(hk_constants_read(&back, path), HK_OK);
  ck_assert_double_eq(back.switch_us, 3);
  ck_assert_double_eq(back.tcp_alpha_us, hk_constants_default.tcp_alpha_us);
  hk_overrides o;
  setenv("HOCKET_TUNE_FILE", path, 1);
  hk_param_reload();
  ck_assert_int_eq(hk_overrides_read(&o, hk_settings_now(), 0, 0), HK_OK);
  ck_assert(o.tuned);
  ck_assert_double_eq(o.constants.switch_us, 3);
  static const char *const wrong[] = {"switch_us = fast", "switch_us = -1", "switch = 3", "copy_mb_s 3",
                                      "copy_mb_s = nan"};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(wrong); i++) {
    char text[80];
    snprintf(text, sizeof text, "# fine\n%s\n", wrong[i]);
    put(path, text);
    ck_assert_int_eq(hk_constants_read(&back, path), HK_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(hk_last_error(), "tune.conf:2: "));
  }
  unlink(path);
  rmdir(dir);
}

typedef struct setting {
  const char *name, *value;
} setting;

static hk_status read_with(hk_overrides *o, const setting *s, int min, int max) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  for (; s->name; s++) setenv(s->name, s->value, 1);
  hk_param_reload();
  return hk_overrides_read(o, hk_settings_now(), min, max);
}

TEST(settings) {
  hk_overrides o, p;
  ck_assert_int_eq(read_with(&o, (setting[]){{NULL, NULL}}, 0, 0), HK_OK);
  ck_assert_int_eq(o.filter.min_channels, 0);
  ck_assert_int_eq(o.settings->CROSS_NIC, 2);
  ck_assert(!o.tuned && !o.paths.no_p2p);
  ck_assert_int_eq(read_with(&p,
                             (setting[]){{"NCCL_MIN_NCHANNELS", "2"},
                                         {"NCCL_MAX_NCHANNELS", "8"},
                                         {"NCCL_P2P_LEVEL", "sys"},
                                         {"NCCL_NET_GDR_LEVEL", "PHB"},
                                         {"NCCL_CROSS_NIC", "1"},
                                         {NULL, NULL}},
                             4, 16),
                   HK_OK);
  ck_assert_int_eq(p.filter.min_channels, 4);
  ck_assert_int_eq(p.filter.max_channels, 8);
  ck_assert_int_eq(p.paths.p2p_level, HK_PATH_SYS);
  ck_assert_int_eq(p.gdr_level, HK_PATH_PHB);
  /* Each setting shows in its own line of the agreement, and in no other. */
  static const bool differs[HK_AGREE_COUNT] = {[HK_AGREE_CHANNELS] = true,
                                               [HK_AGREE_CROSS_NIC] = true,
                                               [HK_AGREE_P2P_LEVEL] = true,
                                               [HK_AGREE_GDR_LEVEL] = true};
  for (int i = 0; i < HK_AGREE_COUNT; i++) {
    ck_assert_int_eq(o.agreement[i] != p.agreement[i], differs[i]);
    ck_assert_ptr_nonnull(hk_consistency_names[i]);
  }
  hk_overrides_clear(&o);
  hk_overrides_clear(&p);
  ck_assert_int_eq(read_with(&p, (setting[]){{"NCCL_P2P_LEVEL", "6"}, {NULL, NULL}}, 0, 0), HK_OK);
  ck_assert_int_eq(p.paths.p2p_level, HK_PATH_SYS);
  hk_overrides_clear(&p);
  ck_assert_int_eq(read_with(&p, (setting[]){{"NCCL_P2P_LEVEL", "LOC"}, {NULL, NULL}}, 0, 0), HK_OK);
  ck_assert(p.paths.no_p2p); /* not the default */
  hk_overrides_clear(&p);
}

TEST_LOOP(settings_wrong, 10) {
  static const struct {
    setting s;
    int min, max;
    const char *said;
  } cases[] = {{{"NCCL_MAX_NCHANNELS", "2"}, 4, 0, "at least 4 channels"},
               {{"NCCL_P2P_LEVEL", "FAR"}, 0, 0, "NCCL_P2P_LEVEL is \"FAR\""},
               {{"NCCL_NET_GDR_LEVEL", "NVLINK"}, 0, 0, "NCCL_NET_GDR_LEVEL is \"NVLINK\", which is no level"},
               {{"NCCL_ALGO", "ringg"}, 0, 0, "\"ringg\" is no algorithm"},
               {{"NCCL_ALGO", "allreduce:"}, 0, 0, "NCCL_ALGO: \"allreduce:\" names no algorithm"},
               {{"NCCL_ALGO", "tree;allreduce:^"}, 0, 0, "NCCL_ALGO: \"allreduce:^\" names no algorithm"},
               {{"NCCL_ALGO", ","}, 0, 0, "NCCL_ALGO: \",\" names no algorithm"},
               {{"NCCL_PROTO", "broadcast: "}, 0, 0, "NCCL_PROTO: \"broadcast: \" names no protocol"},
               {{"HOCKET_TUNING_FILE", "/no/such"}, 0, 0, "/no/such cannot be read"},
               {{"HOCKET_TUNE_FILE", "/no/such"}, 0, 0, "/no/such cannot be read"}};
  hk_overrides o;
  const setting both[] = {cases[_i].s, {NULL, NULL}};
  ck_assert_int_eq(read_with(&o, both, cases[_i].min, cases[_i].max), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), cases[_i].said));
  hk_overrides_clear(&o);
}

/* ---- machines ---- */

static hk_machine machine_of(const char *words, const hk_overrides *o) {
  hk_cluster *c;
  hk_placement *placements;
  hk_machine m;
  int n;
  ck_assert_int_eq(hk_cluster_from_string(&c, words), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(c, 0, &placements, &n), HK_OK);
  ck_assert_int_eq(hk_machine_of(&m, c, placements, n, NULL, o), HK_OK);
  free(placements);
  hk_cluster_free(c);
  return with_outlines(m);
}

TEST(machines) {
  hk_machine h100 = machine_of("dgx-h100", NULL), two = machine_of("nodes=2 of dgx-a100", NULL);
  ck_assert(h100.team.overlap && h100.team.multicast && h100.team.in_switch);
  ck_assert_int_eq(h100.team.nranks, 8);
  ck_assert_uint_eq(h100.protocols, 7);
  ck_assert_double_eq_tol(1e-3 / h100.inside.ring_us_per_b, 370, 20);
  ck_assert_int_eq(two.team.nhosts, 2);
  ck_assert_int_eq(two.team.least_per_host, 8);
  ck_assert_double_eq_tol(1e-3 / two.between.ring_us_per_b, 195, 8);
  hk_machine pcie = machine_of("8xa100:pcie2", NULL);
  ck_assert_double_gt(pcie.inside.mesh_us_per_b, 10 * h100.inside.mesh_us_per_b);
  ck_assert_uint_eq(pcie.protocols >> HK_PROTO_LL128 & 1u, 0);
  hk_machine cpus = machine_of("nodes=3 of 2xcpu cores=32 nic=1x100", NULL);
  ck_assert_int_eq(cpus.cores_per_host, 64);
  ck_assert_uint_eq(cpus.protocols, 1);
  ck_assert(!cpus.team.multicast && !cpus.team.overlap);
}

/* Without GPUDirect a message to the network waits for host memory, and is no faster. */
TEST(gdr_level) {
  hk_overrides o = {.settings = hk_settings_now(), .gdr_level = HK_PATH_LOC, .constants = hk_constants_default};
  hk_machine with = machine_of("nodes=2 of dgx-a100", NULL), without = machine_of("nodes=2 of dgx-a100", &o);
  ck_assert_double_gt(without.between.alpha_us, with.between.alpha_us);
  ck_assert_double_ge(without.between.ring_us_per_b, with.between.ring_us_per_b);
}

/* What anybody expects of the choice on machines with GPUs. */
TEST(gpu_choices) {
  hk_machine one = machine_of("dgx-h100", NULL),
             many = machine_of("nodes=256 of dgx-h100 fabric=rail,fattree,oversub=2", NULL);
  hk_decision d;
  ck_assert_int_eq(hk_select(&one, NULL, HK_ALLREDUCE, 1024, &d), HK_OK);
  ck_assert_int_eq(d.protocol, HK_PROTO_LL);
  ck_assert_int_eq(hk_select(&one, NULL, HK_ALLREDUCE, (size_t)1 << 30, &d), HK_OK);
  ck_assert_str_eq(d.algorithm->name, "nvls");
  ck_assert_int_eq(d.protocol, HK_PROTO_SIMPLE);
  ck_assert_int_gt(d.channels, 4);
  double nvls = d.us;
  hk_filter w = {.max_channels = 0};
  ck_assert_int_eq(hk_filter_parse(&w, "ring", NULL), HK_OK);
  ck_assert_int_eq(hk_select(&one, &w, HK_ALLREDUCE, (size_t)1 << 30, &d), HK_OK);
  ck_assert_double_gt(d.us, 1.2 * nvls);
  ck_assert_int_eq(hk_select(&many, NULL, HK_ALLREDUCE, (size_t)1 << 30, &d), HK_OK);
  ck_assert_str_eq(d.algorithm->name, "hiertree");
  ck_assert_int_eq(hk_select(&many, NULL, HK_ALLTOALL, (size_t)1 << 30, &d), HK_OK);
  ck_assert_str_eq(d.algorithm->name, "rail");
}

/* ---- any text: what is read of it, or what is wrong, with one change ---- */

static const char *const rule_words[] = {",", "*",    "K",     "M",          "allreduce", "Broadcast", "tree",
                                         "0", "ring", "65535", "4294967296", "LL128",     " ",         "#"};
static void say_rules(void *arg, const char *name, unsigned k, char *said) {
  static const char text[] = "allreduce, 0, 64K, 8, 1, tree, *, *   # first that fits\n"
                             "AllGather,0,*,4,*,ring,simple,*\n"
                             "*,1M,3MB,*,2,*,LL,2\n"
                             "*,70000,18446744073709551615,*,*,ring,LL128,65535\n";
  uint64_t seed = golden_hash(k, name, strlen(name));
  char *other = changed(text, rule_words, HK_ARRAY_LENGTH(rule_words), &seed);
  hk_rules *r = NULL;
  (void)arg;
  int n = snprintf(said, GOLDEN_TEXT, "%d", hk_rules_parse(&r, "file", other, hk_algorithms));
  if (!r) snprintf(said + n, GOLDEN_TEXT - (size_t)n, " %s", hk_last_error());
  if (r) n += snprintf(said + n, GOLDEN_TEXT - (size_t)n, " %llx", (unsigned long long)hk_rules_hash(r));
  for (int i = 0; r && i < r->n; i++) n += snprintf(said + n, GOLDEN_TEXT - (size_t)n, " to %zu", r->at[i].to);
  hk_rules_free(r);
  free(other);
}

static const char *const wish_words[] = {"^", ",", ";", ":", "ring", "TREE", " ", "allreduce:", "collnetdirect", "x"};
static void say_wishes(void *arg, const char *name, unsigned k, char *said) {
  static const char *const texts[] = {"ring,tree;allreduce:^ring , pat;alltoall:pairwise",
                                      "^nvlstree,CollNetChain;flat", "broadcast:chain;^direct",
                                      "LL,simple;reduce:^LL128 ;gather:ll"};
  uint64_t seed = golden_hash(k, name, strlen(name));
  char *other = changed(texts[k % 4], wish_words, HK_ARRAY_LENGTH(wish_words), &seed);
  hk_filter w = {0};
  (void)arg;
  hk_status rc = k % 4 == 3 ? hk_filter_parse(&w, NULL, other) : hk_filter_parse(&w, other, "Simple");
  int n = snprintf(said, GOLDEN_TEXT, "%d %s", rc, rc ? hk_last_error() : "");
  for (int c = 0; rc == HK_OK && c < HK_COLL_COUNT; c++)
    n += snprintf(said + n, GOLDEN_TEXT - (size_t)n, " %x.%x", w.barred[c], w.barred_protocols[c]);
  free(other);
}

static const char *const constant_words[] = {"=",   " ",    "#",   "memory_alpha_us", "tcp_mb_s", "choice", "sockets",
                                             "1e9", "ring", "nan", "memory",          "0x",       "e-9"};
static void say_constants(void *arg, const char *name, unsigned k, char *said) {
  const char *text = arg;
  char path[] = "/tmp/hocket-test-XXXXXX", *out = NULL;
  uint64_t seed = golden_hash(k, name, strlen(name));
  char *other = k ? changed(text, constant_words, HK_ARRAY_LENGTH(constant_words), &seed) : strdup(text);
  size_t size;
  hk_constants c;
  close(mkstemp(path));
  put(path, other);
  hk_status rc = hk_constants_read(&c, path);
  unlink(path);
  FILE *f = open_memstream(&out, &size);
  if (rc == HK_OK) hk_constants_write(&c, f);
  fclose(f);
  snprintf(said, GOLDEN_TEXT, "%d %08x %s", rc, golden_hash(1, out, size), rc ? strstr(hk_last_error(), ":") : out);
  free(other);
  free(out);
}

TEST(texts) {
  golden g = golden_open(GOLDEN, "rules");
  char *measured = NULL, name[40];
  size_t size;
  FILE *f = open_memstream(&measured, &size);
  hk_constants all = hk_constants_default;
  all.net_measured = 1;
  hk_constants_write(&all, f);
  fclose(f);
  for (int i = 0; i < 5; i++) {
    snprintf(name, sizeof name, "rules %d", i);
    golden_texts(&g, name, name, 60, say_rules, NULL);
  }
  for (int i = 0; i < 5; i++) {
    snprintf(name, sizeof name, "wishes %d", i);
    golden_texts(&g, name, name, 60, say_wishes, NULL);
  }
  for (int i = 0; i < 6; i++) {
    snprintf(name, sizeof name, "constants %d", i);
    golden_texts(&g, name, name, 60, say_constants, measured);
  }
  free(measured);
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("overrides");
}
