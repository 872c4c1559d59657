/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The listener of a process: one for all of its ranks, communicators and ids. It exists while a bootstrap or a root
 * of the process does.
 *
 * It knows three kinds of things:
 *  - pending connections, without a complete hello: the admission queue, bounded in number and time;
 *  - roots: ids made here whose ranks are gathering (root.c);
 *  - families: each is a secret with its members, the ranks of this process that joined with it (family.c).
 *
 * One lock guards all of it (hk_listener_lock). What is done under it neither blocks nor calls out, except for the
 *  members' reports (hk_bootstrap_options), which read a few words. Order of locks: the listener's, a bootstrap's, a
 *  service's. The listener's own service runs its callbacks under the lock, so no thread may wait for such a callback
 *  while it holds the lock.
 */
#pragma once
#include <pthread.h>
#include "../base/service.h"
#include "../base/tls.h"
#include "../base/wait.h"
#include "wire.h"

enum { HK_MEMBER_BUCKETS = 1024 };

struct hk_bootstrap;
struct hk_listener;
struct hk_root;
struct hk_message;
struct hk_settings; /* base/param.h */

/* An accepted connection. Used on the listener's thread only. */
typedef struct hk_connection {
  struct hk_listener *listener;
  struct hk_connection *next, *prev; /* in the admission queue, oldest first; then `next` is the root's */
  int fd;
  uint64_t since_ns;
  bool on_spare;        /* has the spare descriptor: it gets an answer and is closed */
  bool ready;           /* the handshake is over if this process has a key, or `plain` */
  bool plain;           /* the peer speaks plain text though this process has a key: it gets an error */
  struct hk_root *root; /* not NULL: a rank that waits for the root's answer, no longer in the queue */
  int entry;
  hk_tls_stranger stranger; /* state of a peer that speaks TLS while this process has no key: it is refused */
  uint32_t have;
  uint8_t in[HK_HELLO_BYTES];
} hk_connection;

/* A message or connection for a rank of this process that has not joined yet. */
typedef struct hk_early {
  struct hk_early *next;
  uint64_t since_ns;
  uint64_t comm;
  int32_t to, from;
  struct hk_message *message; /* from a rank of this process; NULL: a connection */
  hk_hello_kind kind;
  uint32_t round;
  uint64_t tag;
  int fd;
} hk_early;

typedef struct hk_family {
  struct hk_family *next;
  unsigned users;
  uint64_t key;
  uint8_t secret[HK_SECRET_BYTES];
  hk_early *early, **early_end;
  struct {
    uint64_t comm;
    int32_t rank;
  } gone[64]; /* the ranks that left last: connections for them are refused, not kept */
  unsigned ngone;
} hk_family;

typedef struct hk_listener {
  const struct hk_settings *settings; /* of the newest user; under the lock */
  hk_service *service;
  struct hk_status_server *status; /* status.h; NULL: it does not answer */
  unsigned users;                  /* bootstraps and roots */
  bool closing;
  hk_service_timer timer;
  /* callbacks of listening sockets and of the tick; they are in listener.c, and admission.c calls them through these
   * pointers */
  void (*on_accept)(void *listener, int socket_fd, uint32_t events);
  void (*on_tick)(void *listener, int fd, uint32_t events);
  bool paused;                /* accepting failed: the sockets are not polled until the next tick */
  uint64_t refusing_since_ns; /* no rank has been accepted since; 0: ranks are accepted */
  uint64_t refused_last_ns;   /* when the last rank was refused */
  int refused_errno;          /* errno of that refusal */
  /* a spare descriptor, with which hellos can still be read if the process has no other descriptor; -1: in use */
  int spare;
  int fd;
  hk_contact contact; /* the contact for an unknown peer */
  struct {
    hk_addr toward;
    hk_contact contact;
    uint64_t since_ns; /* 0: nothing kept */
    /* cache of the last computed contact: all ranks of a process ask for the same one at about the same time */
  } recent;
  hk_connection *pending, *pending_last;
  unsigned npending;
  struct hk_root *roots;
  hk_family *families;
  struct hk_bootstrap *members[HK_MEMBER_BUCKETS];
  unsigned nmembers;
  /* asks the listener's thread to answer the connections of roots that have ended, and to free these */
  hk_service_work sweep;
} hk_listener;

/* ---- listener.c ---- */
/* Returns the process's listener, which it makes if there is none; it gets the settings in force. hk_listener_put gives
 * it back. */
hk_status hk_listener_get(hk_listener **out);
void hk_listener_put(hk_listener *l);
/* Writes where this process can be reached. Addresses that a host at `toward` (may be NULL) reaches best come first. */
hk_status hk_listener_contact(hk_listener *l, hk_contact *out, const hk_addr *toward);

