"""The recognition of passes written for torch.fx, in any style."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.fx.passes.split_module import split_module

import fx
from fx.interop import adapt, is_for_torch


def pass_of(source: str) -> Any:
    """Return the object named ``p`` of a module with this text."""
    namespace: dict[str, Any] = {"__name__": "mine"}
    exec(source, namespace)
    return namespace["p"]


FOR_TORCH = {
    "annotated": "import torch.fx\ndef p(gm: torch.fx.GraphModule): ...",
    "annotated with the name alone": "from torch.fx import GraphModule\ndef p(gm: GraphModule): ...",
    "annotated through an alias": "from torch import fx\ndef p(gm: fx.GraphModule): ...",
    "annotated result": "import torch.fx\ndef p(gm) -> torch.fx.GraphModule: ...",
    "annotated in a union": "import torch.fx\ndef p(gm) -> 'torch.fx.GraphModule | None': ...",
    "annotated by text": "import torch.fx\ndef p(gm: 'torch.fx.GraphModule'): ...",
    "annotated by an unknown text": "def p(gm: 'torch.fx.GraphModule'): ...",
    "postponed": "from __future__ import annotations\nimport torch.fx\ndef p(gm: torch.fx.GraphModule): ...",
    "postponed name": "from __future__ import annotations\nfrom torch.fx import GraphModule\n"
    "def p(gm: GraphModule): ...",
    "postponed alias": "from __future__ import annotations\nfrom torch import fx\ndef p(gm: fx.GraphModule): ...",
    "postponed, only one known": "from __future__ import annotations\nfrom torch.fx import GraphModule\n"
    "def p(gm: GraphModule, settings: Unknown = None): ...",
    "used": "import torch\ndef p(gm): return torch.fx.Transformer(gm).transform()",
    "used through an alias": "import torch.fx as tfx\ndef p(gm): return tfx.Transformer(gm).transform()",
    "used function": "from torch.fx import replace_pattern\ndef p(gm): replace_pattern(gm, min, max)",
    "imported inside": "def p(gm):\n    import torch.fx as tfx\n    return tfx.Transformer(gm).transform()",
    "imported inside, not yet loaded": "def p(gm):\n    import torch.fx.passes.no_such_pass as tools\n    tools.do(gm)",
    "imported from inside": "def p(gm):\n    from torch.fx import Transformer\n    return Transformer(gm).transform()",
    "module imported from inside": "def p(gm):\n    from torch import nn, fx\n    return fx.Transformer(gm)",
    "torch imported inside": "def p(gm):\n    import torch\n    return torch.fx.Transformer(gm).transform()",
    "beside our name": "import fx as ours\ndef p(gm):\n    from torch import fx\n    return fx.Transformer(gm)",
    "in a function inside": "import torch\ndef p(gm):\n"
    "    def edit(node): return torch.fx.map_arg(node, min)\n    edit(gm)",
    "lambda": "import torch\np = lambda gm: torch.fx.Transformer(gm).transform()",
    "lambda that calls": "import torch\ndef edit(gm: torch.fx.GraphModule): ...\np = lambda gm: edit(gm)",
    "partial": "import functools, torch\ndef edit(n, gm: torch.fx.GraphModule): ...\np = functools.partial(edit, 3)",
    "partial of a partial": "import functools as f, torch\ndef edit(n, m, gm: torch.fx.GraphModule): ...\n"
    "p = f.partial(f.partial(edit, 3), 4)",
    "called object": "import torch\nclass P:\n    def __call__(self, gm: torch.fx.GraphModule): ...\np = P()",
    "called object that delegates": "import torch\nclass P:\n    def __call__(self, gm): return self.run(gm)\n"
    "    def run(self, gm: torch.fx.GraphModule): ...\np = P()",
    "called object that holds": "import torch\nclass P:\n    def __call__(self, gm): return self.run(gm)\n"
    "def edit(gm: torch.fx.GraphModule): ...\np = P()\np.run = edit",
    "inherited": "import torch\nclass B:\n    def __call__(self, gm): return self.run(gm)\n"
    "class P(B):\n    def run(self, gm: torch.fx.GraphModule): ...\np = P()",
    "class": "import torch\nclass p:\n    def __call__(self, gm: torch.fx.GraphModule): ...",
    "bound method": "import torch\nclass P:\n    def run(self, gm: torch.fx.GraphModule): ...\np = P().run",
    "class method": "import torch\nclass P:\n    @classmethod\n"
    "    def run(cls, gm: torch.fx.GraphModule): ...\np = P.run",
    "static method": "import torch\nclass P:\n    @staticmethod\n"
    "    def run(gm: torch.fx.GraphModule): ...\np = P().run",
    "pass base": "from torch.fx.passes.infra.pass_base import PassBase\n"
    "class P(PassBase):\n    def call(self, gm): ...\np = P()",
    "decorated": "import functools, torch\ndef timed(f):\n    @functools.wraps(f)\n"
    "    def run(*args): return f(*args)\n"
    "    return run\n@timed\ndef p(gm: torch.fx.GraphModule): ...",
    "decorated without its name": "import torch\ndef timed(f): return lambda *args: f(*args)\n"
    "@timed\ndef p(gm: torch.fx.GraphModule): ...",
}

OURS = {
    "annotated": "import fx\ndef p(gm: fx.GraphModule): ...",
    "annotated by text": "import fx\ndef p(gm: 'fx.GraphModule'): ...",
    "annotated with the name alone": "from fx import GraphModule\ndef p(gm: GraphModule): ...",
    "nothing said": "def p(gm): gm.recompile()",
    "compared with the other": "import fx, torch\n"
    "def p(gm):\n    assert isinstance(gm, (fx.GraphModule, torch.fx.GraphModule))\n    return gm",
    "annotated, and uses the other": "import fx, torch\n"
    "def p(gm: fx.GraphModule):\n    if isinstance(gm, torch.fx.GraphModule): raise TypeError",
    "uses the other by our means": "import torch\nfrom fx.interop import adapt\n"
    "def edit(gm: torch.fx.GraphModule): ...\ndef p(gm): return adapt(edit)(gm)",
    "local name": "from torch import fx\ndef p(fx): return fx.recompile()",
    "a function of torch held": "import torch\nclass P:\n    def __call__(self, gm): return self.function(gm)\n"
    "p = P()\np.function = torch.nn.functional.interpolate",
    "our pass": "from fx.passes import RewritingPass\nimport torch\nclass P(RewritingPass):\n"
    "    def rewrites(self, gm): return torch.fx.map_arg(gm, min)\np = P()",
    "an empty tuple": "def p(gm): gm.args = ()",
    "calls itself": "def p(gm): return p(gm)",
}


@pytest.mark.parametrize("source", FOR_TORCH.values(), ids=FOR_TORCH.keys())
def test_a_pass_for_torch_fx_is_known(source: str) -> None:
    assert is_for_torch(pass_of(source))


@pytest.mark.parametrize("source", OURS.values(), ids=OURS.keys())
def test_a_pass_of_ours_is_not_taken_for_one_of_torch_fx(source: str) -> None:
    assert not is_for_torch(pass_of(source))


def test_passes_of_the_libraries_themselves_are_known() -> None:
    assert is_for_torch(split_module)
    assert is_for_torch(functools.partial(split_module))
    assert is_for_torch(CSEPass())
    assert not is_for_torch(fx.passes.RemoveDeadCode())
    assert not is_for_torch(fx.passes.RemoveDeadCode)
    assert not is_for_torch(adapt(split_module))
    assert not is_for_torch(fx.passes.PassPipeline([adapt(split_module)]))


def test_a_function_may_refer_to_names_that_are_not_defined_yet() -> None:
    def own(gm: Any) -> Any:
        return later(gm)

    assert not is_for_torch(own)
    later = own
