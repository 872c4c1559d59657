/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of machine strings: words to hk_synth_spec and hk_fabric.  Options are rows of a table; presets are
 * strings of the same grammar. */
#include "synth.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "../base/param_names.h" /* hk_param_nearest */
#include "synth_spec.h"
#include "xml.h"

typedef struct preset {
  const char *name, *machine, *about;
} preset;
static const preset presets[] = {
#define HK_PRESET(...) {__VA_ARGS__},
#include "synth_presets.def"
#undef HK_PRESET
};

enum { WORD = 1024, TEXT = 8192 };
typedef struct reader {
  const char *text, *at; /* `at`: after the current word */
  const char *begin;     /* of the current word */
  char word[WORD];       /* a copy; empty at the end */
} reader;

/* Moves to the next word. */
static hk_status synth_next(reader *r) {
  while (isspace((unsigned char)*r->at)) r->at++;
  r->begin = r->at;
  size_t n = strcspn(r->at, " \t\r\n\v\f");
  r->at += n;
  if (n >= WORD)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "machine: the word \"%.20s...\" at position %zu has %zu characters; at most %d are possible",
                   r->begin, (size_t)(r->begin - r->text) + 1, n, WORD - 1);
  memcpy(r->word, r->begin, n);
  r->word[n] = 0;
  return HK_OK;
}

/* `part` points into r->word. */
static hk_status synth_wrong(const reader *r, const char *part, const char *could) {
  size_t position = (size_t)(r->begin - r->text) + (size_t)(part - r->word) + 1;
  if (!*part) return HK_FAIL(HK_ERR_ARGUMENT, "machine: the text ends at position %zu; expected: %s", position, could);
  return HK_FAIL(HK_ERR_ARGUMENT, "machine: \"%.40s\" at position %zu; expected: %s", part, position, could);
}

/* As synth_wrong(), and suggests the nearest of `names`: "nic=" for "nc=3". */
static hk_status synth_unknown(const reader *r, const char *part, const char *could, const char *const *names,
                               size_t n) {
  unsigned distance;
  char text[700], key[sizeof r->word];
  snprintf(key, sizeof key, "%.*s", (int)(strcspn(part, "=") + 1), part);
  const char *near = hk_param_nearest(key, names, n, &distance);
  if (!near || !hk_param_misspelt(key, distance)) return synth_wrong(r, part, could);
  snprintf(text, sizeof text, "%s (did you mean %s?)", could, near);
  return synth_wrong(r, part, text);
}

/* A whole number at *at, which is moved after it. */
static bool synth_number(const char **at, long min, long max, long *out) {
  if (!isdigit((unsigned char)**at)) return false;
  long v = 0;
  for (; isdigit((unsigned char)**at); (*at)++) {
    v = v * 10 + (**at - '0');
    if (v > max) return false;
  }
  *out = v;
  return v >= min;
}

/* "0.25"; no signs, exponents or hexadecimal. */
static bool synth_decimal(const char **at, float min, float max, float *out) {
  double v = 0, unit = 1;
  bool any = false;
  for (; isdigit((unsigned char)**at); (*at)++, any = true) v = v < 1e12 ? v * 10 + (**at - '0') : v;
  if (**at == '.')
    for ((*at)++; isdigit((unsigned char)**at); (*at)++, any = true) v += (**at - '0') * (unit /= 10);
  *out = (float)v;
  return any && *out >= min && *out <= max; /* as a float: the limit 0.1 is one */
}

static hk_status synth_whole(const reader *r, const char *value, const char *what, long min, long max, int *out) {
  const char *at = value;
  char could[120];
  long v;
  if (synth_number(&at, min, max, &v) && !*at) {
    *out = (int)v;
    return HK_OK;
  }
  snprintf(could, sizeof could, "%s, a number from %ld to %ld", what, min, max);
  return synth_wrong(r, value, could);
}

/* --- Options --- */

static hk_status synth_take_cpu(const reader *r, const char *value, hk_synth_spec *s) {
  const char *at = value, *names[32];
  char list[400] = "[Nx]";
  long n = 0;
  if (!synth_number(&at, 1, HK_SYNTH_GPUS, &n) || *at++ != 'x') at = value, n = 0;
  s->cpu = hk_cpu_part_find(at);
  if (n) s->sockets = (int)n;
  if (s->cpu) return HK_OK;
  for (unsigned i = 0; i < hk_cpu_part_count && i < HK_ARRAY_LENGTH(names); i++) {
    names[i] = hk_cpu_parts[i].name;
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
  }
  return synth_unknown(r, at, list, names, hk_cpu_part_count);
}

