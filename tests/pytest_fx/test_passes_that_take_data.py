def test_quantization_is_calibrated_and_held_to_its_decibels(pytester):
    result = pytester.runpytest_inprocess(
        "--fx-model", "deep_recommender_small", "--fx-pass", "quantize", "-k", "contract", "--benchmark-disable"
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 2 and "failed" not in outcomes


def test_a_pass_gets_the_models_inputs_as_data(pytester):
    pytester.makepyfile(
        mine="""
        import dataclasses

        @dataclasses.dataclass
        class Counts:
            calls: tuple = ()

            def with_data(self, data):
                return Counts(tuple(data))

            def __call__(self, program):
                assert len(self.calls) == 32
                program(*self.calls[0][0], **self.calls[0][1])
        """
    )
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess(
        "--fx-model", "mlp", "--fx-pass", "mine:Counts", "-k", "test_pass_keeps_its_contract", "--benchmark-disable"
    )
    assert result.parseoutcomes().get("passed") == 1
