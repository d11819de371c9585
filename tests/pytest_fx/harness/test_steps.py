"""Several calls in a row: decoding with a cache that each call returns, and a stream of frames."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from decoders import PLACES, decoder, first, greedy, shorten
from torch import nn

import fx
from fx.passes import approximate, close
from pytest_fx import InputSets, LawViolation, Steps, assert_equal_to_eager, flipped, integers
from pytest_fx.errors import InputError
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.search.seed_models import load_models


class Filter(nn.Module):
    """A recurrent filter of frames, whose state is an input and an output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(4, 6)

    def forward(self, frame, state):
        state = self.cell(frame, state)
        return state.sum(1), state


class Averaging(nn.Module):
    """The running mean of all frames so far, kept in a buffer."""

    def __init__(self, kept=0.9):
        super().__init__()
        self.kept = kept
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, frame):
        self.mean.copy_(self.kept * self.mean + (1 - self.kept) * frame.mean(0))
        return frame - self.mean


def frames(count=5):
    return [torch.randn(3, 4, generator=torch.Generator().manual_seed(number)) for number in range(count)]


def message_of(model, other, inputs=None, **options):
    with pytest.raises(LawViolation) as raised:
        assert_equal_to_eager(model, other, inputs, **options)
    return str(raised.value)


def test_a_decoder_agrees_with_its_capture_token_by_token():
    comparison = assert_equal_to_eager(decoder(), fx.symbolic_trace(decoder()), first(), steps=Steps(greedy, count=5))
    assert comparison.largest_error() < 1e-6


def test_the_first_wrong_step_is_told_and_the_node_inside():
    steps = Steps(greedy, first=first(), count=6)
    message = message_of(decoder(), fx.symbolic_trace(decoder(last_place=3)), steps=steps)
    assert message.startswith("law 'calls in a row': Decoder changes what Decoder on step 5 of 6 computes\n")
    assert "where  output['logits']" in message
    assert "the first node that goes wrong:\n  %clamp = call_method[clamp](%place, max=3)" in message
    assert "value  clamp[0, 0] is 4 in the original, 3 here" in message


def test_a_pass_is_judged_in_steps_and_its_wrong_step_is_told():
    message = message_of(decoder(), shorten, first(), steps=greedy)
    assert "shorten changes what Decoder on step 4 of 8 computes" in message
    assert assert_equal_to_eager(decoder(), lambda program: program, first(), steps=greedy).largest_error() < 1e-6


class Doubled(nn.Module):
    """A program whose cache is a little off in each call, by less than is allowed in one."""

    def __init__(self, factor):
        super().__init__()
        self.inner, self.factor = Filter().eval(), factor

    def forward(self, frame, state):
        result, new = self.inner(frame, state)
        return result, new * self.factor


def follow(outputs, number):
    return frames()[number % 5], outputs[1]


def test_each_program_has_its_own_state_so_that_its_errors_add_up():
    model, start = Filter().eval(), (frames()[0], torch.zeros(3, 6))
    steps = Steps(lambda outputs, number: (torch.zeros(3, 4), outputs[1] * 1.5), first=start, count=20)
    contract = "approximate(100)"
    assert_equal_to_eager(model, Doubled(1 + 2e-6), start, contract=contract)
    loose = assert_equal_to_eager(model, Doubled(1 + 2e-6), steps=steps, contract="approximate(60)")
    assert (
        loose.largest_error()
        > assert_equal_to_eager(model, Doubled(1 + 2e-6), start, contract=contract).largest_error()
    )
    message = message_of(model, Doubled(1 + 2e-6), steps=steps, contract=contract)
    assert "law 'calls in a row': Doubled changes what Filter on step " in message
    assert message.splitlines()[-1].endswith("is right: the error has come from earlier calls")


class Rounded(nn.Module):
    """A program whose logits are off by a hundredth of their size, so that it would choose other tokens."""

    def __init__(self):
        super().__init__()
        self.inner = decoder()

    def forward(self, token, place, cache):
        outputs = self.inner(token, place, cache)
        noise = torch.linspace(-1, 1, 20).sin() * outputs["logits"].abs().max()
        return {**outputs, "logits": outputs["logits"] - 0.5 * noise}


