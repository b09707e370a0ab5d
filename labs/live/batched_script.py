"""The batched script that people start from: transformers' `generate` on padded batches, one after the other.

    python batched_script.py ORDER RESULT     (labs.live.baseline does this, in the environment that holds vLLM)

ORDER is a JSON file: a model's folder or name, whether it gets random weights, and batches of requests. To RESULT
goes a line of JSON once the model is warm, and one for each batch. Times are seconds since the first batch began.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList


def load(order: dict):
    """The tokenizer and the model, on the GPU if there is one. Never with code that comes with the model."""
    name = order["model"]
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    if order["random_weights"]:
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(name)
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
    # Settings that a model brings with it are for sampling; this script takes the likeliest token.
    kept = {key: getattr(model.generation_config, key) for key in ("eos_token_id", "bos_token_id")}
    kept["eos_token_id"] = kept["eos_token_id"] or tokenizer.eos_token_id
    model.generation_config = transformers.GenerationConfig(do_sample=False, **kept)
    return tokenizer, model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def token_ids(tokenizer, request: dict) -> list[int]:
    """The prompt as token ids: given so, or from a text, or from a chat's one message."""
    prompt = request["prompt"]
    if request["chat"]:
        message = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    if isinstance(prompt, str):
        return tokenizer(prompt, add_special_tokens=not request["chat"])["input_ids"]
    return prompt


def generate(tokenizer, model, batch: list[dict], ignore_eos: bool, clock) -> dict:
    """One batch: prompts padded on the left to the longest, as many steps as the longest answer takes."""
    prompts = [token_ids(tokenizer, request) for request in batch]
    width, pad = max(map(len, prompts)), tokenizer.pad_token_id or tokenizer.eos_token_id or 0
    rows = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    ends, started = [], clock()

    def note(tokens, scores, **_):
        ends.append(clock())  # called after each step
        return torch.zeros(len(batch), dtype=torch.bool, device=tokens.device)

    stop = None if ignore_eos else model.generation_config.eos_token_id
    settings = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=max(request["max_tokens"] for request in batch), pad_token_id=pad,
        eos_token_id=stop,
    )  # fmt: skip
    with torch.inference_mode():
        made = model.generate(
            rows, attention_mask=mask, generation_config=settings, stopping_criteria=StoppingCriteriaList([note])
        )[:, width:].tolist()
    answers = [cut(row, request["max_tokens"], stop) for row, request in zip(made, batch, strict=True)]
    texts = tokenizer.batch_decode([row for row, _ in answers], skip_special_tokens=True)
    return dict(started=started, ended=clock(), step_ends=ends, steps=len(made[0]), width=width,
                prompts=[*map(len, prompts)], tokens=[len(row) for row, _ in answers],
                finish=[why for _, why in answers], texts=texts)  # fmt: skip


def cut(row: list[int], most: int, stop: int | list[int] | None) -> tuple[list[int], str]:
    """What of a row is its answer: up to its own stop token, which counts, or its own length; and which it was."""
    stops = stop if isinstance(stop, list) else [stop]
    end = next((i + 1 for i, token in enumerate(row[:most]) if token in stops), None)
    return (row[:end], "stop") if end else (row[:most], "length")


def main(order_file: str, result_file: str) -> None:
    """Load, warm up, and run every batch."""
    order, begun = json.loads(Path(order_file).read_text(encoding="utf-8")), time.perf_counter()
    with open(result_file, "a", encoding="utf-8") as result:

        def tell(what: dict) -> None:
            result.write(json.dumps(what) + "\n")
            result.flush()

        tokenizer, model = load(order)
        loaded = time.perf_counter()
        first = [request | {"max_tokens": 4} for request in order["batches"][0]]
        generate(tokenizer, model, first, True, time.perf_counter)
        zero = time.perf_counter()
        tell(dict(transformers=transformers.__version__, torch=torch.__version__, device=str(model.device),
                  dtype=str(model.dtype).removeprefix("torch."), threads=torch.get_num_threads(),
                  loading=loaded - begun, warming=zero - loaded))  # fmt: skip
        for batch in order["batches"]:
            tell(generate(tokenizer, model, batch, order["ignore_eos"], lambda: time.perf_counter() - zero))


if __name__ == "__main__":
    main(*sys.argv[1:])
