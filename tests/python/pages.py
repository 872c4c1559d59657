# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that pages and examples show, as they are printed: pages.py [--rules FILE] FOLDER PAGE...

All commands of a page run in one shell in the folder, in the order of the page, so that `export` has its effect.
These are commands:
- in a page: lines of indented blocks, and of blocks of the kind "sh" unless these are scripts that begin with "#!";
  lines after "$ " in blocks of the kind "console"; text in backquotes that begins with a program of PROGRAMS. A block
  of Python whose first line is a comment with a file's name becomes that file.
- in a source: lines of the first comment that are indented by more than its text.
A command must end well. In a console block it must print the lines that stand below it, in any order (that of ranks is
not known); nothing stands below where figures differ, and suite docs compares what `hocket` prints.

A line of the rules is "KIND :: REGULAR EXPRESSION :: ...":
  replace :: what is printed :: what runs in its place
  skip :: which commands :: why they cannot run here: a line SKIP for each reason
  unless :: which commands :: a command that tells whether they can run :: why not, as above
  elsewhere :: which commands :: what runs them
A rule that no command needs is an error.
"""
import argparse
import fnmatch
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict

PROGRAMS = r"bench/\S+|build/\S+|cc|docker|hocket|make|mpirun\S*|pip|python3?|srun|sudo|torchrun|\w+_perf"
SECONDS = 240  # for the commands of a page


class Command:
    def __init__(self, page, text, wanted=""):
        self.page, self.shown, self.text, self.wanted = page, text, text, wanted

    def where(self):
        return f"{self.page}: {self.shown.strip()!r}"


def joined(lines):
    """Lines with their continuations; what runs in the background belongs to the next command."""
    text = ""
    for line in lines:
        text += line.rstrip()
        if text.endswith("\\") or re.search(r"&\s*(#.*)?$", text.rpartition("\n")[2]):
            text += "\n"
        else:
            yield text
            text = ""
    if text:
        yield text


def of_page(page, folder):
    """The commands of a page in Markdown."""
    lines, inside, block, text = open(page).read().split("\n"), None, [], ""
    for at, line in enumerate(lines):
        fence = re.match(r"```(\w*)$", line)
        if fence and inside is None:
            yield from in_words(page, text)
            inside, block, text = fence.group(1), [], ""
        elif line == "```":
            yield from of_block(page, folder, inside, block)
            inside, block = None, []
        elif inside is not None:
            block.append(line)
        elif line.startswith("    ") and (block or not lines[at - 1]):
            block.append(line[4:])
        else:
            yield from (Command(page, t) for t in joined(block))
            block = []
            text += line + "\n"
    yield from in_words(page, text)


def in_words(page, text):
    for found in re.findall(r"`([^`\n]+)`", text):
        words = found.split()
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if len(words) > 1 and re.fullmatch(PROGRAMS, words[0]):
            yield Command(page, found)


def of_block(page, folder, kind, block):
    name = re.match(r"# (\w+\.py)$", block[0]) if block else None
    if kind == "python" and name:
        with open(os.path.join(folder, name.group(1)), "w") as file:
            file.write("\n".join(block) + "\n")
    elif kind == "sh":
        yield from (Command(page, t) for t in (["\n".join(block)] if block[0].startswith("#!") else joined(block)))
    elif kind == "console":
        for part in "\n".join(block + [""]).split("$ ")[1:]:
            command, _, wanted = part.partition("\n")
            yield Command(page, command, wanted)


def of_source(page, _):
    """The commands of a source's first comment."""
    text = open(page).read()
    indent = "    " if page.endswith(".py") else " *   "
    comments = re.findall(r'"""(.*?)"""' if page.endswith(".py") else r"/\*(.*?)\*/", text, flags=re.S)
    first = next((c for c in comments if "SPDX" not in c), "")
    lines = [line[len(indent):] for line in first.split("\n") if line.startswith(indent)]
    return (Command(page, t) for t in joined(lines))


def succeeds(command):
    return subprocess.run(["bash", "-c", command], capture_output=True).returncode == 0


