/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a bootstrap: links, messages, events. Shared by the .c files of src/boot. */
#pragma once
#include <stdatomic.h>
#include "../base/silence.h"
#include "bootstrap.h"
#include "dial.h"
#include "listener.h"
#include "process.h"

/* A frame with its payload: between ranks of one process, or waiting for the rank's thread. */
typedef struct hk_message {
  struct hk_message *next;
  hk_frame frame;
  int32_t from;
  bool towards_next; /* sent on the sender's link to rank + 2^round: the receiver's link to rank - 2^round */
  uint8_t data[];
} hk_message;

typedef enum hk_link_end {
  HK_END_CLOSED, /* not yet open */
  HK_END_OPEN,
  HK_END_LEFT, /* the peer said goodbye */
  HK_END_DEAD
} hk_link_end;

/* One end of an overlay link. */
typedef struct hk_overlay_link {
  struct hk_bootstrap *b;
  int32_t rank; /* of the peer */
  uint8_t round;
  bool next;  /* to rank + 2^round; else to rank - 2^round */
  bool local; /* the peer is in this process */
  /* Under the bootstrap's lock: */
  uint8_t end;              /* hk_link_end */
  int fd;                   /* -1 if local or not open */
  struct hk_unsent *unsent; /* what the socket did not accept at once */
  hk_silence silence;       /* of the peer's host, while data is unacknowledged */
  unsigned limit_s;         /* hk_bootstrap_tolerate; 0: HOCKET_PEER_TIMEOUT */
  struct hk_lost *lost;     /* lost.c: the link ended, and a thread asks why */
  /* Used by the service thread only: the frame that is being received. */
  uint32_t have; /* bytes received of the header, then of the payload */
  uint8_t header[HK_FRAME_BYTES];
  hk_message *incoming; /* NULL: the header is not complete */
  /* the peer has sent an event of a failure, so a later end of the peer is a consequence of that */
  bool reported;
} hk_overlay_link;

/* A data connection that was accepted and not taken yet. */
typedef struct hk_delivery {
  struct hk_delivery *next;
  int32_t from;
  uint64_t tag;
  int fd;
} hk_delivery;

/* The call that the collectives of the rank's thread belong to (hk_bootstrap_begin), and its wait. */
typedef struct hk_boot_call {
  char what[128];
  _Atomic(int) phase; /* hk_phase */
  _Atomic(uint64_t) phase_since_ns;
  bool failed_before;           /* the communicator had failed when the call began */
  hk_status (*also)(void *arg); /* hk_bootstrap_also; NULL: none */
  void *also_arg;
  /* of the collective under way; report_after_ns 0: no report; deadline_ns 0: none */
  uint64_t wait_begin_ns, report_after_ns, reported_ns, deadline_ns;
  /* when the rank's thread last ended a wait with an error; `awaited` and gave_up_in then belong to that wait */
  _Atomic(uint64_t) gave_up_ns;
  _Atomic(int) gave_up_in; /* hk_phase */
  bool dialing;            /* a connection is being made, which checks the deadline itself */
  _Atomic(int) awaited;    /* the rank that the rank's thread waits for inside the bootstrap; -1: none */
} hk_boot_call;

/* The failures that this rank knows.  Under the bootstrap's lock. */
typedef struct hk_boot_failures {
  uint64_t *seen, *dead; /* a bit for each kind of event and rank that it was about; a bit for each dead rank */
  uint32_t *shrinks;     /* [nranks] number of the newest HK_EVENT_SHRINK of each */
  uint64_t gone_ns;      /* when a member was first seen to have left or aborted the parent; 0: not yet */
  bool broken;           /* an event has arrived: collectives cannot complete */
  hk_event first_event;
  uint64_t lost_ns; /* when the first HK_EVENT_LINK arrived; 0: none */
  int32_t lost[2];  /* the pair of ranks of the lost link that takes precedence (precedence.h) */
} hk_boot_failures;

