"""Write model folders; run by path, with the Python of the environment that holds vLLM and transformers.

    python model_maker.py tiny FOLDER MAX_MODEL_LEN     a Qwen2 of 512 x 8 with a byte-level tokenizer, no weights
    python model_maker.py unpack GGUF_FILE FOLDER       the full-precision model that a GGUF file holds
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

END = "<|end|>"
CHAT = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}{{ 'assistant: ' }}"
# Small enough for two cores, large enough that a step's time grows with its batch.
SHAPE = dict(
    hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
)  # fmt: skip


def tiny(folder: Path, max_model_len: int) -> None:
    """Write a config and a tokenizer; the weights are made at random by vLLM's `--load-format dummy`."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    byte_level = ByteLevelBPETokenizer()
    byte_level.train_from_iterator(["one step, one token"], vocab_size=257, special_tokens=[END])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, eos_token=END, pad_token=END)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    # The vocabulary is exactly the tokenizer's: an id beyond it would decode to no text, and no chunk would be sent.
    config = SHAPE | dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=len(tokenizer), torch_dtype="bfloat16",
        max_position_embeddings=max_model_len, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def unpack(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as an ordinary folder, its weights in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = dict(pretrained_model_name_or_path=str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        **place, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("quantization_config", None)  # it is null by now, and vLLM stumbles over that
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tiny", folder, length]:
            tiny(Path(folder), int(length))
        case ["unpack", file, folder]:
            unpack(Path(file), Path(folder))
        case _:
            sys.exit(__doc__)
