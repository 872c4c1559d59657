/* SPDX-License-Identifier: Apache-2.0 */
/* Odd topologies: machines in words, and XML that is damaged. */
#ifndef HK_TEST_TOPO_DAMAGE_H
#define HK_TEST_TOPO_DAMAGE_H
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../../src/topo/xml.h"
#include "fuzz.h"
#include "suite.h"

static inline const char *pick(const char *const *list, size_t n) { return list[rnd((uint32_t)n)]; }
#define PICK(list) pick(list, sizeof(list) / sizeof *(list))

static inline char *written(const hk_topo *t, size_t *size) {
  char *text;
  FILE *f = open_memstream(&text, size);
  hk_status rc = hk_topo_write_xml(t, f);
  fclose(f);
  if (rc == HK_OK) return text;
  free(text);
  return NULL;
}

static inline void any_machine(char *out, size_t size) {
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

static inline char *a_machine(size_t *size) {
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
static inline void splice(char **text, size_t *size, size_t at, size_t n, const char *with, size_t more) {
  char *out = malloc(*size - n + more + 1);
  memcpy(out, *text, at);
  memcpy(out + at, with, more);
  memcpy(out + at + more, *text + at + n, *size - at - n);
  *size = *size - n + more;
  out[*size] = 0;
  free(*text);
  *text = out;
}

static inline void damage(char **text, size_t *size) {
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

#endif
