/* SPDX-License-Identifier: Apache-2.0 */
/* Machines whose /sys says rubbish: files with random bytes, numbers that are huge or negative, files and folders that
 * are gone.  Detection gives a topology or an error, and reads nothing that is not there.  What it sees when one file
 * of a machine has other values is in tests/golden/spoiled.txt. */
/* check: timeout=60 notsan */
#include <fcntl.h>
#include "../../src/topo/detect.h"
#include "../../src/topo/topo.h"
#include "../../src/topo/xml.h"
#include "../support/fake_machine.h"
#include "../support/fuzz.h"
#include "../support/golden.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/spoiled.txt"
enum { FILE_LIMIT = 512 };
static char *files[FILE_LIMIT];
static int nfiles;

static int collect(const char *path, const struct stat *s, int type, struct FTW *walk) {
  (void)s, (void)walk;
  if ((type == FTW_F || type == FTW_SL) && nfiles < FILE_LIMIT) files[nfiles++] = strdup(path);
  return 0;
}

static void machine(void) {
  static const char *const g5 = "32.0 GT/s PCIe";
  fm_pci_info port = {.class_code = 0x060400, .vendor = 0x8086, .numa = 0, .speed = g5, .width = 16}, gpu = port,
              nic = port;
  gpu.class_code = 0x030200;
  gpu.vendor = 0x10de;
  nic.class_code = 0x020700;
  nic.vendor = 0x15b3;
  fm_cpus(FM_INTEL, 2, 2, 2, 0);
  fm_pci("0000:15:01.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:00.0", gpu);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:18:00.0", gpu);
  fm_rdma(fm_pci("0000:15:01.0/0000:16:00.0/0000:19:00.0", nic), "mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE",
          "InfiniBand");
  fm_iface(fm_pci("0000:80:01.0", nic), "eth0", "up", 100000);
}

static const char *rubbish(size_t *bytes) {
  static const char *const likely[] = {"",
                                       "-1",
                                       "0x7fffffffffffffff",
                                       "-9223372036854775808",
                                       "999999999999999999999",
                                       "0-4095",
                                       "0-",
                                       "nan",
                                       "1e300 GT/s",
                                       "-5.0 GT/s",
                                       "4: ACTIVE",
                                       "4",
                                       "inf Gb/sec",
                                       "0x030200",
                                       "0x060400"};
  static char text[512];
  if (rnd(3)) {
    const char *one = likely[rnd(HK_ARRAY_LENGTH(likely))];
    *bytes = strlen(one);
    return one;
  }
  *bytes = rnd(sizeof text);
  for (size_t i = 0; i < *bytes; i++) text[i] = (char)rnd64();
  return text;
}

/* Spoils a file or takes it away; links may lead anywhere inside. */
static void spoil(void) {
  const char *path = files[rnd((uint32_t)nfiles)];
  size_t bytes;
  unlink(path);
  switch (rnd(4)) {
    case 0: return;
    case 1:
      if (symlink(files[rnd((uint32_t)nfiles)], path) == 0) return;
      break;
    default: break;
  }
  const char *text = rubbish(&bytes);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
  if (fd < 0) return;
  ck_assert_int_eq(write(fd, text, bytes), (ssize_t)bytes);
  close(fd);
}

TEST(rubbish_in_sysfs) {
  unsigned good = 0, bad = 0;
  fuzz_begin(120);
  do {
    scratch_make();
    machine();
    nfiles = 0;
    nftw(scratch_folder, collect, 8, FTW_PHYS);
    for (uint32_t n = 1 + rnd(20); n; n--) spoil();
    for (int again = 0; again < 2; again++) {
      hk_topo *t = NULL;
      hk_status rc = hk_topo_detect(&t, 0, scratch_folder);
      ck_assert_msg((rc == HK_OK) == (t != NULL), "seed %llu", (unsigned long long)fuzz_seed);
      if (rc == HK_OK) ck_assert_uint_ge(hk_topo_count(t, HK_NODE_CPU), 1);
      ck_assert_uint_gt(strlen(rc == HK_OK ? "fine" : hk_last_error()), 0);
      rc == HK_OK ? good++ : bad++;
      hk_topo_free(t);
      spoil();
    }
    for (int i = 0; i < nfiles; i++) free(files[i]);
    scratch_remove();
  } while (fuzz_goes_on());
  printf("%u topologies, %u errors\n", good, bad);
  ck_assert_uint_gt(good, 0);
}

