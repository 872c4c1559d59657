/* SPDX-License-Identifier: Apache-2.0 */
/* Machines whose /sys says rubbish: files with random bytes, numbers that are huge or negative, files and folders that
 * are gone.  Detection gives a topology or an error, and reads nothing that is not there. */
/* check: timeout=60 notsan */
#include <fcntl.h>
#include "../../src/topo/detect.h"
#include "../support/fake_machine.h"
#include "../support/fuzz.h"
#include "../support/suite.h"

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

START_TEST(rubbish_in_sysfs) {
  unsigned good = 0, bad = 0;
  fuzz_begin();
  while (fuzz_goes_on()) {
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
  }
  printf("%u topologies, %u errors, seed %llu\n", good, bad, (unsigned long long)fuzz_seed);
  ck_assert_uint_gt(good, 0);
}
END_TEST

int main(void) {
  TCase *c = tcase_create("machines");
  tcase_set_timeout(c, 0);
  tcase_add_test(c, rubbish_in_sysfs);
  return suite_run_one("fuzz detect", c);
}
