# SPDX-License-Identifier: Apache-2.0
"""Installs packages of the package index in this virtual environment: pip says which wheels, curl gets them, pip installs them.

usage: wheels.py KEPT [--alone] [--target FOLDER] [--without PATTERN,...] REQUIREMENT...

A wheel that was begun is continued, in the next run too (KEPT holds it), and a download ends only if nothing comes: some
wheels have 800 MB.  --alone: without what the packages need.  --target: into this folder, and the wheels stay in KEPT;
otherwise they are removed once installed.  --without: packages that are needed by name and not loaded.
"""
import argparse
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

NOTHING_CAME = 3  # times in a row; each time curl waits a minute


def pip(*arguments):
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")] or done.stderr.splitlines() or ["no reason given"]
        sys.exit(f"pip {arguments[0]}: {lines[-1]}")
    return done.stdout


def wanted(requirements, alone):
    """The wheels that pip would install, as (name, version, address, hash); their metadata is all that is downloaded."""
    more = ["--no-deps"] if alone else []
    report = json.loads(pip("install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:",
                            "--use-feature=fast-deps", *more, "--report", "-", *requirements))
    for item in report["install"]:
        about, where = item["metadata"], item["download_info"]
        yield about["name"], about["version"], where["url"], where["archive_info"]["hashes"]["sha256"]


def installed(name, version):
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def digest_of(path):
    sha = hashlib.sha256()
    if path.exists():
        with open(path, "rb") as f:
            while block := f.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()


def download(url, digest, kept):
    """The wheel's file."""
    whole = kept / urllib.parse.unquote(os.path.basename(urllib.parse.urlparse(url).path))
    part, idle, why = whole.with_name(whole.name + ".part"), 0, ""
    if url.startswith("file:"):
        return pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))
    while not whole.exists():
        before = part.stat().st_size if part.exists() else 0
        done = subprocess.run(["curl", "-fsSL", "-C", "-", "--connect-timeout", "60", "--speed-limit", "1000", "--speed-time", "60",
                               "-o", str(part), url], capture_output=True, text=True)
        after = part.stat().st_size if part.exists() else 0
        if digest_of(part) == digest:
            part.rename(whole)
            break
        if done.returncode == 0 or done.returncode == 33:  # all of it, and wrong; or no part can be asked for
            part.unlink(missing_ok=True)
        idle, why = (0 if after > before else idle + 1), done.stderr.strip() or "the file is not the one that the index names"
        if idle == NOTHING_CAME:
            sys.exit(f"{whole.name}: {why}")
    return whole


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kept", type=pathlib.Path)
    p.add_argument("--alone", action="store_true")
    p.add_argument("--target")
    p.add_argument("--without", default="", type=lambda x: x.split(","))
    p.add_argument("requirements", nargs="+")
    a = p.parse_args()
    a.kept.mkdir(parents=True, exist_ok=True)
    files = []
    for name, version, url, digest in wanted(a.requirements, a.alone):
        plain = re.sub("[-_.]+", "-", name.lower())
        if not any(fnmatch.fnmatch(plain, x) for x in a.without) and (a.target or not installed(name, version)):
            files.append(download(url, digest, a.kept))
    if not files:
        return
    pip("install", "--quiet", "--no-index", "--no-deps", "--no-compile", *(["--target", a.target] if a.target else []), *map(str, files))
    for f in files:
        if not a.target and f.parent == a.kept:
            f.unlink()


if __name__ == "__main__":
    main()
