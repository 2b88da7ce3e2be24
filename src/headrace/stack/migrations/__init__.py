"""The schema of the stack's database, as numbered files; `headrace.stack.migrate` applies them."""
