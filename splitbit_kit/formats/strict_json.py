"""JSON without the extensions that other readers refuse: no NaN, no key twice, UTF-8 only."""

import json
from typing import Any, NoReturn

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats.untrusted import shown


def dump(value: Any, where: str, indent: int | None = None) -> bytes:
    """Return the value as JSON, keys sorted; parsing it gives an equal value, floats to the bit.

    Raises SplitbitError for what would come back different: NaN and infinities, tuples, keys that
    are no text, NumPy's numbers other than float64. `where` begins the error line.
    """
    try:
        data = json.dumps(value, sort_keys=True, allow_nan=False, indent=indent).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SplitbitError(f"{where}: cannot be stored as JSON ({error})") from error
    if parse(data, where) != value:
        raise SplitbitError(
            f"{where}: would come back different from JSON; lists for tuples and text for keys "
            "are expected"
        )
    return data


def parse(data: bytes, where: str, offset: int = 0) -> Any:
    """Return what the JSON says.

    Raises SplitbitError for bad UTF-8, a key that stands twice, NaN, Infinity, a lone surrogate,
    and nesting or numbers beyond Python's limits. `where` begins the error line; `offset` is where
    in the file the data starts.
    """
    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise SplitbitError(f"{where}: byte {offset + error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        at = offset + len(error.doc[: error.pos].encode())
        raise SplitbitError(f"{where}: not JSON at byte {at} ({error.msg})") from error
    except RecursionError as error:
        raise SplitbitError(f"{where}: JSON nested too deeply") from error
    except ValueError as error:  # ours from below, or an integer of more than 4,300 digits
        raise SplitbitError(f"{where}: not strict JSON ({error})") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {shown(key)} stands twice")
        _refuse_surrogates(key)
        if isinstance(value, str):
            _refuse_surrogates(value)
        result[key] = value
    return result


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"lone surrogate in {shown(text)}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
