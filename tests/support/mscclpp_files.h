/* SPDX-License-Identifier: Apache-2.0 */
/* Execution plans in MSCCL++'s JSON, written for any number of ranks. Free the texts. */
#ifndef HK_TESTS_MSCCLPP_FILES_H
#define HK_TESTS_MSCCLPP_FILES_H
#include <stdio.h>
#include <stdlib.h>

typedef struct mscclpp_writer {
  FILE *f;
  char *text;
  size_t bytes;
  int n, parts, gpu, block; /* a thread block for each part of a message */
  const char *channels;     /* "memory" or "port" */
} mscclpp_writer;

/* The place of rank `other` among the other ranks of `rank`. */
static inline int mscclpp_slot(int rank, int other) { return other < rank ? other : other - 1; }

static inline void mscclpp_begin(mscclpp_writer *w, const char *coll, const char *protocol, int in_place, int n,
                                 int parts) {
  *w = (mscclpp_writer){.n = n, .parts = parts, .channels = "memory"};
  w->f = open_memstream(&w->text, &w->bytes);
  if (!w->f) abort();
  fprintf(w->f,
          "{\"name\":\"written\",\"collective\":\"%s\",\"protocol\":\"%s\",\"inplace\":%s,\n"
          "\"min_message_size\":64,\"max_message_size\":18446744073709551615,\"gpus\":[\n",
          coll, protocol, in_place ? "true" : "false");
}

/* Begins a gpu: each thread block has a channel to each peer, and reaches buffer `type` of each peer, and
 * scratch. */
static inline void mscclpp_gpu(mscclpp_writer *w, int gpu, int in, int out, int scratch, const char *type) {
  w->gpu = gpu;
  fprintf(w->f, "%s{\"id\":%d,\"input_chunks\":%d,\"output_chunks\":%d,\"scratch_chunks\":%d,\n", gpu ? "]},\n" : "",
          gpu, in, out, scratch);
  fprintf(w->f, "\"channels\":[{\"channel_type\":\"%s\",\"connected_to\":[", w->channels);
  for (int p = 0; p < w->parts; p++)
    for (int k = 0; k < w->n - 1; k++) fprintf(w->f, "%s%d", p + k ? "," : "", k < gpu ? k : k + 1);
  fprintf(w->f, "]},\n{\"channel_type\":\"switch\",\"buffer_type\":\"%s\",\"rank_groups\":[{\"size\":%d,\"ranks\":[",
          type, w->n);
  for (int r = 0; r < w->n; r++) fprintf(w->f, "%s%d", r ? "," : "", r);
  fputs("]}]}],\n\"remote_buffers\":[", w->f);
  for (int k = 0; k < w->n - 1; k++)
    for (int s = 0; s < 2; s++)
      fprintf(w->f, "%s{\"rank\":%d,\"type\":\"%s\",\"access_channel_types\":[\"%s\"]}", k + s ? "," : "",
              k < gpu ? k : k + 1, s ? "s" : type, w->channels);
  fputs("],\n\"semaphores\":[", w->f);
  for (int p = 0; p < w->parts; p++) fprintf(w->f, "%s{\"init_value\":0}", p ? "," : "");
  fputs("],\n\"threadblocks\":[\n", w->f);
}

static inline void mscclpp_block(mscclpp_writer *w, int block) {
  w->block = block;
  fprintf(w->f, "%s{\"id\":%d,\n\"channels\":[{\"channel_type\":\"%s\",\"channel_ids\":[", block ? ",\n" : "", block,
          w->channels);
  for (int k = 0; k < w->n - 1; k++) fprintf(w->f, "%s%d", k ? "," : "", block * (w->n - 1) + k);
  fputs("]},{\"channel_type\":\"switch\",\"channel_ids\":[0]}],\n", w->f);
  fprintf(w->f, "\"remote_buffer_refs\":[{\"access_channel_type\":\"%s\",\"remote_buffer_ids\":[", w->channels);
  for (int k = 0; k < 2 * (w->n - 1); k++) fprintf(w->f, "%s%d", k ? "," : "", k);
  fputs("]}],\n\"ops\":[\n {\"name\":\"nop\"}", w->f);
}
static inline void mscclpp_end_block(mscclpp_writer *w) { fputs("]}", w->f); }
static inline char *mscclpp_end(mscclpp_writer *w) {
  fputs("]}]}\n", w->f);
  fclose(w->f);
  return w->text;
}

