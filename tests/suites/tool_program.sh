#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket program: proofs of files, and where they say that a fault is; prices, pictures, and the search for programs.
# check: covers=src/program/,src/formats/
set -u
. tests/golden/lib.sh

refuses "something is missing: hocket program COMMAND" program
refuses "did you mean 'check'?" program chek
refuses "there is no option '--nosuch'" program check --nosuch file
gives 0 "$hocket" program check --help
cp "$tmp/out" "$tmp/help"
gives 0 "$hocket" help program check
cmp -s "$tmp/out" "$tmp/help" || complain "hocket help program check and hocket program check --help differ"

# What plan writes, check reads.
gives 0 sh -c "'$hocket' plan allreduce 64M -m 'nodes=2 of 4xa100:nvswitch2 nic=4x200' --program | '$hocket' program check -"
says "AllReduce"
says ": proved"

cat >"$tmp/pair.txt" <<'TEXT'
# two ranks that swap halves
AllReduce pair, rank 0 of 2, message split into 2, scratch 0
lane 0
  links: 0=send(1) 1=recv(1)
     0: send(1)[b1] <- in[b1]
     1: out[b0], send(1)[b0] <- recv(1)[b0] + in[b0], final
     2: out[b1] <- recv(1)[b1]
AllReduce pair, rank 1 of 2, message split into 2, scratch 0
lane 0
  links: 0=send(0) 1=recv(0)
     0: send(0)[b0] <- in[b0]
# this one adds up block 1
     1: out[b1], send(0)[b1] <- recv(0)[b1] + in[b1], final
     2: out[b0] <- recv(0)[b0]
