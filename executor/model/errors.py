"""The one way a model file can be wrong: with a sentence that tells an operator what to do."""


class ModelError(ValueError):
    """A model that cannot be served: what is wrong, what was expected, what to do."""