/* --- One file at a time --- */

static void print_seen(FILE *out, const char *what) {
  hk_topo *t;
  fprintf(out, "%s:\n", what);
  if (hk_topo_detect(&t, 0, scratch_folder) != HK_OK) {
    fprintf(out, "%s\n", hk_last_error());
    return;
  }
  t->name[0] = 0; /* that of a folder of this run */
  if (hk_topo_write_xml(t, out) != HK_OK) fprintf(out, "%s\n", hk_last_error());
  fputs(t->remarks ? t->remarks : "", out);
  hk_topo_free(t);
}

static void amd(int node, int bus, int other) {
  char path[128];
  snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/name", node);
  fm_file(path, "gfx942\n");
  snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/properties", node);
  fm_file(path, "cpu_cores_count 0\nlocation_id %d\ndomain 0\ngfx_target_version 90402\n", bus << 8);
  snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/io_links/0/properties", node);
  fm_file(path, "type 11\nnode_from %d\nnode_to %d\nmax_bandwidth 64000\n", node, other);
}

static const char gen5[] = "32.0 GT/s PCIe", gen4[] = "16.0 GT/s PCIe";
static const fm_pci_info bridge = {.class_code = 0x060400, .vendor = 0x8086, .numa = 1, .speed = gen5, .width = 16};

