/* SPDX-License-Identifier: Apache-2.0 */
/* Execution plans in MSCCL++'s JSON: written for many ranks, read, proved; and broken, refused with the place and the
 * reason. */
#include "../../src/formats/file.h"
#include "../../src/formats/json_tree.h"
#include "../../src/program/program.h"
#include "../support/broken.h"
#include "../support/mscclpp_files.h"
#include "../support/suite.h"

/* Reads and proves; frees the text. */
static void proved(char *text, int n, int lanes, const char *what) {
  hk_program_file m;
  for (unsigned slots = 2; slots <= 8; slots *= 2) {
    ck_assert_msg(hk_program_file_read(&m, "file", text, slots) == HK_OK, "%s of %d: %s", what, n, hk_last_error());
    ck_assert_int_eq(m.sets->nranks, n);
    ck_assert_str_eq(m.sets->programs[0]->algorithm, "written");
    for (int r = 0; r < n; r++) ck_assert_int_eq(m.sets->programs[r]->nlanes, lanes);
    hk_program_file_free(&m);
  }
  free(text);
}

/* Thread blocks that do the same with their parts of a message become one lane. Others have lanes of their own, if they
 * share no memory. */
TEST_RANGE(plans, 2, 9) {
  const int n = _i;
  for (int parts = 1; parts < 4; parts++) {
    proved(mscclpp_packets(n, parts), n, 1, "packets");
    for (int gate = 0; gate < 4; gate++) proved(mscclpp_puts(n, parts, gate), n, 1, "puts");
    for (int get = 0; get < 2; get++) {
      proved(mscclpp_direct(n, parts, 0, get), n, 1, get ? "allgather by gets" : "allgather by puts");
      proved(mscclpp_direct(n, parts, 1, get), n, 1, get ? "alltoall by gets" : "alltoall by puts");
    }
    for (int alltoall = 0; alltoall < 2; alltoall++)
      proved(mscclpp_direct(n, parts, alltoall, 3), n, 1, "puts of several thread blocks");
    for (int in_switch = 0; in_switch < 2; in_switch++)
      proved(mscclpp_reads(n, parts, in_switch), n, 1, in_switch ? "switch" : "reads");
  }
  proved(mscclpp_direct(n, 2, 0, 2), n, n > 2 ? 2 : 1, "allgather by puts and gets");
}

TEST(calls) {
  hk_program_file m;
  char *text = mscclpp_direct(3, 2, 1, 0);
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_OK);
  ck_assert(!m.sets->in_place && m.sets->out_of_place);
  ck_assert_uint_eq(m.sets->least, 64);
  ck_assert_uint_eq(m.sets->most, 0);
  hk_program_file_free(&m);
  free(text);
}

/* ---- what is wrong ---- */

#define SIGNAL "{\"name\":\"signal\",\"channel_type\":\"memory\",\"channel_ids\":[0,1]}"
#define WAIT "{\"name\":\"wait\",\"channel_type\":\"memory\",\"channel_ids\":[0,1]}"
#define NOP "{\"name\":\"nop\"}"
#define ADDS                                                                                                           \
  WAIT ",\n " NOP                                                                                                      \
       ",\n {\"name\":\"re\",\"src_buff\":[{\"type\":\"i\",\"index\":0,\"size\":1},{\"type\":\"s\",\"index\":0,"       \
       "\"size\":1},{\"type\":\"s\",\"index\":2,\"size\":1}],\"dst_buff\":[{\"type\":\"i\",\"index\":0,\"size\":1}],"  \
       "\"channel_type\":\"memory\",\"reduce_op\":\"sum\"}"
