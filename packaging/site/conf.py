# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the site: `make site` puts the pages into build/site/pages (scripts/site.py) and calls Sphinx there."""
import os

project = "Hocket"
author = "The authors of Hocket"
version = release = os.environ["HOCKET_VERSION"]
html_title = f"Hocket {release}"
extensions = ["myst_parser", "breathe"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["files"]
root_doc = "index"

# The pages are written for any reader of Markdown: links between them have GitHub's anchors.
myst_heading_anchors = 5
myst_enable_extensions = []
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
highlight_language = "none"

breathe_projects = {"headers": os.environ["HOCKET_DOXYGEN"]}
breathe_default_project = "headers"
breathe_domain_by_extension = {"h": "c"}

html_theme = "furo"
html_static_path = []
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["extra"]
html_last_updated_fmt = None
