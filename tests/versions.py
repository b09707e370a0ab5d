"""The tests on the lowest and on the highest versions that the requirements allow.

    python tests/versions.py lowest                       with Python 3.11
    python tests/versions.py highest --python python3.13  what pip installs by itself

Makes an environment in a temporary folder, installs, prints what it got, and runs every test that needs neither a
browser nor vLLM nor Colab's versions. Ends with pytest's status.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("test_colab.py", "test_dask.py", "test_soak.py", "test_browser.py", "test_browser_player.py",
            "test_conformance.py")
FILES = ("requirements.txt", "tests/requirements.txt")


def lowest(text: str) -> list[str]:
    """`name==lowest` for each line `name>=lowest...` of a requirements file; other requirements stay as they are."""
    pins = []
    for line in text.splitlines():
        wanted = line.split("#")[0].strip()
        if match := re.match(r"([\w.-]+(?:\[[\w,]+\])?)\s*>=\s*([\d.]+)", wanted):
            pins.append(f"{match[1]}=={match[2]}")
        elif wanted and not wanted.startswith("-r"):
            pins.append(wanted)
    return pins


def main() -> int:
    """Make the environment and run the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("lowest", "highest"))
    parser.add_argument("--python", default="python3.11")
    parser.add_argument("tests", nargs="*", help="what to give pytest in place of all tests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.python, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        wanted = ["-r", FILES[1]]
        if options.which == "lowest":
            wanted = [pin for name in FILES for pin in lowest((ROOT / name).read_text())]
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted],
                       cwd=ROOT, check=True)
        names = [re.match(r"[\w.-]+", pin)[0] for name in FILES for pin in lowest((ROOT / name).read_text())
                 if pin[0].isalpha()]
        show = ("import sys; from importlib.metadata import version as v; "
                "print('Python', sys.version.split()[0], *(f'{n} {v(n)}' for n in sys.argv[1:]), sep=', ')")
        subprocess.run([python, "-c", show, *names], check=True)
        chosen = options.tests or [f"--ignore=tests/{name}" for name in LEFT_OUT]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LABS_")}
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not browser and not vllm",
                   "-n", "2", *chosen]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
