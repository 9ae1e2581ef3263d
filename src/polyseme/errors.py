"""Every error polyseme raises on purpose: what was given, what was wanted, the way out."""


class PolysemeError(Exception):
    """Root of all errors raised by polyseme.

    PolysemeError
     ├── WeightsError   a model's files are missing, damaged or inconsistent
     ├── FormatError    a data file (text, JSON lines, Parquet, CoNLL, ...) is damaged or of another kind
     └── InputError     an argument is of the wrong shape, type or value
    """


class WeightsError(PolysemeError):
    """The files of a model cannot be used: missing, damaged, unsafe or inconsistent."""


class FormatError(PolysemeError):
    """A data file is damaged or not of the format it was read as; names the file and the line."""


class InputError(PolysemeError, ValueError):
    """An argument cannot be used; says what was given and what is wanted."""
