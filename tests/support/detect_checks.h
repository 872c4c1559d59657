/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of detection: devices to build machines from, and looking at what was found. */
#ifndef HK_TEST_DETECT_CHECKS_H
#define HK_TEST_DETECT_CHECKS_H
#include "../../src/topo/detect.h"
#include "../../src/topo/topo.h"
#include "../../src/topo/xml.h"
#include "fake_machine.h"
#include "golden.h"

#define GEN5 "32.0 GT/s PCIe"
#define GEN4 "16.0 GT/s PCIe"
enum { NVIDIA = 0x10de, MELLANOX = 0x15b3, INTEL = 0x8086 };

__attribute__((unused)) static const fm_pci_info port = {
    .class_code = 0x060400, .vendor = INTEL, .numa = 0, .speed = GEN5, .width = 16};
__attribute__((unused)) static const fm_pci_info gpu = {
    .class_code = 0x030200, .vendor = NVIDIA, .numa = 0, .speed = GEN5, .width = 16};
__attribute__((unused)) static const fm_pci_info nic = {
    .class_code = 0x020700, .vendor = MELLANOX, .numa = 0, .speed = GEN5, .width = 16};

/* All of an invented machine that was found, as XML with its remarks, is as in the golden file: `what` names it. */
static inline void as_before(const hk_topo *found, const char *file, const char *what) {
  static int turn;
  char *text, name[100], line[200], is[40];
  size_t size;
  hk_topo t = *found;
  bool update = getenv("HOCKET_TEST_UPDATE"), same = false;
  if (!hk_xml_available()) return;
  t.name[0] = 0; /* that of a folder of this run */
  FILE *f = open_memstream(&text, &size);
  ck_assert_msg(hk_topo_write_xml(&t, f) == HK_OK, "%s", hk_last_error());
  fputs(t.remarks ? t.remarks : "", f);
  fclose(f);
  snprintf(name, sizeof name, "%s %d|", what, turn++);
  snprintf(is, sizeof is, "%zu bytes, %08x\n", size, golden_hash(0, text, size));
  f = fopen(file, update ? "a" : "r");
  ck_assert_msg(f, "%s cannot be opened: run this in the repository's root", file);
  if (update) fprintf(f, "%s%s", name, is);
  while (!update && !same && fgets(line, sizeof line, f))
    same = !strncmp(line, name, strlen(name)) && !strcmp(line + strlen(name), is);
  fclose(f);
  ck_assert_msg(update || same, "%s is no longer as in %s (HOCKET_TEST_UPDATE=1 writes it):\n%s", name, file, text);
  free(text);
}
static hk_topo *all_detected[4];
static int ndetected;
static inline hk_topo *detected(unsigned flags, const char *file, const char *what) {
  hk_topo *t;
  hk_status rc = hk_topo_detect(&t, flags, scratch_folder);
  ck_assert_msg(rc == HK_OK, "%s", hk_last_error());
  as_before(t, file, what);
  ck_assert_int_lt(ndetected, HK_ARRAY_LENGTH(all_detected));
  all_detected[ndetected++] = t;
  return t;
}
/* After each test. */
static inline void end(void) {
  while (ndetected > 0) hk_topo_free(all_detected[--ndetected]);
  scratch_remove();
}
#define detect(flags) detected(flags, GOLDEN, __func__)
static inline const hk_node *node(const hk_topo *t, hk_node_kind kind, uint32_t i) {
  ck_assert_uint_lt(i, hk_topo_count(t, kind));
  return &t->nodes[t->first_of[kind] + i];
}
/* The edge between two nodes, or NULL. */
static inline const hk_edge *edge(const hk_topo *t, const hk_node *a, const hk_node *b) {
  for (uint32_t e = a->first_edge; e < a->first_edge + a->nedges; e++)
    if (&t->nodes[t->edges[e].to] == b) return &t->edges[e];
  return NULL;
}
static inline int remarks(const hk_topo *t) {
  int n = 0;
  for (const char *p = t->remarks; p && (p = strchr(p, '\n')) != NULL; p++) n++;
  return n;
}
static inline bool remarked(const hk_topo *t, const char *what) { return t->remarks && strstr(t->remarks, what); }
#define ck_remarked(t, what) ck_assert_msg(remarked(t, what), "no '%s' in: %s", what, (t)->remarks ? (t)->remarks : "")
static inline float gbps(const hk_topo *t, const hk_node *a, const hk_node *b) {
  const hk_edge *e = edge(t, a, b);
  return e ? e->gbps : 0;
}
#endif
