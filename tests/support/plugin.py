"""An IO processor as a package would ship it, and how to install it into a folder on the path."""

from pathlib import Path

SOURCE = '''
from forebay import IOProcessor, Parsed, PoolingParams, Request, Task
from forebay.core.errors import InvalidRequest


class Similar(IOProcessor):
    """{"a": text, "b": text} -> {"similarity": number, "note": text}"""

    def parse(self, data):
        if not isinstance(data, dict) or {"a", "b"} - set(data):
            raise InvalidRequest("data must be an object with 'a' and 'b'", field="data")
        return Parsed(Request([data["a"], data["b"]], PoolingParams((Task.EMBED,))), data.get("note"))

    def render(self, reply, context):
        first, second = reply.rows
        return {"similarity": float(first @ second), "note": context, "model": self.info.name}


class Broken(IOProcessor):
    def parse(self, data):
        return "not a Parsed"

    def render(self, reply, context):
        raise AssertionError("never reached")


not_a_processor = object()
'''

ENTRY_POINTS = """
[forebay.io_processors]
similar = forebay_similar:Similar
broken = forebay_similar:Broken
no-class = forebay_similar:not_a_processor
gone = forebay_similar_which_is_not_there:Thing
"""


def install_plugin(folder: Path) -> Path:
    """Lay the package out as pip does; ``folder`` then belongs on the path."""
    (folder / "forebay_similar.py").write_text(SOURCE)
    info = folder / "forebay_similar-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forebay-similar\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder
