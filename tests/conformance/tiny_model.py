"""Make the folder of a tiny random model: a config, and a byte-level tokenizer made on the spot; no weights.

Run with the Python of the environment with vLLM: `-m tests.conformance.tiny_model FOLDER MAX_MODEL_LEN`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

END = "<|end|>"


def make(folder: Path, max_model_len: int) -> None:
    """Write a Qwen2 of one layer. The head size is one that vLLM's CPU attention takes."""
    folder.mkdir(parents=True, exist_ok=True)
    bytes_only = ByteLevelBPETokenizer()
    bytes_only.train_from_iterator(["one step, one token"], vocab_size=256, special_tokens=[END])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only._tokenizer, eos_token=END, pad_token=END)
    tokenizer.save_pretrained(folder)
    config = dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=64, intermediate_size=128,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=len(tokenizer),
        max_position_embeddings=max_model_len, eos_token_id=tokenizer.eos_token_id, torch_dtype="bfloat16",
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
