#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the PTX of the GPU kernels in one place at a time, and runs the matrix (test_gpu_matrix) on it: does it notice?

    ptx_mutations.py KERNELS.ptx TEST [--quick | --all] [--only TEXT] [--list] [--jobs N] [--patience X]

A rule names functions, an instruction in them, and what is written in its place: at `each` such place, one after another, or
at `all` places of a function at once.  Of a rule's mutations the first and the last are tried, with --all every one.  A mutation that the matrix does not notice survives, and fails this.  The mutations
under EQUIVALENT are listed with the reason, and not tried.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

AT_LEAST = 60  # mutations; fewer: the rules no longer fit what nvcc writes
# A test hangs if no kernel does anything while one looks so often for what it waits for, or if it takes so many seconds of a
# processor; whole it takes less than a second, the case links eight.  Other time says nothing on a busy machine.
PASSES, HANG_CPU_S, HANG_S = 20000, 20, 600
SEEDS = (7, 8, 9)


class Rule:
    def __init__(self, kind, what, functions, pattern, new, cases, places="all", most=99, quick=False, where=None, apart=False):
        self.kind, self.what, self.functions = kind, what, re.compile(functions)
        self.pattern, self.new = re.compile(pattern), new
        self.cases, self.places, self.most, self.quick, self.where = cases.split(), places, most, quick, where
        self.apart = apart  # threads that part meet only where they synchronise


def swap(a, b):
    """Two groups of the match change places."""

    def new(m):
        text, at = m.group(0), m.start(0)
        (s1, e1), (s2, e2) = sorted((m.span(a), m.span(b)))
        s1, e1, s2, e2 = s1 - at, e1 - at, s2 - at, e2 - at
        return text[:s1] + text[s2:e2] + text[e1:s2] + text[s1:e1] + text[e2:]

    return new


def sources(line):
    return line.partition(",")[2]


def awaited_word(function, at):
    """What the load gives is a slot's number and tag, not a count of slots: it is taken apart."""
    m = re.search(r"ld\S+\s+(%rd\d+),", function[at])
    users = [line for line in function[at + 1 : at + 40] if m and re.search(m.group(1) + r"\b", sources(line))]
    return bool(users) and re.match(r"\s*(shr|cvt|mov)", users[0]) is not None


def stored_word(function, at):
    """The value is a slot's number and tag put together."""
    m = re.search(r"\], (%rd\d+);", function[at])
    makers = [line for line in function[:at] if m and re.match(r"\s*\S+\s+" + m.group(1) + ",", line)]
    return bool(makers) and "or.b64" in makers[-1]


ANY = r"."
KERNELS = r"^hk_run_"
SMALL = r"hk_run_small$|small_"  # the kernel of small messages: its rules have a case of their own, and no other rule is for it
APART = r"^(?!prepare_together$)"  # words of one rank each: for those of all see EQUIVALENT
LINES = r"^(load_any|store_all|copy_wide|reduce_wide_f32|reduce_rest)$"
DATA = r"^(copy_move|copy_wide|reduce_(rest_)?(f32|i8)|load_odd|store_odd|load_any|store_all)$"
FEW = r"^(copy_move|copy_wide|reduce_(f32|wide_bf16)|load_any|store_all)$"
R = r"(%\w+)"
RELEASE, ACQUIRE = r"(?<!multimem\.)\bst\.release\.sys", r"\bld\.acquire\.sys"