static hk_status synth_take_nic(const reader *r, const char *value, hk_synth_spec *s) {
  const char *at = value;
  long n;
  if (!synth_number(&at, 0, HK_SYNTH_GPUS, &n)) return synth_wrong(r, value, "NxGBIT such as 8x400, or 0 for none");
  s->nnics = (int)n;
  if (!*at && !n) return HK_OK;
  if (*at != 'x') return synth_wrong(r, at, "\"x\" and Gb/s, as in 8x400");
  const char *speed = ++at;
  if (!synth_decimal(&at, 0.1f, 100000, &s->gbit) || *at)
    return synth_wrong(r, speed, "Gb/s of a NIC, from 0.1 to 100000");
  return HK_OK;
}

static hk_status synth_take_net(const reader *r, const char *value, hk_synth_spec *s) {
  s->ethernet = !strcmp(value, "eth");
  return s->ethernet || !strcmp(value, "ib") ? HK_OK : synth_wrong(r, value, "ib, eth");
}

static hk_status synth_take_links(const reader *r, const char *value, hk_synth_spec *s) {
  const char *at = value, *from;
  if (s->joined) return synth_wrong(r, r->word, "no links= here: the GPUs are joined by the word after \":\" already");
  s->nwires = 0;
  s->join = HK_JOIN_WIRES;
  for (;;) {
    long a, b, count = 1;
    from = at;
    if (!synth_number(&at, 0, HK_SYNTH_GPUS - 1, &a) || *at++ != '-' || !synth_number(&at, 0, HK_SYNTH_GPUS - 1, &b) ||
        a == b)
      return synth_wrong(r, from, "A-B or A-B*COUNT, two different GPUs");
    if (*at == '*') {
      from = ++at;
      if (!synth_number(&at, 1, 64, &count)) return synth_wrong(r, from, "how many links, 1 to 64");
    }
    if (s->nwires >= HK_SYNTH_WIRES) return synth_wrong(r, from, "the end: 512 links are the most");
    s->wires[s->nwires++] = (hk_synth_wire){(uint16_t)a, (uint16_t)b, (uint16_t)count};
    if (!*at) return HK_OK;
    if (*at++ != ',') return synth_wrong(r, at - 1, "a comma and the next link, or the end of the word");
  }
}

/* LINKS or LINKSxGBPS */
static hk_status synth_take_nvlink(const reader *r, const char *value, hk_synth_spec *s) {
  const char *at = value;
  long n;
  bool good = synth_number(&at, 1, 64, &n);
  if (good && *at == 'x') at++, good = synth_decimal(&at, 0.1f, 10000, &s->link_gbps);
  if (!good || *at) return synth_wrong(r, value, "links a GPU, 1 to 64, or with the GB/s of one, as in 18x20.6");
  s->nvlink = (int)n;
  return HK_OK;
}

typedef struct option {
  const char *key;
  hk_status (*take)(const reader *r, const char *value, hk_synth_spec *s); /* NULL: a number */
  const char *what;
  size_t offset;
  int min, max;
} option;
#define NUMBER(key, field, what, min, max)                                                                             \
  { key, NULL, what, offsetof(hk_synth_spec, field), min, max }
