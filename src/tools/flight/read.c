/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a flight record (flight.h). */
#include <stdlib.h>
#include <string.h>
#include "../../base/text_file.h"
#include "../../formats/json_tree.h"
#include "../../program/program.h"
#include "flight.h"

enum { READ_RANKS = 1 << 20 };

static const char *const read_states[] = {[HK_FLIGHT_BEGUN] = "begun",
                                          [HK_FLIGHT_OVER] = "over",
                                          [HK_FLIGHT_FAILED] = "failed",
                                          [HK_FLIGHT_ON_STREAM] = "enqueued"};
const char *hk_flight_state_name(hk_flight_state s) { return read_states[s]; }

/* Copies a text; one that is missing becomes empty. */
static void read_text(const hk_json_node *n, const char *key, bool needed, char *out, size_t bytes) {
  const char *text = hk_json_get_text(n, key, needed);
  snprintf(out, bytes, "%s", text ? text : "");
  hk_text_clean(out);
}

static char *read_copy(const hk_json_node *n, const char *key) {
  const char *text = hk_json_get_text(n, key, true);
  char *copy = strdup(text ? text : "");
  if (copy) hk_text_clean(copy);
  return copy;
}

static hk_status read_operation(const hk_json_node *list, size_t i, const hk_flight_op *before, hk_flight_op *out) {
  hk_json_node n;
  char state[16], kind[24];
  int s = 0;
  if (!hk_json_at(list, i, HK_JSON_OBJECT, &n)) return HK_OK; /* the tree has the error */
  hk_json_get_whole(&n, "number", true, 1, INT64_MAX, &out->number);
  hk_json_get_whole(&n, "collective", false, 1, INT64_MAX, &out->collective);
  hk_json_get_whole(&n, "begin_ns", true, 0, INT64_MAX, &out->begin_ns);
  hk_json_get_whole(&n, "end_ns", false, 0, INT64_MAX, &out->end_ns);
  out->timed = true;
  hk_json_get_boolean(&n, "begin_known", false, &out->timed);
  read_text(&n, "algorithm", false, out->algorithm, sizeof out->algorithm);
  read_text(&n, "state", true, state, sizeof state);
  read_text(&n, "kind", true, kind, sizeof kind);
  const hk_coll coll = hk_coll_by_name(kind, strlen(kind));
  out->rooted = coll == HK_COLL_COUNT || hk_coll_has_root(coll); /* of a newer version: nothing follows from its end */
  while (s < (int)HK_ARRAY_LENGTH(read_states) && strcmp(state, read_states[s])) s++;
  if (s == (int)HK_ARRAY_LENGTH(read_states)) {
    hk_json_say(&n, "the state \"%s\" is none of begun, over, failed, enqueued", state);
    s = HK_FLIGHT_BEGUN;
  }
  out->state = (uint8_t)s;
  if (before && out->number <= before->number) hk_json_say(&n, "its number does not follow the one before");
  out->call = read_copy(&n, "call");
  return out->call ? HK_OK : HK_FAIL_ERRNO("no memory for a flight record");
}

/* An operation without a time of its begin gets one after the operation before it, and not after the next one. */
static void read_guess_times(hk_flight_file *f) {
  for (size_t i = 1; i < f->nops; i++) {
    const hk_flight_op *before = &f->ops[i - 1];
    const long long end = before->end_ns ? before->end_ns
                                         : before->begin_ns + (before->begin_ns < INT64_MAX - 1000) * 1000;
    if (!f->ops[i].timed && f->ops[i].begin_ns < end) f->ops[i].begin_ns = end;
  }
  for (size_t i = f->nops; i-- > 1;)
    if (!f->ops[i - 1].timed && f->ops[i - 1].begin_ns > f->ops[i].begin_ns)
      f->ops[i - 1].begin_ns = f->ops[i].begin_ns;
}

