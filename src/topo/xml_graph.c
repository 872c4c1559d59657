/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's graph XML: channels as lists of NETs and GPUs. Ranks on CPUs, which NCCL does not have, are <hk_cpu>. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include "xml_build.h"

/* NCCL's numbers: id is the purpose of the graph, pattern its shape (1 to 3 are trees). */
static const struct {
  int id, pattern;
} numbers[] = {[HK_PATTERN_RING] = {0, 4}, [HK_PATTERN_TREE] = {1, 1}, [HK_PATTERN_STAR] = {3, 5}};

static bool xml_graph_is_pattern(long number, hk_pattern p) {
  return p == HK_PATTERN_TREE ? number >= 1 && number <= 3 : number == numbers[p].pattern;
}

typedef struct reader {
  hk_xml_report *r;
  const hk_topo *t;
  const hk_search *what;
  hk_channels *c;
  bool *used; /* [nranks] of one channel */
} reader;

static uint32_t xml_graph_device_node(const hk_topo *t, int dev) {
  for (uint32_t i = t->first_of[HK_NODE_GPU]; i < t->first_of[HK_NODE_GPU + 1]; i++)
    if (t->nodes[i].gpu.dev == dev) return i;
  return UINT32_MAX;
}

/* The node of a <gpu>, <hk_cpu> or <net> element; UINT32_MAX with a finding if there is none. */
static uint32_t xml_graph_named_node(const reader *b, const hk_xml_node *xml, const char *key, hk_node_kind kind) {
  uint32_t node;
  long v;
  if (!hk_xml_int(b->r, xml, key, true, 0, 65535, &v)) return UINT32_MAX;
  node = kind == HK_NODE_GPU ? xml_graph_device_node(b->t, (int)v) : hk_topo_find(b->t, kind, (uint64_t)v);
  if (node == UINT32_MAX)
    hk_xml_say(b->r, xml, true, "<%s %s=\"%ld\">: this machine has no such %s", xml->name, key, v,
               hk_node_kind_name(kind));
  return node;
}

/* Ranks on one device take their positions in the order of their numbers. */
static void xml_graph_take_rank(const reader *b, const hk_xml_node *xml, uint32_t node, hk_channel_order *c, int *n) {
  bool any = false;
  if (node == UINT32_MAX) return;
  for (int i = 0; i < b->what->nranks; i++) {
    if (b->what->nodes[i] != node) continue;
    any = true;
    if (b->used[i]) continue;
    b->used[i] = true;
    c->order[(*n)++] = (uint16_t)i;
    return;
  }
  hk_xml_say(b->r, xml, true, any ? "this channel passes the same rank twice" : "no rank is on this device");
}

static void xml_graph_read_channel(reader *b, const hk_xml_node *xml, hk_channel_order *c) {
  int n = 0, nets = 0;
  memset(b->used, 0, (size_t)b->what->nranks);
  for (const hk_xml_node *x = xml->first; x; x = x->next) {
    if (!strcmp(x->name, "net")) {
      uint32_t net = xml_graph_named_node(b, x, "dev", HK_NODE_NET);
      if (nets == 2) hk_xml_say(b->r, x, true, "a channel has at most two <net>: the way in and the way out");
      if (nets == 0) c->net_in = net;
      c->net_out = net;
      nets++;
    } else if (!strcmp(x->name, "gpu")) {
      xml_graph_take_rank(b, x, xml_graph_named_node(b, x, "dev", HK_NODE_GPU), c, &n);
    } else if (!strcmp(x->name, "hk_cpu")) {
      xml_graph_take_rank(b, x, xml_graph_named_node(b, x, "numaid", HK_NODE_CPU), c, &n);
    }
  }
  /* NCCL's stars name only the owner of the part. The other ranks follow it in their order. */
  for (int i = 0; i < b->what->nranks && n > 0 && b->c->pattern == HK_PATTERN_STAR; i++)
    if (!b->used[i]) c->order[n++] = (uint16_t)i;
  if (n != b->what->nranks)
    hk_xml_say(b->r, xml, true, "this channel passes %d of %d ranks; it must pass each once", n, b->what->nranks);
}