/* An operation; its buffers follow. */
static inline void mscclpp_op(mscclpp_writer *w, const char *name) { fprintf(w->f, ",\n {\"name\":\"%s\"", name); }
static inline void mscclpp_from(mscclpp_writer *w, int first) { fputs(first ? ",\"src_buff\":[" : ",", w->f); }
static inline void mscclpp_to(mscclpp_writer *w, int first) { fputs(first ? "],\"dst_buff\":[" : ",", w->f); }
static inline void mscclpp_local(mscclpp_writer *w, const char *type, int at) {
  fprintf(w->f, "{\"type\":\"%s\",\"index\":%d,\"size\":1}", type, at);
}
static inline void mscclpp_remote(mscclpp_writer *w, int rank, int scratch, int at) {
  fprintf(w->f, "{\"buffer_id\":%d,\"index\":%d,\"size\":1}", 2 * mscclpp_slot(w->gpu, rank) + scratch, at);
}
static inline void mscclpp_done(mscclpp_writer *w, const char *more) {
  fprintf(w->f, "],\"channel_type\":\"memory\"%s}", more);
}
/* Ends a put to the rank: one by a port names its channel. */
static inline void mscclpp_put_to(mscclpp_writer *w, int rank) {
  fprintf(w->f, "],\"channel_type\":\"%s\"", w->channels);
  if (w->channels[0] == 'p') fprintf(w->f, ",\"channel_ids\":[%d]", mscclpp_slot(w->gpu, rank));
  fputs("}", w->f);
}
static inline void mscclpp_nop(mscclpp_writer *w) { fputs(",\n {\"name\":\"nop\"}", w->f); }
/* Signals all peers, and waits for all. */
static inline void mscclpp_meet(mscclpp_writer *w, const char *signal, const char *wait) {
  const char *const names[] = {signal, wait};
  mscclpp_nop(w);
  for (int k = 0; k < 2; k++) {
    mscclpp_op(w, names[k]);
    fprintf(w->f, ",\"channel_type\":\"%s\",\"channel_ids\":[", w->channels);
    for (int c = 0; c < w->n - 1; c++) fprintf(w->f, "%s%d", c ? "," : "", c);
    fputs("]}", w->f);
  }
  mscclpp_nop(w);
}

/* An allreduce in place by packets: a part goes to its rank, which adds and sends the sum to all. */
static inline char *mscclpp_packets(int n, int parts) {
  mscclpp_writer w;
  mscclpp_begin(&w, "allreduce", "LL", 1, n, parts);
  for (int r = 0; r < n; r++) {
    mscclpp_gpu(&w, r, n * parts, n * parts, 2 * (n - 1) * parts, "i");
    for (int p = 0; p < parts; p++) {
      mscclpp_block(&w, p);
      for (int q = 0; q < n; q++) {
        if (q == r) continue;
        mscclpp_op(&w, "ppkt");
        mscclpp_from(&w, 1), mscclpp_local(&w, "i", q * parts + p);
        mscclpp_to(&w, 1), mscclpp_remote(&w, q, 1, mscclpp_slot(q, r) * parts + p);
        mscclpp_done(&w, "");
      }
      mscclpp_op(&w, "respkt");
      mscclpp_from(&w, 1), mscclpp_local(&w, "i", r * parts + p);
      for (int k = 0; k < n - 1; k++) mscclpp_from(&w, 0), mscclpp_local(&w, "s", k * parts + p);
      mscclpp_to(&w, 1), mscclpp_local(&w, "i", r * parts + p);
      for (int q = 0; q < n; q++)
        if (q != r) mscclpp_to(&w, 0), mscclpp_remote(&w, q, 1, (n - 1 + mscclpp_slot(q, r)) * parts + p);
      mscclpp_done(&w, ",\"reduce_op\":\"sum\"");
      for (int q = 0; q < n; q++) {
        if (q == r) continue;
        mscclpp_op(&w, "upkt");
        mscclpp_from(&w, 1), mscclpp_local(&w, "s", (n - 1 + mscclpp_slot(r, q)) * parts + p);
        mscclpp_to(&w, 1), mscclpp_local(&w, "i", q * parts + p);
        mscclpp_done(&w, "");
      }
      mscclpp_end_block(&w);
    }
  }
  return mscclpp_end(&w);
}

