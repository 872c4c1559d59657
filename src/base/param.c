/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter table and the sources of its values. */
#include "param.h"
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "env_plugin.h"
#include "fork.h"
#include "hash.h"
#include "log.h"
#include "param_names.h"
#include "status.h"

typedef struct row {
  const char *name, *unit, *help, *str_def, *word; /* word: the only value */
  int is_string;
  int64_t def, min, max;
} row;

static const row rows[HK_P_COUNT] = {
#define HK_PARAM_INT(id, n, d, lo, hi, u, h)                                                                           \
  [HK_P_##id] = {.name = n, .unit = u, .help = h, .def = d, .min = lo, .max = hi},
#define HK_PARAM_STR(id, n, d, h) [HK_P_##id] = {.name = n, .unit = "", .help = h, .str_def = d, .is_string = 1},
#define HK_PARAM_WORD(id, n, w, h) [HK_P_##id] = {.name = n, .unit = "", .help = h, .word = w, .is_string = 1},
#include "params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
};

static const char *const row_names[HK_P_COUNT] = {
#define HK_PARAM_INT(id, n, d, lo, hi, u, h) [HK_P_##id] = n,
#define HK_PARAM_STR(id, n, d, h) [HK_P_##id] = n,
#include "params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
};

/* Strings that were returned live as long as the process. The list keeps them reachable and lets equal ones be
 * shared. */
typedef struct kept {
  struct kept *next;
  char text[];
} kept;

/* A `name = value` line of a configuration file. */
typedef struct setting {
  struct setting *next;
  const char *name, *value, *file;
} setting;

/* Settings that were returned: they live as long as the process. */
typedef struct snapshot {
  struct snapshot *next;
  hk_settings settings;
} snapshot;

typedef struct complaint {
  struct complaint *next;
  int level;     /* hk_log_level */
  bool of_names; /* about a misspelt name: hk_param_report_names reports it */
  char text[512];
} complaint;

static struct {
  _Atomic(int) loaded;
  pthread_mutex_t lock; /* protects the fields below; values are read without it */
  kept *kept;
  snapshot *snapshots; /* the newest first */
  setting *settings, **settings_end;
  complaint *complaints, **complaints_end;
  complaint *names;     /* misspelt names that are still to be reported */
  uint64_t environment; /* a hash of our variables, as they were read */
  struct {
    _Atomic(int64_t) value;
    _Atomic(const char *) text;
    _Atomic(const char *) origin;
  } now[HK_P_COUNT];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(table.lock);

static const char *param_keep(const char *text) {
  for (kept *k = table.kept; k; k = k->next)
    if (!strcmp(k->text, text)) return k->text;
  size_t n = strlen(text) + 1;
  kept *k = malloc(sizeof *k + n);
  if (!k) return NULL; /* the parameter counts as unset; out of memory, nothing better is possible */
  memcpy(k->text, text, n);
  k->next = table.kept;
  table.kept = k;
  return k->text;
}

/* Notes a line for the log. It cannot be written under the lock, because the log reads parameters. */
__attribute__((format(printf, 2, 3))) static void param_complain(hk_log_level level, const char *format, ...) {
  complaint *c = malloc(sizeof *c);
  if (!c) return;
  va_list args;
  va_start(args, format);
  vsnprintf(c->text, sizeof c->text, format, args);
  va_end(args);
  c->level = level;
  c->of_names = false;
  c->next = NULL;
  *table.complaints_end = c;
  table.complaints_end = &c->next;
}

static void param_report_to_log(void *arg, bool wrong, const char *text) {
  (void)arg;
  if (wrong)
    HK_WARN("%s", text);
  else
    HK_INFO(HK_SUB_ENV, "%s", text);
}

/* Runs without the lock. */
static void param_report_all(complaint *c, void (*report)(void *, bool, const char *), void *arg) {
  while (c) {
    complaint *next = c->next;
    report(arg, c->level == HK_LOG_WARN, c->text);
    free(c);
    c = next;
  }
}

/* A name that is in neither table: a misspelling, a variable without effect here, or another program's. */
static void param_check_name(const char *name, const char *origin) {
  for (size_t i = 0; i < HK_P_COUNT; i++)
    if (!strcmp(name, row_names[i])) return;
  unsigned distance;
  complaint **from = table.complaints_end;
  const char *why = hk_param_inert(name);
  if (why) {
    param_complain(HK_LOG_INFO, "%.100s (%s) is known and has no effect in this library: %s", name, origin, why);
    return;
  }
  const char *meant, *nearest = hk_param_nearest(name, row_names, HK_P_COUNT, &distance);
  bool misspelt = nearest && hk_param_misspelt(name, distance);
  if (!misspelt && !strncmp(name, "NCCL_", 5) && (meant = hk_param_begins_like(name, row_names, HK_P_COUNT))) {
    nearest = meant;
    misspelt = true;
  }
  if (!misspelt) why = hk_param_inert_family(name);
  if (why)
    param_complain(HK_LOG_INFO, "%.100s (%s) is known and has no effect in this library: %s", name, origin, why);
  else if (misspelt)
    param_complain(HK_LOG_WARN, "%.100s (%s) is no parameter and is ignored; did you mean %s?", name, origin, nearest);
  else /* perhaps a user's own, a plugin's or a newer NCCL's: worth a line, not a warning */
    param_complain(HK_LOG_INFO, "%.100s (%s) is not known here and is ignored", name, origin);
  if (*from && (*from)->level == HK_LOG_WARN) (*from)->of_names = true;
}

static char *param_trim(char *s) {
  while (isspace((unsigned char)*s)) s++;
  size_t n = strlen(s);
  while (n && isspace((unsigned char)s[n - 1])) s[--n] = 0;
  return s;
}

/* NCCL's format: NAME=value lines, # starts a comment. */
static void param_parse_line(char *line, const char *path, int number) {
  line[strcspn(line, "#\n")] = 0;
  char *name = param_trim(line);
  if (!*name) return;
  char *equals = strchr(name, '=');
  if (!equals) {
    param_complain(HK_LOG_WARN, "%.200s:%d: not of the form NAME=value: \"%.100s\"", path, number, name);
    return;
  }
  *equals = 0;
  name = param_trim(name);
  setting *s = calloc(1, sizeof *s);
  if (!s) return;
  s->name = param_keep(name);
  s->value = param_keep(param_trim(equals + 1));
  s->file = path;
  *table.settings_end = s;
  table.settings_end = &s->next;
  if (!s->name || !s->value)
    s->name = s->value = "";
  else
    param_check_name(s->name, path);
}

static void param_read_file(const char *path, int must_exist) {
  const char *name = param_keep(path);
  FILE *f = name ? fopen(name, "re") : NULL;
  if (!f) {
    if (must_exist) param_complain(HK_LOG_WARN, "NCCL_CONF_FILE: cannot read %.300s: %s", path, strerror(errno));
    return;
  }
  char *line = NULL;
  size_t capacity = 0;
  for (int number = 1; getline(&line, &capacity, f) >= 0; number++) param_parse_line(line, name, number);
  free(line);
  fclose(f);
}

static void param_read_files(void) {
  const char *chosen = secure_getenv("NCCL_CONF_FILE"), *home = secure_getenv("HOME");
  if (chosen && *chosen) {
    param_read_file(chosen, 1);
  } else if (home && *home) {
    char path[4096];
    snprintf(path, sizeof path, "%s/.nccl.conf", home);
    param_read_file(path, 0);
  }
  param_read_file("/etc/nccl.conf", 0);
}

/* True for a variable that names a file or a library to load. A program with more rights than its caller (set-user-id)
 * must not take one from the caller's environment. */
static bool param_names_a_file(const char *name) {
  static const char *const ends[] = {"_PLUGIN", "_FILE", "_IMAGE", "_LIB"};
  size_t n = strlen(name);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(ends); i++)
    if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
  return false;
}

/* The text in force for a row, NULL if nothing sets it; the first file's setting counts. */
static const char *param_lookup(const char *name, const char **origin) {
  const char *text;
  if (hk_env_plugin_get(name, &text)) {
    *origin = text ? "environment plugin" : "default";
    return text ? param_keep(text) : NULL;
  }
  text = param_names_a_file(name) ? secure_getenv(name) : getenv(name);
  if (!text && getenv(name))
    param_complain(HK_LOG_WARN,
                   "%s is ignored: this program has more rights than the user who started it (set-user-id)", name);
  *origin = "environment";
  if (text) return param_keep(text);
  for (setting *s = table.settings; s; s = s->next)
    if (!strcmp(s->name, name)) {
      *origin = s->file;
      return s->value;
    }
  *origin = "default";
  return NULL;
}

/* Decimal, 0x hexadecimal or 0 octal, as NCCL reads numbers. If it is no number or out of range, false and a line for
 * the log. */
static int param_parse_int(const row *r, const char *text, const char *origin, int64_t *value) {
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 0);
  int is_number = end != text;
  while (isspace((unsigned char)*end)) end++;
  if (*end) is_number = 0;
  if (!is_number || errno || v < r->min || v > r->max) {
    param_complain(HK_LOG_WARN, "%s=%.100s (%.200s) is %s; the range is %lld to %lld%s%s, using the default %lld",
                   r->name, text, origin, is_number ? "out of range" : "not a number", (long long)r->min,
                   (long long)r->max, r->unit[0] ? " " : "", r->unit, (long long)r->def);
    return 0;
  }
  *value = v;
  return 1;
}

