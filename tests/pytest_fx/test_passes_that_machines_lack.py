"""Passes that need what a machine lacks are skipped, with their reason."""

from __future__ import annotations

MINE = """
    from fx.passes import exact

    class Needs:
        name = "needs"
        contract = exact

        def why_unavailable(self):
            return "there is no such device"

        def __call__(self, program):
            raise AssertionError("it must not run")
    """


def test_a_pass_that_is_not_available_is_skipped_with_its_reason(mine):
    mine.syspathinsert()
    arguments = ("--fx-model", "mlp", "-k", "contract", "--benchmark-disable", "-rs")
    result = mine.runpytest_inprocess(*arguments, "--fx-pass", "mine:Needs")
    outcomes = result.parseoutcomes()
    assert outcomes["skipped"] >= 1
    assert "failed" not in outcomes
    assert "errors" not in outcomes
    result.stdout.fnmatch_lines(["*needs: there is no such device"])


def test_a_pipeline_is_skipped_for_any_of_its_passes(mine):
    mine.makepyfile(
        """
        from fx.passes import FuseConvBN, PassPipeline
        from mine import Needs

        def test_pass(fx_check_pass):
            fx_check_pass(PassPipeline([FuseConvBN(), Needs()]))
        """
    )
    mine.syspathinsert()
    result = mine.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs: there is no such device"])
