"""``--fx-leaf`` makes modules leaves, ``--fx-tracer`` and the hook bring a tracer, for models of others."""

import pytest
from models_of_users import BRANCHING

MINE = BRANCHING
OPTIONS = ("--fx-model", "mine:network", "--fx-no-timing", "--fx-pass", "remove-identities")


def test_the_error_of_a_model_that_branches_says_how_to_keep_a_module_whole(mine):
    result = mine.runpytest(*OPTIONS, "-k", "test_capture_is_well_formed")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*--fx-leaf PATH|CLASS makes a module a leaf, --fx-tracer sets the tracer*"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--fx-leaf", "choice"),
        ("--fx-leaf", "ch*"),
        ("--fx-leaf", "Branching"),
        ("--fx-leaf", "mine.Branching"),
        ("--fx-tracer", "mine:Ours"),
        ("--fx-tracer", "mine:Theirs"),
    ],
)
def test_a_model_is_captured_with_modules_kept_whole_or_by_a_tracer(mine, arguments):
    result = mine.runpytest(*OPTIONS, *arguments)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 9 and not {"failed", "errors"} & set(outcomes), result.outlines


def test_an_unknown_leaf_is_refused_once_with_similar_names(mine):
    result = mine.runpytest(*OPTIONS, "--fx-leaf", "choise")
    assert result.parseoutcomes()["errors"] == 1
    result.stdout.fnmatch_lines(["*has no module 'choise' that could be a leaf", "*did you mean 'choice'?"])


@pytest.mark.parametrize("setting", ["fx_leaf = Branching", "fx_tracer = mine:Ours"])
def test_the_ini_file_takes_both(mine, setting):
    mine.makeini(f"[pytest]\n{setting}")
    assert mine.runpytest(*OPTIONS, "-k", "test_capture_is_well_formed").ret == 0


@pytest.mark.parametrize("keyword", ["leaf=[mine.Branching]", "leaf='choice'", "tracer=mine.Theirs"])
def test_markers_take_classes_and_tracers_themselves(mine, keyword):
    mine.makepyfile(
        test_own=f"""
        import pytest, mine

        @pytest.mark.fx(model=["mine:network"], {keyword})
        def test_marked(fx_model):
            assert "choice" in fx_model.captured.code
        """
    )
    mine.runpytest("test_own.py").assert_outcomes(passed=1)


def test_the_hook_gives_a_tracer_for_a_model(mine):
    mine.makeconftest(
        """
        def pytest_fx_tracer(config, model):
            import mine
            return mine.Ours if model == "mine:network" else None
        """
    )
    assert mine.runpytest(*OPTIONS, "-k", "test_capture_is_well_formed").ret == 0
