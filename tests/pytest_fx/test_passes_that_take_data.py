def test_quantization_is_calibrated_and_must_reach_its_decibels(pytester):
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


def test_the_row_of_a_timing_names_the_kernels_that_eight_bits_ran_on(pytester):
    result = pytester.runpytest_inprocess(
        "-v", "--fx-model", "deep_recommender_small", "--fx-pass", "quantize", "-k", "timing", "--fx-rounds", "2"
    )
    result.stdout.fnmatch_lines(["*8-bit kernels (layers)*"])
    result.stdout.re_match_lines([r"deep_recommender_small\s+quantize .*(FBGEMM|oneDNN)[\w ]* \(\d+\)"])
