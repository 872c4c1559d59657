/* SPDX-License-Identifier: Apache-2.0 */
/* What a process holds of the emulated driver: for tests that look whether all of it is given back. */
#ifndef HK_CUDAEMU_HELD_H
#define HK_CUDAEMU_HELD_H

/* Streams that were created (none of the driver's own), physical allocations, and areas of memory by their kind
 * (memory.h): classic, reserved, mapped, imported, of the host, registered. */
enum {
  CUDAEMU_STREAMS,
  CUDAEMU_EVENTS,
  CUDAEMU_MODULES,
  CUDAEMU_PHYSICAL,
  CUDAEMU_AREAS,
  CUDAEMU_HELD = CUDAEMU_AREAS + 6
};

/* Of each how many there are now.  An export of the driver. */
void cudaemu_held(long held[CUDAEMU_HELD]);
#endif