/* k: packets; p: puts; o: by ports; b: with a barrier; s: with semaphores; r: reads; g: allgather; a: alltoall */
static const struct {
  char kind;
  const char *what;
  int n;
  const char *by, *error;
} faults[] = {
    /* the parts */
    {'p', "\"collective\":\"allreduce\"", 1, "\"collective\":\"test\"", "file: \"collective\" is \"test\"; allreduce,"},
    {'p', "\"protocol\":\"Simple\"", 1, "\"protocol\":\"LL128\"", "\"protocol\" is \"LL128\""},
    {'p', "\"input_chunks\":6", 1, "\"input_chunks\":7",
     "gpus[0]: 7 chunks in and 6 out are not those of AllReduce of 3 gpus"},
    {'p', "\"output_chunks\":6", 2, "\"output_chunks\":3",
     "gpus[1]: it has 6 chunks in and 3 out, and gpu 0 has 6 and 6"},
    {'p', "\"threadblocks\"", 1, "\"blocks\"", "gpus[0]: \"threadblocks\" is missing"},
    {'p', "\"connected_to\":[1,2", 1, "\"connected_to\":[1,0", "gpu 0 has a channel to itself"},
    {'p', "\"connected_to\":[1,2", 1, "\"connected_to\":[1,1",
     "ops[2]: gpu 1 has no channel to gpu 0 that is the other end of this one"},
    {'p', "\"name\":\"put\"", 1, "\"name\":\"glre\"",
     "gpus[0].threadblocks[0].ops[5]: \"name\" is \"glre\", which is no operation that MSCCL++ runs"},
    {'o', "\"port\",\"channel_ids\":[1]}", 1, "\"port\",\"channel_ids\":[0]}",
     "ops[6]: channel 0 leads to gpu 1, and the destination is in gpu 2"},
    {'o', "\"port\",\"channel_ids\":[1]}", 1, "\"port\",\"channel_ids\":[0,1]}",
     "ops[6]: 2 channels for 1 destinations"},
    {'o', "\"name\":\"put\"", 1, "\"name\":\"get\"", "ops[5]: get is not for channels of the type port"},
    {'p', "\"name\":\"put\"", 1, "\"name\":\"pws\"", "ops[5]: pws is for channels of the type port"},
    {'p', "\"index\":2,\"size\":1", 1, "\"index\":2,\"size\":2", "a buffer has 1 chunks, and another 2"},
    {'p', "\"index\":2,\"size\":1", 1, "\"index\":6,\"size\":1",
     "ops[5].src_buff[0]: chunks 6 to 6 of buffer i of gpu 0: it has 6"},
    {'p', "\"buffer_id\":1", 1, "\"buffer_id\":4", "ops[5].dst_buff[0].buffer_id: 4 is not from 0 to 3"},
    {'p', "\"reduce_op\":\"sum\"", 1, "\"reduce_op\":\"max\"", "\"reduce_op\" is \"max\": only sums can be read"},
    {'p', "{\"name\":\"put\",", 1, "{\"name\":\"put\",\"tbg_info\":{\"tb_id\":2,\"tbg_size\":2},",
     "tb_id: 2 is not from 0 to 1"},
    {'k', "\"protocol\":\"LL\"", 1, "\"protocol\":\"Simple\"", "packets need \"protocol\": \"LL\""},
    {'k', "\"type\":\"s\",\"index\"", 1, "\"type\":\"i\",\"index\"", "packets are in scratch memory only (s)"},
    /* what the plan does */
    {'p', WAIT, 1, NOP,
     "gpu 0, threadblock 0, op 11 (re) reads chunk 0 of the scratch memory of gpu 0, which gpu 1, threadblock 0, op 5 "
     "(put) writes: nothing orders the two"},
    {'p', SIGNAL, 1, NOP,
     "gpu 1, threadblock 0, op 17 (wait) waits for ever: gpu 0 sends 2 signals on its memory channel 0"},
    {'p', WAIT ",\n " NOP, 1, WAIT,
     "gpu 0, threadblock 0, op 10 (re) reads chunk 0 of the scratch memory of gpu 0, which gpu 1, threadblock 0, op 5 "
     "(put) writes: threads may go on before the wait is over; put a nop after the wait"},
    {'p', NOP ",\n " SIGNAL, 1, SIGNAL, "which gpu 0, threadblock 0, op 5 (put) writes: nothing orders the two"},
    {'p', ADDS, 1, NOP,
     "(put) writes chunk 0 of the input of gpu 1, which gpu 1, threadblock 0, op 5 (put) reads: nothing orders the"},
    {'g', "\"buffer_id\":0,\"index\":2", 1, "\"buffer_id\":2,\"index\":0",
     "(put) writes chunk 0 of the output of gpu 2, which gpu 1, threadblock 0, op 5 (put) writes: nothing orders"},
    {'p', "{\"name\":\"rlxwait\",\"channel_type\":\"memory\",\"channel_ids\":[0,1]}", 1, NOP, ""},
    {'p', "\"type\":\"i\",\"index\":2", 1, "\"type\":\"i\",\"index\":3",
     "gpu 1, threadblock 0, op 11 (re) adds chunk 3 of the message to chunk 2"},
    {'p', "\"type\":\"s\",\"index\":2", 1, "\"type\":\"s\",\"index\":0",
     "gpu 0, threadblock 0, op 11 (re) adds the part of gpu 1 of chunk 0, which the sum has already"},
    {'p', "\"buffer_id\":0,\"index\":0", 1, "\"buffer_id\":0,\"index\":1",
     "writes chunk 0 of a message to chunk 1 of the input of gpu 1, the place of chunk 1"},
    {'b', "\"num_threadblocks\":2", 1, "\"num_threadblocks\":3",
     "gpu 0, threadblock 0, op 5 (barrier) waits for ever: 2 of 3 thread blocks come to barrier 0"},
    {'s', "sem_release", 1, "sem_acquire",
     "op 5 (sem_acquire) waits for ever: semaphore 1 of gpu 0 is released 0 times"},
    {'k', "{\"name\":\"ppkt\"", 1, "{\"name\":\"nop\"",
     "gpu 1, threadblock 0, op 3 (respkt) waits for ever for chunk 0 of the scratch memory's packets of gpu 1"},
    {'r', "rlxwait", 1, "nop",
     "threadblock 0, op 5 (rres) reads chunk 0 of the input of gpu 1 before anything shows that gpu 1 has begun"},
    {'r', WAIT, 1, NOP, "writes chunk 2 of the output of gpu 0, which may end before"},
    {'g', "\"name\":\"put\"", 1, "\"name\":\"nop\"",
     "gpu 1: chunk 0 of its output holds nothing when all thread blocks have ended"},
    {'g', "{\"name\":\"put\",", 1, "{\"name\":\"res\",\"reduce_op\":\"sum\",",
     "gpus[0].threadblocks[0].ops[5].dst_buff[0]: \"type\" is missing"},
    {'g', "put\",\"src_buff\":[", 1, "re\",\"src_buff\":[{\"type\":\"o\",\"index\":0,\"size\":1},",
     "\"type\" is missing"},
    {'a', "\"type\":\"i\",\"index\":2", 1, "\"type\":\"i\",\"index\":4",
     "gpu 1: chunk 0 of its output holds chunk 4 of gpu 0"},
    {'a', "\"type\":\"o\",\"index\":0", 1, "\"type\":\"i\",\"index\":0",
     "op 5 (copy) writes chunk 0 of the input of gpu 0, and the plan is not in place"},
};

