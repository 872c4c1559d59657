/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Where parameters come from, what is refused, and who is told of a misspelling. */
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/base/param_names.h"
#include "../support/scratch.h"
#include "../support/suite.h"

extern char **environ;

/* No parameter set anywhere, log to scratch "log" at INFO. */
static void clean_slate(void) {
  scratch_make();
  for (char **e = environ; *e;) {
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
    if (!strncmp(name, "NCCL_", 5) || !strncmp(name, "HOCKET_", 7))
      unsetenv(name), e = environ; /* the array has moved together */
    else
      e++;
  }
  setenv("HOME", scratch_folder, 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
}
static void reload(void) {
  hk_param_reload();
  hk_log_reset();
}
/* What was logged by one more load. */
static const char *complaints(void) {
  reload();
  hk_param_reload();
  hk_param_report_names(true);
  return scratch_read("log");
}

TEST(defaults) {
  reload();
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 8);
  ck_assert_ptr_null(hk_param_str(HK_P_COMM_ID));
  hk_param_info info;
  hk_param_describe(HK_P_SLOTS, &info);
  ck_assert_str_eq(info.name, "HOCKET_SLOTS");
  ck_assert_str_eq(info.origin, "default");
  ck_assert_int_eq(info.value, info.def);
  ck_assert(!info.is_string && info.min == 2 && info.max == 64);
}

TEST(table_is_sound) {
  reload();
  for (int id = 0; id < HK_P_COUNT; id++) {
    hk_param_info a, b;
    hk_param_describe((hk_param_id)id, &a);
    ck_assert_msg(!strncmp(a.name, "NCCL_", 5) || !strncmp(a.name, "HOCKET_", 7), "%s", a.name);
    ck_assert_msg(a.help[0] && a.help[strlen(a.help) - 1] == '.', "%s: the help is a sentence", a.name);
    if (!a.is_string) ck_assert_msg(a.min <= a.def && a.def <= a.max, "%s: default out of range", a.name);
    ck_assert_msg(!hk_param_inert(a.name), "%s is in params_inert.def too", a.name);
    for (int other = 0; other < id; other++) {
      hk_param_describe((hk_param_id)other, &b);
      ck_assert_str_ne(a.name, b.name);
    }
  }
}

TEST(environment_wins) {
  scratch_write(".nccl.conf", "HOCKET_SLOTS=16\nNCCL_COMM_ID = a:1 # the root\n");
  reload();
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 16);
  ck_assert_str_eq(hk_param_str(HK_P_COMM_ID), "a:1");
  hk_param_info info;
  hk_param_describe(HK_P_COMM_ID, &info);
  ck_assert_str_eq(info.origin, scratch_path(".nccl.conf"));
  setenv("HOCKET_SLOTS", "32", 1);
  setenv("NCCL_COMM_ID", "b:2", 1);
  reload();
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 32);
  hk_param_describe(HK_P_COMM_ID, &info);
  ck_assert_str_eq(info.str_value, "b:2");
  ck_assert_str_eq(info.origin, "environment");
}

TEST(file_syntax) {
  scratch_write("my.conf", "# comment\n\n  HOCKET_SLOTS\t=  4 \nHOCKET_SPIN=7\nHOCKET_SPIN=8\nnonsense\nNCCL_HOSTID=");
  setenv("NCCL_CONF_FILE", scratch_path("my.conf"), 1);
  scratch_write(".nccl.conf", "HOCKET_WATCHDOG=5\n");
  const char *log = complaints();
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 4);
  ck_assert_int_eq(hk_param_int(HK_P_SPIN), 7);      /* the first one wins */
  ck_assert_int_eq(hk_param_int(HK_P_WATCHDOG), 60); /* replaced by the chosen file */
  ck_assert_ptr_null(hk_param_str(HK_P_HOSTID));
  ck_assert_ptr_nonnull(strstr(log, "my.conf:6: not of the form NAME=value: \"nonsense\""));
  setenv("NCCL_CONF_FILE", scratch_path("none.conf"), 1);
  ck_assert_ptr_nonnull(strstr(complaints(), "none.conf: No such file"));
}

