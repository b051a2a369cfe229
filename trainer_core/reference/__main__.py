"""`python -m trainer_core.reference`: write the pages."""

from trainer_core.reference.pages import write

if __name__ == "__main__":
    for written in write():
        print(written)  # noqa: T201 - a tool for developers
