"""Run a notebook in a given folder with this very Python: python execute.py NOTEBOOK FOLDER EXECUTED.

Needs only nbclient and nbformat, so that it also works in an environment with Colab's versions.
Goes on after an error: the caller looks at what is in EXECUTED.
"""

import sys

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient


class ThisPython(AsyncKernelManager):
    """Starts sys.executable, whatever kernels the machine has installed."""

    @property
    def kernel_spec(self):
        """The kernel of this environment."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def main(source: str, folder: str, executed: str) -> None:
    """Run the notebook and write it with its outputs."""
    notebook = nbformat.read(source, as_version=4)
    resources = {"metadata": {"path": folder}}
    NotebookClient(
        notebook, timeout=180, allow_errors=True, kernel_manager_class=ThisPython, resources=resources
    ).execute()
    nbformat.write(notebook, executed)


if __name__ == "__main__":
    main(*sys.argv[1:])
