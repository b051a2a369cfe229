"""`load_dataset`, `map` and `save_to_disk` of Hugging Face Datasets, batched and with a fast tokenizer, as documented.

    python -m bench.peers.datasets_map DATA OUTPUT_FOLDER TOKENIZER PROCESSES

DATA is .parquet with prompts and responses, which get the same ChatML as in Traindeck, or .txt. With 0 PROCESSES, `map`
runs in this process. Prints the seconds of each stage as JSON.
"""

import json
import sys
import time
from typing import Any

NO_EXTRAS = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}


def encode_pairs(batch: dict[str, list[str]], tokenizer: Any) -> dict[str, list[Any]]:
    prompts = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in batch["prompt"]]
    prompt_ids = tokenizer(prompts, **NO_EXTRAS)["input_ids"]
    response_ids = tokenizer([f"{text}<|im_end|>" for text in batch["response"]], **NO_EXTRAS)["input_ids"]
    ids = [prompt + response for prompt, response in zip(prompt_ids, response_ids, strict=True)]
    return {"input_ids": ids, "prompt_length": [len(prompt) for prompt in prompt_ids]}


def encode_text(batch: dict[str, list[str]], tokenizer: Any) -> dict[str, list[Any]]:
    return {"input_ids": tokenizer(batch["text"], **NO_EXTRAS)["input_ids"]}


if __name__ == "__main__":
    file, output, tokenizer_file, processes = sys.argv[1:]
    num_proc = int(processes) or None
    times = [time.perf_counter()]
    from datasets import load_dataset  # type: ignore[import-untyped]
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)  # type: ignore[no-untyped-call]
    times.append(time.perf_counter())
    if file.endswith(".txt"):
        rows, encode = load_dataset("text", data_files=file, split="train", keep_linebreaks=True), encode_text
    else:
        rows, encode = load_dataset("parquet", data_files=file, split="train"), encode_pairs
    times.append(time.perf_counter())
    options: dict[str, Any] = {"batched": True, "remove_columns": rows.column_names, "num_proc": num_proc}
    tokens = rows.map(encode, fn_kwargs={"tokenizer": tokenizer}, **options)
    times.append(time.perf_counter())
    tokens.save_to_disk(output, num_proc=num_proc)
    times.append(time.perf_counter())
    stages = zip(("import", "load", "map", "save"), times, times[1:], strict=False)
    print(json.dumps({stage: end - start for stage, start, end in stages}))
