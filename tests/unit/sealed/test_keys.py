"""Keys, masks and the memory of them: what cancels, what is refused, what is never drawn again."""

import msgspec
import numpy as np
import pytest

from sfumato.errors import BadAnswer, InvalidInput, KeysGone, LedgerError
from sfumato.owners.sealing import opened
from sfumato.privacy.coalition import check_shares, left_of, part_of, quanta_for_everybody
from sfumato.protocol.consortium import KeyMessage, Member, Roster, decode_message, encode, fingerprint, key_of
from sfumato.vault.sealed.book import SealBook
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.sealed.identity import Identity
from sfumato.vault.sealed.masks import Masks, masked, pair_key

MEMBERS = Consortium.among("abc", colluders=1)


def keys_of(name, run="run", model="m", n=10, members=MEMBERS, book=None):
    return members[name].run(run, model, n, book)


def three(**changes):
    return [keys_of(name, book=SealBook(), **changes) for name in "abc"]


def agree(keys):
    messages = [one.message() for one in keys]
    return [one.agree(messages) for one in keys], messages


def forged(message, identity=None, **changes):
    """A key message with something changed: signed by whom one likes, or under the signature it had."""
    vow, whole = decode_message(message)
    changed = encode(msgspec.structs.replace(vow, **changes))
    return encode(KeyMessage(changed, whole.signature if identity is None else identity.sign(changed)))


# -- masks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 10])
def test_masks_cancel_over_all_and_in_no_smaller_sum(size):
    pairs = {(i, j): pair_key(bytes([i, j]) * 16, b"salt", i, j) for i in range(size) for j in range(i + 1, size)}
    tag = b"t" * 32
    all_ = [
        Masks(i, {j: pairs[min(i, j), max(i, j)] for j in range(size) if j != i}).of(tag, 1000) for i in range(size)
    ]
    numbers = np.random.default_rng(0).integers(-(2**50), 2**50, (size, 1000))
    hidden = np.array([masked(x, mask) for x, mask in zip(numbers, all_, strict=True)])
    assert np.array_equal(opened(hidden, np.ones(1000, bool)), numbers.sum(axis=0))
    for left_out in range(size):
        rest = np.delete(hidden, left_out, axis=0).view(np.uint64).sum(axis=0)
        bits = np.unpackbits(rest.view(np.uint8)).mean()
        assert abs(bits - 0.5) < 5 * 0.5 / 64_000**0.5  # 64000 fair coins: beyond 5 sd once in two million
        with pytest.raises(BadAnswer, match="cancel"):
            opened(np.delete(hidden, left_out, axis=0), np.ones(1000, bool))


def test_masks_depend_on_tag_pair_and_keyset():
    one = Masks(0, {1: pair_key(b"s" * 32, b"k", 0, 1)}).of(b"t" * 32, 8)
    for other in (
        Masks(0, {1: pair_key(b"s" * 32, b"k", 0, 1)}).of(b"u" * 32, 8),
        Masks(0, {1: pair_key(b"s" * 32, b"l", 0, 1)}).of(b"t" * 32, 8),
        Masks(0, {2: pair_key(b"s" * 32, b"k", 0, 2)}).of(b"t" * 32, 8),
        Masks(0, {1: pair_key(b"r" * 32, b"k", 0, 1)}).of(b"t" * 32, 8),
    ):
        assert not np.any(one == other)
    assert pair_key(b"s" * 32, b"k", 0, 1) == pair_key(b"s" * 32, b"k", 1, 0)


# -- identities and rosters -------------------------------------------------------------------------------------------


def test_an_identity_is_read_back_and_kept_from_others(tmp_path):
    made = Identity.new(tmp_path / "id")
    assert Identity.open(tmp_path / "id").public == made.public != Identity.new().public
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidInput, match="new file"):
        Identity.new(tmp_path / "id")
    (tmp_path / "id").chmod(0o644)
    with pytest.raises(InvalidInput, match="owner's alone"):
        Identity.open(tmp_path / "id")
    (tmp_path / "other").write_text("nothing")
    (tmp_path / "other").chmod(0o600)
    with pytest.raises(InvalidInput, match="identity new"):
        Identity.open(tmp_path / "other")
    with pytest.raises(InvalidInput, match="no identity"):
        Identity.open(tmp_path / "missing")


def test_fingerprints_are_six_groups_of_digits():
    one, other = (fingerprint(MEMBERS[name].roster.members[i].key) for i, name in enumerate("ab"))
    assert one != other and len(one.split()) == 6 and one.replace(" ", "").isdigit()


