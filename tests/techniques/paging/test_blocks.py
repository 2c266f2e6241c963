"""The block manager: tables, references, copy on write, swapping; and what holds after any operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helpers.catalog import WorkbookError
from helpers.techniques.paging import BlockManager, ContiguousManager, Copy, OutOfBlocksError, PrefixCache


def state(manager):
    return (
        list(manager.free),
        list(manager.references),
        dict(manager.lengths),
        list(manager.host_free),
        {name: list(table) for name, table in (manager.tables | manager.host_tables).items()},
    )


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_are_taken_when_they_are_needed(tokens, blocks):
    at_once, one_by_one = BlockManager(8), BlockManager(8)
    at_once.append("a", tokens)
    for _ in range(tokens):
        one_by_one.append("a")
    assert len(at_once.tables["a"]) == len(one_by_one.tables["a"]) == blocks
    assert (at_once.filled_slots, at_once.reserved_slots) == (tokens, blocks * 16)


def test_a_fork_takes_nothing_and_the_first_to_write_copies():
    manager = BlockManager(8, block_size=4)
    manager.append("a", 6)
    manager.fork("a", "b")
    assert (len(manager.free), manager.reserved_slots, manager.filled_slots) == (6, 8, 6)
    assert manager.append("b", 1) == [Copy(1, 2)]
    assert manager.append("a", 1) == []  # alone again
    assert (manager.tables, manager.references[:3]) == ({"a": [0, 1], "b": [0, 2]}, [2, 1, 1])
    assert (manager.reserved_slots, manager.filled_slots) == (12, 4 + 3 + 3)


def test_a_full_shared_block_needs_no_copy():
    manager = BlockManager(8, block_size=4)
    manager.append("a", 4)
    manager.fork("a", "b")
    assert manager.append("b", 1) == []
    assert manager.tables == {"a": [0], "b": [0, 1]}


def test_swapping_gives_all_device_blocks_up_and_takes_new_ones():
    manager = BlockManager(6, block_size=4, host_blocks=3)
    manager.append("a", 6)
    manager.fork("a", "b")
    moves = manager.swap_out("b")
    assert moves == [Copy(0, 0), Copy(1, 1)]
    assert (manager.references[:2], manager.host_tables, manager.reserved_slots) == ([1, 1], {"b": [0, 1]}, 8)
    with pytest.raises(WorkbookError, match="swapped out"):
        manager.append("b", 1)
    with pytest.raises(OutOfBlocksError, match="2 blocks needed, 1 available on the host"):
        manager.swap_out("a")
    assert [move.source for move in manager.swap_in("b")] == [0, 1]
    assert not set(manager.tables["a"]) & set(manager.tables["b"])
    assert (len(manager.host_free), manager.lengths["b"]) == (3, 6)


def test_out_of_blocks_changes_nothing():
    manager = BlockManager(3, block_size=4, host_blocks=4)
    manager.append("a", 6)
    manager.fork("a", "b")
    before = state(manager)
    for refused in (lambda: manager.append("c", 5), lambda: manager.append("b", 3)):
        with pytest.raises(OutOfBlocksError, match="2 blocks needed, 1 available on the device") as caught:
            refused()
        assert (caught.value.needed, caught.value.available) == (2, 1)
        assert state(manager) == before
    manager.swap_out("b")
    manager.append("c", 4)
    before = state(manager)
    with pytest.raises(OutOfBlocksError, match="swapping in"):
        manager.swap_in("b")
    assert state(manager) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockManager(0), "blocks is 0"),
        (lambda: BlockManager(4, block_size=0), "block_size is 0"),
        (lambda: BlockManager(4, block_size=2.0), "block_size is 2.0"),
        (lambda: BlockManager(4, host_blocks=-1), "host_blocks is -1"),
        (lambda: BlockManager(4).append("a", 0), "tokens is 0"),
        (lambda: BlockManager(4).release("a"), "holds nothing"),
        (lambda: BlockManager(4).fork("a", "b"), "holds nothing"),
        (lambda: BlockManager(4).swap_in("a"), "holds nothing"),
        (lambda: BlockManager(4).share("a", [0]), "block 0 to share"),
        (lambda: ContiguousManager(10, 0), "max_tokens is 0"),
        (lambda: ContiguousManager(10, 4).append("a", 5), "5 tokens of sequence 'a'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(WorkbookError, match=message):
        call()


def test_a_second_release_and_a_second_child_of_one_name():
    manager = BlockManager(4)
    manager.append("a", 1)
    with pytest.raises(WorkbookError, match="exists already"):
        manager.fork("a", "a")
    manager.release("a")
    with pytest.raises(WorkbookError, match="holds nothing"):
        manager.release("a")


def test_regions_are_reserved_whole_and_found_again():
    manager = ContiguousManager(slots=100, max_tokens=30)
    for name in "abc":
        manager.append(name, 10)
    assert (manager.reserved_slots, manager.filled_slots, manager.fits()) == (90, 30, False)
    with pytest.raises(OutOfBlocksError, match="30 blocks needed, 10 available"):
        manager.append("d", 1)
    manager.release("b")
    manager.append("d", 30)
    assert manager.starts == {"a": 0, "c": 60, "d": 30}


class Operations(RuleBasedStateMachine):
    """Any operations, with a prefix cache beside: what each slot holds is followed by writing tokens to it."""

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(12, block_size=3, host_blocks=5)
        self.cache = PrefixCache(self.manager)
        self.said = {}  # tokens by sequence
        self.device, self.host = {}, {}  # tokens by (block, place)
        self.born = 0

    def names(self, where):
        return sorted(where)

    def move(self, moves, source, target):
        lifted = [[source.get((move.source, at)) for at in range(3)] for move in moves]
        for move, tokens in zip(moves, lifted, strict=True):
            target.update({(move.target, at): token for at, token in enumerate(tokens)})

    def write(self, name, tokens):
        if self.manager.needed(name, len(tokens)) > self.manager.available:
            before = state(self.manager)
            with pytest.raises(OutOfBlocksError):
                self.manager.append(name, len(tokens))
            assert state(self.manager) == before
            return False
        self.move(self.manager.append(name, len(tokens)), self.device, self.device)
        said = self.said.setdefault(name, [])
        for token in tokens:
            block = self.manager.tables[name][len(said) // 3]
            assert self.manager.references[block] == 1, "written to a shared block"
            self.device[block, len(said) % 3] = token
            said.append(token)
        return True

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def admit(self, prompt):
        name, self.born = self.born, self.born + 1
        fits = self.cache.needed(prompt) <= self.manager.available
        found = self.cache.adopt(name, prompt)
        self.said[name] = prompt[:found]
        written = self.write(name, prompt[found:])
        assert written or not fits
        if not written:
            self.manager.release(name)
            del self.said[name]

    @precondition(lambda self: self.manager.tables)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def append(self, data, tokens):
        self.write(data.draw(st.sampled_from(self.names(self.manager.tables))), tokens)

    @precondition(lambda self: self.manager.tables)
    @rule(data=st.data())
    def remember(self, data):
        name = data.draw(st.sampled_from(self.names(self.manager.tables)))
        self.cache.insert(name, self.said[name])

    @precondition(lambda self: self.manager.tables)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.names(self.manager.tables)))
        self.manager.fork(parent, self.born)
        self.said[self.born], self.born = list(self.said[parent]), self.born + 1

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def release(self, data):
        name = data.draw(st.sampled_from(self.names(self.said)))
        self.manager.release(name)
        del self.said[name]

    @precondition(lambda self: self.manager.tables)
    @rule(data=st.data())
    def swap_out(self, data):
        name = data.draw(st.sampled_from(self.names(self.manager.tables)))
        if len(self.manager.tables[name]) <= len(self.manager.host_free):
            self.move(self.manager.swap_out(name), self.device, self.host)

    @precondition(lambda self: self.manager.host_tables)
    @rule(data=st.data())
    def swap_in(self, data):
        name = data.draw(st.sampled_from(self.names(self.manager.host_tables)))
        if len(self.manager.host_tables[name]) <= self.manager.available:
            self.move(self.manager.swap_in(name), self.host, self.device)

    @rule(wanted=st.integers(1, 4))
    def evict(self, wanted):
        unused = self.cache.unused()
        assert self.cache.evict(wanted) == min(wanted, unused)

    @invariant()
    def has_is_what_is_available(self):
        pinned = set()  # in use, or followed by what is in use
        for entry in (entry for entry in self.cache.queue if self.manager.references[entry.block] > 1):
            while entry:
                pinned.add(entry)
                entry = entry.parent
        available = len(self.manager.free) + len(self.cache.queue) - len(pinned)
        assert self.manager.available == available
        assert [wanted for wanted in range(-1, 14) if self.manager.has(wanted)] == list(range(-1, available + 1))

    @invariant()
    def references_are_uses(self):
        uses = [0] * 12
        for block in [block for table in self.manager.tables.values() for block in table]:
            uses[block] += 1
        for entry in self.cache.queue:
            uses[entry.block] += 1
        assert uses == self.manager.references

    @invariant()
    def nothing_is_lost_or_free_twice(self):
        taken = {block for block, count in enumerate(self.manager.references) if count}
        assert sorted([*self.manager.free, *taken]) == list(range(12))
        on_host = [block for table in self.manager.host_tables.values() for block in table]
        assert sorted([*self.manager.host_free, *on_host]) == list(range(5))

    @invariant()
    def every_sequence_reads_what_it_wrote(self):
        for tables, memory in ((self.manager.tables, self.device), (self.manager.host_tables, self.host)):
            for name, table in tables.items():
                said = self.said[name]
                assert len(table) == -(-len(said) // 3)
                assert [memory[table[at // 3], at % 3] for at in range(len(said))] == said
                assert self.manager.lengths[name] == len(said)

    @invariant()
    def cached_blocks_hold_their_tokens(self):
        for entry in self.cache.queue:
            assert tuple(self.device[entry.block, at] for at in range(3)) == entry.tokens


class CollidingOperations(Operations):
    """The same when every block has the same hash."""

    def __init__(self):
        super().__init__()
        self.cache = PrefixCache(self.manager, hash_function=lambda parent, tokens: 7)


TestOperations = Operations.TestCase
TestOperations.settings = settings(max_examples=40, stateful_step_count=40)
TestCollidingOperations = CollidingOperations.TestCase
TestCollidingOperations.settings = settings(max_examples=25, stateful_step_count=40)


def test_received_sequences_have_host_blocks_of_their_own():
    manager = BlockManager(blocks=8, block_size=4, host_blocks=5)
    first, second = manager.receive("a", 9), manager.receive("b", 8)
    assert (len(first), len(second), len(set(first) | set(second))) == (3, 2, 5)
    with pytest.raises(OutOfBlocksError, match="host"):
        manager.receive("c", 1)
    manager.swap_in("a")
    assert (manager.lengths["a"], len(manager.tables["a"]), len(manager.host_free)) == (9, 3, 3)
    manager.release("b")
    assert len(manager.host_free) == 5


def test_what_is_cut_off_gives_its_blocks_back():
    manager = BlockManager(blocks=4, block_size=4)
    manager.append("a", 13)
    manager.fork("a", "b")
    manager.truncate("a", 8)
    assert (manager.lengths["a"], len(manager.tables["a"]), len(manager.free)) == (8, 2, 0)  # "b" has the others
    manager.release("b")
    assert len(manager.free) == 2
    manager.truncate("a", 8)
    with pytest.raises(WorkbookError, match="from 0 to 8"):
        manager.truncate("a", 9)