/* Values that FIFOs need: slots are numbered with a mask, and payloads begin on cache lines. Other values are rounded
 * up to the next one that fits. */
static int64_t param_fitting(int id, int64_t value) {
  int64_t fits = value;
  if (id == HK_P_SLOTS)
    for (fits = 1; fits < value;) fits *= 2;
  else if (id == HK_P_SLOT_BYTES)
    fits = (value + 63) & ~(int64_t)63;
  if (fits != value)
    param_complain(HK_LOG_INFO, "%s=%lld is rounded up to %lld, %s", rows[id].name, (long long)value, (long long)fits,
                   id == HK_P_SLOTS ? "a power of two" : "a multiple of 64");
  return fits;
}

/* True if the text is the row's word; else adds a complaint. */
static bool param_parse_word(const row *r, const char *text, const char *origin) {
  if (!strcmp(r->word, text)) return true;
  param_complain(HK_LOG_WARN, "%s=%.100s (%.200s) is not known, and is ignored; the only value is: %s", r->name, text,
                 origin, r->word);
  return false;
}

/* Sets the slot size to NCCL_BUFFSIZE divided by the number of slots, within the limits of the slot size. */
static bool param_share_of_buffer(int id, int64_t *value) {
  /* relaxed, both: their rows come before the slot's, and the caller has the lock */
  const int64_t all = atomic_load_explicit(&table.now[HK_P_BUFFSIZE].value, memory_order_relaxed);
  if (id != HK_P_SLOT_BYTES || !all) return false;
  const int64_t each = all / atomic_load_explicit(&table.now[HK_P_SLOTS].value, memory_order_relaxed);
  *value = each < rows[id].min ? rows[id].min : each > rows[id].max ? rows[id].max : each;
  return true;
}

