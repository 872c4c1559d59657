#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""site.py FOLDER [--no-pictures]: in the site below FOLDER/html every link within it leads to a file and an anchor, every page has its
text without JavaScript and asks no other site for anything, and each manual page and header has a page. Pictures of some pages, in a wide
and a narrow window, go to FOLDER/windows if there is a chromium; nobody but a reader can judge these."""
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors, self.words, self.skip = [], [], set(), 0, 0
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := attrs.get(name)))
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag in ("img", "script") and attrs.get("src") or tag == "link" and attrs.get("rel") == "stylesheet":
            self.loads.append(attrs.get("src") or attrs["href"])
        self.skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self.skip -= tag in ("script", "style")

    def handle_data(self, data):
        self.words += 0 if self.skip else len(data.split())


def main(folder, pictures):
    html, bad, links = os.path.abspath(os.path.join(folder, "html")), [], 0
    paths = [os.path.join(at, name) for at, _, names in os.walk(html) for name in names if name.endswith(".html") and "/files/" not in at + "/"]
    pages = {path: Page(path) for path in paths}
    for path, page in pages.items():
        here = os.path.relpath(path, html)
        for target in page.links + page.loads:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                if target in page.loads:
                    bad.append(f"{here} loads {target} from another site")
                continue
            links += 1
            to = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))) if url.path else path
            if not os.path.exists(to):
                bad.append(f"{here} links to {target}, which is not there")
            elif url.fragment and to in pages and urllib.parse.unquote(url.fragment) not in pages[to].anchors:
                bad.append(f"{here} links to {target}: there is no such anchor")
        if page.words < 150 and os.path.basename(path) not in ("search.html", "genindex.html"):
            bad.append(f"{here} has {page.words} words without JavaScript")
    with open("src/tools/commands.def", encoding="utf-8") as file:
        tools = re.findall(r"^HK_TOOL\((.*)\)", file.read(), re.M)
    for name in [f"man/hocket-{tool}" for tool in tools] + ["man/hocket-perf", "api/hocket", "api/nccl", "first-hour", "comparison"]:
        if os.path.join(html, name + ".html") not in pages:
            bad.append(f"there is no page {name}")
    api = open(os.path.join(html, "api", "nccl.html"), encoding="utf-8").read()
    with open("include/nccl.h", encoding="utf-8") as file:
        functions = re.findall(r"^NCCL_DECLARE_\(\w+,\s*(\w+)", file.read(), re.M)
    for name in functions:
        if name not in api:
            bad.append(f"api/nccl.html has no {name}")
    print("\n".join(bad[:40]))
    if pictures and shutil.which("chromium"):
        windows = os.path.join(folder, "windows")
        os.makedirs(windows, exist_ok=True)
        # A page that its own policy allows no script: what a browser without JavaScript shows.
        with open(f"{html}/first-hour.html", encoding="utf-8") as file:
            page = file.read().replace("<head>", "<head><meta http-equiv=\"Content-Security-Policy\" content=\"script-src 'none'\">", 1)
        with open(f"{html}/without-scripts.html", "w", encoding="utf-8") as file:
            file.write(page)
        for name in ("index", "first-hour", "without-scripts", "comparison", "man/hocket-plan", "api/hocket"):
            for width in (1400, 420):
                picture = os.path.join(windows, f"{os.path.basename(name)}-{width}.png")
                subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},1400",
                                f"--screenshot={picture}", f"file://{html}/{name}.html"], stderr=subprocess.DEVNULL, timeout=60, check=True)
        os.remove(f"{html}/without-scripts.html")
        print(f"pictures in {windows}")
    elif pictures:
        print("SKIP: pictures: chromium is not here")
    print(f"{len(pages)} pages, {links} links within them, {len(bad)} faults")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] != ["--no-pictures"]))
