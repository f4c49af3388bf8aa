"""How Sphinx builds the site: `make docs`."""

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "Bertsmith"
version = metadata.version("bertsmith")
author = "The authors of Bertsmith"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "_extension"]
exclude_patterns = ["_extension"]
suppress_warnings = ["myst-nb.lexer"]  # a notebook says its language once it has run

# Pages. Anchors are those of GitHub's headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
smartquotes = False
highlight_language = "text"
default_role = "code"  # docstrings write code as Markdown does

# Notebooks run once: what they print is kept until their code changes.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_timeout = 900

# The Python interface
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 70
toc_object_entries = False

html_theme = "furo"
html_title = f"Bertsmith {version}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
