"""Objects whose pickles call a function."""

ran = []


def run_code(*_):
    """Note that it ran."""
    ran.append("code")


class Call:
    """An object that unpickles as the result of a call."""

    def __init__(self, *call):
        self.call = call or (run_code, 1)

    def __reduce__(self):
        function, *arguments = self.call
        return function, tuple(arguments)
