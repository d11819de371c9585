"""The public names of torch.fx are here, at the same paths, and take the same arguments."""

from __future__ import annotations

import importlib
import inspect
from operator import attrgetter
from typing import Any

import pytest
import torch.fx

import fx

from .libraries import LIBRARIES, OURS, THEIRS

NAMES = {
    "": """CodeGen Graph GraphModule Interpreter Node PH Proxy ProxyableClassMeta Tracer Transformer has_side_effect
           map_arg symbolic_trace wrap""",
    "graph": "CodeGen Graph PythonCode",
    "graph_module": "GraphModule",
    "immutable_collections": "immutable_dict immutable_list",
    "interpreter": "Interpreter Transformer",
    "node": "Argument Node Target base_types has_side_effect map_aggregate map_arg",
    "operator_schemas": """ArgsKwargsPair check_for_mutable_operation create_type_hint get_signature_for_torch_op
                           normalize_function normalize_module type_matches""",
    "passes.graph_drawer": "FxGraphDrawer",
    "proxy": """Attribute GraphAppendingTracer ParameterProxy Proxy Scope ScopeContextManager TraceError TracerBase""",
    "traceback": "format_stack get_current_meta has_preserved_node_meta preserve_node_meta set_current_meta",
}
PATHS = [f"{module}.{name}".lstrip(".") for module, names in NAMES.items() for name in names.split()]

CLASSES = {
    "graph.CodeGen": "gen_fn_def generate_output process_inputs process_outputs additional_globals",
    "graph.Graph": """__init__ nodes create_node placeholder get_attr call_function call_method call_module
                      output erase_node inserting_before inserting_after node_copy graph_copy lint eliminate_dead_code
                      python_code print_tabular find_nodes output_node process_inputs process_outputs set_codegen
                      on_generate_code""",
    "graph_module.GraphModule": """__init__ graph code recompile add_submodule delete_submodule
                                   delete_all_unused_submodules to_folder print_readable""",
    "interpreter.Interpreter": """__init__ run boxed_run run_node placeholder get_attr call_function call_method
                                  call_module output fetch_attr fetch_args_kwargs_from_env map_nodes_to_values""",
    "interpreter.Transformer": "__init__ transform placeholder get_attr call_module call_function",
    "node.Node": """__init__ args kwargs next prev all_input_nodes stack_trace prepend append update_arg insert_arg
                    update_kwarg replace_input_with is_impure replace_all_uses_with format_node normalized_arguments""",
    "proxy.Attribute": "__init__",
    "proxy.GraphAppendingTracer": "__init__",
    "proxy.Proxy": "__init__ keys __torch_function__",
    "proxy.TracerBase": "create_node create_proxy create_arg proxy to_bool iter keys",
    "Tracer": """__init__ trace is_leaf_module call_module path_of_module create_arg create_args_for_root getattr
                 get_fresh_qualname create_node create_proxy proxy to_bool iter keys""",
}
METHODS = [(owner, name) for owner, names in CLASSES.items() for name in names.split()]


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and kinds of the parameters that a caller can name."""
    return [
        (parameter.name, parameter.kind)
        for parameter in inspect.signature(function).parameters.values()
        if not parameter.name.startswith("_")
    ]


@pytest.mark.parametrize("path", PATHS)
def test_name_is_found_at_the_same_path(path: str) -> None:
    for library in LIBRARIES:
        module = path.rpartition(".")[0]
        if module:
            importlib.import_module(f"{library.__name__}.{module}")
        attrgetter(path)(library)


# arguments that serve other parts of PyTorch: symbolic shapes, its compiler's logs
ELSEWHERE = {"additional_meta", "fast_sympy_print"}


@pytest.mark.parametrize("owner, name", METHODS)
def test_method_takes_the_arguments_of_torch_fx(owner: str, name: str) -> None:
    theirs, ours = (attrgetter(f"{owner}.{name}")(library) for library in (THEIRS, OURS))
    if not callable(theirs):
        assert isinstance(ours, property) or not callable(ours)
        return
    expected = [(label, kind) for label, kind in parameters(theirs) if label not in ELSEWHERE]
    actual = parameters(ours)
    positional = [label for label, kind in expected if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [label for label, _ in actual][: len(positional)] == positional
    assert {label for label, _ in expected} <= {label for label, _ in actual}


@pytest.mark.parametrize("owner, name", METHODS)
def test_method_has_the_defaults_of_torch_fx(owner: str, name: str) -> None:
    theirs, ours = (attrgetter(f"{owner}.{name}")(library) for library in (THEIRS, OURS))
    if not callable(theirs):
        pytest.skip("a property")
    parameters = inspect.signature(ours).parameters
    for label, parameter in inspect.signature(theirs).parameters.items():
        if label not in parameters or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if isinstance(parameter.default, (str, int, bool, type(None))) and parameter.default is not parameter.empty:
            assert parameters[label].default == parameter.default, label


@pytest.mark.parametrize("flag", ["record_stack_traces", "check_mutable_operations", "proxy_buffer_attributes"])
def test_options_of_the_tracer_are_off_unless_set(flag: str) -> None:
    assert getattr(torch.fx.Tracer, flag) is False
    assert getattr(fx.Tracer, flag) is False


def test_traced_method_is_forward_unless_set() -> None:
    assert fx.Tracer.traced_func_name == torch.fx.Tracer.traced_func_name == "forward"


def test_tracer_has_no_public_names_beside_those_of_torch_fx() -> None:
    traced = torch.fx.Tracer()
    traced.trace(torch.nn.Identity())
    theirs = {*dir(torch.fx.Tracer), *vars(traced)}
    # an option of this library: the operations that get the training flag as a value
    assert {name for name in dir(fx.Tracer) if not name.startswith("_")} - theirs == {"follows_training"}