static hk_status read_operations(const hk_json_node *root, hk_flight_file *out) {
  hk_json_node list;
  long long newest = 0;
  if (!hk_json_get(root, "operations", HK_JSON_LIST, true, &list)) return HK_OK;
  const size_t n = hk_json_size(&list);
  out->ops = calloc(n + 1, sizeof *out->ops);
  if (!out->ops) return HK_FAIL_ERRNO("no memory for a flight record");
  for (size_t i = 0; i < n && !list.tree->errors; i++) {
    out->nops = i + 1;
    HK_OR_RETURN(read_operation(&list, i, i ? &out->ops[i - 1] : NULL, &out->ops[i]));
    if (!out->ops[i].collective) continue;
    if (out->ops[i].collective <= newest) hk_json_say(&list, "the collectives' numbers do not rise at [%zu]", i);
    newest = out->ops[i].collective;
  }
  read_guess_times(out);
  return HK_OK;
}

static hk_status read_failure(const hk_json_node *root, hk_flight_file *out) {
  hk_json_node n;
  long long code = 0, rank = -1;
  out->blamed = -1;
  if (!hk_json_get(root, "failure", HK_JSON_OBJECT, false, &n)) return HK_OK;
  hk_json_get_whole(&n, "code", true, 1, 255, &code);
  hk_json_get_whole(&n, "rank", false, 0, READ_RANKS, &rank);
  out->code = (int)code;
  out->blamed = rank < out->nranks ? (int)rank : -1;
  out->text = read_copy(&n, "text");
  return out->text ? HK_OK : HK_FAIL_ERRNO("no memory for a flight record");
}

static hk_status read_all(const hk_json_node *root, hk_flight_file *out) {
  long long version = 0, rank = 0, nranks = 1, pid = 0, device = -1;
  char id[32];
  char *end = id;
  if (!hk_json_get_whole(root, "hocket_flight", true, 1, 1, &version)) return HK_OK;
  read_text(root, "communicator", true, id, sizeof id);
  out->comm = strtoull(id, &end, 16);
  if (!*id || *end) hk_json_say(root, "\"communicator\" is no number in hexadecimal form");
  read_text(root, "name", false, out->name, sizeof out->name);
  read_text(root, "host", true, out->host, sizeof out->host);
  read_text(root, "does", true, out->does, sizeof out->does);
  hk_json_get_whole(root, "ranks", true, 1, READ_RANKS, &nranks);
  hk_json_get_whole(root, "rank", true, 0, nranks - 1, &rank);
  hk_json_get_whole(root, "pid", false, 0, INT32_MAX, &pid);
  hk_json_get_whole(root, "device", false, -1, INT32_MAX, &device);
  hk_json_get_whole(root, "written_ns", true, 0, INT64_MAX, &out->written_ns);
  out->rank = (int)rank;
  out->nranks = (int)nranks;
  out->pid = (int)pid;
  out->streams = device >= 0;
  HK_OR_RETURN(read_failure(root, out));
  return read_operations(root, out);
}

hk_status hk_flight_read(const char *path, hk_flight_file *out) {
  hk_status rc = HK_OK;
  hk_json_tree t = {.file = path};
  char *text = NULL;
  size_t bytes;
  *out = (hk_flight_file){.blamed = -1};
  if (!(out->path = strdup(path))) return HK_FAIL_ERRNO("no memory for a flight record");
  HK_TRY(hk_text_read(path, HK_JSON_TREE_BYTES, &text, &bytes), out);
  HK_TRY(hk_json_tree_parse(&t, path, text), out);
  const hk_json_node root = hk_json_root(&t);
  if (!hk_json_is(&root, HK_JSON_OBJECT))
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s is no flight record: it is no object {}", path), out);
  HK_TRY(read_all(&root, out), out);
  rc = hk_json_tree_status(&t);
out:
  hk_json_tree_free(&t);
  free(text);
  return rc;
}

void hk_flight_file_free(hk_flight_file *f) {
  for (size_t i = 0; i < f->nops; i++) free(f->ops[i].call);
  free(f->ops);
  free(f->text);
  free(f->path);
}
