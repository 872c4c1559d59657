#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Encryption on a kernel with TLS of its own, which the guest has: the tests of TLS, and the perf binaries with keys.
set -u
modprobe tls && CK_VERBOSITY=normal "$HK_BUILD/tests/test_tls" || exit 1
tests/suites/encryption.sh || exit 1
sent=$(awk '$1 == "TlsTxSw" { print $2 }' /proc/net/tls_stat) got=$(awk '$1 == "TlsRxSw" { print $2 }' /proc/net/tls_stat)
[ "$got" -gt 0 ] || echo "SKIP: this OpenSSL does not let the kernel receive"
[ "$sent" -gt 0 ] || { echo "the kernel encrypted nothing"; exit 1; }
echo "the kernel encrypted $sent connections and decrypted $got"
