"""Undo and redo: steps, merging of typed text, limit."""

from __future__ import annotations

from app.core.undo import MAX_UNDO, UndoStack


def test_steps_are_undone_and_redone_in_order() -> None:
    stack = UndoStack("a")
    stack.push("b", "first")
    stack.push("c", "second")
    assert (stack.undo_label, stack.redo_label) == ("second", None)
    assert [stack.undo(), stack.undo(), stack.undo()] == ["b", "a", None]
    assert stack.redo_label == "first"
    assert [stack.redo(), stack.redo(), stack.redo()] == ["b", "c", None]


def test_consecutive_typing_in_one_field_is_one_step() -> None:
    stack = UndoStack("")
    for text in ("1", "12", "128"):
        stack.push(text, "width", mergeable=True)
    assert stack.undo() == ""
    assert stack.undo() is None
    assert stack.redo() == "128"


def test_typing_in_another_field_or_after_leaving_it_is_another_step() -> None:
    stack = UndoStack(("1", "1"))
    stack.push(("12", "1"), "width", mergeable=True)
    stack.push(("12", "13"), "layers", mergeable=True)
    stack.end_merge()
    stack.push(("12", "134"), "layers", mergeable=True)
    assert [stack.undo(), stack.undo(), stack.undo()] == [("12", "13"), ("12", "1"), ("1", "1")]


def test_typing_that_restores_the_previous_value_is_no_step() -> None:
    stack = UndoStack("16")
    stack.push("1", "batch", mergeable=True)
    stack.push("16", "batch", mergeable=True)
    assert stack.undo_label is None
    stack.push("8", "batch", mergeable=True)
    assert stack.undo() == "16"


def test_a_new_change_discards_the_redo_steps_and_an_equal_state_is_no_change() -> None:
    stack = UndoStack("a")
    stack.push("a", "x")
    assert stack.undo_label is None
    stack.push("b", "x")
    stack.undo()
    stack.push("c", "y")
    assert stack.redo() is None
    assert stack.undo() == "a"


def test_the_number_of_steps_is_limited() -> None:
    stack = UndoStack(0)
    for number in range(1, MAX_UNDO + 50):
        stack.push(number, "x")
    states = list(iter(stack.undo, None))
    assert (len(states), states[-1]) == (MAX_UNDO, 49)