/* The same by puts into scratch memory. gate: how thread blocks learn that all gpus have begun: each meets the others
 * itself (0), or the first one does and passes a barrier with the others (1), or releases semaphores (2). 3: as 0, by
 * ports. */
static inline char *mscclpp_puts(int n, int parts, int gate) {
  mscclpp_writer w;
  mscclpp_begin(&w, "allreduce", "Simple", 1, n, parts);
  if (gate == 3) w.channels = "port";
  for (int r = 0; r < n; r++) {
    mscclpp_gpu(&w, r, n * parts, n * parts, (n - 1) * parts, "i");
    for (int p = 0; p < parts; p++) {
      mscclpp_block(&w, p);
      if (gate == 3 || !gate || !p) mscclpp_meet(&w, "rlxsignal", "rlxwait");
      if (gate == 1) fprintf(w.f, ",\n {\"name\":\"barrier\",\"barrier_id\":0,\"num_threadblocks\":%d}", parts);
      if (gate == 2 && !p && parts > 1) {
        mscclpp_op(&w, "sem_release");
        for (int k = 1; k < parts; k++) fprintf(w.f, "%s%d", k > 1 ? "," : ",\"semaphore_ids\":[", k);
        fputs("]}", w.f);
      }
      if (gate == 2 && p) fprintf(w.f, ",\n {\"name\":\"sem_acquire\",\"semaphore_ids\":[%d]}", p), mscclpp_nop(&w);
      for (int q = 0; q < n; q++) {
        if (q == r) continue;
        mscclpp_op(&w, "put");
        mscclpp_from(&w, 1), mscclpp_local(&w, "i", q * parts + p);
        mscclpp_to(&w, 1), mscclpp_remote(&w, q, 1, mscclpp_slot(q, r) * parts + p);
        mscclpp_put_to(&w, q);
      }
      mscclpp_meet(&w, "signal", "wait");
      mscclpp_op(&w, "re");
      mscclpp_from(&w, 1), mscclpp_local(&w, "i", r * parts + p);
      for (int k = 0; k < n - 1; k++) mscclpp_from(&w, 0), mscclpp_local(&w, "s", k * parts + p);
      mscclpp_to(&w, 1), mscclpp_local(&w, "i", r * parts + p);
      mscclpp_done(&w, ",\"reduce_op\":\"sum\"");
      mscclpp_nop(&w);
      for (int q = 0; q < n; q++) {
        if (q == r) continue;
        mscclpp_op(&w, "put");
        mscclpp_from(&w, 1), mscclpp_local(&w, "i", r * parts + p);
        mscclpp_to(&w, 1), mscclpp_remote(&w, q, 0, r * parts + p);
        mscclpp_put_to(&w, q);
      }
      mscclpp_meet(&w, "signal", "wait");
      mscclpp_end_block(&w);
    }
  }
  return mscclpp_end(&w);
}

