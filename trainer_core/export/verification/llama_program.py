"""Opens an exported GGUF file in llama.cpp. A child process of `verify`.

`python -m trainer_core.export.verification.llama_program FOLDER`: FOLDER has `request.json`. llama.cpp listens on
127.0.0.1 only, with a random key. Attention and its cache are computed in float32; with llama.cpp's defaults,
log-probabilities differ by up to 3e-3. No torch.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import xllamacpp

from trainer_core.export.verification.answers import Continuation, HeldOutRow, answer, exit_with_stdin, read_request

_FORCED: Final = 1e9  # added to the logit of a token
_REFUSED: Final = (400, 500)  # HTTP status of a conversation that the template refuses


class LlamaProgram:
    """The only GGUF file of a folder."""

    def __init__(self, folder: str, context: int) -> None:
        self.name = f"llama.cpp (xllamacpp {version('xllamacpp')})"
        (path,) = Path(folder).glob("*.gguf")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = context, 1, 0, False
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.use_jinja, params.hostnames, params.port = True, ["127.0.0.1"], 0
        key = secrets.token_hex(16)
        params.api_keys = [key]
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._server = xllamacpp.Server(params)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._bos = str(self._request("/props")["bos_token"])

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self._request("/tokenize", content=text, add_special=special, parse_special=True)["tokens"])

    def render(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[int]] | None:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text = str(self._request("/apply-template", messages=messages)["prompt"])
        except urllib.error.HTTPError as error:
            if error.code in _REFUSED:
                return None
            raise
        ids = self.encode(text, special=True)
        if ids != self.encode(text, special=False):
            text = self._bos + text  # removed from the template's text, and added again to its tokens
        return text, ids

    def continue_greedily(self, prompt: Sequence[int], max_tokens: int) -> Continuation:
        result = self._complete(prompt, max_tokens)
        scored = [(one["id"], one["logprob"]) for one in result["completion_probabilities"]]
        return Continuation(result["tokens"], _align(result["tokens"], scored))

    def stops_at(self, token: int, prompt: Sequence[int]) -> bool:
        result = self._complete(prompt, 3, logit_bias=[[token, _FORCED]])
        return bool(result["stop_type"] == "eos") and result["tokens"] == [token]

    def losses(self, row: HeldOutRow) -> list[float | None]:
        """Each next token is forced; its log-probability is that before the bias."""
        found: list[float | None] = []
        for place in row.places:
            bias = [[row.ids[place], _FORCED]]
            result = self._complete(row.ids[:place], 1, logit_bias=bias, cache_prompt=True)
            scored = result.get("completion_probabilities")
            found.append(-scored[0]["logprob"] if scored else None)
        return found

    def _complete(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Any:
        fixed = {"temperature": 0, "n_probs": 1, "return_tokens": True, "cache_prompt": False}
        return self._request("/completion", prompt=list(prompt), n_predict=max_tokens, **{**fixed, **options})

    def _request(self, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode("ascii") if body else None
        request = urllib.request.Request(self._server.listening_address + path, data, self._headers)
        with self._opener.open(request) as response:
            return json.load(response)


def _align(tokens: Sequence[int], scored: Sequence[tuple[int, float]]) -> list[float | None]:
    """Log-probability of each token. llama.cpp leaves out those after which a UTF-8 character is incomplete.

    All are None where it is not clear which were left out.
    """

    def match(tokens: Sequence[int], scored: Sequence[tuple[int, float]]) -> list[float | None]:
        rest = list(reversed(scored))
        return [rest.pop()[1] if rest and rest[-1][0] == token else None for token in tokens]

    forward, backward = match(tokens, scored), match(tokens[::-1], scored[::-1])[::-1]
    return forward if forward == backward else [None] * len(tokens)


def main(folder: Path) -> None:
    exit_with_stdin()
    request = read_request(folder)
    longest = max(len(ids) for ids in (*request.prompts, *(row.ids for row in request.held_out)))
    answer(request, LlamaProgram(request.model, longest + request.max_tokens), folder)
    os._exit(0)  # llama.cpp's server need not stop: on Wine that never returns


if __name__ == "__main__":
    main(Path(sys.argv[1]))
