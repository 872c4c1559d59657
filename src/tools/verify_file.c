/* SPDX-License-Identifier: Apache-2.0 */
/* Reads programs of all ranks from a text file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../formats/msccl.h"
#include "proof.h"

enum { MOST_BYTES = 256 << 20 };

static char *verify_file_read_all(const char *path) {
  FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
  char *text = NULL;
  size_t n = 0, room = 0;
  if (!f) {
    hk_tool_wrong("cannot read %s: %s", path, strerror(errno));
    return NULL;
  }
  for (;;) {
    if (n + 1 >= room) {
      char *more = room < MOST_BYTES ? realloc(text, room = room ? 2 * room : 65536) : NULL;
      if (!more) {
        hk_tool_wrong("%s is too large", path);
        goto fail;
      }
      text = more;
    }
    size_t got = fread(text + n, 1, room - 1 - n, f);
    if (got == 0) break;
    n += got;
  }
  if (ferror(f)) {
    hk_tool_wrong("cannot read %s: %s", path, strerror(errno));
    goto fail;
  }
  text[n] = 0;
  if (strlen(text) != n) {
    hk_tool_wrong("%s is no text: there is a zero byte in it", path);
    goto fail;
  }
  if (f != stdin) fclose(f);
  return text;
fail:
  if (f != stdin) fclose(f);
  free(text);
  return NULL;
}

/* A program in the file; its text ends where the next one begins. */
typedef struct piece {
  char *text;
  int line;
  hk_program *program;
} piece;
typedef struct source {
  const char *path;
  char *text; /* comments emptied; a zero byte instead of the newline before each program */
  size_t bytes;
  int npieces;
  piece *pieces;
} source;

static void verify_file_source_free(source *s) {
  for (int i = 0; i < s->npieces; i++) hk_program_free(s->pieces[i].program);
  free(s->pieces);
  free(s->text);
}

/* Empties lines that start with #, so that lines keep their numbers, and drops carriage returns. */
static void verify_file_strip(source *s) {
  char *to = s->text;
  bool comment = false, line_start = true;
  for (const char *from = s->text; *from; from++) {
    if (line_start) comment = *from == '#';
    line_start = *from == '\n';
    if ((!comment && *from != '\r') || line_start) *to++ = *from;
  }
  *to = 0;
  s->bytes = (size_t)(to - s->text);
}

/* A line that is indented or names a lane continues a program, any other begins one. */
static bool verify_file_begins_program(const char *line) {
  return *line && *line != '\n' && *line != ' ' && strncmp(line, "lane ", 5) != 0;
}

static bool verify_file_cut(source *s) {
  int line = 1;
  for (char *at = s->text; *at; line++) {
    size_t n = strcspn(at, "\n");
    if (verify_file_begins_program(at)) {
      if (!HK_RESERVE_NEXT(s->pieces, s->npieces)) return false;
      s->pieces[s->npieces++] = (piece){.text = at, .line = line};
      if (at > s->text) at[-1] = 0;
    }
    at += n + (at[n] == '\n');
  }
  return true;
}

static int verify_file_parse(source *s) {
  if (!verify_file_cut(s)) return hk_tool_wrong("out of memory for the programs of %s", s->path);
  if (!s->npieces) return hk_tool_wrong("%s holds no program", s->path);
  for (int i = 0; i < s->npieces; i++) {
    piece *p = &s->pieces[i];
    if (hk_program_parse_at(p->text, p->line, &p->program) != HK_OK)
      return hk_tool_wrong("%s: %s", s->path, hk_last_error());
  }
  return HK_EXIT_OK;
}

/* The line of an instruction of a piece, 0 if there is none: instructions are its indented lines except the links. */
static int verify_file_line_of(const piece *p, int instr) {
  int line = p->line;
  for (const char *at = p->text; *at && instr >= 0; line++) {
    if (*at == ' ' && strncmp(at, "  links:", 8) != 0 && instr-- == 0) return line;
    at += strcspn(at, "\n");
    at += *at == '\n';
  }
  return 0;
}

/* Prints the lines around a line, which is marked. */
static void verify_file_show_lines(const source *s, int around) {
  int line = 1;
  for (const char *at = s->text; at < s->text + s->bytes; line++) {
    size_t n = strcspn(at, "\n");
    if (line >= around - 2 && line <= around + 1)
      printf("%s%c%5d | %.*s%s\n", hk_tool_style(stdout, line == around ? HK_STYLE_BOLD : HK_STYLE_DIM),
             line == around ? '>' : ' ', line, (int)n, at, hk_tool_style(stdout, HK_STYLE_PLAIN));
    at += n + 1;
  }
}

