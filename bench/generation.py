"""Generation: tokens per second compared with `transformers.generate`.

    python -m bench.generation           Qwen2's architecture with 34 million weights, and that of SmolLM2-135M
    python -m bench.generation --device cuda --dtypes bfloat16
    python -m bench.generation --shapes qwen2-34m --dtypes float32 --rounds 3

Both have the same random weights, dtype and prompts of 64 random tokens, and choose the most probable token 64 times,
for one prompt and for eight at once. They run in turn in one process; ratios are medians of those within each round.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from bench import results

TARGETS: Final = {"cpu": 1.5, "cuda": 2.0}
_PROMPT_TOKENS, _NEW_TOKENS = 64, 64
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    "qwen2-34m": {
        "model_type": "qwen2", "vocab_size": 16_000, "hidden_size": 512, "intermediate_size": 1408,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    },
    "smollm2-135m": {
        "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048,
    },
}  # fmt: skip


def build_pair(shape: str, dtype: str, device: str) -> tuple[Any, Any]:
    """The same random model in transformers, and in Traindeck as `generate` loads it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer_core.models import hf_config, inference
    from trainer_core.models.build import build_model

    values = {name: value for name, value in _SHAPES[shape].items() if name != "model_type"}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(_SHAPES[shape]["model_type"], tie_word_embeddings=True, **values, **ends)
    torch.manual_seed(0)
    peer = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).to(device).eval()
    own = build_model(torch.device(device), hf_config.from_hf_config(config.to_dict(), shape), False, peer.dtype)
    own.load_state_dict(peer.state_dict())
    inference.optimize(own.eval())
    return peer, own


def measure(shape: str, dtype: str, batch: int, rounds: int, clock: Callable[[], float], device: str) -> dict[str, Any]:
    """Tokens/s of both, and the share of equal tokens."""
    import torch

    from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens

    peer, own = build_pair(shape, dtype, device)
    prompts = torch.randint(0, 16_000, (batch, _PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))

    def transformers() -> list[list[int]]:
        ids = prompts.to(device)
        found = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NEW_TOKENS, do_sample=False)
        return found[:, _PROMPT_TOKENS:].tolist()  # type: ignore[no-any-return]

    def traindeck() -> list[list[int]]:
        rows = prompts.tolist()
        if batch == 1:
            return [list(generate_tokens(own, rows[0], _NEW_TOKENS, SamplingParams(temperature=0), frozenset()))]
        found = generate_batch(own, rows, [_NEW_TOKENS] * batch, frozenset(), lambda: None)
        return [completion.tokens for completion in found]

    speeds: dict[str, list[float]] = {"transformers": [], "traindeck": []}
    tokens: dict[str, list[list[int]]] = {}
    for _ in range(rounds + 1):  # the first is a warmup
        for generate in (transformers, traindeck):
            began = clock()
            tokens[generate.__name__] = generate()
            speeds[generate.__name__].append(batch * _NEW_TOKENS / (clock() - began))
    pairs = zip(*(itertools.chain(*rows) for rows in tokens.values()), strict=True)
    equal = [one == other for one, other in pairs]
    found = {name: values[1:] for name, values in speeds.items()}
    ratio = statistics.median(own / peer for own, peer in zip(found["traindeck"], found["transformers"], strict=True))
    return {"ratio": ratio, "shape": shape, "dtype": dtype, "batch": batch, "equal": sum(equal) / len(equal), **found}


def format_rows(found: list[dict[str, Any]], device: str) -> list[str]:
    rows = []
    for one in found:
        ratios = [own / peer for own, peer in zip(one["traindeck"], one["transformers"], strict=True)]
        rows.append({
            "": f"{one['shape']}, {one['dtype']}, {one['batch']} at once",
            "transformers tokens/s": statistics.median(one["transformers"]),
            "Traindeck tokens/s": statistics.median(one["traindeck"]), "ratio": one["ratio"],
            "from": min(ratios), "to": max(ratios), "equal tokens": one["equal"],
        })  # fmt: skip
    return [results.markdown_table(rows), "", f"Target: {TARGETS[device]} times the tokens/s."]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.generation", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(_SHAPES), default=list(_SHAPES))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=list(TARGETS), default="cpu")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, if the machine has other work")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    with results.benchmark("generation" if args.device == "cpu" else "generation-cuda") as report:
        report.document["runs"] = []
        for shape in args.shapes:
            for dtype in args.dtypes:
                for batch in args.batches:
                    report.document["runs"].append(measure(shape, dtype, batch, args.rounds, clock, args.device))
                    results.log(str(report.document["runs"][-1]))
        report.lines = format_rows(report.document["runs"], args.device)
