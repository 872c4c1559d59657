/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that make and read programs: assembling a program, and the words of its text form. */
#pragma once
#include "program.h"

/* Makes a program from its parts; `head` has everything but the offsets and the size. */
hk_status hk_program_assemble(const hk_program *head, const hk_lane *lanes, const hk_link_need *links,
                              const hk_instr *instrs, const hk_operand *operands, hk_program **out);

/* summary.c: the traits of a program that has its parts. */
hk_traits hk_traits_of(const hk_program *p);

/* "send", "recv", "mcast", ...: the words of the text form, by hk_link_kind. */
extern const char *const hk_link_words[HK_LINK_KINDS];
const char *hk_link_word(unsigned kind); /* for any value */
/* "in", "out", "scratch", by hk_space. */
extern const char *const hk_space_words[3];
/* The characters of an algorithm's name in a file. */
#define HK_PROGRAM_NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+."

/* A program that is being read. */
typedef struct hk_program_draft {
  hk_program head;
  hk_lane *lanes;
  hk_link_need *links;
  hk_instr *instrs;
  hk_operand *operands;
  size_t lanes_capacity, links_capacity, instrs_capacity, operands_capacity;
} hk_program_draft;
/* Makes room for one more of a kind. False: no memory. */
#define HK_DRAFT_ROOM(p, field) HK_RESERVE((p)->field, (p)->field##_capacity, (p)->head.n##field + 1u)
/* The operands of an instruction are those from number `first` on: they move into it if it has room for them. */
void hk_program_draft_move(hk_program_draft *p, hk_instr *i, uint32_t first);
hk_status hk_program_draft_assemble(const hk_program_draft *p, hk_program **out);
void hk_program_draft_free(hk_program_draft *p);
