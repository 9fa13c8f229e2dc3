import pytest

import dtopp


@pytest.fixture(autouse=True)
def loss_scale_of_one():
    """Undoes dtopp.set_loss_scale, which lasts for the process."""
    yield
    dtopp.set_loss_scale(1.0)
