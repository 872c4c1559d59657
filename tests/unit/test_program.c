/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The builder, and the text form of what it builds. */
#include "../../src/collectives/transfer.h"
#include "../../src/program/builder.h"
#include "../support/suite.h"

static hk_builder *begin(hk_coll coll, int rank, int nranks) {
  hk_builder *b;
  ck_assert_int_eq(hk_builder_new(&b, &(hk_build){.coll = coll, .rank = rank, .nranks = nranks}), HK_OK);
  return b;
}

static hk_program *finish(hk_builder *b) {
  hk_program *p;
  ck_assert_int_eq(hk_builder_finish(b, "test", &p), HK_OK);
  return p;
}

static char *text_of(const hk_program *p, void (*write)(const hk_program *, FILE *)) {
  char *text = NULL;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  write(p, f);
  fclose(f);
  return text;
}

/* The text is the wanted one, and reading it gives the same program back. */
static void expect_dump(const hk_program *p, const char *want) {
  char *text = text_of(p, hk_program_dump);
  ck_assert_str_eq(text, want);
  hk_program *again;
  ck_assert_msg(hk_program_parse(text, &again) == HK_OK, "%s", hk_last_error());
  ck_assert_uint_eq(again->bytes, p->bytes);
  ck_assert_mem_eq(again, p, p->bytes);
  hk_program_free(again);
  free(text);
}

/* A send and a receive are programs of one instruction. */
TEST(transfers) {
  for (int sends = 0; sends < 2; sends++) {
    hk_program *p;
    ck_assert_int_eq(hk_transfer_build(2, 5, 4, sends, &p), HK_OK);
    ck_assert_int_eq(p->coll, HK_SENDRECV);
    char *text = text_of(p, hk_program_dump);
    ck_assert_str_eq(
        text, sends
                  ? "SendRecv send, rank 2 of 5, messages in 1 out 1, scratch 0, lanes 1, links 1, instructions 1\n"
                    "lane 0\n  links: 0=send(4)\n     0: send(4)[b0] <- in[b0]\n"
                  : "SendRecv receive, rank 2 of 5, messages in 1 out 1, scratch 0, lanes 1, links 1, instructions 1\n"
                    "lane 0\n  links: 0=recv(4)\n     0: out[b0] <- recv(4)[b0]\n");
    free(text);
    hk_program_free(p);
  }
  ck_assert(hk_transfer_signature(8) != hk_transfer_signature(12) && hk_transfer_signature(0));
}

TEST(names) {
  ck_assert_str_eq(hk_coll_name(HK_ALLREDUCE), "AllReduce");
  ck_assert_str_eq(hk_coll_name(HK_SENDRECV), "SendRecv");
  ck_assert_str_eq(hk_coll_name((hk_coll)77), "unknown collective");
  ck_assert(!hk_coll_reduces((hk_coll)77) && !hk_coll_has_root((hk_coll)77) && !hk_coll_reduces(HK_SENDRECV));
  ck_assert_int_eq(hk_coll_partition(HK_SENDRECV), HK_PART_WHOLE);
  ck_assert_int_eq(hk_coll_partition(HK_REDUCE), HK_PART_SPLIT);
}

TEST(ring_text) {
  hk_builder *b = begin(HK_ALLREDUCE, 1, 4);
  hk_build_split(b, 4);
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, 2, 0, 0), hk_in(0, 0));
  hk_build_repeat(b, 2);
  hk_build_move(b, 0, (hk_operand[]){hk_send_to(b, 2, 3, -1)}, 1,
                (hk_operand[]){hk_recv_from(b, 0, 3, -1), hk_in(3, -1)}, 2);
  hk_build_end_repeat(b);
  hk_build_move(b, HK_INSTR_FINAL, (hk_operand[]){hk_out(1, 0), hk_send_to(b, 2, 1, 0)}, 2,
                (hk_operand[]){hk_recv_from(b, 0, 1, 0), hk_in(1, 0)}, 2);
  hk_build_move(b, 0, NULL, 0, (hk_operand[]){hk_recv_from(b, 0, 0, 0)}, 1);
  hk_program *p = finish(b);
  expect_dump(p, "AllReduce test, rank 1 of 4, message split into 4, scratch 0, lanes 1, links 2, instructions 5\n"
                 "lane 0\n"
                 "  links: 0=send(2) 1=recv(0)\n"
                 "     0: send(2)[b0] <- in[b0]\n"
                 "     1: repeat the next 1, 2 times\n"
                 "     2:   send(2)[b3-1j] <- recv(0)[b3-1j] + in[b3-1j]\n"
                 "     3: out[b1], send(2)[b1] <- recv(0)[b1] + in[b1], final\n"
                 "     4: none <- recv(0)[b0]\n");
  /* Position-independent: a byte copy is the same program. */
  hk_program *copy = malloc(p->bytes);
  memcpy(copy, p, p->bytes);
  hk_program_free(p);
  const hk_instr *last = &hk_program_instrs(copy)[3];
  ck_assert_uint_ne(last->flags & HK_INSTR_TABLE, 0);
  ck_assert_uint_eq(hk_instr_operands(copy, last)[3].space, HK_IN);
  const hk_operand *o = hk_instr_operands(copy, &hk_program_instrs(copy)[2]);
  ck_assert_uint_eq(hk_operand_block(copy, o, 0), 3);
  ck_assert_uint_eq(hk_operand_block(copy, o, 5), 2);
  free(copy);
}

