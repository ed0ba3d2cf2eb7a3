"""Settings of the documentation site, which `make docs` builds."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "alimark"
author = "The alimark developers"
release = version = metadata.version("alimark")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "site_pages",
]
exclude_patterns = ["_build", "_ext"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
highlight_language = "text"

# Reference of the Python interface
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"  # docstrings write code in single backticks

# Looks. Nothing is loaded from other hosts, so that the site can be read and searched offline.
html_theme = "pydata_sphinx_theme"
html_title = "alimark"
html_favicon = "../src/alimark/serve/page/icon.svg"
html_context = {"default_mode": "auto"}  # as the system; without it the theme reports an error on a first visit
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}
html_show_sphinx = False
project_copyright = "the alimark developers, Apache-2.0"
copybutton_prompt_text = "$ "
