/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's graph XML: channels as lists of NETs and GPUs. Ranks on CPUs, which NCCL does not have, are <hk_cpu>. */
#include <stdlib.h>
#include <string.h>
#include "paths.h"
#include "xml_build.h"

/* NCCL's numbers: id is the purpose of the graph, pattern its shape (1 to 3 are trees). */
static const struct {
  int id, pattern;
} numbers[] = {[HK_PATTERN_RING] = {0, 4}, [HK_PATTERN_TREE] = {1, 1}, [HK_PATTERN_STAR] = {3, 5}};

static bool xml_graph_is_pattern(long number, hk_pattern p) {
  return p == HK_PATTERN_TREE ? number >= 1 && number <= 3 : number == numbers[p].pattern;
}

typedef struct reader {
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
  if (!hk_xml_int(xml, key, true, 0, 65535, &v)) return UINT32_MAX;
  node = kind == HK_NODE_GPU ? xml_graph_device_node(b->t, (int)v) : hk_topo_find(b->t, kind, (uint64_t)v);
  if (node == UINT32_MAX)
    hk_xml_say(xml, true, "<%s %s=\"%ld\">: this machine has no such %s", xml->name, key, v, hk_node_kind_name(kind));
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
  hk_xml_say(xml, true, any ? "this channel passes the same rank twice" : "no rank is on this device");
}

