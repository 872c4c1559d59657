/* SPDX-License-Identifier: Apache-2.0 */
/* The command `hocket`: finds the subcommand and runs it. */
#include "hocket.h"
#include <string.h>
#include "../base/log.h"
#include "../base/param_names.h"
#include "../topo/synth.h"
#include "help.h"

#define HK_TOOL(name) extern const hk_tool hk_tool_##name;
#include "commands.def"
#undef HK_TOOL

static const hk_tool *const listed[] = {
#define HK_TOOL(name) &hk_tool_##name,
#include "commands.def"
#undef HK_TOOL
};

const hk_tool *hk_tool_at(int i) { return (size_t)i < HK_ARRAY_LENGTH(listed) ? listed[i] : NULL; }

static const hk_tool *hocket_tool(const char *name) {
  const hk_tool *t;
  for (int i = 0; (t = hk_tool_at(i)); i++)
    if (!strcmp(t->name, name)) return t;
  return NULL;
}

static int hocket_unknown(const char *name) {
  const char *names[HK_ARRAY_LENGTH(listed) + 1];
  size_t n = 0;
  while (hk_tool_at((int)n)) names[n] = hk_tool_at((int)n)->name, n++;
  names[n++] = "help";
  unsigned distance;
  const char *nearest = hk_param_nearest(name, names, n, &distance);
  fprintf(stderr, "hocket: '%s' is no command", name);
  if (nearest && distance <= 2 && distance < strlen(name)) fprintf(stderr, "; did you mean '%s'?", nearest);
  fprintf(stderr, "\nTry 'hocket help'.\n");
  return HK_EXIT_TROUBLE;
}

/* hocket help [--man] [CMD [PART]] */
static int hocket_help(int argc, char **argv) {
  bool man = argc > 1 && !strcmp(argv[1], "--man");
  argc -= man, argv += man;
  const hk_tool *t = argc > 1 ? hocket_tool(argv[1]) : NULL;
  if (argc > 1 && !strcmp(argv[1], "machine")) return hk_synth_help(stdout), HK_EXIT_OK;
  if (argc > 1 && !t && strcmp(argv[1], "hocket") != 0) return hocket_unknown(argv[1]);
  if (argc > 2 && t && hk_tool_part(t, argv[2])) t = hk_tool_part(t, argv[2]);
  if (man)
    t ? hk_man_one(t, stdout) : hk_man_all(stdout);
  else
    t ? hk_help_one(t, stdout) : hk_help_all(stdout);
  return HK_EXIT_OK;
}

static int hocket_version(void) {
  printf("hocket %d.%d.%d (NCCL %d.%d.%d)\n", HOCKET_MAJOR, HOCKET_MINOR, HOCKET_PATCH, NCCL_MAJOR, NCCL_MINOR,
         NCCL_PATCH);
  return HK_EXIT_OK;
}

/* The program is installed as ncclras, too: then it is that command. */
static bool hocket_is_ncclras(const char *path) {
  const char *slash = strrchr(path, '/');
  return !strcmp(slash ? slash + 1 : path, "ncclras");
}

static int hocket_start(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : NULL;
  if (argc && hocket_is_ncclras(argv[0]))
    return name && !strcmp(name, "--version") ? hocket_version() : hk_tool_start(hocket_tool("ras"), argc, argv);
  if (!name) {
    hk_help_first(stderr);
    return HK_EXIT_TROUBLE;
  }
  if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) return hocket_help(argc - 1, argv + 1);
  if (!strcmp(name, "--version") || !strcmp(name, "-V")) return hocket_version();
  const hk_tool *t = hocket_tool(name);
  return t ? hk_tool_start(t, argc - 1, argv + 1) : hocket_unknown(name);
}

int main(int argc, char **argv) {
  hk_log_for_command();
  int code = hocket_start(argc, argv);
  /* If the disk is full, the command must fail. */
  if ((fflush(stdout) || ferror(stdout)) && code == HK_EXIT_OK) {
    perror("hocket: cannot write the output");
    return HK_EXIT_TROUBLE;
  }
  return code;
}
