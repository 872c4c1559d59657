/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Random programs.  Valid ones must be proved, broken ones rejected; and what the verifier accepts, by whatever way it
 * came about, must give right results in every schedule that a plain interpreter tries.  Damaged text crashes nothing.
 * HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include "../../src/program/verify.h"
#include "../support/fuzz.h"
#include "../support/randprog.h"
#include "../support/refrun.h"
#include "../support/suite.h"

static hk_status verify(const randprog *p, unsigned slots, unsigned waves, bool in_place, hk_verify_report *report) {
  hk_verify_options o = {.slots = slots, .waves = waves, .in_place = in_place, .orders = true};
  return hk_verify((const hk_program *const *)p->programs, p->nranks, &o, report);
}

#define WHERE "seed %llu, %s, %d ranks, %u slots, %u waves, %s"
#define WHERE_ARGS                                                                                                     \
  (unsigned long long)seed, hk_coll_name(p.coll), p.nranks, slots, waves, in_place ? "in place" : "out of place"

TEST(valid_is_proved) {
  fuzz_begin(300);
  uint64_t seed = fuzz_seed;
  do {
    randprog p;
    randprog_make(&p, seed, 0, -1);
    for (unsigned k = 0; k < 4; k++) {
      unsigned slots = p.slots + k / 2, waves = 1 + k % 2 * 2;
      bool in_place = k & 1;
      hk_verify_report report;
      ck_assert_msg(verify(&p, slots, waves, in_place, &report) == HK_OK, WHERE ": %s", WHERE_ARGS, report.message);
      const char *trouble = refrun(p.programs, p.nranks, slots, waves, in_place, seed + k);
      ck_assert_msg(!trouble, WHERE ": %s", WHERE_ARGS, trouble);
    }
    randprog_free(&p);
  } while (seed++, fuzz_goes_on());
}

TEST(broken_is_rejected) {
  fuzz_begin(5000);
  uint64_t seed = fuzz_seed;
  do {
    randprog p;
    randprog_make(&p, seed, 0, -1);
    const char *what = randprog_break(&p, seed * 31);
    unsigned slots = p.slots, waves = 1;
    bool in_place = false;
    hk_verify_report report;
    if (what) {
      ck_assert_msg(verify(&p, slots, waves, in_place, &report) == HK_ERR_INTERNAL, WHERE ": %s, not rejected",
                    WHERE_ARGS, what);
      ck_assert_msg(report.rank >= 0 && strstr(report.message, "rank"), WHERE ": \"%s\"", WHERE_ARGS, report.message);
    }
    randprog_free(&p);
  } while (seed++, fuzz_goes_on());
}

TEST(accepted_runs_right) {
  fuzz_begin(100);
  uint64_t seed = fuzz_seed;
  do {
    randprog p;
    randprog_make(&p, seed, 0, -1);
    const char *what = randprog_shake(&p, seed * 31);
    unsigned slots = p.slots, waves = 1 + (unsigned)(seed / 2 % 2);
    bool in_place = seed & 1;
    hk_verify_report report;
    if (what && verify(&p, slots, waves, in_place, &report) == HK_OK)
      for (unsigned k = 0; k < 20; k++) {
        const char *trouble = refrun(p.programs, p.nranks, slots, waves, in_place, seed * 64 + k);
        ck_assert_msg(!trouble, WHERE ": %s, accepted, but %s", WHERE_ARGS, what, trouble);
      }
    randprog_free(&p);
  } while (seed++, fuzz_goes_on());
}

/* Changes a few bytes: digits, brackets, words and lines. */
static void damage(char *text, uint64_t *seed) {
  static const char likely[] = "0123456789 b[]()+-<,:jnoutscrapdevml\n@";
  size_t n = strlen(text);
  for (unsigned k = 1 + random_below(seed, 3); k; k--) {
    char *at = text + random_below(seed, (unsigned)n);
    if (random_below(seed, 2) && *at >= '0' && *at <= '9')
      *at = (char)('0' + random_below(seed, 10));
    else if (random_below(seed, 4) == 0)
      *at = likely[random_below(seed, sizeof likely - 1)];
    else
      memmove(at, at + strcspn(at, "\n"), strlen(at + strcspn(at, "\n")) + 1);
    n = strlen(text);
    if (!n) return;
  }
}

TEST(damaged_text) {
  fuzz_begin(4000);
  uint64_t seed = fuzz_seed;
  do {
    randprog p;
    uint64_t random = seed;
    randprog_make(&p, seed, 0, -1);
    int r = (int)random_below(&random, (unsigned)p.nranks);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    hk_program_dump(p.programs[r], f);
    fclose(f);
    hk_program *again;
    ck_assert_msg(hk_program_parse(text, &again) == HK_OK, "seed %llu: %s", (unsigned long long)seed, hk_last_error());
    ck_assert_uint_eq(again->bytes, p.programs[r]->bytes);
    ck_assert_mem_eq(again, p.programs[r], again->bytes);
    hk_program_free(p.programs[r]);
    p.programs[r] = again;
    damage(text, &random);
    if (hk_program_parse(text, &again) == HK_OK) {
      hk_verify_report report;
      hk_program_free(p.programs[r]);
      p.programs[r] = again;
      hk_status rc = verify(&p, p.slots, 2, seed & 1, &report);
      ck_assert_msg((rc == HK_OK) == !report.message[0], "seed %llu", (unsigned long long)seed);
    }
    free(text);
    randprog_free(&p);
  } while (seed++, fuzz_goes_on());
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 1); /* a damaged text's fault is no news */
  return suite_main("fuzz-program", .timeout = 0);
}
