/* SPDX-License-Identifier: Apache-2.0 */
/* Files in MSCCL's XML: written for many ranks, read, proved; and broken, refused with the place and the reason. */
#include <stdlib.h>
#include <string.h>
#include "../../src/formats/msccl.h"
#include "../../src/program/verify.h"
#include "../support/suite.h"

/* ---- files ---- */

typedef struct writer {
  FILE *f;
  char *text;
  size_t size;
  int step;
} writer;

static void begin(writer *w, const char *coll, int ranks, int chunks, const char *more) {
  w->f = open_memstream(&w->text, &w->size);
  fprintf(w->f,
          "<algo name=\"made up\" proto=\"LL\" nchannels=\"2\" ngpus=\"%d\" coll=\"%s\" nchunksperloop=\"%d\" %s>\n",
          ranks, coll, chunks, more);
}
static void gpu(writer *w, int id, int scratch) {
  fprintf(w->f, "<gpu id=\"%d\" i_chunks=\"0\" o_chunks=\"0\" s_chunks=\"%d\">\n", id, scratch);
}
static void block(writer *w, int id, int send, int recv, int chan) {
  fprintf(w->f, "<tb id=\"%d\" send=\"%d\" recv=\"%d\" chan=\"%d\">\n", id, send, recv, chan);
  w->step = 0;
}
static void step(writer *w, const char *type, char from, int at, char to, int to_at, int n, int block, int after) {
  fprintf(w->f,
          "<step s=\"%d\" type=\"%s\" srcbuf=\"%c\" srcoff=\"%d\" dstbuf=\"%c\" dstoff=\"%d\" cnt=\"%d\" depid=\"%d\" "
          "deps=\"%d\" hasdep=\"0\"/>\n",
          w->step++, type, from, at, to, to_at, n, block, after);
}
static void end(writer *w, const char *what) { fprintf(w->f, "</%s>\n", what); }

/* A ring of each channel: chunk c of `parts` rings goes once around for the sum, once for the result. */
static char *ring(int n, int parts, const char *more) {
  writer w;
  begin(&w, "allreduce", n, n * parts, more);
  for (int g = 0; g < n; g++) {
    gpu(&w, g, 0);
    for (int p = 0; p < parts; p++) {
      block(&w, p, (g + 1) % n, (g + n - 1) % n, p);
      for (int k = 0; k < 2 * n - 1; k++) {
        const int c = p * n + (g + 2 * n - k) % n;
        step(&w,
             k == 0          ? "s"
             : k < n - 1     ? "rrs"
             : k == n - 1    ? "rrcs"
             : k < 2 * n - 2 ? "rcs"
                             : "r",
             'i', c, 'i', c, 1, -1, -1);
      }
      end(&w, "tb");
    }
    end(&w, "gpu");
  }
  end(&w, "algo");
  fclose(w.f);
  return w.text;
}

/* Allreduce: each rank sends chunk k of its input to rank k, which adds all of them and sends the sum to all. Blocks
 * wait for each other, by steps of type nop where there are several to wait for. */
static char *pairs(int n) {
  writer w;
  begin(&w, "allreduce", n, n, "inplace=\"1\" outofplace=\"0\" minBytes=\"64\" maxBytes=\"65536\"");
  for (int g = 0; g < n; g++) {
    gpu(&w, g, n - 1);
    block(&w, 0, -1, -1, 0);
    for (int k = 1; k < n - 1; k++) step(&w, "nop", 'i', -1, 'o', -1, 0, k + 1, 1);
    for (int k = 0; k < n - 1; k++) step(&w, "re", 's', k, 'i', g, 1, k ? -1 : 1, k ? -1 : 1);
    end(&w, "tb");
    for (int k = 0; k < n - 1; k++) {
      const int peer = (g + 1 + k) % n, back = n - 2 - k;
      block(&w, k + 1, peer, peer, 0);
      step(&w, "s", 'i', peer, 'i', peer, 1, -1, -1);
      step(&w, "r", 'i', g, 's', back, 1, -1, -1);
      step(&w, "s", 'i', g, 'i', g, 1, 0, 2 * n - 4);
      step(&w, "r", 'i', peer, 'i', peer, 1, -1, -1);
      end(&w, "tb");
    }
    end(&w, "gpu");
  }
  end(&w, "algo");
  fclose(w.f);
  return w.text;
}

