/* SPDX-License-Identifier: Apache-2.0 */
/* Merging: which ports act as one network device (those of one card, or those that the user names together), and which
 * of them a rank offers to a peer. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/sysfs.h"
#include "ib_direct.h"
#include "ib_port.h"

/* The location of a port's device as paths in /sys; "": unknown. */
typedef struct place {
  char path[HK_SYSFS_PATH];
  char port[HK_SYSFS_PATH]; /* of the physical function, whose ports its virtual functions share */
} place;

static void ib_merge_find_place(const char *root, const hk_ib_port *p, place *out) {
  if (!hk_sysfs_real(root, out->path, "/sys/class/infiniband/%s/device", p->device)) out->path[0] = '\0';
  if (!hk_sysfs_real(root, out->port, "/sys/class/infiniband/%s/device/physfn", p->device))
    memcpy(out->port, out->path, sizeof out->port);
}

/* ---- virtual functions ---- */

/* Returns true if port i is the same one as port j, and j is preferred: a physical function before virtual ones. */
static bool ib_merge_shows_again(const hk_ib_port *ports, const place *places, int i, int j) {
  const place *a = &places[i], *b = &places[j];
  if (i == j || !a->port[0] || ports[i].number != ports[j].number || strcmp(a->port, b->port) != 0) return false;
  bool virtual = strcmp(a->path, a->port) != 0, other = strcmp(b->path, b->port) != 0;
  return virtual && (!other || j < i);
}

static int ib_merge_drop_functions(hk_ib_port *ports, const place *places, int n, int *nnear) {
  bool again[HK_IB_PORTS] = {false};
  int kept = 0, near = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n && !again[i]; j++) again[i] = ib_merge_shows_again(ports, places, i, j);
  for (int i = 0; i < n; i++) {
    if (again[i]) {
      HK_INFO(HK_SUB_INIT | HK_SUB_NET,
              "RDMA device %s is left out: another one has the same port "
              "(NCCL_IB_MERGE_VFS=0 takes both)",
              ports[i].device);
      continue;
    }
    near += i < *nnear;
    ports[kept++] = ports[i];
  }
  *nnear = near;
  return kept;
}

/* ---- cards ---- */

typedef enum level { ITSELF, CARD, SWITCH, SWITCHES, HOST, SYSTEM } level;
static const char *const level_names[] = {"LOC", "PORT", "PIX", "PXB", "PHB", "SYS"};

static hk_status ib_merge_wanted_level(const hk_settings *set, level *out) {
  const char *text = set->NET_MERGE_LEVEL;
  *out = CARD;
  if (!text || !*text) return HK_OK;
  for (int i = 0; i <= SYSTEM; i++) {
    if (strcasecmp(text, level_names[i]) != 0) continue;
    *out = (level)i;
    return HK_OK;
  }
  return HK_FAIL(HK_ERR_USAGE, "NCCL_NET_MERGE_LEVEL='%s': LOC, PORT, PIX, PXB, PHB or SYS", text);
}

static int ib_merge_count(const char *text, char c) {
  int n = 0;
  for (; *text; text++) n += *text == c;
  return n;
}

/* The distance of two PCI devices by their paths in /sys: the components that differ are the bridges between them. */
static level ib_merge_distance(const char *a, const char *b) {
  const char *function = strrchr(a, '.');
  size_t card = function ? (size_t)(function - a) : strlen(a), same = 0;
  if (!*a || !*b) return SYSTEM;
  if (strcmp(a, b) == 0 || (function && strncmp(a, b, card + 1) == 0 && !strchr(b + card, '/'))) return CARD;
  for (size_t i = 0; a[i] && a[i] == b[i]; i++)
    if (a[i] == '/') same = i;
  const char *host = strstr(a, "/pci"), *below = host ? strchr(host + 1, '/') : NULL;
  if (!below || same < (size_t)(below - a)) return SYSTEM;
  if (same == (size_t)(below - a)) return HOST;
  return ib_merge_count(a + same, '/') <= 2 && ib_merge_count(b + same, '/') <= 2 ? SWITCH : SWITCHES;
}

hk_path_class hk_ib_pci_class(const char *a, const char *b) {
  static const hk_path_class classes[] = {HK_PATH_PIX, HK_PATH_PIX, HK_PATH_PIX,
                                          HK_PATH_PXB, HK_PATH_PHB, HK_PATH_SYS}; /* by level */
  return classes[ib_merge_distance(a, b)];
}

/* The set of NCCL_NET_FORCE_MERGE ("a,b;c,d") that names the device, counted from 1; 0: none. */
static int ib_merge_named_set(const char *sets, const char *device) {
  size_t length = strlen(device);
  int set = 1;
  for (const char *s = sets; s && *s;) {
    size_t n = strcspn(s, ",;");
    if (n == length && strncmp(s, device, n) == 0) return set;
    s += n;
    if (*s) set += *s++ == ';';
  }
  return 0;
}

