"""The subject of an X.509 certificate as text, as Java's X500Principal gives it: a user's name.

RFC 2253: the last part first, `CN=alice,OU=clients,O=example`. Java writes the keywords of RFC 2253
alone; any other attribute is `1.2.840.113549.1.9.1=#16...`: its identifier, and its value in DER.
The certificate is one that OpenSSL has verified; other bytes raise ValueError.
"""

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {  # of the string types of ASN.1, by tag
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "latin-1",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_EXPLICIT_VERSION: Final = 0xA0
_BLANK: Final = "\\ "
_ESCAPED: Final = {ord(one): f"\\{one}" for one in ',=+<>#;"\\'} | {0: "\\00"}


def subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises ValueError."""
    (_, whole, _), *_ = _items(certificate)
    (_, signed, _), *_ = _items(whole)
    fields = [item for item in _items(signed) if item[0] != _EXPLICIT_VERSION]
    if len(fields) < 5:  # serial number, algorithm, issuer, validity, subject
        raise ValueError("no certificate: it has no subject")
    relative_names = [_relative_name(content) for _, content, _ in _items(fields[4][1])]
    return ",".join(reversed(relative_names))


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(attribute) for _, attribute, _ in _items(content))


def _attribute(content: bytes) -> str:
    (_, oid, _), (tag, value, encoded) = _items(content)
    identifier = _identifier(oid)
    keyword, encoding = _KEYWORDS.get(identifier), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        return f"{keyword or identifier}=#{encoded.hex()}"
    text = value.decode(encoding)
    inner, start = text.strip(" "), len(text) - len(text.lstrip(" "))
    before, behind = _BLANK * start, _BLANK * (len(text) - start - len(inner))
    return f"{keyword}={before}{inner.translate(_ESCAPED)}{behind}"


def _identifier(oid: bytes) -> str:
    numbers, number = list[int](), 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("no certificate: an empty identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _items(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the items of a sequence or set: tag, content, and both with their length, in DER."""
    position = 0
    while position < len(content):
        start, tag = position, content[position]
        size = content[position + 1] if position + 1 < len(content) else 0
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(content[position : position + count], "big")
            position += count
        end = position + size
        if end > len(content):
            raise ValueError("no certificate: an item is cut off")
        yield tag, content[position:end], content[start:end]
        position = end
