/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Small files below a root (src/base/sysfs.h). */
#include <sys/uio.h>
#include "../../src/base/status.h"
#include "../../src/base/sysfs.h"
#include "../../src/topo/xid.h"
#include "../support/fake_machine.h"
#include "../support/suite.h"

/* A read gives few bytes at a time, and a signal may end it. */
static size_t piece = SIZE_MAX;
static int signals, fails, reads;
ssize_t read(int fd, void *out, size_t bytes) {
  if (++reads > 500) abort(); /* it reads for ever */
  if (signals > 0) {
    signals--;
    errno = EINTR;
    return -1;
  }
  if (fails) {
    errno = EIO;
    return -1;
  }
  signals = piece < SIZE_MAX ? 1 : 0;
  return readv(fd, &(struct iovec){out, bytes < piece ? bytes : piece}, 1);
}

TEST_LOOP(texts, 2) {
  char capacity[17] = " ", *text = capacity + 1; /* what is before it is not the text's */
  fm_file("sys/a7", "%s", _i ? "  two words \t\n\n" : "");
  for (piece = 1; piece; piece = piece == 1 ? SIZE_MAX : 0) {
    memset(text, 'x', 16);
    ck_assert(hk_sysfs_text(scratch_folder, text, 16, "/sys/%c%d", 'a', 7));
    ck_assert_str_eq(text, _i ? "  two words" : "");
  }
  piece = SIZE_MAX;
  signals = 3;
  ck_assert(hk_sysfs_text(scratch_folder, text, 16, "/sys/a7"));
  ck_assert_str_eq(text, _i ? "  two words" : "");
  ck_assert_int_eq(capacity[0], ' ');
}

TEST(no_texts) {
  char text[8] = "before";
  ck_assert(!hk_sysfs_text(scratch_folder, text, sizeof text, "/none"));
  ck_assert_str_eq(text, "");
  fm_file("long", "0123456789");
  ck_assert(hk_sysfs_text(scratch_folder, text, sizeof text, "/long"));
  ck_assert_str_eq(text, "0123456");
  ck_assert(hk_sysfs_text(scratch_folder, text, 1, "/long"));
  ck_assert_str_eq(text, "");
  fails = 1;
  ck_assert(!hk_sysfs_text(scratch_folder, text, sizeof text, "/long"));
  ck_assert_str_eq(text, "");
}

TEST(numbers) {
  static const struct {
    const char *text;
    bool good;
    long long value;
  } rows[] = {{"12\n", true, 12},    {"0x1f", true, 31}, {"-1", true, -1},
              {"16 GB/s", true, 16}, {"", false, 0},     {"x1", false, 0},
              {"0", true, 0},        {"010", true, 8},   {"9223372036854775807", true, INT64_MAX},
              {"-", false, 0},       {"\n5", true, 5},   {"9223372036854775808", false, 0}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    long long value = 77;
    fm_file("n", "%s", rows[i].text);
    errno = ERANGE; /* of an earlier call */
    ck_assert_msg(hk_sysfs_number(scratch_folder, &value, "/%s", "n") == rows[i].good, "%s", rows[i].text);
    ck_assert_msg(value == rows[i].value, "%s: %lld", rows[i].text, value);
  }
  long long value = 77;
  ck_assert(!hk_sysfs_number(scratch_folder, &value, "/none"));
  ck_assert_int_eq(value, 0);
}

TEST(lists) {
  char path[32], want[16];
  fm_file("empty/.hidden", "x");
  char **none = hk_sysfs_list(scratch_folder, "/empty");
  ck_assert(none && !none[0]);
  free(none);
  ck_assert_ptr_null(hk_sysfs_list(scratch_folder, "/gone"));
  fm_file("full/.hidden", "x");
  for (int i = 299; i >= 0; i--) {
    snprintf(path, sizeof path, "full/node%d", i);
    fm_file(path, "x");
    char **all = i == 298 || i == 0 ? hk_sysfs_list(scratch_folder, "/%s", "full") : NULL;
    if (!all) continue;
    int n = 0;
    for (; all[n]; n++) {
      snprintf(want, sizeof want, "node%d", i + n);
      ck_assert_str_eq(all[n], want);
    }
    ck_assert_int_eq(n, 300 - i);
    free(all);
  }
  ck_assert(hk_sysfs_has(scratch_folder, "/full/node%d", 7) && !hk_sysfs_has(scratch_folder, "/full/node%d", 300));
}

