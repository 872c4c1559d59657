/* SPDX-License-Identifier: Apache-2.0 */
/* A bootstrap from inside: links, messages, events.  Shared by bootstrap.c, overlay.c, event.c, family.c. */
#ifndef HK_BOOT_INTERNAL_H
#define HK_BOOT_INTERNAL_H
#include <stdatomic.h>
#include "../base/silence.h"
#include "bootstrap.h"
#include "dial.h"
#include "listener.h"
#include "process.h"

/* A frame with its payload, on its way between ranks of one process or waiting for the rank's thread. */
typedef struct hk_message {
  struct hk_message *next;
  hk_frame frame;
  int32_t from;
  bool towards_next; /* came by the sender's link to rank + 2^round: by the receiver's to rank - 2^round */
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
  uint8_t end;                            /* hk_link_end */
  int fd;                                 /* -1 where local or not open */
  struct hk_unsent *unsent, **unsent_end; /* what the socket did not take at once */
  hk_silence silence;                     /* of the peer's host, while something is under way to it */
  struct hk_lost *lost;                   /* lost.c: it ended, and a thread asks why */
  /* Of the service thread: the frame being received. */
  uint32_t have; /* of the header, then of the payload */
  uint8_t header[HK_FRAME_BYTES];
  hk_message *incoming; /* NULL: the header is not complete */
} hk_overlay_link;

/* A data connection that came in and was not taken yet. */
typedef struct hk_delivery {
  struct hk_delivery *next;
  int32_t from;
  uint64_t tag;
  int fd;
} hk_delivery;

struct hk_bootstrap {
  int rank, nranks, rounds; /* rounds: ceil(log2 nranks) */
  uint64_t comm;
  hk_bootstrap_options o;
  hk_door *door;
  hk_family *family;
  struct hk_bootstrap *member_next; /* in the door's table */
  bool member;
  pid_t pid;
  uint8_t *contacts;           /* [nranks] rows of HK_CONTACT_BYTES */
  hk_overlay_link *links;      /* [2 * rounds]: to rank + 2^k at 2 k, to rank - 2^k at 2 k + 1 */
  struct hk_bootstrap *parent; /* while joining as a child, else NULL */
  const int *members;          /* the same: our ranks in the parent */
  bool after_loss;             /* the same: the parent had lost a link when the join began */
  uint64_t gathers, barriers;  /* collectives so far, of the rank's thread */
  /* The call that the collectives of the rank's thread are for: hk_bootstrap_begin. */
  char what[128];
  _Atomic(int) phase; /* hk_phase */
  _Atomic(uint64_t) phase_since_ns;
  hk_status (*also)(void *arg); /* hk_bootstrap_also; NULL: none */
  void *also_arg;
  uint64_t wait_begin_ns, next_report_ns, deadline_ns; /* of the collective under way; 0: no report, no deadline */
  _Atomic(uint64_t)
      gave_up_ns;          /* when its thread ended a wait with an error; `awaited` and gave_up_in are of that wait */
  _Atomic(int) gave_up_in; /* hk_phase */
  bool dialing;            /* a connection is being made, and looks at the deadline itself */
  _Atomic(int) awaited;    /* the rank that the rank's thread waits for inside the bootstrap; -1: none */

  pthread_mutex_t lock; /* the fields below and those marked in the links */
  pthread_cond_t change;
  hk_message *inbox, **inbox_end;   /* for the rank's thread */
  hk_message *events, **events_end; /* for the service thread, from ranks of this process */
  hk_service_work event_work;
  hk_delivery *deliveries, **deliveries_end;
  uint64_t *seen, *dead; /* a bit for each kind of event and rank that it was about; and for each dead rank */
  uint32_t *shrinks;     /* [nranks] the newest HK_EVENT_SHRINK of each */
  uint64_t gone_ns;      /* when a member was first seen to have given the parent up; 0: not yet */
  bool known;            /* `contacts` is complete, and the service thread may read it */
  bool leaving;          /* links may end */
  bool looking;          /* silence.c's tick runs */
  bool broken;           /* an event came: collectives cannot complete */
  hk_event first_event;
  uint64_t lost_ns; /* when the first HK_EVENT_LINK came; 0: none has */
  int32_t lost[2];  /* of all that came the pair that wins (story.h) */
};

