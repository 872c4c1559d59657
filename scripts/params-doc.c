/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the parameter table as a manual page or as Markdown: params-doc man|markdown. */
#include <stdio.h>
#include <string.h>

static int markdown;

static void put(const char *text) {
  for (; *text; text++) {
    if (markdown && *text == '|') putchar('\\');
    if (!markdown && (*text == '\\' || *text == '-')) putchar('\\');
    if (markdown && (*text == '<' || *text == '>')) {
      printf(*text == '<' ? "&lt;" : "&gt;");
      continue;
    }
    putchar(*text);
  }
}

static void row(const char *name, const char *values, const char *def, const char *help) {
  if (markdown) {
    printf("| `%s` | ", name);
    put(values);
    printf(" | ");
    put(def);
    printf(" | ");
    put(help);
    printf(" |\n");
    return;
  }
  printf(".TP\n.B %s\n", name);
  put(help);
  printf("\n%s%s%s; default: %s.\n", values[0] == '.' ? "\\&" : "",
         (unsigned char)(values[0] | 0x20) >= 'a' ? "Value: " : "Range: ", values, def);
}

static void text_row(const char *name, const char *def, const char *help) {
  row(name, "text", def ? def : "unset", help);
}

static void word_row(const char *name, const char *word, const char *help) { row(name, word, "unset", help); }

static void int_row(const char *name, long long def, long long min, long long max, const char *unit, const char *help) {
  char range[96], def_text[32];
  snprintf(range, sizeof range, "%lld to %lld%s%s", min, max, unit[0] ? " " : "", unit);
  snprintf(def_text, sizeof def_text, "%lld", def);
  row(name, range, def_text, help);
}

static const char about[] =
    "A value comes from the environment, else from ~/.nccl.conf (or the file that NCCL_CONF_FILE names), else from\n"
    "/etc/nccl.conf, else it is the default.  The files hold NAME=value lines; # starts a comment.\n"
    "All are read at the first call of the library, and again when a communicator is made after a variable has changed.\n"
    "\n"
    "Values.  A number out of range, or another word than the one in the table, is reported at WARN once a process, and the\n"
    "default used.  A text that would make the program do something else than asked is an error when a communicator is made\n"
    "(ncclInvalidArgument, ncclInvalidUsage): a name of no algorithm, interface, family, level or network, a list without a\n"
    "name in it, a file that cannot be read.\n"
    "\n"
    "Names.  A name that starts with HOCKET_ or NCCL_ and is near to one of these is reported at WARN with that name, once a\n"
    "job: by rank 0 of the first communicator (other processes: at INFO).  NCCL's variables that have no effect here, and\n"
    "other names that start with HOCKET_ or NCCL_, which may be a user's own, are reported at INFO only.\n";

int main(int argc, char **argv) {
  markdown = argc > 1 && !strcmp(argv[1], "markdown");
  if (markdown)
    printf("# Parameters\n\nMade from `src/base/params.def` by `make docs`; edit that file.\n\n%s\n"
           "| name | values | default | meaning |\n|---|---|---|---|\n",
           about);
  else
    printf(".TH HOCKET-PARAMETERS 7 \"\" \"Hocket\"\n.SH NAME\nhocket-parameters \\- environment variables of Hocket\n"
           ".SH DESCRIPTION\n%s.SH PARAMETERS\n",
           about);
#define HK_PARAM_INT(id, name, def, min, max, unit, help) int_row(name, def, min, max, unit, help);
#define HK_PARAM_STR(id, name, def, help) text_row(name, def, help);
#define HK_PARAM_WORD(id, name, word, help) word_row(name, word, help);
#include "../src/base/params.def"
  return 0;
}
