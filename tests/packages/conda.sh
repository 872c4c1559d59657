#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# conda.sh: conda's package by the recipe of `make dist` and rattler-build (from the package index), with this machine's compiler in the place
# of conda-forge's, because no channel of conda packages is reached here; rattler installs it in an environment, the package's own tests run there,
# and rattler removes it.
set -u
. tests/support/suite.sh
tools=$PWD/build/conda/tools
[ -x "$tools/bin/python" ] || python3 -m venv "$tools" || exit 1
"$tools/bin/python" -c 'import rattler, rattler_build' 2>/dev/null || "$tools/bin/pip" install -q py-rattler py-rattler-build 2>/dev/null ||
  { echo "SKIP: py-rattler and py-rattler-build cannot be had from the package index"; exit 77; }
scripts/dist.sh "$tmp/dist" >/dev/null
cat >"$tmp/build.py" <<'END'
import sys
import rattler_build as rb

path, out = sys.argv[1:]
rb.Stage0Recipe.from_file(path)  # a fault in the whole recipe is an error
text = open(path).read()
start, end = text.index("  build:\n    - ${{ stdlib"), text.index("  run_constraints:")
recipe = rb.Stage0Recipe.from_yaml(text[:start] + text[end:])
tools = rb.ToolConfiguration(test_strategy="skip")
for result in recipe.run_build(output_dir=out, channels=[], tool_config=tools, env_isolation=rb.EnvironmentIsolation.NONE):
    print(*result.packages)
END
"$tools/bin/python" "$tmp/build.py" "$tmp/dist/conda/recipe.yaml" "$tmp/channel" >"$tmp/said" 2>&1 || { tail -n 20 "$tmp/said"; exit 1; }
package=$(find "$tmp/channel" -name 'hocket-*.conda' -o -name 'hocket-*.tar.bz2' | head -n 1)
[ -n "$package" ] || { tail -n 20 "$tmp/said"; echo "no package"; exit 1; }
# env.py CHANNEL PREFIX [SPEC...]: the environment has these packages and what they need, from the channel; without one it is emptied.
cat >"$tmp/env.py" <<'END'
import asyncio, pathlib, sys
import rattler

async def main(channel, prefix, *specs):
    records = await rattler.solve([pathlib.Path(channel).as_uri()], specs, platforms=[str(rattler.Subdir.current()), "noarch"],
                                  virtual_packages=rattler.VirtualPackage.detect()) if specs else []
    await rattler.install(records, prefix, cache_dir=channel + ".cache", show_progress=False)

asyncio.run(main(*sys.argv[1:]))
END
environment() {
  "$tools/bin/python" "$tmp/env.py" "$tmp/channel" "$tmp/prefix" "$@" >"$tmp/said" 2>&1 || { tail -n 20 "$tmp/said"; exit 1; }
}
environment hocket
PREFIX=$tmp/prefix
export PREFIX
while read -r line; do gives 0 env PATH="$PREFIX/bin:$PATH" bash -c "$line"; done < <(sed -n '/^tests:/,/^about:/s/^      - //p' packaging/conda/recipe.yaml)
environment
left=$(cd "$PREFIX" && find . ! -type d | grep -vx -e './conda-meta/history' -e './CACHEDIR.TAG') # the environment's own
[ -z "$left" ] || complain "after the removal: $left"
[ "$cases" -ge 5 ] || complain "the recipe has $cases tests"
finish "$(basename "$package"): $cases tests of the recipe"