/* ---- admission.c ---- */
void hk_listener_lock(void);
void hk_listener_unlock(void);
pthread_mutex_t *hk_listener_mutex(void); /* for waiting */
/* Not under the lock: HK_ERR_SYSTEM with the cause if ranks have been refused for some seconds. */
hk_status hk_listener_check(hk_listener *l);

/* ---- admission.c, under the lock ---- */
hk_listener *hk_listener_current(void); /* NULL if there is none */
void hk_listener_set_current(hk_listener *l);
void hk_listener_tick(hk_listener *l); /* starts the tick: something now waits for a deadline */
/* Adds a listening socket, on which the listener accepts, too. */
hk_status hk_listener_add_socket(hk_listener *l, int socket_fd);
/* As hk_listener_put, under the lock and on the listener's thread, inside one of its callbacks. */
void hk_listener_put_inside(hk_listener *l);
/* A connection that has proved to be a rank's is refused for lack of descriptors or memory (`why`: an errno). True if
 * that has lasted for some seconds. */
bool hk_listener_refused(hk_listener *l, int why);
/* On the listener's thread: frees the connection and closes it; keep_fd: the caller owns the descriptor now, which
 * forked children still close. */
void hk_connection_free(hk_connection *c, bool keep_fd);
/* The connection is no longer pending: it belongs to that entry of the root. */
void hk_connection_joined(hk_connection *c, struct hk_root *root, int entry);
/* Sends a few bytes on a connection whose send buffer is empty. False if they were not accepted. */
bool hk_connection_send(hk_connection *c, const void *bytes, size_t n);
/* The oldest connection is first. */
void hk_listener_add_pending(hk_listener *l, hk_connection *c);
void hk_listener_remove_pending(hk_listener *l, hk_connection *c);
/* Takes a spare descriptor, if the kernel has one.  If not, the end of the next connection tries again. */
void hk_listener_keep_spare(hk_listener *l);
/* A connection is refused; `why`: an errno. */
void hk_listener_note_refusal(hk_listener *l, int why);

/* ---- family.c ---- */
/* Not under the lock. The family of that secret, made if there is none; hk_family_put gives it back. */
hk_status hk_family_get(hk_family **out, hk_listener *l, const uint8_t secret[HK_SECRET_BYTES]);
void hk_family_put(hk_listener *l, hk_family *f);
/* From here on b's communicator and rank can be reached; connections and messages that arrived early are delivered. */
void hk_member_join(struct hk_bootstrap *b);
void hk_member_leave(struct hk_bootstrap *b);
/* Sends a message, which it consumes, to rank `to` of b's communicator, a rank of this process. False: that rank has
 * left. */
bool hk_member_send(struct hk_bootstrap *b, int to, struct hk_message *m);
/* Under the lock: writes what the member does (calls its report). HK_ACK_GONE, HK_ACK_UNKNOWN: it is not here. */
hk_ack hk_member_activity(hk_listener *l, const hk_family *f, uint64_t comm, int rank, hk_activity *out);
/* Under the lock, on the listener's thread: a hello for a member. Consumes the connection. */
void hk_family_hello(hk_listener *l, hk_connection *c, const hk_hello *h);
/* Under the lock: frees connections that ended before their rank joined. True if something still waits. */
bool hk_families_expire(hk_listener *l, uint64_t now);

/* ---- root.c ---- */
/* Not under the lock. `socket_fd` (may be -1) is a listening socket, which the root owns from here on. */
hk_status hk_root_new(hk_listener *l, const hk_boot_id *id, int socket_fd);
/* The file `path` has the id, and is removed at the end of its root, which exists in this process. */
hk_status hk_root_own_file(const hk_boot_id *id, const char *path);
/* True if a root with this key gathers ranks. A failed one that still answers late ranks is removed. */
bool hk_root_gathers(hk_listener *l, uint64_t key);
/* Under the lock, on the listener's thread. */
void hk_root_hello(hk_listener *l, hk_connection *c, const hk_hello *h); /* consumes the connection */
void hk_root_connection_ended(hk_connection *c);
void hk_roots_sweep(hk_listener *l);
bool hk_roots_expire(hk_listener *l, uint64_t now); /* true if some are left */
void hk_roots_accept_again(hk_listener *l);         /* accepts on their sockets again */
/* For ranks in the root's own process: joins, and waits for the answer. Not under the lock. HK_IN_PROGRESS: there is
 * no such root in this process. */
hk_status hk_root_join(hk_hello *h, hk_reply *reply, const hk_wait_env *wait);
/* The rank of this HK_HELLO_FAILED cannot join: all others get the cause. False: there is no such root in this
 * process. */
bool hk_root_report_abort(const hk_hello *h, const char *cause);