TEST(numbers) {
  static const struct {
    const char *text;
    int64_t value; /* 8 is the default */
    const char *why;
  } cases[] = {
      {"2", 2, NULL},
      {"64", 64, NULL},
      {"0x10", 16, NULL},
      {"010", 8, NULL},
      {" 32 ", 32, NULL},
      {"+4", 4, NULL},
      {"", 8, NULL},
      {"1", 8, "out of range"},
      {"65", 8, "out of range"},
      {"-2", 8, "out of range"},
      {"99999999999999999999", 8, "out of range"},
      {"7x", 8, "not a number"},
      {"x", 8, "not a number"},
      {" ", 8, "not a number"},
      {"4 4", 8, "not a number"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    unlink(scratch_path("log"));
    char path[32];
    snprintf(path, sizeof path, "log%zu", i);
    setenv("NCCL_DEBUG_FILE", scratch_path(path), 1);
    setenv("HOCKET_SLOTS", cases[i].text, 1);
    complaints();
    const char *log = scratch_read(path);
    ck_assert_msg(hk_param_int(HK_P_SLOTS) == cases[i].value, "\"%s\"", cases[i].text);
    if (cases[i].why) {
      ck_assert_msg(strstr(log, cases[i].why) != NULL, "\"%s\": %s", cases[i].text, log);
      ck_assert_ptr_nonnull(strstr(log, "the range is 2 to 64 slots, using the default 8"));
    } else {
      ck_assert_msg(!strstr(log, "HOCKET_SLOTS"), "\"%s\": %s", cases[i].text, log);
    }
  }
}

TEST(sizes_of_fifos_are_rounded_up) {
  static const struct {
    const char *slots, *bytes;
    int64_t gives_slots, gives_bytes;
  } cases[] = {
      {"2", "4096", 2, 4096}, {"3", "4097", 4, 4160}, {"33", "8388607", 64, 8388608}, {"64", "8388608", 64, 8388608}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    setenv("HOCKET_SLOTS", cases[i].slots, 1);
    setenv("HOCKET_SLOT_BYTES", cases[i].bytes, 1);
    const char *log = complaints();
    ck_assert_int_eq(hk_param_int(HK_P_SLOTS), cases[i].gives_slots);
    ck_assert_int_eq(hk_param_int(HK_P_SLOT_BYTES), cases[i].gives_bytes);
    if (i == 1) ck_assert_ptr_ne(strstr(log, "HOCKET_SLOTS=3 is rounded up to 4, a power of two"), NULL);
    if (i == 1) ck_assert_ptr_ne(strstr(log, "HOCKET_SLOT_BYTES=4097 is rounded up to 4160, a multiple of 64"), NULL);
  }
}

/* NCCL's buffer is shared by the slots, within their limits; a slot's own size counts before it. */
TEST(buffers_are_shared_by_slots) {
  static const struct {
    const char *buffer, *slots, *bytes;
    int64_t gives;
    const char *origin;
  } cases[] = {{"4194304", "", "", 524288, "NCCL_BUFFSIZE"},
               {"4194304", "16", "", 262144, "NCCL_BUFFSIZE"},
               {"1000000", "", "", 125056, "NCCL_BUFFSIZE"},
               {"1024", "", "", 4096, "NCCL_BUFFSIZE"},
               {"536870912", "", "", 8388608, "NCCL_BUFFSIZE"},
               {"0", "", "", 131072, "default"},
               {"", "", "", 131072, "default"},
               {"-2", "", "", 131072, "default"},
               {"4194304", "", "65536", 65536, "environment"},
               {"4194304", "", "1", 524288, "NCCL_BUFFSIZE"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_param_info p;
    setenv("NCCL_BUFFSIZE", cases[i].buffer, 1);
    setenv("HOCKET_SLOTS", cases[i].slots, 1);
    setenv("HOCKET_SLOT_BYTES", cases[i].bytes, 1);
    reload();
    ck_assert_int_eq(hk_param_int(HK_P_SLOT_BYTES), cases[i].gives);
    hk_param_describe(HK_P_SLOT_BYTES, &p);
    ck_assert_str_eq(p.origin, cases[i].origin);
  }
}

TEST(misspellings_are_reported) {
  setenv("NCCL_DEBGU_FILE", "x", 1);
  setenv("NCCL_SOCKET_IFNAMES", "x", 1);
  setenv("HOCKET_SLOT", "x", 1);
  setenv("NCCL_SHM_DISABLED", "x", 1);
  const char *log = complaints();
  ck_assert_ptr_nonnull(
      strstr(log, "WARN NCCL_DEBGU_FILE (environment) is no parameter and is ignored; did you mean NCCL_DEBUG_FILE?"));
  ck_assert_ptr_nonnull(strstr(log, "did you mean NCCL_SOCKET_IFNAME?"));
  ck_assert_ptr_nonnull(strstr(log, "did you mean NCCL_SHM_DISABLE?"));
  ck_assert_ptr_nonnull(strstr(log, "WARN HOCKET_SLOT (environment) is no parameter and is ignored; did you mean"));
}

TEST(a_misspelling_is_told_once) {
  setenv("NCCL_DEBG", "x", 1);
  reload();
  for (int i = 0; i < 3; i++) hk_param_report_names(i < 2);
  for (int i = 0; i < 10; i++) {
    hk_param_int(HK_P_SLOTS);
    hk_log_reset();
    HK_INFO(HK_SUB_INIT, "line");
  }
  const char *first = strstr(scratch_read("log"), "NCCL_DEBG ");
  ck_assert_ptr_null(first ? strstr(first + 1, "NCCL_DEBG ") : NULL);
}

TEST(inert_names_are_no_misspellings) {
  static const char *const names[] = {
      "NCCL_IB_HCA",       "NCCL_PXN_DISABLE",  "NCCL_IB_DISABLE",    "NCCL_NVLS_ENABLE",  "NCCL_P2P_LEVEL",
      "NCCL_NET_PLUGIN",   "NCCL_IB_NEW_THING", "NCCL_VERSION",       "NCCL_CUMEM_ENABLE", "NCCL_SOCKET_INLINE",
      "NCCL_TESTS_DEVICE", "NCCL_LL_BUFFSIZE",  "HOCKET_TEST_SECONDS"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) setenv(names[i], "1", 1);
  setenv("NCCL_SOMEBODYS_PLUGIN_VARIABLE", "1", 1);
  setenv("HOCKET_MY_OWN_FOLDER", "1", 1);
  setenv("HOCKET_SIZE", "1", 1); /* two letters of four from HOCKET_SIMD: another word */
  const char *log = complaints();
  ck_assert_ptr_null(strstr(log, "WARN"));
  ck_assert_ptr_nonnull(strstr(log, "INFO NCCL_IB_NEW_THING (environment) is known and has no effect"));
  ck_assert_ptr_nonnull(strstr(log, "INFO NCCL_SOMEBODYS_PLUGIN_VARIABLE (environment) is not known here"));
  ck_assert_ptr_nonnull(strstr(log, "INFO HOCKET_MY_OWN_FOLDER (environment) is not known here"));
}

/* The names that NVIDIA's library has (tests/frameworks/nccl_variables.py) are known. */
TEST(all_of_nccl_are_known) {
  char name[128];
  int n = 0;
  FILE *f = fopen("tests/golden/nccl_variables.txt", "re");
  ck_assert_ptr_nonnull(f);
  while (fscanf(f, "%127s", name) == 1) {
    if (!getenv(name)) setenv(name, "", 1); /* parameters stay as they are */
    n++;
  }
  fclose(f);
  ck_assert_int_gt(n, 250);
  const char *log = complaints(), *at;
  at = strstr(log, "NCCL WARN ");
  ck_assert_msg(!at, "%.300s", at);
  at = strstr(log, "is not known here");
  ck_assert_msg(!at, "%.200s", at - 100);
  ck_assert_ptr_nonnull(
      strstr(log, "NCCL_CHECK_MODE (environment) is known and has no effect in this library: arguments"));
}

/* Every process of a job has the same environment: rank 0's warns, the others log it at INFO. */
TEST_LOOP(names_are_told_by_one, 2) {
  setenv("HOCKET_SLOT", "x", 1);
  setenv("HOCKET_MY_OWN_FOLDER", "1", 1);
  reload();
  hk_param_int(HK_P_SLOTS);
  HK_WARN("a line");
  ck_assert_ptr_null(strstr(scratch_read("log"), "HOCKET_SLOT "));
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), "HOCKET_MY_OWN_FOLDER (environment) is not known")); /* by all */
  hk_param_report_names(_i);
  hk_param_report_names(true);
  const char *log = scratch_read("log"), *first = strstr(log, "HOCKET_SLOT ");
  ck_assert_ptr_nonnull(strstr(log, _i ? "WARN HOCKET_SLOT (" : "INFO HOCKET_SLOT ("));
  ck_assert_ptr_nonnull(strstr(log, "did you mean HOCKET_"));
  ck_assert_ptr_null(strstr(first + 1, "HOCKET_SLOT "));
}

