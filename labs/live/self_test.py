"""What a machine has for a vLLM server, in words that a reader can send back: made for a Colab T4, run anywhere."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from labs.live import engines
from labs.live.diagnosis import find_cause, shorten
from labs.live.install import pinned
from labs.live.preflight import check_gpu, nvidia_smi

PACKAGES = ("ipykernel", "ipywidgets", "numpy", "matplotlib", "openai")
DISK = 15.0  # GB that vLLM for a GPU and a small model want
# Asked of vLLM's own Python: what its wheel was built for, and whether that works here.
WHEEL = """
import json, torch
ready = torch.cuda.is_available()
print(json.dumps(dict(torch=torch.__version__, cuda=torch.version.cuda, ready=ready,
                      name=torch.cuda.get_device_name(0) if ready else None)))
import vllm._custom_ops
"""


@dataclass(frozen=True)
class Check:
    """One thing looked at: whether it is as it must be, and what was found."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True)
class SelfTest:
    """All checks; `ok` if a server can be started on the GPU."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, object]:
        """For a recording."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        lines = [f"{'ok     ' if check.ok else 'MISSING'} {check.name}: {check.found}" for check in self.checks]
        return "\n".join([*lines, "Ready for a server." if self.ok else "Not ready for a server on a GPU."])


def self_test(python: str | os.PathLike | None = None) -> SelfTest:
    """Look at GPU, driver, wheel, versions and room. It starts no server and never raises."""
    return SelfTest((*_gpu(), *_vllm(python), _machine(), _kernel(), _disk()))


def _gpu() -> list[Check]:
    preflight = check_gpu(nvidia_smi())
    gpu = preflight.gpu
    checks = [Check("GPU", preflight.ok, preflight.wrong or "; ".join([gpu.name, *preflight.notes]))]
    if gpu:
        capability = ".".join(map(str, gpu.capability))
        checks += [
            Check("driver", preflight.ok, gpu.driver),
            Check("memory", preflight.ok, f"{gpu.free} of {gpu.total} MiB free; compute capability {capability}"),
            Check("settings", preflight.ok, json.dumps({**preflight.flags, **preflight.env})),
        ]
    return checks


def _vllm(python: str | os.PathLike | None) -> list[Check]:
    found = engines.find("vllm", python)
    if not found:
        return [Check("vLLM", False, "no build for a GPU; install it with labs.live.install.install('gpu')")]
    same = found.version.partition("+")[0] == pinned("gpu")
    note = "" if same else f", where the course was tried with {pinned('gpu')}"
    return [Check("vLLM", True, f"{found.version}{note}, in {found.python}"), _wheel(found.python)]


def _wheel(python: str) -> Check:
    """Whether the compiled part loads and sees the GPU."""
    try:
        done = subprocess.run([python, "-c", WHEEL], capture_output=True, text=True, timeout=180)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("wheel", False, shorten(str(error)))
    lines = done.stdout.splitlines()
    if done.returncode or not lines or "Failed to import" in done.stderr:
        cause = find_cause(done.stderr)
        return Check("wheel", False, f"{cause[0]}. {cause[1]}" if cause else shorten(done.stderr[-200:]))
    seen = json.loads(lines[0])
    built = f"torch {seen['torch']}, CUDA {seen['cuda']}"
    return Check("wheel", bool(seen["ready"]), f"{built}, sees {seen['name'] or 'no GPU'}")


def _machine() -> Check:
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB of memory"
    return Check("machine", True, f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors{memory}")


def _kernel() -> Check:
    versions = [f"Python {sys.version.split()[0]}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return Check("notebook", not any(version.startswith("no ") for version in versions), ", ".join(versions))


def _disk() -> Check:
    free = shutil.disk_usage(Path(engines.ROOT)).free / 1e9
    return Check("disk", free >= DISK or engines.find("vllm") is not None, f"{free:.0f} GB free")
