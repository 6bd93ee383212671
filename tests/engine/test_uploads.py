"""What goes to the device keeps its meaning and its type, also where there is nothing to send."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentctx_engine.attention.uploads import upload, upload_index


@pytest.mark.parametrize("rows", [[], [2], [2, 0, 2]])
def test_an_index_can_choose_any_number_of_rows(rows: list[int]) -> None:
    values = torch.arange(12.0).reshape(3, 4)
    assert values[upload_index(rows, "cpu")].tolist() == [values[row].tolist() for row in rows]


@pytest.mark.parametrize("values", [[], [1, 2], np.array([], np.int64), np.array([1, 2], np.int64)])
def test_the_wanted_type_is_that_of_lists_and_of_arrays(values: list[int]) -> None:
    sent = upload(values, "cpu", torch.int32)
    assert (sent.dtype, sent.tolist()) == (torch.int32, list(values))


def test_an_array_keeps_its_type_and_may_be_shared() -> None:
    values = np.array([1, 2], np.int16)
    sent = upload(values, "cpu")
    assert sent.dtype == torch.int16
    values[0] = 7
    assert sent.tolist() == [7, 2]
