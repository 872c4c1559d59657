/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the timeline of a simulation as SVG (picture.h). */
#include "picture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../decide/protocol.h"
#include "../../formats/file.h"
#include "../../program/cursor.h"
#include "../../sim/sim.h"
#include "../tools.h"

/* Pixels. */
enum {
  WIDTH = 1200,
  LEFT = 96, /* of the time axis */
  RIGHT = 20,
  TOP = 84, /* of the first row */
  BOTTOM = 44,
  ROWS = 900, /* all rows together, if they are not too low */
  LOWEST = 9,
  HIGHEST = 26,
  GAP = 12,      /* between ranks */
  TEXT_ROW = 12, /* the lowest row with text */
  LETTER = 7     /* the width of a letter of 11 pixels, at most */
};

/* What an instruction does, by colour. */
typedef enum picture_kind { SEND, RECEIVE, PASS, ADD, COPY, SIGNAL, KINDS } picture_kind;
static const struct {
  const char *colour, *words;
} picture_kinds[KINDS] = {
    [SEND] = {"#56b4e9", "send"}, [RECEIVE] = {"#3cb371", "receive"}, [PASS] = {"#e69f00", "receive and send"},
    [ADD] = {"#cc79a7", "add"},   [COPY] = {"#b0b0b0", "copy"},       [SIGNAL] = {"#f0e442", "empty slot"}};

/* One end of a message, at a place of the picture. */
typedef struct picture_end {
  uint64_t link;   /* equal for both ends */
  uint32_t reader; /* several ranks read a multicast */
  uint32_t nth;    /* message of the link, for this reader */
  uint32_t order;
  double x, y;
} picture_end;

typedef struct picture_ends {
  picture_end *at;
  uint32_t n;
} picture_ends;

typedef struct picture {
  const hk_picture *what;
  FILE *to;
  FILE *above; /* what is drawn last: the text in boxes */
  double us;   /* the end of the axis */
  double row;
  uint32_t *first_row; /* [nranks + 1] */
  hk_cursor *cursors;  /* [rows] the lane's next instruction */
  picture_ends sent, received;
} picture;

static double picture_x(const picture *p, double us) { return LEFT + us / p->us * (WIDTH - LEFT - RIGHT); }
static double picture_y(const picture *p, int rank, unsigned lane) {
  return TOP + rank * GAP + (p->first_row[rank] + lane) * p->row;
}

static void picture_text(FILE *to, const char *text) {
  for (; *text; text++) {
    const char *quoted = *text == '&' ? "&amp;" : *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : NULL;
    if (quoted)
      fputs(quoted, to);
    else
      fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
  }
}

/* ---- instructions ---- */

static picture_kind picture_kind_of(const hk_instr *i, const hk_operand *o) {
  bool sends = false, receives = false;
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++)
    if (o[k].space == HK_LINK) *(k < i->ndst ? &sends : &receives) = true;
  if (!i->ndst || !i->nsrc) return SIGNAL;
  if (i->nsrc > 1) return ADD;
  return sends && receives ? PASS : sends ? SEND : receives ? RECEIVE : COPY;
}

/* The links' ends that a span uses. Groups have no line, because the network is between all of their ranks. */
static void picture_ends_of(picture *p, const hk_sim_span *span, const hk_program *program, const hk_cursor *c,
                            uint32_t order) {
  const hk_instr *i = &hk_program_instrs(program)[c->pc];
  const hk_operand *o = hk_instr_operands(program, i);
  const unsigned channel = span->lane / program->nlanes;
  const double y = picture_y(p, span->rank, span->lane) + p->row / 2;
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space != HK_LINK) continue;
    const hk_link_need *l = &hk_program_links(program)[hk_cursor_link(c, &o[k])];
    if (hk_link_in_group((hk_link_kind)l->kind)) continue;
    const bool sends = hk_link_sends((hk_link_kind)l->kind);
    const bool multicast = l->kind == HK_LINK_MCAST_SEND || l->kind == HK_LINK_MCAST_RECV;
    const unsigned from = sends ? span->rank : l->peer, to = multicast ? HK_RANKS_MOST : sends ? l->peer : span->rank;
    picture_ends *ends = sends ? &p->sent : &p->received;
    ends->at[ends->n++] = (picture_end){.link = (uint64_t)from << 44 | (uint64_t)to << 24 | channel << 8 | l->channel,
                                        .reader = sends ? 0 : span->rank,
                                        .order = order,
                                        .x = picture_x(p, sends ? span->end_us : span->begin_us),
                                        .y = y};
  }
}

