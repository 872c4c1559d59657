/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Random configuration files and environments: no input makes the parameter table give a value out of its range, crash,
 * or forget a value that was rightly given. */
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/base/param_names.h"
#include "../support/fuzz.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static const char *any_name(void) {
  hk_param_info info;
  hk_param_describe((hk_param_id)rnd(HK_P_COUNT), &info);
  return info.name;
}

static size_t any_text(char *out, size_t longest) {
  static const char likely[] = "=#\n \t,^%0123456789xX-+NCCL_DEBUG";
  size_t n = rnd((uint32_t)longest + 1);
  for (size_t i = 0; i < n; i++) out[i] = (char)(rnd(4) ? likely[rnd(sizeof likely - 1)] : (char)(1 + rnd(255)));
  out[n] = 0;
  return n;
}

/* Lines that are nearly right, and bytes that are not. */
static void write_config(void) {
  FILE *f = fopen(scratch_path("conf"), "we");
  ck_assert_ptr_nonnull(f);
  for (uint32_t lines = rnd(20); lines; lines--) {
    char junk[200];
    switch (rnd(6)) {
      case 0: fprintf(f, "%s=%lld\n", any_name(), (long long)(int32_t)rnd(~0u >> rnd(31))); break;
      case 1: any_text(junk, 40), fprintf(f, "%s=%s\n", any_name(), junk); break;
      case 2: any_text(junk, 199), fprintf(f, "%s", junk); break;
      case 3: any_text(junk, 10), fprintf(f, "%s%s = 1\n", any_name(), junk); break;
      case 4: fprintf(f, "%*s\n", (int)rnd(9000), "x=1"); break;
      case 5: fputc(0, f); break; /* a byte that ends a C string */
    }
  }
  fclose(f);
}

static void check_table(void) {
  for (int id = 0; id < HK_P_COUNT; id++) {
    hk_param_info info;
    hk_param_describe((hk_param_id)id, &info);
    ck_assert_msg(info.origin && info.origin[0], "seed %llu: %s has no origin", (unsigned long long)fuzz_seed,
                  info.name);
    if (info.is_string) {
      ck_assert_msg(!info.str_value || info.str_value[0] || info.str_def, "seed %llu: %s is empty",
                    (unsigned long long)fuzz_seed, info.name);
    } else {
      ck_assert_msg(info.min <= info.value && info.value <= info.max, "seed %llu: %s=%lld",
                    (unsigned long long)fuzz_seed, info.name, (long long)info.value);
    }
  }
}

/* A right value must come through, whatever nonsense stands around it; the sizes of FIFOs may be rounded up. */
static void check_one_value(void) {
  hk_param_id id = (hk_param_id)rnd(HK_P_COUNT);
  hk_param_info info;
  hk_param_describe(id, &info);
  if (info.is_string) return;
  uint64_t span = (uint64_t)info.max - (uint64_t)info.min;
  int64_t value = (int64_t)((uint64_t)info.min + (span == UINT64_MAX ? rnd64() : rnd64() % (span + 1)));
  char text[32];
  snprintf(text, sizeof text, rnd(2) && value >= 0 ? "0x%llx" : "%lld", (long long)value);
  setenv(info.name, text, 1);
  hk_param_reload();
  bool rounded = (id == HK_P_SLOTS && hk_param_int(id) / 2 < value) ||
                 (id == HK_P_SLOT_BYTES && hk_param_int(id) < value + 64);
  ck_assert_msg(hk_param_int(id) == value || (rounded && hk_param_int(id) > value), "seed %llu: %s=%s gave %lld",
                (unsigned long long)fuzz_seed, info.name, text, (long long)hk_param_int(id));
  unsetenv(info.name);
}

TEST(files_and_environments) {
  fuzz_begin(400);
  scratch_make();
  setenv("HOME", scratch_folder, 1);
  setenv("NCCL_CONF_FILE", scratch_path("conf"), 1);
  setenv("NCCL_DEBUG", "TRACE", 1); /* lines are formatted, though nobody reads them */
  setenv("NCCL_DEBUG_FILE", "/dev/null", 1);
  do {
    char junk[100];
    const char *name = any_name();
    int mine = strcmp(name, "NCCL_CONF_FILE") && strncmp(name, "NCCL_DEBUG", 10);
    write_config();
    if (mine) any_text(junk, 99), setenv(name, junk, 1);
    hk_param_reload();
    check_table();
    check_one_value();
    if (mine) unsetenv(name);
  } while (fuzz_goes_on());
  scratch_remove();
}

TEST(log_settings) {
  fuzz_begin(1000);
  scratch_make();
  setenv("NCCL_DEBUG", "TRACE", 1);
  ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout)); /* names that cannot be opened fall back to it */
  do {
    char junk[100], path[400];
    any_text(junk, 99);
    setenv(rnd(4) ? "NCCL_DEBUG_SUBSYS" : "NCCL_DEBUG", junk, 1);
    any_text(junk, 99);
    for (char *c = junk; *c; c++)
      if (*c == '/') *c = '%';
    snprintf(path, sizeof path, "%s/%s", scratch_folder, rnd(2) ? "%h%p%" : junk);
    setenv("NCCL_DEBUG_FILE", path, 1);
    hk_log_reset();
    HK_INFO(HK_SUB_NET, "%s", junk);
    HK_WARN("%s", junk);
  } while (fuzz_goes_on());
  scratch_remove();
}

TEST(nearest_names) {
  fuzz_begin(100000);
  do {
    char junk[120];
    const char *name = any_name(), *list[] = {name, junk};
    size_t n = any_text(junk, 119);
    unsigned there, back;
    const char *found = hk_param_nearest(junk, list, 1, &there);
    ck_assert_msg((found == NULL) == (n > 96), "seed %llu", (unsigned long long)fuzz_seed);
    if (!found) continue;
    hk_param_nearest(name, &list[1], 1, &back);
    size_t m = strlen(name);
    ck_assert_uint_eq(there, back);
    ck_assert_uint_ge(there, n > m ? n - m : m - n);
    ck_assert_uint_le(there, n > m ? n : m);
    ck_assert_int_eq(there == 0, !strcmp(name, junk));
  } while (fuzz_goes_on());
}

int main(void) { return suite_main("fuzz_param"); }
