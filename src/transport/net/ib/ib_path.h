/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of a connection, and the registrations of its memory with their devices. */
#ifndef HK_TRANSPORT_NET_IB_PATH_H
#define HK_TRANSPORT_NET_IB_PATH_H
#include "ib_conn.h"

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
#endif