static char *plan(char kind, int n, int parts) {
  switch (kind) {
    case 'k': return mscclpp_packets(n, parts);
    case 'b': return mscclpp_puts(n, parts, 1);
    case 's': return mscclpp_puts(n, parts, 2);
    case 'r': return mscclpp_reads(n, parts, 0);
    case 'w': return mscclpp_reads(n, parts, 1);
    case 'g': return mscclpp_direct(n, parts, 0, 0);
    case 'a': return mscclpp_direct(n, parts, 1, 0);
    case 't': return mscclpp_direct(n, parts, 1, 1);
    case 'o': return mscclpp_puts(n, parts, 3);
    default: return mscclpp_puts(n, parts, 0);
  }
}

TEST_LOOP(refused, HK_ARRAY_LENGTH(faults)) {
  hk_program_file m;
  char *text = broken(plan(faults[_i].kind, 3, 2), faults[_i].what, faults[_i].n, faults[_i].by);
  ck_assert_int_eq(hk_program_file_read(&m, "file", text, 8), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), faults[_i].error) != NULL, "said: %s", hk_last_error());
  hk_program_file_free(&m);
  free(text);
}

int main(void) {
  if (!hk_json_tree_available()) {
    puts("SKIP: jansson is not installed (libjansson4), so that no JSON is read");
    return 77;
  }
  return suite_main("mscclpp", .timeout = 60);
}
