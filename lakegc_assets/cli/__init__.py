"""The command line. A ``LakegcError``, which any function may raise, ends a command: ``output``."""
