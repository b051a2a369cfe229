"""The peer of `bench.preparation`: `load_dataset`, `map` and `save_to_disk` of Hugging Face Datasets.

As in its documentation: batched, a fast tokenizer, Arrow files on disk. Prompts and responses get the same ChatML as in
Traindeck. Prints the seconds of each stage as JSON.
"""

import argparse
import json
import time
from typing import Any


def encode_pairs(batch: dict[str, list[str]], tokenizer: Any) -> dict[str, list[Any]]:
    prompts = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in batch["prompt"]]
    responses = [f"{text}<|im_end|>" for text in batch["response"]]
    plain = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    heads = tokenizer(prompts, **plain)["input_ids"]
    tails = tokenizer(responses, **plain)["input_ids"]
    return {
        "input_ids": [head + tail for head, tail in zip(heads, tails, strict=True)],
        "prompt_length": [len(head) for head in heads],
    }


def encode_text(batch: dict[str, list[str]], tokenizer: Any) -> dict[str, list[Any]]:
    plain = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    return {"input_ids": tokenizer(batch["text"], **plain)["input_ids"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help=".parquet with pairs or a text column, or .txt")
    parser.add_argument("out", help="folder for the tokens")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--num-proc", type=int, default=0, help="0: in this process")
    chosen = parser.parse_args()
    processes = chosen.num_proc or None

    begun = time.perf_counter()
    from datasets import load_dataset  # type: ignore[import-untyped]
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=chosen.tokenizer)  # type: ignore[no-untyped-call]
    imported = time.perf_counter()
    if chosen.data.endswith(".txt"):
        rows = load_dataset("text", data_files=chosen.data, split="train", keep_linebreaks=True)
    else:
        rows = load_dataset("parquet", data_files=chosen.data, split="train")
    loaded = time.perf_counter()
    tokens = rows.map(
        encode_pairs if "prompt" in rows.column_names else encode_text,
        batched=True,
        num_proc=processes,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": tokenizer},
    )
    mapped = time.perf_counter()
    tokens.save_to_disk(chosen.out, num_proc=processes)
    saved = time.perf_counter()
    stages = {"import": imported - begun, "load": loaded - imported, "map": mapped - loaded, "save": saved - mapped}
    print(json.dumps(stages))


if __name__ == "__main__":
    main()
