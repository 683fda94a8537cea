"""What may become of broken input: the one statement that all fuzz targets are judged by.

A call succeeds, or it raises one of `ALLOWED`, on purpose, in a file of this package, with a message. "On purpose"
means that the innermost frame of the traceback executes a `raise` statement: an IndexError, or a TypeError that an
operator raised, is a hole even where its class is allowed. Forbidden acts (`guarded`), a time limit and a memory limit
come on top; `worker` observes these.
"""

from __future__ import annotations

import dis
import re
from pathlib import Path
from types import TracebackType

from huggingface_hub.errors import StrictDataclassError

import hf_multisource

OURS = Path(hf_multisource.__file__).parent
# The documented exceptions. An ImportError names a package that is needed and not installed.
ALLOWED = (ValueError, OSError, TypeError, ImportError, StrictDataclassError)

# Exceptions of other packages that may reach the user: where they are raised, and why that is right.
JUSTIFIED = {
    ("huggingface_hub/dataclasses.py", "*"): "checks the types of our fields; the message names field, value and type",
    ("transformers/utils/hub.py", "cached_file"): "a file is missing; the message names it and the folder",
    ("transformers/utils/hub.py", "cached_files"): "as `cached_file`",
    ("auto/configuration_auto.py", "from_pretrained"): "the kind of model is unknown to Transformers, or missing",
}
# Functions of the standard library that open the files that a user names: OSError names the file.
OPENING = re.compile(r"/(pathlib|gzip|tempfile|shutil|os)(/\w+)?\.py$")


def violation(error: BaseException) -> str | None:
    """Return what is wrong with an exception that broken input caused; None: it is as it should be."""
    last = _innermost(error.__traceback__)
    said = f"{type(error).__name__} at {_short(last) if last else 'no place'}"
    if not isinstance(error, ALLOWED):
        return f"no documented exception: {said}"
    if not str(error).strip():
        return f"no message: {said}"
    if last is None or not _justified(last, error):
        return f"not raised by us on purpose: {said}"
    # What is `JUSTIFIED` may have several lines, as the errors of `huggingface_hub.dataclasses`; commands join them.
    ours = Path(last.tb_frame.f_code.co_filename).is_relative_to(OURS)
    if ours and "\n" in str(error).strip() and not isinstance(error, StrictDataclassError):
        return f"more than one line: {said}"
    return None


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _justified(last: TracebackType, error: BaseException) -> bool:
    file = last.tb_frame.f_code.co_filename
    if Path(file).is_relative_to(OURS):
        return isinstance(error, OSError) or _raises(last)
    if isinstance(error, OSError) and OPENING.search(file):
        return True
    name = last.tb_frame.f_code.co_name
    return any(file.endswith(f"/{part}") and where in (name, "*") for part, where in JUSTIFIED)


def _raises(last: TracebackType) -> bool:
    """Whether a frame stopped at a `raise` statement, and not at an operation that failed."""
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _short(last: TracebackType) -> str:
    code = last.tb_frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{last.tb_lineno}, in {code.co_name}"
