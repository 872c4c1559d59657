/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines. The check of the level is one load; everything else is rare. */
#include "log.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "fork.h"
#include "param.h"
#include "status.h" /* HK_ERROR_TEXT */
#include "thread.h"

enum {
  LINE_BYTES = HK_ERROR_TEXT + 512,
  LEVEL_UNREAD = -1,
  ONCE_ROOM = 64, /* more lines than have HK_LOG_ONCE */
  DEFAULT_SUBSYSTEMS = HK_SUB_INIT | HK_SUB_BOOTSTRAP | HK_SUB_ENV
};

static struct {
  _Atomic(int) level; /* hk_log_level, or LEVEL_UNREAD */
  _Atomic(unsigned) subsystems;
  pthread_mutex_t lock;      /* the fields below */
  FILE *file;                /* NULL: stdout, for a program stderr */
  bool command, second_copy; /* hk_log_for_command, hk_log_for_second_copy */
  bool chosen;               /* the user set NCCL_DEBUG */
  _Atomic(bool) version_shown;
  struct {
    const char *file;
    int line;
  } once[ONCE_ROOM]; /* lines that are written only once in a process */
  int nwritten;
  char path[512];
  char host[64];
} logs = {.level = LEVEL_UNREAD, .lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(logs.lock);

static const char *const level_names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};

static const struct {
  const char *name;
  unsigned bits;
} subsystem_names[] = {
    {"INIT", HK_SUB_INIT},
    {"COLL", HK_SUB_COLL},
    {"P2P", HK_SUB_P2P},
    {"SHM", HK_SUB_SHM},
    {"NET", HK_SUB_NET},
    {"GRAPH", HK_SUB_GRAPH},
    {"TUNING", HK_SUB_TUNING},
    {"ENV", HK_SUB_ENV},
    {"ALLOC", HK_SUB_ALLOC},
    {"CALL", HK_SUB_CALL},
    {"PROXY", HK_SUB_PROXY},
    {"NVLS", HK_SUB_NVLS},
    {"REG", HK_SUB_REG},
    {"ALL", ~0u},
    {"BOOTSTRAP", HK_SUB_BOOTSTRAP},
};

static unsigned log_subsystem_of(const char *name, size_t length) {
  for (size_t i = 0; i < sizeof subsystem_names / sizeof subsystem_names[0]; i++)
    if (strlen(subsystem_names[i].name) == length && !strncasecmp(subsystem_names[i].name, name, length))
      return subsystem_names[i].bits;
  return 0;
}

/* "INIT,NET", "^NET,SHM" (a leading ^ excludes the whole list, as with NCCL), "ALL,^CALL" (^ on one name excludes it).
 * `unknown` gets the first unknown name. */
static unsigned log_parse_subsystems(const char *list, char *unknown, size_t unknown_bytes) {
  bool all_excluded = list[0] == '^';
  unsigned mask = all_excluded ? ~0u : 0u, excluded = 0;
  while (*list) {
    size_t n = strcspn(list, ",");
    const char *name = list;
    size_t length = n;
    bool exclude = all_excluded;
    if (length && name[0] == '^') exclude = true, name++, length--;
    unsigned bits = log_subsystem_of(name, length);
    if (!bits && length && !unknown[0]) snprintf(unknown, unknown_bytes, "%.*s", (int)length, name);
    if (exclude)
      excluded |= bits;
    else
      mask |= bits;
    list += n + (list[n] == ',');
  }
  return mask & ~excluded;
}

/* Replaces %h and %p in the file's name. */
static void log_expand_path(char *out, size_t capacity, const char *pattern) {
  size_t n = 0;
  out[0] = 0;
  for (const char *p = pattern; *p && n + 1 < capacity; p++) {
    if (p[0] == '%' && p[1] == 'h')
      n += (size_t)snprintf(out + n, capacity - n, "%s", logs.host), p++;
    else if (p[0] == '%' && p[1] == 'p')
      n += (size_t)snprintf(out + n, capacity - n, "%d", (int)getpid()), p++;
    else
      out[n++] = *p, out[n] = 0;
  }
}

/* Opens the log file; an error is stored in `complaint`. Under the lock. */
static void log_open_file(const char *pattern, char *complaint, size_t capacity) {
  char path[sizeof logs.path] = "";
  if (pattern) log_expand_path(path, sizeof path, pattern);
  if (logs.file && !strcmp(path, logs.path)) return; /* unchanged after a reset: continue to append */
  if (logs.file) fclose(logs.file);
  logs.file = NULL;
  snprintf(logs.path, sizeof logs.path, "%s", path);
  if (!path[0]) return;
  logs.file = fopen(path, "we");
  if (!logs.file)
    snprintf(complaint, capacity, "NCCL_DEBUG_FILE: cannot open %.300s: %s; logging to stdout", path, strerror(errno));
}

static int log_level_of(const char *name) {
  for (int i = 0; i <= HK_LOG_TRACE; i++)
    if (!strcasecmp(name, level_names[i])) return i;
  return LEVEL_UNREAD;
}

