/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a connection, repairs it and ends it, file by file; ib_conn.h has the order of the files. */
#pragma once
#include "ib_conn.h"

/* ---- ib_timeout.c: times of the cards: how long a queue pair waits for an answer, and when a card gives up ---- */
void hk_ib_measure(hk_ib_conn *c); /* sets round_trip_us and timeout */
/* The time for which a queue pair waits for an answer, as n in 4.096 us * 2^n, for this round trip. With so many
 * retries the card gives up within `bound_ns`. */
unsigned hk_ib_timeout_for(uint32_t round_trip_us, unsigned retries, uint64_t bound_ns);
uint64_t hk_ib_gives_up_ns(unsigned timeout, unsigned retries); /* the longest time that a card may take to give up */

/* ---- ib_path.c: the paths of a connection, and the registrations of its memory with their devices ---- */
/* The ports of a path, as the two ranks offered them. */
static inline const hk_ib_port *hk_ib_my_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->ports.mine[c->ports.pairs[w->pair].mine];
}
static inline const hk_ib_port *hk_ib_their_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->ports.theirs[c->ports.pairs[w->pair].theirs];
}
/* Writes "; the kernel says: ..." about the best GIDs of the first path's ports to `text`, or "". May wait for half a
 * second, so it asks once for each communicator. */
const char *hk_ib_kernel_reason(hk_ib_conn *c, char text[HK_IB_KERNEL_TEXT]);
/* The lower rank chooses the paths, and the higher one takes those of its message; false: they are not valid. */
void hk_ib_choose_paths(hk_ib_conn *c);
bool hk_ib_take_paths(hk_ib_conn *c, const hk_ib_epoch *theirs);
void hk_ib_fill_paths(hk_ib_conn *c); /* writes them to c->ours */
/* Opens the paths' devices and registers the connection's memory with them. *refused: a path whose device accepts no
 * more memory, with the cause in `why`; NULL: none. */
hk_status hk_ib_open_paths(hk_ib_conn *c, hk_ib_path **refused, char why[160]);
/* Registers the FIFOs that must be registered by now. The one that receives large messages is registered when the first
 * one wants to come; but if memory may run out, or is a GPU's, both are before the first message, because a fallback is
 * not possible later. Returns the path whose device refuses, or NULL. */
hk_ib_path *hk_ib_register_rings(hk_ib_conn *c, char why[160]);
void hk_ib_free_memory(hk_ib_conn *c);
void hk_ib_leave_devices(hk_ib_conn *c); /* the same with failed devices alone; there are no queue pairs */
bool hk_ib_has_memory_of(const hk_ib_conn *c, const hk_ib_device *d); /* registered with the device */
void hk_ib_unregister_end(hk_ib_conn *c, bool sends);                 /* the FIFO of one direction */
void hk_ib_describe_path(const hk_ib_conn *c, const hk_ib_path *w, char text[HK_IB_ROUTE]);

/* ---- ib_repair.c: failures of a connection, and their repair ---- */
/* A request on a queue pair has failed: begins a new epoch, or fails the connection. */
hk_status hk_ib_broken(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc, const char *doing);
/* The device or completion queue of the connection's queue pairs has failed: the same. */
hk_status hk_ib_lost(hk_ib_conn *c, const char *what, bool repairable);
/* Begins a new epoch, or fails the connection if that was tried for too long. c->repair.cause is the reason: a rank
 * that does not begin epochs sends it to the other one. */
hk_status hk_ib_repair(hk_ib_conn *c, const char *advice);
/* Repairs the connection if requests have neither completed nor failed for longer than their retries take. */
hk_status hk_ib_check_progress(hk_ib_conn *c, uint64_t now);
/* Starts to count the time of repairs, and counts it: only while this process takes part, and the peer's answer is not
 * waited for. */
void hk_ib_begin_repairs(hk_ib_conn *c, uint64_t now);
/* A failure of a connection that has been up for long is a new one: the time and the attempts are counted anew. */
void hk_ib_note_failure(hk_ib_conn *c, uint64_t now);
void hk_ib_count_repairs(hk_ib_conn *c, uint64_t now);
/* Returns true if the peer's answer is waited for and its host does not answer the kernel's questions. */
bool hk_ib_host_is_silent(hk_ib_conn *c, uint64_t now);
/* A port is up again: after BACK_MS without another change, connections that had left it begin an epoch over it. */
void hk_ib_port_came_back(hk_ib_ctx *x, const hk_ib_device *d, int port, uint64_t now);
hk_status hk_ib_go_back(hk_ib_conn *c, uint64_t now);

/* ---- ib_qp.c: queue pairs of a connection ---- */
hk_status hk_ib_make_qps(hk_ib_conn *c, uint32_t n); /* makes n queue pairs on the paths and posts their receives */
void hk_ib_drop_qps(hk_ib_conn *c);
bool hk_ib_wants_apart(const hk_ib_conn *c); /* this rank's part of c->apart */
/* Connects the queue pairs to the peer's. On failure errno is set, and no error text: the caller may try another
 * path. */
hk_status hk_ib_join_qps(hk_ib_conn *c, const hk_ib_epoch *theirs);
/* Writes the queue pairs' vendor options (ECE) to c->ours: before they are joined those of this rank's card, then those
 * agreed on. */
void hk_ib_fill_ece(hk_ib_conn *c);

/* ---- ib_epoch.c: epochs of queue pairs ---- */
hk_status hk_ib_epoch_begin(hk_ib_conn *c);                    /* the lower rank begins an epoch */
hk_status hk_ib_epoch_came(hk_ib_conn *c, const hk_ib_msg *m); /* HK_IB_EPOCH has come */
void hk_ib_epoch_up(hk_ib_conn *c);                            /* the peer can receive: HK_IB_READY has come */
/* As hk_net_provider's: a connection that is up rests, both ends together. */
hk_status hk_ib_rest(void *ctx, hk_net_end *e, bool *rests);
void hk_ib_send_bye(hk_ib_conn *c); /* ends the connection in order: reports how much has been received */

/* ---- ib_control.c: a control connection that is lost or silent ---- */
uint64_t hk_ib_control_tag(const hk_ib_conn *c);
void hk_ib_control_begin(hk_ib_conn *c); /* sets the options of a new control socket */
/* Returns true if the control connection is lost, and its end does not show that the peer has gone. */
bool hk_ib_control_may_return(const hk_ib_conn *c);
/* A lost control connection: the dialling rank has a thread make a new one, the other one takes it. An error if RDMA
 * fails for too long, too. */
hk_status hk_ib_control_check(hk_ib_conn *c, uint64_t now);
/* Once a second: takes a new control connection for one that only the peer has lost. If a lane `waits` and the control
 * connection is silent, asks the peer's card whether its host is there. */
hk_status hk_ib_control_ask(hk_ib_conn *c, uint64_t now, bool waits);

/* ---- ib_step.c: steps of a connection ---- */
/* Goes on with connecting and repairing, and reads the control socket; `now` is hk_now_ns(). Never blocks on the peer,
 * except to open the control connection. */
hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now);

/* ---- ib_event.c: events of the devices, and devices that fail and come back ---- */
/* Logs events of the devices. Connections that an event ends get new queue pairs, on another device if there is one. */
hk_status hk_ib_handle_events(hk_ib_ctx *x);
/* Closes devices that have failed once nothing of theirs is used, and opens them again when that is possible: after a
 * second, and after twice as long each time that they fail. */
void hk_ib_devices_return(hk_ib_ctx *x, uint64_t now);
