"""What this book needs from Sphinx beyond its packages: where executed notebooks are, and a sober set of page scripts.

The tables made from data are in lowdim_tables, the map of the book in lowdim_map, the finish of each page in
lowdim_pages.
"""

import os

EXTENSIONS = ("lowdim_tables", "lowdim_map", "lowdim_pages")


def use_prepared_cache(app, config):
    """Let myst-nb look where tools/execute.py has put the executed notebooks."""
    folder = os.environ.get("LOWDIM_EXECUTION_CACHE")
    if folder:
        config.nb_execution_cache_path = folder


def leave_thebe_out(app, config):
    """Keep sphinx-thebe, which Jupyter Book loads unasked, from adding scripts and a foreign address to pages.

    Its "builder-inited" handler stays: it supplies the stylesheet that every page already links to.
    """
    for event, registered in app.events.listeners.items():
        for listener in list(registered):
            if event != "builder-inited" and listener.handler.__module__.startswith("sphinx_thebe"):
                app.disconnect(listener.id)


def setup(app):
    app.connect("config-inited", leave_thebe_out)
    app.connect("config-inited", use_prepared_cache)
    for extension in EXTENSIONS:
        app.setup_extension(extension)
    return {"version": "1", "parallel_read_safe": True}
