#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How good are the choices?  Every algorithm is measured at every size; the chosen one is compared with the fastest.

`hocket tune` measures, then `hocket tune --check` measures anew and judges, by the same times, the built-in constants and what
was tuned.  The bars: with built-in constants every choice within 25% of the best, after tuning within 10%.  What misses its bar
is measured again by the command itself, and these times count; so are as many choices that met it, drawn by lot.  What else
runs on the machine disturbs all this; with --realtime (root) the ranks go before it.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default="build/gcc", help="where bin/hocket is")
    p.add_argument("--ranks", default="2,4,8")
    p.add_argument("--transports", default="shm,tcp")
    p.add_argument("--collectives", help="all by default")
    p.add_argument("--to", default="128M", help="the largest message")
    p.add_argument("--step", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeats", type=int, default=2)
    p.add_argument("--rest", type=float, default=0, help="sleep so many times as long as is measured")
    p.add_argument("--quick", action="store_true", help="sizes to 4M in steps of 8: some seconds")
    p.add_argument("--looks", type=int, default=2, help="times that a miss is measured again")
    p.add_argument("--times", metavar="DIR", help="add up with the times of earlier runs, kept in DIR")
    p.add_argument("--realtime", action="store_true", help="run under chrt -f 10")
    p.add_argument("--plot", metavar="DIR", help="pictures of times, an SVG for each collective, transport, ranks")
    p.add_argument("--json", metavar="FILE", help="all figures")
    a = p.parse_args()
    if a.quick:
        a.to, a.step, a.repeats = "4M", 8, 2
    return a


def kept(a, name):
    """Tuning and checking have a file each, so that choices are judged by times they were not made from."""
    if not a.times:
        return []
    os.makedirs(a.times, exist_ok=True)
    return ["--times", os.path.join(a.times, name)]


def hocket(a, *arguments):
    command = ["chrt", "-f", "10"] if a.realtime else []
    command += [os.path.join(a.build, "bin", "hocket"), "tune", "--ranks", a.ranks, "--transports", a.transports,
                "--to", a.to, "--step", str(a.step), "--rounds", str(a.rounds), "--repeats", str(a.repeats),
                "--looks", str(a.looks), "--rest", str(a.rest), *arguments]
    if a.collectives:
        command += ["--collectives", a.collectives]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def ratio(row, chosen, times):
    return row[times][chosen] / min(row[times].values()) if times in row else ratio(row, chosen, "us")


def judged(rows, who):
    """(ratio, ratio by the first times, row) of each choice: who is "chosen" or "built_in"."""
    return [(ratio(r, r[who], "us"), ratio(r, r[who], "us_at_first"), r) for r in rows]


def summary(name, choices, bar):
    n = len(choices)
    first, now = [[100 * sum(c[i] <= limit for c in choices) / n for limit in (1.10, 1.25)] for i in (1, 0)]
    drawn = [c for c in choices if c[2]["drawn"]]
    print(f"| {name} | {bar} | {n} | {first[0]:.1f}%, {first[1]:.1f}% | {now[0]:.1f}%, {now[1]:.1f}% | {len(drawn)} | "
          f"{sum(c[0] > bar for c in drawn)} |")


def report(choices, who, bar):
    missed = sorted((c for c in choices if c[0] > bar), key=lambda c: -c[0])
    if missed:
        print(f"\nBeyond the bar of {bar}:")
    for now, first, r in missed[:40]:
        print(f"  {r['transport']} {r['ranks']} ranks, {r['collective']} of {r['bytes']} bytes: {r[who]} takes {now:.2f} times as "
              f"long as {r['best']} (at first {first:.2f})")
    return bool(missed)


COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]


def picture(rows, path):
    """Times over sizes, both logarithmic; a ring marks what was chosen."""
    width, height, left, bottom = 640, 400, 60, 40
    sizes = [r["bytes"] for r in rows]
    times = [t for r in rows for t in r["us"].values()]
    x0, x1 = math.log(min(sizes)), math.log(max(sizes)) + 1e-9
    y0, y1 = math.log(min(times)), math.log(max(times)) + 1e-9

    def at(size, us):
        return (left + (math.log(size) - x0) / (x1 - x0) * (width - left - 120),
                height - bottom - (math.log(us) - y0) / (y1 - y0) * (height - bottom - 20))

    names = sorted({n for r in rows for n in r["us"]})
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for k, name in enumerate(names):
        colour = COLOURS[k % len(COLOURS)]
        points = [at(r["bytes"], r["us"][name]) for r in rows if name in r["us"]]
        out.append(f'<polyline fill="none" stroke="{colour}" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                   + '"/>')
        out.append(f'<text x="{width - 112}" y="{30 + 14 * k}" fill="{colour}">{name}</text>')
    for r in rows:
        x, y = at(r["bytes"], r["us"][r["built_in"]])
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="black"/>')
    for r in rows[:: max(1, len(rows) // 6)]:
        x, _ = at(r["bytes"], min(times))
        out.append(f'<text x="{x:.1f}" y="{height - 22}" text-anchor="middle">{r["bytes"]}</text>')
    for power in range(math.floor(y0 / math.log(10)), math.ceil(y1 / math.log(10)) + 1):
        _, y = at(min(sizes), 10.0 ** power)
        if 20 <= y <= height - bottom:
            out.append(f'<line x1="{left}" x2="{width - 120}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                       f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    first = rows[0]
    out.append(f'<text x="{left}" y="14">{first["collective"]}, {first["ranks"]} ranks over {first["transport"]}: '
               'microseconds over bytes; rings: chosen by built-in constants</text></svg>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def pictures(rows, folder):
    os.makedirs(folder, exist_ok=True)
    groups = {}
    for r in rows:
        groups.setdefault((r["collective"].lower(), r["transport"], r["ranks"]), []).append(r)
    for (collective, transport, ranks), group in groups.items():
        picture(group, os.path.join(folder, f"{collective}-{transport}-{ranks}.svg"))


def main():
    a = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        constants = os.path.join(folder, "tune.conf")
        hocket(a, "--out", constants, *kept(a, "tune.times"))
        rows = json.loads(hocket(a, "--check", "--json", "--constants", constants, *kept(a, "check.times")))
    bars = [("built-in constants", "built_in", 1.25), ("after hocket tune", "chosen", 1.10)]
    print("| | bar | choices | within 10%, 25% at first | within 10%, 25% | drawn by lot | of them missed |\n"
          "|---|---|---|---|---|---|---|")
    for name, who, bar in bars:
        for transport in a.transports.split(","):
            summary(f"{transport}, {name}", judged([r for r in rows if r["transport"] == transport], who), bar)
    missed = [report(judged(rows, who), who, bar) for _, who, bar in bars]
    if a.plot:
        pictures(rows, a.plot)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=0)
    return 1 if any(missed) else 0


if __name__ == "__main__":
    sys.exit(main())