/* An allreduce in place: each rank adds its part of all inputs and writes it to all, by one operation. */
static inline char *mscclpp_reads(int n, int parts, int in_switch) {
  mscclpp_writer w;
  mscclpp_begin(&w, "allreduce", "Simple", 1, n, parts);
  for (int r = 0; r < n; r++) {
    mscclpp_gpu(&w, r, n * parts, n * parts, 0, "i");
    for (int p = 0; p < parts; p++) {
      const int at = r * parts + p;
      mscclpp_block(&w, p);
      mscclpp_meet(&w, "rlxsignal", "rlxwait");
      if (in_switch) {
        fprintf(w.f,
                ",\n {\"name\":\"glres\",\"src_buff\":[{\"switch_channel_id\":0,\"index\":%d,\"size\":1}],"
                "\"dst_buff\":[{\"switch_channel_id\":0,\"index\":%d,\"size\":1}],\"channel_type\":\"switch\"}",
                at, at);
      } else {
        mscclpp_op(&w, "rres");
        mscclpp_from(&w, 1), mscclpp_local(&w, "i", at);
        for (int q = 0; q < n; q++)
          if (q != r) mscclpp_from(&w, 0), mscclpp_remote(&w, q, 0, at);
        mscclpp_to(&w, 1), mscclpp_local(&w, "i", at);
        for (int q = 0; q < n; q++)
          if (q != r) mscclpp_to(&w, 0), mscclpp_remote(&w, q, 0, at);
        mscclpp_done(&w, "");
      }
      mscclpp_meet(&w, "signal", "wait");
      mscclpp_end_block(&w);
    }
  }
  return mscclpp_end(&w);
}

/* An allgather in place, or an alltoall out of place, by puts into the outputs. gets: by gets (1), by puts of
 * thread block 0 and gets of thread block 1 (2), or by puts of all thread blocks together (3). */
static inline char *mscclpp_direct(int n, int parts, int alltoall, int gets) {
  mscclpp_writer w;
  const int grouped = gets == 3, each = grouped ? 1 : parts; /* chunks for each rank */
  char group[64] = "";
  mscclpp_begin(&w, alltoall ? "alltoall" : "allgather", "Simple", !alltoall, n, parts);
  for (int r = 0; r < n; r++) {
    mscclpp_gpu(&w, r, alltoall ? n * each : each, n * each, 0, gets == 1 && alltoall ? "i" : "o");
    for (int p = 0; p < parts; p++) {
      const int get = grouped ? 0 : gets == 2 ? p : gets, part = grouped ? 0 : p;
      if (grouped) snprintf(group, sizeof group, ",\"tbg_info\":{\"tb_id\":%d,\"tbg_size\":%d}", p, parts);
      mscclpp_block(&w, p);
      mscclpp_meet(&w, "rlxsignal", "rlxwait");
      if (alltoall) {
        mscclpp_op(&w, "copy");
        mscclpp_from(&w, 1), mscclpp_local(&w, "i", r * each + part);
        mscclpp_to(&w, 1), mscclpp_local(&w, "o", r * each + part);
        mscclpp_done(&w, group);
      }
      for (int q = 0; q < n; q++) {
        if (q == r) continue;
        mscclpp_op(&w, get ? "get" : "put");
        mscclpp_from(&w, 1);
        if (get)
          mscclpp_remote(&w, q, 0, (alltoall ? r : q) * each + part);
        else
          mscclpp_local(&w, alltoall ? "i" : "o", (alltoall ? q : r) * each + part);
        mscclpp_to(&w, 1);
        if (get)
          mscclpp_local(&w, "o", q * each + part);
        else
          mscclpp_remote(&w, q, 0, r * each + part);
        mscclpp_done(&w, group);
      }
      mscclpp_meet(&w, "signal", "wait");
      mscclpp_end_block(&w);
    }
  }
  return mscclpp_end(&w);
}
#endif
