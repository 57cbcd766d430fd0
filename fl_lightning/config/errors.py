"""What the parser says of a value that does not fit, in the words of whoever typed it. Imports nothing heavy."""

import re

_KEYS = re.compile(r'Parser key "([^"]+)"')
_EXPECTED = re.compile(r"Expected an? <class '([\w.]+)'>\. Got value: (.*?)(?= - Expected an? | Given value type: |$)")
_ALTERNATIVES = re.compile(r"Subtypes: \[(.*?)\] Errors: - (.*?) Given value type: .*?Given value: (.*)$")


def in_plain_words(complaint: str) -> str:
    '''Return a complaint without the inner workings of types: the key, the value and what is wanted.

    >>> in_plain_words("""Parser key "loop.averaging": Parser key "decay": Expected a <class 'float'>. Got value: x""")
    "loop.averaging.decay='x' does not fit: wanted float"
    >>> in_plain_words("anything else")
    'anything else'
    '''
    text = " ".join(complaint.split())
    key = ".".join(_KEYS.findall(text))
    expected = _EXPECTED.findall(text)
    if key and expected:
        return _sentence(key, expected[-1][1], [expected[-1][0]])
    start = text.rfind("Subtypes: [")
    found = _ALTERNATIVES.search(text, start) if start >= 0 else None
    if not key or found is None:
        return text
    types, errors, value = found.groups()
    others = [each for each in errors.split(" - ") if not re.match(r"Expected a", each)]
    if others:
        return f"{key}: {others[0]}"
    return _sentence(key, value, re.findall(r"<class '([\w.]+)'>|([\w.]+\[[^<]*?\])|'([^']+)'", types))


def _sentence(key: str, value: str, types: list[str] | list[tuple[str, ...]]) -> str:
    names = [each if isinstance(each, str) else next(filter(None, each)) for each in types]
    words = ["null" if name == "NoneType" else re.sub(r"[a-z_][\w]*\.(?=\w)", "", name) for name in names]
    return f"{key}={value[:80]!r} does not fit: wanted {' or '.join(dict.fromkeys(words))}"