def test_tokens_are_those_of_eager_so_that_a_program_that_chooses_another_goes_on_with_the_same_text():
    chosen = {"eager": [], "program": []}

    def record(name, module):
        inner = module.forward

        def forward(token, place, cache):
            chosen[name].append(token.flatten().tolist())
            return inner(token, place, cache)

        module.forward = forward
        return module

    steps = Steps(greedy, first=first(), count=5)
    (subject,) = load_models((record("eager", decoder()), steps), ["eval"])
    pass_run = PassRun.given(subject, record("program", Rounded()))
    outputs = [[run(name).output["logits"].argmax(-1).tolist() for name in subject.steps] for run in (subject.eager, pass_run.actual)]  # fmt: skip # noqa: E501
    assert outputs[0] != outputs[1]
    assert chosen["program"][-5:] == [[3, 5], *outputs[0][:-1]]


class Choosing(nn.Module):
    """A decoder that also returns its likeliest token; ``share`` is an error of its logits."""

    def __init__(self, share=0.0):
        super().__init__()
        self.inner, self.share = decoder(), share

    def forward(self, token, place, cache):
        outputs = self.inner(token, place, cache)
        logits = outputs["logits"] + self.share * torch.linspace(-1, 1, 20).sin()
        return {**outputs, "logits": logits, "token": logits.argmax(-1)}


def test_chosen_tokens_are_judged_by_a_contract_of_their_own_where_they_are_returned():
    def chosen(outputs, number):
        return {"token": outputs["token"][:, None], "place": torch.full((2, 1), number), "cache": outputs["cache"]}

    steps = Steps(chosen, first=first(), count=6)
    contract = {"logits": approximate(20), "token": flipped(0.01), ...: close}
    assert_equal_to_eager(Choosing().eval(), Choosing(1e-3).eval(), steps=steps, contract=contract)
    message = message_of(
        Choosing().eval(), Choosing(0.2).eval(), steps=steps, contract={**contract, "logits": approximate(-99)}
    )
    assert "on step " in message and "output['token']" in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stream_of_frames_with_a_state_in_the_outputs(dtype):
    model, start = Filter().eval().to(dtype), (frames()[0].to(dtype), torch.zeros(3, 6, dtype=dtype))
    steps = Steps(lambda outputs, number: (frames()[number].to(dtype), outputs[1]), first=start, count=5)
    assert_equal_to_eager(model, copy.deepcopy(model), steps=steps, contract="exact")
    wrong = copy.deepcopy(model)
    wrong.cell.weight_hh.data *= 1.01  # no part of the first step, whose state is zero
    assert "on step 2 of 5 computes" in message_of(model, wrong, steps=steps)


def test_a_list_of_frames_is_given_to_a_model_that_keeps_its_state_in_a_buffer():
    model = Averaging().eval()
    assert_equal_to_eager(model, fx.symbolic_trace(Averaging().eval()), steps=frames())
    message = message_of(model, fx.symbolic_trace(Averaging(kept=0.9001).eval()), steps=frames())
    assert message.startswith("law 'contract'")