RULES = [
    # ---- an order is left out ----
    Rule("order", "words are read without acquire", APART, ACQUIRE, "ld.relaxed.sys", "order places", quick=True, where=awaited_word),
    Rule("order", "a word is stored without release", ANY, RELEASE, "st.relaxed.sys", "order places", "each", where=stored_word),
    Rule("order", "a multicast word is stored without release", ANY, r"multimem\.st\.release\.sys", "multimem.st.relaxed.sys",
         "switch", "each", where=stored_word),
    Rule("order", "a fence is left out", ANY, r"fence\.acq_rel\.sys;", "", "order places switch", "each", quick=True),
    Rule("order", "an alias fence is left out", ANY, r"fence\.proxy\.alias;", "", "switch", "each"),
    # ---- a narrow scope ----
    Rule("scope", "words are acquired from the GPU alone", APART, ACQUIRE, "ld.acquire.gpu", "order places", where=awaited_word),
    Rule("scope", "words are acquired from the block alone", APART, ACQUIRE, "ld.acquire.cta", "order places", where=awaited_word),
    Rule("scope", "releases of the GPU's scope", ANY, RELEASE, "st.release.gpu", "order places"),
    Rule("scope", "releases of the block's scope", ANY, RELEASE, "st.release.cta", "order places"),
    Rule("scope", "multicast releases of the GPU's scope", KERNELS, r"multimem\.st\.release\.sys", "multimem.st.release.gpu", "switch"),
    Rule("scope", "fences of the GPU's scope", ANY, r"fence\.acq_rel\.sys", "fence.acq_rel.gpu", "order places", "each"),
    Rule("scope", "fences of the block's scope", ANY, r"fence\.acq_rel\.sys", "fence.acq_rel.cta", "order places", "each"),
    Rule("scope", "signals are stored for the GPU", ANY, r"(?<!multimem\.)\bst\.relaxed\.sys\.global\.u64", "st.relaxed.gpu.global.u64",
         "order places"),
    Rule("scope", "signals and lines for all ranks are stored for the GPU", ANY, r"multimem\.st\.relaxed\.sys", "multimem.st.relaxed.gpu", "switch"),
    Rule("scope", "signals are read from the GPU", ANY, r"\bld\.relaxed\.sys\.global\.u64", "ld.relaxed.gpu.global.u64", "order places"),
    Rule("scope", "lines are stored for the block", r"^copy_wide$", r"st\.volatile\.global", "st.relaxed.cta.global", "order types"),
    Rule("scope", "lines are stored for the GPU", LINES, r"st\.volatile\.global", "st.relaxed.gpu.global", "order types"),
    Rule("scope", "lines are read from the block", r"^copy_wide$", r"ld\.volatile\.global", "ld.relaxed.cta.global", "order types"),
    Rule("scope", "lines are read from the GPU", LINES, r"ld\.volatile\.global", "ld.relaxed.gpu.global", "order types"),
    # ---- a weak access ----
    Rule("weak", "lines are stored by weak stores", LINES, r"st\.volatile\.global", "st.global", "order types"),
    Rule("weak", "lines are read by weak loads", LINES, r"ld\.volatile\.global", "ld.global", "order types"),
    Rule("weak", "signals are stored by weak stores", ANY, r"(?<!multimem\.)\bst\.re(?:lease|laxed)\.sys\.global\.u64", "st.global.u64", "order places"),
    Rule("weak", "signals are polled by weak loads", ANY, r"ld\.(?:acquire|relaxed)\.sys\.global\.u64", "ld.global.u64", "order places"),
    Rule("weak", "the abort flag is read by weak loads", ANY, r"ld\.relaxed\.sys\.global\.u32", "ld.global.u32", "ends", "together"),
    # ---- barriers and votes ----
    Rule("barrier", "a barrier of the block is left out", r"^hk_run_batch", r"bar\.sync\s+0;|barrier\.sync\s+0;", "",
         "order places switch types links", "each"),
    Rule("barrier", "a barrier of the block is left out", r"^hk_run_transfers", r"bar\.sync\s+0;|barrier\.sync\s+0;", "",
         "places order", "each", most=3),
    Rule("barrier", "a barrier that reduces is left out", ANY, r"bar\.red\.or\.pred\s+(%p\d+), 0, (%p\d+);", r"mov.pred \1, \2;",
         "order places ends", "each"),
    Rule("barrier", "a warp's barrier after its counters is left out", r"^finish$", r"bar\.warp\.sync\s+[^;]*;", "", "order", apart=True),
    Rule("barrier", "the barriers of a warp before its LL128 lines are left out", r"^copy_wide$|^reduce_wide_f32$", r"bar\.warp\.sync\s+[^;]*;", "",
         "order types", quick=True, apart=True),
    Rule("barrier", "threads vote for themselves alone", r"^copy_wide$|^reduce_wide_f32$", r"vote\.sync\.any\.pred\s+(%p\d+), (%p\d+), \S+;", r"mov.pred \1, \2;",
         "order types ends"),
    Rule("barrier", "a vote counts half of the warp", r"^copy_wide$", r"(vote\.sync\.any\.pred\s+%p\d+, %p\d+, )\S+;", r"\g<1>65535;", "order"),
    # ---- another state space ----
    Rule("space", "shared memory is read as global", KERNELS, r"ld\.shared\.u64", "ld.global.u64", "order places"),
    Rule("space", "shared memory is written as global", KERNELS, r"st\.shared\.u64", "st.global.u64", "order places"),
    Rule("space", "shared memory is read as local", r"^hk_run_batch", r"ld\.shared\.u32", "ld.local.u32", "order places"),
    Rule("space", "global vectors are read as shared", FEW, r"ld\.global\.v([24])", r"ld.shared.v\1", "order types places"),
    Rule("space", "global vectors are written as shared", FEW, r"st\.global\.v([24])", r"st.shared.v\1", "order types places"),
    Rule("space", "an address of shared memory is taken as generic", KERNELS, r"cvta\.shared\.u64", "mov.u64", "order places"),
    Rule("space", "a generic address is taken as one of shared memory", r".", r"cvta\.to\.shared\.u64", "mov.u64", "order places", "together"),
    Rule("space", "a thread's own memory is read as shared", KERNELS, r"ld\.local\.(u32|u64|v)", r"ld.shared.\1", "order places"),
    # ---- alignment ----
    Rule("alignment", "vectors are read 4 bytes on", FEW, r"(ld\.global\.v4.*\[%rd\d+)(\+\d+)?\]", r"\1+4]", "order types places", quick=True),
    Rule("alignment", "vectors are written 8 bytes on", FEW, r"(st\.global\.v4.*\[%rd\d+)(\+\d+)?\]", r"\1+8]", "order types places"),
    Rule("alignment", "lines are stored 8 bytes on", LINES, r"(st\.volatile\.global\.v4.*\[%rd\d+)\]", r"\1+8]", "order types"),
    Rule("alignment", "halves of vectors are read 4 bytes on", FEW, r"(ld\.global\.v2.*\[%rd\d+)\]", r"\1+4]", "types order places"),
    # ---- operands ----
    Rule("operand", "words of a stored vector change places", FEW, r"st\.global\.v4\S+\s+\[[^]]*\], \{" + R + "," + R + "," + R, swap(1, 3), "order types places"),
    Rule("operand", "words of a vector that is read change places", FEW, r"ld\.global\.v4\S+\s+\{" + R + "," + R, swap(1, 2), "order types places"),
    Rule("operand", "a line's flag and data change places", r"^store_all$", r"st\.volatile\.global\.v4\S+\s+\[[^]]*\], \{" + R + "," + R, swap(1, 2), "order"),
    Rule("operand", "a difference is the other way round", DATA, r"sub\.s(?:32|64)\s+%\w+, " + R + ", " + R, swap(1, 2), "types order places"),
    Rule("operand", "a choice is the other way round", r"(?!load_odd|store_odd)" + DATA, r"selp\.\S+\s+%\w+, (%?\w+), (%?\w+), ", swap(1, 2), "types order places"),
    Rule("operand", "the greater for the lesser", r"^reduce_(u32|i32|f32|i64|f64)$", r"\bmin\.", "max.", "types"),
    Rule("operand", "the lesser for the greater", r"^reduce_rest$", r"\bmax\.", "min.", "types"),
    Rule("operand", "a comparison is the other way round", r"^(copy_wide|reduce_wide_f32|reduce_rest|copy_move)$", r"setp\.lt\.", "setp.ge.", "order types"),
    Rule("operand", "shifts go the other way", r"^(load_odd|store_odd|reduce_i8|reduce_rest)$", r"\bshl\.b", "shr.u", "types places"),
    Rule("operand", "signs are lost", r"^reduce_i8$|^reduce_rest$", r"cvt\.s32\.s8|cvt\.s16\.s8", "cvt.u32.u8", "types"),
    Rule("operand", "sums are products", r"^reduce_(wide_|rest_)?(f32|f64)$", r"add\.rn\.f", "mul.rn.f", "types"),
    Rule("operand", "a sum in the switch is a minimum", r"^add_in_switch$", r"global\.add\.u", "global.min.u", "switch"),
    Rule("operand", "halves are added up as others", r"^add_in_switch$", r"v4\.bf16x2", "v4.f16x2", "switch"),
    Rule("operand", "every sum in the switch is one of fp64", r"^add_in_switch$", r"global\.add\.u64", "global.add.f64", "switch"),
    # ---- the kernel of small messages ----
    Rule("weak", "small messages are stored by weak stores", r"^hk_run_small$", r"st\.volatile\.global", "st.global", "small"),
    Rule("weak", "the abort flag is read by weak loads in small messages", r"^small_f32$", r"ld\.relaxed\.sys\.global\.u32", "ld.global.u32", "small"),
    Rule("weak", "small messages are read by weak loads", r"^small_f32", r"ld\.volatile\.global", "ld.global", "small"),
    Rule("scope", "small messages are stored for the GPU", r"^hk_run_small$", r"st\.volatile\.global", "st.relaxed.gpu.global", "small"),
    Rule("scope", "small messages are read from the GPU", r"^small_f32", r"ld\.volatile\.global", "ld.relaxed.gpu.global", "small"),
    Rule("barrier", "a small message's barrier is left out", SMALL, r"bar\.red\.or\.pred\s+(%p\d+), 0, (%p\d+);", r"mov.pred \1, \2;",
         "small", "each", most=1, quick=True),
    Rule("space", "shared memory of small messages is read as global", SMALL, r"ld\.shared\.v?[24u]", "ld.global.u", "small"),
    Rule("space", "a small message is read as shared", SMALL, r"ld\.global\.v2", "ld.shared.v2", "small"),
    Rule("space", "a small message is written as shared", SMALL, r"st\.global\.v2", "st.shared.v2", "small"),
    Rule("alignment", "a small message is read 4 bytes on", SMALL, r"(ld\.global\.v2.*\[%rd\d+)\]", r"\1+4]", "small"),
    Rule("operand", "a small message's flag and data change places", r"^hk_run_small$", r"st\.volatile\.global\.v4\S+\s+\[[^]]*\], \{" + R + "," + R, swap(1, 2), "small"),
    Rule("operand", "sums of small messages are products", r"^small_f", r"add\.rn\.f", "mul.rn.f", "small"),
    Rule("operand", "the lesser for the greater in small messages", r"^small_(u32|i32|i64)$", r"\bmax\.", "min.", "small"),
]

