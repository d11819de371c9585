"""Values of options that make no sense, and options that exclude each other, are refused before anything runs."""

import pytest

from pytest_fx.option_table import FORMS


@pytest.mark.parametrize(
    "option, texts, wanted",
    [
        ("batch", ["0", "-1", "two"], "an integer from 1 on"),
        ("memory-limit", ["0", "-1", "much"], "an integer from 1 on"),
        ("mutate", ["0", "-1", "2.5"], "an integer from 1 on, or a pass"),
        ("seed", ["-1"], "an integer from 0 on"),
        ("rtol", ["-1"], "a number from 0 on"),
        ("atol", ["nan", "small"], "a number from 0 on"),
        ("error-factor", ["-2"], "a number from 0 on"),
        ("detect", ["-1", "x"], "a number from 0 on"),
        ("timeout", ["0", "-1", "inf", "nan", "soon"], "a number of seconds above 0"),
        ("fail-slower", ["5", "fast", "-5%", "nan%", "%"], "a percentage from 0 on, such as 5%"),
        ("budget", ["-1", "inf", "soon"], "a number of seconds from 0 on"),
        ("min-changes", ["-1", "some"], "an integer from 0 on"),
        ("mode", ["training"], "train or eval or both"),
        ("size", ["tiny", ""], "full or small"),
        ("device", ["tpu"], "cpu or cuda"),
        ("capture", ["traced"], "auto or symbolic or guided or export"),
        ("form", ["dialect"], " or ".join(FORMS)),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(pytester, option, texts, wanted):
    for text in texts:
        result = pytester.runpytest(f"--fx-{option}={text}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(f"*--fx-{option}: must be {wanted}, not {text!r}")


@pytest.mark.parametrize(
    "options, lines",
    [
        (("--fx-batch=1,,2",), ["*--fx-batch: must be an integer from 1 on, not ''"]),
        (
            ("--fx-model=mlp", "--fx-contract=precise"),
            ["ERROR: there is no contract 'precise'", "*use exact, close, approximate(DECIBELS), flipped(SHARE)*"],
        ),
        (
            ("--fx-model=mlp", "--fx-dtype=flaot32"),
            ["ERROR: there is no floating-point dtype named 'flaot32'", "*did you mean 'float*"],
        ),
        (("--fx-model=mlp", "--fx-dtype=int8"), ["ERROR: there is no floating-point dtype named 'int8'", "*float*"]),
        (("--fx-model=mlp", "--fx-tracer=fx:Trace"), ["*no tracer named 'fx:Trace'", "*did you mean 'fx:Tracer'*"]),
        (("--fx-check=remove-dead-cod",), ["*did you mean 'remove-dead-code'?*"]),
        (("--fx-memory-limit=100",), ["*--fx-memory-limit needs --fx-isolate: *"]),
        (("--fx-isolate", "--pdb"), ["*--fx-isolate and --pdb exclude each other*"]),
        (("--fx-isolate", "--fx-tables"), ["*--fx-isolate and --fx-tables exclude each other*"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_meaningless_values_are_refused(pytester, options, lines):
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)


@pytest.mark.parametrize("option", ["draw", "report"])
def test_a_file_in_the_place_of_a_folder_is_refused(pytester, option):
    (pytester.path / "notes").write_text("mine")
    for folder in ("notes", "notes/pages"):
        result = pytester.runpytest("--fx-model", "mlp", f"--fx-{option}", folder)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(f"*--fx-{option}: must be a folder that exists or can be made: *notes is a file")


@pytest.mark.parametrize("keyword", ["baseline", "draw", "report"])
def test_options_of_the_whole_run_are_no_keywords_of_the_marker(pytester, keyword):
    path = pytester.makepyfile(f"import pytest\n@pytest.mark.fx({keyword}='x')\ndef test_one(fx_device): pass")
    pytester.runpytest(path).stdout.fnmatch_lines(f"*the marker fx has no keyword '{keyword}'*")
