/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the verifier must accept. */
#include "../support/golden.h"
#include "../support/prove_algorithms.h"
#include "../support/randprog.h"
#include "../support/suite.h"
#include "../support/textbook.h"

#define GOLDEN "tests/golden/verify_sets.txt" /* the most sets of ranks at once, for 3 waves and for 10 */

static void expect_proved(hk_program **p, int n, unsigned slots, unsigned waves, bool in_place) {
  hk_verify_options o = {.slots = slots, .waves = waves, .in_place = in_place};
  hk_verify_report report;
  hk_status rc = hk_verify((const hk_program *const *)p, n, &o, &report);
  ck_assert_msg(rc == HK_OK, "%u slots, %u waves, %s: %s", slots, waves, in_place ? "in place" : "out of place",
                report.message);
  ck_assert_str_eq(report.message, "");
  ck_assert_int_eq(report.rank, -1);
}

TEST_LOOP(textbook_is_proved, (int)textbook_count) {
  const textbook_entry *e = &textbook[_i];
  static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 65};
  for (size_t s = 0; s < HK_ARRAY_LENGTH(sizes); s++) {
    int n = sizes[s];
    for (int root = 0; root < (hk_coll_has_root(e->coll) ? n : 1); root += 1 + n / 5) {
      hk_program **p = textbook_build(e, n, root);
      ck_assert_ptr_nonnull(p);
      for (unsigned k = 0; k < 24; k++) expect_proved(p, n, 2 + k % 4, 1 + k / 4 % 3, k >= 12);
      programs_free(p, n);
    }
  }
}

TEST(a_thousand_ranks) {
  hk_program **p = textbook_build(textbook_find("ring-allreduce"), 1000, 0);
  hk_verify_options o = {.slots = 2, .waves = 2, .in_place = true};
  hk_verify_report report;
  ck_assert_int_eq(hk_verify((const hk_program *const *)p, 1000, &o, &report), HK_OK);
  ck_assert_uint_eq(report.steps, 2 * 1000 * 1999);
  programs_free(p, 1000);
}

/* Programs from text, one string a rank. */
static hk_program **parse(const char *const *texts, int n) {
  hk_program **p = calloc((size_t)n, sizeof *p);
  for (int r = 0; r < n; r++) ck_assert_msg(hk_program_parse(texts[r], &p[r]) == HK_OK, "%s", hk_last_error());
  return p;
}
static void expect_text_proved(const char *const *texts, int n, unsigned slots, bool in_place) {
  hk_program **p = parse(texts, n);
  for (unsigned waves = 1; waves < 4; waves++) expect_proved(p, n, slots, waves, in_place);
  programs_free(p, n);
}

#define REDUCE2(rank, lanes)                                                                                           \
  "AllReduce test, rank " rank " of 2, message split into 1, scratch 1, lanes 1, links 2, instructions 3\n" lanes

/* A reference is over once the receiver has answered, or once the credit for its slot was used. */
TEST(references_end) {
  expect_text_proved((const char *const[]){REDUCE2("0", "lane 0\n  links: 0=send(1) 1=recv(1)\n"
                                                        "  0: send(1)[b0] <- in[b0]\n"
                                                        "  1: out[b0] <- recv(1)[b0]\n"),
                                           REDUCE2("1", "lane 0\n  links: 0=send(0) 1=recv(0)\n"
                                                        "  0: out[b0] <- recv(0)[b0] + in[b0], final\n"
                                                        "  1: send(0)[b0] <- out[b0]\n")},
                     2, 1, true);
  /* With one slot, sending the second needs the first's credit; its answer comes on another channel. */
  expect_text_proved((const char *const[]){REDUCE2("0", "lane 0\n  links: 0=send(1) 1=recv(1@3)\n"
                                                        "  0: send(1)[b0] <- in[b0]\n"
                                                        "  1: send(1)[b0] <- none\n"
                                                        "  2: out[b0] <- recv(1@3)[b0]\n"),
                                           REDUCE2("1", "lane 0\n  links: 0=recv(0) 1=send(0@3)\n"
                                                        "  0: scratch[b0] <- recv(0)[b0] + in[b0], final\n"
                                                        "  1: none <- recv(0)[b0]\n"
                                                        "  2: out[b0], send(0@3)[b0] <- scratch[b0]\n")},
                     2, 1, true);
}

