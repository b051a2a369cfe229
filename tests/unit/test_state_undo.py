"""Undo and redo: steps, typing, and what is forgotten."""

from __future__ import annotations

from app.state.undo import MOST, UndoStack


def test_steps_are_taken_back_and_brought_back_in_order() -> None:
    stack = UndoStack("a")
    stack.push("b", "first")
    stack.push("c", "second")
    assert (stack.undoes, stack.redoes) == ("second", None)
    assert [stack.undo(), stack.undo(), stack.undo()] == ["b", "a", None]
    assert stack.redoes == "first"
    assert [stack.redo(), stack.redo(), stack.redo()] == ["b", "c", None]


def test_letters_typed_after_one_another_are_one_step() -> None:
    stack = UndoStack("")
    for text in ("1", "12", "128"):
        stack.push(text, "width", typing=True)
    assert stack.undo() == ""
    assert stack.undo() is None
    assert stack.redo() == "128"


def test_typing_elsewhere_or_after_leaving_the_field_is_another_step() -> None:
    stack = UndoStack(("1", "1"))
    stack.push(("12", "1"), "width", typing=True)
    stack.push(("12", "13"), "layers", typing=True)
    stack.settle()
    stack.push(("12", "134"), "layers", typing=True)
    assert [stack.undo(), stack.undo(), stack.undo()] == [("12", "13"), ("12", "1"), ("1", "1")]


def test_what_is_typed_back_to_what_it_was_is_no_step() -> None:
    stack = UndoStack("16")
    stack.push("1", "batch", typing=True)
    stack.push("16", "batch", typing=True)
    assert stack.undoes is None
    stack.push("8", "batch", typing=True)
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
    assert stack.undoes is None


def test_only_so_many_steps_are_kept() -> None:
    stack = UndoStack(0)
    for number in range(1, MOST + 50):
        stack.push(number, "x")
    steps = 0
    while stack.undo() is not None:
        steps += 1
    assert steps == MOST
    assert stack.present == 49
