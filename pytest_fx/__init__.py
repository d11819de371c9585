"""A pytest plugin that verifies and times transforms of PyTorch programs.

``pytest --fx-model resnet50`` runs the built-in suite (:mod:`pytest_fx.suite`) on a model: it is captured, the captured
program is compared with eager, and each pass is applied, held to its contract against a float64 reference and timed in
pairs with eager. Test files use the same machinery through the fixtures ``fx_model``, ``fx_traced``, ``fx_pass``,
``fx_equal`` and ``fx_timing`` (:mod:`pytest_fx.fixtures`).

Importing this package imports neither torch nor fx: pytest does so at every start.
"""
