/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The socket provider: TCP.
 *
 * One connection serves both directions of a channel between two ranks, so that TCP sends acknowledgements with data:
 * over loopback a round trip of 8 bytes takes 5.3 us, and 7.9 us with a connection for each direction. The lower rank
 * connects, the higher one accepts.
 *
 * On the wire a slot is its header's first 16 bytes (number, bytes, signature, flags) and its payload. A connection
 * may have several sockets, spread over the pairs of interfaces that reach each other. Then a payload of at least
 * HK_STRIPE_MIN bytes is cut into parts, one for each socket. The first part follows the header on the first socket.
 * If there are more sockets than parts of HK_PART_MIN bytes, the first one carries only headers, and messages take
 * turns on the others.
 */
#pragma once
#include "../../../base/addr.h"
#include "../../../base/silence.h"
#include "../net.h"

struct hk_settings; /* base/param.h */

enum {
  HK_SOCKETS_MAX = 64,      /* of a connection, as in NCCL */
  HK_SOCKETS_OF_ALL = 1024, /* of all connections on one channel, unless the user asks for more */
  HK_STRIPE_MIN = 65536,
  HK_PART_MIN = 32768, /* below, a part's system calls cost more than its bytes */
  HK_SOCKET_ADDRS = 9,
  HK_AHEAD_BYTES = 1024 /* read beyond the current message: a small message arrives with the read of the one before */
};

/* ---- facts and routes: socket_route.c ---- */
typedef struct hk_socket_addr {
  uint8_t family; /* 4 or 6; 0: unused */
  uint8_t kind;   /* hk_iface_class */
  uint8_t prefix;
  uint8_t iface; /* index of the first address of its interface */
  uint32_t speed_mbps;
  uint8_t bytes[16];
} hk_socket_addr;
typedef struct hk_socket_fact {
  uint8_t naddrs;
  /* number of sockets that this rank wants for a connection; unless it insists, for each of its interfaces */
  uint8_t nsockets;
  uint8_t insists; /* nsockets was set by NCCL_NSOCKS_PERTHREAD or NCCL_SOCKET_NTHREADS */
  uint8_t named;   /* the user chose the interfaces (NCCL_SOCKET_IFNAME) */
  hk_socket_addr addrs[HK_SOCKET_ADDRS];
} hk_socket_fact;
_Static_assert(sizeof(hk_socket_fact) <= HK_NET_FACT_BYTES, "the fact fits");

/* Fills the fact of this rank from its interfaces. */
void hk_socket_describe(const struct hk_settings *set, hk_socket_fact *fact, const hk_iface *ifaces, int n);
/* A peer's address, and this rank's interface (`iface` of its fact) in that network. */
typedef struct hk_socket_route {
  hk_addr to;
  uint32_t speed_mbps;
  uint8_t iface, kind;
} hk_socket_route;
/* Fills `out` with the addresses of the accepting rank to which a connection's sockets go in turns: one for each pair
 * of interfaces, best first. Returns their number; 0: the address that the bootstrap uses. `dropped`: interfaces of the
 * dialing rank that reach no peer, a bit each. */
int hk_socket_routes(const hk_socket_fact *dialing, const hk_socket_fact *accepting, uint32_t dropped,
                     hk_socket_route out[HK_SOCKET_ADDRS]);
/* The number of sockets of a connection between two of `nranks` ranks; equal on both ends. */
int hk_socket_count(const hk_socket_fact *dialing, const hk_socket_fact *accepting, bool same_host, int nranks);

/* ---- one connection: socket_io.c ---- */
typedef struct hk_wire_header {
  uint32_t seq, bytes, signature, flags;
} hk_wire_header;
/* A bit of `flags`, like HK_SLOT_REF: the sender's kernel may hold back the next data until this message is
 * acknowledged. */
enum { HK_WIRE_GATHERED = 2 };
_Static_assert(sizeof(hk_wire_header) == offsetof(hk_slot, small), "the wire header is the slot's own");

/* One socket of a connection. */
typedef struct hk_socket_wire {
  struct hk_socket_conn *conn;
  int fd;
  bool blocked;           /* the kernel's buffer is full; epoll reports when it has room */
  bool readable;          /* there may be something to receive */
  bool news_out, news_in; /* epoll has reported room, or data, since a job for it was posted */
  uint32_t got;           /* bytes received of its part of the current message */
  uint64_t slot;          /* being sent, or the next one */
  uint64_t offset;        /* bytes of it that the kernel has taken, the header included on the first socket */
  hk_silence silence;
  char iface[IFNAMSIZ];
  char route[2 * HK_ADDR_TEXT + IFNAMSIZ + 16]; /* "10.0.0.1<4000> -> 10.0.0.2<4001>, interface eth0", for messages */
} hk_socket_wire;

