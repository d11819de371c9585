"""The promises of a pass, and the contract assumed of a pass that promises nothing."""

from __future__ import annotations

import dataclasses

import pytest

from fx.errors import PassError
from fx.passes import Approximate, Close, Contract, Exact, approximate, close, contract_of, exact


def test_a_pass_that_says_nothing_is_taken_to_be_close() -> None:
    assert contract_of(lambda graph_module: graph_module) is close
    assert close == Close(rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("contract", [exact, close, approximate(sqnr_db=30), Close(rtol=1e-3)])
def test_a_pass_carries_its_contract_as_an_attribute(contract: Contract) -> None:
    class Pass:
        pass

    Pass.contract = contract  # type: ignore[attr-defined]
    assert contract_of(Pass) is contract
    assert contract_of(Pass()) is contract


def test_anything_else_as_a_contract_is_refused() -> None:
    def careless() -> None: ...

    careless.contract = "exact"  # type: ignore[attr-defined]
    with pytest.raises(PassError, match="the contract of a pass is not a Contract") as caught:
        contract_of(careless)
    assert "value  'exact'" in str(caught.value)
    assert "try    set `contract` to `exact`" in str(caught.value)


@pytest.mark.parametrize("rtol", [-1.0, float("inf"), float("nan")])
def test_tolerances_must_be_finite_and_not_negative(rtol: float) -> None:
    with pytest.raises(PassError, match="a contract's rtol must be finite"):
        Close(rtol=rtol)
    with pytest.raises(PassError, match="a contract's atol must be finite"):
        Close(atol=rtol)
    with pytest.raises(PassError, match="a contract's error_factor must be finite"):
        Close(error_factor=rtol)


@pytest.mark.parametrize("sqnr_db", [float("inf"), float("nan")])
def test_a_ratio_that_is_no_number_of_decibels_is_refused(sqnr_db: float) -> None:
    with pytest.raises(PassError, match="finite number of decibels"):
        approximate(sqnr_db)


def test_contracts_read_as_they_are_written() -> None:
    assert str(exact) == "exact"
    assert str(close) == "close(rtol=1e-05, atol=1e-08)"
    assert str(Close(error_factor=2)) == "close(rtol=1e-05, atol=1e-08, error_factor=2)"
    assert str(approximate(sqnr_db=30)) == "approximate(sqnr_db=30)"


def test_contracts_are_values() -> None:
    assert Exact() == exact and Approximate(30) == approximate(sqnr_db=30)
    assert len({exact, Exact(), close, Close()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        close.rtol = 1.0  # type: ignore[misc]