@pytest.mark.parametrize("text", ["", "sfumato-id:", "sfumato-id:abc", "x" * 97, None, 3])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(InvalidInput, match="identity show"):
        key_of(text)


def test_rosters_are_checked_and_their_digest_is_of_all_of_it():
    members = MEMBERS["a"].roster.members
    whole = Roster("r", "s", members)
    assert len({whole.digest, Roster("r", "t", members).digest, Roster("q", "s", members).digest,
                Roster("r", "s", members[::-1]).digest, Roster("r", "s", members[:2]).digest}) == 5  # fmt: skip
    with pytest.raises(InvalidInput, match="of its own"):
        Roster("r", "s", (*members, Member("d", members[0].key)))
    with pytest.raises(InvalidInput, match="2 to"):
        Roster("r", "s", members[:1])
    with pytest.raises(InvalidInput, match="printable"):
        Roster("", "s", members)
    with pytest.raises(InvalidInput, match="no member"):
        Consortium(
            "r", members={"a": members[0].key, "b": members[1].key}, me="c", identity=Identity.new(), colluders=0
        )
    with pytest.raises(InvalidInput, match="another key"):
        Consortium(
            "r", members={"a": members[0].key, "b": members[1].key}, me="a", identity=Identity.new(), colluders=0
        )
    with pytest.raises(InvalidInput, match="colluders"):
        Consortium.among("ab", colluders=2)


# -- key messages -------------------------------------------------------------------------------------------------------


def test_all_members_agree_on_the_same_keyset_and_numbers():
    agreed, _ = agree([keys_of(name, n=n, book=SealBook()) for name, n in zip("abc", (10, 20, 30), strict=True)])
    assert len({one.keyset for one in agreed}) == 1
    assert agreed[0].n == 60 and agreed[0].colluders == (1, 1, 1)


def refuse(change, match, error=InvalidInput):
    keys = three()
    messages = [one.message() for one in keys]
    with pytest.raises(error, match=match):
        keys[0].agree(change(messages))
    assert keys[0].agreement is None


def test_key_messages_that_are_not_the_members_own_are_refused():
    stranger = Identity.new()
    other_run = three(run="other")[1].message()
    refuse(lambda m: m[:2], "all 3 members")
    refuse(lambda m: [*m, m[2]], "all 3 members")
    refuse(lambda m: [m[0], m[2], m[1]], "not signed with the key")
    refuse(lambda m: [m[0], forged(m[1], key=b"x" * 32), m[2]], "not signed with the key")
    refuse(lambda m: [m[0], forged(m[1], stranger), m[2]], "not signed with the key")
    refuse(lambda m: [m[0], other_run, m[2]], "another run")
    refuse(lambda m: [m[0], b"\x93junk", m[2]], "must be one")
    refuse(lambda m: [m[0], m[1] + b"\x00", m[2]], "must be one")
    refuse(lambda m: [three()[0].message(), *m[1:]], "another key", KeysGone)


def test_a_members_own_false_words_are_refused():
    """Signed by the member itself: it may be on the analyst's side."""
    mine = MEMBERS["b"]._identity
    roster = Consortium.among("abc", colluders=1)["a"].roster.digest
    for words, changes in (
        ("another run", {"run": "old"}), ("another roster", {"roster": roster}), ("another roster", {"label": "x"}),
        ("another's place", {"member": 2}), ("another model", {"model": "x"}), ("no key", {"key": b"short"}),
        ("no key", {"epoch": 0}), ("numbers", {"n": 0}), ("numbers", {"colluders": 3}), ("numbers", {"colluders": -1}),
        ("numbers", {"n": 10**14}), ("no secret", {"key": bytes(32)}),
    ):  # fmt: skip
        refuse(lambda m, changes=changes: [m[0], forged(m[1], mine, **changes), m[2]], words)
    # Another's key under one's own name: masks of that pair would be known to it.
    refuse(lambda m: [m[0], forged(m[1], mine, key=decode_message(m[2])[0].key), m[2]], "the same")


def test_keys_only_ever_get_newer():
    keys = three()
    _, old = agree(keys)
    keys[1].expire()
    _, new = agree(keys)
    assert decode_message(new[1])[0].epoch == 2 and old[0] == new[0]
    with pytest.raises(LedgerError, match="older key"):
        keys[0].agree([new[0], old[1], new[2]])
    # Put back from a copy of its disk: another key of an epoch that the others know.
    back = keys_of("b", book=SealBook())
    with pytest.raises(LedgerError, match="older key"):
        agree([keys[0], back, keys[2]])
    back.expire()
    again = [keys[0], back, keys[2]]
    with pytest.raises(LedgerError, match="another key of the same epoch"):
        agree(again)


