/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow, and lists. */
#pragma once
#include <stdlib.h>
#include <string.h>

/* Makes room for `need` entries; `capacity`, the number that fit, doubles until they do. False if there is no memory:
 * nothing has changed then. */
#define HK_RESERVE(array, capacity, need)                                                                              \
  ((capacity) >= (need) ||                                                                                             \
   ((capacity) = hk_array_grow(&(array), sizeof *(array), (size_t)(capacity), (size_t)(need))) >= (need))
/* `array` is the address of the pointer. Returns the new capacity, or the old one. */
static inline size_t hk_array_grow(void *array, size_t entry, size_t capacity, size_t need) {
  size_t more = capacity ? 2 * capacity : 16;
  void *p;
  while (more < need) more *= 2;
  memcpy(&p, array, sizeof p); /* a pointer of any type */
  p = realloc(p, more * entry);
  if (!p) return capacity;
  memcpy(array, &p, sizeof p);
  return more;
}

/* Makes room for one entry more than `n`, or for two if `n` is always even. The capacity is 16 or the next power of
 * two, so that the caller need not keep it: no other code allocates the array. False if there is no memory. */
#define HK_RESERVE_NEXT(array, n)                                                                                      \
  (((n) && ((n) < 16 || ((n) & ((n)-1)))) ||                                                                           \
   hk_array_grow(&(array), sizeof *(array), (size_t)(n), (size_t)(n) + 1) > (size_t)(n))

/* Takes `item` out of the list that begins with `head`, if it is there; `next`: the member that links the list. */
#define HK_LIST_REMOVE(head, item, next)                                                                               \
  do {                                                                                                                 \
    __typeof__(&(head)) hk_at = &(head);                                                                               \
    while (*hk_at && *hk_at != (item)) hk_at = &(*hk_at)->next;                                                        \
    if (*hk_at) *hk_at = (item)->next;                                                                                 \
  } while (0)
