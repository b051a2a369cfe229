"""Undo and redo: steps, typing, and what is forgotten."""

from __future__ import annotations

from app.core.undo import MAX_UNDO, UndoStack


def test_steps_are_taken_back_and_brought_back_in_order() -> None:
    stack = UndoStack("a")
    stack.push("b", "first")
    stack.push("c", "second")
    assert (stack.undo_label, stack.redo_label) == ("second", None)
    assert [stack.undo(), stack.undo(), stack.undo()] == ["b", "a", None]
    assert stack.redo_label == "first"
    assert [stack.redo(), stack.redo(), stack.redo()] == ["b", "c", None]


def test_letters_typed_after_one_another_are_one_step() -> None:
    stack = UndoStack("")
    for text in ("1", "12", "128"):
        stack.push(text, "width", mergeable=True)
    assert stack.undo() == ""
    assert stack.undo() is None
    assert stack.redo() == "128"


def test_typing_elsewhere_or_after_leaving_the_field_is_another_step() -> None:
    stack = UndoStack(("1", "1"))
    stack.push(("12", "1"), "width", mergeable=True)
    stack.push(("12", "13"), "layers", mergeable=True)
    stack.end_merge()
    stack.push(("12", "134"), "layers", mergeable=True)
    assert [stack.undo(), stack.undo(), stack.undo()] == [("12", "13"), ("12", "1"), ("1", "1")]


def test_what_is_typed_back_to_what_it_was_is_no_step() -> None:
    stack = UndoStack("16")
    stack.push("1", "batch", mergeable=True)
    stack.push("16", "batch", mergeable=True)
    assert stack.undo_label is None
    stack.push("8", "batch", mergeable=True)
    assert stack.undo() == "16"


def test_a_new_change_forgets_what_was_taken_back() -> None:
    stack = UndoStack("a")
    stack.push("b", "x")
    stack.undo()
    stack.push("c", "y")
    assert stack.redo() is None
    assert stack.undo() == "a"


def test_the_same_again_is_no_change() -> None:
    stack = UndoStack("a")
    stack.push("a", "x")
    assert stack.undo_label is None


def test_only_so_many_steps_are_kept() -> None:
    stack = UndoStack(0)
    for number in range(1, MAX_UNDO + 50):
        stack.push(number, "x")
    steps = 0
    while stack.undo() is not None:
        steps += 1
    assert steps == MAX_UNDO
    assert stack.current == 49