/* Two lanes, of which each has its own instructions. */
TEST(json_form) {
  hk_builder *b = begin(HK_ALLGATHER, 0, 2);
  for (int lane = 0; lane < 2; lane++) {
    hk_build_lane(b);
    hk_build_copy(b, hk_send_to(b, 1, 0, 0), hk_in(0, 0));
    hk_build_copy(b, hk_out(lane ? 0u : 1u, 0), lane ? hk_in(0, 0) : hk_recv_from(b, 1, 1, 0));
  }
  hk_program *p = finish(b);
  char *text = text_of(p, hk_program_json);
  ck_assert_str_eq(
      text,
      "{\"collective\":\"AllGather\",\"algorithm\":\"test\",\"rank\":0,\"ranks\":2,\"root\":0,\"split\":false,"
      "\"blocks\":{\"in\":1,\"out\":2,\"scratch\":0},\n"
      " \"links\":[{\"kind\":\"send\",\"peer\":1,\"lane\":0,\"channel\":0},\n"
      "  {\"kind\":\"recv\",\"peer\":1,\"lane\":0,\"channel\":0},\n"
      "  {\"kind\":\"send\",\"peer\":1,\"lane\":1,\"channel\":1}],\n"
      " \"lanes\":[[{\"to\":[{\"space\":\"send\",\"link\":0,\"block\":0}],\"from\":[{\"space\":\"in\",\"block\":0}]},\n"
      "   {\"to\":[{\"space\":\"out\",\"block\":1}],\"from\":[{\"space\":\"recv\",\"link\":1,\"block\":1}]}],\n"
      "  [{\"to\":[{\"space\":\"send\",\"link\":2,\"block\":0}],\"from\":[{\"space\":\"in\",\"block\":0}]},\n"
      "   {\"to\":[{\"space\":\"out\",\"block\":0}],\"from\":[{\"space\":\"in\",\"block\":0}]}]]}\n");
  free(text);
  hk_program_free(p);
}

TEST(repeats_of_none_and_one) {
  hk_builder *b = begin(HK_BROADCAST, 0, 4);
  hk_build_lane(b);
  hk_build_repeat(b, 0); /* takes its links with it */
  hk_build_copy(b, hk_send_to(b, 1, 0, 0), hk_in(0, 0));
  hk_build_end_repeat(b);
  hk_operand other = hk_send_to(b, 2, 0, 0);
  hk_build_link(b, HK_LINK_SEND, 3); /* never used: dropped */
  hk_build_repeat(b, 1);
  hk_operand stepping = hk_send_to(b, 1, 0, 1);
  stepping.flags |= HK_OPERAND_STEP;
  hk_build_copy(b, stepping, hk_in(0, 1));
  hk_build_end_repeat(b);
  hk_build_copy(b, other, hk_in(0, 0));
  hk_build_repeat(b, 9); /* empty: dropped */
  hk_build_end_repeat(b);
  hk_program *p = finish(b);
  expect_dump(p,
              "Broadcast test, rank 0 of 4, root 0, message split into 1, scratch 0, lanes 1, links 2, instructions 2\n"
              "lane 0\n"
              "  links: 0=send(2) 1=send(1)\n"
              "     0: send(1)[b0] <- in[b0]\n"
              "     1: send(2)[b0] <- in[b0]\n");
  hk_program_free(p);
}

TEST(stepping_links) {
  hk_builder *b = begin(HK_ALLTOALL, 0, 4);
  for (int lane = 0; lane < 2; lane++) {
    hk_build_lane(b);
    unsigned first = hk_build_link(b, HK_LINK_SEND, 1);
    for (int k = 2; k < 4; k++) ck_assert_uint_eq(hk_build_link(b, HK_LINK_SEND, k), first + (unsigned)k - 1);
    ck_assert_uint_eq(hk_build_link(b, HK_LINK_SEND, 2), first + 1);
    hk_operand o = hk_send_to(b, 1, 1, 1);
    o.flags |= HK_OPERAND_STEP;
    hk_build_repeat(b, 3);
    hk_build_copy(b, o, hk_in(1, 1));
    hk_build_end_repeat(b);
  }
  hk_program *p = finish(b);
  expect_dump(p, "AlltoAll test, rank 0 of 4, messages in 4 out 4, scratch 0, lanes 2, links 6, instructions 4\n"
                 "lane 0\n"
                 "  links: 0=send(1) 1=send(2) 2=send(3)\n"
                 "     0: repeat the next 1, 3 times\n"
                 "     1:   send(link 0+j)[b1+1j] <- in[b1+1j]\n"
                 "lane 1\n"
                 "  links: 3=send(1) 4=send(2) 5=send(3)\n"
                 "     2: repeat the next 1, 3 times\n"
                 "     3:   send(link 3+j)[b1+1j] <- in[b1+1j]\n");
  hk_program_free(p);
}

