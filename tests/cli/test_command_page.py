import re
import shlex

import pytest
from click.testing import CliRunner

from polyseme.cli import main


def test_the_page_of_the_command_line_runs(root, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    page = (root / "docs/command-line.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        name, *arguments = shlex.split(line)
        assert name == "polyseme"
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
    for name in ("elmo_options.json", "again/config.json", "vectors.npz", "vectors.hdf5"):
        assert (workshop / name).is_file()


@pytest.mark.parametrize("name", ["info", "convert", "embed", "score"])
def test_examples_in_the_help_are_of_existing_options(name):
    command = main.get_command(None, name)
    known = {option for parameter in command.params for option in parameter.opts}
    examples = [line for line in command.epilog.splitlines() if "polyseme" in line]
    assert examples
    for line in examples:
        words = shlex.split(line.split("|")[-1])
        assert words[:2] == ["polyseme", name]
        assert {word for word in words if word.startswith("-")} <= known
