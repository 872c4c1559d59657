# SPDX-License-Identifier: Apache-2.0
# Writes a ring's allreduce of n gpus in MSCCL's XML: awk -v n=4 -f msccl-ring.awk
BEGIN {
  printf "<algo name=\"written\" proto=\"Simple\" nchannels=\"1\" ngpus=\"%d\" coll=\"allreduce\" nchunksperloop=\"%d\">\n", n, n
  for (g = 0; g < n; g++) {
    printf "<gpu id=\"%d\" i_chunks=\"%d\" o_chunks=\"%d\" s_chunks=\"0\">\n", g, n, n
    printf "<tb id=\"0\" send=\"%d\" recv=\"%d\" chan=\"0\">\n", (g + 1) % n, (g + n - 1) % n
    for (k = 0; k < 2 * n - 1; k++) {
      type = k == 0 ? "s" : k < n - 1 ? "rrs" : k == n - 1 ? "rrcs" : k < 2 * n - 2 ? "rcs" : "r"
      c = (g + 2 * n - k) % n
      printf "<step s=\"%d\" type=\"%s\" srcbuf=\"i\" srcoff=\"%d\" dstbuf=\"o\" dstoff=\"%d\" cnt=\"1\"/>\n", k, type, c, c
    }
    print "</tb></gpu>"
  }
  print "</algo>"
}