/* Makes the ports of a card adjacent. If a port of a card is near, all of its ports count as near. */
static void ib_merge_sort_by_card(hk_ib_port *ports, int n, int *nnear) {
  hk_ib_port sorted[HK_IB_PORTS];
  bool taken[HK_IB_PORTS] = {false};
  int done = 0, near = 0;
  for (int i = 0; i < n; i++) {
    for (int j = i; j < n; j++) {
      if (taken[j] || ports[j].card != ports[i].card) continue;
      taken[j] = true;
      sorted[done++] = ports[j];
    }
    if (i < *nnear) near = done;
  }
  *nnear = near;
  memcpy(ports, sorted, (size_t)n * sizeof *ports);
}

/* ---- speeds ---- */

bool hk_ib_is_slow(const hk_ib_port *port, const hk_ib_port *all, int n) {
  uint32_t best = 0;
  for (int i = 0; i < n; i++)
    if (all[i].mbps > best) best = all[i].mbps;
  return port->mbps && port->mbps < best / 2;
}

/* Ports that are near, then the other ones, and after these the slow ones, whether they are near or not: a slow port
 * next to the CPU carries less than a fast one at the other socket. */
static void ib_merge_sort_by_speed(hk_ib_port *ports, int n, int *nnear) {
  hk_ib_port sorted[HK_IB_PORTS];
  int fast = 0, near = 0;
  for (int i = 0; i < n; i++)
    if (!hk_ib_is_slow(&ports[i], ports, n)) {
      near += i < *nnear;
      sorted[fast++] = ports[i];
    }
  for (int i = 0, at = fast; i < n; i++)
    if (hk_ib_is_slow(&ports[i], ports, n)) sorted[at++] = ports[i];
  *nnear = near || fast == n ? near : fast; /* slow ones take no turns */
  memcpy(ports, sorted, (size_t)n * sizeof *ports);
}

hk_status hk_ib_merge(const hk_settings *set, const char *root, hk_ib_port *ports, int *n, int *nnear) {
  hk_status rc = HK_OK;
  const char *sets = set->NET_FORCE_MERGE;
  level most = ITSELF;
  int chosen[HK_IB_PORTS];
  if (!*n) return HK_OK;
  place *places = calloc((size_t)*n, sizeof *places);
  if (!places) return HK_FAIL_ERRNO("no memory for the places of %d RDMA ports", *n);
  if (set->IB_MERGE_NICS) HK_TRY(ib_merge_wanted_level(set, &most), out);
  for (int i = 0; i < *n; i++) ib_merge_find_place(root, &ports[i], &places[i]);
  if (set->IB_MERGE_VFS) *n = ib_merge_drop_functions(ports, places, *n, nnear);
  ib_merge_sort_by_speed(ports, *n, nnear);
  for (int i = 0; i < *n; i++)
    ib_merge_find_place(root, &ports[i], &places[i]); /* others have gone, and the order is new */
  for (int i = 0; i < *n; i++) {
    chosen[i] = set->IB_MERGE_NICS ? ib_merge_named_set(sets, ports[i].device) : 0;
    ports[i].card = (uint8_t)i;
    for (int j = 0; j < i && ports[i].card == i; j++) {
      bool together = chosen[i] || chosen[j]
                          ? chosen[i] == chosen[j]
                          : most > ITSELF && ib_merge_distance(places[i].path, places[j].path) <= most;
      if (together && ports[i].layer == ports[j].layer && ports[i].mbps == ports[j].mbps) ports[i].card = ports[j].card;
    }
  }
  ib_merge_sort_by_card(ports, *n, nnear);
out:
  free(places);
  return rc;
}

hk_status hk_ib_cards_of(const hk_settings *set, int *most) {
  const char *text = set->NETDEVS_POLICY;
  char *end;
  *most = 0;
  if (!text || !strcasecmp(text, "AUTO") || !strcasecmp(text, "ALL")) return HK_OK;
  const long n = strncasecmp(text, "MAX:", 4) ? 0 : strtol(text + 4, &end, 10);
  if (n < 1 || n > HK_IB_PORTS || *end)
    return HK_FAIL(HK_ERR_USAGE, "NCCL_NETDEVS_POLICY='%.60s': write AUTO, ALL or MAX:N, N from 1 to %d", text,
                   HK_IB_PORTS);
  *most = (int)n;
  return HK_OK;
}

int hk_ib_offer(const hk_ib_port *ports, int n, int nnear, int turn, hk_ib_port out[HK_IB_OFFERED]) {
  int begins[HK_IB_PORTS + 1], ncards = 0, near = 0, offered = 0;
  for (int i = 0; i < n; i++) {
    if (!i || ports[i].card != ports[i - 1].card) begins[ncards++] = i;
    if (i < nnear) near = ncards;
  }
  begins[ncards] = n;
  int group = near ? near : ncards;
  for (int k = 0; k < ncards; k++) {
    int card = k < group ? (turn + k) % group : k, first = begins[card], size = begins[card + 1] - first;
    for (int i = 0; i < size && offered < HK_IB_OFFERED; i++) out[offered++] = ports[first + (turn / group + i) % size];
  }
  return offered;
}