def test_a_round_is_begun_once_and_never_under_keys_that_are_gone():
    keys = three()
    (agreed, *_), _ = agree(keys)
    query = f"run/0/ratio~{agreed.keyset.hex()[:24]}"
    keys[0].begin(query)
    assert keys[0].was_begun(query) and keys[0].current(query) and not keys[0].current("run/0/ratio")
    for gone in (query, "run/0/ratio~" + "0" * 24, "run/0/ratio"):
        with pytest.raises(KeysGone):
            keys[0].begin(gone)
    keys[0].expire()
    with pytest.raises(KeysGone):
        keys[0].begin(f"run/1/ratio~{agreed.keyset.hex()[:24]}")
    with pytest.raises(KeysGone):
        keys[0].seal(query, "content", [1], [True])


def test_a_row_that_one_owner_leaves_out_opens_for_nobody():
    keys = three()
    (agreed, *_), _ = agree(keys)
    query = f"run/0/ratio~{agreed.keyset.hex()[:24]}"
    sent = [one.seal(query, "q", [5, 6], [True, i > 0])[0] for i, one in enumerate(keys)]
    assert sent[0][1] == 0
    total = np.array(sent, np.int64).view(np.uint64).sum(axis=0).view(np.int64)
    assert total[0] == 15 and abs(int(total[1])) > 2**40


# -- the book ---------------------------------------------------------------------------------------------------------------


def test_the_book_remembers_beyond_its_process(tmp_path):
    one, other = SealBook(tmp_path / "book"), SealBook(tmp_path / "book")
    assert [one.next_epoch("r"), other.next_epoch("r"), one.next_epoch("r"), one.next_epoch("s")] == [1, 2, 3, 1]
    one.note_key("r", "b", 4, "x")
    other.note_key("r", "b", 4, "x")
    for epoch, digest in ((3, "y"), (4, "y")):
        with pytest.raises(LedgerError):
            SealBook(tmp_path / "book").note_key("r", "b", epoch, digest)
    one.claim_release("spring", "d")
    with pytest.raises(LedgerError, match="used once"):
        other.claim_release("spring", "d")


def test_a_torn_line_of_the_book_was_never_said_and_an_edited_one_is_refused(tmp_path):
    book = SealBook(tmp_path / "book")
    book.next_epoch("r")
    with (tmp_path / "book").open("ab") as file:
        file.write(b'{"epoch": 7, "ru')
    assert SealBook(tmp_path / "book").next_epoch("r") == 2
    (tmp_path / "book").write_text("nonsense\n")
    with pytest.raises(LedgerError, match="edited"):
        SealBook(tmp_path / "book").next_epoch("r")
    (tmp_path / "book").write_text("")
    with pytest.raises(LedgerError, match="shorter"):
        book.next_epoch("r")


# -- what is paid ------------------------------------------------------------------------------------------------------------


def test_a_member_pays_for_what_the_coalition_cannot_subtract():
    shares = [0.4, 0.3, 0.2, 0.1]
    assert left_of(shares, 0, 0) == pytest.approx(1.0, abs=1e-11)
    assert left_of(shares, 0, 1) == pytest.approx(0.7, abs=1e-11)
    assert left_of(shares, 3, 2) == pytest.approx(0.3, abs=1e-11)
    assert left_of(shares, 1, 3) == pytest.approx(0.3, abs=1e-11)
    equal = part_of([0.25] * 4, 2, 1, 100)
    assert equal.own == 0.5 and equal.paid**2 == pytest.approx(0.75, abs=1e-11) and equal.paid**2 <= 0.75
    assert 3.0 <= equal.dearer == pytest.approx(3.0, abs=1e-11)
    assert 3 * 7 <= quanta_for_everybody(7, equal.dearer) <= 3 * 7 + 1
    assert quanta_for_everybody(2**61, 3.0) == 3 * 2**61


@pytest.mark.parametrize(
    "shares",
    [[], [1.0], [0.5, 0.5], [0.5, 0.5, 0.0], [0.6, 0.5, -0.1], [0.4, 0.4, 0.4], [float("nan")] * 3, [1, 1e-9, 1e-9]],
)
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(InvalidInput, match="shared out"):
        check_shares(shares, 3)
