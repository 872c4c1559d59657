/* SPDX-License-Identifier: Apache-2.0 */
/* hocketCommLoadProgram: all ranks get one text, one of each host proves it, and all compare what they made of it. */
#include <hocket.h>
#include <stdlib.h>
#include <string.h>
#include "../base/text_file.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../comm/group.h"
#include "../comm/hosts.h"
#include "../core/api.h"
#include "../core/comm.h"
#include "../formats/file.h"
#include "../run/selection.h"

enum { SHARED_BYTES = 1 << 20 }; /* of a table by which ranks get a text */

/* Of a rank, what it has: bytes of its text, or one of these. */
#define API_NO_PATH UINT64_MAX
#define API_NO_TEXT (UINT64_MAX - 1)

/* Sends the source's text to all ranks, a piece of equal length in each round. Only the source's row counts. */
static hk_status api_programs_share(ncclComm_t c, int source, size_t bytes, char *text) {
  hk_status rc = HK_OK;
  const size_t n = (size_t)c->nranks, piece = SHARED_BYTES / n > 256 ? SHARED_BYTES / n : 256;
  char *table = calloc(n, piece);
  if (!table) return HK_FAIL_ERRNO("hocketCommLoadProgram: no memory for a text of %zu bytes", bytes);
  for (size_t at = 0; at < bytes; at += piece) {
    const size_t part = bytes - at < piece ? bytes - at : piece;
    if (c->rank == source) memcpy(table + (size_t)source * piece, text + at, part);
    HK_TRY(hk_bootstrap_allgather(c->bootstrap, table, piece), out);
    memcpy(text + at, table + (size_t)source * piece, part);
  }
out:
  free(table);
  return rc;
}

/* The text of this rank's file, or of the first rank that has one. `has`: a row for each rank. */
static hk_status api_programs_get(ncclComm_t c, const char *path, uint64_t *has, char **text) {
  size_t bytes = 0;
  int source = c->nranks, lack = 0;
  const hk_status read = path ? hk_text_read(path, HK_PROGRAM_FILE_BYTES, text, &bytes) : HK_OK;
  has[c->rank] = !path ? API_NO_PATH : read == HK_OK ? bytes : API_NO_TEXT;
  HK_OR_RETURN(hk_bootstrap_allgather(c->bootstrap, has, sizeof *has));
  if (read != HK_OK) return read;
  for (int r = c->nranks - 1; r >= 0; r--) {
    if (has[r] == API_NO_TEXT)
      return HK_FAIL(HK_ERR_USAGE, "hocketCommLoadProgram: rank %d cannot read its file: its ncclGetLastError says why",
                     r);
    lack += has[r] == API_NO_PATH;
    if (has[r] != API_NO_PATH) source = r;
  }
  if (source == c->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "hocketCommLoadProgram: path is NULL on all ranks: give it on one at least");
  if (!lack) return HK_OK;
  if (has[source] > HK_PROGRAM_FILE_BYTES)
    return HK_FAIL(HK_ERR_REMOTE, "hocketCommLoadProgram: rank %d has a text of %llu bytes", source,
                   (unsigned long long)has[source]);
  char *shared = c->rank == source ? *text : calloc(has[source] + 1, 1);
  if (!shared) return HK_FAIL_ERRNO("hocketCommLoadProgram: no memory for a text of %zu bytes", (size_t)has[source]);
  const hk_status rc = api_programs_share(c, source, has[source], shared);
  if (!path)
    *text = shared;
  else if (c->rank != source) /* this rank keeps its own text: the hashes tell whether the two differ */
    free(shared);
  return rc;
}

/* One rank of each host proves the text. If it cannot use it, the others find the reason themselves. */
static hk_status api_programs_add(ncclComm_t c, const char *name, const char *text, uint64_t *ways, uint64_t *hash) {
  const int prover = hk_hosts_first(c, c->rank);
  uint8_t way = 0;
  char why[HK_ERROR_TEXT] = "";
  hk_status rc = HK_OK;
  if (c->rank == prover) rc = hk_selection_add_program(c, name, text, &way, hash);
  if (rc != HK_OK) snprintf(why, sizeof why, "%s", hk_last_error());
  ways[c->rank] = way;
  HK_OR_RETURN(hk_bootstrap_allgather(c->bootstrap, ways, sizeof *ways));
  if (rc != HK_OK) hk_error_adopt(why);
  way = (uint8_t)ways[prover];
  return c->rank == prover ? rc : hk_selection_add_program(c, name, text, &way, hash);
}

/* All ranks must have loaded the same program. `hash` is this rank's; 0: its text cannot be used. */
static hk_status api_programs_compare(ncclComm_t c, uint64_t hash, uint64_t *hashes) {
  hashes[c->rank] = hash;
  HK_OR_RETURN(hk_bootstrap_allgather(c->bootstrap, hashes, sizeof *hashes));
  for (int r = 0; r < c->nranks && hash; r++) {
    if (!hashes[r])
      return HK_FAIL(HK_ERR_USAGE, "hocketCommLoadProgram: rank %d cannot use its file: its ncclGetLastError says why",
                     r);
    if (hashes[r] != hashes[0])
      return HK_FAIL(HK_ERR_USAGE,
                     "hocketCommLoadProgram: rank 0 and rank %d have different programs: give all ranks the same file, "
                     "or a path on one rank only",
                     r);
  }
  return HK_OK;
}

static hk_status api_programs_load(ncclComm_t c, const char *path) {
  hk_status rc = HK_OK;
  uint64_t hash = 0;
  char *text = NULL;
  const uint64_t before = hk_selection_programs(c);
  uint64_t *rows = calloc((size_t)c->nranks, sizeof *rows);
  if (!rows) return HK_FAIL_ERRNO("hocketCommLoadProgram: no memory for %d ranks", c->nranks);
  HK_TRY(api_programs_get(c, path, rows, &text), out);
  rc = api_programs_add(c, path ? path : "another rank's file", text, rows, &hash);
  char why[HK_ERROR_TEXT];
  snprintf(why, sizeof why, "%s", hk_last_error());
  /* Also after an error: the other ranks wait for this rank's hash. */
  const hk_status compared = api_programs_compare(c, hash, rows);
  if (rc != HK_OK) hk_error_adopt(why);
  if (rc == HK_OK && compared != HK_OK) {
    hk_selection_drop_program(c, before);
    rc = compared;
  }
out:
  free(text);
  free(rows);
  return rc;
}

HK_EXPORT ncclResult_t hocketCommLoadProgram(ncclComm_t comm, const char *path) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "hocketCommLoadProgram"), out);
  hk_bootstrap_begin(comm->bootstrap, HK_PHASE_INIT, "hocketCommLoadProgram");
  rc = api_programs_load(comm, path);
  hk_bootstrap_begin(comm->bootstrap, HK_PHASE_IDLE, NULL);
out:
  return (ncclResult_t)hk_group_remember(rc);
}