/* Allgather to places of the output, in place or not; alltoall. */
static char *direct(int n, const char *coll) {
  writer w;
  const bool gather = !strcmp(coll, "allgather");
  begin(&w, coll, n, n, gather ? "inplace=\"1\" outofplace=\"1\"" : "");
  for (int g = 0; g < n; g++) {
    gpu(&w, g, 0);
    for (int k = 1; k < n; k++) {
      const int peer = (g + k) % n, from = (g + n - k) % n;
      block(&w, k - 1, peer, from, 0);
      step(&w, "s", gather ? 'o' : 'i', gather ? g : peer, 'o', 0, 1, -1, -1);
      step(&w, "r", 'i', 0, 'o', from, 1, -1, -1);
      if (k == 1 && !gather) step(&w, "cpy", 'i', g, 'o', g, 1, -1, -1);
      end(&w, "tb");
    }
    end(&w, "gpu");
  }
  end(&w, "algo");
  fclose(w.f);
  return w.text;
}

/* Reads and proves; frees the text. */
static void proved(char *text, int nranks, const char *what) {
  hk_msccl m;
  ck_assert_msg(hk_msccl_read(&m, "file", text) == HK_OK, "%s of %d: %s", what, nranks, hk_last_error());
  ck_assert_int_eq(m.nranks, nranks);
  for (unsigned slots = 2; slots <= 8; slots *= 4) {
    const hk_verify_options o = {.slots = slots, .waves = 2};
    hk_verify_report report;
    ck_assert_msg(hk_verify((const hk_program *const *)m.programs, nranks, &o, &report) == HK_OK, "%s of %d: %s", what,
                  nranks, report.message);
  }
  hk_msccl_free(&m);
  free(text);
}

TEST_LOOP(files, 15) {
  const int n = _i + 2;
  proved(ring(n, 1, ""), n, "ring");
  proved(ring(n, 3, "inplace=\"1\""), n, "three rings");
  if (n > 2) proved(pairs(n), n, "pairs");
  proved(direct(n, "allgather"), n, "allgather");
  proved(direct(n, "alltoall"), n, "alltoall");
}

/* Blocks that wait for each other are one lane; the others have their own. Channels of a pair of ranks are numbered
 * from 0 on, whatever the file calls them. */
TEST(lanes) {
  hk_msccl m;
  char *text = pairs(5);
  ck_assert_int_eq(hk_msccl_read(&m, "file", text), HK_OK);
  ck_assert_int_eq(m.programs[0]->nlanes, 1);
  ck_assert_int_eq(m.programs[0]->scratch_blocks, 4);
  ck_assert(m.in_place && !m.out_of_place);
  ck_assert_uint_eq(m.least, 64);
  ck_assert_uint_eq(m.most, 65536);
  hk_msccl_free(&m);
  free(text);
  text = ring(4, 3, "");
  ck_assert_int_eq(hk_msccl_read(&m, "file", text), HK_OK);
  ck_assert_int_eq(m.programs[2]->nlanes, 3);
  ck_assert_int_eq(m.programs[2]->traits.span, 3);
  ck_assert_str_eq(m.programs[2]->algorithm, "made_up");
  ck_assert(!m.in_place && m.out_of_place);
  hk_msccl_free(&m);
  free(text);
}

/* ---- what is wrong ---- */

/* The file with the n-th occurrence (from 1 on) of a text replaced. */
static char *broken(char *text, const char *what, int n, const char *by) {
  char *at = text, *out = malloc(strlen(text) + strlen(by) + 1);
  while (n-- > 0) ck_assert_msg((at = strstr(at + 1, what)) != NULL, "%s", what);
  sprintf(out, "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
  free(text);
  return out;
}

static const struct {
  char kind; /* r: ring(4, 1); p: pairs(4); g: allgather; a: alltoall */
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
    {'g', "nchunksperloop=\"4\"", 1, "nchunksperloop=\"8\"", "moves whole messages, and here are 4"},
    {'a', "srcoff=\"1\"", 1, "srcoff=\"2\"", "gpu 1: chunk 0 of its output holds chunk 2 of gpu 0"},
    {'a', "type=\"s\"", 1, "type=\"rrs\"", "adds, and AlltoAll only copies"},
};

TEST_LOOP(refused, HK_ARRAY_LENGTH(faults)) {
  const char kind = faults[_i].kind;
  hk_msccl m;
  char *text = kind == 'r'   ? ring(4, 1, "")
               : kind == 'p' ? pairs(4)
                             : direct(4, kind == 'g' ? "allgather" : "alltoall");
  if (faults[_i].n)
    text = broken(text, faults[_i].what, faults[_i].n, faults[_i].by);
  else
    text[1] = 0;
  ck_assert_int_eq(hk_msccl_read(&m, "file", text), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), faults[_i].error) != NULL, "said: %s", hk_last_error());
  hk_msccl_free(&m);
  free(text);
}

int main(void) { return suite_main("msccl", .timeout = 60); }
