"""What the GPU at hand can do, and the settings that follow; and a self-test for a machine we never saw."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIELDS = ("name", "compute_cap", "memory.total", "memory.free", "driver_version")
DRIVER = 580  # the first that runs CUDA 13, for which vLLM's wheels are built
AMPERE = (8, 0)  # the first with bfloat16, and what FlashInfer needs
LEAST_FREE = 3_000  # MiB: weights of half a billion parameters, activations, and a KV cache worth having
SHARE = 0.85


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi describes it; memory in MiB."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int
    driver: str

    @property
    def driver_major(self) -> int:
        """The driver's major version; 0 if unknown."""
        head = self.driver.partition(".")[0]
        return int(head) if head.isdigit() else 0


@dataclass(frozen=True)
class Preflight:
    """Whether vLLM can run on it: what is wrong and what to do if not, settings and notes if it can."""

    gpu: Gpu | None = None
    wrong: str = ""
    do: str = ""
    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether anything stands in the way."""
        return not self.wrong


def nvidia_smi() -> str | None:
    """What nvidia-smi says of each GPU, one a line; None where there is none to ask."""
    program = shutil.which("nvidia-smi")
    if not program:
        return None
    query = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else done.stdout + done.stderr


def parse_gpus(text: str | None) -> list[Gpu]:
    """The GPUs in what nvidia-smi said; lines of other kinds, as its errors are, are none."""
    found = []
    for line in (text or "").splitlines():
        parts = [part.strip() for part in line.split(",")]
        try:
            name, capability, total, free, driver = parts
            major, minor = capability.split(".")
            found.append(Gpu(name, (int(major), int(minor)), int(total), int(free), driver))
        except ValueError:
            continue
    return found


def check_gpu(text: str | None) -> Preflight:
    """What follows from nvidia-smi's words for the first GPU."""
    gpus = parse_gpus(text)
    if not gpus:
        said = f" (nvidia-smi says: {' '.join(text.split())[:120]})" if text and text.strip() else ""
        return Preflight(
            wrong=f"No NVIDIA GPU was found{said}.",
            do="On Colab choose Runtime, Change runtime type, T4 GPU; or name another engine: 'vllm-cpu', 'simulated'.",
        )
    gpu = gpus[0]
    if 0 < gpu.driver_major < DRIVER:
        return Preflight(
            gpu,
            f"The driver of the {gpu.name} is {gpu.driver}, too old for vLLM's build for CUDA 13 ({DRIVER} or later).",
            "Update the driver, or choose another runtime.",
        )
    if gpu.capability < (7, 5):
        return Preflight(
            gpu,
            f"The {gpu.name} is too old for vLLM: compute capability {_dotted(gpu.capability)}, where 7.5 is needed.",
            "Choose another GPU, or name another engine: 'vllm-cpu', 'simulated'.",
        )
    if gpu.free < LEAST_FREE:
        return Preflight(
            gpu,
            f"Only {gpu.free} of the {gpu.total} MiB of the {gpu.name} are free.",
            "Stop what else uses the GPU: an earlier server with server.stop(), another notebook with its kernel.",
        )
    return _settings(gpu)


def _settings(gpu: Gpu) -> Preflight:
    """Flags and environment for a GPU that will do."""
    flags: dict[str, object] = {"gpu_memory_utilization": _share(gpu)}
    env: dict[str, str] = {}
    notes = []
    if gpu.capability < AMPERE:
        flags |= {"dtype": "half", "enforce_eager": True, "attention_backend": "TRITON_ATTN"}
        env["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        notes.append(f"compute capability {_dotted(gpu.capability)}: no bfloat16 and no FlashInfer, so half and Triton")
    if flags["gpu_memory_utilization"] != SHARE:
        notes.append(f"only {gpu.free} of {gpu.total} MiB are free: the share of memory is lowered")
    return Preflight(gpu, flags=flags, env=env, notes=tuple(notes))


def _share(gpu: Gpu) -> float:
    """The share of the GPU's memory to take: what is free, less a little, and no more than SHARE."""
    return min(SHARE, int(100 * (gpu.free - 300) / gpu.total) / 100)


def _dotted(pair: Sequence[int]) -> str:
    return ".".join(map(str, pair))