TEXT
gives 0 "$hocket" program check "$tmp/pair.txt"
says "AllReduce pair, 2 ranks: proved, order of sums: sides"
gives 1 "$hocket" program check --fixed-order "$tmp/pair.txt"
says "it leaves in out[b0] the ranks' sum 1 + 0, not"
sed 's/recv(0)\[b1\] + in\[b1\], final/recv(0)[b1], final/' "$tmp/pair.txt" >"$tmp/wrong.txt"
gives 1 "$hocket" program check "$tmp/wrong.txt" "$tmp/pair.txt"
says "wrong.txt:13: AllReduce pair, 2 ranks: rank 1 lane 0 instruction 1"
says ">   13 |      1: out[b1], send(0)[b1] <- recv(0)[b1], final"
says "AllReduce pair, 2 ranks: proved"
sed 's/<- in\[b0\]/< in[b0]/' "$tmp/pair.txt" >"$tmp/syntax.txt"
gives 1 "$hocket" program check "$tmp/syntax.txt"
says "line 11: "
head -n 7 "$tmp/pair.txt" >"$tmp/half.txt"
gives 1 "$hocket" program check "$tmp/half.txt"
says "half.txt:2: the program of rank 1 of 2 is missing"
gives 2 "$hocket" program check "$tmp/none.txt"
says "$tmp/none.txt cannot be read: No such file"
gives 1 "$hocket" program check /dev/null
says "holds no program"
echo 'AllReduce x, rank 0 of 0, message split into 1, scratch 0' >"$tmp/empty.txt"
gives 1 "$hocket" program check "$tmp/empty.txt"
says "a collective of 0 ranks"
printf 'AllReduce\0' >"$tmp/zero.txt"
gives 2 "$hocket" program check "$tmp/zero.txt"
says "is no text"
# JSON: the two ranks of a program differ in their numbers only.
swap() { # rank, peer
  echo "{\"collective\":\"AllGather\",\"algorithm\":\"swap\",\"rank\":$1,\"ranks\":2,\"root\":0,\"split\":false,
    \"blocks\":{\"in\":1,\"out\":2,\"scratch\":0},\"links\":[{\"kind\":\"send\",\"peer\":$2,\"lane\":0,\"channel\":0},
    {\"kind\":\"recv\",\"peer\":$2,\"lane\":0,\"channel\":0}],\"lanes\":[[
    {\"to\":[{\"space\":\"send\",\"link\":0,\"block\":$1},{\"space\":\"out\",\"block\":$1}],\"from\":[{\"space\":\"in\",\"block\":0}]},
    {\"to\":[{\"space\":\"out\",\"block\":$2}],\"from\":[{\"space\":\"recv\",\"link\":1,\"block\":$2}]}]]}"
}
echo "{\"hocket\":1,\"programs\":[$(swap 0 1),$(swap 1 0)]}" >"$tmp/swap.json"
# Without jansson what to install is said: the loader looks no further once it meets a broken file.
mkdir "$tmp/broken" && : >"$tmp/broken/libjansson.so.4"
gives 1 env LD_LIBRARY_PATH="$tmp/broken" "$hocket" program check "$tmp/swap.json"
says 'install jansson (Debian: libjansson4), which reads JSON:'
if "$hocket" program check "$tmp/swap.json" 2>&1 | grep -q 'install jansson'; then
  echo "SKIP: jansson is not installed: JSON is not read"
else
  gives 0 "$hocket" program check "$tmp/swap.json"
  says "AllGather swap, 2 ranks: proved"
  sed 's/"root"/"rot"/' "$tmp/swap.json" >"$tmp/key.json"
  gives 1 "$hocket" program check "$tmp/key.json"
  says 'key.json: programs[0]: the key "rot" is unknown'
  echo '{"name":"x","collective":"allgather","protocol":"Simple","inplace":true,"gpus":[]}' >"$tmp/plan.json"
  gives 1 "$hocket" program check "$tmp/plan.json"
  says "plan.json: gpus: 0 gpus; 2 to 64 can be read"
fi

# show and convert
gives 0 "$hocket" program show "$tmp/pair.txt"
says "pair: AllReduce of 2 ranks"
says "order of sums   sides"
says "0-1        1      2             3         2     1         1    0.5"
narrow "program show"
gives 2 "$hocket" program show "$tmp/wrong.txt"
says "rank 1 lane 0 instruction 1"
gives 0 "$hocket" program show "$tmp/pair.txt" --program --rank 1
says "AllReduce pair, rank 1 of 2"
hasnt "rank 0 of 2" "--rank 1"
refuses "--rank 2, but there are 2 ranks" program show "$tmp/pair.txt" --program --rank 2
refuses "cannot be read: No such file" program show "$tmp/none.txt"
gives 0 "$hocket" program convert "$tmp/pair.txt" -o "$tmp/again.txt"
gives 0 "$hocket" program show "$tmp/pair.txt" --program
cmp -s "$tmp/out" "$tmp/again.txt" || complain "convert and show --program write different programs"
gives 0 "$hocket" program check "$tmp/again.txt"
gives 0 "$hocket" program convert "$tmp/pair.txt" --to json -o "$tmp/pair.json"
if "$hocket" program check "$tmp/pair.json" 2>&1 | grep -q 'libjansson'; then
  echo "SKIP: jansson is not installed (libjansson4): no JSON is read"
else
  gives 0 "$hocket" program convert "$tmp/pair.json" -o "$tmp/again.txt"
  gives 0 "$hocket" program show "$tmp/pair.txt" --program
  cmp -s "$tmp/out" "$tmp/again.txt" || complain "programs that were JSON are others"
fi
gives 2 "$hocket" program convert "$tmp/pair.txt" -o "$tmp/nofolder/x.txt"
says "x.txt cannot be written: No such file"

# price: the file's program and the built-in choice
gives 0 "$hocket" program price "$tmp/pair.txt" -m 2xa100:nvswitch2 -b 64K -e 1M
says "2xa100:nvswitch2: AllReduce on 2 ranks"
[ "$(grep -cE '^ +[0-9]+ [KM]iB  pair ' "$tmp/out")" = 3 ] || complain "price does not show three sizes"
narrow "program price"
gives 0 "$hocket" program price "$tmp/pair.txt" -m dgx-h100 -b 64K -e 64K -p ll --channels 2
says "  pair       LL               2"
refuses "2 ranks, but 1xh100:nvswitch has 1 GPUs" program price "$tmp/pair.txt" -m 1xh100:nvswitch
refuses "makes an incomplete value final" program price "$tmp/wrong.txt" -m dgx-h100

# draw: a box for each instruction, a line for each message.
gives 0 "$hocket" program draw "$tmp/pair.txt" -s 16K -m '2xa100:nvswitch2 nic=2x200' -o "$tmp/pair.svg" --timeline "$tmp/trace.json"
[ "$(grep -c '<title>rank' "$tmp/pair.svg"):$(grep -c '^<line' "$tmp/pair.svg")" = 6:4 ] || complain "a picture of two ranks has other boxes or lines"
grep -qF '<title>rank 0, instruction 0: send(1)[b1] &lt;- in[b1]; wave 0' "$tmp/pair.svg" || complain "a box has no text of its instruction"
gives 0 "$hocket" program draw "$tmp/pair.txt" -p ll
says "2xh100:nvswitch, protocol LL, 1 channel"
says "</svg>"
refuses "a picture can show" program draw "$tmp/pair.txt" -s 4G
cat "$tmp/pair.txt" "$tmp/pair.txt" >"$tmp/two.txt"
refuses "holds programs of 2 collectives" program draw "$tmp/two.txt"
refuses "holds programs of 2 collectives" program convert "$tmp/two.txt" --to json

# search: a program for a machine, the same one each time, no slower than what it says.
search() { gives 0 "$hocket" program search -m dgx-a100 -s 1M "$@"; }
search -o "$tmp/found.txt"
says "the built-in choice, direct"
says "The fastest is ring, 4 copies, blocks in 2 pieces: 24."
narrow "program search"
cp "$tmp/out" "$tmp/said"
cp "$tmp/found.txt" "$tmp/first.txt"
search -o "$tmp/found.txt"
cmp -s "$tmp/out" "$tmp/said" || complain "the same search says something else"
cmp -s "$tmp/found.txt" "$tmp/first.txt" || complain "the same search finds something else"
gives 0 "$hocket" program check "$tmp/found.txt"
says "AllReduce ring-4x2, 8 ranks: proved"
gives 0 "$hocket" program price "$tmp/found.txt" -m dgx-a100 -b 1M -e 1M
has '^  1 MiB  ring-4x2 .*  24\.[0-9]+ us ' "price of what was found"
gives 0 "$hocket" program search -m dgx-a100 -s 1M -o -
cmp -s "$tmp/out" "$tmp/first.txt" || complain "-o - does not write the programs to stdout"
search --budget 3
says "3 candidates were tried."
gives 0 "$hocket" program search -c broadcast -m 8xa100:pcie2 -n 4 -s 2M -o "$tmp/tree.txt"
says "Nothing is faster than the built-in choice, tree"
gives 0 "$hocket" program check "$tmp/tree.txt"
gives 0 "$hocket" program search -c reducescatter -m '1xcpu cores=4' -s 1M
says "NCCL_ALGO=direct selects it without a file."
# Every collective has candidates with other orders, copies, pieces and pairs; what remains is proved again from the file.
for coll in allgather reducescatter alltoall gather scatter reduce; do
  gives 0 "$hocket" program search -c $coll -m 'nodes=2 of 2xh100:nvswitch nic=2x400' -s 1M --budget 40 -o "$tmp/found.txt"
  gives 0 "$hocket" program check "$tmp/found.txt"
done
refuses "search for these" program search -c alltoallv -m dgx-h100
refuses "a search is for 2 to" program search -m 1xh100:nvswitch

echo '<algo/>' >"$tmp/algo.xml"
gives 1 "$hocket" program check "$tmp/algo.xml"
says "ngpus"

if command -v python3 >/dev/null; then
  python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$tmp/pair.svg" || complain "the picture is no XML"
else
  echo "SKIP: python3 is not installed: the picture is not read"
fi
if command -v jq >/dev/null; then
  jq -e '.traceEvents | length == 6' "$tmp/trace.json" >/dev/null || complain "the timeline has other instructions"
  search --json
  jq -e '.faster and .us < .built_in_us and .tried > 40 and .program == "ring, 4 copies, blocks in 2 pieces"' "$tmp/out" >/dev/null ||
    complain "--json of the search is not as it should be"
  gives 0 "$hocket" program price --json "$tmp/pair.txt" -m 2xa100:nvswitch2 -b 64K -e 64K
  jq -e '.[0].results[0] | .bytes == 65536 and .program.algorithm == "pair" and .built_in.us > 0 and .ratio > 0' "$tmp/out" >/dev/null ||
    complain "--json of prices is not as it should be"
  gives 1 "$hocket" program check --json "$tmp/wrong.txt"
  got=$(jq -c '.proofs[0] | [.proved, .rank, .lane, .instruction, .line]' "$tmp/out")
  [ "$got" = "[false,1,0,1,13]" ] || complain "--json says $got of the wrong program"
  gives 1 "$hocket" program check --json "$tmp/syntax.txt" "$tmp/pair.txt"
  got=$(jq -c '[.proved, (.proofs[0] | .proved, .file[-10:]), .proofs[1].proved]' "$tmp/out")
  [ "$got" = '[false,false,"syntax.txt",true]' ] || complain "--json says $got of a file that is no program"
else
  echo "SKIP: jq is not installed: JSON is not read"
fi
finish "$cases commands behave as they should"