struct hk_bootstrap {
  int rank, nranks, rounds; /* rounds: ceil(log2 nranks) */
  uint64_t comm;
  hk_bootstrap_options o;
  hk_listener *listener;
  hk_family *family;
  struct hk_bootstrap *member_next; /* in the listener's table */
  bool member;
  _Atomic(int) senders; /* threads that deliver to this rank */
  pid_t pid;
  uint8_t *contacts;           /* [nranks] rows of HK_CONTACT_BYTES */
  hk_overlay_link *links;      /* [2 * rounds]: to rank + 2^k at 2 k, to rank - 2^k at 2 k + 1 */
  struct hk_bootstrap *parent; /* while joining as a child, else NULL */
  const int *members;          /* our ranks in the parent; while joining as a child, else NULL */
  bool after_failure;          /* while joining as a child: the parent had failed before */
  uint64_t gathers, barriers;  /* number of collectives so far, on the rank's thread */
  hk_boot_call call;

  pthread_mutex_t lock; /* the fields below and those marked in the links */
  pthread_cond_t change;
  hk_message *inbox, **inbox_end;   /* for the rank's thread */
  hk_message *events, **events_end; /* for the service thread, from ranks of this process */
  hk_service_work event_work;
  hk_service_timer look; /* lost.c */
  hk_delivery *deliveries, **deliveries_end;
  struct hk_served {                         /* hk_bootstrap_serve */
    void (*fn)(void *arg, int rank, int fd); /* NULL: none */
    void *arg;
    uint64_t tag;
  } served[HK_SERVED];
  bool known;   /* `contacts` is complete, and the service thread may read it */
  bool leaving; /* this rank leaves: links may end */
  hk_boot_failures failures;
};

static inline hk_overlay_link *hk_link_to(hk_bootstrap *b, bool next, int round) {
  return &b->links[2 * round + !next];
}

static inline uint8_t *hk_contact_of(const hk_bootstrap *b, int rank) {
  return b->contacts + (size_t)rank * HK_CONTACT_BYTES;
}

/* ---- overlay.c ---- */
hk_status hk_overlay_init(hk_bootstrap *b);
/* Sends a frame whose payload is in two pieces (either may be empty). Never blocks: what the socket does not accept
 * is kept and sent later. HK_OK if the link has ended: a wait for the peer returns the cause. */
hk_status hk_overlay_send(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const void *p1, size_t n1,
                          const void *p2, size_t n2);
/* Says goodbye on all links, waits for the peers' answers (2 s at most), then stops the service for them. */
void hk_overlay_leave(hk_bootstrap *b);
void hk_overlay_free(hk_bootstrap *b);
/* Under the listener's lock: a connection for a link of the overlay. False, and the caller closes fd, if no link
 * expects it. */
bool hk_overlay_accept(hk_bootstrap *b, const hk_hello *h, int fd);
/* Under the listener's lock: a message from a rank of this process, which it consumes. */
void hk_overlay_deliver(hk_bootstrap *b, hk_message *m);
/* Under the listener's lock: a data connection, kept until a transport takes it. */
void hk_overlay_keep(hk_bootstrap *b, int from, uint64_t tag, int fd);
struct hk_served *hk_delivery_served(hk_bootstrap *b, uint64_t tag); /* under the lock; NULL: none */
/* The link uses that socket from here on. On an error the caller declines the connection and closes fd. */
hk_status hk_overlay_open(hk_overlay_link *l, int fd);
/* Ends a connection that is made already with this rank's failure, for the cause in the thread's error, and a goodbye:
 * else the peer would report a death. */
void hk_overlay_decline(const hk_overlay_link *l, int fd);
/* On the service thread: the peer is gone, for the reason `how`, or (NULL) by the socket's error. Ends the link and
 * reports it. */
void hk_overlay_died(hk_overlay_link *l, int error, const char *how);

/* ---- overlay_wait.c ---- */
/* Opens the link to rank + 2^round and waits for the one from rank - 2^round. Reports whom it waits for. */
hk_status hk_overlay_connect(hk_bootstrap *b, int round, const hk_wait_env *env);
/* Waits for the frame of this type and number on the link; the caller frees *out. */
hk_status hk_overlay_await(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const hk_wait_env *env,
                           hk_message **out);

