"""docs/reference/cli.md, from the commands themselves."""

import inspect
from pathlib import Path

import click

from tools.generators.markdown import note, table


def generate(root: Path) -> dict[str, str]:
    """Returns the page."""
    from pawl.cli.exits import MEANINGS
    from pawl.cli.main import main

    whole = click.Context(main, info_name="pawl")
    parts = [
        "# Command line",
        note("sdk/python/pawl/cli"),
        prose(main),
        "## Exit codes",
        table(("code", "meaning"), [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]),
        "Errors are one line on stderr, `error: REASON: text`; with `--json` one object,"
        ' `{"error": {"reason", "message", "exit_code", "metadata"}}`. Payloads are printed as'
        ' their JSON value, or as `{"encoding", "base64"}` where they are not JSON.',
    ]
    for name in main.list_commands(whole):
        command = main.get_command(whole, name)
        assert command is not None
        parts += section(command, click.Context(command, info_name=name, parent=whole))
    return {"docs/reference/cli.md": "\n\n".join(parts) + "\n"}


def section(command: click.Command, context: click.Context) -> list[str]:
    """Returns the blocks about one command: how it is called, what it does, its options."""
    usage = " ".join(["pawl", context.info_name or "", *command.collect_usage_pieces(context)])
    rows = []
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Argument) or "--help" in parameter.opts:
            continue
        record = parameter.get_help_record(context)
        if record:
            rows.append((f"`{record[0]}`", record[1].replace("[", "(").replace("]", ")")))
    blocks = [f"## pawl {context.info_name}", f"```text\n{usage}\n```", prose(command)]
    return [*blocks, table(("option", "meaning"), rows)] if rows else blocks


def prose(command: click.Command) -> str:
    """Returns the help text, one line per paragraph."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