static const option options[] = {
    {"cpu=", synth_take_cpu, "sockets and CPUs, as 2xgenoa", 0, 0, 0},
    {"nic=", synth_take_nic, "NICs and their Gb/s, as 8x400; 0: none", 0, 0, 0},
    {"net=", synth_take_net, "ib or eth", 0, 0, 0},
    {"links=", synth_take_links, "exactly these links, as 0-1*2,1-2: two between GPU 0 and 1", 0, 0, 0},
    {"nvlink=", synth_take_nvlink, "links a GPU, 18, or with the GB/s of one, 18x20.6", 0, 0, 0},
    NUMBER("sm=", sm, "a GPU's compute capability, 90, or AMD's gfx number, 942", 30, 1999),
    NUMBER("memory=", memory, "a GPU's memory bandwidth in GB/s", 1, 1000000),
    NUMBER("numa=", numa, "NUMA nodes a socket", 1, 64),
    NUMBER("cores=", cores, "cores a NUMA node", 1, 1024),
    NUMBER("pci=", pci, "a PCI generation", 1, 6),
    NUMBER("switch=", nswitch, "PCI switches", 0, HK_SYNTH_GPUS),
    NUMBER("gdr=", gdr, "whether NICs reach GPU memory", 0, 1),
    NUMBER("trays=", trays, "hosts that share the NVLinks", 1, HK_SYNTH_GPUS),
};
#define OPTION_WORDS "cpu=, numa=, cores=, pci=, switch=, nic=, net=, gdr=, nvlink=, links=, sm=, memory=, trays="

static hk_status synth_take_option(const reader *r, hk_synth_spec *s) {
  const char *names[HK_ARRAY_LENGTH(options)];
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(options); i++) {
    const option *o = &options[i];
    size_t n = strlen(names[i] = o->key);
    if (strncmp(r->word, o->key, n)) continue;
    if (o->take) return o->take(r, r->word + n, s);
    int v = 0;
    hk_status rc = synth_whole(r, r->word + n, o->what, o->min, o->max, &v);
    if (rc == HK_OK) memcpy((char *)s + o->offset, &v, sizeof v);
    return rc;
  }
  return synth_unknown(r, r->word, OPTION_WORDS ", and, fabric=, the end", names, HK_ARRAY_LENGTH(options));
}

/* --- Machines --- */

static hk_status synth_take_join(const reader *r, const char *join, hk_synth_spec *s) {
  static const struct {
    const char *name;
    int join;
    bool counted;
  } joins[] = {{"nvswitch", HK_JOIN_NVSWITCH, true},
               {"pcie", HK_JOIN_PCIE, true},
               {"mesh", HK_JOIN_MESH, false},
               {"cube", HK_JOIN_CUBE, false},
               {"pairs", HK_JOIN_PAIRS, false}};
  const char *names[HK_ARRAY_LENGTH(joins)];
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(joins); i++) {
    size_t n = strlen(names[i] = joins[i].name);
    const char *at = join + n;
    long count = 0;
    if (strncmp(join, joins[i].name, n) || (*at && !joins[i].counted)) continue;
    if (*at && (!synth_number(&at, 1, HK_SYNTH_GPUS, &count) || *at))
      return synth_wrong(r, join + n, "how many, or nothing");
    s->join = joins[i].join;
    s->joined = true;
    if (s->join == HK_JOIN_PCIE && count) s->nswitch = (int)count;
    if (s->join == HK_JOIN_NVSWITCH) s->chips = (int)count;
    return HK_OK;
  }
  return synth_unknown(r, join, "nvswitch[CHIPS], pcie[SWITCHES], mesh, cube, pairs", names, HK_ARRAY_LENGTH(joins));
}

static hk_status synth_take_parts(reader *r, char *part, int count, hk_synth_spec *s) {
  char list[400] = "cpu", *join = strchr(part, ':');
  const char *names[64] = {"cpu"};
  if (join) *join++ = 0;
  if (!strcmp(part, "cpu") && !join) {
    s->sockets = count;
    return HK_OK;
  }
  s->gpu = hk_gpu_part_find(part);
  s->ngpus = count;
  if (s->gpu) return join ? synth_take_join(r, join, s) : HK_OK;
  for (unsigned i = 0; i < hk_gpu_part_count && i + 1 < HK_ARRAY_LENGTH(names); i++) {
    names[i + 1] = hk_gpu_parts[i].name;
    snprintf(list + strlen(list), sizeof list - strlen(list), ", %s", names[i + 1]);
  }
  return synth_unknown(r, part, list, names, hk_gpu_part_count + 1);
}