/* Near to the beginning of a name, in words of four letters or more. */
TEST(beginnings) {
  static const char *const wrong[][2] = {
      {"NCCL_TIPO", "NCCL_TOPO_FILE"}, {"NCCL_TOPO", "NCCL_TOPO_FILE"}, {"NCCL_TUNE", "NCCL_TUNER_PLUGIN"}};
  static const char *const others[] = {"NCCL_LIB",     "NCCL_HOME", "NCCL_ROOT",       "NCCL_ROOT_DIR",
                                       "NCCL_LIBRARY", "NCCL_DIR",  "NCCL_INCLUDE_DIR"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) setenv(wrong[i][0], "x", 1);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) setenv(others[i], "x", 1);
  const char *log = complaints();
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char line[160];
    snprintf(line, sizeof line, "WARN %s (environment) is no parameter and is ignored; did you mean %s?", wrong[i][0],
             wrong[i][1]);
    ck_assert_msg(strstr(log, line) != NULL, "no \"%s\" in: %s", line, log);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char line[80];
    snprintf(line, sizeof line, "WARN %s ", others[i]);
    ck_assert_msg(!strstr(log, line), "%s", log);
  }
}

TEST(refresh_reads_one) {
  reload();
  setenv("HOCKET_SLOTS", "16", 1);
  setenv("HOCKET_SPIN", "3", 1);
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 8);
  hk_param_refresh(HK_P_SLOTS);
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 16);
  setenv("HOCKET_SLOTS", "many", 1);
  hk_param_refresh(HK_P_SLOTS);
  ck_assert_int_eq(hk_param_int(HK_P_SLOTS), 8);
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), "WARN HOCKET_SLOTS=many (environment) is not a number"));
  ck_assert_int_eq(hk_param_int(HK_P_SPIN), -1);
}

