#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The manifest of docs/deploy.md is what Kubernetes expects in form, and its command runs as two processes with the variables that
# Kubernetes would set.  No cluster is here, so no more than that.  Suite commands runs the page's commands.
set -u
tmp=$(mktemp -d) failures=0
trap 'rm -rf "$tmp"' EXIT
complain() { failures=$((failures + 1)); echo "$*"; }
manifest() { awk '/^```/ { inside = !inside && $0 == "```yaml"; next } inside' docs/deploy.md; }
python3 -c 'import yaml' 2>/dev/null || { echo "SKIP: python3-yaml is not here"; exit 77; }
manifest | python3 -c '
import shlex, sys, yaml
service, job = yaml.safe_load_all(sys.stdin)
assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
name = service["metadata"]["name"]
assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
spec, pod = job["spec"], job["spec"]["template"]["spec"]
assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] and pod["subdomain"] == name
rank = pod["containers"][0]
env = {e["name"]: e["value"] for e in rank["env"]}
assert all(isinstance(v, str) for v in env.values()), "Kubernetes wants strings"
assert int(env["WORLD_SIZE"]) == spec["completions"] and env["MASTER_ADDR"] == job["metadata"]["name"] + "-0." + name
env["MASTER_ADDR"] = "127.0.0.1"
for k, v in env.items(): print("export", k + "=" + shlex.quote(v))
print("exec", " ".join(shlex.quote(word) for word in rank["command"]))
' >"$tmp/pod" || { complain "the manifest is wrong"; exit 1; }
for k in 0 1; do
  PATH=$PWD/$HK_BUILD/bin:$PATH JOB_COMPLETION_INDEX=$k timeout 60 bash "$tmp/pod" >"$tmp/$k" 2>&1 &
done
wait
grep -q 'values : 0 OK' "$tmp/0" && [ "$(grep -c '^#  Rank' "$tmp/0")" = 2 ] || complain "the manifest's command: $(cat "$tmp/0" "$tmp/1")"
[ $failures = 0 ] && echo "the manifest's command runs as two processes"
exit $((failures > 0))