static hk_status synth_take_machine(reader *r, hk_synth_spec *s, const preset **found) {
  const char *at = r->word, *names[HK_ARRAY_LENGTH(presets)];
  char list[600] = "COUNTxGPU such as 8xh100:nvswitch4, COUNTxcpu, a file (FILE.xml), or one of ";
  long count;
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(presets); i++) {
    *found = &presets[i];
    if (!strcasecmp(r->word, names[i] = presets[i].name)) return HK_OK;
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
  }
  *found = NULL;
  if (synth_number(&at, 1, HK_SYNTH_GPUS, &count) && *at == 'x')
    return synth_take_parts(r, r->word + (at + 1 - r->word), (int)count, s);
  if (isdigit((unsigned char)*r->word))
    return synth_wrong(r, r->word, "COUNTxGPU or COUNTxcpu with a count from 1 to 576");
  return synth_unknown(r, r->word, list, names, HK_ARRAY_LENGTH(presets));
}

/* All words after the current one that belong to the machine. */
static hk_status synth_take_options(reader *r, hk_synth_spec *s) {
  HK_OR_RETURN(synth_next(r));
  while (*r->word && strcmp(r->word, "and") && strncmp(r->word, "fabric=", 7)) {
    HK_OR_RETURN(synth_take_option(r, s));
    HK_OR_RETURN(synth_next(r));
  }
  return HK_OK;
}

/* The current word and its options. Afterwards the current word is the first that does not belong to the machine. */
static hk_status synth_read_machine(reader *r, hk_synth_spec *s) {
  const preset *found;
  *s = (hk_synth_spec){.nvlink = -1, .numa = 1, .trays = 1, .nswitch = -1, .gdr = 1};
  snprintf(s->name, sizeof s->name, "%.63s", r->word);
  HK_OR_RETURN(synth_take_machine(r, s, &found));
  if (found) {
    reader inner = {.text = found->machine, .at = found->machine};
    HK_OR_RETURN(synth_next(&inner));
    HK_OR_RETURN(synth_take_machine(&inner, s, &found));
    HK_OR_RETURN(synth_take_options(&inner, s));
    s->joined = false; /* options change a preset */
  }
  return synth_take_options(r, s);
}

/* --- The fabric --- */

typedef struct fabric_words {
  bool tree;
  int leaf, spines;
} fabric_words;

static hk_status synth_take_fabric_word(const reader *r, const char *word, hk_fabric *f, fabric_words *w) {
  static const char could[] = "rail, fattree, leaf=HOSTS, oversub=X, spines=N, ecmp, adaptive, hop=US, base=US";
  static const char *const names[] = {
      "rail", "fattree", "leaf=", "oversub=", "spines=", "ecmp", "adaptive", "hop=", "base="};
  const char *value = strchr(word, '=');
  value = value ? value + 1 : "";
  if (!strcmp(word, "rail")) return f->rail = true, HK_OK;
  if (!strcmp(word, "fattree")) return w->tree = true, HK_OK;
  if (!strcmp(word, "ecmp")) return f->adaptive = false, HK_OK;
  if (!strcmp(word, "adaptive")) return f->adaptive = true, HK_OK;
  if (!strncmp(word, "leaf=", 5)) return synth_whole(r, value, "hosts at a leaf switch", 1, 65536, &w->leaf);
  if (!strncmp(word, "spines=", 7)) return synth_whole(r, value, "spine switches", 1, 65536, &w->spines);
  struct {
    const char *key, *could;
    float min, max, *to;
  } decimals[] = {{"oversub=", "bandwidth into a leaf to bandwidth up, 1 to 64", 1, 64, &f->oversub},
                  {"hop=", "microseconds of a switch, 0 to 1000", 0, 1000, &f->hop_us},
                  {"base=", "microseconds of a message, 0 to 100000", 0, 100000, &f->base_us}};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(decimals); i++) {
    if (strncmp(word, decimals[i].key, strlen(decimals[i].key))) continue;
    const char *at = value;
    if (synth_decimal(&at, decimals[i].min, decimals[i].max, decimals[i].to) && !*at) return HK_OK;
    return synth_wrong(r, value, decimals[i].could);
  }
  return synth_unknown(r, word, could, names, HK_ARRAY_LENGTH(names));
}