static hk_status xml_graph_new_channels(hk_channels **out, hk_pattern pattern, int nranks, int nchannels) {
  hk_channels *c = calloc(1, sizeof *c);
  *out = c;
  if (!c) return HK_FAIL_ERRNO("no memory for channels");
  c->pattern = (uint8_t)pattern;
  c->nranks = nranks;
  c->at = calloc((size_t)nchannels, sizeof *c->at);
  if (!c->at) return HK_FAIL_ERRNO("no memory for channels");
  for (int i = 0; i < nchannels; i++) {
    c->at[i].net_in = c->at[i].net_out = UINT32_MAX;
    c->at[i].order = calloc((size_t)nranks, sizeof *c->at[i].order);
    c->nchannels = i + 1;
    if (!c->at[i].order) return HK_FAIL_ERRNO("no memory for channels");
  }
  return HK_OK;
}

static void xml_graph_read_class(hk_xml_report *r, const hk_xml_node *xml, const char *name, uint8_t *out) {
  const char *text = hk_xml_get(xml, name);
  hk_path_class cls;
  if (!text) return;
  if (hk_path_class_parse(text, &cls))
    *out = (uint8_t)cls;
  else
    hk_xml_say(r, xml, true, "%s=\"%.40s\" is no class of paths such as NVL, PIX or SYS", name, text);
}

static hk_status xml_graph_read_graph(reader *b, const hk_xml_node *xml, hk_pattern pattern) {
  long stated = 0;
  int n = 0;
  for (const hk_xml_node *x = xml->first; x; x = x->next) n += !strcmp(x->name, "channel");
  if (n < 1 || n > HK_CHANNEL_LIMIT) {
    hk_xml_say(b->r, xml, true, "a <graph> with %d channels; 1 to %d are possible", n, HK_CHANNEL_LIMIT);
    return HK_OK;
  }
  if (hk_xml_int(b->r, xml, "nchannels", false, 0, 65535, &stated) && stated != n)
    hk_xml_say(b->r, xml, false, "nchannels=\"%ld\", but there are %d <channel>", stated, n);
  HK_OR_RETURN(xml_graph_new_channels(&b->c, pattern, b->what->nranks, n));
  xml_graph_read_class(b->r, xml, "typeintra", &b->c->intra_cls);
  xml_graph_read_class(b->r, xml, "typeinter", &b->c->inter_cls);
  hk_xml_float(b->r, xml, "speedintra", false, 0, 1e6f, &b->c->intra_gbps);
  hk_xml_float(b->r, xml, "speedinter", false, 0, 1e6f, &b->c->inter_gbps);
  hk_xml_float(b->r, xml, "hk_us", false, 0, 1e6f, &b->c->us);
  n = 0;
  for (const hk_xml_node *x = xml->first; x; x = x->next)
    if (!strcmp(x->name, "channel")) xml_graph_read_channel(b, x, &b->c->at[n++]);
  b->c->hash = hk_channels_hash(b->c);
  return HK_OK;
}

static hk_status xml_graph_read_graphs(reader *b, const hk_xml_node *root, hk_pattern pattern) {
  long v;
  if (strcmp(root->name, "graphs")) {
    hk_xml_say(b->r, root, true, "a file of channels begins with <graphs>, not <%.40s>", root->name);
    return HK_OK;
  }
  if (hk_xml_int(b->r, root, "version", true, 0, 1000000, &v) && v != 1)
    hk_xml_say(b->r, root, true, "version %ld of the graph XML; only version 1 is known", v);
  hk_xml_check_names(b->r, root);
  for (const hk_xml_node *x = root->first; x; x = x->next) {
    if (strcmp(x->name, "graph") || !hk_xml_int(b->r, x, "pattern", true, 0, 100, &v)) continue;
    if (!xml_graph_is_pattern(v, pattern)) continue;
    if (!b->c) {
      hk_status rc = xml_graph_read_graph(b, x, pattern);
      if (rc != HK_OK) return rc;
    } else {
      hk_xml_say(b->r, x, false, "a second <graph> of this pattern is ignored");
    }
  }
  return HK_OK;
}

