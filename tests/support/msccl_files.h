/* SPDX-License-Identifier: Apache-2.0 */
/* Writes algorithms in MSCCL's XML. */
#ifndef SUPPORT_MSCCL_FILES_H
#define SUPPORT_MSCCL_FILES_H
#include "suite.h"

typedef struct msccl_writer {
  FILE *f;
  char *text;
  size_t size;
  int step;
} msccl_writer;

static inline void msccl_begin(msccl_writer *w, const char *coll, int ranks, int chunks, const char *more) {
  w->f = open_memstream(&w->text, &w->size);
  fprintf(w->f,
          "<algo name=\"made up\" proto=\"LL\" nchannels=\"2\" ngpus=\"%d\" coll=\"%s\" nchunksperloop=\"%d\" %s>\n",
          ranks, coll, chunks, more);
}
static inline void msccl_gpu(msccl_writer *w, int id, int scratch) {
  fprintf(w->f, "<gpu id=\"%d\" i_chunks=\"0\" o_chunks=\"0\" s_chunks=\"%d\">\n", id, scratch);
}
static inline void msccl_block(msccl_writer *w, int id, int send, int recv, int chan) {
  fprintf(w->f, "<tb id=\"%d\" send=\"%d\" recv=\"%d\" chan=\"%d\">\n", id, send, recv, chan);
  w->step = 0;
}
static inline void msccl_step(msccl_writer *w, const char *type, char from, int at, char to, int to_at, int n,
                              int block, int after) {
  fprintf(w->f,
          "<step s=\"%d\" type=\"%s\" srcbuf=\"%c\" srcoff=\"%d\" dstbuf=\"%c\" dstoff=\"%d\" cnt=\"%d\" depid=\"%d\" "
          "deps=\"%d\" hasdep=\"0\"/>\n",
          w->step++, type, from, at, to, to_at, n, block, after);
}
static inline void msccl_end(msccl_writer *w, const char *what) { fprintf(w->f, "</%s>\n", what); }

/* A ring of each channel: chunk c of `parts` rings goes once around for the sum, once for the result. Every second ring
 * goes backwards. */
static inline char *msccl_ring(int n, int parts, const char *more) {
  msccl_writer w;
  msccl_begin(&w, "allreduce", n, n * parts, more);
  for (int g = 0; g < n; g++) {
    msccl_gpu(&w, g, 0);
    for (int p = 0; p < parts; p++) {
      const int step = p % 2 ? n - 1 : 1;
      msccl_block(&w, p, (g + step) % n, (g + n - step) % n, p);
      for (int k = 0; k < 2 * n - 1; k++) {
        const int c = p * n + (g + (2 * n - k) * step) % n;
        msccl_step(&w,
                   k == 0          ? "s"
                   : k < n - 1     ? "rrs"
                   : k == n - 1    ? "rrcs"
                   : k < 2 * n - 2 ? "rcs"
                                   : "r",
                   'i', c, 'i', c, 1, -1, -1);
      }
      msccl_end(&w, "tb");
    }
    msccl_end(&w, "gpu");
  }
  msccl_end(&w, "algo");
  fclose(w.f);
  return w.text;
}

/* Allreduce: each rank sends chunk k of its input to rank k, which adds all of them and sends the sum to all. Blocks
 * wait for each other, by steps of type nop where there are several to wait for. in_scratch: what is received is first
 * added up in scratch memory. */
static inline char *msccl_pairs_by(int n, bool in_scratch) {
  msccl_writer w;
  msccl_begin(&w, "allreduce", n, n, "inplace=\"1\" outofplace=\"0\" minBytes=\"64\" maxBytes=\"65536\"");
  for (int g = 0; g < n; g++) {
    msccl_gpu(&w, g, n - 1);
    msccl_block(&w, 0, -1, -1, 0);
    for (int k = 1; k < n - 1; k++) msccl_step(&w, "nop", 'i', -1, 'o', -1, 0, k + 1, 1);
    for (int k = 0; k < n - 1; k++)
      msccl_step(&w, "re", 's', in_scratch ? (k + 1) % (n - 1) : k, in_scratch && k < n - 2 ? 's' : 'i',
                 in_scratch && k < n - 2 ? 0 : g, 1, k ? -1 : 1, k ? -1 : 1);
    msccl_end(&w, "tb");
    for (int k = 0; k < n - 1; k++) {
      const int peer = (g + 1 + k) % n, back = n - 2 - k;
      msccl_block(&w, k + 1, peer, peer, 0);
      msccl_step(&w, "s", 'i', peer, 'i', peer, 1, -1, -1);
      msccl_step(&w, "r", 'i', g, 's', back, 1, -1, -1);
      msccl_step(&w, "s", 'i', g, 'i', g, 1, 0, 2 * n - 4);
      msccl_step(&w, "r", 'i', peer, 'i', peer, 1, -1, -1);
      msccl_end(&w, "tb");
    }
    msccl_end(&w, "gpu");
  }
  msccl_end(&w, "algo");
  fclose(w.f);
  return w.text;
}

static inline char *msccl_pairs(int n) { return msccl_pairs_by(n, false); }

/* Allgather to places of the output, in place or not; alltoall. Messages have `parts` chunks. */
static inline char *msccl_direct(int n, int parts, const char *coll) {
  msccl_writer w;
  const bool gather = !strcmp(coll, "allgather");
  msccl_begin(&w, coll, n, n * parts, gather ? "inplace=\"1\" outofplace=\"1\"" : "");
  for (int g = 0; g < n; g++) {
    msccl_gpu(&w, g, 0);
    for (int k = 1; k < n; k++) {
      const int peer = (g + k) % n, from = (g + n - k) % n;
      msccl_block(&w, k - 1, peer, from, 0);
      msccl_step(&w, "s", gather ? 'o' : 'i', parts * (gather ? g : peer), 'o', 0, parts, -1, -1);
      msccl_step(&w, "r", 'i', 0, 'o', parts * from, parts, -1, -1);
      if (k == 1 && !gather) msccl_step(&w, "cpy", 'i', parts * g, 'o', parts * g, parts, -1, -1);
      msccl_end(&w, "tb");
    }
    msccl_end(&w, "gpu");
  }
  msccl_end(&w, "algo");
  fclose(w.f);
  return w.text;
}
#endif