static void xml_graph_read_channel(reader *b, const hk_xml_node *xml, hk_channel_order *c) {
  int n = 0, nets = 0;
  memset(b->used, 0, (size_t)b->what->nranks);
  for (const hk_xml_node *x = xml->first; x; x = x->next) {
    if (!strcmp(x->name, "net")) {
      uint32_t net = xml_graph_named_node(b, x, "dev", HK_NODE_NET);
      if (nets == 2) hk_xml_say(x, true, "a channel has at most two <net>: the way in and the way out");
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
    hk_xml_say(xml, true, "this channel passes %d of %d ranks; it must pass each once", n, b->what->nranks);
}

static void xml_graph_read_class(const hk_xml_node *xml, const char *name, uint8_t *out) {
  const char *text = hk_xml_get(xml, name);
  hk_path_class cls;
  if (!text) return;
  if (hk_path_class_parse(text, &cls))
    *out = (uint8_t)cls;
  else
    hk_xml_say(xml, true, "%s=\"%.40s\" is no class of paths such as NVL, PIX or SYS", name, text);
}

static hk_status xml_graph_read_graph(reader *b, const hk_xml_node *xml, hk_pattern pattern) {
  long stated = 0;
  int n = 0;
  for (const hk_xml_node *x = hk_xml_child(xml, "channel"); x; x = hk_xml_next(x)) n++;
  if (n < 1 || n > HK_CHANNEL_LIMIT) {
    hk_xml_say(xml, true, "a <graph> with %d channels; 1 to %d are possible", n, HK_CHANNEL_LIMIT);
    return HK_OK;
  }
  if (hk_xml_int(xml, "nchannels", false, 0, 65535, &stated) && stated != n)
    hk_xml_say(xml, false, "nchannels=\"%ld\", but there are %d <channel>", stated, n);
  HK_OR_RETURN(hk_channels_new(&b->c, pattern, b->what->nranks, n));
  xml_graph_read_class(xml, "typeintra", &b->c->intra_cls);
  xml_graph_read_class(xml, "typeinter", &b->c->inter_cls);
  hk_xml_float(xml, "speedintra", false, 0, 1e6f, &b->c->intra_gbps);
  hk_xml_float(xml, "speedinter", false, 0, 1e6f, &b->c->inter_gbps);
  hk_xml_float(xml, "hk_us", false, 0, 1e6f, &b->c->us);
  n = 0;
  for (const hk_xml_node *x = hk_xml_child(xml, "channel"); x; x = hk_xml_next(x))
    xml_graph_read_channel(b, x, &b->c->at[n++]);
  b->c->hash = hk_channels_hash(b->c);
  return HK_OK;
}

static hk_status xml_graph_read_graphs(reader *b, const hk_xml_node *root, hk_pattern pattern) {
  long v;
  if (strcmp(root->name, "graphs")) {
    hk_xml_say(root, true, "a file of channels begins with <graphs>, not <%.40s>", root->name);
    return HK_OK;
  }
  if (hk_xml_int(root, "version", true, 0, 1000000, &v) && v != 1)
    hk_xml_say(root, true, "version %ld of the graph XML; only version 1 is known", v);
  hk_xml_check_names(root);
  for (const hk_xml_node *x = hk_xml_child(root, "graph"); x; x = hk_xml_next(x)) {
    if (!hk_xml_int(x, "pattern", true, 0, 100, &v) || !xml_graph_is_pattern(v, pattern)) continue;
    if (b->c)
      hk_xml_say(x, false, "a second <graph> of this pattern is ignored");
    else
      HK_OR_RETURN(xml_graph_read_graph(b, x, pattern));
  }
  return HK_OK;
}

hk_status hk_channels_read_xml(hk_channels **out, const char *path, hk_pattern pattern, const hk_topo *t,
                               const hk_search *what) {
  hk_xml_report r = {.file = path};
  reader b = {.t = t, .what = what};
  hk_xml_tree *tree = NULL;
  hk_status rc;
  *out = NULL;
  b.used = calloc((size_t)what->nranks + 1, sizeof *b.used);
  if (!b.used) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to read %s", path), out);
  HK_TRY(hk_xml_read(&tree, &r), out);
  HK_TRY(xml_graph_read_graphs(&b, tree->root, pattern), out);
  HK_TRY(hk_xml_status(&r), out);
  *out = b.c;
  b.c = NULL;
out:
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

static void xml_graph_add_net(hk_xml_tree *x, hk_xml_node *channel, const hk_topo *t, uint32_t net) {
  if (net != UINT32_MAX) hk_xml_put(x, hk_xml_add(x, channel, "net"), "dev=%d", t->nodes[net].net.dev);
}

static void xml_graph_add_graph(hk_xml_tree *x, const hk_channels *c, const hk_topo *t, const hk_search *what) {
  hk_xml_node *graph = hk_xml_add(x, x->root, "graph");
  hk_xml_put(x, graph, "id=%d pattern=%d crossnic=%d nchannels=%d", numbers[c->pattern].id, numbers[c->pattern].pattern,
             xml_graph_crosses_nics(c), c->nchannels);
  hk_xml_set_number(x, graph, "speedintra", c->intra_gbps);
  hk_xml_set_number(x, graph, "speedinter", c->inter_gbps);
  hk_xml_put(x, graph, "latencyinter=0 typeintra=%s typeinter=%s samechannels=%d",
             hk_path_class_name((hk_path_class)c->intra_cls), hk_path_class_name((hk_path_class)c->inter_cls),
             xml_graph_same_channels(c));
  hk_xml_set_number(x, graph, "hk_us", c->us);
  for (int i = 0; i < c->nchannels; i++) {
    const hk_channel_order *ch = &c->at[i];
    hk_xml_node *channel = hk_xml_add(x, graph, "channel");
    xml_graph_add_net(x, channel, t, ch->net_in);
    for (int k = 0; k < c->nranks; k++) {
      const hk_node *n = &t->nodes[what->nodes[ch->order[k]]];
      if (n->kind == HK_NODE_GPU)
        hk_xml_put(x, hk_xml_add(x, channel, "gpu"), "dev=%d", n->gpu.dev);
      else
        hk_xml_put(x, hk_xml_add(x, channel, "hk_cpu"), "numaid=%llu", (unsigned long long)n->id);
    }
    xml_graph_add_net(x, channel, t, ch->net_out);
  }
}

hk_status hk_channels_write_xml(const hk_channels *const *graphs, int n, const hk_topo *t, const hk_search *what,
                                FILE *to) {
  hk_xml_tree *x;
  HK_OR_RETURN(hk_xml_new(&x));
  hk_xml_set(x, hk_xml_add(x, NULL, "graphs"), "version", "1");
  for (int i = 0; i < n; i++)
    if (graphs[i]->nchannels) xml_graph_add_graph(x, graphs[i], t, what);
  hk_status rc = hk_xml_print(x, to);
  hk_xml_free(x);
  return rc;
}