static inline hk_overlay_link *hk_link_to(hk_bootstrap *b, bool next, int round) {
  return &b->links[2 * round + !next];
}

/* ---- overlay.c ---- */
hk_status hk_overlay_init(hk_bootstrap *b);
/* Opens the link to rank + 2^round and waits for the one from rank - 2^round. */
hk_status hk_overlay_connect(hk_bootstrap *b, int round, const hk_wait_env *env);
/* Sends a frame whose payload is in two pieces (either may be empty).  What a socket does not take is kept and sent later:
 * never blocks. */
hk_status hk_overlay_send(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const void *p1, size_t n1,
                          const void *p2, size_t n2);
/* Waits for the frame that the link brings; the caller frees *out. */
hk_status hk_overlay_await(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const hk_wait_env *env,
                           hk_message **out);
/* Goodbye on all links, then closes them. */
void hk_overlay_leave(hk_bootstrap *b);
void hk_overlay_free(hk_bootstrap *b);
/* Under the door's lock: a connection for the overlay, which is taken only where it fits. */
bool hk_overlay_accept(hk_bootstrap *b, const hk_hello *h, int fd);
/* Under the door's lock: a message from a rank of this process. */
void hk_overlay_deliver(hk_bootstrap *b, hk_message *m);
/* Under the door's lock: a data connection. */
void hk_overlay_keep(hk_bootstrap *b, int from, uint64_t tag, int fd);
hk_hello hk_overlay_hello(const hk_bootstrap *b, hk_hello_kind kind, int to);
/* Adds all addresses that the contact has. */
void hk_overlay_addresses(const hk_bootstrap *b, const hk_contact *c, hk_dialing *d);
/* Connects to a rank's door. */
hk_status hk_overlay_dial(hk_bootstrap *b, hk_hello *h, const hk_addr *at, const hk_wait_env *env, const char *advice,
                          int *fd);

/* On the service thread: the peer is gone, for the reason `how`, or by the socket's error. */
void hk_overlay_died(hk_overlay_link *l, int error, const char *how);

/* ---- lost.c ---- */
typedef struct hk_lost hk_lost;
/* On the service thread: finds out whether the peer's process, whose link has ended, has ended, too.  Then `dead` comes, else
 * that the link is lost.  False: that cannot be asked. */
bool hk_lost_begin(hk_overlay_link *l, const hk_event *dead);
void hk_lost_end(hk_bootstrap *b); /* not under the lock: waits for the threads, which takes less than a second */

/* ---- silence.c ---- */
/* Under the lock: something is under way on a link; looks after the peers' hosts until it has arrived. */
void hk_silence_begin(hk_bootstrap *b);
void hk_silence_end(hk_bootstrap *b); /* not under the lock: nothing looks any more */
/* ---- report.c ---- */
/* Of a collective of the rank's thread, from here on: its waits are reported, and end after BOOTSTRAP_TIMEOUT if `bounded`. */
hk_wait_env hk_report_begin(hk_bootstrap *b, bool bounded);
bool hk_report_bounded(const hk_bootstrap *b); /* do all ranks have begun the call that it waits in? */
hk_status hk_report_check(void *bootstrap, uint64_t waited_ns);

/* ---- event.c ---- */
/* On the service thread: an event that a link brought (`from`), or that its end is. */
void hk_event_came(hk_bootstrap *b, const hk_event *event, const hk_overlay_link *from);
/* From any thread: hk_event_came on the service thread, with a message of hk_event_message (NULL: no memory), which it
 * takes. */
hk_message *hk_event_message(void);
void hk_event_post(hk_overlay_link *from, hk_message *m, const hk_event *event);
bool hk_event_decode(hk_event *event, const uint8_t *in, size_t bytes, int nranks);
/* On the service thread: events from ranks of this process. */
void hk_event_work(void *arg, int fd, uint32_t events);
bool hk_event_dead(hk_bootstrap *b, int rank);
bool hk_event_aborted(hk_bootstrap *b, int rank);
#endif