/* "b3" if it fits, and on the pointer's place the whole instruction. */
static void picture_box(const picture *p, const hk_sim_span *s, const hk_program *program, const hk_cursor *c) {
  const hk_instr *i = &hk_program_instrs(program)[c->pc];
  const hk_operand *o = hk_instr_operands(program, i);
  const double x = picture_x(p, s->begin_us), wide = fmax(picture_x(p, s->end_us) - x, 0.8);
  const double y = picture_y(p, s->rank, s->lane);
  char block[24], *text = NULL;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  if (f) {
    hk_program_dump_instr(program, c->pc, f);
    fclose(f);
  }
  fprintf(p->to,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" stroke=\"#fff\" "
          "stroke-width=\"0.3\"><title>",
          x, y + 1, wide, p->row - 2, picture_kinds[picture_kind_of(i, o)].colour);
  fprintf(p->to, "rank %u, instruction %u: ", s->rank, c->pc);
  picture_text(p->to, text ? text : "");
  if (c->iteration) fprintf(p->to, ", j = %u", c->iteration);
  fprintf(p->to, "; wave %u, %.2f to %.2f us</title></rect>\n", s->wave, s->begin_us, s->end_us);
  free(text);
  snprintf(block, sizeof block, "b%u", hk_cursor_block(c, program, o));
  if (i->ndst && i->nsrc && p->row >= TEXT_ROW && wide >= (double)(strlen(block) * LETTER + 4))
    fprintf(p->above, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + wide / 2, y + p->row / 2 + 4, block);
}

/* Spans of a lane are in the order of its instructions, so a cursor finds the iteration of each. */
static void picture_boxes(picture *p) {
  const hk_sizes endless = {.longest = UINT64_MAX, .chunk = 1};
  for (uint32_t k = 0; k < p->what->result->nspans; k++) {
    const hk_sim_span *s = &p->what->result->spans[k];
    const hk_program *program = p->what->set->programs[s->rank];
    hk_cursor *c = &p->cursors[p->first_row[s->rank] + s->lane];
    if (!c->end) hk_cursor_begin(c, &hk_program_lanes(program)[s->lane % program->nlanes], 0, &endless);
    hk_cursor_move(c, hk_program_instrs(program));
    picture_box(p, s, program, c);
    picture_ends_of(p, s, program, c, k);
    hk_cursor_next(c, &endless, 1);
  }
}

/* ---- messages ---- */

static int picture_by_order(const void *a, const void *b) {
  const picture_end *x = a, *y = b;
  if (x->link != y->link) return x->link < y->link ? -1 : 1;
  if (x->reader != y->reader) return x->reader < y->reader ? -1 : 1;
  return (x->order > y->order) - (x->order < y->order);
}

static void picture_number(picture_ends *e) {
  qsort(e->at, e->n, sizeof *e->at, picture_by_order);
  for (uint32_t k = 1; k < e->n; k++)
    if (e->at[k].link == e->at[k - 1].link && e->at[k].reader == e->at[k - 1].reader)
      e->at[k].nth = e->at[k - 1].nth + 1;
}

static int picture_by_number(const void *a, const void *b) {
  const picture_end *x = a, *y = b;
  if (x->link != y->link) return x->link < y->link ? -1 : 1;
  return (x->nth > y->nth) - (x->nth < y->nth);
}

static void picture_lines(picture *p) {
  picture_number(&p->sent);
  picture_number(&p->received);
  /* Many lines are paler, so that the boxes remain visible. */
  const double opacity = fmax(0.1, fmin(0.55, 0.55 * sqrt(200.0 / (p->received.n + 1.0))));
  fprintf(p->to, "<g stroke=\"#333\" stroke-width=\"0.7\" stroke-opacity=\"%.2f\" fill=\"#333\">\n", opacity);
  for (uint32_t k = 0; k < p->received.n; k++) {
    const picture_end *r = &p->received.at[k];
    const picture_end *s = bsearch(r, p->sent.at, p->sent.n, sizeof *s, picture_by_number);
    if (!s) continue;
    fprintf(p->to, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"1\"/>\n",
            s->x, s->y, r->x, r->y, r->x, r->y);
  }
  fputs("</g>\n", p->to);
}

/* ---- what is around ---- */

static void picture_head(const picture *p, double height) {
  const hk_sim_result *r = p->what->result;
  const hk_program *first = p->what->set->programs[0];
  char size[32], time[32];
  fprintf(p->to,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
          "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
          "<text x=\"%d\" y=\"26\" font-size=\"15\" font-weight=\"bold\">",
          WIDTH, height, WIDTH, height, LEFT);
  picture_text(p->to, hk_coll_name((hk_coll)first->coll));
  fputs(" by ", p->to);
  picture_text(p->to, first->algorithm);
  fprintf(p->to, ": %s, %d ranks</text>\n<text x=\"%d\" y=\"44\" fill=\"#555\">", hk_tool_bytes(size, p->what->bytes),
          r->nranks, LEFT);
  picture_text(p->to, p->what->machine);
  fprintf(p->to, ", protocol %s, %d channel%s; simulated: %s with the launch</text>\n", hk_protocols[r->protocol].name,
          r->channels, r->channels == 1 ? "" : "s", hk_tool_time(time, r->us));
  double x = LEFT;
  for (int k = 0; k < KINDS; k++) {
    fprintf(p->to,
            "<rect x=\"%.0f\" y=\"55\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%.0f\" y=\"65\">%s</text>\n",
            x, picture_kinds[k].colour, x + 17, picture_kinds[k].words);
    x += 17 + LETTER * (double)strlen(picture_kinds[k].words) + 16;
  }
  fprintf(p->to,
          "<path d=\"M%.0f 61h24\" stroke=\"#333\"/><circle cx=\"%.0f\" cy=\"61\" r=\"2\" fill=\"#333\"/>"
          "<text x=\"%.0f\" y=\"65\">message, from its end at the sender to its use</text>\n",
          x, x + 24, x + 32);
}

