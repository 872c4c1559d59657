/* SPDX-License-Identifier: Apache-2.0 */
/* The part of OpenSSL 3's ABI that tls.c uses, so that neither its headers nor its libraries are needed to build.
 * test_tls compares the numbers with OpenSSL's own headers if there are any. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct hk_ssl hk_ssl;
typedef struct hk_ssl_ctx hk_ssl_ctx;
typedef struct hk_ssl_session hk_ssl_session;
typedef struct hk_ssl_bio hk_ssl_bio;
typedef struct hk_ssl_bio_method hk_ssl_bio_method;
/* The name that the client asks for, and the key that belongs to a name; 0 is an error. */
typedef int hk_ssl_use_key(hk_ssl *, const void *md, const unsigned char **id, size_t *bytes, hk_ssl_session **);
typedef int hk_ssl_find_key(hk_ssl *, const unsigned char *id, size_t bytes, hk_ssl_session **);
typedef int hk_ssl_write(hk_ssl_bio *, const char *, int);
typedef int hk_ssl_read(hk_ssl_bio *, char *, int);
typedef long hk_ssl_ctrl(hk_ssl_bio *, int, long, void *);
typedef int hk_ssl_life(hk_ssl_bio *);

/* X(name in OpenSSL, value) */
#define HK_OPENSSL_NUMBERS(X)                                                                                          \
  X(SSL_OP_ENABLE_KTLS, 1 << 3)                                                                                        \
  X(SSL_OP_IGNORE_UNEXPECTED_EOF, 1 << 7)                                                                              \
  X(SSL_MODE_ENABLE_PARTIAL_WRITE, 1)                                                                                  \
  X(SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, 2)                                                                            \
  X(SSL_MODE_RELEASE_BUFFERS, 16)                                                                                      \
  X(SSL_CTRL_MODE, 33)                                                                                                 \
  X(SSL_CTRL_SET_MIN_PROTO_VERSION, 123)                                                                               \
  X(SSL_CTRL_SET_MAX_PROTO_VERSION, 124)                                                                               \
  X(SSL_VERIFY_PEER, 1)                                                                                                \
  X(SSL_KEY_UPDATE_NOT_REQUESTED, 0)                                                                                   \
  X(SSL_ERROR_SSL, 1)                                                                                                  \
  X(SSL_ERROR_WANT_READ, 2)                                                                                            \
  X(SSL_ERROR_WANT_WRITE, 3)                                                                                           \
  X(SSL_ERROR_SYSCALL, 5)                                                                                              \
  X(SSL_ERROR_ZERO_RETURN, 6)                                                                                          \
  X(SSL_R_BINDER_DOES_NOT_VERIFY, 253)                                                                                 \
  X(SSL_R_WRONG_VERSION_NUMBER, 267)                                                                                   \
  X(SSL_AD_REASON_OFFSET, 1000)                                                                                        \
  X(SSL_AD_HANDSHAKE_FAILURE, 40)                                                                                      \
  X(SSL_AD_ILLEGAL_PARAMETER, 47)                                                                                      \
  X(SSL_AD_DECRYPT_ERROR, 51)                                                                                          \
  X(SSL_AD_UNKNOWN_PSK_IDENTITY, 115)                                                                                  \
  X(TLS1_3_VERSION, 0x0304)                                                                                            \
  X(BIO_TYPE_SOCKET, 0x0505)                                                                                           \
  X(BIO_NOCLOSE, 0)                                                                                                    \
  X(BIO_C_SET_FD, 104)                                                                                                 \
  X(BIO_C_GET_FD, 105)                                                                                                 \
  X(BIO_CTRL_GET_KTLS_SEND, 73)                                                                                        \
  X(BIO_CTRL_GET_KTLS_RECV, 76)                                                                                        \
  X(BIO_FLAGS_RWS, 7)                                                                                                  \
  X(BIO_FLAGS_WRITE, 2)                                                                                                \
  X(BIO_FLAGS_SHOULD_RETRY, 8)                                                                                         \
  X(ERR_REASON_MASK, 0x7fffff)                                                                                         \
  X(OPENSSL_VERSION, 0)                                                                                                \
  X(OPENSSL_INIT_NO_ATEXIT, 0x80000)
enum {
#define X(name, value) HK_##name = (value),
  HK_OPENSSL_NUMBERS(X)
#undef X
};

enum { HK_BIO_CTRL_SET_KTLS = 72 }; /* internal/bio.h, which is not installed */

