/* SPDX-License-Identifier: Apache-2.0 */
/* What is made from the commands' tables: help, manual pages; and how a command line is read. */
#pragma once
#include "tools.h"

void hk_help_all(FILE *to);                   /* `hocket help` */
void hk_help_first(FILE *to);                 /* `hocket` alone */
void hk_help_one(const hk_tool *t, FILE *to); /* `hocket help CMD` */
void hk_man_all(FILE *to);
void hk_man_one(const hk_tool *t, FILE *to);

/* Fills the options, takes them out of argv, runs the command and returns its exit code. argv[0] is the command's
 * name. */
int hk_tool_start(const hk_tool *t, int argc, char **argv);
/* -h means --help, unless an option of the command has that letter. */
bool hk_help_has_letter(const hk_tool_option *rows);
