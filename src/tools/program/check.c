/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program check`: proves the programs of files. */
#include <stdlib.h>
#include <string.h>
#include "../../base/json.h"
#include "../../base/text_file.h"
#include "../../program/verify.h"
#include "../proof.h"
#include "program.h"

typedef struct options {
  hk_proof_options proof;
} options;

/* The line of an instruction of a program that begins at line `first`, 0 if there is none: instructions are its
 * indented lines except the links. */
static int check_line_of(const char *text, int first, int instr) {
  int line = 1;
  for (const char *at = text; *at && instr >= 0; line++) {
    if (line > first && *at == ' ' && strncmp(at, "  links:", 8) != 0 && instr-- == 0) return line;
    at += strcspn(at, "\n");
    at += *at == '\n';
  }
  return 0;
}

/* Prints the lines around a line, which is marked. */
static void check_show_lines(const char *text, int around) {
  int line = 1;
  for (const char *at = text; *at; line++) {
    size_t n = strcspn(at, "\n");
    if (line >= around - 2 && line <= around + 1)
      printf("%s%c%5d | %.*s%s\n", hk_tool_style(stdout, line == around ? HK_STYLE_BOLD : HK_STYLE_DIM),
             line == around ? '>' : ' ', line, (int)n, at, hk_tool_style(stdout, HK_STYLE_PLAIN));
    at += n + (at[n] == '\n');
  }
}

static int check_set(const char *name, const char *text, const hk_program_set *s, const hk_proof_options *o,
                     hk_json *w) {
  const hk_program *head = s->programs[0];
  hk_verify_report report;
  hk_status rc = hk_prove((const hk_program *const *)s->programs, head->nranks, NULL, o, &report);
  if (rc != HK_OK && rc != HK_ERR_INTERNAL) return hk_tool_wrong("%s: %s", name, report.message);
  int line =
      s->lines && report.message[0] && report.rank >= 0 ? check_line_of(text, s->lines[report.rank], report.instr) : 0;
  if (w) {
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", head->nranks);
    hk_proof_json(w, head, ranks, &report, name, line);
  } else if (rc == HK_OK) {
    const char *order = hk_proof_order(head, &report);
    printf("%s: %s %s, %d ranks: %sproved%s%s%s\n", name, hk_coll_name((hk_coll)head->coll), head->algorithm,
           head->nranks, hk_tool_style(stdout, HK_STYLE_GREEN), hk_tool_style(stdout, HK_STYLE_PLAIN),
           *order ? ", order of sums: " : "", order);
  } else {
    char words[sizeof report.message + 512];
    if (line)
      snprintf(words, sizeof words, "%.400s:%d: %s", name, line, report.message);
    else
      snprintf(words, sizeof words, "%.400s: %s", name, report.message);
    hk_tool_wrap(stdout, 0, words);
    if (line) check_show_lines(text, line);
  }
  return rc == HK_OK ? HK_EXIT_OK : HK_EXIT_FINDING;
}

/* The file is not of its form, or an algorithm of MSCCL does not do what its collective says. */
static void check_refuse(const char *name, hk_json *w) {
  if (!w) {
    hk_tool_wrap(stdout, 0, hk_last_error());
    return;
  }
  hk_json_open(w, '{');
  hk_json_put_text(w, "file", name);
  hk_json_put_boolean(w, "proved", false);
  hk_json_put_text(w, "message", hk_last_error());
  hk_json_close(w);
}

static int check_file(const char *path, const hk_proof_options *o, hk_json *w) {
  const char *name = hk_program_file_name(path);
  hk_program_file f = {.nsets = 0};
  char *text;
  size_t bytes;
  int worst = HK_EXIT_OK;
  if (hk_text_read(path, HK_PROGRAM_FILE_BYTES, &text, &bytes) != HK_OK) return hk_tool_wrong("%s", hk_last_error());
  const hk_status rc = hk_program_file_read(&f, name, text, (unsigned)o->slots);
  if (rc == HK_ERR_ARGUMENT) check_refuse(name, w);
  if (rc != HK_OK) worst = rc == HK_ERR_ARGUMENT ? HK_EXIT_FINDING : hk_tool_failed(rc);
  for (int i = 0; rc == HK_OK && i < f.nsets && worst != HK_EXIT_TROUBLE; i++) {
    const int code = check_set(name, text, &f.sets[i], o, w);
    if (code > worst) worst = code;
  }
  hk_program_file_free(&f);
  free(text);
  return worst;
}

static int check_run(void *into, int nargs, char **args) {
  options *o = into;
  hk_json w = {.f = stdout}, *json = o->proof.json ? &w : NULL;
  int worst = HK_EXIT_OK;
  if (o->proof.slots <= 0) o->proof.slots = (int)hk_tool_slots();
  if (json) hk_proofs_json_begin(json);
  for (int i = 0; i < nargs; i++) {
    const int code = check_file(args[i], &o->proof, json);
    if (code > worst) worst = code;
  }
  if (json) hk_proofs_json_end(json, worst);
  return worst;
}

static const hk_tool_option rows[] = {HK_ROWS_PROOF(proof), {0}};

const hk_tool hk_program_check = {
    .name = "program check",
    .about = "prove the programs of a file",
    .usage = "FILE...",
    .text =
        "Proves that the programs of all ranks do what their collective says, out of place and in place: see hocket "
        "verify. A FILE (- is stdin) is one that hocket program convert, hocket program search or hocket plan "
        "--program writes, JSON, or an algorithm in MSCCL's XML, or a plan in MSCCL++'s JSON.",
    .findings = "a file was refused; the output says which rank and instruction (or gpu, block and step), and why",
    .examples = "hocket program check *.xml\n  the algorithms of a folder\n"
                "hocket plan allreduce 1M --ranks 4 --program | hocket program check -\n  what runs, proved again",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = -1,
    .run = check_run,
};
