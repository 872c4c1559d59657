/* SPDX-License-Identifier: Apache-2.0 */
/* The part of expat's ABI that xml_tree.c uses, so that building needs no header of it. test_topo_xml compares this
 * with expat.h if it is installed. */
#pragma once

typedef struct XML_ParserStruct hk_expat; /* their name, so that the types are the same */
typedef void hk_expat_begin(void *arg, const char *name, const char **attrs);
typedef void hk_expat_end(void *arg, const char *name);
typedef void hk_expat_text(void *arg, const char *text, int n);
typedef void hk_expat_doctype(void *arg, const char *name, const char *system, const char *public, int internal);

/* F(type, name, arguments) */
#define HK_EXPAT_CALLS(F)                                                                                              \
  F(hk_expat *, XML_ParserCreate, (const char *encoding))                                                              \
  F(void, XML_ParserFree, (hk_expat *))                                                                                \
  F(void, XML_SetUserData, (hk_expat *, void *))                                                                       \
  F(void, XML_SetElementHandler, (hk_expat *, hk_expat_begin *, hk_expat_end *))                                       \
  F(void, XML_SetCharacterDataHandler, (hk_expat *, hk_expat_text *))                                                  \
  F(void, XML_SetStartDoctypeDeclHandler, (hk_expat *, hk_expat_doctype *))                                            \
  F(unsigned, XML_Parse, (hk_expat *, const char *text, int bytes, int last))                                          \
  F(unsigned, XML_StopParser, (hk_expat *, unsigned char resumable))                                                   \
  F(unsigned, XML_GetErrorCode, (hk_expat *))                                                                          \
  F(const char *, XML_ErrorString, (unsigned))                                                                         \
  F(unsigned long, XML_GetCurrentLineNumber, (hk_expat *))                                                             \
  F(unsigned long, XML_GetCurrentColumnNumber, (hk_expat *))
enum { HK_XML_STATUS_OK = 1 };
