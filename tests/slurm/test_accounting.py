"""The workflow on a Slurm with accounting, which checks the account of each job."""

import pytest

from tests.slurm.accounting import ACCOUNT
from tests.slurm.place import Place
from tests.slurm.test_mistakes import refused

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def tokens(accounted, tmp_path):
    """A place with a profile that names an account, and reads the states of jobs from sacct."""
    (tmp_path / "place").mkdir()
    made = Place(tmp_path / "place", accounted).fill()
    made.change_profile(resources={"slurm_account": ACCOUNT}, **{"slurm-status-command": "sacct"})
    yield made
    made.abandon()


def test_jobs_are_followed_by_sacct(tokens, accounted):
    tokens.make("tokenizers")
    ((*_, line),) = [tokens.submitted("train_tokenizer")]
    assert line[line.index("-A") + 1] == ACCOUNT
    assert accounted.run("sacct", "--noheader", "--allocations", "--format=State,Account").split() == [
        "COMPLETED",
        ACCOUNT,
    ]


def test_account_that_does_not_exist_is_refused_in_one_sentence(accounted, tokenized, tmp_path):
    place = tokenized.copy(tmp_path / "a place", accounted).change_profile(resources={"slurm_account": "nope"})
    refused(place, f"the profile's `slurm_account` must be one of yours, {ACCOUNT}, root, got nope")
