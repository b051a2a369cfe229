"""`python -m trainer_core.docgen`: write the generated pages."""

from trainer_core.docgen.pages import write

write()