class Rules:
    def __init__(self, path):
        self.rows, self.used = [], set()
        for line in open(path) if path else ():
            if line.strip() and not line.startswith("#"):
                self.rows.append(line.rstrip("\n").split(" :: "))

    def apply(self, command):
        """Replaces what runs; gives ("skip" or "elsewhere", why) for a command that does not run."""
        verdict = None
        for number, (kind, pattern, *rest) in enumerate(self.rows):
            if not re.search(pattern, command.text):
                continue
            self.used.add(number)
            if kind == "replace":
                command.text = re.sub(pattern, rest[0], command.text)
            elif verdict is None and not (kind == "unless" and succeeds(rest[0])):
                verdict = ("skip" if kind == "unless" else kind, rest[-1])
        return verdict

    def unused(self):
        return [" :: ".join(row) for number, row in enumerate(self.rows) if number not in self.used]


def run_all(commands, folder):
    """Runs commands in one shell; those that fail."""
    with tempfile.TemporaryDirectory() as out:
        script = ""
        for number, command in enumerate(commands):
            with open(f"{out}/{number}", "w") as file:
                file.write(command.text + ("\nwait" if "&\n" in command.text else ""))
            script += f'eval "$(cat {out}/{number})" >{out}/{number}.out 2>{out}/{number}.err </dev/null\n'
            script += f'echo $? >{out}/{number}.code\n'
        os.chmod(out, 0o755)
        path = os.environ["PATH"]
        if commands and commands[0].page.startswith("docs/"):  # their readers have installed the programs
            path = os.environ.get("HK_INSTALLED", path) + ":" + path
        shell = subprocess.Popen(["bash", "-c", script], cwd=folder, start_new_session=True,
                                 env={**os.environ, "PATH": path})
        try:
            shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        for number, command in enumerate(commands):
            failed = judge(command, f"{out}/{number}")
            if failed:
                yield failed


def read(path):
    return open(path, errors="replace").read() if os.path.exists(path) else ""


def judge(command, out):
    printed, said, code = read(out + ".out"), read(out + ".err"), read(out + ".code").strip()
    as_run = "" if command.text == command.shown else f" (run as {command.text!r})"
    if code != "0":
        what = f"ends with code {code}" if code else f"did not end within {SECONDS} s"
        return f"{command.where()}{as_run} {what}: {printed[-600:]}{said[-1200:]}"
    if command.wanted.strip() and "hocket " not in command.text.partition("-m")[0] and \
            sorted(printed.split("\n")) != sorted(command.wanted.split("\n")):
        return f"{command.where()}{as_run} prints {printed!r} instead of {command.wanted!r} {said[-600:]}"
    return None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rules")
    arguments.add_argument("folder")
    arguments.add_argument("pages", nargs="+")
    given = arguments.parse_args()
    rules, folder, pages = Rules(given.rules), given.folder, given.pages
    ran, reasons, elsewhere, failures = 0, defaultdict(set), defaultdict(int), []
    for page in pages:
        every = list(of_page(page, folder) if page.endswith(".md") else of_source(page, folder))
        if not every and fnmatch.fnmatch(page, "examples/*[!h]"):
            failures.append(f"{page} does not say how it is run")
        mine = []
        for command in every:
            kind, why = rules.apply(command) or ("run", "")
            if kind == "run":
                mine.append(command)
            elif kind == "skip":
                reasons[why].add(page)
                if subprocess.run(["bash", "-n", "-c", command.text], capture_output=True).returncode:
                    failures.append(f"{command.where()} is no command of a shell")
            else:
                elsewhere[why] += 1
        failures += run_all(mine, folder)
        ran += len(mine)
    for why, where in sorted(reasons.items()):
        print(f"SKIP: {why}: commands of {', '.join(sorted(where))}")
    failures += [f"a rule that no command needs: {row}" for row in rules.unused()]
    for failure in failures:
        print(failure)
    others = "".join(f", {n} by {who}" for who, n in sorted(elsewhere.items()))
    print(f"{ran} commands of {len(pages)} pages run as they are printed{others}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