TEST(links) {
  char out[HK_SYSFS_PATH], text[8];
  fm_file("a/b/c", "x");
  fm_link("down", "a/b");
  fm_link("up", "/");
  fm_link("self", ".");
  fm_link("sibling/x", scratch_folder);
  ck_assert(hk_sysfs_real(scratch_folder, out, "/down/%s", "c"));
  ck_assert_str_eq(out, "/a/b/c");
  ck_assert(hk_sysfs_real(scratch_folder, out, "/self"));
  ck_assert_str_eq(out, "");
  ck_assert(!hk_sysfs_real(scratch_folder, out, "/up")); /* it leads out */
  ck_assert(!hk_sysfs_real(scratch_folder, out, "/none"));
  ck_assert(hk_sysfs_real("", out, "%s/down", scratch_folder));
  ck_assert_ptr_nonnull(strstr(out, "/a/b"));
  ck_assert(!hk_sysfs_real("/no/such/root", out, "/../../../tmp"));
  /* A folder next to the root that has the same beginning is not below it. */
  char sibling[128], link[192];
  snprintf(sibling, sizeof sibling, "%sx", scratch_folder);
  snprintf(link, sizeof link, "%s/out", scratch_folder);
  ck_assert_int_eq(mkdir(sibling, 0700), 0);
  ck_assert_int_eq(symlink(sibling, link), 0);
  ck_assert(!hk_sysfs_real(scratch_folder, out, "/out"));
  rmdir(sibling);

  ck_assert(hk_sysfs_link(scratch_folder, text, sizeof text, "/down"));
  ck_assert_str_eq(text, "b");
  ck_assert(hk_sysfs_link(scratch_folder, text, sizeof text, "/self"));
  ck_assert_str_eq(text, ".");
  ck_assert(!hk_sysfs_link(scratch_folder, text, sizeof text, "/a"));
  fm_link("long", "x/0123456789");
  ck_assert(hk_sysfs_link(scratch_folder, text, sizeof text, "/long"));
  ck_assert_str_eq(text, "0123456");
}

/* A path that is too long leads nowhere: no part of it is taken for it. */
TEST(long_roots) {
  static char root[2 * HK_SYSFS_PATH];
  char out[HK_SYSFS_PATH];
  fm_file("f", "x");
  for (size_t n = HK_SYSFS_PATH - 6; n < HK_SYSFS_PATH + 3; n++) {
    const size_t before = n - strlen(scratch_folder);
    memset(root, '/', before);
    snprintf(root + before, sizeof root - before, "%s", scratch_folder);
    ck_assert_msg(hk_sysfs_has(root, "/f") == (n + 2 < HK_SYSFS_PATH), "%zu", n);
    ck_assert_msg(hk_sysfs_real(root, out, "/f") == (n + 2 < HK_SYSFS_PATH), "%zu", n);
    if (n + 2 < HK_SYSFS_PATH) ck_assert_str_eq(out, "/f");
  }
  ck_assert(hk_sysfs_real("/", out, "tmp"));
  ck_assert_str_eq(out, "/tmp");
}

/* By the last PCI address of the path; those without one come last, and equal ones stay as they are. */
TEST(sorts_by_pci) {
  static const struct {
    const char *name, *path;
  } rows[] = {{"n0", "virtual/n0"},
              {"m3", "pci0000:00/0000:00:01.0/0000:3b:00.1/net/m3"},
              {"m2", "pci0000:00/0000:00:01.0/0000:3b:00.0/net/m2"},
              {"n1", "pci0000:00/0000:3b:00.0x/net/n1"},
              {"m6", "pci0001:00/0001:02:1f.7"},
              {"m1", "pci0000:00/0000:0a:1f.7"},
              {"m5", "pci0000:ff/0000:ff:1f.7/net/m5"},
              {"m4", "pci0000:00/0000:3b:01.0/net/m4"},
              {"same", "pci0000:00/0000:3b:00.1/net/same"}};
  enum { N = HK_ARRAY_LENGTH(rows) };
  static const char *const want[N] = {"m1", "m2", "m3", "same", "m4", "m5", "m6", "n0", "n1"};
  char path[128], target[128];
  char *devices[N + 1] = {NULL};
  for (int i = 0; i < N; i++) {
    const bool whole = i % 2; /* the entry itself is the device, or has a link to it */
    snprintf(path, sizeof path, "sys/devices/%s/x", rows[i].path);
    fm_file(path, "x");
    snprintf(path, sizeof path, "sys/class/c/%s%s", rows[i].name, whole ? "" : "/device");
    snprintf(target, sizeof target, "../../%sdevices/%s", whole ? "" : "../", rows[i].path);
    fm_link(path, target);
    devices[i] = (char *)(uintptr_t)rows[i].name;
  }
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/c", devices);
  for (int i = 0; i < N; i++) ck_assert_str_eq(devices[i], want[i]);
  ck_assert_ptr_null(devices[N]);
  char *none[1] = {NULL};
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/c", none);
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/c", NULL);
}

/* Errors of more devices than there is room for are left out; one that is known counts on. */
TEST(xids) {
  static hk_xid got[HK_XIDS + 1];
  static char log[(HK_XIDS + 3) * 80];
  int at = 0;
  for (int i = 0; i < HK_XIDS + 3; i++)
    at += sprintf(log + at, "4,7,%d,-;NVRM: Xid (PCI:0000:%02x:00): 79, pid=1, fell off\n", i, i % (HK_XIDS + 1));
  fm_file("dev/kmsg", "%s", log);
  got[HK_XIDS].number = -1;
  ck_assert_int_eq(hk_xid_read(scratch_folder, got), HK_XIDS);
  ck_assert_int_eq(got[HK_XIDS].number, -1);
  ck_assert(got[1].number == 79 && got[1].times == 2 && got[2].times == 1 && !got[1].nvswitch);
  ck_assert_str_eq(got[1].bus, "0000:01:00");
}

int main(void) { return suite_main("root", .setup = scratch_make, .teardown = scratch_remove); }
