/* SPDX-License-Identifier: Apache-2.0 */
/* Files in MSCCL's XML: written for many ranks, read, proved; and broken, refused with the place and the reason. */
#include "../../src/formats/file.h"
#include "../../src/program/program.h"
#include "../support/broken.h"
#include "../support/msccl_files.h"
#include "../support/suite.h"

/* Reads and proves; frees the text. */
static void proved(char *text, int nranks, const char *what) {
  hk_program_file m;
  for (unsigned slots = 4; slots <= 8; slots *= 2) {
    ck_assert_msg(hk_program_file_read(&m, "file", text, slots) == HK_OK, "%s of %d: %s", what, nranks,
                  hk_last_error());
    ck_assert_int_eq(m.sets->nranks, nranks);
    hk_program_file_free(&m);
  }
  free(text);
}

TEST_LOOP(files, 15) {
  const int n = _i + 2;
  proved(msccl_ring(n, 1, ""), n, "ring");
  proved(msccl_ring(n, 3, "inplace=\"1\""), n, "three rings");
  if (n > 2) proved(msccl_pairs(n), n, "pairs");
  if (n > 2) proved(msccl_pairs_by(n, true), n, "pairs that add in scratch memory");
  for (int parts = 1; parts < 4; parts += 2) {
    proved(msccl_direct(n, parts, "allgather"), n, "allgather");
    proved(msccl_direct(n, parts, "alltoall"), n, "alltoall");
  }
}

/* Blocks that wait for each other, or have the same peers, are one lane; the others have their own. */
TEST(lanes) {
  hk_program_file m;
  char *text = msccl_pairs(5);
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_OK);
  ck_assert_int_eq(m.sets->programs[0]->nlanes, 1);
  ck_assert_int_eq(m.sets->programs[0]->scratch_blocks, 0); /* what is received is added where it arrives */
  ck_assert(m.sets->in_place && !m.sets->out_of_place);
  ck_assert_uint_eq(m.sets->least, 64);
  ck_assert_uint_eq(m.sets->most, 65536);
  hk_program_file_free(&m);
  free(text);
  text = msccl_ring(4, 3, "");
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_OK);
  ck_assert_int_eq(m.sets->programs[2]->nlanes, 2); /* there, and back */
  ck_assert_int_eq(m.sets->programs[2]->blocks, 12);
  ck_assert_int_eq(m.sets->programs[2]->traits.span, 1);
  ck_assert_str_eq(m.sets->programs[2]->algorithm, "made_up");
  ck_assert(!m.sets->in_place && m.sets->out_of_place);
  hk_program_file_free(&m);
  free(text);
}

/* Parts of a message that all ranks treat alike become one. */
TEST(folds) {
  static const struct { int parts, blocks; } rings[] = {{1, 5}, {2, 10}, {3, 15}, {4, 10}, {8, 10}};
  hk_program_file m;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rings); i++) {
    char *text = msccl_ring(5, rings[i].parts, "");
    ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_OK);
    ck_assert_int_eq(m.sets->programs[2]->blocks, rings[i].blocks);
    hk_program_file_free(&m);
    free(text);
  }
  char *text = msccl_direct(4, 3, "alltoall");
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_OK);
  ck_assert_int_eq(hk_program_parts(m.sets->programs[2]), 1);
  hk_program_file_free(&m);
  free(text);
}

/* Old files do not name their collective. */
TEST(old) {
  hk_program_file m;
  char *texts[] = {broken(msccl_ring(4, 1, ""), "coll=\"allreduce\"", 1, ""),
                   broken(msccl_direct(4, 1, "allgather"), "coll=\"allgather\"", 1, ""),
                   broken(msccl_direct(4, 1, "alltoall"), "coll=\"alltoall\"", 1, "")};
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_ALLGATHER, HK_ALLTOALL};
  for (int i = 0; i < 3; i++) {
    ck_assert_msg(hk_program_file_read(&m, "file", texts[i], 8) == HK_OK, "%s", hk_last_error());
    ck_assert_int_eq(m.sets->programs[0]->coll, colls[i]);
    hk_program_file_free(&m);
    free(texts[i]);
  }
  char *none = broken(broken(msccl_ring(4, 1, ""), "coll=\"allreduce\"", 1, ""), "type=\"rrs\"", 1, "type=\"rcs\"");
  ck_assert_int_eq(hk_program_file_read(&m, "file", none, 8), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "is missing, and the steps do no collective. As AllReduce: file:"));
  ck_assert_int_eq(m.nsets, 0);
  hk_program_file_free(&m);
  free(none);
}