/* Reads the variables. Errors in them can be logged only afterwards. */
static int log_configure(void) {
  /* Outside the lock, because the table may report errors of other variables through this log. */
  const char *debug = hk_param_str(HK_P_DEBUG), *subsys = hk_param_str(HK_P_DEBUG_SUBSYS);
  const char *file = hk_param_str(HK_P_DEBUG_FILE);
  hk_param_info info;
  hk_param_describe(HK_P_DEBUG, &info);
  char complaint[512] = "", bad_level[128] = "", bad_subsystem[64] = "";
  pthread_mutex_lock(&logs.lock);
  int level = atomic_load_explicit(&logs.level, memory_order_relaxed); /* relaxed: the lock orders it */
  if (level != LEVEL_UNREAD) {
    pthread_mutex_unlock(&logs.lock);
    return level;
  }
  if (!logs.host[0]) {
    if (gethostname(logs.host, sizeof logs.host - 1)) snprintf(logs.host, sizeof logs.host, "localhost");
    logs.host[strcspn(logs.host, ".")] = 0;
  }
  level = log_level_of(debug ? debug : "");
  logs.chosen = strcmp(info.origin, "default") != 0;
  if (logs.second_copy && level > HK_LOG_WARN) level = HK_LOG_WARN;
  if (logs.command && !logs.chosen) {
    level = HK_LOG_NONE;
  } else if (level == LEVEL_UNREAD) {
    level = HK_LOG_WARN;
    if (debug && debug[0]) snprintf(bad_level, sizeof bad_level, "%.100s", debug);
  }
  unsigned mask = subsys && subsys[0] ? log_parse_subsystems(subsys, bad_subsystem, sizeof bad_subsystem)
                                      : DEFAULT_SUBSYSTEMS;
  log_open_file(level > HK_LOG_VERSION && !logs.second_copy ? file : NULL, complaint, sizeof complaint);
  atomic_store_explicit(&logs.subsystems, mask, memory_order_relaxed); /* relaxed: see hk_log_on */
  /* release: a thread that reads the level without the lock may read the host's name too */
  atomic_store_explicit(&logs.level, level, memory_order_release);
  pthread_mutex_unlock(&logs.lock);
  if (bad_level[0])
    HK_WARN("NCCL_DEBUG=%s is no log level; using WARN of NONE, VERSION, WARN, INFO and TRACE", bad_level);
  if (bad_subsystem[0])
    HK_WARN("NCCL_DEBUG_SUBSYS names no subsystem \"%s\"; there are INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL "
            "PROXY NVLS BOOTSTRAP REG and ALL",
            bad_subsystem);
  if (complaint[0]) HK_WARN("%s", complaint);
  return level;
}

bool hk_log_on(hk_log_level level, unsigned subsystems) {
  /* acquire: the host's name was written before the level */
  int in_force = atomic_load_explicit(&logs.level, memory_order_acquire);
  if (__builtin_expect(in_force == LEVEL_UNREAD, 0)) in_force = log_configure();
  if ((int)level > in_force) return false;
  /* relaxed: a line too many or too few does no harm */
  return level <= HK_LOG_WARN || subsystems & atomic_load_explicit(&logs.subsystems, memory_order_relaxed);
}

bool hk_log_version_due(void) {
  if (!hk_log_on(HK_LOG_VERSION, ~0u) || !logs.chosen) return false;
  /* relaxed: it publishes nothing */
  return !atomic_exchange_explicit(&logs.version_shown, true, memory_order_relaxed);
}

bool hk_log_first(const char *file, int line) {
  int i = 0;
  pthread_mutex_lock(&logs.lock);
  while (i < logs.nwritten && (logs.once[i].line != line || strcmp(logs.once[i].file, file) != 0)) i++;
  bool first = i == logs.nwritten && i < ONCE_ROOM;
  if (first) {
    logs.once[i].file = file;
    logs.once[i].line = line;
    logs.nwritten++;
  }
  pthread_mutex_unlock(&logs.lock);
  return first;
}

static size_t log_prefix(char *line, size_t capacity, hk_log_level level, const char *file, int at) {
  if (level == HK_LOG_VERSION) return 0; /* as NCCL: the bare text */
  int n = snprintf(line, capacity, "%s:%d:%d [0] ", logs.host, (int)getpid(), (int)gettid());
  if (level != HK_LOG_INFO) n += snprintf(line + n, capacity - (size_t)n, "%s:%d ", file, at);
  n += snprintf(line + n, capacity - (size_t)n, "NCCL %s ", level_names[level]);
  return (size_t)n;
}

/* A line stays one line: text from outside (a variable's value, a peer's message) must not look like lines of the
 * library. */
static void log_make_printable(char *text, size_t n) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == '\n')
      text[i] = ' ';
    else if ((c < ' ' && c != '\t') || c == 0x7f)
      text[i] = '?';
  }
}

void hk_log_write(hk_log_level level, unsigned subsystems, const char *file, int line, const char *format, ...) {
  HK_UNCANCELLED;   /* a cancelled thread would leave the log locked */
  (void)subsystems; /* filtered before the call */
  int saved = errno;
  char text[LINE_BYTES];
  size_t n = log_prefix(text, sizeof text, level, file, line);
  va_list args;
  va_start(args, format);
  int more = vsnprintf(text + n, sizeof text - n - 1, format, args);
  va_end(args);
  if (more > 0) n += (size_t)more;
  if (n > sizeof text - 2) n = sizeof text - 2; /* cut off */
  log_make_printable(text, n);
  text[n++] = '\n';
  /* One write and one flush for each line: lines of several processes do not mix, and none is lost if a process is
   * killed. */
  pthread_mutex_lock(&logs.lock);
  FILE *out = logs.file ? logs.file : logs.command || logs.second_copy ? stderr : stdout;
  fwrite(text, 1, n, out);
  fflush(out);
  pthread_mutex_unlock(&logs.lock);
  errno = saved;
}

void hk_log_reset(void) {
  hk_param_refresh(HK_P_DEBUG);
  hk_param_refresh(HK_P_DEBUG_SUBSYS);
  hk_param_refresh(HK_P_DEBUG_FILE);
  /* relaxed: the next line reads the variables under the lock */
  atomic_store_explicit(&logs.level, LEVEL_UNREAD, memory_order_relaxed);
}

void hk_log_for_command(void) { logs.command = true; }
void hk_log_for_second_copy(void) { logs.second_copy = true; }
