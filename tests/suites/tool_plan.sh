#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket plan: the choice, its reasons and prices.  Prices change with the model, so words and order are looked at.
# check: covers=src/decide/
set -u
. tests/golden/lib.sh

for machine in dgx-h100 'nodes=4 of dgx-a100' pcie-2s cpu-2s 'nodes=16 of nvl72' mi300x; do
  for size in 8 64K 16M 1G; do
    gives 0 "$hocket" plan allreduce "$size" -m "$machine"
    narrow "plan allreduce $size -m $machine"
    for part in Runs Why Alternatives 'The machine, as the model sees it'; do
      grep -qx "$part" "$tmp/out" || complain "plan of $size on $machine has no part '$part'"
    done
    # The chosen one is the cheapest.
    [ "$(awk '/^  ALGORITHM/ { getline; print $(NF - 1) $NF }' "$tmp/out")" = "*1.00" ] ||
      complain "plan of $size on $machine does not choose the cheapest"
  done
  gives 0 "$hocket" plan -m "$machine"
  narrow "plan -m $machine"
done
gives 0 "$hocket" plan allreduce 8 -m dgx-h100
says "is a short message here"
says "A kernel for small messages runs it"
gives 0 "$hocket" plan allreduce 4G -m dgx-h100
says "The kernel that interprets programs runs it"
says "is a long message here"
says "instead."
gives 0 "$hocket" plan allreduce 1M -m 'nodes=2 of dgx-a100'
says "narrow links are those between hosts"
gives 0 "$hocket" plan allreduce 8 -m cpu-2s -n 2
says "keeps its instructions ready as steps"
gives 0 "$hocket" plan gather 64M -m cpu-2s -n 2
says "Its lanes run by turns"
says "other data goes through slots, because"
gives 0 "$hocket" plan alltoall 1M -m dgx-h100 -n 1
says "One rank alone copies"
gives 0 "$hocket" plan allreduce 1M -m 2xcpu -n 7
says "7 ranks on 1 host"
gives 0 "$hocket" plan allreduce 1M
says "on 1 host"

# The user's choices have their effect and are shown.
gives 0 env NCCL_ALGO=^tree,ring "$hocket" plan allreduce 64K -m dgx-a100
says "is excluded by NCCL_ALGO: "
gives 0 env NCCL_ALGO=ring NCCL_PROTO=Simple "$hocket" plan allreduce 64K -m dgx-a100
says "ring, protocol Simple"
gives 0 env HOCKET_BATCH_INVARIANT=1 "$hocket" plan allreduce 64M -m dgx-h100
says "HOCKET_BATCH_INVARIANT is set"
says "is not batch-invariant (HOCKET_BATCH_INVARIANT): "
gives 0 env HOCKET_BATCH_INVARIANT=1 NCCL_ALGO=ring "$hocket" plan allreduce 64M -m dgx-h100
says "none of the allowed algorithms is batch-invariant"
gives 0 env HOCKET_BATCH_INVARIANT=1 NCCL_ALGO=ring "$hocket" plan allgather 64M -m dgx-h100
says "ring, protocol"
gives 0 env HOCKET_BATCH_INVARIANT=1 "$hocket" plan reduce 64M -m dgx-h100 --json
says '"batch_invariant":true'

# Quantised values: the error bound, what cannot carry them, and fewer bytes on links.
slow="nodes=4 of 1xcpu cores=2 nic=1x1 net=eth"
gives 0 "$hocket" plan allreduce 64M -m "$slow" --ranks 4 --quantised
says "at most 1/62"
says "would quantise sums that are not whole, or give ranks different bits: "
gives 0 "$hocket" plan allreduce 64M -m "$slow" --ranks 4 --quantised --json
says '"error_bound":0.016'
gives 0 env HOCKET_QUANTISED=1 "$hocket" plan allreduce 64M -m "$slow" --ranks 4
says "at most 1/62"
gives 0 env HOCKET_QUANTISED=1 "$hocket" plan allgather 64M -m "$slow" --ranks 4
gives 2 "$hocket" plan allgather 64M -m "$slow" --quantised
says "--quantised is for an allreduce of ranks on CPUs"
gives 2 "$hocket" plan allreduce 64M -m dgx-h100 --quantised

gives 2 env NCCL_ALGO=rong "$hocket" plan allreduce 64K -m dgx-a100
says 'NCCL_ALGO: "rong" is no algorithm'

gives 0 env NCCL_TUNER_PLUGIN=nosuch "$hocket" plan allreduce 1M -m dgx-h100
says "NCCL_TUNER_PLUGIN=nosuch cannot be used"
plugin=$PWD/$HK_BUILD/plugins/libnccl-tuner-four.so
if [ -e "$plugin" ]; then
  gives 0 env NCCL_TUNER_PLUGIN="$plugin" "$hocket" plan allreduce 1M -m dgx-h100
  says "This is not simply the cheapest: as the tuner plugin says."
else
  echo "SKIP: the example plugins are not built: plan is not asked with one"
fi
printf 'allreduce, 0, 64K, *, *, tree, *, *\n' >"$tmp/rules.csv"
gives 0 env HOCKET_TUNING_FILE="$tmp/rules.csv" "$hocket" plan allreduce 8 -m dgx-h100
says "tree, protocol"
says "tuning file"

# The ranges as rules say the same when they are read again.
for machine in dgx-h100 2xcpu; do
  gives 0 "$hocket" plan -m "$machine" --rules
  cp "$tmp/out" "$tmp/rules.csv"
  gives 0 env HOCKET_TUNING_FILE="$tmp/rules.csv" "$hocket" plan -m "$machine" --rules
  cmp -s "$tmp/out" "$tmp/rules.csv" || complain "the rules of $machine are others when they are used"
done
refuses "--rules are for all sizes: leave SIZE out" plan allreduce 1M --rules
gives 0 "$hocket" plan allreduce 5000001 -m dgx-h100
says "have this decision: at that size it is the cheapest"

refuses "11 ranks, but dgx-h100 has 8 GPUs: name a machine with more hosts, as --machine 'nodes=2 of dgx-h100'" plan allreduce 1 -m dgx-h100 -n 11
refuses "--program needs COLLECTIVE and SIZE" plan --program
refuses "--rank 9, but there are 8 ranks" plan allreduce 1M -m dgx-h100 --program --rank 9
gives 0 "$hocket" plan broadcast 1M -m dgx-h100 --program --rank 3 --root 2
says ", rank 3 of 8, root 2,"
if command -v jq >/dev/null; then
  gives 0 "$hocket" plan allreduce 1M -m dgx-h100 --json
  jq -e '.plans[0] | .bytes == 1048576 and .chosen.us > 0 and .chosen.busbw_gbps > .chosen.algbw_gbps
    and (.why | length > 2) and (.alternatives | length > 5)
    and (.chosen.us == (.alternatives | map(.us // 1e9) | min))' "$tmp/out" >/dev/null || complain "--json is not as it should be"
  gives 0 "$hocket" plan -m dgx-h100 --json
  gives 0 "$hocket" plan -s --json allreduce 1M -m dgx-h100
  jq -e '.plans[0].alternatives[0].simulated_us > 0' "$tmp/out" >/dev/null || complain "--json lacks the simulated times"
  refuses "--simulate needs COLLECTIVE and SIZE" plan -s -m dgx-h100
  gives 0 "$hocket" plan --json -m dgx-h100
  jq -e '.plans | length > 100' "$tmp/out" >/dev/null || complain "--json of all sizes is short"
else
  echo "SKIP: jq is not installed: JSON is not read"
fi
finish "$cases commands behave as they should"
