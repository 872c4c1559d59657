/* SPDX-License-Identifier: Apache-2.0 */
/* Topology files: read alone, and merged with what detection found. */
#include "xml.h"
#include <stdlib.h>
#include <string.h>
#include "../base/text_file.h"
#include "xml_build.h"

static const char *xml_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

hk_status hk_topo_parse_xml(hk_topo **out, const char *name, const char *text, size_t bytes, hk_xml_sink *sink,
                            void *arg) {
  hk_xml_report r = {.file = name, .sink = sink, .arg = arg};
  hk_xml_tree *tree;
  *out = NULL;
  HK_OR_RETURN(hk_xml_parse(&tree, text, bytes, &r));
  const hk_status rc = hk_xml_build(out, xml_base_name(name), tree);
  hk_xml_free(tree);
  return rc;
}

hk_status hk_topo_read_xml(hk_topo **out, const char *path, hk_xml_sink *sink, void *arg) {
  char *text;
  size_t bytes;
  *out = NULL;
  HK_OR_RETURN(hk_text_read(path, HK_XML_BYTES, &text, &bytes));
  const hk_status rc = hk_topo_parse_xml(out, path, text, bytes, sink, arg);
  free(text);
  return rc;
}

/* --- A file merged with detection --- */

static bool xml_is(const hk_xml_node *n, const char *name) { return !strcmp(n->name, name); }

/* Two values of an attribute; NULL equals nothing. A bus id has several forms. */
static bool xml_equal(const char *a, const char *b) {
  uint64_t x, y;
  return a && b && (!strcmp(a, b) || (hk_bus_id_parse(a, &x) && hk_bus_id_parse(b, &y) && x == y));
}

/* The element with this value of its attribute `key`: `n`, or one below it. */
static hk_xml_node *xml_find(hk_xml_node *n, const char *name, const char *key, const char *value) {
  if (xml_is(n, name) && xml_equal(hk_xml_get(n, key), value)) return n;
  for (hk_xml_node *c = n->first; c; c = c->next) {
    hk_xml_node *found = xml_find(c, name, key, value);
    if (found) return found;
  }
  return NULL;
}

/* The attribute by which an element is recognised among its siblings. */
static const char *xml_key_of(const hk_xml_node *n) {
  return xml_is(n, "cpu")                           ? "numaid"
         : xml_is(n, "pci")                         ? "busid"
         : xml_is(n, "net")                         ? "name"
         : xml_is(n, "nvlink") || xml_is(n, "xgmi") ? "target"
                                                    : NULL;
}

static hk_xml_node *xml_brother(hk_xml_node *parent, const hk_xml_node *n) {
  const char *key = xml_key_of(n);
  for (hk_xml_node *c = parent->first; c; c = c->next)
    if (xml_is(c, n->name) && (!key || xml_equal(hk_xml_get(c, key), hk_xml_get(n, key)))) return c;
  return NULL;
}

static void xml_add_attrs(hk_xml_tree *t, hk_xml_node *to, const hk_xml_node *from) {
  /* A link's bandwidth belongs to the speed in the same element. */
  bool own_speed = xml_is(to, "pci") && (hk_xml_get(to, "link_speed") || hk_xml_get(to, "link_width"));
  for (const hk_xml_attr *a = from->attrs; a; a = a->next)
    if (!hk_xml_get(to, a->name) && !(own_speed && !strncmp(a->name, "hk_", 3))) hk_xml_set(t, to, a->name, a->value);
}

/* Merges all that is inside a GPU's or NIC's <pci>. A file with NVLinks of a GPU has all of them. */
static void xml_add_inside(hk_xml_tree *t, hk_xml_node *to, const hk_xml_node *from) {
  bool links = xml_is(to, "gpu") && (hk_xml_child(to, "nvlink") || hk_xml_child(to, "xgmi"));
  xml_add_attrs(t, to, from);
  /* The numbers of this process's devices are taken from the machine and not from the file. */
  if ((xml_is(to, "gpu") || xml_is(to, "net")) && hk_xml_get(from, "dev"))
    hk_xml_set(t, to, "dev", hk_xml_get(from, "dev"));
  for (const hk_xml_node *c = from->first; c; c = c->next) {
    if (xml_is(c, "pci") || (links && (xml_is(c, "nvlink") || xml_is(c, "xgmi")))) continue;
    hk_xml_node *mine = xml_brother(to, c);
    if (mine)
      xml_add_inside(t, mine, c);
    else
      hk_xml_graft(t, to, c, true);
  }
}