/* ---- overlay_dial.c ---- */
/* A hello from this rank to `to` of the same communicator; the nonce is not set. */
hk_hello hk_overlay_hello(const hk_bootstrap *b, hk_hello_kind kind, int to);
/* Connects to a rank's listener: sends `h` with a new nonce. `at` (may be NULL) is tried first. */
hk_status hk_overlay_dial(hk_bootstrap *b, hk_hello *h, const hk_addr *at, const hk_wait_env *env, const char *advice,
                          int *fd);
/* Asks the listener at the contact's first `most` addresses what the rank of the hello does. */
hk_probe hk_overlay_probe(hk_bootstrap *b, const hk_contact *c, const hk_hello *h, uint32_t most, uint64_t deadline_ns,
                          hk_ack *ack, uint8_t activity[HK_ACTIVITY_BYTES]);

/* ---- gather.c ---- */
/* Opens the links of all rounds. `doubling`: this rank knows only the next rank's contact, and learns those of the
 * others on the way. */
hk_status hk_overlay_open_all(hk_bootstrap *b, bool doubling);
/* As hk_bootstrap_allgather and hk_bootstrap_barrier. */
hk_status hk_overlay_gather(hk_bootstrap *b, uint8_t *table, size_t bytes, const hk_wait_env *env);
hk_status hk_overlay_barrier(hk_bootstrap *b, const hk_wait_env *env);

/* ---- lost.c ---- */
typedef struct hk_lost hk_lost;
/* On the service thread: a link has ended. Finds out whether the peer's process has ended, too, and then reports
 * `dead`, or else that the link is lost. False: the peer cannot be asked. */
bool hk_lost_begin(hk_overlay_link *l, const hk_event *dead);
void hk_lost_end(hk_bootstrap *b); /* not under the lock: waits for the threads, which takes less than a second */
/* Under the lock: data was sent on a link. Watches the peers' hosts until all is acknowledged. */
void hk_silence_begin(hk_bootstrap *b);
void hk_silence_end(hk_bootstrap *b); /* not under the lock: stops that */

/* ---- report.c ---- */
/* Begins a collective of the rank's thread: returns the environment of its waits, which are reported, and end after
 * HOCKET_BOOTSTRAP_TIMEOUT if `bounded`. */
hk_wait_env hk_report_begin(hk_bootstrap *b, bool bounded);
bool hk_report_bounded(const hk_bootstrap *b); /* true if all ranks have begun the call that this rank waits in */
hk_status hk_report_check(void *bootstrap, uint64_t waited_ns);

/* ---- event.c ---- */
/* True if the bootstrap's collectives can still complete after the event. A rank that waits in one learns of it in
 * another way, or need not. */
bool hk_event_is_notice(const hk_event *e);
/* On the service thread, or on one that asks for a lost link: processes an event. `from`: the link over which it
 * arrived or whose end caused it; NULL: an event of this rank. */
void hk_event_received(hk_bootstrap *b, const hk_event *event, const hk_overlay_link *from);
/* On any thread: keeps the event, which ends this rank's waits in the bootstrap. True if it is new. */
bool hk_event_note(hk_bootstrap *b, const hk_event *e);
void hk_event_encode(uint8_t out[HK_EVENT_BYTES], const hk_event *e); /* all but the text, which follows */
bool hk_event_decode(hk_event *event, const uint8_t *in, size_t bytes, int nranks);
/* On the service thread: handles events from ranks of this process, and those of this rank that are noted already. */
void hk_event_work(void *arg, int fd, uint32_t events);
/* Sends the event that broke this bootstrap again: a link that opened after it has not carried it. */
void hk_event_repeat(hk_bootstrap *b);
bool hk_event_dead(hk_bootstrap *b, int rank);
bool hk_event_aborted(hk_bootstrap *b, int rank);