TEST(block_counts) {
  static const struct {
    hk_coll coll;
    int in, out, partition;
  } want[] = {{HK_ALLREDUCE, 3, 3, HK_PART_SPLIT},      {HK_BROADCAST, 3, 3, HK_PART_SPLIT},
              {HK_REDUCE, 3, 3, HK_PART_SPLIT},         {HK_ALLGATHER, 1, 5, HK_PART_WHOLE},
              {HK_REDUCE_SCATTER, 5, 1, HK_PART_WHOLE}, {HK_ALLTOALL, 5, 5, HK_PART_WHOLE},
              {HK_GATHER, 1, 5, HK_PART_WHOLE},         {HK_SCATTER, 5, 1, HK_PART_WHOLE}};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(want); k++) {
    hk_builder *b = begin(want[k].coll, 2, 5);
    if (want[k].partition == HK_PART_SPLIT) hk_build_split(b, 3);
    hk_program *p = finish(b);
    ck_assert_int_eq(p->in_blocks, want[k].in);
    ck_assert_int_eq(p->out_blocks, want[k].out);
    ck_assert_int_eq(p->blocks, want[k].in > want[k].out ? want[k].in : want[k].out);
    ck_assert_int_eq(p->partition, want[k].partition);
    hk_program_free(p);
  }
}

/* In place, rank r's input is part of message r: each part is the same part of the output. */
TEST(parts_in_place) {
  for (int rank = 0; rank < 3; rank++) {
    hk_builder *b = begin(HK_ALLGATHER, rank, 3);
    hk_build_parts(b, 4);
    hk_program *p = finish(b);
    for (int part = 0; part < 4; part++) ck_assert_int_eq(hk_program_alias(p, rank, part), 4 * rank + part);
    hk_program_free(p);
  }
}

/* Each misuse is remembered, and later calls do nothing. */
static void expect_error(hk_builder *b, const char *text) {
  hk_build_lane(b);
  hk_build_copy(b, hk_out(0, 0), hk_in(0, 0));
  hk_program *p;
  ck_assert_int_eq(hk_builder_finish(b, "test", &p), HK_ERR_INTERNAL);
  ck_assert_ptr_null(p);
  ck_assert_msg(strstr(hk_last_error(), text) != NULL, "\"%s\" does not say \"%s\"", hk_last_error(), text);
}

TEST(misuse) {
  hk_builder *b = begin(HK_ALLGATHER, 0, 4);
  hk_build_split(b, 2);
  expect_error(b, "AllGather cannot be split");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_copy(b, hk_out(0, 0), hk_in(0, 0));
  expect_error(b, "before the first lane");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_lane(b);
  hk_build_repeat(b, 2);
  hk_build_repeat(b, 2);
  expect_error(b, "nested");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_lane(b);
  hk_build_repeat(b, 2);
  expect_error(b, "repeat is open");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_end_repeat(b);
  expect_error(b, "not begun");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, 4, 0, 0), hk_in(0, 0));
  expect_error(b, "to rank 4 cannot be made");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_lane(b);
  hk_operand o = hk_send_to(b, 1, 0, 0);
  hk_build_link(b, HK_LINK_RECV, 2);
  o.flags |= HK_OPERAND_STEP;
  hk_build_repeat(b, 2);
  hk_build_copy(b, o, hk_in(0, 0));
  hk_build_end_repeat(b);
  expect_error(b, "make them one after another");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_from(b, hk_in(0, 0));
  expect_error(b, "instruction was left open");
  b = begin(HK_ALLREDUCE, 0, 4);
  hk_build_to(b, hk_out(0, 0));
  expect_error(b, "instruction was left open");
  ck_assert_int_eq(hk_builder_new(&b, &(hk_build){.coll = HK_ALLREDUCE, .rank = 4, .nranks = 4}), HK_ERR_ARGUMENT);
}