/* Leaf switches have 64 ports: 32 down and, without oversubscription, 32 up. */
static hk_status synth_read_fabric(reader *r, int nics, hk_fabric *f) {
  fabric_words w = {0};
  char *word = r->word + strlen("fabric=");
  for (;;) {
    size_t n = strcspn(word, ",");
    bool last = !word[n];
    word[n] = 0;
    HK_OR_RETURN(synth_take_fabric_word(r, word, f, &w));
    if (last) break;
    word += n + 1;
  }
  if (w.tree || w.leaf || w.spines) {
    int down = f->rail ? 32 : nics > 32 || nics < 1 ? 1 : 32 / nics;
    f->hosts_per_leaf = w.leaf ? w.leaf : down;
    int ports = f->rail || nics < 1 ? f->hosts_per_leaf : f->hosts_per_leaf * nics;
    f->spines = w.spines ? w.spines : (int)ceilf((float)ports / f->oversub);
  }
  return synth_next(r);
}

/* --- Clusters --- */

static hk_status synth_add_kind(hk_cluster *c, hk_topo *t, int hosts) {
  hk_topo **kinds = realloc(c->kinds, (size_t)(c->nkinds + 1) * sizeof *kinds);
  if (kinds) c->kinds = kinds;
  uint16_t *kind_of = kinds ? realloc(c->kind_of, (size_t)(c->nhosts + hosts) * sizeof *kind_of) : NULL;
  if (!kind_of) {
    hk_topo_free(t);
    return HK_FAIL_ERRNO("no memory for %d hosts", c->nhosts + hosts);
  }
  if (!c->kind_of) memset(kind_of, 0, (size_t)c->nhosts * sizeof *kind_of);
  for (int i = 0; i < hosts; i++) kind_of[c->nhosts + i] = (uint16_t)c->nkinds;
  c->kind_of = kind_of;
  c->kinds[c->nkinds++] = t;
  c->nhosts += hosts;
  return HK_OK;
}

enum { HOSTS = 1 << 20, KINDS = 64 };

static bool synth_names_file(const char *word) {
  size_t n = strlen(word);
  return strchr(word, '/') || (n > 4 && !strcmp(word + n - 4, ".xml"));
}

/* FILE [as machine] */
static hk_status synth_read_file(reader *r, hk_topo **out, int *nics) {
  hk_synth_spec s;
  hk_topo *file = NULL;
  hk_status rc;
  HK_TRY(hk_topo_read_xml(out, r->word, NULL, NULL), out);
  HK_TRY(synth_next(r), out);
  if (strcmp(r->word, "as") != 0) goto out;
  file = *out;
  HK_TRY(synth_next(r), out);
  HK_TRY(synth_read_machine(r, &s), out);
  rc = hk_synth_complete(out, file, &s);
out:
  if (*out) *nics = (int)hk_topo_count(*out, HK_NODE_NET);
  if (file && *out != file) hk_topo_free(file);
  if (rc != HK_OK && *out) hk_topo_free(*out), *out = NULL;
  return rc;
}

/* [nodes=N of] machine */
static hk_status synth_read_part(reader *r, hk_cluster **c, int *nics) {
  hk_synth_spec s;
  hk_topo *t;
  int hosts = 1, had = *c ? (*c)->nhosts : 0;
  if (!strncmp(r->word, "nodes=", 6)) {
    HK_OR_RETURN(synth_whole(r, r->word + 6, "how many hosts", 1, HOSTS - had, &hosts));
    HK_OR_RETURN(synth_next(r));
    if (strcmp(r->word, "of")) return synth_wrong(r, r->word, "of");
    HK_OR_RETURN(synth_next(r));
  }
  if (synth_names_file(r->word)) {
    HK_OR_RETURN(synth_read_file(r, &t, nics));
  } else {
    HK_OR_RETURN(synth_read_machine(r, &s));
    HK_OR_RETURN(hk_synth_build(&t, &s));
    *nics = s.nnics;
  }
  if (!*c)
    HK_OR_RETURN(hk_cluster_of(c, t, hosts));
  else
    HK_OR_RETURN(synth_add_kind(*c, t, hosts));
  return HK_OK;
}

static hk_status synth_check_kinds(const hk_cluster *c) {
  bool gpus = false;
  for (int i = 0; i < c->nkinds; i++) gpus |= hk_topo_count(c->kinds[i], HK_NODE_GPU) > 0;
  for (int i = 0; i < c->nkinds && gpus; i++)
    if (!hk_topo_count(c->kinds[i], HK_NODE_GPU))
      HK_OR_RETURN(hk_topo_remark(c->kinds[i],
                                  "hosts without GPUs and hosts with GPUs: one communicator has ranks on "
                                  "GPUs or on CPUs, so plans and simulations of both together mean little"));
  for (int i = 0; i < c->nkinds && c->nhosts > 1; i++)
    if (!hk_topo_count(c->kinds[i], HK_NODE_NET))
      return HK_FAIL(
          HK_ERR_ARGUMENT,
          "machine: %d hosts, but %s has no NICs; add them, as in nic=8x400 (to a file: FILE as 8xh100 nic=8x400)",
          c->nhosts, c->kinds[i]->name);
  return HK_OK;
}