/* The message that is being received. */
typedef struct hk_socket_rx {
  hk_wire_header head;
  uint32_t head_got;
  bool begun;    /* the header is complete and valid, and `place` is known */
  bool direct;   /* `place` is the user's memory */
  bool eof;      /* the peer has closed, between two messages */
  bool gathered; /* the last message had HK_WIRE_GATHERED */
  char *place;
  uint32_t last; /* bytes of the message before: a guess for the next one */
  char *ahead;   /* bytes read beyond the message */
  uint32_t ahead_at, ahead_end, ahead_capacity;
} hk_socket_rx;

typedef struct hk_socket_conn {
  const hk_transport_env *env;
  int peer;
  uint16_t channel;
  uint8_t nsockets, nconnected;
  bool watched;        /* its sockets are in the epoll set */
  bool near;           /* both ranks are on one host */
  bool gathers;        /* the kernel gathers small messages: no TCP_NODELAY */
  uint32_t unanswered; /* small messages sent since the last message arrived */
  uint32_t empty;      /* polls since the last data of a gathered message arrived */
  hk_status failed;
  uint32_t lead_max; /* hk_socket_lead_of */
  uint32_t lead,
      /* lead: bytes sent in excess of bytes received; held: rounds in which sending was held back because of that */
      held;
  hk_net_end *send, *recv; /* NULL if the end is not open */
  hk_socket_rx rx;
  struct hk_socket_threads *threads; /* NULL: the calling thread serves all sockets */
  struct hk_socket_job *jobs;        /* [2 * nsockets], with threads: of each socket's sending, then of its receiving */
  unsigned njobs;                    /* posted, and their results not taken */
  hk_socket_wire wires[];            /* [nsockets] */
} hk_socket_conn;

/* How many bytes ahead of its receives a rank sends: a quarter of its core's L2 cache, within bounds. Sent data,
 * received data and the kernel's copies of both then stay in that cache. l2_bytes 0 or less: not known. */
uint32_t hk_socket_lead_of(long l2_bytes);
/* Sends what is filled and gives credits back; never blocks. Sets *moved if any byte was sent. HK_ERR_ARGUMENT if the
 * user's buffer cannot be read, HK_ERR_SYSTEM if this host lacks memory, HK_ERR_REMOTE if the connection is lost. */
hk_status hk_socket_send(hk_socket_conn *c, bool *moved);
/* Receives what the FIFO has room for; otherwise as hk_socket_send. */
hk_status hk_socket_receive(hk_socket_conn *c, bool *moved);
/* To be called after each poll of a connection that a lane waits for. */
void hk_socket_polled(hk_socket_conn *c, bool came);
bool hk_socket_waited_for(const hk_socket_conn *c);   /* a lane waits for its next message */
bool hk_socket_readable(const hk_socket_conn *c);     /* data of the next message may have arrived */
bool hk_socket_send_pending(const hk_socket_conn *c); /* there is something to send */
bool hk_socket_send_blocked(const hk_socket_conn *c); /* the kernel's buffers are full */
bool hk_socket_send_held(const hk_socket_conn *c); /* held back for some rounds: the thread must not sleep meanwhile */
/* To be called once a second. Fails the connection if the peer's host does not answer (base/silence.h). */
hk_status hk_socket_check_silence(hk_socket_conn *c, unsigned limit_s, uint64_t now_ns);
/* ---- threads that copy in addition to the lanes' thread: socket_thread.c ---- */
enum { HK_JOB_PIECES = 8, HK_JOB_CLOSED = -1 };
enum { HK_JOB_NONE, HK_JOB_ASKED, HK_JOB_DONE };
/* The system calls of one socket's part. Only `state` is shared while the job is ASKED. */
typedef struct hk_socket_job {
  _Atomic(int) state;
  bool sends;
  int fd, n;
  struct iovec iov[HK_JOB_PIECES]; /* one to receive */
  size_t bytes, moved;             /* asked for; sent or received */
  int err; /* the reason if `moved` is less: errno, or HK_JOB_CLOSED; 0 for a send that the kernel took in part */
  struct hk_socket_job *next;
} hk_socket_job;
typedef struct hk_socket_threads hk_socket_threads;

/* Begins n threads, or fewer if the process may have no more. NULL: none. */
hk_socket_threads *hk_socket_threads_begin(const hk_transport_env *env, int n);
/* No job is posted any more. NULL is allowed. */
void hk_socket_threads_end(hk_socket_threads *p);
/* Returns true if a thread serves socket s: they and the calling thread take turns, and it has the first one. */
bool hk_socket_threads_have(const hk_socket_threads *p, unsigned s);
void hk_socket_threads_post(hk_socket_threads *p, unsigned s, hk_socket_job *job);
/* Waits until no job of the connection uses memory of the user or the link. */
void hk_socket_settle(hk_socket_conn *c);
