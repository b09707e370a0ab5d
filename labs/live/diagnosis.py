"""Why a server did not start or stopped: a table from what its log says to one sentence, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


class ServerError(RuntimeError):
    """A server that cannot be started, reached or used: what is wrong, what to do, and where the log is."""

    def __init__(self, wrong: str, do: str, log: Path | None = None) -> None:
        self.wrong, self.do, self.log = wrong, do, log
        super().__init__(" ".join([wrong, do, *([f"The log is {log}."] if log else [])]))

    def _render_traceback_(self) -> list[str]:
        """A notebook shows the sentences, and no traceback."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Cause:
    """A pattern in a log, and what it means; {names} in the words are the pattern's own groups."""

    pattern: str
    wrong: str
    do: str


DRIVER = "On Colab choose another runtime or an older vLLM; elsewhere update the NVIDIA driver to 580 or later."
ENVIRONMENT = "Install it afresh in its own environment, with labs.live.install.install(), and start again."
MEMORY = "Stop what else uses the GPU (an earlier server: server.stop()), or give gpu_memory_utilization a lower value."
T4 = "Start with dtype='half', attention_backend='TRITON_ATTN' and VLLM_USE_FLASHINFER_SAMPLER=0 in env."

# In order: where several are in a log, the first in this table is the one to tell.
CAUSES = (
    Cause(
        r"(?:Errno 98|Errno 48|WinError 10048)|[Aa]ddress already in use",
        "its port was taken by another program",
        "Start again without port=, and a free one is picked.",
    ),
    Cause(
        r"unrecognized arguments: (?P<flag>[^\n]+)",
        "it does not know the setting {flag}",
        "Look for a spelling mistake, or for a setting that this version has not got.",
    ),
    Cause(
        r"error: (?:argument )?(?P<flag>--?[\w/-]+[^\n]*)",
        "it does not accept a setting: {flag}",
        "Give it another value, or leave it out.",
    ),
    Cause(
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \((?:\w+=)?(?P<most>\d+)",
        "the context asked for, max_model_len={asked}, is longer than the model's own ({most})",
        "Ask for a smaller max_model_len.",
    ),
    Cause(
        r"max seq len \((?P<length>\d+)\)[^\n]* larger than the available KV cache",
        "the KV cache has too few blocks for even one request of max_model_len={length} tokens",
        "Ask for a smaller max_model_len, or for more blocks or memory (one block is always lost to the null block).",
    ),
    Cause(
        r"No available memory for the cache blocks",
        "there is no memory left for the KV cache",
        "Give gpu_memory_utilization a higher value, or choose a smaller model.",
    ),
    Cause(
        r"Free memory on device[^\n]*less than desired",
        "the GPU has too little free memory",
        MEMORY,
    ),
    Cause(
        r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory",
        "the GPU ran out of memory",
        MEMORY,
    ),
    Cause(
        r"less than desired CPU memory utilization|Available memory on node[^\n]*less than|"
        r"Not enough (?:available )?memory|DefaultCPUAllocator|Cannot allocate memory|MemoryError",
        "the machine has too little free memory",
        "Close other programs, or give VLLM_CPU_KVCACHE_SPACE (GiB, in env) a lower value.",
    ),
    Cause(
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "this GPU cannot compute in bfloat16",
        "Start with dtype='half'.",
    ),
    Cause(
        r"BatchPrefillWithPagedKVCache failed|FlashInfer[^\n]*(?:requires|not supported)",
        "FlashInfer does not run on this GPU",
        T4,
    ),
    Cause(
        r"out of resource: shared memory",
        "a kernel needs more shared memory than this GPU has",
        T4,
    ),
    Cause(
        r"libcudart\.so\.(?P<cuda>\d+): cannot open shared object file",
        "this build of vLLM is for CUDA {cuda}, whose runtime is not here",
        ENVIRONMENT,
    ),
    Cause(
        r"CUDA driver version is insufficient|driver on your system is too old|forward compatibility was attempted",
        "the GPU's driver is too old for this build of vLLM",
        DRIVER,
    ),
    Cause(
        r"operator torchvision::nms does not exist",
        "a torchvision that does not match torch is installed beside vLLM",
        "Remove it from vLLM's environment: pip uninstall -y torchvision torchaudio torchcodec; then start again.",
    ),
    Cause(
        r"No module named '?(?P<module>vllm[\w.]*)'?",
        "there is no vLLM in this Python (no module {module})",
        ENVIRONMENT,
    ),
    Cause(
        r"(?:ModuleNotFoundError|ImportError): (?P<error>[^\n]+)",
        "its environment is broken: {error}",
        ENVIRONMENT,
    ),
    Cause(
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        "it found no GPU, and this build of vLLM needs one",
        "Choose a runtime with a GPU, or name another engine: 'vllm-cpu', 'simulated'.",
    ),
    Cause(
        r"fileno\b[^\n]*\n?[^\n]*UnsupportedOperation|UnsupportedOperation: fileno",
        "it was given no real file to write its log to",
        "Start it with start(), which gives it one, and not inside the notebook's own process.",
    ),
    Cause(
        r"(?:401 Client Error|GatedRepoError|403 Client Error)[^\n]*",
        "the hub refuses to hand over this model",
        "Accept its licence on the hub and set HF_TOKEN in env, or choose another model.",
    ),
    Cause(
        r"MaxRetryError|NameResolutionError|ConnectError|Name or service not known|Temporary failure in name resol",
        "the model's hub could not be reached",
        "Without internet use model='tiny' or model='smollm2'.",
    ),
    Cause(
        r"HFValidationError|RepositoryNotFoundError|LocalEntryNotFoundError|is not a local folder and is not a valid|"
        r"Cannot find an appropriate cached snapshot|does not appear to have a file named config\.json|"
        r"Repo id must (?:be|use)|Invalid repository ID or local directory",
        "the model was not found, neither as a folder nor on the hub",
        "Check its name; without internet use model='tiny' or model='smollm2'.",
    ),
    Cause(
        r"No space left on device",
        "the disk is full",
        "Make room, or set LABS_CACHE to a folder on another disk.",
    ),
    Cause(
        r"No common block size for (?P<size>\d+)[^\n]*MultipleOf\((?P<multiple>\d+)\)",
        "it takes no block_size={size}, only a multiple of {multiple}",
        "Give such a one; on a CPU the course uses 32.",
    ),
    Cause(
        r"ValidationError: \d+ validation errors? for (?P<what>\w+)\n(?P<field>[^\n]*)\n\s*(?P<error>[^\n\[]+)",
        "it refuses a setting ({what}): {error}",
        "Give it another value.",
    ),
)
# Says only that something went wrong in another process, whose own words stand above it.
WRAPPER = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError|SystemExit")
ERROR = re.compile(r"(?:^|\s)(?P<error>[\w.]*(?:Error|Exception): [^\n]+)")
ENDED = {137: ", killed, as happens when memory runs out", 139: ", a crash", 134: ", a crash"}


def find_cause(log: str) -> tuple[str, str] | None:
    """What the log says is wrong and what to do: the deepest cause, not the errors that only pass it on."""
    for cause in CAUSES:
        if found := re.search(cause.pattern, log):
            groups = {name: (text or "").strip().rstrip(".") for name, text in found.groupdict().items()}
            return cause.wrong.format(**groups), cause.do
    errors = [found["error"].strip() for line in log.splitlines() if (found := ERROR.search(line))]
    errors = [error for error in errors if not WRAPPER.search(error)]
    return (f"its first error is {shorten(errors[0])}", "Read the log above and below that.") if errors else None


def explain_end(log: str, code: int | None, path: Path, when: str) -> ServerError:
    """The error for a server that ended `when` it should not have."""
    ended = "The server gave up"
    if code is not None:
        ended = f"The server ended {when} (exit code {code}{ENDED.get(code, '')})"
    if cause := find_cause(log):
        return ServerError(f"{ended}: {cause[0]}.", cause[1], path)
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    said = f", and its last words were: {shorten(last)}." if last else " without a word."
    return ServerError(ended + said, "Read its log.", path)


def shorten(text: str, width: int = 200) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= width else line[: width - 1] + "…"