static void param_set_row(int id) {
  const row *r = &rows[id];
  const char *origin, *text = param_lookup(r->name, &origin);
  int64_t value = r->def;
  if (r->is_string) {
    if (!text || !text[0] || (r->word && !param_parse_word(r, text, origin))) text = r->str_def, origin = "default";
  } else if (!text || !text[0] || !param_parse_int(r, text, origin, &value)) {
    origin = param_share_of_buffer(id, &value) ? "NCCL_BUFFSIZE" : "default";
  }
  if (!r->is_string) value = param_fitting(id, value);
  /* release: a reader of the pointer also reads its text */
  atomic_store_explicit(&table.now[id].text, text, memory_order_release);
  atomic_store_explicit(&table.now[id].origin, origin, memory_order_release);
  atomic_store_explicit(&table.now[id].value, value, memory_order_relaxed); /* relaxed: only the number is read */
}

static bool param_is_ours(const char *entry) { return !strncmp(entry, "NCCL_", 5) || !strncmp(entry, "HOCKET_", 7); }

/* The order of the variables does not matter. */
static uint64_t param_hash_environment(void) {
  uint64_t all = 0;
  for (char **e = environ; e && *e; e++) {
    if (!param_is_ours(*e)) continue;
    const uint64_t h = hk_hash(0, *e, strlen(*e));
    all += h ^ h >> 29;
  }
  return all;
}

static void param_check_environment(void) {
  for (char **e = environ; e && *e; e++) {
    if (!param_is_ours(*e)) continue;
    char name[128];
    size_t n = strcspn(*e, "=");
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, *e, n);
    name[n] = 0;
    param_check_name(name, "environment");
  }
}

/* Moves complaints of misspelt names to table.names, in place of older ones, and gives the others. */
static complaint *param_keep_names(void) {
  complaint *others = NULL, **others_end = &others, **names_end = &table.names;
  while (table.names) {
    complaint *next = table.names->next;
    free(table.names);
    table.names = next;
  }
  for (complaint *c = table.complaints, *next; c; c = next) {
    next = c->next;
    c->next = NULL;
    complaint ***end = c->of_names ? &names_end : &others_end;
    **end = c;
    *end = &c->next;
  }
  return others;
}

