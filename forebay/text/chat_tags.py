"""The tag of chat templates that marks what a model writes: ``generation``, which changes nothing that is read."""

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class Generation(Extension):
    """Lets what stands between ``generation`` and ``endgeneration`` through."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
