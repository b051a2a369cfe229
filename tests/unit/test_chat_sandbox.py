"""Limits of untrusted chat templates."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest

from trainer_core.data.tokenizing import sandbox

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with a condition": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for a in [[1]] recursive %}{% if loop.depth0 < 99 %}{{ loop([a, a]) }}{% endif %}"
    "{% endfor %}",
    "a recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "a recursive block": "{% set ns = namespace(n=0) %}{% block f %}{% for a in (1, 2) %}{% if ns.n < 50 %}"
    "{% set ns.n = ns.n + 1 %}{{ self.f() }}{% set ns.n = ns.n - 1 %}{% endif %}{% endfor %}{% endblock %}",
    "a power": "{{ 9 ** 9 ** messages|length ** 9 ** 9 }}",
    "a constant power": "{{ 9 ** 9 ** 9 }}",
    "output": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
}


def render(source: str, content: str) -> str:
    messages = [{"role": "user", "content": content}] * 9
    return sandbox.SandboxedTemplate(source, datetime.now()).render(messages)


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_an_endless_template_is_refused(source: str) -> None:
    """Renders in a separate process, which a timeout can end."""
    source = "{% if messages[0].content == 'run' %}" + source + "{% else %}fine{% endif %}"
    script = (
        "import sys; from tests.unit.test_chat_sandbox import render\n"
        "print(render(sys.argv[1], 'skip'))\n"
        "try: print(len(render(sys.argv[1], 'run')))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    result = subprocess.run([sys.executable, "-c", script, source], capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("fine\nTraindeckError"), result.stdout + result.stderr


def test_counting_steps_does_not_change_the_output() -> None:
    source = (
        "{% macro f(x) %}<{{ x }}>{% endmacro %}"
        "{% for m in messages if loop is not defined %}{{ loop.index }}/{{ loop.length }}{{ f(m.role) }}"
        "{% if loop.last %}!{% endif %}{% else %}none{% endfor %}{% for a in [] %}{% else %}empty{% endfor %}"
    )
    assert render(source, "").startswith("1/9<user>2/9<user>")
    assert render(source, "").endswith("9/9<user>!empty")


def test_a_long_conversation_stays_below_the_step_limit() -> None:
    source = "{% for m in messages %}{{ m.role }}{% endfor %}"
    assert len(sandbox.SandboxedTemplate(source, datetime.now()).render([{"role": "user"}] * 200_000)) == 800_000