# What is not tried: no run can notice it, or none has; and why.
EQUIVALENT = [
    ("a head is read without acquire, or stored without release", ANY, ACQUIRE + "|" + RELEASE,
     "a load has its value at once, never after a later store of the thread: tests/litmus, credit_bound"),
    ("the words of all ranks are read without acquire, or for a narrow scope", r"^prepare_together$", ACQUIRE,
     "the sum that follows comes from the switch, past the L1 cache, and a load has its value at once: tests/litmus, switch_parts"),
    ("barriers of a transfer after the first three, and of its warps, are left out", r"^hk_run_transfers", r"bar\.(warp\.)?sync",
     "they are for long programs, many operands and many links; a transfer is one instruction with two operands, on one link"),
    ("a warp's barrier after links or references is left out", r"^hk_run_batch$", r"bar\.warp\.sync",
     "no case has more links than fit, or an instruction that lends to several"),
    ("the second barrier of a small message is left out, or its heads are weak", SMALL, r"bar\.red|(ld|st)\.relaxed\.sys\.global\.u64",
     "ranks that all send to each other never wait for credits; test_gpu_small waits for them, and TSan sees the barrier (gpu_mutations)"),
    ("a choice is the other way round", r"^(load|store)_odd$", r"selp\.b16",
     "a short vector goes as a whole one does, which goes byte by byte: no result has the bytes next to it"),
    ("the first error is noted by an exchange of narrow scope", r"^report$", r"atom\.sys", "exchanges of the host are always whole"),
]


