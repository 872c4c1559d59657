# SPDX-License-Identifier: Apache-2.0
"""Runs what a page shows: docs.py PAGE FOLDER

A block of Python whose first line is a comment with a file's name becomes that file in the folder. In blocks of the
kind "console" each line after "$ " is run there. It must end well, and print the lines that stand below it in any order
(that of ranks is not known); nothing stands below where figures differ. A command that is not installed is a SKIP.
"""
import re
import shutil
import subprocess
import sys


def words(command):
    """The first word of a command that is no setting of a variable."""
    return next((w for w in command.split() if "=" not in w and w != "export"), "")


def main(page, folder):
    text = open(page).read()
    ran = 0
    for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S):
        name = re.match(r"# (\w+\.py)\n", body)
        if kind == "python" and name:
            with open(f"{folder}/{name.group(1)}", "w") as file:
                file.write(body)
        if kind != "console":
            continue
        for part in body.split("$ ")[1:]:
            command, _, wanted = part.partition("\n")
            program = words(command)
            if program and not shutil.which(program):
                print(f"SKIP: {page}: {program} is not installed")
                continue
            done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=90)
            if done.returncode:
                sys.exit(f"{page}: '{command}' ends with code {done.returncode}: {done.stdout}{done.stderr}")
            if wanted.strip() and sorted(done.stdout.split("\n")) != sorted(wanted.split("\n")):
                sys.exit(f"{page}: '{command}' prints {done.stdout!r} instead of {wanted!r} {done.stderr}")
            ran += 1
    print(f"{page}: {ran} commands run as they are shown")


main(*sys.argv[1:])
