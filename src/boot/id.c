/* SPDX-License-Identifier: Apache-2.0 */
/* Makes unique ids: random ones, and those derived from NCCL_COMM_ID. */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "../base/iface.h" /* loopback addresses */
#include "../base/log.h"
#include "../base/param.h"
#include "bootstrap.h"
#include "listener.h"
#include "process.h"

enum { BACKLOG = 4096 };

hk_status hk_bootstrap_new_id(ncclUniqueId *out) {
  hk_status rc;
  hk_listener *l = NULL;
  hk_contact c;
  hk_boot_id id = {.from_env = false};
  memset(out, 0, sizeof *out);
  HK_TRY(hk_listener_get(&l), out);
  HK_TRY(hk_random(id.secret, sizeof id.secret), out);
  HK_TRY(hk_listener_contact(l, &c, NULL), out);
  id.n = c.n;
  memcpy(id.at, c.at, sizeof id.at);
  HK_TRY(hk_root_new(l, &id, -1), out);
  hk_boot_id_encode(out, &id);
out:
  explicit_bzero(id.secret, sizeof id.secret);
  if (l) hk_listener_put(l); /* the root stays */
  return rc;
}

/* The address at which rank 0 listens: the given one. A name that the host's own /etc/hosts maps to loopback (as
 * Debian's does) means another address on other hosts; then rank 0 listens at all addresses. */
static hk_addr listen_at(const hk_addr *a, const char *text) {
  hk_addr at = *a;
  bool name = text[0] != '[' && !isdigit((unsigned char)text[0]) && strncasecmp(text, "localhost:", 10);
  if (!name || !hk_addr_is_loopback(a)) return at;
  if (at.sa.sa_family == AF_INET6)
    at.v6.sin6_addr = in6addr_any;
  else
    at.v4.sin_addr.s_addr = INADDR_ANY;
  return at;
}

static hk_status start_env_root(const hk_boot_id *id, const char *text) {
  hk_status rc = HK_OK;
  hk_listener *l = NULL;
  hk_addr at = listen_at(&id->at[0], text);
  int socket_fd = -1;
  HK_TRY(hk_listener_get(&l), out);
  if (hk_root_gathers(l, hk_boot_id_key(id))) goto out; /* started by an earlier call, and not used yet */
  rc = hk_listen(&at, BACKLOG, &socket_fd);
  if (rc != HK_OK) {
    char cause[HK_ERROR_TEXT];
    snprintf(cause, sizeof cause, "%s", hk_last_error());
    rc = HK_FAIL(rc, "rank 0 cannot serve NCCL_COMM_ID=%s, which must be an address of its host: %s", text, cause);
    goto out;
  }
  hk_fork_closes(socket_fd);
  HK_TRY(hk_root_new(l, id, socket_fd), out);
  socket_fd = -1;
out:
  hk_boot_close(socket_fd);
  if (l) hk_listener_put(l);
  return rc;
}

hk_status hk_bootstrap_env_id(ncclUniqueId *out, int rank) {
  static const uint8_t public_key[] = "NCCL_COMM_ID key";
  _Static_assert(sizeof public_key == HK_SECRET_BYTES + 1, "and a zero");
  const char *text = hk_param_str(HK_P_COMM_ID);
  hk_boot_id id = {.from_env = true, .n = 1};
  memset(out, 0, sizeof *out);
  if (!text || !*text) return HK_FAIL(HK_ERR_USAGE, "NCCL_COMM_ID is not set");
  HK_OR_RETURN(hk_addr_parse(&id.at[0], text));
  if (!hk_addr_port(&id.at[0]))
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "NCCL_COMM_ID=%s has no port: write host:port with a port that is free on rank 0's host", text);
  /* Any process that knows the address can derive this secret; the variable has no room for a better one. */
  hk_derive(id.secret, public_key, "secret", text, strlen(text));
  if (rank == 0) HK_OR_RETURN(start_env_root(&id, text));
  hk_boot_id_encode(out, &id);
  return HK_OK;
}
