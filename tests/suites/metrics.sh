#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180 covers=src/tools/metrics/,src/base/meter
# `hocket metrics` with a job of four processes; the files of examples/operations, read by the tools that they are for.
set -u
tests=tests/metrics files=examples/operations
. tests/support/suite.sh
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || { echo "the Python package is not built: make python"; exit 77; }
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
export PYTHONPATH=$PWD/$HK_BUILD/python PYTHONDONTWRITEBYTECODE=1
mkdir "$tmp/job"
python3 $tests/check.py "$PWD/$HK_BUILD/bin/hocket" "$tmp/job" || complain "see above"

# Every metric of the dashboard and of the rules exists.
used() { grep -ohE 'hocket_[a-z0-9_]+' $files/grafana.json $files/alerts.yml | sort -u; }
known=$(grep -ohE '"hocket_[a-z0-9_]+"' src/tools/metrics/text.c | tr -d '"' | sort -u)
for name in $(used); do
  grep -qx "$name" <<<"$known" || complain "$files names $name, which \`hocket metrics\` does not write"
done
python3 -c 'import json, sys; json.load(open(sys.argv[1]))' $files/grafana.json || complain "grafana.json is no JSON"
if command -v promtool >/dev/null; then
  cp $files/alerts.yml $tests/alerts_test.yml "$tmp"
  (cd "$tmp" && promtool check rules alerts.yml && promtool test rules alerts_test.yml) >"$tmp/out" 2>&1 || fault "the alert rules"
  # The dashboard's expressions, as rules.
  python3 - $files/grafana.json >"$tmp/panels.yml" <<'PYTHON'
import json, sys
rules = [target["expr"].replace("$__rate_interval", "5m") for panel in json.load(open(sys.argv[1]))["panels"] for target in panel["targets"]]
print(json.dumps({"groups": [{"name": "panels", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(rules)]}]}))
PYTHON
  promtool check rules "$tmp/panels.yml" >"$tmp/out" 2>&1 || fault "the dashboard's expressions"
else
  echo "SKIP: there is no promtool (Debian: prometheus): the alert rules and the dashboard's expressions are not tested"
fi
if command -v systemd-analyze >/dev/null; then
  for unit in $files/*.service $files/*.timer; do sed "s|/usr/bin/hocket|$PWD/$HK_BUILD/bin/hocket|" "$unit" >"$tmp/${unit##*/}"; done
  systemd-analyze verify --man=no "$tmp"/*.service "$tmp"/*.timer >"$tmp/out" 2>&1 || fault "the systemd units"
  grep -qE '^/tmp|hocket' "$tmp/out" && fault "the systemd units"
else
  echo "SKIP: there is no systemd-analyze (Debian: systemd): the units are not tested"
fi
finish "metrics as text, file and over HTTP; hostile clients; alert rules, dashboard, units"
