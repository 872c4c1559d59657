# SPDX-License-Identifier: Apache-2.0
"""Prints one text file of a wheel in the package index, by range requests: NVIDIA's wheels have 300 MB, the header 30 KB.  Or copies
the files of a folder.

usage: wheel_file.py PROJECT VERSION FILE
       wheel_file.py PROJECT VERSION FOLDER/ TO
"""
import io
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile


class Remote(io.RawIOBase):
    """A file on a server that answers requests for ranges, as a file that can be read and searched."""

    def __init__(self, url):
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=30) as answer:
            self.size = int(answer.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=os.SEEK_SET):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer):
        end = min(self.at + len(buffer), self.size)
        if self.at >= end:
            return 0
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            if answer.status != 206:
                sys.exit("the package index does not answer requests for a part of a file")
            data = answer.read()
        buffer[:len(data)] = data
        self.at += len(data)
        return len(data)


def index():
    """The index that pip uses."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return os.environ.get("PIP_INDEX_URL") or found.stdout.strip() or "https://pypi.org/simple"


def main(project, version, name, to=None):
    page = f"{index().rstrip('/')}/{project}/"
    request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        files = json.load(answer)["files"]
    urls = [f["url"] for f in files if f"-{version}-" in f["filename"] and f["filename"].endswith(("x86_64.whl", "-any.whl"))]
    if not urls:
        sys.exit(f"the package index has no {project} {version}")
    wheel = io.BufferedReader(Remote(urllib.parse.urljoin(page, urls[0])), 1 << 16)
    files = zipfile.ZipFile(wheel)
    if to is None:
        sys.stdout.write(files.read(name).decode())
        return
    for inside in files.namelist():
        if inside.startswith(name) and not inside.endswith("/"):
            path = os.path.join(to, inside[len(name):])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(files.read(inside))


if __name__ == "__main__":
    main(*sys.argv[1:])
