#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# site.sh: the site in build/site/html, from docs/, the manual pages and the headers. `make site` calls it. Sphinx, its reader of Markdown and
# its theme come from the package index into build/site/tools; a link that leads nowhere is an error.
set -eu
cd "$(dirname "$0")/.."
site=$PWD/build/site
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$site"
[ -x "$site/tools/bin/python" ] || python3 -m venv "$site/tools"
"$site/tools/bin/python" -c 'import sphinx, myst_parser, furo, breathe' 2>/dev/null ||
  "$site/tools/bin/pip" install -q -r packaging/site/requirements.txt ||
  { echo "Sphinx cannot be had from the package index"; exit 77; }
printf '%s\n' "INPUT = include/nccl.h include/hocket.h" "OUTPUT_DIRECTORY = $site/doxygen" 'GENERATE_XML = YES' 'GENERATE_HTML = NO' \
  'GENERATE_LATEX = NO' 'JAVADOC_AUTOBRIEF = YES' 'QUIET = YES' 'WARN_IF_UNDOCUMENTED = NO' 'OPTIMIZE_OUTPUT_FOR_C = YES' \
  'MACRO_EXPANSION = YES' 'EXPAND_ONLY_PREDEF = YES' 'PREDEFINED = "NCCL_DECLARE_(ret, name, params)=ret name params"' >"$site/Doxyfile"
mkdir -p "$site/doxygen" && doxygen "$site/Doxyfile"
HOCKET_VERSION=$(scripts/dist.sh --version) SOURCE_DATE_EPOCH=$(scripts/dist.sh --date) HOCKET_DOXYGEN=$site/doxygen/xml
export HOCKET_VERSION HOCKET_DOXYGEN SOURCE_DATE_EPOCH
python3 scripts/site.py "$HK_BUILD/man" "$site/pages"
rm -rf "$site/html"
"$site/tools/bin/sphinx-build" -q -W --keep-going -d "$site/doctrees" "$site/pages" "$site/html"
echo "$(find "$site/html" -name '*.html' | wc -l) pages in build/site/html"