class ForgetsAtFour(nn.Module):
    """A program that is right in its first three calls."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = Averaging().eval(), 0
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, frame):
        self.count += 1
        self.mean.copy_((0.9 * self.mean + 0.1 * frame.mean(0)) * (self.count < 4))
        return frame - self.mean


def test_a_program_that_is_wrong_from_its_fourth_call_on_is_caught_in_this_step():
    assert_equal_to_eager(Averaging().eval(), ForgetsAtFour(), frames()[0])
    message = message_of(Averaging().eval(), ForgetsAtFour(), steps=frames())
    assert "on step 4 of 5 computes" in message
    assert "step 4 of 5 alone, with the inputs that it has in eager, is right" in message


def test_an_onnx_model_decodes_with_its_own_cache_and_the_line_inside_is_told():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    dynamic = torch.export.Dim.DYNAMIC

    def to_onnx(module):
        inputs = {**first(), "cache": tuple(torch.randn(2, 2, 5, 8).unbind())}
        sizes = {"token": {0: dynamic}, "place": {0: dynamic}, "cache": ({0: dynamic, 1: dynamic},) * 2}
        return torch.onnx.export(module, kwargs=inputs, dynamic_shapes=sizes, dynamo=True, verbose=False)

    steps = Steps(greedy, first=first(), count=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        short = to_onnx(decoder(last_place=3))
    assert assert_equal_to_eager(decoder(last_place=3), short, steps=steps).largest_error() < 1e-6
    message = message_of(decoder(), short, steps=steps)
    assert "ONNXProgram changes what Decoder on step 5 of 6 computes" in message
    assert "  differs  %clamp = call_method[clamp](%place, max=15)" in message


def test_steps_that_cannot_be_made_are_refused_in_one_sentence():
    model = decoder()

    def refused(match, steps, inputs=None):
        with pytest.raises(InputError, match=match):
            assert_equal_to_eager(model, model, inputs, steps=steps)

    refused("steps are a list or a function", 3)
    refused("steps are a list or a function", model)
    refused("steps are a list or a function", (first(), first()))
    refused("Steps of a list take the inputs of all calls from it", [])
    refused("Decoder is called without inputs", greedy)
    refused("returns no inputs for call 1", lambda outputs, number: None, first())
    refused("the inputs of step 2 of 8 hold an object", lambda outputs, number: {**first(), "cache": model}, first())
    refused("Decoder itself raises in step 17 of 17", Steps(lambda *_: beyond(*_), first=first(), count=17))
    with pytest.raises(InputError, match="'count' of Steps is an int from 1 to 1024, not 0"):
        Steps(greedy, count=0)


def beyond(outputs, number):
    return {**greedy(outputs, number), "token": torch.full((2, 1), 19 + number // 16)}


def test_the_first_inputs_may_be_input_sets_with_a_domain():
    sets = InputSets([((), first())], domain={"place": integers(0, PLACES)})
    steps = Steps(greedy, first=sets, count=6)
    assert_equal_to_eager(decoder(), fx.symbolic_trace(decoder()), steps=steps)
    message = message_of(decoder(), fx.symbolic_trace(decoder(last_place=3)), steps=steps)
    assert "on step 5 of 6 computes" in message


def test_steps_that_leave_the_declared_domain_are_refused():
    def model():
        sets = InputSets([((), first())], domain={"place": integers(0, 4)})
        return decoder(), Steps(greedy, first=sets, count=6)

    with pytest.raises(InputError, match="the inputs of model in step 5 of 6 are outside of their own domain"):
        load_models(model, ["eval"])


@pytest.fixture
def user(pytester):
    """The folder of a user with the decoder."""
    (pytester.path / "decoders.py").write_text((Path(__file__).parent / "decoders.py").read_text("utf-8"), "utf-8")
    return pytester


def test_steps_of_a_factory_hold_for_passes_of_the_command_line(user):
    options = ("--fx-model", "decoders:decoding", "--fx-no-timing", "-k", "contract")
    result = user.runpytest(*options, "--fx-pass", "decoders:shorten")
    result.stdout.fnmatch_lines(
        [
            "*law 'calls in a row': shorten changes what decoders:decoding on step 4 of 6 computes*",
            "*the first node that goes wrong:",
            "*a test of 3 nodes that shows it alone: *",
        ]
    )
    (test,) = (user.path / ".pytest_fx").glob("*/test_*.py")
    user.runpytest(test).assert_outcomes(failed=1)
    user.runpytest(*options, "--fx-pass", "remove-dead-code").assert_outcomes(passed=1, skipped=1)


def test_fx_equal_takes_steps(user):
    user.makepyfile(
        test_mine="""
        import fx, pytest
        from decoders import PLACES, decoder, first, greedy
        from pytest_fx import LawViolation, Steps

        def model():
            return decoder(), first()

        @pytest.mark.fx(model=model)
        def test_steps(fx_equal):
            wrong = fx.symbolic_trace(decoder(last_place=3))
            fx_equal(wrong)
            fx_equal(wrong, steps=Steps(greedy, count=4))
            with pytest.raises(LawViolation, match="step 5 of 8"):
                fx_equal(wrong, steps=greedy)
            with pytest.raises(LawViolation, match="step 5 of 8"):
                fx_equal(wrong, steps=greedy, input_sets=1)
        """
    )
    user.runpytest("test_mine.py").assert_outcomes(passed=1)
