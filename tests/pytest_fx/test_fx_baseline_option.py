"""--fx-baseline: speed-ups beside those of an earlier run."""

import platform

import pytest
from building import last_run
from selection import thorough_except

TIMING = """
def test_timing(fx_traced, fx_timing):
    fx_timing(fx_traced, label="capture")
"""
OPTIONS = ("--fx-model", "mlp", "--fx-rounds", "5", "-v")


@pytest.fixture
def timing(pytester):
    return pytester.makepyfile(TIMING)


@pytest.mark.parametrize(
    "written", thorough_except(("a journal",), ["the plugin's record", "a journal", "pytest-benchmark's file"])
)
def test_the_change_since_an_earlier_run_is_a_column(pytester, timing, written):
    assert pytester.runpytest(*OPTIONS, "--benchmark-json=out.json", timing).ret == 0
    (journal,) = (pytester.path / ".pytest_fx" / "runs").iterdir()
    files = {
        "the plugin's record": ".pytest_fx/last_run.json",
        "a journal": journal,
        "pytest-benchmark's file": "out.json",
    }
    result = pytester.runpytest(*OPTIONS, "--fx-baseline", files[written], timing)
    assert result.ret == 0
    result.stdout.re_match_lines(
        [
            r"model .* change since the baseline \(95 % interval\)",
            r"mlp +capture .*[+-][\d.]+% to [+-][\d.]+%.*$",  # whatever the machine did meanwhile
            r"compared with .*: 1 of 1 timing\(s\) are in it",
        ]
    )


@pytest.mark.thorough
def test_batch_sizes_and_threads_are_rows_of_their_own_however_many_are_requested(pytester, timing):
    pytester.runpytest(*OPTIONS, "--fx-batch", "1,2", "--fx-threads", "1,2", timing)
    (pytester.path / ".pytest_fx" / "last_run.json").rename(pytester.path / "main.json")
    result = pytester.runpytest(*OPTIONS, "--fx-batch", "2", "--fx-threads", "2", "--fx-baseline", "main.json", timing)
    result.stdout.fnmatch_lines("compared with main.json: 1 of 1 timing(s) are in it")


@pytest.mark.thorough
def test_a_timing_without_a_baseline_row_is_reported_as_missing(pytester, timing):
    pytester.runpytest(*OPTIONS, timing)
    (pytester.path / ".pytest_fx" / "last_run.json").rename(pytester.path / "main.json")
    options = ("--fx-model", "mlp", "--fx-rounds", "2", "--fx-batch", "4", "--fx-baseline", "main.json")
    result = pytester.runpytest(*options, "--fx-fail-slower", "0%", timing)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["mlp *capture *not in the baseline", "compared with main.json: 0 of 1 timing(s)*"])


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "--fx-baseline: cannot read main.json: No such file or directory"),
        (b"\xff\xfe", "--fx-baseline: cannot read main.json: it is not text"),
        (b"{", "--fx-baseline: main.json holds no timings of pytest-fx: give .pytest_fx/last_run.json *"),
        (b'{"benchmarks": [{"extra_info": 3}, 4]}', "--fx-baseline: main.json holds no timings of pytest-fx*"),
        (b'{"records": [{"timing": {"info": []}}]}', "--fx-baseline: main.json holds no timings of pytest-fx*"),
    ],
    ids=["missing", "binary", "broken", "other benchmarks", "other records"],
)
def test_a_file_that_is_no_record_of_a_run_ends_the_run(pytester, timing, content, message):
    if content is not None:
        (pytester.path / "main.json").write_bytes(content)
    result = pytester.runpytest(*OPTIONS, "--fx-baseline", "main.json", timing)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: {message}")


@pytest.mark.thorough
def test_the_setting_is_relative_to_the_root_folder_and_the_option_to_the_current_one(pytester, timing, monkeypatch):
    pytester.runpytest(*OPTIONS, timing)
    deeper = pytester.mkdir("deeper")
    record = pytester.path / ".pytest_fx" / "last_run.json"
    (deeper / "other.json").write_bytes(record.read_bytes())
    record.rename(pytester.path / "main.json")
    pytester.makeini("[pytest]\nfx_baseline = main.json")
    monkeypatch.chdir(deeper)
    for options, name in (((), "main.json"), (("--fx-baseline", "other.json"), "other.json")):
        result = pytester.runpytest(*OPTIONS, *options, timing)
        result.stdout.fnmatch_lines(f"compared with {name}: 1 of 1 timing(s) are in it")


def test_a_run_on_another_host_is_not_compared_with(pytester, timing):
    pytester.runpytest(*OPTIONS, "--benchmark-json=out.json", timing)
    text = (pytester.path / "out.json").read_text()
    (pytester.path / "other.json").write_text(text.replace(f'"host": "{platform.node()}"', '"host": "elsewhere"'))
    result = pytester.runpytest(*OPTIONS, "--fx-baseline", "other.json", "--fx-fail-slower", "0%", timing)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "mlp *capture *measured on host elsewhere",
            "compared with other.json: 0 of 1 timing(s) are in it; 1 of another host, whose timings are not compared",
        ]
    )


def test_the_record_of_a_run_names_all_that_is_compared_and_the_machine(pytester, timing):
    pytester.runpytest(*OPTIONS, "--fx-batch", "2", timing)
    (record,) = last_run(pytester.path)["records"]
    info = record["timing"]["info"]
    assert (info["model"], info["pass"], info["batch"]) == ("mlp", "capture", 2)
    assert (info["dtype"], info["device"], info["threads"], info["rounds"]) == ("float32", "cpu", 1, 5)
    assert len(record["timing"]["eager"]) == len(record["timing"]["transformed"]) == 5
    assert record["machine"]["versions"]["torch"]
    assert record["row"]["peak_memory"] > 0
