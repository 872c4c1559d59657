/* SPDX-License-Identifier: Apache-2.0 */
/* What a test says to the fake librdmacm.so.1, which exports one `fake_cm`. */
#ifndef HK_TEST_FAKE_RDMACM_H
#define HK_TEST_FAKE_RDMACM_H

typedef struct fake_cm_state {
  int no_device;               /* errno of rdma_create_event_channel */
  int refused;                 /* errno of rdma_resolve_addr itself */
  int addr_error, route_error; /* errno of its event, and of the route's */
  int mute;                    /* no event ever comes */
  int asked, open;             /* times; channels and ids that are there */
  char from[64], to[64];       /* of the last question */
} fake_cm_state;
#endif
