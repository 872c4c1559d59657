/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a RAS service reports as JSON: Hocket's, or NCCL's, which knows less. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../base/array.h"
#include "../../base/text_file.h" /* hk_text_clean */
#include "../../formats/json_tree.h"
#include "../ras_client.h"
#include "ps.h"

enum { PATIENCE_S = 10, RANKS_MOST = 1 << 18 /* of all communicators, some 1 KiB each */ };

/* The report, to the end of the connection; NULL: the error is printed. */
static char *remote_fetch(const char *address) {
  char host[256], port[16], *text = NULL;
  size_t n = 0, capacity = 0;
  if (!hk_ras_split(address, host, sizeof host, port, sizeof port)) return NULL;
  const int fd = hk_ras_connect(host, port);
  if (fd < 0) return NULL;
  hk_ras_set_patience(fd, PATIENCE_S);
  bool fine = hk_ras_ask(fd, "CLIENT PROTOCOL 2\n", "SERVER PROTOCOL ") && hk_ras_ask(fd, "TIMEOUT 1\n", "OK") &&
              hk_ras_ask(fd, "SET FORMAT json\n", "OK");
  if (fine && !hk_ras_send(fd, "VERBOSE STATUS\n")) fine = !hk_tool_wrong("%s: %s", address, strerror(errno));
  for (ssize_t got = fine; got > 0; n += (size_t)got) {
    if (n >= HK_JSON_TREE_BYTES || !HK_RESERVE(text, capacity, n + 4096)) {
      fine = !hk_tool_wrong("%s: the report is too long", address);
      break;
    }
    got = recv(fd, text + n, capacity - n - 1, 0);
    if (got < 0) fine = !hk_tool_wrong("%s: the report breaks off: %s", address, strerror(errno));
    if (got <= 0) break;
  }
  close(fd);
  if (fine && text) text[n] = 0;
  if (fine) return text;
  free(text);
  return NULL;
}

static void remote_text(const hk_json_node *n, const char *key, char *out, size_t bytes) {
  hk_json_node text;
  snprintf(out, bytes, "%s", hk_json_has(n, key, HK_JSON_TEXT, &text) ? hk_json_words(&text) : ""); /* or null */
  hk_text_clean(out);
}

/* Of a list of ranks. NULL: it is no rank of the communicator, which is an error. */
static hk_ps_rank *remote_rank(const hk_json_node *list, size_t i, hk_ps_comm *c, hk_json_node *n) {
  long long rank = -1, pid = 0;
  if (!hk_json_at(list, i, HK_JSON_OBJECT, n)) return NULL;
  hk_json_get_whole(n, "rank", true, 0, c->nranks - 1, &rank);
  hk_json_get_whole(n, "pid", false, -1, INT32_MAX, &pid);
  if (rank < 0) return NULL;
  hk_ps_rank *r = &c->ranks[rank];
  r->pid = pid > 0 ? (int)pid : 0;
  remote_text(n, "host", r->host, sizeof r->host);
  hk_json_get_boolean(n, "guilty", false, &r->guilty);
  return r;
}

static void remote_present(const hk_json_node *n, hk_ps_rank *r) {
  long long sequence = 0, for_ms = 0, waits_for = -1, count = 0, us = 0;
  bool in_operation = false;
  hk_json_get_whole(n, "sequence", false, 0, INT64_MAX, &sequence);
  hk_json_get_whole(n, "for_ms", false, 0, INT64_MAX, &for_ms);
  hk_json_get_whole(n, "waits_for", false, -1, RANKS_MOST, &waits_for);
  hk_json_get_whole(n, "late_count", false, 0, INT64_MAX, &count);
  hk_json_get_whole(n, "late_us", false, 0, INT64_MAX / 1000, &us);
  hk_json_get_boolean(n, "in_operation", false, &in_operation);
  remote_text(n, "operation", r->does, sizeof r->does);
  if (!r->does[0]) snprintf(r->does, sizeof r->does, "runs");
  r->presence = HK_PRESENCE_ANSWERS;
  r->late = (hk_ps_late){.count = (uint64_t)count, .ns = (uint64_t)us * 1000};
  r->activity = (hk_activity){.sequence = (uint64_t)sequence,
                              .phase = in_operation ? HK_PHASE_OPERATION : HK_PHASE_IDLE,
                              .phase_ms = (uint64_t)for_ms,
                              .waits_for = (int32_t)waits_for,
                              .device = -1};
}

