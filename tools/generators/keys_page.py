"""docs/reference/keys.md, from the key catalogue."""

from pathlib import Path

from pawl_server.store.keys import KEYS
from tools.generators.markdown import note, table


def generate(root: Path) -> dict[str, str]:
    """Returns the page."""
    rows = [(f"`{one.pattern}`", one.type, one.members, one.lifetime) for one in KEYS.values()]
    heads = ("key under the tag", "type", "holds", "lifetime")
    intro = "All keys of a partition begin with its tag, `{namespace.partition.x}`, to share a cluster slot."
    parts = ["# Keys", note("server/pawl_server/store/keys.py"), intro, table(heads, rows)]
    return {"docs/reference/keys.md": "\n\n".join(parts) + "\n"}
