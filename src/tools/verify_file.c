/* SPDX-License-Identifier: Apache-2.0 */
/* Reads programs of all ranks from a text file. */
#include <stdlib.h>
#include <string.h>
#include "../base/text_file.h"
#include "../formats/file.h"
#include "proof.h"

/* The line of an instruction of a program that begins at line `first`, 0 if there is none: instructions are its
 * indented lines except the links. */
static int verify_file_line_of(const char *text, int first, int instr) {
  int line = 1;
  for (const char *at = text; *at && instr >= 0; line++) {
    if (line > first && *at == ' ' && strncmp(at, "  links:", 8) != 0 && instr-- == 0) return line;
    at += strcspn(at, "\n");
    at += *at == '\n';
  }
  return 0;
}

/* Prints the lines around a line, which is marked. */
static void verify_file_show_lines(const char *text, int around) {
  int line = 1;
  for (const char *at = text; *at; line++) {
    size_t n = strcspn(at, "\n");
    if (line >= around - 2 && line <= around + 1)
      printf("%s%c%5d | %.*s%s\n", hk_tool_style(stdout, line == around ? HK_STYLE_BOLD : HK_STYLE_DIM),
             line == around ? '>' : ' ', line, (int)n, at, hk_tool_style(stdout, HK_STYLE_PLAIN));
    at += n + (at[n] == '\n');
  }
}

static int verify_file_prove_set(const char *name, const char *text, const hk_program_set *s, const hk_proof_options *o,
                                 hk_json *w) {
  const hk_program *head = s->programs[0];
  hk_verify_report report;
  hk_status rc = hk_prove((const hk_program *const *)s->programs, head->nranks, NULL, o, &report);
  if (rc != HK_OK && rc != HK_ERR_INTERNAL) return hk_tool_wrong("%s: %s", name, report.message);
  int line = s->lines && report.message[0] && report.rank >= 0
                 ? verify_file_line_of(text, s->lines[report.rank], report.instr)
                 : 0;
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
    if (line) verify_file_show_lines(text, line);
  }
  return rc == HK_OK ? HK_EXIT_OK : HK_EXIT_FINDING;
}

int hk_prove_file(const char *path, const hk_proof_options *o, hk_json *w) {
  const char *name = strcmp(path, "-") ? path : "stdin";
  hk_program_file f = {.nsets = 0};
  char *text;
  size_t bytes;
  int worst = HK_EXIT_OK;
  if (hk_text_read(path, HK_PROGRAM_FILE_BYTES, &text, &bytes) != HK_OK) return hk_tool_wrong("%s", hk_last_error());
  if (hk_program_file_read(&f, name, text, (unsigned)o->slots) != HK_OK) {
    const bool msccl = text[strspn(text, " \t\r\n")] == '<';
    if (msccl) hk_tool_wrap(stdout, 0, hk_last_error());
    worst = msccl ? HK_EXIT_FINDING : hk_tool_wrong("%s", hk_last_error());
    goto out;
  }
  for (int i = 0; i < f.nsets && worst != HK_EXIT_TROUBLE; i++) {
    const int code = verify_file_prove_set(name, text, &f.sets[i], o, w);
    if (code > worst) worst = code;
  }
out:
  hk_program_file_free(&f);
  free(text);
  return worst;
}
