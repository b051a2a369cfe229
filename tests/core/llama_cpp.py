"""GGUF files opened in llama.cpp, within the process, as a server on 127.0.0.1."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

xllamacpp = pytest.importorskip("xllamacpp")


class LlamaCpp:
    """A model in llama.cpp. Attention and its cache are computed in fp32, on one thread."""

    def __init__(self, path: Path, adapter: Path | None = None, context: int = 96) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = context, 1, 0, False
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.use_jinja, params.hostnames, params.port, params.verbosity = True, ["127.0.0.1"], 0, 0
        if adapter is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
        self._server = xllamacpp.Server(params)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of a text; with `special`, of a rendered chat, in which special tokens count."""
        return list(self._request("/tokenize", content=text, add_special=special, parse_special=special)["tokens"])

    def render(self, *messages: tuple[str, str]) -> str:
        """A chat, up to where the model begins to write."""
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(self._request("/apply-template", messages=turns)["prompt"])

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy tokens after `ids`, up to `count` or one that ends the text."""
        options = {"temperature": 0, "return_tokens": True, "cache_prompt": False}
        return list(self._request("/completion", prompt=list(ids), n_predict=count, **options)["tokens"])

    def _request(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._server.listening_address + path, json.dumps(body).encode(), headers)
        with self._opener.open(request, timeout=60) as response:
            return json.load(response)