hk_status hk_channels_read_xml(hk_channels **out, const char *path, hk_pattern pattern, const hk_topo *t,
                               const hk_search *what) {
  hk_xml_report r = {.file = path};
  reader b = {.r = &r, .t = t, .what = what};
  hk_xml_tree *tree = NULL;
  hk_status rc;
  *out = NULL;
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), had = plain ? uselocale(plain) : (locale_t)0;
  b.used = calloc((size_t)what->nranks + 1, sizeof *b.used);
  if (!b.used) {
    rc = HK_FAIL_ERRNO("no memory to read %s", path);
    goto out;
  }
  HK_TRY(hk_xml_read(&tree, &r), out);
  HK_TRY(xml_graph_read_graphs(&b, tree->root, pattern), out);
  HK_TRY(hk_xml_status(&r), out);
  *out = b.c;
  b.c = NULL;
out:
  if (plain) uselocale(had), freelocale(plain);
  hk_channels_free(b.c);
  hk_xml_free(tree);
  free(b.used);
  return rc;
}

/* --- Writing --- */

static bool xml_graph_same_channels(const hk_channels *c) {
  for (int i = 1; i < c->nchannels; i++)
    if (memcmp(c->at[i].order, c->at[0].order, (size_t)c->nranks * sizeof *c->at[i].order)) return false;
  return true;
}

static bool xml_graph_crosses_nics(const hk_channels *c) {
  for (int i = 0; i < c->nchannels; i++)
    if (c->at[i].net_in != c->at[i].net_out) return true;
  return false;
}

static void xml_graph_write_net(const hk_topo *t, uint32_t net, FILE *to) {
  if (net != UINT32_MAX) fprintf(to, "      <net dev=\"%d\"/>\n", t->nodes[net].net.dev);
}

static void xml_graph_write_graph(const hk_channels *c, const hk_topo *t, const hk_search *what, FILE *to) {
  char intra[HK_XML_NUMBER], inter[HK_XML_NUMBER], us[HK_XML_NUMBER];
  fprintf(to, "  <graph id=\"%d\" pattern=\"%d\" crossnic=\"%d\" nchannels=\"%d\"", numbers[c->pattern].id,
          numbers[c->pattern].pattern, xml_graph_crosses_nics(c), c->nchannels);
  fprintf(to, " speedintra=\"%s\" speedinter=\"%s\" latencyinter=\"0\"", hk_xml_number(c->intra_gbps, intra),
          hk_xml_number(c->inter_gbps, inter));
  fprintf(to, " typeintra=\"%s\" typeinter=\"%s\" samechannels=\"%d\" hk_us=\"%s\">\n",
          hk_path_class_name((hk_path_class)c->intra_cls), hk_path_class_name((hk_path_class)c->inter_cls),
          xml_graph_same_channels(c), hk_xml_number(c->us, us));
  for (int i = 0; i < c->nchannels; i++) {
    const hk_channel_order *ch = &c->at[i];
    fputs("    <channel>\n", to);
    xml_graph_write_net(t, ch->net_in, to);
    for (int k = 0; k < c->nranks; k++) {
      const hk_node *n = &t->nodes[what->nodes[ch->order[k]]];
      if (n->kind == HK_NODE_GPU)
        fprintf(to, "      <gpu dev=\"%d\"/>\n", n->gpu.dev);
      else
        fprintf(to, "      <hk_cpu numaid=\"%llu\"/>\n", (unsigned long long)n->id);
    }
    xml_graph_write_net(t, ch->net_out, to);
    fputs("    </channel>\n", to);
  }
  fputs("  </graph>\n", to);
}

hk_status hk_channels_write_xml(const hk_channels *const *graphs, int n, const hk_topo *t, const hk_search *what,
                                FILE *to) {
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), had = plain ? uselocale(plain) : (locale_t)0;
  fputs("<graphs version=\"1\">\n", to);
  for (int i = 0; i < n; i++)
    if (graphs[i]->nchannels) xml_graph_write_graph(graphs[i], t, what, to);
  fputs("</graphs>\n", to);
  if (plain) uselocale(had), freelocale(plain);
  return fflush(to) || ferror(to) ? HK_FAIL_ERRNO("cannot write channels") : HK_OK;
}
