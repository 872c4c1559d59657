/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. */
#ifndef HK_BASE_ARRAY_H
#define HK_BASE_ARRAY_H
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `need` entries; `room`, the number that fit, doubles until they do. False if there is no memory:
 * nothing has changed then. */
#define HK_RESERVE(array, room, need)                                                                                  \
  ((room) >= (need) || ((room) = hk_array_grow(&(array), sizeof *(array), (size_t)(room), (size_t)(need))) >= (need))
/* `array` is the address of the pointer. Returns the new room, or the old one. */
static inline size_t hk_array_grow(void *array, size_t entry, size_t room, size_t need) {
  size_t more = room ? 2 * room : 16;
  void *p;
  while (more < need) more *= 2;
  memcpy(&p, array, sizeof p); /* a pointer of any type */
  p = realloc(p, more * entry);
  if (!p) return room;
  memcpy(array, &p, sizeof p);
  return more;
}
#endif
