# SPDX-License-Identifier: Apache-2.0
"""Copies NVIDIA's nccl_device headers and replaces their inline PTX by calls of device_shim.h, so that a C++ compiler takes them.

inline.py FROM TO
"""
import os
import re
import sys

KNOWN = [
    (r"mov\.u32 %0, %%laneid;", "{0} = emu_laneid();"),
    (r"mov\.u32 %0, %%lanemask_lt;", "{0} = emu_lanemask_lt();"),
    (r"multimem\.red\.\w+\.sys\.add\.u32 \[%0\],1;", "emu_multimem_add({0}, 1);"),
    (r"st\.(relaxed\.sys|volatile)\.v4\.u32 \[%0\],\{%1,%3,%2,%3\};", "emu_store4({0}, {1}, {3}, {2}, {3});"),
    (r"ld\.(relaxed\.sys|acquire\.sys|volatile)\.v4\.u32 \{%0,%1,%2,%3\},\[%4\];?",
     "{{ uint4 got = emu_load4({4}); {0} = got.x; {1} = got.y; {2} = got.z; {3} = got.w; }}"),
]


def end_of(text, at):
    """After the parenthesis that closes the one at `at`."""
    depth, quoted = 0, False
    while True:
        c = text[at]
        if c == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (c == "(") - (c == ")")
        at += 1
        if depth == 0:
            return at


def call(body):
    """The call that stands for the asm statement with this text between its parentheses."""
    code = "".join(re.findall(r'"([^"]*)"', re.match(r'\s*((?:"[^"]*"\s*)+)', body).group(1)))
    operands = []
    for found in re.finditer(r'"[=+]?[lrhfdn]+"\s*\(', body):
        operands.append(body[found.end():end_of(body, found.end() - 1) - 1])
    for pattern, shim in KNOWN:
        if re.fullmatch(pattern, code):
            if "bufmc" in operands[0]:  # the only stores to multicast addresses
                shim = shim.replace("emu_store4", "emu_multimem_store4")
            return shim.format(*operands)
    return 'emu_unknown("' + code.replace("\\", "\\\\").replace("\n", " ")[:40] + '");'


def convert(text):
    out, at = "", 0
    for found in re.finditer(r"\basm\s*(?:volatile|__volatile__)?\s*\(", text):
        if found.start() < at or text.rfind("#define", text.rfind("\n", 0, found.start()), found.start()) >= 0:
            continue
        end = end_of(text, found.end() - 1)
        body = text[found.end():end - 1]
        if "#" in body or not re.match(r'\s*"', body):
            continue
        out += text[at:found.start()] + call(body)
        at = text.index(";", end - 1) + 1
    return out + text[at:]


for folder, _, files in os.walk(sys.argv[1]):
    to = os.path.join(sys.argv[2], os.path.relpath(folder, sys.argv[1]))
    os.makedirs(to, exist_ok=True)
    for name in files:
        with open(os.path.join(folder, name)) as source, open(os.path.join(to, name), "w") as target:
            target.write(convert(source.read()))