class Kernels:
    """The PTX, and its functions: short name to lines [first, last)."""

    def __init__(self, path):
        with open(path) as f:
            self.lines = f.read().split("\n")
        self.functions, start, name = [], None, None
        for i, line in enumerate(self.lines):
            m = re.match(r"(?:\.visible |\.weak )*\.(?:func|entry)\b(?:\s*\([^)]*\))?\s*([\w$]+)", line)
            if m:
                start, name = i, self.short(m.group(1))
            elif line == "}" and start is not None:
                self.functions.append((name, start, i + 1))
                start = None

    @staticmethod
    def short(mangled):
        m = re.match(r"_ZN\d+_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(\d+)(\w+)", mangled)
        return m.group(2)[: int(m.group(1))] if m else mangled

    def sites(self, rule):
        """Lists of lines: those of one mutation each, with the function."""
        found = []
        for name, first, last in self.functions:
            if not rule.functions.search(name) or bool(re.match(SMALL, name)) != (rule.cases == ["small"]):
                continue
            function = self.lines[first:last]
            at = [first + k for k, line in enumerate(function)
                  if rule.pattern.search(line) and (not rule.where or rule.where(function, k))]
            if rule.places == "each":
                found += [(name, [i]) for i in at[: rule.most]]
            elif at:
                found.append((name, at))
        if rule.places == "together" and found:
            return [("all functions", [i for _, at in found for i in at])]
        return found

    def mutant(self, rule, at):
        lines = list(self.lines)
        for i in at:
            lines[i] = rule.pattern.sub(rule.new, lines[i])
        return "\n".join(lines)


def some_of(sites, a):
    """Those of a rule that are tried."""
    if a.quick:
        return sites[:1]
    return sites if a.all or len(sites) < 2 else [sites[0], sites[-1]]


