"""PTX as text and in parsed form, without the semantics of instructions."""