/* Lane 1 reads what lane 0 wrote; only the path over the other rank orders the two. */
TEST(lanes_ordered_by_a_peer) {
  expect_text_proved((const char *const[]){REDUCE2("0", "lane 0\n  links: 0=send(1) 1=recv(1)\n"
                                                        "  0: send(1)[b0] <- in[b0]\n"
                                                        "  1: out[b0] <- in[b0] + recv(1)[b0], final\n"
                                                        "  2: send(1)[b0] <- none\n"
                                                        "lane 1\n  links: 2=recv(1) 3=send(1)\n"
                                                        "  3: none <- recv(1)[b0]\n"
                                                        "  4: send(1)[b0] <- out[b0]\n"),
                                           REDUCE2("1", "lane 0\n  links: 0=recv(0) 1=send(0) 2=send(0@1)\n"
                                                        "  0: scratch[b0] <- recv(0)[b0]\n"
                                                        "  1: send(0)[b0] <- in[b0]\n"
                                                        "  2: none <- recv(0)[b0]\n"
                                                        "  3: send(0@1)[b0] <- none\n"
                                                        "lane 1\n  links: 3=recv(0)\n"
                                                        "  4: out[b0] <- recv(0)[b0]\n")},
                     2, 1, false);
}

/* In an uneven collective an empty slot has no length that its receiver would know. */
TEST(empty_slot_of_uneven) {
  static const char *const texts[] = {"AllGatherv test, rank 0 of 2, messages in 1 out 2, scratch 0\nlane 0\n"
                                      "  links: 0=send(1) 1=recv(1)\n"
                                      "  0: out[b0], send(1)[b0] <- in[b0]\n  1: out[b1] <- recv(1)[b1]\n"
                                      "  2: send(1)[b0] <- none\n",
                                      "AllGatherv test, rank 1 of 2, messages in 1 out 2, scratch 0\nlane 0\n"
                                      "  links: 0=send(0) 1=recv(0)\n"
                                      "  0: out[b1], send(0)[b1] <- in[b0]\n  1: out[b0] <- recv(0)[b0]\n"
                                      "  2: none <- recv(0)[b0]\n"};
  hk_program **p = parse(texts, 2);
  hk_verify_report r;
  const hk_verify_options o = {.slots = 2, .waves = 1};
  ck_assert_int_eq(hk_verify((const hk_program *const *)p, 2, &o, &r), HK_ERR_INTERNAL);
  ck_assert_msg(strstr(r.message, "it names no block of input or output") && r.instr == 2, "%s", r.message);
  programs_free(p, 2);
}

TEST(bad_arguments) {
  hk_program **p = textbook_build(textbook_find("flat-gather"), 2, 0);
  hk_verify_report report;
  hk_verify_options o = {.slots = 0, .waves = 1};
  ck_assert_int_eq(hk_verify((const hk_program *const *)p, 2, &o, &report), HK_ERR_ARGUMENT);
  ck_assert_str_eq(report.message, "nothing to verify: 2 ranks, 0 slots, 1 waves");
  o.slots = 1;
  ck_assert_int_eq(hk_verify((const hk_program *const *)p, 0, &o, &report), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_verify((const hk_program *const *)p, HK_VERIFY_MOST + 1, &o, &report), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(report.message, "the verifier takes at most 65535 of each"));
  programs_free(p, 2);
}

/* ---- what no text says ---- */

/* A field of a random lane, link, instruction or operand gets another value, and what the verifier says of it is as
 * before. */
