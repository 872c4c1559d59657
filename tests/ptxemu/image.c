/* SPDX-License-Identifier: Apache-2.0 */
/* PTX inside images: text, or a fatbin as nvcc makes it.  Compressed PTX needs libzstd (CUDA 13) or liblz4 (before). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ptxemu.h"

enum { WRAPPER = 0x466243b1, FATBIN = (int)0xba55ed50, KIND_PTX = 1, PACKED_LZ4 = 0x2000, PACKED_ZSTD = 0x8000 };
typedef struct fatbin {
  uint32_t magic;
  uint16_t version, header;
  uint64_t bytes; /* after the header */
} fatbin;
typedef struct fatbin_part {
  uint16_t kind, unknown;
  uint32_t header;
  uint64_t bytes; /* after the header */
  uint32_t packed, options;
  uint16_t minor, major;
  uint32_t arch, name, name_bytes;
  uint64_t flags, zero, unpacked;
} fatbin_part;
_Static_assert(sizeof(fatbin_part) == 64, "as nvcc writes it");

static bool is_text(const char *image) {
  const char *p = image;
  while (*p == ' ' || *p == '\n' || *p == '\t' || *p == '/') {
    if (*p == '/')
      while (*p && *p != '\n') p++;
    else
      p++;
  }
  return strncmp(p, ".version", 8) == 0;
}

static bool unpack(char *to, size_t bytes, const char *from, size_t packed, bool zstd) {
  void *library = dlopen(zstd ? "libzstd.so.1" : "liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
  void *call = library ? dlsym(library, zstd ? "ZSTD_decompress" : "LZ4_decompress_safe") : NULL;
  bool ok = false;
  if (call && zstd)
    ok = ((size_t(*)(void *, size_t, const void *, size_t))(uintptr_t)call)(to, bytes, from, packed) == bytes;
  else if (call)
    ok = ((int (*)(const char *, char *, int, int))(uintptr_t)call)(from, to, (int)packed, (int)bytes) == (int)bytes;
  if (library) dlclose(library);
  return ok;
}
static char *text_of_part(const fatbin_part *p, char *why, size_t capacity) {
  const char *data = (const char *)p + p->header;
  const bool zstd = p->flags & PACKED_ZSTD, packed = zstd || (p->flags & PACKED_LZ4);
  const size_t bytes = packed ? p->unpacked : p->bytes;
  char *text = malloc(bytes + 1);
  if (!text) abort();
  if (!packed) {
    memcpy(text, data, bytes);
  } else if (!unpack(text, bytes, data, p->packed, zstd)) {
    snprintf(why, capacity, "PTX for sm_%u cannot be unpacked: it takes %s", p->arch,
             zstd ? "libzstd.so.1" : "liblz4.so.1");
    free(text);
    return NULL;
  }
  text[bytes] = '\0';
  return text;
}
char *ptx_of_image(const void *image, int sm, char *why, size_t capacity) {
  uint32_t magic;
  if (is_text(image)) {
    char *text = strdup(image);
    if (!text) abort();
    return text;
  }
  memcpy(&magic, image, 4);
  if (magic == WRAPPER) { /* what a program has of it: magic, version, the address */
    memcpy(&image, (const char *)image + 8, sizeof image);
    memcpy(&magic, image, 4);
  }
  snprintf(why, capacity, "it is no PTX");
  if (magic != (uint32_t)FATBIN) return NULL;
  const fatbin *all = image;
  const char *at = (const char *)image + all->header, *end = at + all->bytes;
  const fatbin_part *best = NULL;
  for (const fatbin_part *p; at < end; at += p->header + p->bytes) {
    p = (const fatbin_part *)(const void *)at;
    if (p->kind == KIND_PTX && p->arch <= (uint32_t)sm && (!best || p->arch > best->arch)) best = p;
  }
  if (best) return text_of_part(best, why, capacity);
  snprintf(why, capacity, "it has no PTX for sm_%d or older", sm);
  return NULL;
}
