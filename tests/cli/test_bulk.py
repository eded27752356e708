"""The intake, which ties what the engine answers to what was read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.bulk import Intake, hash_record
from forebay.cli.inputs import Record
from forebay.cli.journal import Journal
from forebay.core.errors import InvalidRequest

records_lists = st.lists(st.builds(Record, st.text(), st.none() | st.integers() | st.text()), max_size=20)


@given(records_lists, st.integers(0, 20))
def test_skipping_leaves_the_same_digest_as_taking(records, count):
    count = min(count, len(records))
    taken = Intake(iter(records))
    assert list(taken.texts()) == [record.text for record in records]
    assert taken.take(count) == records[:count]
    skipped = Intake(iter(records))
    skipped.skip(Journal({}, rows=count, digest=taken.digest))
    assert list(skipped.texts()) == [record.text for record in records[count:]]
    assert skipped.digest == taken.digest


@given(records_lists.filter(len))
def test_a_shorter_or_changed_input_is_refused(records):
    taken = Intake(iter(records))
    list(taken.texts())
    taken.take(len(records))
    journal = Journal({}, rows=len(records), digest=taken.digest)
    for other in (records[:-1], [*records[:-1], Record(records[-1].text + "x", records[-1].id)]):
        with pytest.raises(InvalidRequest, match="changed"):
            Intake(iter(other)).skip(journal)


def test_records_that_look_alike_have_other_hashes():
    hashes = {hash_record(record) for record in (Record("1"), Record("1", 1), Record("1", "1"), Record("11"))}
    assert len(hashes) == 4
