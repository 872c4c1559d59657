/* SPDX-License-Identifier: Apache-2.0 */
/* Texts with one random change, for goldens of what is said of them. */
#ifndef HK_TESTS_CHANGED_H
#define HK_TESTS_CHANGED_H
#include <stdlib.h>
#include <string.h>
#include "randprog.h" /* random_below */

/* After the line. */
static inline char *change_end(char *line) {
  char *end = strchr(line, '\n');
  return end ? end + 1 : line + strlen(line);
}
/* The n-th place of a word; NULL if there are not so many. */
static inline char *change_place(char *text, const char *word, unsigned n) {
  char *at = strstr(text, word);
  while (at && n--) at = strstr(at + 1, word);
  return at;
}

/* `text` with one change: a number, a word that is dropped or another one, or a line that is dropped, doubled or
 * swapped with the next one. */
static inline char *changed(const char *text, const char *const *words, unsigned nwords, uint64_t *seed) {
  const size_t size = strlen(text);
  char *out = calloc(1, 2 * size + 64), *at, *end;
  strcpy(out, text);
  char *body = random_below(seed, 8) ? change_end(out) : out;
  if (!*body) body = out;
  switch (random_below(seed, 4)) {
    case 0: /* a line */
      at = body + random_below(seed, (unsigned)strlen(body));
      while (at > body && at[-1] != '\n') at--;
      end = change_end(at);
      switch (random_below(seed, 3)) {
        case 0: memmove(at, end, strlen(end) + 1); break;
        case 1: memmove(end, at, strlen(at) + 1); break;
        default:
          if (*end)
            snprintf(at, 2 * size, "%.*s%.*s%s", (int)(strcspn(end, "\n") + 1), text + (end - out), (int)(end - at),
                     text + (at - out), text + (end - out) + strcspn(end, "\n") + 1);
      }
      return out;
    case 1: { /* a word */
      const char *word = words[random_below(seed, nwords)];
      const char *other = random_below(seed, 2) ? words[random_below(seed, nwords)] : "";
      at = change_place(body, word, random_below(seed, 4));
      if (!at) return out;
      memmove(at + strlen(other), at + strlen(word), strlen(at + strlen(word)) + 1);
      memcpy(at, other, strlen(other));
      return out;
    }
    default: /* a number */
      at = body + random_below(seed, (unsigned)strlen(body));
      at += strcspn(at, "0123456789");
      if (*at) *at = (char)('0' + random_below(seed, 6));
      return out;
  }
}

#endif
