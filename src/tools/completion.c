/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket completion`: completion scripts for bash and zsh, made from the commands' tables. */
#include <string.h>
#include "help.h"

static hk_tool_words *words_of(const hk_tool_option *o) {
  return o->kind == HK_OPTION_COLL ? hk_tool_coll_word : o->words;
}

static void list(hk_tool_words *words, FILE *to) {
  for (int i = 0; words(i); i++) fprintf(to, "%s%s", i ? " " : "", words(i));
}

/* ---- bash ---- */

/* The words that may follow an option: "    --machine|-m) words=...;;" */
static void bash_values(const hk_tool *t, FILE *to) {
  fputs("      case $before in\n", to);
  for (const hk_tool_option *o = t->options; o && o->name; o++) {
    if (!o->argument) continue;
    fprintf(to, "        --%s", o->name);
    if (o->letter) fprintf(to, " | -%c", o->letter);
    fputs(") ", to);
    if (words_of(o)) {
      fputs("words='", to);
      list(words_of(o), to);
      fputs("' ;;\n", to);
    } else {
      fputs(o->kind == HK_OPTION_FILE ? "files=1 ;;\n" : "return ;;\n", to);
    }
  }
  fputs("        *)\n          if [[ $word == -* ]]; then words='", to);
  for (const hk_tool_option *o = t->options; o && o->name; o++) fprintf(to, "--%s ", o->name);
  fputs("--help'\n", to);
  if (t->most != 0) {
    fputs("          else ", to);
    if (t->words) {
      fputs("words='", to);
      list(t->words, to);
      fputs("'", to);
    } else {
      fputs("files=1", to);
    }
    fputc('\n', to);
  }
  fputs("          fi ;;\n      esac ;;\n", to);
}

void hk_completion_bash(FILE *to) {
  const hk_tool *t;
  fputs("# Completion of hocket for bash, written by `hocket completion bash`.\n_hocket() {\n"
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words='' files=''\n"
        "  COMPREPLY=()\n"
        "  if [ \"$COMP_CWORD\" = 1 ] || { [ \"$COMP_CWORD\" = 2 ] && [ \"${COMP_WORDS[1]}\" = help ]; }; then\n"
        "    words='",
        to);
  for (int i = 0; (t = hk_tool_at(i)); i++) fprintf(to, "%s ", t->name);
  fputs("help'\n  else\n    case ${COMP_WORDS[1]} in\n", to);
  for (int i = 0; (t = hk_tool_at(i)); i++) {
    fprintf(to, "    %s)\n", t->name);
    bash_values(t, to);
  }
  fputs("    esac\n  fi\n"
        "  if [ -n \"$files\" ]; then mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
        "  elif [ -n \"$words\" ]; then mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
        "  fi\n}\ncomplete -o filenames -F _hocket hocket\n",
        to);
}

/* ---- zsh ---- */

/* Quotes, brackets and colons have a meaning inside '...[...]'. */
static void zsh_text(const char *text, FILE *to) {
  for (; *text; text++) {
    if (*text == '\'')
      fputs("'\\''", to);
    else if (strchr("[]:\\", *text))
      fprintf(to, "\\%c", *text);
    else
      fputc(*text, to);
  }
}

static void zsh_action(hk_tool_words *words, bool files, FILE *to) {
  if (words) {
    fputc('(', to);
    list(words, to);
    fputc(')', to);
  } else if (files) {
    fputs("_files", to);
  }
}

static void zsh_option(const hk_tool_option *o, FILE *to) {
  if (o->letter)
    fprintf(to, "      '(-%c --%s)'{-%c,--%s}'[", o->letter, o->name, o->letter, o->name);
  else
    fprintf(to, "      '--%s[", o->name);
  zsh_text(o->help, to);
  fputc(']', to);
  if (o->argument) {
    fputc(':', to);
    zsh_text(o->argument, to);
    fputc(':', to);
    zsh_action(words_of(o), o->kind == HK_OPTION_FILE, to);
  }
  fputs("' \\\n", to);
}

void hk_completion_zsh(FILE *to) {
  const hk_tool *t;
  fputs("#compdef hocket\n# Completion of hocket for zsh, written by `hocket completion zsh`.\n_hocket() {\n"
        "  local -a commands\n  commands=(\n",
        to);
  for (int i = 0; (t = hk_tool_at(i)); i++) {
    fprintf(to, "    '%s:", t->name);
    zsh_text(t->about, to);
    fputs("'\n", to);
  }
  fputs("    'help:how to use a command'\n  )\n"
        "  if (( CURRENT == 2 )) || { (( CURRENT == 3 )) && [[ $words[2] == help ]] }; then\n"
        "    _describe -t commands 'hocket command' commands\n    return\n  fi\n"
        "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n",
        to);
  for (int i = 0; (t = hk_tool_at(i)); i++) {
    fprintf(to, "    %s) _arguments -s \\\n", t->name);
    for (const hk_tool_option *o = t->options; o && o->name; o++) zsh_option(o, to);
    if (t->most != 0) {
      fputs("      ':argument:", to);
      zsh_action(t->words, true, to);
      fputs("' \\\n", to);
      if (t->most != 1) fputs("      '*:more:_files' \\\n", to);
    }
    fputs("      '(-h --help)'{-h,--help}'[print help]' ;;\n", to);
  }
  fputs("  esac\n}\nif [ \"$funcstack[1]\" = _hocket ]; then _hocket \"$@\"; else compdef _hocket hocket; fi\n", to);
}

/* ---- the command ---- */

static const char *shell_word(int i) { return i == 0 ? "bash" : i == 1 ? "zsh" : NULL; }

static int run(void *options, int nargs, char **args) {
  (void)options, (void)nargs;
  if (!strcmp(args[0], "bash"))
    hk_completion_bash(stdout);
  else if (!strcmp(args[0], "zsh"))
    hk_completion_zsh(stdout);
  else
    return hk_tool_wrong("there is no completion for '%s'; there is one for bash and for zsh", args[0]);
  return HK_EXIT_OK;
}

const hk_tool hk_tool_completion = {
    .name = "completion",
    .about = "print the completion script of a shell",
    .usage = "bash|zsh",
    .text = "make install installs the scripts for both shells. To use one without installing:\n"
            "\n"
            "  source <(hocket completion bash)",
    .least = 1,
    .most = 1,
    .words = shell_word,
    .run = run,
};