/* 1, 2 or 5 times a power of ten, for about ten ticks. */
static double picture_tick(double us) {
  const double power = pow(10, floor(log10(us / 10)));
  const double over = us / 10 / power;
  return power * (over <= 1 ? 1 : over <= 2 ? 2 : over <= 5 ? 5 : 10);
}

static void picture_axis(const picture *p, double bottom) {
  const double step = picture_tick(p->us);
  for (int k = 0; k * step <= p->us; k++) {
    const double x = picture_x(p, k * step);
    fprintf(p->to,
            "<path d=\"M%.1f %dV%.1f\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
            x, TOP - 6, bottom + 4, x, bottom + 18, k * step);
  }
  fprintf(p->to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\">microseconds</text>\n", (LEFT + WIDTH - RIGHT) / 2,
          bottom + 34);
}

static void picture_labels(const picture *p) {
  for (int r = 0; r < p->what->set->nranks; r++) {
    const unsigned lanes = p->first_row[r + 1] - p->first_row[r];
    const double y = picture_y(p, r, 0), middle = y + lanes * p->row / 2 + 4;
    fprintf(p->to,
            "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#f4f4f4\"/>"
            "<text x=\"8\" y=\"%.1f\" font-weight=\"bold\">rank %d</text>\n",
            LEFT, y, WIDTH - LEFT - RIGHT, lanes * p->row, middle, r);
    for (unsigned k = 0; lanes > 1 && k < lanes; k++)
      fprintf(p->to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" font-size=\"%d\" fill=\"#555\">%s%u</text>\n",
              LEFT - 5, y + k * p->row + p->row / 2 + 3, p->row < TEXT_ROW ? 8 : 10, k ? "" : "lane ", k);
  }
}

static hk_status picture_measure(picture *p) {
  const hk_program_set *set = p->what->set;
  const hk_sim_result *r = p->what->result;
  size_t ends = 1;
  p->first_row = calloc((size_t)set->nranks + 1, sizeof *p->first_row);
  if (!p->first_row) return HK_FAIL_ERRNO("no memory for a picture of %d ranks", set->nranks);
  for (int k = 0; k < set->nranks; k++)
    p->first_row[k + 1] = p->first_row[k] + (uint32_t)set->programs[k]->nlanes * (uint32_t)r->channels;
  for (uint32_t k = 0; k < r->nspans; k++) {
    if (r->spans[k].end_us > p->us) p->us = r->spans[k].end_us;
    ends += set->programs[r->spans[k].rank]->traits.max_operands;
  }
  if (p->us <= 0) p->us = 1;
  const uint32_t rows = p->first_row[set->nranks];
  p->row = fmin(fmax(ROWS / (double)(rows ? rows : 1), LOWEST), HIGHEST);
  p->cursors = calloc((size_t)rows + 1, sizeof *p->cursors);
  p->sent.at = calloc(ends, sizeof *p->sent.at);
  p->received.at = calloc(ends, sizeof *p->received.at);
  if (!p->cursors || !p->sent.at || !p->received.at)
    return HK_FAIL_ERRNO("no memory for a picture of %u instructions", r->nspans);
  return HK_OK;
}

hk_status hk_picture_write(FILE *to, const hk_picture *what) {
  picture p = {.what = what, .to = to};
  hk_status rc = HK_OK;
  char *above = NULL;
  size_t bytes;
  HK_TRY(picture_measure(&p), out);
  p.above = open_memstream(&above, &bytes);
  if (!p.above) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a picture's text"), out);
  const double bottom = picture_y(&p, what->set->nranks, 0) - GAP;
  picture_head(&p, bottom + BOTTOM);
  picture_labels(&p);
  picture_axis(&p, bottom);
  picture_boxes(&p);
  picture_lines(&p);
  fclose(p.above);
  fprintf(to, "<g text-anchor=\"middle\">\n%s</g>\n</svg>\n", above ? above : "");
out:
  free(above);
  free(p.first_row);
  free(p.cursors);
  free(p.sent.at);
  free(p.received.at);
  return rc;
}
