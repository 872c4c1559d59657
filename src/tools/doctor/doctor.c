/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket doctor`: finds problems of this machine that stop or slow down collectives, and their fixes. */
#include "doctor.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../../base/array.h"
#include "../../base/json.h"
#include "../../base/param.h"
#include "../../base/sysfs.h"
#include "../../topo/detect.h"
#include "../../topo/topo.h"

typedef struct options {
  bool json;
  const char *root, *peer;
  int listen;
} options;

typedef struct check {
  const char *name, *about;
  void (*run)(hk_doctor *d);
} check;

static const check checks[] = {
    {"variables", "NCCL_ and HOCKET_ variables that are misspelt or out of range", hk_doctor_variables},
    {"plugins", "plugins and files that variables name", hk_doctor_plugins},
    {"frameworks", "which NCCL PyTorch, CuPy, JAX and vLLM would use", hk_doctor_frameworks},
    {"interfaces", "which network interface is used, and whether connections work", hk_doctor_interfaces},
    {"encryption", "whether TCP connections can be encrypted (TLS), and by whom", hk_doctor_encryption},
    {"peer", "connections and RDMA routes to another host (--peer)", hk_doctor_peer},
    {"gids", "which GID a RoCE port uses", hk_doctor_gids},
    {"verbs", "RDMA devices open and take memory", hk_doctor_verbs},
    {"shm", "memory that processes share", hk_doctor_shm},
    {"cma", "whether processes may read each other's memory (ptrace_scope)", hk_doctor_cma},
    {"memlock", "how much memory may be locked (ulimit -l)", hk_doctor_memlock},
    {"files", "how many files may be open (ulimit -n)", hk_doctor_files},
    {"hugepages", "huge pages for large buffers", hk_doctor_thp},
    {"limits", "limits of the container or job (cgroup)", hk_doctor_limits},
    {"numa", "which processors and memory this process is bound to", hk_doctor_numa},
    {"governor", "whether processors run at full speed", hk_doctor_governor},
    {"topology", "parts of the machine that cannot be seen", hk_doctor_topology},
    {"links", "PCI links that are slower than they could be", hk_doctor_links},
    {"gpu", "GPU driver and libraries", hk_doctor_gpu},
    {"xid", "errors of GPUs and NVSwitches in the kernel's log", hk_doctor_xid},
    {"kernels", "whether the kernels load on each GPU, and what else their ranks need", hk_doctor_kernels},
    {"nvls", "whether the switch between GPUs adds up (NVLS)", hk_doctor_nvls},
    {"copies", "how fast GPUs copy from and to host memory", hk_doctor_copies},
    {"p2p", "how fast GPUs write to each other, and whether the data arrives unchanged", hk_doctor_p2p},
    {"gdr", "whether NICs reach GPU memory (GPUDirect RDMA)", hk_doctor_gdr},
    {"pairs", "which GPU's memory which RDMA card can register", hk_doctor_gpu_pairs},
    {"acs", "PCI switches that send peer traffic through the CPU", hk_doctor_acs},
    {"iommu", "an IOMMU that translates traffic between devices", hk_doctor_iommu},
};

static const char *doctor_check_word(int i) {
  return i >= 0 && i < (int)HK_ARRAY_LENGTH(checks) ? checks[i].name : NULL;
}

void hk_doctor_say(hk_doctor *d, hk_health_state state, const char *fix, const char *format, ...) {
  if (!HK_RESERVE_NEXT(d->at, d->n)) return;
  hk_finding *f = &d->at[d->n++];
  va_list args;
  va_start(args, format);
  vsnprintf(f->text, sizeof f->text, format, args);
  va_end(args);
  f->check = d->check;
  f->state = state;
  snprintf(f->fix, sizeof f->fix, "%s", fix ? fix : "");
}

const char *hk_doctor_fix(char *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(text, 256, format, args);
  va_end(args);
  return text;
}

static const char *doctor_state_name(hk_health_state s) {
  return s == HK_DOC_OK ? "ok" : s == HK_DOC_NOTE ? "note" : "problem";
}
static int doctor_count(const hk_doctor *d, hk_health_state s) {
  int n = 0;
  for (int i = 0; i < d->n; i++) n += d->at[i].state == s;
  return n;
}

static void doctor_print_text(const hk_doctor *d) {
  static const hk_style styles[] = {HK_STYLE_GREEN, HK_STYLE_YELLOW, HK_STYLE_RED};
  hk_table *t = hk_table_new("llw");
  const char *last = "";
  for (int i = 0; i < d->n; i++) {
    const hk_finding *f = &d->at[i];
    hk_table_cell(t, styles[f->state], "%s", doctor_state_name(f->state));
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", strcmp(last, f->check) ? f->check : "");
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", f->text);
    if (f->fix[0]) {
      hk_table_cell(t, HK_STYLE_PLAIN, "%s", "");
      hk_table_cell(t, HK_STYLE_PLAIN, "%s", "");
      hk_table_cell(t, HK_STYLE_BOLD, "do: %s", f->fix);
    }
    last = f->check;
  }
  hk_table_print(t, 0, stdout);
  int problems = doctor_count(d, HK_DOC_PROBLEM), notes = doctor_count(d, HK_DOC_NOTE);
  printf("\n%d problem%s, %d note%s, %d ok\n", problems, problems == 1 ? "" : "s", notes, notes == 1 ? "" : "s",
         doctor_count(d, HK_DOC_OK));
}

static void doctor_print_json(const hk_doctor *d) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "problems", doctor_count(d, HK_DOC_PROBLEM));
  hk_json_put_integer(&w, "notes", doctor_count(d, HK_DOC_NOTE));
  hk_json_begin(&w, "findings", '[');
  for (int i = 0; i < d->n; i++) {
    hk_json_open(&w, '{');
    hk_json_put_text(&w, "check", d->at[i].check);
    hk_json_put_text(&w, "state", doctor_state_name(d->at[i].state));
    hk_json_put_text(&w, "text", d->at[i].text);
    hk_json_put_text(&w, "fix", d->at[i].fix[0] ? d->at[i].fix : NULL);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_close(&w);
  putchar('\n');
}

static bool doctor_chosen(const char *name, int nargs, char **args) {
  for (int i = 0; i < nargs; i++)
    if (!strcmp(args[i], name)) return true;
  return nargs == 0;
}

static int doctor_run(void *into, int nargs, char **args) {
  const options *o = into;
  for (int i = 0; i < nargs; i++) {
    bool known = false;
    for (size_t k = 0; k < HK_ARRAY_LENGTH(checks); k++) known = known || !strcmp(checks[k].name, args[i]);
    if (!known) return hk_tool_wrong_word("check", args[i], doctor_check_word);
  }
  const hk_settings *settings = hk_tool_settings();
  if (o->listen >= 0) return hk_doctor_listen(settings, o->listen);
  if (o->root && !hk_sysfs_has(o->root, "/sys")) return hk_tool_wrong("--root: %s has no folder sys", o->root);
  hk_topo *topo = NULL;
  hk_doctor d = {.settings = settings, .root = o->root ? o->root : "", .live = !o->root, .peer = o->peer};
  if (hk_topo_detect(&topo, hk_topo_detect_order(settings), d.root) != HK_OK) topo = NULL;
  d.topo = topo;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(checks); k++) {
    d.check = checks[k].name;
    if (doctor_chosen(d.check, nargs, args)) checks[k].run(&d);
  }
  if (o->json)
    doctor_print_json(&d);
  else
    doctor_print_text(&d);
  int code = doctor_count(&d, HK_DOC_PROBLEM) ? HK_EXIT_FINDING : HK_EXIT_OK;
  free(d.at);
  hk_topo_free(topo);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(peer, "peer", "HOST[:PORT]",
                "also try connections to another host, on which 'hocket doctor --listen PORT' runs (port 7461)"),
    HK_ROW_INT(listen, "listen", "PORT",
               "answer a doctor on another host until killed, with this host's addresses; 0 takes any port",
               .def = "-1", .low = -1, .high = 65535),
    HK_ROW_FILE(root, "root", "FOLDER", "check a copy of another machine's /sys and /proc; nothing is tried"),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_tool_doctor = {
    .name = "doctor",
    .about = "find what keeps collectives from working or from being fast, and how to fix it",
    .usage = "[CHECK...]",
    .text =
        "Checks the machine, the network and the environment. Each finding is ok, a note, or a problem, with the "
        "command that fixes it. Run it as your job runs: same user, same container, same launcher. It changes nothing. "
        "With names of checks it makes only these:\n"
        "\n"
        " variables, plugins, frameworks, interfaces, peer, gids, verbs, shm, cma, memlock, files, hugepages,\n"
        " limits, numa, governor, topology, links, gpu, copies, p2p, gdr, pairs, acs, iommu",
    .findings = "there is a problem",
    .examples = "hocket doctor\n  everything\n"
                "mpirun -n 1 hocket doctor numa limits\n  what a launcher binds its processes to\n"
                "hocket doctor --listen 7461\n  on one host, and on another:\n"
                "hocket doctor peer --peer node1:7461\n  which interfaces and RDMA ports of the two reach each other",
    .options = rows,
    .bytes = sizeof(options),
    .most = -1,
    .run = doctor_run,
};
