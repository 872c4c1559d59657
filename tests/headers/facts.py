# SPDX-License-Identifier: Apache-2.0
"""Prints a C program that prints the interface in NCCL's header: every constant, enumerator, size and offset, one a line.

facts.py NCCL_H HEADER: the names are those in NCCL_H.  The program includes HEADER, so that the same names of two headers can be
compared.  If HEADER is another file, the program also declares all functions of NCCL_H again: a compiler refuses them if they differ.
"""
import re
import sys

text = open(sys.argv[1]).read()
text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S).replace("\\\n", " ")
code = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)

names = [name for name, value in re.findall(r"^#define[ \t]+(NCCL_\w+)[ \t]+(\S+)", text, flags=re.M)
         if not value.startswith(("{", '"', "NULL")) and "UNDEF_FLOAT" not in name]
for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", code, flags=re.S):
    names += re.findall(r"(?:^|,)\s*(\w+)\s*(?==|,|$)", body)
facts = [(name, f"(long long)({name})") for name in names]

for body, name in re.findall(r"typedef\s+struct\s*\w*\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*(\w+)\s*;", code):
    facts.append((f"sizeof {name}", f"(long long)sizeof({name})"))
    for field in re.split(r";", re.sub(r"\{[^{}]*\}", "", body)):
        found = re.search(r"(\w+)\s*(\[[^]]*\])?\s*$", field.strip())
        if found:
            member = f"{name}, {found.group(1)}"
            facts.append((f"offsetof {member}", f"(long long)offsetof({member})"))

print(f'#include <stdio.h>\n#include <stddef.h>\n#include "{sys.argv[2]}"')
if sys.argv[1] != sys.argv[2]:
    for declaration in re.findall(r"(?:ncclResult_t|const\s+char\s*\*|void)\s+p?nccl\w+\s*\([^;{]*\)\s*;", code):
        print(" ".join(declaration.split()))
print("int main(void) {")
for what, value in facts:
    print(f'  printf("{what} %lld\\n", {value});')
print("  return 0;\n}")
