"""The documentation as a site. `make docs` copies the pages to where their links lead and runs Sphinx."""

project = "Antiphon"
author = "The Antiphon authors"
html_title = "Antiphon"
extensions = ["myst_parser"]
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
suppress_warnings = ["myst.header", "toc.not_included"]
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
smartquotes = False  # names of options keep their two dashes
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
