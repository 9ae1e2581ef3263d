"""The command line. A command is one file here, named as the command, that defines `command`, and one line in COMMANDS.

Command files import click and `polyseme.errors` at the top and everything else inside the function, so that help is instant.
"""

import contextlib
import errno
import importlib
import signal
import threading
from collections.abc import Iterator

import click

from polyseme.errors import PolysemeError

#: Every command in the order in which `polyseme --help` lists them; each is `command` in the file of that name.
COMMANDS = (
    "info",
    "convert",
    "embed",
    "prepare",
    "pretrain",
    "perplexity",
    "score",
    "ngram",
    "train",
    "evaluate",
    "predict",
)


class Commands(click.Group):
    """Imports a command's file when it is asked for; turns our errors into one line and exit status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"polyseme.cli.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command; an error we foresaw ends as `Error: ...` on the standard error stream, status 1."""
        try:
            with _orderly_end():
                return super().invoke(ctx)
        except PolysemeError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has gone: click ends quietly
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            raise click.ClickException(f"{where}{error.strerror or error}.") from error
        except UnicodeEncodeError as error:
            raise click.ClickException(
                f"the terminal's encoding, {error.encoding}, lacks a character; set PYTHONUTF8=1."
            ) from error
        except MemoryError as error:
            raise click.ClickException("not enough memory; give smaller batches or shorter texts.") from error


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """Lets a request to end (SIGTERM) unwind like an interruption, so that nothing half-written stays behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="polyseme", message="polyseme %(version)s")
def main() -> None:
    """ELMo, deep contextualized word representations: inspect, convert, use, train.

    A MODEL is a bundled name (en-small), a folder, a weight file, a zip, or a Hugging Face hub id.

    Exit status: 0 done, 1 an input or a model cannot be used, 2 the command line is wrong.
    """