static bool verify_file_same_set(const hk_program *a, const hk_program *b) {
  return a->coll == b->coll && a->nranks == b->nranks && a->root == b->root && !strcmp(a->algorithm, b->algorithm);
}

/* The programs of all ranks, which begin with piece `first`; *count is the number of pieces. The verifier needs them in
 * order. */
static int verify_file_gather(const source *s, int first, int *count, const hk_program **programs, int *piece_of) {
  const hk_program *head = s->pieces[first].program;
  int n = head->nranks;
  if (n == 0) return hk_tool_wrong("%s:%d: a collective of 0 ranks", s->path, s->pieces[first].line);
  for (int r = 0; r < n; r++) programs[r] = NULL;
  for (*count = 0; first + *count < s->npieces && *count < n; ++*count) {
    const hk_program *p = s->pieces[first + *count].program;
    if (!verify_file_same_set(p, head) || p->rank >= n || programs[p->rank]) break;
    programs[p->rank] = p;
    piece_of[p->rank] = first + *count;
  }
  for (int r = 0; r < n; r++)
    if (!programs[r])
      return hk_tool_wrong("%s:%d: the program of rank %d of %d is missing: a proof needs those of all ranks", s->path,
                           s->pieces[first].line, r, n);
  return HK_EXIT_OK;
}

static int verify_file_prove_set(const source *s, const hk_program **programs, const int *piece_of,
                                 const hk_proof_options *o, hk_json *w) {
  const hk_program *head = programs[0];
  hk_verify_report report;
  hk_status rc = hk_prove(programs, head->nranks, NULL, o, &report);
  if (rc != HK_OK && rc != HK_ERR_INTERNAL) return hk_tool_wrong("%s: %s", s->path, report.message);
  int line = piece_of && report.message[0] && report.rank >= 0
                 ? verify_file_line_of(&s->pieces[piece_of[report.rank]], report.instr)
                 : 0;
  if (w) {
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", head->nranks);
    hk_proof_json(w, head, ranks, &report, s->path, line);
  } else if (rc == HK_OK) {
    const char *order = hk_proof_order(head, &report);
    printf("%s: %s %s, %d ranks: %sproved%s%s%s\n", s->path, hk_coll_name((hk_coll)head->coll), head->algorithm,
           head->nranks, hk_tool_style(stdout, HK_STYLE_GREEN), hk_tool_style(stdout, HK_STYLE_PLAIN),
           *order ? ", order of sums: " : "", order);
  } else {
    char text[sizeof report.message + 512];
    if (line)
      snprintf(text, sizeof text, "%.400s:%d: %s", s->path, line, report.message);
    else
      snprintf(text, sizeof text, "%.400s: %s", s->path, report.message);
    hk_tool_wrap(stdout, 0, text);
    if (line) verify_file_show_lines(s, line);
  }
  return rc == HK_OK ? HK_EXIT_OK : HK_EXIT_FINDING;
}

/* An algorithm in MSCCL's XML. */
static int verify_file_msccl(const source *s, const hk_proof_options *o, hk_json *w) {
  hk_msccl m;
  int code = HK_EXIT_FINDING;
  const hk_status rc = hk_msccl_read(&m, s->path, s->text, (unsigned)o->slots);
  if (rc == HK_OK)
    code = verify_file_prove_set(s, (const hk_program **)m.programs, NULL, o, w);
  else
    hk_tool_wrap(stdout, 0, hk_last_error());
  hk_msccl_free(&m);
  return code;
}

int hk_prove_file(const char *path, const hk_proof_options *o, hk_json *w) {
  source s = {.path = strcmp(path, "-") ? path : "stdin", .text = verify_file_read_all(path)};
  if (!s.text) return HK_EXIT_TROUBLE;
  if (s.text[strspn(s.text, " \t\r\n")] == '<') {
    const int code = verify_file_msccl(&s, o, w);
    free(s.text);
    return code;
  }
  verify_file_strip(&s);
  int worst = verify_file_parse(&s), count = 1;
  for (int i = 0; i < s.npieces && worst != HK_EXIT_TROUBLE; i += count) {
    size_t n = (size_t)s.pieces[i].program->nranks;
    const hk_program **programs = calloc(n + 1, sizeof *programs);
    int *piece_of = calloc(n + 1, sizeof *piece_of);
    int code = programs && piece_of ? verify_file_gather(&s, i, &count, programs, piece_of)
                                    : hk_tool_wrong("out of memory");
    if (code == HK_EXIT_OK) code = verify_file_prove_set(&s, programs, piece_of, o, w);
    if (code > worst) worst = code;
    free(programs);
    free(piece_of);
  }
  verify_file_source_free(&s);
  return worst;
}