static void param_load(int again, void (*report)(void *, bool, const char *), void *arg) {
  pthread_mutex_lock(&table.lock);
  /* relaxed: the lock orders it */
  if (atomic_load_explicit(&table.loaded, memory_order_relaxed) && !again) {
    pthread_mutex_unlock(&table.lock);
    return;
  }
  while (table.settings) {
    setting *next = table.settings->next;
    free(table.settings);
    table.settings = next;
  }
  table.settings_end = &table.settings;
  table.complaints_end = &table.complaints;
  char said[600];
  bool fine = hk_env_plugin_load(said, sizeof said);
  if (said[0]) param_complain(fine ? HK_LOG_INFO : HK_LOG_WARN, "%s", said);
  param_read_files();
  table.environment = param_hash_environment();
  for (int id = 0; id < HK_P_COUNT; id++) param_set_row(id);
  param_check_environment();
  complaint *c = report == param_report_to_log ? param_keep_names() : table.complaints;
  table.complaints = NULL;
  /* release: a reader who sees it reads the values without the lock */
  atomic_store_explicit(&table.loaded, 1, memory_order_release);
  pthread_mutex_unlock(&table.lock);
  param_report_all(c, report, arg);
}

static inline void param_need_table(void) {
  /* acquire: pairs with the release in param_load() */
  if (__builtin_expect(!atomic_load_explicit(&table.loaded, memory_order_acquire), 0))
    param_load(0, param_report_to_log, NULL);
}

void hk_param_report_names(bool first) {
  param_need_table();
  pthread_mutex_lock(&table.lock);
  complaint *c = table.names;
  table.names = NULL;
  pthread_mutex_unlock(&table.lock);
  for (complaint *k = c; k && !first; k = k->next) k->level = HK_LOG_INFO;
  param_report_all(c, param_report_to_log, NULL);
}

void hk_param_reload(void) { param_load(1, param_report_to_log, NULL); }
void hk_param_renew(void) {
  param_need_table();
  pthread_mutex_lock(&table.lock);
  bool changed = table.environment != param_hash_environment();
  pthread_mutex_unlock(&table.lock);
  if (changed) hk_param_reload();
}
void hk_param_check(void (*report)(void *, bool, const char *), void *arg) { param_load(1, report, arg); }

void hk_param_refresh(hk_param_id id) {
  param_need_table();
  pthread_mutex_lock(&table.lock);
  table.complaints_end = &table.complaints;
  param_set_row((int)id);
  complaint *c = table.complaints;
  table.complaints = NULL;
  pthread_mutex_unlock(&table.lock);
  param_report_all(c, param_report_to_log, NULL);
}

int64_t hk_param_int(hk_param_id id) {
  param_need_table();
  return atomic_load_explicit(&table.now[id].value, memory_order_relaxed); /* relaxed: see param_set_row */
}

const char *hk_param_str(hk_param_id id) {
  param_need_table();
  return atomic_load_explicit(&table.now[id].text, memory_order_acquire); /* acquire: see param_set_row */
}

const hk_settings *hk_settings_now(void) {
  static const hk_settings defaults = {
#define HK_PARAM_INT(id, n, d, lo, hi, u, h) .id = (d),
#define HK_PARAM_STR(id, n, d, h) .id = (d),
#include "params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
  };
  const hk_settings now = {
#define HK_PARAM_INT(id, n, d, lo, hi, u, h) .id = hk_param_int(HK_P_##id),
#define HK_PARAM_STR(id, n, d, h) .id = hk_param_str(HK_P_##id),
#include "params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
  };
  pthread_mutex_lock(&table.lock);
  snapshot *s = table.snapshots;
  while (s && memcmp(&s->settings, &now, sizeof now) != 0)
    s = s->next; /* equal strings have one address: param_keep() */
  if (!s && (s = malloc(sizeof *s))) {
    *s = (snapshot){table.snapshots, now};
    table.snapshots = s;
  }
  if (!s) s = table.snapshots; /* without memory: older values, or the defaults */
  pthread_mutex_unlock(&table.lock);
  return s ? &s->settings : &defaults;
}

void hk_param_describe(hk_param_id id, hk_param_info *info) {
  param_need_table();
  const row *r = &rows[id];
  *info = (hk_param_info){.name = r->name,
                          .unit = r->unit,
                          .help = r->help,
                          .is_string = r->is_string,
                          .def = r->def,
                          .min = r->min,
                          .max = r->max,
                          .str_def = r->str_def};
  info->value = hk_param_int(id);
  if (r->is_string) info->str_value = hk_param_str(id);
  info->origin = atomic_load_explicit(&table.now[id].origin, memory_order_acquire); /* acquire: see param_set_row */
}