def run(test, folder, case, patience, seed, apart):
    """What the case of the matrix says of the kernels there: '', or how it failed."""
    env = dict(os.environ, CUDAEMU_PTX=folder, CUDAEMU_PATIENCE=str(PASSES), CUDAEMU_WEAK="2", CK_RUN_CASE=case, MATRIX="links",
               CK_VERBOSITY="normal", NCCL_DEBUG="NONE",
               CUDAEMU_SEED=str(seed), CUDAEMU_APART=str(int(apart)))
    env.pop("HOCKET_DEVICE", None)
    with tempfile.TemporaryFile() as out:
        limit_cpu = "ulimit -t %d; exec \"$0\"" % (HANG_CPU_S * patience)
        p = subprocess.Popen(["bash", "-c", limit_cpu, test], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        try:
            rc = p.wait(HANG_S * patience)
        except subprocess.TimeoutExpired:
            rc = None
            os.killpg(p.pid, 9)
            p.wait()
        try:  # Check's children, if it was killed itself
            os.killpg(p.pid, 9)
        except ProcessLookupError:
            pass
        out.seek(0)
        text = out.read().decode(errors="replace")
    if rc == 0:
        return ""
    if rc is None or "does anything" in text or "signal 24 " in text or "signal 9 " in text:
        return "hangs"
    said = re.search(r"ptxemu: .*", text) or re.search(r":[EF]:.*", text)
    return said.group(0) if said else "exit code %d" % rc


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ptx")
    p.add_argument("test")
    p.add_argument("--quick", action="store_true", help="one mutation of some rules")
    p.add_argument("--all", action="store_true", help="every mutation of each rule")
    p.add_argument("--only", default="", help="those whose description has this text")
    p.add_argument("--list", action="store_true")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--patience", type=float, default=float(os.environ.get("PATIENCE", 1)))
    a = p.parse_args()
    kernels = Kernels(a.ptx)
    work, unused = [], []
    for rule in RULES:
        if a.quick and not rule.quick:
            continue
        sites = kernels.sites(rule)
        if not sites:
            unused.append(rule.what)
        for name, at in some_of(sites, a):
            text = "%-9s %s: %s, line%s" % (rule.kind, rule.what, name, " %d" % (at[0] + 1) if len(at) == 1 else
                                            "s %d to %d (%d)" % (at[0] + 1, at[-1] + 1, len(at)))
            if a.only in text:
                work.append((rule, at, text))
    if a.list:
        print("\n".join(text for _, _, text in work))
        print("%d mutations; not in this PTX: %s" % (len(work), "; ".join(unused) or "none"))
        return 0

    root = tempfile.mkdtemp()
    begin = time.time()

    def attempt(number, cases, text, apart=False):
        folder = os.path.join(root, str(number))
        os.mkdir(folder)
        with open(os.path.join(folder, "kernels.ptx"), "w") as f:
            f.write(text)
        said = ""
        for seed in SEEDS:  # what is left to chance may take another try
            for case in cases:
                said = said or run(a.test, folder, case, a.patience, seed, apart)
            if number == "whole":
                break
        shutil.rmtree(folder)
        return said

    try:
        cases = sorted({c for rule, _, _ in work for c in rule.cases})
        said = attempt("whole", [] if a.quick else cases, "\n".join(kernels.lines))
        if said:
            print("the matrix fails without a mutation: " + said)
            return 1
        survived, hung = 0, 0
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            tries = {pool.submit(lambda n, rule, at: attempt(n, rule.cases, kernels.mutant(rule, at), rule.apart), n, rule, at): text
                     for n, (rule, at, text) in enumerate(work)}
            for one in concurrent.futures.as_completed(tries):
                text, said = tries[one], one.result()
                survived += not said
                hung += said == "hangs"
                if not a.quick or not said:
                    print("%-8s  %s%s" % ("noticed" if said else "SURVIVED", text, "  [%s]" % said[:160] if said else ""), flush=True)
    finally:
        shutil.rmtree(root)
    if not a.quick and not a.only:
        for what, functions, pattern, why in EQUIVALENT:
            n = sum(bool(re.search(pattern, line)) for name, first, last in kernels.functions if re.search(functions, name)
                    for line in kernels.lines[first:last])
            print("not tried  %s (at most %d places): %s" % (what, n, why))
        print("no place for: %s" % ("; ".join(unused) or "none"))
    print("%d mutations of the PTX, %d not noticed, %d noticed as hangs, %d s" % (len(work), survived, hung, time.time() - begin))
    if not a.quick and not a.only and len(work) < AT_LEAST:
        print("fewer than %d: the rules no longer fit what nvcc writes" % AT_LEAST)
        return 1
    return survived != 0


sys.exit(main())
