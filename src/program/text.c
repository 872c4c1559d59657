/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the text form of a program: what hk_program_dump writes, line by line. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "program_internal.h"

typedef struct parser {
  const char *at; /* the next character */
  int line;
  hk_status error;
  hk_program_draft draft;
} parser;

static hk_status text_fail(parser *p, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
static hk_status text_fail(parser *p, const char *format, ...) {
  char text[120];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  int shown = (int)strcspn(p->at, "\n");
  if (!p->error)
    p->error = HK_FAIL(HK_ERR_ARGUMENT, "Program text, line %d: %s, at \"%.*s\"", p->line, text,
                       shown > 40 ? 40 : shown, p->at);
  return p->error;
}

static bool text_no_room(parser *p, size_t n, size_t bytes) {
  if (!p->error) p->error = HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program of over %zu x %zu bytes", n, bytes);
  return false;
}
#define GROW(p, field)                                                                                                 \
  (HK_DRAFT_ROOM(&(p)->draft, field) || text_no_room((p), (p)->draft.head.n##field, sizeof *(p)->draft.field))

/* ---- small pieces; each moves the cursor after what it read ---- */

static bool text_take(parser *p, const char *literal) {
  size_t n = strlen(literal);
  if (strncmp(p->at, literal, n) != 0) return false;
  p->at += n;
  return true;
}
static void text_expect(parser *p, const char *literal) {
  if (!p->error && !text_take(p, literal)) text_fail(p, "expected \"%s\"", literal);
}
static uint32_t text_number(parser *p, uint32_t max) {
  if (p->error) return 0;
  uint64_t n = 0;
  const char *c = p->at;
  while (*c >= '0' && *c <= '9' && n <= max) n = n * 10 + (uint64_t)(*c++ - '0');
  if (c == p->at || n > max) {
    text_fail(p, "expected a number up to %u", max);
    return 0;
  }
  p->at = c;
  return (uint32_t)n;
}
static uint32_t text_count(parser *p) { return text_number(p, HK_BLOCKS_MOST); }

static void text_spaces(parser *p) {
  while (*p->at == ' ') p->at++;
}
/* The end of a line, and the blank lines after it. */
static void text_end_of_line(parser *p) {
  text_spaces(p);
  if (*p->at && *p->at != '\n') text_fail(p, "the line should end");
  while (!p->error && *p->at == '\n') {
    p->at++;
    p->line++;
  }
}

/* "send", ...: returns the kind, or -1 without moving. Later ones come first: mcast-recv begins with mcast. */
static int text_link_kind(parser *p) {
  for (int k = (int)HK_ARRAY_LENGTH(hk_link_words); k-- > 0;) {
    const char *before = p->at;
    if (text_take(p, hk_link_words[k]) && *p->at == '(') return k;
    p->at = before;
  }
  return -1;
}

/* ---- the first line ---- */

static void text_read_head(parser *p) {
  hk_program *h = &p->draft.head;
  int coll = 0;
  size_t n = strcspn(p->at, " \n"); /* of the collective's name */
  while (coll < HK_COLL_COUNT &&
         (strlen(hk_coll_name((hk_coll)coll)) != n || strncmp(p->at, hk_coll_name((hk_coll)coll), n) != 0))
    coll++;
  if (coll == HK_COLL_COUNT) {
    text_fail(p, "expected a collective's name");
    return;
  }
  p->at += n;
  text_expect(p, " ");
  n = strspn(p->at, HK_PROGRAM_NAME_CHARACTERS);
  if (n == 0 || n >= sizeof h->algorithm)
    text_fail(p, "expected an algorithm's name of at most %zu letters, digits, _-+.", sizeof h->algorithm - 1);
  if (p->error) return;
  memcpy(h->algorithm, p->at, n);
  p->at += n;
  h->coll = (uint16_t)coll;
  h->partition = (uint16_t)hk_coll_partition((hk_coll)coll);
  text_expect(p, ", rank ");
  h->rank = (int)text_count(p);
  text_expect(p, " of ");
  h->nranks = (int)text_count(p);
  if (hk_coll_has_root((hk_coll)coll)) {
    text_expect(p, ", root ");
    h->root = (int)text_count(p);
  }
  if (h->partition == HK_PART_SPLIT) {
    text_expect(p, ", message split into ");
    h->in_blocks = h->out_blocks = text_count(p);
  } else {
    text_expect(p, ", messages in ");
    h->in_blocks = text_count(p);
    text_expect(p, " out ");
    h->out_blocks = text_count(p);
  }
  h->blocks = h->in_blocks > h->out_blocks ? h->in_blocks : h->out_blocks;
  text_expect(p, ", scratch ");
  h->scratch_blocks = text_count(p);
  p->at += strcspn(p->at, "\n"); /* totals */
  text_end_of_line(p);
}

/* ---- lanes ---- */

static void text_read_links(parser *p) {
  text_expect(p, "  links:");
  while (!p->error && text_take(p, " ")) {
    uint32_t index = text_count(p);
    if (!p->error && index != p->draft.head.nlinks) text_fail(p, "the next link is %u", p->draft.head.nlinks);
    text_expect(p, "=");
    int kind = p->error ? 0 : text_link_kind(p);
    if (kind < 0)
      text_fail(p, "expected send, recv, mcast, sum, gather or scatter, or one of the last four with -recv");
    text_expect(p, "(");
    unsigned lane = p->draft.head.nlanes - 1u;
    hk_link_need l = {.peer = text_count(p), .kind = (unsigned)kind, .lane = (uint8_t)lane, .channel = (uint8_t)lane};
    if (!p->error && text_take(p, "@")) l.channel = (uint8_t)text_number(p, UINT8_MAX);
    text_expect(p, ")");
    if (p->error || !GROW(p, links)) return;
    p->draft.links[p->draft.head.nlinks++] = l;
  }
  text_end_of_line(p);
}

/* "(5)", "(5@1)", "(link 3)" or "(link 3+j)" after a link's word. */
static void text_read_link(parser *p, int kind, hk_operand *o) {
  text_expect(p, "(");
  if (!p->error && text_take(p, "link ")) {
    o->link = text_count(p);
    if (text_take(p, "+j")) o->flags = HK_OPERAND_STEP;
    text_expect(p, ")");
    return;
  }
  const int peer = (int)text_count(p);
  uint32_t lane = p->draft.head.nlanes - 1u, channel = lane;
  if (!p->error && text_take(p, "@")) channel = text_number(p, UINT8_MAX);
  text_expect(p, ")");
  for (uint32_t k = 0; k < p->draft.head.nlinks && !p->error; k++) {
    const hk_link_need *l = &p->draft.links[k];
    if (l->lane != lane || l->kind != kind || l->peer != peer || l->channel != channel) continue;
    o->link = k;
    return;
  }
  text_fail(p, "the lane has no link %s(%u@%u)", hk_link_words[kind], peer, channel);
}

static void text_read_operand(parser *p) {
  hk_operand o = {0};
  int kind = text_link_kind(p);
  if (kind >= 0) {
    o.space = HK_LINK;
    text_read_link(p, kind, &o);
  } else {
    while (o.space < HK_LINK && !text_take(p, hk_space_words[o.space])) o.space++;
    if (o.space == HK_LINK) text_fail(p, "expected an operand");
  }
  text_expect(p, "[b");
  o.block = text_count(p);
  if (!p->error && (*p->at == '+' || *p->at == '-')) {
    int sign = *p->at++ == '-' ? -1 : 1;
    o.stride = sign * (int)text_count(p);
    text_expect(p, "j");
  }
  text_expect(p, "]");
  if (p->error || !GROW(p, operands)) return;
  p->draft.operands[p->draft.head.noperands++] = o;
}

/* ", final" and the like: no operand follows the comma. */
static bool text_at_flag(const parser *p) {
  static const char *const flags[] = {", final", ", copy", ", in switch"};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(flags); k++)
    if (strncmp(p->at, flags[k], strlen(flags[k])) == 0) return true;
  return false;
}

static uint16_t text_read_operands(parser *p, const char *separator) {
  uint32_t n = 0;
  if (text_take(p, "none")) return 0;
  do {
    text_read_operand(p);
    if (++n > UINT16_MAX) text_fail(p, "too many operands");
  } while (!p->error && !text_at_flag(p) && text_take(p, separator));
  return (uint16_t)n;
}

static void text_read_instr(parser *p) {
  if (!GROW(p, instrs)) return;
  hk_instr *i = &p->draft.instrs[p->draft.head.ninstrs++];
  memset(i, 0, sizeof *i);
  text_spaces(p);
  if (text_take(p, "repeat the next ")) {
    i->op = HK_OP_REPEAT;
    i->repeat.body = text_number(p, INT32_MAX);
    text_expect(p, ", ");
    i->repeat.count = text_number(p, INT32_MAX);
    text_expect(p, " times");
  } else {
    uint32_t first = p->draft.head.noperands;
    i->ndst = text_read_operands(p, ", ");
    text_expect(p, " <- ");
    i->nsrc = text_read_operands(p, " + ");
    if (!p->error && text_take(p, ", final")) i->flags |= HK_INSTR_FINAL;
    if (!p->error && text_take(p, ", copy")) i->flags |= HK_INSTR_COPY;
    if (!p->error && text_take(p, ", in switch")) i->flags |= HK_INSTR_IN_SWITCH;
    hk_program_draft_move(&p->draft, i, first);
  }
  text_end_of_line(p);
}

static void text_read_lane(parser *p) {
  text_expect(p, "lane ");
  uint32_t lane = text_number(p, UINT8_MAX);
  if (!p->error && lane != p->draft.head.nlanes) text_fail(p, "the next lane is %u", p->draft.head.nlanes);
  text_end_of_line(p);
  if (p->error || !GROW(p, lanes)) return;
  p->draft.lanes[p->draft.head.nlanes++] = (hk_lane){.first = p->draft.head.ninstrs};
  text_read_links(p);
  while (!p->error && *p->at == ' ') {
    text_spaces(p);
    text_number(p, UINT32_MAX); /* the instruction's, for people */
    text_expect(p, ": ");
    if (!p->error) text_read_instr(p);
  }
  p->draft.lanes[lane].count = p->draft.head.ninstrs - p->draft.lanes[lane].first;
}

hk_status hk_program_parse(const char *text, hk_program **out) { return hk_program_parse_at(text, 1, out); }

hk_status hk_program_parse_at(const char *text, int line, hk_program **out) {
  parser p = {.at = text, .line = line};
  *out = NULL;
  text_read_head(&p);
  while (!p.error && *p.at) text_read_lane(&p);
  if (!p.error) p.error = hk_program_draft_assemble(&p.draft, out);
  hk_program_draft_free(&p.draft);
  return p.error;
}
