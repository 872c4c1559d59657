/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The door: the one listener of a process, whatever number of ranks, communicators and ids it has.  It exists while a
 * bootstrap or a root of the process does.
 *
 *   lobby     connections without a complete hello: bounded in number and time
 *   roots     ids made here whose ranks are gathering (root.c)
 *   families  secrets; each has members, the ranks of this process that joined with it (family.c)
 *
 * One lock guards all of it (hk_door_lock); what is done under it neither blocks nor calls out, but for the members' reports
 * (hk_bootstrap_options), which read a few words.  Order: the door's lock, a
 * bootstrap's, a service's.  The door's own service runs its callbacks under the lock, so nobody may wait for one of them
 * while holding it.
 */
#ifndef HK_BOOT_LISTENER_H
#define HK_BOOT_LISTENER_H
#include <pthread.h>
#include "../base/service.h"
#include "../base/wait.h"
#include "wire.h"

enum { HK_MEMBER_BUCKETS = 256 };

struct hk_bootstrap;
struct hk_door;
struct hk_root;
struct hk_message;

/* An accepted connection.  Touched on the door's thread only. */
typedef struct hk_guest {
  struct hk_door *door;
  struct hk_guest *next, *prev; /* in the lobby, oldest first */
  int fd;
  uint64_t since_ns;
  bool squeezed;        /* has the spare descriptor: it gets an answer, and goes */
  struct hk_root *root; /* not NULL: a rank that waits for its answer, no longer in the lobby */
  int seat;
  uint32_t have;
  uint8_t in[HK_HELLO_BYTES];
} hk_guest;

/* What came for a rank of this process that has not joined yet. */
typedef struct hk_parcel {
  struct hk_parcel *next;
  uint64_t since_ns;
  uint64_t comm;
  int32_t to, from;
  struct hk_message *message; /* from a rank of this process; NULL: a connection */
  hk_hello_kind kind;
  uint32_t round;
  uint64_t tag;
  int fd;
} hk_parcel;

typedef struct hk_family {
  struct hk_family *next;
  unsigned users;
  uint64_t key;
  uint8_t secret[HK_SECRET_BYTES];
  hk_parcel *parcels, **parcels_end;
  struct {
    uint64_t comm;
    int32_t rank;
  } gone[64]; /* who left last: what comes for them is turned away, not kept */
  unsigned ngone;
} hk_family;

typedef struct hk_door {
  hk_service *service;
  unsigned users; /* bootstraps and roots */
  bool closing, ticking;
  bool deaf;              /* a caller could not be let in: listeners wait for the next tick */
  uint64_t deaf_since_ns; /* no rank could be let in since; 0: all is well */
  uint64_t deaf_last_ns;  /* the last that could not */
  int deaf_why;           /* errno */
  int spare; /* kept for the time when there is no other descriptor: callers are heard then, too; -1: in use */
  int listener;
  hk_contact contact; /* as seen from nowhere in particular */
  struct {
    hk_addr toward;
    hk_contact contact;
    uint64_t since_ns; /* 0: nothing kept */
  } lately;            /* the ranks of a process ask for the same, all at once */
  hk_guest *lobby, *lobby_last;
  unsigned in_lobby;
  struct hk_root *roots;
  hk_family *families;
  struct hk_bootstrap *members[HK_MEMBER_BUCKETS];
  unsigned nmembers;
  hk_service_work sweep; /* asks the door's thread to answer and free roots that have ended */
} hk_door;

void hk_door_lock(void);
void hk_door_unlock(void);
pthread_mutex_t *hk_door_mutex(void); /* for waiting */

/* The process's door, made where there is none. */
hk_status hk_door_enter(hk_door **out);
void hk_door_leave(hk_door *d);
/* As hk_door_leave, under the lock and on the door's thread, inside one of its callbacks. */
void hk_door_leave_inside(hk_door *d);
/* Where this process can be reached, best first for somebody at `toward` (may be NULL). */
hk_status hk_door_contact(hk_door *d, hk_contact *out, const hk_addr *toward);

/* ---- under the lock ---- */
hk_door *hk_door_here(void);   /* NULL where there is none */
void hk_door_tick(hk_door *d); /* something now waits for a deadline */
/* Watches a further listener; the door accepts on it. */
hk_status hk_door_listen(hk_door *d, int listener);
/* An error with the cause if ranks have been shut out for some seconds. */
hk_status hk_door_hears(hk_door *d);
/* Under the lock: a guest that is a rank, as it has proved, cannot stay.  True if that has been so for some seconds. */
bool hk_door_turned_away(hk_door *d);
/* On the door's thread: forget the connection, close it, or (keep_fd) give it to the caller. */
void hk_guest_free(hk_guest *g, bool keep_fd);
/* Out of the lobby, into a root's seat. */
void hk_guest_seated(hk_guest *g, struct hk_root *root, int seat);
/* Sends a few bytes on a connection whose send buffer is empty. */
bool hk_guest_send(hk_guest *g, const void *bytes, size_t n);

/* ---- family.c ---- */
/* Not under the lock. */
hk_status hk_family_get(hk_family **out, hk_door *d, const uint8_t secret[HK_SECRET_BYTES]);
void hk_family_put(hk_door *d, hk_family *f);
/* From now on b's communicator and rank can be reached; what has come early is handed over. */
void hk_member_join(struct hk_bootstrap *b);
void hk_member_leave(struct hk_bootstrap *b);
/* Gives the message, which it consumes, to rank `to` of b's communicator, a rank of this process.  False: it has left. */
bool hk_member_send(struct hk_bootstrap *b, int to, struct hk_message *m);
/* Under the lock: what the member does; HK_ACK_OK, and `out` is set.  Calls the member's report. */
hk_ack hk_member_activity(hk_door *d, const hk_family *f, uint64_t comm, int rank, hk_activity *out);
/* Under the lock, on the door's thread: a hello for a member.  Consumes the guest. */
void hk_family_hello(hk_door *d, hk_guest *g, const hk_hello *h);
/* Under the lock: throws away connections that have ended before their rank came.  True if something still waits. */
bool hk_families_expire(hk_door *d, uint64_t now);

/* ---- root.c ---- */
/* Not under the lock.  `listener` (may be -1) becomes the root's. */
hk_status hk_root_new(hk_door *d, const hk_boot_id *id, int listener);
/* Does a root with this key gather ranks?  One that has failed and only lingers makes room for a new one. */
bool hk_root_gathers(hk_door *d, uint64_t key);
/* Under the lock, on the door's thread. */
void hk_root_hello(hk_door *d, hk_guest *g, const hk_hello *h); /* consumes the guest */
void hk_root_guest_gone(hk_guest *g);
void hk_roots_sweep(hk_door *d);
bool hk_roots_expire(hk_door *d, uint64_t now); /* true where some are left */
void hk_roots_hear_again(hk_door *d);           /* after deafness */
/* For ranks in the root's own process.  Not under the lock.  HK_IN_PROGRESS: there is no such root in this process. */
hk_status hk_root_join(hk_hello *h, hk_reply *reply, const hk_wait_env *wait);
#endif