hk_status hk_cluster_from_string(hk_cluster **out, const char *text) {
  reader r = {.text = text, .at = text};
  hk_cluster *c = NULL;
  hk_status rc;
  int nics = 0;
  *out = NULL;
  if (!text || strnlen(text, TEXT) >= TEXT)
    return HK_FAIL(HK_ERR_ARGUMENT, text ? "machine: the text is longer than %d characters" : "machine: no text",
                   TEXT - 1);
  HK_TRY(synth_next(&r), out);
  for (;;) {
    HK_TRY(synth_read_part(&r, &c, &nics), out);
    if (strcmp(r.word, "and")) break;
    if (c->nkinds >= KINDS) {
      rc = synth_wrong(&r, r.word, "the end: there are 64 kinds of hosts already");
      goto out;
    }
    HK_TRY(synth_next(&r), out);
  }
  if (*r.word) HK_TRY(synth_read_fabric(&r, nics, &c->fabric), out);
  if (*r.word) {
    rc = synth_wrong(&r, r.word, "the end of the text");
    goto out;
  }
  HK_TRY(synth_check_kinds(c), out);
  snprintf(c->name, sizeof c->name, "%.63s", text);
  *out = c;
  c = NULL;
out:
  hk_cluster_free(c);
  return rc;
}

void hk_synth_presets(FILE *to) {
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(presets); i++)
    fprintf(to, "%-12s %-50s %s\n", presets[i].name, presets[i].about, presets[i].machine);
}

static void synth_list(FILE *to, const char *what, const char *const *names, unsigned n) {
  int column = fprintf(to, "\n%s:", what);
  for (unsigned i = 0; i < n; i++) {
    if (column + (int)strlen(names[i]) > 96) column = fprintf(to, "\n ") - 1;
    column += fprintf(to, " %s%s", names[i], i + 1 < n ? "," : "\n");
  }
}

void hk_synth_help(FILE *to) {
  const char *names[64];
  unsigned n = 0;
  fputs("A machine in words, for --machine of topo, plan and sim, and as an argument of sim:\n\n"
        "  [nodes=N of] MACHINE OPTION... [and [nodes=N of] MACHINE OPTION...]... [fabric=LIST]\n\n"
        "MACHINE is one of\n"
        "  a preset          dgx-h100                   hocket topo --presets lists them\n"
        "  COUNTxGPU[:JOIN]  8xa100:nvswitch6\n"
        "  COUNTxcpu         2xcpu                      sockets without GPUs\n"
        "  FILE              topo.xml                   NCCL's XML\n"
        "  FILE as MACHINE   topo.xml as 8xv100:cube    with its GPUs, their links, and ports for NICs without one\n",
        to);
  for (; n < hk_gpu_part_count && n < HK_ARRAY_LENGTH(names); n++) names[n] = hk_gpu_parts[n].name;
  synth_list(to, "GPU", names, n);
  fputs("  A GPU that is not listed: 8xgpu:nvswitch sm=90 memory=4000 nvlink=18x20.6 pci=5\n"
        "\nJOIN: nvswitch[CHIPS], pcie[SWITCHES], mesh, cube (of 8 GPUs), pairs\n",
        to);
  for (n = 0; n < hk_cpu_part_count && n < HK_ARRAY_LENGTH(names); n++) names[n] = hk_cpu_parts[n].name;
  synth_list(to, "CPU", names, n);
  fputs("\nOPTION, which also changes a preset:\n", to);
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(options); i++) fprintf(to, "  %-9s %s\n", options[i].key, options[i].what);
  fputs("\nLIST, with commas: rail, fattree, leaf=HOSTS, oversub=X, spines=N, ecmp, adaptive, hop=US, base=US\n"
        "\ndocs/topology.md has the details, and the sources of the figures.\n",
        to);
}
