"""Once torch is imported, CUDA tensors are computed on the CPU."""

import importlib.abc
import importlib.util
import sys


class _After(importlib.abc.MetaPathFinder):
    """Calls something when a module has been imported."""

    def __init__(self, name, call):
        self._name, self._call = name, call

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self._call(module)

        spec.loader.exec_module = exec_module
        return spec


def _torch(module):
    import card_graphs
    import card_operators

    card_operators.register()
    card_graphs.install()


def _compile(module):
    import card_compiled

    card_compiled.install(module)


sys.meta_path[:0] = [_After("torch", _torch), _After("torch._inductor.compile_fx", _compile)]