static bool xml_is_device(const hk_xml_node *n) {
  return xml_is(n, "pci") && (hk_xml_child(n, "gpu") || hk_xml_child(n, "nic"));
}

/* Puts a CPU that is not in the file on the host of the CPUs that are. */
static void xml_same_host(hk_xml_tree *t, hk_xml_node *cpu) {
  const hk_xml_node *first = hk_xml_child(t->root, "cpu");
  const char *host = first && first != cpu ? hk_xml_get(first, "host_hash") : NULL;
  if (host && !hk_xml_get(cpu, "host_hash")) hk_xml_set(t, cpu, "host_hash", host);
}

/* Finds a detected CPU or bridge in the file's tree, or adds it. */
static hk_xml_node *xml_place(hk_xml_tree *t, const hk_xml_node *seen) {
  if (!seen->parent) return t->root;
  const char *key = xml_key_of(seen);
  hk_xml_node *at = xml_find(t->root, seen->name, key, hk_xml_get(seen, key));
  if (at) {
    xml_add_attrs(t, at, seen);
  } else {
    at = hk_xml_graft(t, xml_place(t, seen->parent), seen, false);
    if (xml_is(seen, "cpu")) xml_same_host(t, at);
  }
  return at;
}

/* The file's element of a device: a <pci> by its bus id; a NIC that is no PCI device by its port's name. */
static hk_xml_node *xml_in_file(hk_xml_tree *t, const hk_xml_node *seen) {
  if (xml_is(seen, "pci")) return xml_find(t->root, "pci", "busid", hk_xml_get(seen, "busid"));
  const hk_xml_node *port = hk_xml_child(seen, "net");
  const hk_xml_node *found = port ? xml_find(t->root, "net", "name", hk_xml_get(port, "name")) : NULL;
  return found && xml_is(found->parent, "nic") ? found->parent : NULL;
}

static void xml_add_seen(hk_xml_tree *t, const hk_xml_node *seen) {
  if (xml_is_device(seen) || (xml_is(seen, "nic") && xml_is(seen->parent, "cpu"))) {
    hk_xml_node *at = xml_in_file(t, seen);
    if (at)
      xml_add_inside(t, at, seen);
    else
      hk_xml_graft(t, xml_place(t, seen->parent), seen, true);
    return;
  }
  if (xml_is(seen, "cpu")) xml_place(t, seen); /* with or without devices: ranks may sit there */
  for (const hk_xml_node *c = seen->first; c; c = c->next) xml_add_seen(t, c);
}

static bool xml_kept(const hk_xml_node *n) { return !strcmp(hk_xml_text(n, "keep"), "1"); }

/* True if `n` stays. Devices and ports that detection did not see are removed, and bridges without any device.
 * `keep="1"` keeps one, as in NCCL. */
static bool xml_trim(hk_xml_node *n, hk_xml_node *seen) {
  const bool pci = xml_is(n, "pci"), port = xml_is(n, "net");
  const char *key = pci || port ? xml_key_of(n) : NULL;
  const hk_xml_node *same = key ? xml_find(seen, n->name, key, hk_xml_get(n, key)) : NULL;
  const bool bridge = pci && !hk_xml_child(n, "gpu") && !hk_xml_child(n, "nic");
  bool stays = xml_kept(n) || (pci ? same && xml_is_device(same) : port ? same != NULL : !xml_is(n, "nic"));
  for (hk_xml_node *c = n->first, *next; c; c = next) {
    next = c->next;
    if (!xml_trim(c, seen))
      hk_xml_remove(c);
    else if (bridge ? xml_is(c, "pci") : xml_is(n, "nic") ? xml_is(c, "net") : xml_kept(c))
      stays = true;
  }
  return stays;
}

hk_status hk_topo_read_xml_over(hk_topo **out, const char *path, const hk_topo *detected, hk_xml_sink *sink,
                                void *arg) {
  hk_xml_report r = {.file = path, .sink = sink, .arg = arg}, merged = {.file = path};
  hk_xml_tree *file = NULL, *seen = NULL;
  hk_topo *checked = NULL;
  hk_status rc;
  *out = NULL;
  HK_TRY(hk_xml_read(&file, &r), out);
  /* A wrong file is refused with its own errors, before it is merged. */
  HK_TRY(hk_xml_build(&checked, path, file), out);
  HK_TRY(hk_xml_of_topo(&seen, detected), out);
  xml_add_seen(file, seen->root);
  xml_trim(file->root, seen->root);
  file->report = &merged;
  rc = hk_xml_build(out, detected->name, file);
out:
  hk_topo_free(checked);
  hk_xml_free(seen);
  hk_xml_free(file);
  return rc;
}