/* A switch with two GPUs, a card of two ports and a virtual function; two GPUs of AMD's at a port each. */
static void rdma_machine(void) {
  fm_pci_info gpu = {.class_code = 0x030200, .vendor = 0x10de, .numa = 1, .speed = "8.0 GT/s PCIe", .width = 16};
  fm_pci_info nic = {.class_code = 0x020700, .vendor = 0x15b3, .numa = -1, .speed = gen4, .width = 8};
  fm_pci_info amds = {.class_code = 0x120000, .vendor = 0x1002, .numa = 0, .speed = gen5, .width = 16};
  gpu.max_speed = nic.max_speed = gen5;
  fm_cpus(FM_AMD, 2, 2, 2, 0);
  fm_rdma(fm_pci("0000:00:01.0", nic), "mlx5_7", "100 Gb/sec (4X EDR)", "1: DOWN", "Ethernet"); /* the first of all */
  fm_rdma(fm_pci("0000:00:02.0", nic), "mlx5_8", "100 Gb/sec (4X EDR)", "4: ACTIVE", "Ethernet");
  fm_link("sys/devices/pci0000:00/0000:00:02.0/physfn", "../0000:00:01.0");
  fm_pci("0000:15:01.0", bridge);
  fm_pci("0000:15:01.0/0000:16:00.0", gpu);
  fm_pci("0000:15:01.0/0000:17:00.0", gpu);
  const char *folder = fm_pci("0000:15:01.0/0000:18:00.0", nic);
  fm_rdma(folder, "mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand");
  fm_file("sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
  fm_rdma(fm_pci("0000:15:01.0/0000:18:00.1", nic), "mlx5_1", "100 Gb/sec (4X EDR)", "1: DOWN", "Ethernet");
  fm_rdma(fm_pci("0000:15:01.0/0000:18:01.2", nic), "mlx5_2", "100 Gb/sec (4X EDR)", "4: ACTIVE", "Ethernet");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:18:01.2/physfn", "../0000:18:00.1");
  fm_pci("0000:80:00.0", amds);
  fm_pci("0000:81:00.0", amds);
  amd(1, 0x80, 2);
  amd(2, 0x81, 1);
  fm_file("sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties", "type 2\nnode_to 0\nmax_bandwidth 64000\n");
  fm_file("proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu hypervisor\n");
}

/* A bond of two ports, a VLAN, a bridge, and what leads nowhere. */
static void tcp_machine(void) {
  fm_pci_info nic = {.class_code = 0x020000, .vendor = 0x15b3, .numa = 0, .speed = NULL, .width = 8};
  fm_cpus(FM_INTEL, 1, 4, 1, 1);
  fm_pci("0000:15:01.0", bridge);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.0", nic), "eno1", "up", 100000);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.1", nic), "eno2", "up", 100000);
  fm_iface(fm_pci("0000:17:00.0", nic), "eno3", "unknown", 25000);
  fm_file("sys/devices/pci0000:17/0000:17:00.0/net/eno3/carrier", "1\n");
  fm_iface(NULL, "bond0", "up", 200000);
  fm_file("sys/devices/virtual/net/bond0/bonding/slaves", "eno1 eno2\n");
  fm_link("sys/devices/virtual/net/bond0/lower_eno1", "../../../pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1/master", "../../../../../virtual/net/bond0");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.1/net/eno2/master", "../../../../../virtual/net/bond0");
  fm_iface(NULL, "vlan7", "up", 200000);
  fm_link("sys/devices/virtual/net/vlan7/lower_bond0", "../bond0");
  fm_iface(NULL, "lo", "unknown", 0);
  fm_iface(NULL, "docker0", "up", 10000);
  fm_iface(NULL, "eth0", "up", 10000);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void each_value(FILE *out, const char *path, int turn) {
  static const char *const words[] = {"",     "-1",      "0",        "1",      "2",         "3",           "255",
                                      "4096", "unknown", "down",     "up",     "0-1,3",     "2-1",         "0x0207ff",
                                      "64K",  "2M",      "Data",     "4: A",   "14: A",     "40 Gb/sec",   "Ethernet",
                                      "0x03", "ppc64",   "2.5 GT/s", "999 GT", "1000 GT/s", "0x123456789", "1:23:x4"};
  char was[4096];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = read(fd, was, sizeof was);
  close(fd);
  ck_assert_int_ge(n, 0);
  for (size_t i = (size_t)turn % 3; i < HK_ARRAY_LENGTH(words); i += 3) {
    FILE *f = fopen(path, "we");
    fprintf(f, "%s\n", words[i]);
    fclose(f);
    print_seen(out, words[i]);
  }
  unlink(path);
  print_seen(out, "nothing");
  FILE *f = fopen(path, "we");
  fwrite(was, 1, (size_t)n, f);
  fclose(f);
}

TEST_LOOP(spoiled_as_before, 2) {
  static void (*const machines[])(void) = {rdma_machine, tcp_machine};
  if (!hk_xml_available()) return;
  golden g = golden_open(GOLDEN, _i ? "1 " : "0 ");
  scratch_make();
  machines[_i]();
  nftw(scratch_folder, collect, 8, FTW_PHYS);
  qsort(files, (size_t)nfiles, sizeof *files, by_text);
  for (int i = 0; i < nfiles; i++) {
    char group[20], target[300] = "", *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (readlink(files[i], target, sizeof target - 1) > 0) {
      unlink(files[i]);
      print_seen(out, "no link");
      ck_assert_int_eq(symlink(target, files[i]), 0);
    } else {
      each_value(out, files[i], i);
    }
    fclose(out);
    snprintf(group, sizeof group, "%d from %d", _i, i / 12 * 12);
    golden_text(&g, group, files[i] + strlen(scratch_folder), text, size);
    free(files[i]);
  }
  scratch_remove();
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("fuzz detect", .timeout = 600);
}
