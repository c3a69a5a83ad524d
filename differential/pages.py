"""The HTML pages' templates."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """A template of the folder `templates`; what is put in is escaped."""
    environment = Environment(
        loader=PackageLoader("tosavk.differential", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