/* ---- what is wrong ---- */

static const struct {
  char kind; /* r: msccl_ring(4, 1); p: msccl_pairs(4); g: allgather; a: alltoall */
  const char *what;
  int n;
  const char *by, *error;
} faults[] = {
    {'r', "<algo", 0, "", "file:1:1: "},
    {'r', "coll=\"allreduce\"", 1, "coll=\"allsum\"", ":1:1: coll=\"allsum\" of <algo> is no collective"},
    {'r', "type=\"rrs\"", 1, "type=\"rss\"", ":5:1: type=\"rss\" of <step> is none of s, r"},
    {'r', "type=\"rrs\"", 1, "type=\"rcs\"", "gpu 0: chunk 3 of its output lacks the part of gpu 0"},
    {'r', "type=\"rrs\"", 2, "type=\"s\"", "gpu 0, block 0, step 3 (rrcs) adds chunk 2 of the message to chunk 1"},
    {'r', "srcoff=\"3\"", 1, "srcoff=\"2\"", "gpu 0, block 0, step 1 (rrs) adds chunk 3 of the message to chunk 2"},
    {'r', "dstoff=\"1\"", 1, "dstoff=\"9\"", "uses chunk 9 of buffer i, which has 4"},
    {'r', "s=\"3\"", 1, "s=\"4\"", "follows step 2"},
    {'r', "recv=\"3\"", 1, "recv=\"2\"", "gpu 0, block 0, step 1 (rrs) waits for ever: gpu 2 sends only 0 messages"},
    {'r', "send=\"1\"", 1, "send=\"0\"", "its own gpu"},
    {'p', "depid=\"1\" deps=\"1\"", 1, "depid=\"1\" deps=\"9\"", "step 9 of block 1, which does not exist"},
    {'p', "depid=\"1\" deps=\"1\"", 1, "depid=\"1\" deps=\"2\"",
     "gpu 0, block 0, step 2 (re) waits for ever: for step 2 of block 1"},
    {'p', "type=\"re\" srcbuf=\"s\" srcoff=\"1\"", 1, "type=\"re\" srcbuf=\"s\" srcoff=\"0\"",
     "adds the part of gpu 3 of chunk 0, which the sum has already"},
    {'p', "type=\"nop\"", 1, "type=\"re\"", "cnt=\"0\" of <step>"},
    {'p', "ngpus=\"4\"", 1, "ngpus=\"5\"", "there are 4 <gpu>, and <algo> names 5"},
    {'p', "<tb id=\"1\"", 1, "<tb id=\"2\"", "blocks are numbered from 0 on, and 1 is missing"},
    {'g', "type=\"s\"", 1, "type=\"nop\"", "gpu 1, block 0, step 1 (r) waits for ever"},
    {'g', "dstoff=\"2\"", 1, "dstoff=\"3\"", "gpu 0: chunk 2 of its output holds nothing"},
    {'g', "nchunksperloop=\"4\"", 1, "nchunksperloop=\"6\"", "does not divide the 4 messages of AllGather evenly"},
    {'a', "srcoff=\"1\"", 1, "srcoff=\"2\"", "gpu 1: chunk 0 of its output holds chunk 2 of gpu 0"},
    {'a', "type=\"s\"", 1, "type=\"rrs\"", "adds, and AlltoAll only copies"},
};

TEST_LOOP(refused, HK_ARRAY_LENGTH(faults)) {
  const char kind = faults[_i].kind;
  hk_program_file m;
  char *text = kind == 'r'   ? msccl_ring(4, 1, "")
               : kind == 'p' ? msccl_pairs(4)
                             : msccl_direct(4, 1, kind == 'g' ? "allgather" : "alltoall");
  if (faults[_i].n)
    text = broken(text, faults[_i].what, faults[_i].n, faults[_i].by);
  else
    text[1] = 0;
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), faults[_i].error) != NULL, "said: %s", hk_last_error());
  hk_program_file_free(&m);
  free(text);
}

int main(void) { return suite_main("msccl", .timeout = 60); }
