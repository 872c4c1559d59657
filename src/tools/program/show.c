/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program show`: what the programs of a file do. */
#include <string.h>
#include "../../program/cursor.h"
#include "../../program/summary.h"
#include "../../program/verify.h"
#include "../proof.h"
#include "program.h"

typedef struct options {
  bool program;
  int rank;
} options;

/* What a rank does in one wave: equal rows of the table are shown as one. */
typedef struct show_row {
  uint64_t lanes, links, instrs, messages;
  uint64_t sent, received, added; /* blocks */
} show_row;

static show_row show_count(const hk_program *p) {
  show_row row = {.lanes = p->nlanes, .links = p->nlinks, .instrs = p->ninstrs};
  hk_scan s = {.end = p->ninstrs};
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    const bool data = i->ndst && i->nsrc;
    for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
      if (o[k].space != HK_LINK) continue;
      if (k < i->ndst) row.messages += s.times;
      if (data) *(k < i->ndst ? &row.sent : &row.received) += s.times;
    }
    if (data) row.added += (uint64_t)s.times * (i->nsrc - 1u);
  }
  return row;
}

static void show_table(const hk_program_set *s) {
  hk_table *t = hk_table_new("lrrrrrrr");
  hk_table_row(t, HK_STYLE_BOLD, "RANKS\tLANES\tLINKS\tINSTRUCTIONS\tMESSAGES\tSENT\tRECEIVED\tADDED");
  for (int r = 0, next; r < s->nranks; r = next) {
    const double size = s->programs[r]->blocks;
    const show_row row = show_count(s->programs[r]);
    char ranks[24];
    for (next = r + 1; next < s->nranks; next++) {
      const show_row other = show_count(s->programs[next]);
      if (memcmp(&row, &other, sizeof row) != 0) break;
    }
    snprintf(ranks, sizeof ranks, next > r + 1 ? "%d-%d" : "%d", r, next - 1);
    hk_table_row(t, HK_STYLE_PLAIN, "%s\t%llu\t%llu\t%llu\t%llu\t%.4g\t%.4g\t%.4g", ranks,
                 (unsigned long long)row.lanes, (unsigned long long)row.links, (unsigned long long)row.instrs,
                 (unsigned long long)row.messages, (double)row.sent / size, (double)row.received / size,
                 (double)row.added / size);
  }
  hk_table_print(t, 2, stdout);
  putchar('\n');
  hk_tool_wrap(stdout, 0,
               "SENT, RECEIVED and ADDED are multiples of the size, which is that of the larger of a rank's buffers.");
}

static void show_meant(const hk_program_set *s, hk_table *t) {
  char least[32], most[32];
  if (s->in_place != s->out_of_place)
    hk_table_row(t, HK_STYLE_PLAIN, "meant for calls\t%s", s->in_place ? "in place" : "out of place");
  if (s->least || s->most)
    hk_table_row(t, HK_STYLE_PLAIN, "meant for sizes\tfrom %s%s%s", hk_tool_bytes(least, (size_t)s->least),
                 s->most ? " to " : " on", s->most ? hk_tool_bytes(most, (size_t)s->most) : "");
}

static int show_set(const char *name, const hk_program_set *s, const hk_proof_options *how) {
  const hk_program *p = s->programs[0];
  const hk_program *const *programs = (const hk_program *const *)s->programs;
  hk_verify_report report;
  hk_summary sum;
  hk_status rc = hk_prove(programs, s->nranks, NULL, how, &report);
  if (rc == HK_ERR_INTERNAL) return hk_tool_wrong("%s: %s", name, report.message);
  if (rc == HK_OK) rc = hk_summarize(&sum, programs, s->nranks, s->nranks, HK_MAP_SHIFT, NULL, 0, false);
  if (rc != HK_OK) return hk_tool_failed(rc);
  printf("%s%s%s: %s of %d ranks\n\n", hk_tool_style(stdout, HK_STYLE_BOLD), p->algorithm,
         hk_tool_style(stdout, HK_STYLE_PLAIN), hk_coll_name((hk_coll)p->coll), p->nranks);
  hk_table *t = hk_table_new("ll");
  if (hk_coll_has_root((hk_coll)p->coll)) hk_table_row(t, HK_STYLE_PLAIN, "root\t%d", p->root);
  hk_table_row(t, HK_STYLE_PLAIN, "blocks\t%u of the input, %u of the output", p->in_blocks, p->out_blocks);
  hk_table_row(t, HK_STYLE_PLAIN, "scratch memory\t%u block%s a lane", p->scratch_blocks,
               p->scratch_blocks == 1 ? "" : "s");
  hk_table_row(t, HK_STYLE_PLAIN, "longest chain\t%d message%s", sum.first.rounds,
               sum.first.rounds == 1 ? "" : "s, one after another");
  if (*hk_proof_order(p, &report)) hk_table_row(t, HK_STYLE_PLAIN, "order of sums\t%s", hk_proof_order(p, &report));
  show_meant(s, t);
  hk_table_print(t, 2, stdout);
  putchar('\n');
  show_table(s);
  hk_summary_clear(&sum);
  return HK_EXIT_OK;
}

static int show_programs(const hk_program_set *s, int rank) {
  if (rank >= s->nranks) return hk_tool_wrong("--rank %d, but there are %d ranks", rank, s->nranks);
  for (int r = 0; r < s->nranks; r++)
    if (rank < 0 || r == rank) hk_program_dump(s->programs[r], stdout);
  return HK_EXIT_OK;
}

static int show_run(void *into, int nargs, char **args) {
  const options *o = into;
  const hk_proof_options how = {.slots = (int)hk_tool_slots()};
  hk_program_file f;
  (void)nargs; /* one */
  int code = hk_program_open(&f, args[0]);
  for (int i = 0; i < f.nsets && code == HK_EXIT_OK; i++) {
    if (i && !o->program) putchar('\n');
    code = o->program ? show_programs(&f.sets[i], o->rank) : show_set(hk_program_file_name(args[0]), &f.sets[i], &how);
  }
  hk_program_file_free(&f);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_FLAG(program, "program", "write the programs, as text", .letter = 'p'),
    HK_ROW_INT(rank, "rank", "RANK", "with --program: only this rank's", .def = "-1", .low = -1, .high = HK_RANKS_MOST),
    {0}};

const hk_tool hk_program_show = {
    .name = "program show",
    .about = "say what the programs of a file do",
    .usage = "FILE",
    .text = "Shows the collective, blocks, the longest chain of messages, the order of sums, and what each rank sends, "
            "receives and adds. With --program: the programs as text, whatever the file's form.",
    .examples = "hocket program show ring.xml\n  ranks, lanes, messages\n"
                "hocket program show ring.xml --program --rank 0\n  the instructions of rank 0",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = 1,
    .run = show_run,
};
