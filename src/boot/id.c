/* SPDX-License-Identifier: Apache-2.0 */
/* Makes unique ids: random ones, and those derived from an address (NCCL_COMM_ID, MASTER_ADDR and MASTER_PORT). */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "../base/iface.h" /* loopback addresses */
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
 * Debian's does) means another address on other hosts; then rank 0 listens at all addresses. So it does with
 * `anywhere`, unless the address is loopback's: the host may know its address by another name, or through a port of
 * its container's host. */
static hk_addr id_listen_at(const hk_addr *a, const char *text, bool anywhere) {
  hk_addr at = *a;
  bool name = text[0] != '[' && !isdigit((unsigned char)text[0]) && strncasecmp(text, "localhost:", 10);
  if (hk_addr_is_loopback(a) ? !name : !anywhere) return at;
  if (anywhere && access("/proc/net/if_inet6", F_OK) == 0) { /* IPv4, too: others may know the name by either */
    at.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    hk_addr_set_port(&at, hk_addr_port(a));
  }
  if (at.sa.sa_family == AF_INET6)
    at.v6.sin6_addr = in6addr_any;
  else
    at.v4.sin_addr.s_addr = INADDR_ANY;
  return at;
}

static hk_status id_start_env_root(const hk_settings *settings, const hk_boot_id *id, const char *named,
                                   const char *text, bool anywhere) {
  hk_status rc = HK_OK;
  hk_listener *l = NULL;
  hk_addr at = id_listen_at(&id->at[0], text, anywhere);
  int socket_fd = -1;
  HK_TRY(hk_listener_get(&l), out);
  if (hk_root_gathers(l, hk_boot_id_key(id))) goto out; /* started by an earlier call, and not used yet */
  rc = hk_listen(settings, &at, BACKLOG, &socket_fd);
  if (rc != HK_OK) {
    char cause[HK_ERROR_TEXT];
    snprintf(cause, sizeof cause, "%s", hk_last_error());
    rc = HK_FAIL(rc, "rank 0 cannot listen at %s=%s, which must be an address of its host: %s", named, text, cause);
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

hk_status hk_bootstrap_env_id(const hk_settings *settings, ncclUniqueId *out, int rank) {
  const char *text = settings->COMM_ID;
  memset(out, 0, sizeof *out);
  if (!text || !*text) return HK_FAIL(HK_ERR_USAGE, "NCCL_COMM_ID is not set");
  return hk_bootstrap_address_id(settings, out, rank, "NCCL_COMM_ID", text, false);
}

hk_status hk_bootstrap_address_id(const hk_settings *settings, ncclUniqueId *out, int rank, const char *named,
                                  const char *text, bool anywhere) {
  static const uint8_t public_key[] = "NCCL_COMM_ID key";
  _Static_assert(sizeof public_key == HK_SECRET_BYTES + 1, "and a zero");
  hk_boot_id id = {.from_env = true, .n = 1};
  memset(out, 0, sizeof *out);
  HK_OR_RETURN(hk_addr_parse(settings, &id.at[0], text));
  if (!hk_addr_port(&id.at[0]))
    return HK_FAIL(HK_ERR_ARGUMENT, "%s=%s has no port: write host:port with a port that is free on rank 0's host",
                   named, text);
  /* Any process that knows the address can derive this secret; it has no room for a better one. A host has several
   * names, which ranks may have been given. */
  const char *common = anywhere ? strrchr(text, ':') : text;
  hk_derive(id.secret, public_key, "secret", common, strlen(common));
  if (rank == 0) HK_OR_RETURN(id_start_env_root(settings, &id, named, text, anywhere));
  hk_boot_id_encode(out, &id);
  return HK_OK;
}
