"""Text that is told piece by piece, joined, is the text of all tokens."""

import pytest

from helpers.techniques.serving.protocol import Text
from tests.techniques.serving.running import prompts, small


class Bytes:
    """A tokenizer of bytes; token 0 is special."""

    def decode(self, ids, skip_special_tokens):
        return bytes(one for one in ids if one).decode(errors="replace")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_bytes_of_one_character_are_told_together(size):
    ids = [*"añb€c🙂d".encode(), 0]
    text = Text(Bytes())
    pieces = [text.add(tuple(ids[at : at + size]), last=at + size >= len(ids)) for at in range(0, len(ids), size)]
    assert "".join(pieces) == "añb€c🙂d"
    assert all("\ufffd" not in piece for piece in pieces)


def test_what_never_becomes_whole_is_told_at_the_end():
    text = Text(Bytes())
    assert [text.add((0xE2,)), text.add((0x82,), last=True)] == ["", "\ufffd"]


def test_words_and_special_tokens():
    tokenizer = small().tokenizer
    ids = [2, *prompts(1)[0], 3, 3, 6, 17]
    text = Text(tokenizer)
    assert "".join(text.add((one,)) for one in ids) == tokenizer.decode(ids, skip_special_tokens=True)
