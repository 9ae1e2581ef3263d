import errno
import os
import subprocess
import sys
import time
import types

import click
import pytest
from click.testing import CliRunner

import polyseme.cli
from polyseme.cli import main
from polyseme.errors import InputError

HEAVY = ("torch", "numpy", "h5py", "pyarrow", "rich", "safetensors")


@pytest.fixture
def failing(monkeypatch):
    """Installs a command `fail` that raises what the test wants."""

    def install(error):
        @click.command()
        def command():
            raise error

        module = types.ModuleType("polyseme.cli.fail")
        module.command = command
        monkeypatch.setitem(sys.modules, "polyseme.cli.fail", module)
        monkeypatch.setattr(polyseme.cli, "COMMANDS", ("fail",))

    return install


def test_our_errors_are_one_line_and_status_1(failing):
    failing(InputError("first\nsecond"))
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Error: first second\n")


def test_an_operating_system_error_names_the_file(failing):
    failing(PermissionError(errno.EACCES, "Permission denied", "somewhere"))
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.stderr) == (1, "Error: somewhere: Permission denied.\n")


def test_memory_error(failing):
    failing(MemoryError())
    result = CliRunner().invoke(main, ["fail"])
    assert result.exit_code == 1
    assert "not enough memory" in result.stderr


def test_a_terminal_that_cannot_show_the_text(failing):
    failing(UnicodeEncodeError("latin-1", "日", 0, 1, "ordinal not in range"))
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: the terminal's encoding, latin-1, lacks a character; set PYTHONUTF8=1.\n",
    )


def test_interruption_ends_with_status_1(failing):
    failing(KeyboardInterrupt())
    result = CliRunner().invoke(main, ["fail"])
    assert result.exit_code == 1
    assert "Aborted" in result.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"]])
def test_wrong_usage_is_status_2(arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr


def test_every_listed_command_has_help_with_an_example():
    for name in polyseme.cli.COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Example" in result.output, name
        assert f"polyseme {name}" in result.output, name


def test_help_imports_nothing_heavy_and_is_quick():
    code = (
        "import sys\n"
        "from polyseme.cli import COMMANDS, main\n"
        "main(['--help'], standalone_mode=False)\n"
        "for name in COMMANDS: main([name, '--help'], standalone_mode=False)\n"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("HEAVY []\n")

    def seconds():
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "polyseme.cli", "--help"], capture_output=True, check=True)
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(5)) < 0.5


def test_the_installed_script_runs():
    script = os.path.join(os.path.dirname(sys.executable), "polyseme")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("polyseme ")
