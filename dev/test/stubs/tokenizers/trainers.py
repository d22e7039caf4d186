import types


def BpeTrainer(**options):
    return types.SimpleNamespace(**options)
