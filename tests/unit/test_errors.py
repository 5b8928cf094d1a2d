"""Errors cross to another process with their message and their facts."""

import pickle

import pytest

from sfumato import errors

SPENT = errors.BudgetSpent("the rule, the value, the next step.", needed=2.0, left=1.0, owner="a")


@pytest.mark.parametrize(
    "error",
    [SPENT, errors.InvalidModel("a site.", site="y"), errors.OwnerLost("gone.", owner="b"), errors.InvalidInput("no.")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_on_the_other_side(error):
    there = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(there) is type(error) and str(there) == str(error) and there.__dict__ == error.__dict__