static void say_field(void *arg, const char *name, unsigned k, char *said) {
  static const uint32_t values[] = {0, 1, 2, 3, 4, 8, 16, 255, 256, 65535, UINT32_MAX};
  const textbook_entry *e = arg;
  uint64_t seed = golden_hash(k, name, strlen(name));
  hk_program **p = textbook_build(e, 3, 0), *x = p[random_below(&seed, 3)];
  const struct {
    uint32_t at, n, bytes;
  } parts[] = {{x->lanes_at, x->nlanes, sizeof(hk_lane)},
               {x->links_at, x->nlinks, sizeof(hk_link_need)},
               {x->instrs_at, x->ninstrs, sizeof(hk_instr)},
               {x->instrs_at, x->ninstrs, 16},
               {x->operands_at, x->noperands, sizeof(hk_operand)}};
  unsigned part = random_below(&seed, HK_ARRAY_LENGTH(parts));
  if (parts[part].n) {
    const size_t width = (size_t)1 << random_below(&seed, 3);
    const size_t from = random_below(&seed, parts[part].bytes / (unsigned)width) * width;
    char *to = (char *)x + parts[part].at + random_below(&seed, parts[part].n) * parts[part].bytes + from;
    const uint32_t value = values[random_below(&seed, HK_ARRAY_LENGTH(values))];
    memcpy(to, &value, width);
  }
  hk_verify_options o = {.slots = 2, .waves = 2, .in_place = k % 2, .orders = true};
  hk_verify_report r;
  hk_status rc = hk_verify((const hk_program *const *)p, 3, &o, &r);
  snprintf(said, GOLDEN_TEXT, "%d at %d %d %d after %llu: %s", rc, r.rank, r.lane, r.instr, (unsigned long long)r.steps,
           r.message);
  programs_free(p, 3);
}
/* Operands that begin or end after the table's. */
TEST(outside_the_table) {
  static const uint32_t wrong[] = {5, 9, UINT32_MAX};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(wrong); k++) {
    hk_program **p = textbook_build(textbook_find("oneshot-allreduce"), 4, 0);
    hk_instr *i = (hk_instr *)((char *)p[1] + p[1]->instrs_at) + 1;
    hk_verify_report r;
    ck_assert(i->flags & HK_INSTR_TABLE && i->table == 4 && p[1]->noperands == 9);
    i->table = wrong[k];
    ck_assert_int_eq(hk_verify((const hk_program *const *)p, 4, &(hk_verify_options){.slots = 2, .waves = 1}, &r),
                     HK_ERR_INTERNAL);
    ck_assert_msg(r.rank == 1 && strstr(r.message, "its 5 operands do not fit"), "%s", r.message);
    programs_free(p, 4);
  }
}

TEST(fields) {
  golden g = golden_open(GOLDEN, "fields");
  for (size_t k = 0; k < textbook_count; k++) {
    char name[100];
    snprintf(name, sizeof name, "fields of %s", textbook[k].name);
    golden_texts(&g, name, name, 60, say_field, (void *)(uintptr_t)&textbook[k]);
  }
  golden_close(&g);
}

/* ---- memory ---- */

/* A value that is not dropped when nothing holds it any more is no fault of a program, but takes memory each wave. */
TEST_LOOP(memory, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  char name[100];
  snprintf(name, sizeof name, "%s|", a->name);
  golden g = golden_open(GOLDEN, name);
  for (int nranks = 2; nranks <= 8; nranks += 3) {
    hk_machine m = prove_machine(nranks);
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      double sets[2];
      if (!hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
      hk_program **p = prove_build(a, (hk_coll)c, nranks, 0);
      for (unsigned k = 0; k < 2; k++) {
        hk_verify_options o = {.slots = 2, .waves = k ? 10 : 3, .in_place = true, .orders = true};
        hk_verify_report report;
        hk_status rc = hk_verify((const hk_program *const *)p, nranks, &o, &report);
        ck_assert_msg(rc == HK_OK, "%s %s of %d: %s", a->name, hk_coll_name((hk_coll)c), nranks, report.message);
        sets[k] = report.sets;
      }
      snprintf(name, sizeof name, "%s of %d", hk_coll_name((hk_coll)c), nranks);
      golden_figures(&g, a->name, name, 2, sets);
      prove_free(p, nranks);
    }
  }
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("verify", .timeout = 300);
}