TEST(words_are_whole) {
  static const char *const given[] = {"hos", "hosts", "most", "host"};
  for (int i = 0; i < 4; i++) {
    setenv("HOCKET_DEVICE", given[i], 1);
    reload();
    const char *device = hk_param_str(HK_P_DEVICE);
    ck_assert_msg((i == 3) == (device != NULL), "%s", given[i]);
  }
}

TEST(strings_stay) {
  setenv("NCCL_HOSTID", "first", 1);
  reload();
  const char *first = hk_param_str(HK_P_HOSTID);
  setenv("NCCL_HOSTID", "second", 1);
  reload();
  ck_assert_str_eq(first, "first");
  ck_assert_str_eq(hk_param_str(HK_P_HOSTID), "second");
}

TEST(distances) {
  static const struct {
    const char *a, *b;
    unsigned distance;
  } cases[] = {{"ABC", "ABC", 0}, {"ABC", "AC", 1},    {"ABC", "ABXC", 1}, {"ABC", "AXC", 1},
               {"ABC", "ACB", 1}, {"ABCD", "BADC", 2}, {"", "ABC", 3},     {"KITTEN", "SITTING", 3}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    unsigned d;
    ck_assert_ptr_eq(hk_param_nearest(cases[i].a, &cases[i].b, 1, &d), cases[i].b);
    ck_assert_uint_eq(d, cases[i].distance);
    hk_param_nearest(cases[i].b, &cases[i].a, 1, &d);
    ck_assert_uint_eq(d, cases[i].distance);
  }
}

/* What a program sets between two communicators has its effect on the second; nothing is read if nothing changed. */
TEST(renewed) {
  setenv("NCCL_MAX_NCHANNELS", "3", 1);
  hk_param_reload();
  setenv("PATH_OF_OTHERS", "x", 1);
  hk_param_renew();
  ck_assert_int_eq(hk_param_int(HK_P_MAX_NCHANNELS), 3);
  setenv("NCCL_MAX_NCHANNELS", "4", 1);
  ck_assert_int_eq(hk_param_int(HK_P_MAX_NCHANNELS), 3);
  hk_param_renew();
  ck_assert_int_eq(hk_param_int(HK_P_MAX_NCHANNELS), 4);
  setenv("NCCL_ALGO", "Tree", 1);
  hk_param_renew();
  ck_assert_str_eq(hk_param_str(HK_P_ALGO), "Tree");
  unsetenv("NCCL_MAX_NCHANNELS");
  hk_param_renew();
  ck_assert_int_eq(hk_param_int(HK_P_MAX_NCHANNELS), 0);
}

int main(void) { return suite_main("param", .setup = clean_slate, .teardown = scratch_remove); }
