"""How the site is built: `make docs`. Nothing is fetched, and a warning is an error."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # tutorials call `sfumato`
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # said by tqdm in notebooks without widgets

from sfumato.tools.version import __version__  # noqa: E402

project = "sfumato"
author = "The sfumato maintainers"
copyright = "the sfumato maintainers, Apache-2.0"  # noqa: A001
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "mathml"]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
source_suffix = {".md": "myst-nb"}
nitpicky = False
default_role = "code"  # `name` in a docstring is code

# Pages in Markdown; those that begin with a jupytext header are notebooks, run anew by every build.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # would be loaded from elsewhere
nb_remove_code_outputs = False

# The reference, from docstrings.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
python_maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_title = "sfumato"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"top_of_page_buttons": []}

SIGNATURE = re.compile(r"<dl>\s*((?:<dd><em class=\"sig-param\">.*?</dd>\s*)+)</dl>", flags=re.DOTALL)


def accessible(app, page, template, context, doctree):
    """Whatever scrolls by itself can be scrolled by keyboard; a long signature is no list of definitions without terms."""
    body = context.get("body") or ""
    body = body.replace("<pre>", '<pre tabindex="0">').replace(
        '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'
    )
    context["body"] = SIGNATURE.sub(lambda found: f'<span class="signature">{rows(found[1])}</span>', body)


def rows(parameters):
    """Each parameter on a line of its own."""
    return parameters.replace("<dd>", '<span class="parameter">').replace("</dd>", "</span>")


def setup(app):
    """Tell Sphinx of it."""
    app.connect("html-page-context", accessible, priority=900)