/* F(type, name, arguments): of libcrypto.so.3, and of libssl.so.3 */
#define HK_CRYPTO_CALLS(F)                                                                                             \
  F(int, OPENSSL_init_crypto, (uint64_t, const void *))                                                                \
  F(const char *, OpenSSL_version, (int))                                                                              \
  F(void, ERR_clear_error, (void))                                                                                     \
  F(unsigned long, ERR_peek_error, (void))                                                                             \
  F(const char *, ERR_reason_error_string, (unsigned long))                                                            \
  F(const void *, EVP_sha256, (void))                                                                                  \
  F(unsigned char *, HMAC,                                                                                             \
    (const void *md, const void *key, int, const unsigned char *, size_t, unsigned char *, unsigned *))                \
  F(const hk_ssl_bio_method *, BIO_s_socket, (void))                                                                   \
  F(hk_ssl_bio_method *, BIO_meth_new, (int, const char *))                                                            \
  F(hk_ssl_read *, BIO_meth_get_read, (const hk_ssl_bio_method *))                                                     \
  F(hk_ssl_ctrl *, BIO_meth_get_ctrl, (const hk_ssl_bio_method *))                                                     \
  F(hk_ssl_life *, BIO_meth_get_create, (const hk_ssl_bio_method *))                                                   \
  F(hk_ssl_life *, BIO_meth_get_destroy, (const hk_ssl_bio_method *))                                                  \
  F(int, BIO_meth_set_write, (hk_ssl_bio_method *, hk_ssl_write *))                                                    \
  F(int, BIO_meth_set_read, (hk_ssl_bio_method *, hk_ssl_read *))                                                      \
  F(int, BIO_meth_set_ctrl, (hk_ssl_bio_method *, hk_ssl_ctrl *))                                                      \
  F(int, BIO_meth_set_create, (hk_ssl_bio_method *, hk_ssl_life *))                                                    \
  F(int, BIO_meth_set_destroy, (hk_ssl_bio_method *, hk_ssl_life *))                                                   \
  F(hk_ssl_bio *, BIO_new, (const hk_ssl_bio_method *))                                                                \
  F(long, BIO_ctrl, (hk_ssl_bio *, int, long, void *))                                                                 \
  F(long, BIO_int_ctrl, (hk_ssl_bio *, int, long, int))                                                                \
  F(void, BIO_set_flags, (hk_ssl_bio *, int))                                                                          \
  F(void, BIO_clear_flags, (hk_ssl_bio *, int))
#define HK_SSL_CALLS(F)                                                                                                \
  F(const void *, TLS_method, (void))                                                                                  \
  F(hk_ssl_ctx *, SSL_CTX_new, (const void *))                                                                         \
  F(void, SSL_CTX_free, (hk_ssl_ctx *))                                                                                \
  F(long, SSL_CTX_ctrl, (hk_ssl_ctx *, int, long, void *))                                                             \
  F(uint64_t, SSL_CTX_set_options, (hk_ssl_ctx *, uint64_t))                                                           \
  F(int, SSL_CTX_set_ciphersuites, (hk_ssl_ctx *, const char *))                                                       \
  F(int, SSL_CTX_set_num_tickets, (hk_ssl_ctx *, size_t))                                                              \
  F(void, SSL_CTX_set_psk_use_session_callback, (hk_ssl_ctx *, hk_ssl_use_key *))                                      \
  F(void, SSL_CTX_set_psk_find_session_callback, (hk_ssl_ctx *, hk_ssl_find_key *))                                    \
  F(const void *, SSL_CIPHER_find, (hk_ssl *, const unsigned char *))                                                  \
  F(hk_ssl_session *, SSL_SESSION_new, (void))                                                                         \
  F(void, SSL_SESSION_free, (hk_ssl_session *))                                                                        \
  F(int, SSL_SESSION_set1_master_key, (hk_ssl_session *, const unsigned char *, size_t))                               \
  F(int, SSL_SESSION_set_cipher, (hk_ssl_session *, const void *))                                                     \
  F(int, SSL_SESSION_set_protocol_version, (hk_ssl_session *, int))                                                    \
  F(hk_ssl *, SSL_new, (hk_ssl_ctx *))                                                                                 \
  F(void, SSL_free, (hk_ssl *))                                                                                        \
  F(void, SSL_set_bio, (hk_ssl *, hk_ssl_bio *, hk_ssl_bio *))                                                         \
  F(void, SSL_set_verify, (hk_ssl *, int, void *))                                                                     \
  F(void, SSL_set_connect_state, (hk_ssl *))                                                                           \
  F(void, SSL_set_accept_state, (hk_ssl *))                                                                            \
  F(int, SSL_do_handshake, (hk_ssl *))                                                                                 \
  F(int, SSL_session_reused, (const hk_ssl *))                                                                         \
  F(hk_ssl_bio *, SSL_get_wbio, (const hk_ssl *))                                                                      \
  F(int, SSL_read, (hk_ssl *, void *, int))                                                                            \
  F(int, SSL_write, (hk_ssl *, const void *, int))                                                                     \
  F(int, SSL_key_update, (hk_ssl *, int))                                                                              \
  F(int, SSL_pending, (const hk_ssl *))                                                                                \
  F(int, SSL_get_error, (const hk_ssl *, int))