static void remote_missing(const hk_json_node *n, hk_ps_rank *r) {
  hk_json_node status;
  bool silent = false, dead = false;
  if (hk_json_has(n, "status", HK_JSON_OBJECT, &status)) {
    hk_json_get_boolean(&status, "unresponsive", false, &silent);
    hk_json_get_boolean(&status, "considered_dead", false, &dead);
  }
  r->presence = dead ? HK_PRESENCE_GONE : silent ? HK_PRESENCE_STOPPED : HK_PRESENCE_LEFT;
  remote_text(n, "state", r->does, sizeof r->does);
}

/* `capacity`: for ranks. */
static void remote_comm(const hk_json_node *n, hk_ps *p, long long *capacity) {
  hk_json_node list;
  long long size = 0;
  const char *hash = hk_json_get_text(n, "hash", true);
  if (!hk_json_get_whole(n, "size", true, 1, *capacity, &size) || !hash) return;
  *capacity -= size;
  if (!HK_RESERVE_NEXT(p->comms, p->ncomms)) {
    hk_json_no_memory(n->tree);
    return;
  }
  hk_ps_comm *c = &p->comms[p->ncomms];
  *c = (hk_ps_comm){.id = strtoull(hash, NULL, 16), .nranks = (int)size};
  c->ranks = calloc((size_t)size, sizeof *c->ranks);
  if (!c->ranks) {
    hk_json_no_memory(n->tree);
    return;
  }
  p->ncomms++;
  remote_text(n, "name", c->name, sizeof c->name);
  remote_text(n, "verdict", c->verdict, sizeof c->verdict);
  remote_text(n, "late", c->late.text, sizeof c->late.text);
  for (int r = 0; r < c->nranks; r++) c->ranks[r].presence = HK_PRESENCE_UNKNOWN;
  for (int missing = 0; missing < 2; missing++) {
    if (!hk_json_get(n, missing ? "missing_ranks" : "ranks", HK_JSON_LIST, !missing, &list)) continue;
    for (size_t i = 0; i < hk_json_size(&list); i++) {
      hk_json_node rank;
      hk_ps_rank *r = remote_rank(&list, i, c, &rank);
      if (r) (missing ? remote_missing : remote_present)(&rank, r);
    }
  }
  for (int r = 0; r < c->nranks; r++)
    if (c->ranks[r].activity.sequence > c->newest) c->newest = c->ranks[r].activity.sequence;
}

bool hk_ps_read_remote(hk_ps *out, const char *address) {
  hk_json_tree tree;
  hk_json_node root, list, comm;
  long long capacity = RANKS_MOST;
  char *text = remote_fetch(address);
  *out = (hk_ps){.ncomms = 0};
  if (!text) return false;
  hk_status rc = hk_json_tree_parse(&tree, address, text);
  if (rc == HK_OK) {
    root = hk_json_root(&tree);
    if (hk_json_get(&root, "communicators", HK_JSON_LIST, true, &list))
      for (size_t i = 0; i < hk_json_size(&list); i++)
        if (hk_json_at(&list, i, HK_JSON_OBJECT, &comm)) remote_comm(&comm, out, &capacity);
    rc = hk_json_tree_status(&tree);
  }
  hk_json_tree_free(&tree);
  free(text);
  if (rc != HK_OK) (void)hk_tool_failed(rc);
  return rc == HK_OK;
}