TEST(channels) {
  hk_builder *b = begin(HK_REDUCE, 0, 3);
  hk_build_lane(b);
  unsigned first = hk_build_link(b, HK_LINK_RECV, 1);
  hk_build_channel(b, 5);
  unsigned second = hk_build_link(b, HK_LINK_RECV, 1);
  ck_assert_uint_ne(first, second);
  hk_operand on_five = hk_recv_from(b, 1, 0, 0);
  ck_assert_uint_eq(on_five.link, second);
  hk_build_channel(b, 0); /* the links made before are found again */
  ck_assert_uint_eq(hk_build_link(b, HK_LINK_RECV, 1), first);
  hk_operand in = hk_in(0, 0), out = hk_out(0, 0);
  hk_build_move(b, HK_INSTR_FINAL | HK_INSTR_COPY, &out, 1, (hk_operand[]){hk_recv_from(b, 1, 0, 0), on_five, in}, 3);
  hk_program *p = finish(b);
  expect_dump(p, "Reduce test, rank 0 of 3, root 0, message split into 1, scratch 0, lanes 1, links 2, instructions 1\n"
                 "lane 0\n"
                 "  links: 0=recv(1) 1=recv(1@5)\n"
                 "     0: out[b0] <- recv(1)[b0] + recv(1@5)[b0] + in[b0], final, copy\n");
  hk_program_free(p);
}

#define HEAD "AllGather test, rank 0 of 2, messages in 1 out 2, scratch 1, lanes 1, links 1, instructions 1\n"
#define LINKS "lane 0\n  links: 0=send(1)\n"
TEST(text_errors) {
  static const struct {
    const char *text, *says;
  } cases[] = {
      {"", "line 1: expected a collective's name"},
      {"AllMother test, rank 0 of 2", "expected a collective's name"},
      {"AllGather a\"b, rank 0 of 2", "expected \", rank \""},
      {"AllGather far-too-long-for-the-field-it-is-kept-in, rank 0 of 2", "an algorithm's name"},
      {"AllGather test, rank 999999 of 2", "a number up to 524287"},
      {HEAD "lane 1\n", "line 2: the next lane is 0"},
      {HEAD "lane 0\n", "line 3: expected \"  links:\""},
      {HEAD "lane 0\n  links: 1=send(1)\n", "the next link is 0"},
      {HEAD "lane 0\n  links: 0=push(1)\n", "send, recv, mcast, sum, gather or scatter"},
      {HEAD LINKS " 0: send(0)[b0] <- in[b0]\n", "line 4: the lane has no link send(0@0)"},
      {HEAD LINKS " 0: send(1)[b0] <- inn[b0]\n", "expected \"[b\""},
      {HEAD LINKS " 0: send(1)[b0] in[b0]\n", "expected \" <- \""},
      {HEAD LINKS " 0: send(1)[b0+2] <- in[b0]\n", "expected \"j\""},
      {HEAD LINKS " 0: send(1)[b0] <- in[b0] extra\n", "the line should end"},
      {HEAD LINKS " 0: repeat the next x", "a number"},
  };
  for (size_t k = 0; k < HK_ARRAY_LENGTH(cases); k++) {
    hk_program *p;
    ck_assert_int_eq(hk_program_parse(cases[k].text, &p), HK_ERR_ARGUMENT);
    ck_assert_ptr_null(p);
    ck_assert_msg(strstr(hk_last_error(), cases[k].says) != NULL, "\"%s\" does not say \"%s\"", hk_last_error(),
                  cases[k].says);
  }
}

/* Two blocks of input: one is copied, by a link too, the other handed on; a repeat counts as often as it runs. */
TEST(bytes_moved) {
  hk_builder *b;
  hk_program *p;
  const hk_operand out = hk_out(0, 0), in[] = {hk_in(0, 0), hk_in(1, 0)};
  ck_assert_int_eq(hk_builder_new(&b, &(hk_build){.coll = HK_REDUCE_SCATTER, .nranks = 2}), HK_OK);
  hk_build_lane(b);
  hk_build_move(b, 0, (hk_operand[]){hk_send_to(b, 1, 1, 0), out}, 2, in, 2); /* two read, one or two written */
  hk_build_copy(b, hk_send_to(b, 1, 1, 0), in[1]);                            /* one read and written, or nothing */
  hk_build_repeat(b, 3);
  hk_build_move(b, HK_INSTR_COPY, (hk_operand[]){hk_send_to(b, 1, 1, 0)}, 1, in, 1);
  hk_build_end_repeat(b);
  hk_build_copy(b, out, hk_recv_from(b, 1, 0, 0));
  ck_assert_int_eq(hk_builder_finish(b, "test", &p), HK_OK);
  ck_assert_uint_eq(p->traits.moves, 4 + 2 + 3 * 2 + 2);
  ck_assert_uint_eq(p->traits.moves_by_reference, 3 + 0 + 3 * 2 + 2);
  hk_program_free(p);
}

int main(void) { return suite_main("program"); }
